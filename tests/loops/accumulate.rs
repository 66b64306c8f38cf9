//! Microbatches: when their gradients are reduced changes traffic and memory, and results only by rounding.

use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams};
use burn::tensor::Device;
use burn_dist::explanation::Explanation;
use burn_dist::{Accumulation, ParallelizeWith, Plan};

use super::meshes::{Outcome, builder, weights};
use crate::transformer::{Net, Training, sequence_parallel};
use crate::weights::deterministic;

const MICROBATCHES: usize = 3;
const STEPS: usize = 3;

/// Trains on several microbatches a step; `reads` says whether each loss is read as it is made.
fn train(
    device: &Device,
    reads: bool,
    place: impl FnOnce(Net) -> Net,
    mut step_of: impl FnMut(&mut dyn FnMut()),
) -> Outcome {
    let net = place(deterministic(Net::new(2, device)));
    let mut training = Training { net, step: 0 };
    let mut optimizer = AdamWConfig::new().init();
    let mut losses: Vec<f64> = Vec::new();
    for step in 0..STEPS {
        step_of(&mut || {
            let mut accumulator = GradientsAccumulator::new();
            let mut unread = Vec::new();
            for microbatch in 0..MICROBATCHES {
                training.step = MICROBATCHES * step + microbatch;
                let loss = training.loss(device) / MICROBATCHES as f64;
                let gradients = GradientsParams::from_grads(loss.backward(), &training.net);
                accumulator.accumulate(&training.net, gradients);
                match reads {
                    true => losses.push(loss.into_scalar()),
                    false => unread.push(loss),
                }
            }
            training.net = optimizer.step(1e-2, training.net.clone(), accumulator.grads());
            losses.extend(unread.into_iter().map(|loss| loss.into_scalar::<f64>()));
        });
    }
    Outcome {
        losses,
        weights: weights(&training.net),
    }
}

/// Bytes by which gradients of weights are reduced in one step, and what is said of it.
fn reduced(explanation: &Explanation) -> u64 {
    let all = explanation.collectives.iter();
    let reduces = |kind: &str| kind == "reduce_scatter" || kind == "all_reduce";
    all.filter(|c| reduces(c.kind) && c.shape.len() == 2 && !c.axes.contains("tp"))
        .map(|c| c.bytes)
        .sum()
}

#[test]
fn gradients_are_reduced_when_asked() {
    let expected = train(&Device::flex().autodiff(), true, |net| net, |step| step());
    for axes in ["dp=2", "fsdp=2", "fsdp=4", "dp=2,fsdp=2", "fsdp=2,tp=2"] {
        let mut once = None;
        for reads in [false, true] {
            for (accumulation, times) in [
                (Accumulation::PerStep, 1),
                (Accumulation::PerMicrobatch, MICROBATCHES as u64),
                (
                    Accumulation::PerWindow,
                    if reads { MICROBATCHES as u64 } else { 1 },
                ),
            ] {
                let mesh = builder(axes).build().expect("a mesh");
                let device = mesh.device().autodiff();
                let plan = match axes.contains("tp") {
                    true => sequence_parallel(),
                    false => Plan::new(),
                };
                let plan = plan.accumulation(accumulation);
                let mut explanation = Explanation::default();
                let found = train(
                    &device,
                    reads,
                    |net| {
                        net.parallelize_with(&mesh, &plan.unit("blocks"))
                            .expect("a plan")
                    },
                    |step| explanation = burn_dist::explain(&device, step).1,
                );
                let what = format!("{accumulation} on {axes}, losses read at once: {reads}");
                found.assert_close(&expected, &what);
                let bytes = reduced(&explanation);
                assert_eq!(
                    bytes,
                    times * *once.get_or_insert(bytes),
                    "{what}\n{explanation}"
                );
                assert!(bytes > 0, "{what}");
                let text = explanation.to_string();
                if accumulation != Accumulation::PerWindow {
                    let said = format!("gradients reduced per {accumulation}: ");
                    assert!(text.contains(&said), "{text}");
                }
                let kept = explanation.accumulated.kept;
                let keeps = accumulation == Accumulation::PerStep && reads;
                assert_eq!(kept > 0, keeps, "{what}\n{text}");
            }
        }
    }
}

#[test]
fn reducing_each_microbatch_keeps_pieces_alone() {
    let after_backward = |accumulation: Accumulation| {
        let mesh = builder("fsdp=4").build().expect("a mesh");
        let device = mesh.device().autodiff();
        let net = Net::new(2, &device)
            .parallelize_with(&mesh, &Plan::new().accumulation(accumulation))
            .expect("a plan");
        let training = Training { net, step: 0 };
        training.loss(&device).into_scalar::<f32>();
        let (gradients, explanation) = burn_dist::explain(&device, || {
            let loss = training.loss(&device);
            let gradients = GradientsParams::from_grads(loss.backward(), &training.net);
            loss.into_scalar::<f32>();
            gradients
        });
        drop(gradients);
        let ends = explanation.memory.iter().map(|memory| memory.end_bytes);
        ends.max().expect("ranks")
    };
    let pieces = after_backward(Accumulation::PerMicrobatch);
    let whole = after_backward(Accumulation::PerStep);
    // Parameters and gradients in quarters, or gradients whole.
    assert!(2 * whole >= 4 * pieces, "{whole} bytes, {pieces} in pieces");
}
