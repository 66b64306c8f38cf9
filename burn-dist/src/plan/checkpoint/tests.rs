//! The rewrite of small windows made by hand: what is stored is the same function of what is loaded.

use std::collections::HashMap;
use std::sync::Arc;

use burn_backend::{DType, Distribution, Shape};
use burn_ir::{
    BaseOperationIr, BinaryOpIr, FloatOperationIr, MatmulOpIr, NumericOperationIr, OperationIr,
    RandomOpIr, SwapDimsOpIr, TensorId, TensorIr, TensorStatus, UnaryOpIr,
};
use burn_std::BoolStore;

use super::*;
use crate::layout::Layout;
use crate::mesh::{Rank, Topology};
use crate::parallel::{ParamRole, ParamSpec, Style};
use crate::plan::propagate::{Common, propagate};
use crate::plan::rename::rename;
use crate::plan::task::Slot;
use crate::plan::units;
use crate::plan::window::{Input, InputState, Window};
use crate::plan::{PlanOptions, Sharding};
use crate::record::visit::kind_name;

const SIZE: usize = 8;
const SHAPE: [usize; 2] = [SIZE, SIZE];

/// Writes windows of square matrices.
struct Builder {
    mesh: MeshShape,
    window: Window,
}

impl Builder {
    fn new(mesh: &str) -> Self {
        Self {
            mesh: mesh.parse().expect("a mesh"),
            window: Window::default(),
        }
    }

    fn value(&mut self) -> u32 {
        self.window.dies.push(true);
        self.window.dies.len() as u32 - 1
    }

    fn tensor(value: u32, status: TensorStatus) -> TensorIr {
        TensorIr {
            id: TensorId::new(value.into()),
            shape: Shape::from(SHAPE.to_vec()),
            status,
            dtype: DType::F32,
        }
    }

    fn input(&mut self, tag: Option<ParamSpec>) -> u32 {
        let value = self.value();
        let layout = match &tag {
            Some(spec) => spec.layout.at_rest(&self.mesh),
            None => Layout::replicated(&SHAPE),
        };
        self.window.inputs.push(Input {
            value,
            shape: SHAPE.to_vec(),
            dtype: DType::F32,
            state: InputState::Placed {
                layout: Arc::new(layout),
                tag: tag.map(Arc::new),
                origin: None,
            },
        });
        value
    }

    fn param(&mut self, unit: Option<&str>, checkpoint: bool) -> u32 {
        self.input(Some(ParamSpec {
            path: format!("{}.weight", unit.unwrap_or("rest")),
            style: Style::Replicate,
            role: ParamRole::Weight,
            layout: Layout::replicated(&SHAPE),
            input: None,
            output: None,
            unit: unit.map(Into::into),
            checkpoint,
            precision: None,
            strategy: None,
            at_rest: true,
        }))
    }

    fn op(
        &mut self,
        inputs: &[u32],
        make: impl FnOnce(Vec<TensorIr>, TensorIr) -> OperationIr,
    ) -> u32 {
        let out = self.value();
        let inputs = inputs
            .iter()
            .map(|value| Self::tensor(*value, TensorStatus::ReadOnly))
            .collect();
        let op = make(inputs, Self::tensor(out, TensorStatus::NotInit));
        self.window.ops.push(op);
        out
    }

    fn binary(&mut self, a: u32, b: u32, make: fn(BinaryOpIr) -> NumericOperationIr) -> u32 {
        self.op(&[a, b], |inputs, out| {
            let [lhs, rhs] = inputs.try_into().expect("two");
            OperationIr::NumericFloat(DType::F32, make(BinaryOpIr { lhs, rhs, out }))
        })
    }

    fn matmul(&mut self, a: u32, b: u32) -> u32 {
        self.op(&[a, b], |inputs, out| {
            let [lhs, rhs] = inputs.try_into().expect("two");
            OperationIr::Float(
                DType::F32,
                FloatOperationIr::Matmul(MatmulOpIr { lhs, rhs, out }),
            )
        })
    }

    fn exp(&mut self, a: u32) -> u32 {
        self.op(&[a], |mut inputs, out| {
            let input = inputs.remove(0);
            OperationIr::Float(DType::F32, FloatOperationIr::Exp(UnaryOpIr { input, out }))
        })
    }

    fn transpose(&mut self, a: u32) -> u32 {
        self.op(&[a], |mut inputs, out| {
            let input = inputs.remove(0);
            OperationIr::BaseFloat(BaseOperationIr::SwapDims(SwapDimsOpIr {
                input,
                out,
                dim1: 0,
                dim2: 1,
            }))
        })
    }

    fn random(&mut self) -> u32 {
        self.op(&[], |_, out| {
            OperationIr::Float(
                DType::F32,
                FloatOperationIr::Random(RandomOpIr {
                    out,
                    distribution: Distribution::Default,
                }),
            )
        })
    }

    /// `x + mask * exp(x w)`; returns the result, and what the backward needs.
    fn forward(&mut self, x: u32, w: u32) -> (u32, [u32; 3]) {
        let h = self.matmul(x, w);
        let e = self.exp(h);
        let mask = self.random();
        let masked = self.binary(e, mask, NumericOperationIr::Mul);
        let out = self.binary(x, masked, NumericOperationIr::Add);
        (out, [x, e, mask])
    }

    /// The gradients of the block's input and weight.
    fn backward(&mut self, g: u32, w: u32, [x, e, mask]: [u32; 3]) -> (u32, u32) {
        let ge = self.binary(g, mask, NumericOperationIr::Mul);
        let gh = self.binary(ge, e, NumericOperationIr::Mul);
        let wt = self.transpose(w);
        let gx = self.matmul(gh, wt);
        let xt = self.transpose(x);
        let gw = self.matmul(xt, gh);
        (self.binary(g, gx, NumericOperationIr::Add), gw)
    }

    fn survive(&mut self, value: u32) {
        self.window.dies[value as usize] = false;
    }

    fn options(&self) -> PlanOptions {
        PlanOptions {
            defer: true,
            split_batches: true,
            fuzz: None,
            scatter_bytes_min: 0,
            sharding: Sharding::default(),
            checkpoint: Checkpoint::None,
            precision: None,
            floats_missing: Vec::new(),
            everyone_reads: false,
            topology: Topology::single(self.mesh.num_ranks()),
            links: Default::default(),
            hierarchy_bytes_min: None,
            ranks: vec![Rank(0)],
            bool_store: BoolStore::Native,
            storage: Default::default(),
            offload: Default::default(),
        }
    }

    /// Returns the program before and after, and what was done.
    fn rewritten(&self, policy: Checkpoint) -> (Program, Program, Recomputed) {
        let visits = units::Visits::new(&self.window, &units::Tags::new(&self.window, &self.mesh));
        let before =
            propagate(&self.window, &self.mesh, &self.options(), &visits, &[]).expect("a program");
        let mut after = before.clone();
        let done = checkpoint(&mut after, &self.mesh, policy);
        (before, after, done)
    }
}

/// A training step over blocks: forward through `order`, a head, backward, an update of every weight.
fn step(
    mesh: &str,
    units: &[Option<&str>],
    order: &[usize],
    microbatches: usize,
    mark: Option<usize>,
) -> Builder {
    let mut b = Builder::new(mesh);
    let weights: Vec<u32> = units
        .iter()
        .enumerate()
        .map(|(index, unit)| b.param(*unit, mark == Some(index)))
        .collect();
    let head = b.param(None, false);
    let mut gradients: Vec<Option<u32>> = vec![None; weights.len()];
    for _ in 0..microbatches {
        let mut x = b.input(None);
        let mut saved = Vec::new();
        for &block in order {
            let (next, needs) = b.forward(x, weights[block]);
            x = next;
            saved.push((block, needs));
        }
        let y = b.matmul(x, head);
        let e = b.exp(y);
        let ht = b.transpose(head);
        let mut g = b.matmul(e, ht);
        for (block, needs) in saved.into_iter().rev() {
            let (next, gw) = b.backward(g, weights[block], needs);
            g = next;
            gradients[block] = Some(match gradients[block] {
                Some(sum) => b.binary(sum, gw, NumericOperationIr::Add),
                None => gw,
            });
        }
    }
    for (weight, gradient) in weights.iter().zip(gradients) {
        let updated = b.binary(*weight, gradient.expect("used"), NumericOperationIr::Sub);
        b.survive(updated);
    }
    b
}

/// What each stored value is a function of, as a term; equal numbers are equal terms.
fn terms(program: &Program, interned: &mut HashMap<String, u64>) -> Vec<(u32, u64)> {
    let mut slots: HashMap<Slot, u64> = HashMap::new();
    let mut stored = Vec::new();
    for step in &program.steps {
        let ends = flow::ends(step);
        let inputs: Vec<u64> = ends
            .reads
            .iter()
            .map(|slot| *slots.get(slot).expect("made before it is read"))
            .collect();
        let what = match step {
            Common::Load { value, .. } => format!("load {value}"),
            Common::Upload { value, .. } => format!("upload {value}"),
            Common::Random { stream, .. } => format!("random {stream}"),
            Common::Local(local) => {
                let mut op = local.op.clone();
                let zeros = |count| vec![0; count];
                let (inputs, outputs) = (zeros(op.inputs().count()), zeros(op.outputs().count()));
                rename(&mut op, &inputs, &outputs);
                format!("{op:?} {:?} {:?}", local.inputs, local.outputs)
            }
            Common::Move(step) => format!("{:?}", step.step),
            Common::Launch { .. } | Common::Relay { .. } | Common::Finish { .. } => {
                unreachable!("scheduled later")
            }
            Common::Store { value, .. } => {
                stored.push((*value, inputs[0]));
                continue;
            }
            Common::Read { .. } => continue,
        };
        for (position, slot) in ends.writes.iter().enumerate() {
            let next = interned.len() as u64;
            let term = *interned
                .entry(format!("{what} {inputs:?} {position}"))
                .or_insert(next);
            assert_eq!(slots.insert(*slot, term), None, "slot {slot} is made twice");
        }
    }
    stored
}

fn count(program: &Program, kind: &str) -> usize {
    let is = |step: &&Common| matches!(step, Common::Local(local) if kind_name(&local.op) == kind);
    program.steps.iter().filter(is).count()
}

const POLICIES: [&str; 5] = ["full", "every=2", "selective", "bytes=0", "bytes=300"];

#[test]
fn what_is_stored_stays_the_same_function() {
    let units = [Some("0"), Some("1"), Some("2")];
    for mesh in ["", "fsdp=2", "tp=2", "fsdp=2,tp=2"] {
        for (order, microbatches) in [
            (&[0, 1, 2][..], 1),
            (&[0, 1, 2], 2),
            (&[0, 1, 2, 0, 1, 2], 1),
            (&[0, 0, 1], 1),
        ] {
            let window = step(
                mesh,
                &units[..=*order.iter().max().expect("some")],
                order,
                microbatches,
                None,
            );
            for policy in POLICIES {
                let policy = policy.parse().expect("a policy");
                let (before, after, done) = window.rewritten(policy);
                let mut interned = HashMap::new();
                let expected = terms(&before, &mut interned);
                assert_eq!(
                    terms(&after, &mut interned),
                    expected,
                    "`{mesh}` {order:?} {policy}"
                );
                assert!(done.ops > 0, "`{mesh}` {order:?} {policy}");
            }
        }
    }
}

#[test]
fn a_unit_is_made_again_from_its_border() {
    let window = step("", &[Some("0"), Some("1")], &[0, 1], 1, None);
    let (before, after, done) = window.rewritten(Checkpoint::Full);
    assert_eq!((done.visits, done.visits_seen), (2, 2));
    // Per unit: the product, its exponential, the mask. The sum is what the next unit takes.
    assert_eq!(done.ops, 2 * 3);
    for (kind, more) in [("matmul", 2), ("exp", 2), ("mul", 0), ("add", 0)] {
        assert_eq!(count(&after, kind), count(&before, kind) + more, "{kind}");
    }
    let randoms = |program: &Program| -> Vec<u64> {
        let stream = |step: &Common| match step {
            Common::Random { stream, .. } => Some(*stream),
            _ => None,
        };
        program.steps.iter().filter_map(stream).collect()
    };
    assert_eq!(randoms(&before), [0, 1]);
    assert_eq!(
        randoms(&after),
        [0, 1, 1, 0],
        "the last unit is made again first, with its own mask"
    );
}

#[test]
fn products_are_kept_by_selective_and_by_bytes() {
    let window = step("", &[Some("0"), Some("1")], &[0, 1], 1, None);
    let (before, after, _) = window.rewritten(Checkpoint::Selective);
    assert_eq!(count(&after, "matmul"), count(&before, "matmul"));
    assert_eq!(count(&after, "exp"), count(&before, "exp") + 2);
    let bytes = (SIZE * SIZE * 4) as u64;
    for (budget, products) in [(0, 2), (bytes - 1, 2), (bytes, 1), (2 * bytes, 0)] {
        let (before, after, _) = window.rewritten(Checkpoint::Bytes(budget));
        assert_eq!(
            count(&after, "matmul"),
            count(&before, "matmul") + products,
            "{budget}"
        );
    }
    let (_, _, done) = window.rewritten(Checkpoint::Bytes(1 << 20));
    assert_eq!(done.ops, 0, "a budget for everything keeps everything");
}

#[test]
fn a_gathered_parameter_serves_the_clones_and_the_backward() {
    let gathers = |program: &Program| {
        program
            .steps
            .iter()
            .filter(|s| flow::is_collective(s))
            .count()
    };
    let window = step("fsdp=2", &[Some("0"), Some("1")], &[0, 1], 1, None);
    let (before, after, _) = window.rewritten(Checkpoint::Full);
    // So short a window keeps its gathered parameters: none is gathered again.
    assert_eq!(gathers(&after), gathers(&before));
}

#[test]
fn only_marked_units_without_a_policy() {
    let window = step(
        "",
        &[Some("0"), Some("1"), Some("2")],
        &[0, 1, 2],
        1,
        Some(1),
    );
    let (.., done) = window.rewritten(Checkpoint::None);
    assert_eq!((done.visits, done.visits_seen, done.ops), (1, 3, 3));
    let (before, after, _) = window.rewritten(Checkpoint::Selective);
    assert_eq!(
        count(&after, "matmul"),
        count(&before, "matmul") + 1,
        "a marked unit keeps nothing"
    );
}

#[test]
fn every_second_unit() {
    let window = step(
        "",
        &[Some("0"), Some("1"), Some("2"), Some("3")],
        &[0, 1, 2, 3],
        1,
        None,
    );
    let (.., done) = window.rewritten("every=2".parse().expect("a policy"));
    assert_eq!((done.visits, done.visits_seen), (2, 4));
}

#[test]
fn a_model_without_units_has_nothing_to_make_again() {
    let window = step("", &[None, None], &[0, 1], 1, None);
    let (.., done) = window.rewritten(Checkpoint::Full);
    assert_eq!(done, Recomputed::default());
}

#[test]
fn policies_have_a_text_form() {
    for text in ["none", "full", "every=3", "selective", "bytes=1048576"] {
        let policy: Checkpoint = text.parse().expect("a policy");
        assert_eq!(policy.to_string(), text);
    }
    for text in ["", "all", "every", "every=0", "bytes=-1", "full=2"] {
        let error = text.parse::<Checkpoint>().expect_err(text);
        assert!(error.to_string().contains("every=N with N of at least 1"));
    }
}
