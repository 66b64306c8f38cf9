//! Every row meets every other one: blocks that go round the ranks.

use super::{Kind, Toy};
use crate::ir::{LocalView, NewTensor, Op, Shift, Steps, TensorIndex};
use crate::mesh::{AxisIndex, Rank};

/// What an operation does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Hash)]
pub(crate) enum Astray {
    /// It shifts by as many places as there are ranks.
    AllTheWay,
    /// It does not wait for what it shifts.
    Forgets,
    /// Its last rank shifts once more than the others.
    Alone,
    /// Its last rank shifts by one place more than the others.
    Farther,
}

/// Lowers [`Kind::Astray`].
fn lower_astray(kind: Astray, mut ring: Ring<'_, '_>, axes: &[AxisIndex]) {
    let op = ring.op;
    let members = ring.view.mesh.group_size(axes);
    let is_last = ring.view.mesh.group_index(ring.view.rank, axes) + 1 == members;
    for _ in 0..1 + usize::from(kind == Astray::Alone && is_last) {
        let to = ring.temp_block(ring.view.rank);
        let mut shift = ring.shift(axes, op.inputs[1].id, to.id, 0);
        if kind == Astray::AllTheWay {
            shift.by = members as isize;
        }
        shift.by += isize::from(kind == Astray::Farther && is_last);
        let launched = ring.steps.launch(vec![shift]);
        match kind {
            Astray::Forgets => drop(launched),
            _ => ring.steps.finish(launched),
        }
    }
    let x = ring.tensor(op.inputs[0].id, ring.view.input_shape(0));
    let out = ring.tensor(op.out.id, ring.view.output_shape(0));
    ring.steps.push(Toy::reshape(x, out));
}

/// Lowers [`Kind::Meet`] and [`Kind::MeetBack`] whose rows are split over `axes`.
///
/// Rank r meets its own block, then that of rank r - 1 and so on. Sums over the rows of `x` begin at the rank behind
/// the one whose they are, and come there last.
pub(super) fn lower(op: &Toy, view: &LocalView<'_>, axes: &[AxisIndex], steps: &mut Steps<Toy>) {
    let members = view.mesh.group_size(axes);
    let home = |come: usize| view.mesh.rank_before(view.rank, axes, come as isize);
    let mut ring = Ring { op, view, steps };
    if let Kind::Astray(kind) = op.kind {
        return lower_astray(kind, ring, axes);
    }
    let x = ring.tensor(op.inputs[0].id, view.input_shape(0));
    let mut y = ring.block(op.inputs[1].id, view.rank);
    let (mut sum, mut own): (Option<NewTensor>, Option<NewTensor>) = (None, None);
    let mut coming = None;
    for come in 0..members {
        let next = (come + 1 < members).then(|| ring.temp_block(home(come + 1)));
        let moving = next.as_ref().map(|next| {
            let shift = ring.shift(axes, y.id, next.id, come);
            ring.steps.launch(vec![shift])
        });
        let met = match op.kind {
            Kind::Meet => ring.product(&x, &y),
            _ => ring.product(&y, &x),
        };
        match op.kind {
            Kind::Meet => sum = Some(ring.add(sum.take(), met)),
            _ if come == 0 => own = Some(met),
            _ => {
                let arrived = coming.take().map(|(launched, block)| {
                    ring.steps.finish(launched);
                    block
                });
                let sum = ring.add(arrived, met);
                let to = ring.temp_block(home(come + 1));
                let shift = ring.shift(axes, sum.id, to.id, come);
                coming = Some((ring.steps.launch(vec![shift]), to));
            }
        }
        if let (Some(launched), Some(next)) = (moving, next) {
            ring.steps.finish(launched);
            y = next;
        }
    }
    if let Some((launched, block)) = coming {
        ring.steps.finish(launched);
        sum = own.map(|own| ring.add(Some(own), block));
    }
    let sum = sum.expect("a group has members");
    let out = ring.tensor(op.out.id, view.output_shape(0));
    ring.steps.push(Toy::reshape(sum, out));
}

struct Ring<'a, 'v> {
    op: &'a Toy,
    view: &'a LocalView<'v>,
    steps: &'a mut Steps<Toy>,
}

impl Ring<'_, '_> {
    fn tensor(&self, id: TensorIndex, shape: Vec<usize>) -> NewTensor {
        NewTensor {
            id,
            shape,
            dtype: self.op.out.dtype,
        }
    }

    fn temp(&mut self, shape: Vec<usize>) -> NewTensor {
        let id = self.steps.temp();
        self.tensor(id, shape)
    }

    /// A block of `y`, that of `rank`.
    fn block(&self, id: TensorIndex, rank: Rank) -> NewTensor {
        let shape = self.view.inputs[1].local_shape(self.view.mesh, rank);
        self.tensor(id, shape)
    }

    fn temp_block(&mut self, rank: Rank) -> NewTensor {
        let id = self.steps.temp();
        self.block(id, rank)
    }

    fn shift(&self, axes: &[AxisIndex], from: TensorIndex, to: TensorIndex, come: usize) -> Shift {
        Shift {
            from,
            to,
            dtype: self.op.out.dtype,
            layout: self.view.inputs[1].clone(),
            axes: axes.to_vec(),
            come: come as isize,
            by: 1,
        }
    }

    /// `a (b^T b)`.
    fn product(&mut self, a: &NewTensor, b: &NewTensor) -> NewTensor {
        let width = b.shape[1];
        let transposed = self.temp(vec![width, b.shape[0]]);
        let squares = self.temp(vec![width, width]);
        let out = self.temp(a.shape.clone());
        let made = [
            Toy::new(Kind::Transpose, [b.clone()], transposed.clone()),
            Toy::new(Kind::Matmul, [transposed, b.clone()], squares.clone()),
            Toy::new(Kind::Matmul, [a.clone(), squares], out.clone()),
        ];
        made.into_iter().for_each(|op| self.steps.push(op));
        out
    }

    fn add(&mut self, a: Option<NewTensor>, b: NewTensor) -> NewTensor {
        let Some(a) = a else { return b };
        let out = self.temp(b.shape.clone());
        self.steps.push(Toy::new(Kind::Add, [a, b], out.clone()));
        out
    }
}
