//! Shifts that operations ask for: the same on all ranks, as tasks and as records.

use super::Lowering;
use crate::error::PlanError;
use crate::ir::{Chunked, CollectiveRecord, CollectiveTask, Op, ProgramStep, Shift, Steps};
use crate::mesh::collective::{Collective, Kind};
use crate::mesh::{MeshShape, Rank};

impl Shift {
    /// Returns the shape of the block that `rank` has once it has moved `by` places.
    fn shape(&self, mesh: &MeshShape, rank: Rank, by: isize) -> Vec<usize> {
        let home = mesh.rank_before(rank, &self.axes, self.come + by);
        self.layout.local_shape(mesh, home)
    }

    /// Says what it is, for messages.
    fn text(&self, mesh: &MeshShape) -> String {
        let axes: Vec<&str> = self.axes.iter().map(|axis| mesh.name(*axis)).collect();
        format!(
            "a shift by {} over {} of {} {}",
            self.by,
            axes.join(","),
            self.dtype.name(),
            self.layout.display(mesh)
        )
    }

    /// Returns the task of one rank.
    pub(super) fn task(
        &self,
        mesh: &MeshShape,
        rank: Rank,
        record: u32,
        path: u32,
    ) -> CollectiveTask {
        let group = mesh.group_of(rank, &self.axes);
        let (from_shape, to_shape) = (self.shape(mesh, rank, 0), self.shape(mesh, rank, self.by));
        let sizes = group.iter().map(|&member| {
            let shape = self.shape(mesh, member, 0);
            shape.iter().product::<usize>() * self.dtype.size()
        });
        CollectiveTask {
            collective: Collective::Shift {
                by: self.by,
                sizes: sizes.collect(),
            },
            index: mesh.group_index(rank, &self.axes),
            group: group.into(),
            axes: self.axes.iter().map(|&axis| mesh.size(axis)).collect(),
            dtype: self.dtype,
            from: self.from,
            to: self.to,
            from_shape,
            to_shape,
            record,
            path,
            take: false,
        }
    }
}

/// Returns the operation that a step computes.
fn name<O: Op>(step: &ProgramStep<O>) -> &'static str {
    match step {
        ProgramStep::Local(step) => step.op.name(),
        ProgramStep::Chunked(step) => step.last().op.name(),
        _ => "nothing",
    }
}

/// Names the products that a step computes in chunks.
fn products<O: Op>(step: &Chunked<O>) -> String {
    let products = step.steps.iter().map(|step| &step.op);
    let products = products.filter(|op| op.product_flops().is_some());
    let names: Vec<&str> = products.map(Op::name).collect();
    let alike = names.chunk_by(|one, next| one == next);
    let names = alike.map(|names| match names {
        [name] => name.to_string(),
        names => format!("{} {}", names.len(), names[0]),
    });
    names.collect::<Vec<_>>().join(", ")
}

impl<O: Op> Lowering<'_, O> {
    /// Returns the shifts of each step that may have some, launch by launch, in order: those of the first rank that the
    /// program is of, which all others are to shift too.
    pub(super) fn expected(&self) -> Result<Vec<Vec<Vec<Shift>>>, PlanError> {
        let of = self.first_rank;
        let mut steps = Vec::new();
        for common in &self.program.steps {
            if common.may_shift() {
                let lowered = self.emitted(of, common, 0);
                let launches: Vec<Vec<Shift>> = lowered.launches().map(<[Shift]>::to_vec).collect();
                let error = |problem: String| PlanError::Shifts {
                    op: name(common).to_string(),
                    problem,
                };
                if lowered.under_way() > 0 {
                    return Err(error(format!(
                        "rank {of} launches shifts that it never finishes"
                    )));
                }
                for shift in launches.iter().flatten() {
                    let members = self.mesh.group_size(&shift.axes) as isize;
                    if shift.by.rem_euclid(members.max(1)) == 0 {
                        let text = shift.text(self.mesh);
                        return Err(error(format!(
                            "rank {of} asks for {text}, which moves nothing among {members} ranks"
                        )));
                    }
                }
                steps.push(launches);
            }
        }
        Ok(steps)
    }

    /// Checks that a rank shifts what the others do; `index` counts the steps that may shift.
    pub(super) fn is_expected(
        &self,
        index: usize,
        rank: Rank,
        (step, lowered): (&ProgramStep<O>, &Steps<O>),
    ) -> Result<(), PlanError> {
        let mut found = lowered.launches().flatten();
        let mut others = self.expected[index].iter().flatten();
        loop {
            let text = |shift: Option<&Shift>| match shift {
                Some(shift) => shift.text(self.mesh),
                None => "no further shift".to_string(),
            };
            match (found.next(), others.next()) {
                (None, None) => return Ok(()),
                (Some(mine), Some(other)) if mine.is_of(other) => {}
                (mine, other) => {
                    return Err(PlanError::Shifts {
                        op: name(step).to_string(),
                        problem: format!(
                            "rank {rank} asks for {} where rank {} asks for {}",
                            text(mine),
                            self.first_rank,
                            text(other)
                        ),
                    });
                }
            }
        }
    }

    /// Describes the shifts of a step; launches are numbered from `launch` on.
    pub(super) fn shift_records(
        &self,
        step: &ProgramStep<O>,
        launches: &[Vec<Shift>],
        launch: u32,
    ) -> Vec<CollectiveRecord> {
        let record = |(number, shift): (u32, &Shift)| {
            let axes: Vec<&str> = shift
                .axes
                .iter()
                .map(|&axis| self.mesh.name(axis))
                .collect();
            let layout = shift.layout.display(self.mesh).to_string();
            CollectiveRecord {
                kind: Kind::Shift,
                axes: axes.join(","),
                reason: match step {
                    ProgramStep::Chunked(step) => {
                        format!("{}, in chunks beside {}", step.moved.reason, products(step))
                    }
                    _ => format!("{} passes blocks on", name(step)),
                },
                path: step.path().cloned(),
                shape: shift.layout.shape(),
                dtype: shift.dtype,
                layouts: (layout.clone(), layout),
                // Every block goes to some rank.
                bytes: (shift.layout.local_numel_max(self.mesh) * shift.dtype.size()) as u64,
                members: self.mesh.group_size(&shift.axes),
                spans_nodes: self
                    .topology
                    .spans(&self.mesh.group_of(Rank(0), &shift.axes)),
                launch: Some(number),
            }
        };
        let numbered = (launch..).zip(launches);
        let shifts =
            numbered.flat_map(|(number, shifts)| shifts.iter().map(move |shift| (number, shift)));
        shifts.map(record).collect()
    }
}
