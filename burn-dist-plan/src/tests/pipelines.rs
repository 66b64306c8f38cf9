//! The law of stages: a pipeline of any schedule gives what one device gives. Long for the model that all its tests
//! build, and their rows.

use std::sync::Arc;

use proptest::prelude::*;

use super::check;
use crate::ir::{Mark, Pipeline, ScheduleChoice, Stage, Task, ValueIndex};
use crate::mesh::collective;
use crate::pipeline::Schedule;
use crate::toy::{Builder, Kind, options, planned};
use crate::{ActivationCheckpoint, PlanError, PlanOptions, Policy, ScheduleKind, plan, text_after};

/// What becomes of the norm of all gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Norm {
    /// It is not taken.
    None,
    /// It is read together with the losses.
    Read,
    /// Gradients are scaled by a function of it, too.
    Scales,
}

/// What a model of stages is made of.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub mesh: String,
    pub schedule: ScheduleKind,
    /// Stages of a rank.
    pub chunks: u32,
    /// Layers, and the stage of each.
    pub layers: Vec<u32>,
    pub microbatches: usize,
    /// A layer to whose result the first activation is added.
    pub skip: Option<usize>,
    /// True if the last layer has the weight of the first.
    pub tied: bool,
    /// True if each microbatch has data of its own, and the losses are added up.
    pub apart: bool,
    /// A schedule without a name.
    pub choice: Option<ScheduleChoice>,
    pub norm: Norm,
}

impl Model {
    pub(crate) fn new(
        mesh: &str,
        schedule: ScheduleKind,
        chunks: u32,
        microbatches: usize,
    ) -> Self {
        let ranks = mesh.parse::<crate::mesh::MeshShape>().expect("a mesh");
        let ranks = ranks
            .pipeline_axis()
            .map_or(1, |axis| ranks.size(axis) as u32);
        Self {
            mesh: mesh.into(),
            schedule,
            chunks,
            layers: (0..ranks * chunks).collect(),
            microbatches,
            skip: None,
            tied: false,
            apart: false,
            choice: None,
            norm: Norm::None,
        }
    }

    fn stage(&self, b: &Builder, index: u32) -> Option<Stage> {
        let axis = b.mesh.pipeline_axis()?;
        let ranks = b.mesh.size(axis) as u32;
        let pipeline = Pipeline {
            axis,
            ranks,
            stages: ranks * self.chunks,
            schedule: self.choice.clone().unwrap_or(self.schedule.into()),
        };
        Some(Stage {
            index,
            pipeline: Arc::new(pipeline),
        })
    }

    /// A weight on each stage.
    fn weights(&self, b: &mut Builder) -> Vec<u32> {
        let weight = |stage: u32| {
            let mut spec = Builder::spec(&format!("w{stage}"), &[4, 4], None);
            spec.stage = self.stage(b, stage);
            b.param(spec)
        };
        self.layers.iter().copied().map(weight).collect()
    }

    /// `exp(x w + x)` for each layer, the sum of squares as loss, and the gradients of all microbatches added up.
    pub(crate) fn step(&self, rows: usize) -> Builder {
        let mut b = Builder::new(&self.mesh);
        let mut states: Vec<u32> = Vec::new();
        let weights: Vec<u32> = self
            .layers
            .iter()
            .enumerate()
            .map(|(layer, stage)| {
                if self.tied && layer + 1 == self.layers.len() {
                    return 0;
                }
                let name = format!("layer{layer}");
                let mut spec = Builder::spec(&format!("{name}.weight"), &[4, 4], Some(&name));
                spec.stage = self.stage(&b, *stage);
                if let Ok(tp) = b.mesh.axis("tp") {
                    spec.layout.dims[layer % 2].factors[0].axes = vec![tp];
                }
                let weight = b.param(spec.clone());
                if self.norm != Norm::None {
                    states.push(b.state(spec));
                }
                weight
            })
            .collect();
        let mut sums: Vec<Option<u32>> = vec![None; weights.len()];
        let mut losses = Vec::new();
        let batch = (!self.apart).then(|| b.data(&[rows * self.microbatches, 4]));
        for microbatch in 0..self.microbatches {
            let range = microbatch * rows..(microbatch + 1) * rows;
            let mut x = match batch {
                Some(batch) => b.op(Kind::Slice(0, range), &[batch], &[rows, 4]),
                None => b.data(&[rows, 4]),
            };
            let first = x;
            let mut saved = Vec::new();
            for (layer, &w) in weights.iter().enumerate() {
                let h = b.linear(x, w);
                let mut h = b.pair(Kind::Add, h, x);
                if self.skip == Some(layer) {
                    let early = saved.first().map_or(first, |(_, _, h)| *h);
                    h = b.pair(Kind::Mul, h, early);
                }
                saved.push((x, w, h));
                x = b.exp(h);
            }
            let squares = b.pair(Kind::Mul, x, x);
            let loss = b.sum_dim(squares, 1);
            let loss = b.sum_dim(loss, 0);
            losses.push(loss);
            let ones = b.ones_for(x);
            let mut g = b.pair(Kind::Mul, ones, x);
            let mut g_early = None;
            for (layer, (x, w, h)) in saved.iter().copied().enumerate().rev() {
                let mut gh = b.pair(Kind::Mul, g, h);
                if let (0, Some(early)) = (layer, g_early) {
                    gh = b.pair(Kind::Add, gh, early);
                }
                if self.skip == Some(layer) && layer > 0 {
                    let early = saved[0].2;
                    g_early = Some(b.pair(Kind::Mul, gh, h));
                    gh = b.pair(Kind::Mul, gh, early);
                }
                let (gx, gw) = b.linear_backward(x, w, gh);
                g = b.pair(Kind::Add, gx, gh);
                let of = weights.iter().position(|of| *of == w).expect("a layer");
                sums[of] = Some(match sums[of] {
                    Some(sum) => b.pair(Kind::Add, sum, gw),
                    None => gw,
                });
            }
            if let (true, [.., sum, loss]) = (self.apart, &losses[..]) {
                let sum = b.pair(Kind::Add, *sum, *loss);
                losses = vec![sum];
            }
        }
        let norm = (self.norm != Norm::None).then(|| norm(&mut b, sums.iter().flatten()));
        let mut states = states.into_iter();
        for (w, sum) in weights.iter().zip(sums) {
            if let Some(mut sum) = sum {
                if let (Norm::Scales, Some(norm)) = (self.norm, norm) {
                    let scale = b.exp(norm);
                    let scale = b.reshape(scale, &[1, 1]);
                    sum = b.op(Kind::Mul, &[sum, scale], &[4, 4]);
                }
                // As an optimizer does that keeps two things for each parameter, and makes more of what it kept.
                if let Some(state) = states.next() {
                    let kept = b.exp(state);
                    let moved = b.pair(Kind::Add, kept, sum);
                    b.survive(moved);
                    sum = b.exp(moved);
                }
                let new = b.pair(Kind::Sub, *w, sum);
                b.survive(new);
            }
        }
        match norm {
            Some(norm) => {
                let rows = losses.len() + 1;
                losses.push(norm);
                let all = b.op(Kind::Concat(0), &losses, &[rows, 1]);
                b.read(all);
            }
            None => losses.into_iter().for_each(|loss| b.read(loss)),
        }
        b
    }

    /// The losses of data that nothing is learnt from.
    pub(crate) fn validation(&self, rows: usize) -> Builder {
        let mut b = Builder::new(&self.mesh);
        let weights = self.weights(&mut b);
        for _ in 0..self.microbatches {
            let mut x = b.data(&[rows, 4]);
            for &w in &weights {
                let h = b.linear(x, w);
                x = b.exp(h);
            }
            let loss = b.sum_dim(x, 1);
            let loss = b.sum_dim(loss, 0);
            b.read(loss);
        }
        weights.into_iter().for_each(|w| b.survive(w));
        b
    }

    /// What a checkpoint reads: all weights.
    pub(crate) fn checkpoint(&self) -> Builder {
        let mut b = Builder::new(&self.mesh);
        for w in self.weights(&mut b) {
            b.survive(w);
            b.read(w);
        }
        b
    }
}

/// The sum of the squares of all elements of some tensors.
fn norm<'a>(b: &mut Builder, of: impl Iterator<Item = &'a u32>) -> u32 {
    let squares = of.map(|&of| {
        let squares = b.pair(Kind::Mul, of, of);
        b.sum(squares)
    });
    let squares: Vec<u32> = squares.collect();
    let sum = squares
        .into_iter()
        .reduce(|sum, next| b.pair(Kind::Add, sum, next));
    sum.expect("a gradient")
}

pub(crate) fn chunks(schedule: ScheduleKind) -> u32 {
    match schedule.is_looped() {
        true => 2,
        false => 1,
    }
}

#[test]
fn every_schedule_gives_what_one_device_gives() {
    for mesh in [
        "pp=2",
        "pp=3",
        "pp=4",
        "pp=2,fsdp=2",
        "dp=2,pp=2",
        "pp=2,tp=2",
        "fsdp=2,pp=2,tp=2",
    ] {
        let is_alone = !mesh.contains(',');
        for schedule in ScheduleKind::ALL {
            for microbatches in (1..=9).step_by(if is_alone { 1 } else { 3 }) {
                let model = Model::new(mesh, schedule, chunks(schedule), microbatches);
                let b = model.step(4);
                check(&b, &options(&b.mesh), &format!("{model:?}"));
            }
        }
    }
}

#[test]
fn what_skips_stages_and_what_is_shared_goes_where_it_is_used() {
    for (skip, tied) in [(Some(2), false), (None, true), (Some(3), true)] {
        for schedule in [ScheduleKind::OneFOneB, ScheduleKind::ZbH1] {
            for everyone_reads in [false, true] {
                let model = Model {
                    skip,
                    tied,
                    ..Model::new("pp=4,fsdp=2", schedule, 1, 5)
                };
                let b = model.step(4);
                let options = PlanOptions {
                    everyone_reads,
                    ..options(&b.mesh)
                };
                check(&b, &options, &format!("{model:?}"));
            }
        }
    }
}

#[test]
fn activations_are_made_again_on_their_stage() {
    for checkpoint in ["full", "selective"] {
        let model = Model {
            layers: vec![0, 0, 1, 1],
            ..Model::new("pp=2,fsdp=2", ScheduleKind::OneFOneB, 1, 3)
        };
        let b = model.step(4).under(Policy {
            checkpoint: checkpoint
                .parse::<ActivationCheckpoint>()
                .expect("a policy"),
            ..Policy::default()
        });
        check(&b, &options(&b.mesh), checkpoint);
    }
}

/// The gradient of a skip connection is used far from where it is made, and is not made again there: that would be
/// forwards and backwards of later stages.
#[test]
fn gradients_are_not_made_again() {
    for (mesh, schedule, skip) in [
        ("pp=2", ScheduleKind::ZbV, 2),
        ("pp=2", ScheduleKind::Interleaved, 3),
        ("pp=3", ScheduleKind::OneFOneB, 1),
        ("dp=2,pp=3", ScheduleKind::ZbH1, 1),
    ] {
        for checkpoint in [ActivationCheckpoint::Full, ActivationCheckpoint::Selective] {
            let model = Model {
                skip: Some(skip),
                ..Model::new(mesh, schedule, chunks(schedule), 3)
            };
            let b = model.step(4).under(Policy {
                checkpoint,
                ..Policy::default()
            });
            check(&b, &options(&b.mesh), &format!("{model:?}, {checkpoint}"));
        }
    }
}

/// Each rank runs the operations of its stage alone, and what crosses is an activation and its gradient.
#[test]
fn ranks_run_their_own_stage() {
    let model = Model::new("pp=4", ScheduleKind::OneFOneB, 1, 3);
    let b = model.step(4);
    let plan = plan(&b.window, &b.mesh, &options(&b.mesh)).expect("a plan");
    planned(&b.window, &plan, &b.mesh);
    for (rank, of) in plan.ranks.iter().enumerate() {
        let count = |is: &dyn Fn(&Task<_>) -> bool| of.tasks.iter().filter(|task| is(task)).count();
        let linear = |task: &Task<crate::toy::Toy>| matches!(task, Task::Op(op, _) if op.kind == Kind::Linear);
        assert_eq!(count(&|task| linear(task)), 3, "rank {rank}");
        assert_eq!(
            count(&|task| matches!(task, Task::Load { .. })),
            1,
            "rank {rank}"
        );
        let sends = count(&|task| matches!(task, Task::Send(_)));
        let expected = 3 * (usize::from(rank < 3) + usize::from(rank > 0));
        assert_eq!(sends, expected, "rank {rank}");
        assert_eq!(
            count(&|task| matches!(task, Task::Receive(_))),
            expected,
            "rank {rank}"
        );
    }
}

/// Parameters that the window itself makes, as the first step of a model does, are on their stage alone, and so is what
/// is computed with them.
#[test]
fn new_parameters_are_on_their_stage() {
    let model = Model::new("pp=2", ScheduleKind::OneFOneB, 1, 1);
    let mut b = Builder::new("pp=2");
    let weights = [0, 1].map(|stage| {
        let mut spec = Builder::spec(&format!("w{stage}"), &[4, 4], None);
        spec.stage = model.stage(&b, stage);
        let value = b.data(&[4, 4]);
        b.mark(Mark::Param(Arc::new(spec)), value)
    });
    let x = b.data(&[8, 4]);
    let y = weights.iter().fold(x, |x, w| b.linear(x, *w));
    b.read(y);
    for weight in weights {
        b.survive(weight);
    }
    check(&b, &options(&b.mesh), "new weights");
    let plan = plan(&b.window, &b.mesh, &options(&b.mesh)).expect("a plan");
    let products = plan.ranks.iter().map(|rank| {
        let tasks = rank.tasks.iter();
        let is_product =
            |task: &&Task<crate::toy::Toy>| matches!(task, Task::Op(op, _) if op.kind == Kind::Linear);
        tasks.filter(is_product).count()
    });
    assert_eq!(products.collect::<Vec<_>>(), [1, 1]);
}

/// What waits for its use because it is made of little runs on its own stage all the same.
#[test]
fn what_waits_for_its_use_is_made_on_its_stage() {
    let model = Model::new("pp=2", ScheduleKind::OneFOneB, 1, 1);
    let mut b = Builder::new("pp=2");
    let weights = model.weights(&mut b);
    // A product of constants and a whole weight, that is smaller: any part of it is free.
    let ones = b.op(Kind::Full(1), &[], &[8, 4]);
    let first = b.op(Kind::Expand, &[weights[0]], &[4, 4]);
    let x = b.linear(ones, first);
    let y = b.linear(x, weights[1]);
    b.read(y);
    check(&b, &options(&b.mesh), "constants");
    let plan = plan(&b.window, &b.mesh, &options(&b.mesh)).expect("a plan");
    for rank in &plan.ranks {
        let loads = rank
            .tasks
            .iter()
            .filter(|task| matches!(task, Task::Load { .. }));
        assert_eq!(loads.count(), 1, "{:?}", rank.tasks);
    }
    let sent = plan.ranks[1]
        .tasks
        .iter()
        .filter(|task| matches!(task, Task::Send(_)));
    assert_eq!(sent.count(), 0, "nothing goes back");
}

/// What a backward makes of values of the forward alone, such as a transpose of what an earlier stage has made, is made
/// where it is used: nothing goes from an earlier stage to a later one once the forward is done.
#[test]
fn a_backward_goes_one_way() {
    let model = Model::new("pp=2", ScheduleKind::OneFOneB, 1, 2);
    let mut b = Builder::new("pp=2");
    let weights = model.weights(&mut b);
    let mut sums = [None, None];
    for _ in 0..2 {
        // Two towers that are multiplied with each other on the last stage.
        let (x, y) = (b.data(&[6, 4]), b.data(&[6, 4]));
        let first = b.linear(x, weights[0]);
        let second = b.linear(y, weights[1]);
        let turned = b.transpose(second);
        let logits = b.matmul(first, turned);
        let squares = b.pair(Kind::Mul, logits, logits);
        let loss = b.sum_dim(squares, 0);
        let loss = b.sum_dim(loss, 1);
        b.read(loss);
        let ones = b.ones_for(logits);
        let g = b.pair(Kind::Mul, ones, logits);
        let of_first = b.matmul(g, second);
        let first_turned = b.transpose(first);
        let of_turned = b.matmul(first_turned, g);
        let of_second = b.transpose(of_turned);
        let (_, of_w1) = b.linear_backward(y, weights[1], of_second);
        let (_, of_w0) = b.linear_backward(x, weights[0], of_first);
        for (sum, of_w) in sums.iter_mut().zip([of_w0, of_w1]) {
            *sum = Some(match *sum {
                Some(sum) => b.pair(Kind::Add, sum, of_w),
                None => of_w,
            });
        }
    }
    let sums = sums.into_iter().map(|sum| sum.expect("a gradient"));
    descend(&mut b, &weights, sums);
    check(&b, &options(&b.mesh), "two towers");
    let plan = plan(&b.window, &b.mesh, &options(&b.mesh)).expect("a plan");
    for rank in &plan.ranks {
        let sent = rank
            .tasks
            .iter()
            .filter(|task| matches!(task, Task::Send(_)));
        assert_eq!(sent.count(), 2, "one for each microbatch");
    }
}

/// A stage sends the values that it makes again for a later one, which makes of them what every stage may make.
#[test]
fn what_is_made_again_is_sent_where_it_is_used() {
    let model = Model::new("pp=2", ScheduleKind::OneFOneB, 1, 1);
    let mut b = Builder::new("pp=2");
    let weights = [(0, 0), (0, 0), (1, 1), (1, 1), (2, 1)].map(|(unit, stage)| {
        let unit = format!("unit{unit}");
        let mut spec = Builder::spec(&format!("{unit}.weight"), &[4, 4], Some(&unit));
        spec.stage = model.stage(&b, stage);
        b.param(spec)
    });
    let mut x = b.data(&[4, 4]);
    let saved = weights.map(|w| {
        let h = b.linear(x, w);
        let before = std::mem::replace(&mut x, b.exp(h));
        (before, h)
    });
    let ones = b.ones_for(x);
    let mut g = b.pair(Kind::Mul, ones, x);
    let mut gradients = [g; 5];
    for layer in (0..5).rev() {
        let (x, h) = saved[layer];
        let gh = b.pair(Kind::Mul, g, h);
        g = b.op(Kind::LinearX, &[weights[layer], gh], &[4, 4]);
        if layer == 3 {
            // Of forward values alone: the first of the backward to use what the first stage makes again.
            let slope = b.transpose(saved[2].0);
            g = b.matmul(g, slope);
        }
        gradients[layer] = b.op(Kind::LinearW, &[x, gh], &[4, 4]);
    }
    descend(&mut b, &weights, gradients);
    let b = b.under(Policy {
        checkpoint: ActivationCheckpoint::Full,
        ..Policy::default()
    });
    check(&b, &options(&b.mesh), "a slope of an earlier stage");
    assert_eq!(counts(&b, &Kind::Exp), [4, 4], "some are made again");
}

/// A norm of all gradients, and what is scaled by it, is made of what every stage has made, in any schedule.
#[test]
fn norms_of_gradients_are_those_of_one_device() {
    for mesh in ["pp=2", "pp=4", "pp=2,fsdp=2", "dp=2,pp=2", "pp=2,tp=2"] {
        for schedule in ScheduleKind::ALL {
            for (microbatches, norm) in [(1, Norm::Read), (3, Norm::Read), (4, Norm::Scales)] {
                for tied in [false, true] {
                    let mut model = Model::new(mesh, schedule, chunks(schedule), microbatches);
                    model.tied = tied && model.layers.len() > 2;
                    model.norm = norm;
                    let b = model.step(4);
                    check(&b, &options(&b.mesh), &format!("{model:?}"));
                }
            }
        }
    }
}

/// A table may end with any microbatch: what needs all of them comes after the last one.
#[test]
fn norms_come_after_whatever_microbatch_is_last() {
    let text = "schedule ranks=2 chunks=1 placement=loop microbatches=2\n\
                F0.1 F0.0 B0.1 B0.0 W0.0 W0.1\n\
                F1.1 B1.1 F1.0 B1.0 W1.1 W1.0\n";
    let table: Schedule = text.parse().expect("a table");
    let mut model = Model::new("pp=2", ScheduleKind::OneFOneB, 1, 2);
    model.choice = Some(table.into());
    for norm in [Norm::Read, Norm::Scales] {
        model.norm = norm;
        let b = model.step(4);
        check(&b, &options(&b.mesh), &format!("{norm:?}"));
    }
}

/// How many of some operations each rank runs.
fn counts(b: &Builder, kind: &Kind) -> Vec<usize> {
    let plan = plan(&b.window, &b.mesh, &options(&b.mesh)).expect("a plan");
    let ranks = plan.ranks.iter().map(|rank| {
        let is_it =
            |task: &&Task<crate::toy::Toy>| matches!(task, Task::Op(op, _) if op.kind == *kind);
        rank.tasks.iter().filter(is_it).count()
    });
    ranks.collect()
}

/// Takes gradients away from their weights.
fn descend(
    b: &mut Builder,
    weights: &[ValueIndex],
    gradients: impl IntoIterator<Item = ValueIndex>,
) {
    for (w, gradient) in weights.iter().zip(gradients) {
        let new = b.pair(Kind::Sub, *w, gradient);
        b.survive(new);
    }
}

/// What is made before a backward begins is of the forward, also where nothing but that uses it.
#[test]
fn what_only_a_backward_uses_may_be_of_the_forward() {
    let model = Model::new("pp=2", ScheduleKind::OneFOneB, 1, 1);
    let mut b = Builder::new("pp=2");
    let weights = model.weights(&mut b);
    let tower = |b: &mut Builder| {
        let x = b.data(&[4, 4]);
        let h = b.linear(x, weights[0]);
        (x, h, b.linear(h, weights[1]))
    };
    // The gradient of one tower is scaled by what another one makes.
    let (_, _, factor) = tower(&mut b);
    let (x, h, y) = tower(&mut b);
    let ones = b.ones_for(y);
    let g = b.pair(Kind::Mul, ones, factor);
    let (gh, g1) = b.linear_backward(h, weights[1], g);
    let (_, g0) = b.linear_backward(x, weights[0], gh);
    descend(&mut b, &weights, [g0, g1]);
    check(&b, &options(&b.mesh), "two towers");
    assert_eq!(counts(&b, &Kind::Linear), [2, 2]);
}

/// What a backward makes again may be as long as it likes, and name its operands as often.
#[test]
fn what_a_backward_makes_again_is_known_by_its_operands() {
    let model = Model::new("pp=2", ScheduleKind::OneFOneB, 1, 1);
    let mut b = Builder::new("pp=2");
    let weights = model.weights(&mut b);
    let x = b.data(&[4, 4]);
    let h = b.linear(x, weights[0]);
    let y = b.linear(h, weights[1]);
    let ones = b.ones_for(y);
    let mut slope = h;
    for _ in 0..100 {
        slope = b.pair(Kind::Add, slope, slope);
    }
    let g = b.pair(Kind::Mul, ones, y);
    let g = b.pair(Kind::Mul, g, slope);
    let (gh, g1) = b.linear_backward(h, weights[1], g);
    let (_, g0) = b.linear_backward(x, weights[0], gh);
    descend(&mut b, &weights, [g0, g1]);
    check(&b, &options(&b.mesh), "slopes");
    // Where it is used, and nowhere else.
    assert_eq!(counts(&b, &Kind::Add), [0, 100]);
}

/// With FSDP, a stage gathers each of its parameters once and reduces each gradient once, however many microbatches.
#[test]
fn a_stage_gathers_and_reduces_once() {
    let model = Model::new("pp=2,fsdp=2", ScheduleKind::ZbH1, 1, 4);
    let b = model.step(4);
    let plan = plan(&b.window, &b.mesh, &options(&b.mesh)).expect("a plan");
    let count = |kind| plan.collectives.iter().filter(|of| of.kind == kind).count();
    assert_eq!(count(collective::Kind::AllGather), 2);
    assert_eq!(count(collective::Kind::ReduceScatter), 2);
}

#[test]
fn the_order_is_that_of_the_schedule() {
    let model = Model::new("pp=2", ScheduleKind::ZbH1, 1, 3);
    let b = model.step(2);
    let text = text_after(&b.window, &b.mesh, &options(&b.mesh), "staging").expect("a pass");
    insta::assert_snapshot!(text);
}

/// Gradients are added up in the order of the program, whatever order a table makes them in.
#[test]
fn a_table_gives_what_one_device_gives() {
    let text = "schedule ranks=2 chunks=1 placement=loop microbatches=2\n\
                F0.1 F0.0 B0.1 B0.0 W0.0 W0.1\n\
                F1.1 B1.1 F1.0 B1.0 W1.1 W1.0\n";
    let table: Schedule = text.parse().expect("a table");
    let mut model = Model::new("pp=2", ScheduleKind::OneFOneB, 1, 2);
    model.choice = Some(table.into());
    let b = model.step(4);
    check(&b, &options(&b.mesh), text);
    model.microbatches = 3;
    let b = model.step(4);
    let error = plan(&b.window, &b.mesh, &options(&b.mesh)).expect_err("another number");
    let text = error.to_string();
    assert!(
        text.contains("the step has 3 microbatches, and its table is of 2"),
        "{text}"
    );
}

#[test]
fn stages_that_cannot_be_are_errors() {
    let mut model = Model::new("pp=2", ScheduleKind::OneFOneB, 1, 2);
    model.layers = vec![0, 1, 0];
    let b = model.step(2);
    let error = plan(&b.window, &b.mesh, &options(&b.mesh)).expect_err("backwards");
    assert!(
        matches!(&error, PlanError::Backwards { path, stage: 0, by: 1 } if path == "layer2.weight"),
        "{error}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_cut_of_a_model_gives_what_one_device_gives(
        mesh in proptest::sample::select(&["pp=2", "pp=3", "pp=4", "pp=2,fsdp=2", "dp=2,pp=3", "pp=2,tp=2"][..]),
        schedule in proptest::sample::select(&ScheduleKind::ALL[..]),
        cuts in proptest::collection::vec(0u32..4, 1..9),
        microbatches in 1usize..7,
        skip in proptest::option::of(1usize..8),
        tied in any::<bool>(),
        norm in proptest::sample::select(&[Norm::None, Norm::Read, Norm::Scales][..]),
        rows in 1usize..5,
    ) {
        let mut model = Model::new(mesh, schedule, chunks(schedule), microbatches);
        let stages = model.layers.len() as u32;
        let mut cuts: Vec<u32> = cuts.into_iter().map(|cut| cut * stages / 4).collect();
        cuts.sort_unstable();
        model.layers = cuts;
        model.skip = skip;
        model.tied = tied && model.layers.len() > 2;
        model.norm = norm;
        let b = model.step(rows);
        check(&b, &options(&b.mesh), &format!("{model:?}"));
    }
}
