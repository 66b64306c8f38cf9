//! Two models of different policies on one mesh: each is trained under its own.

use burn::module::Module;
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams};
use burn::tensor::{Device, Int, Tensor, TensorData, Tolerance};
use burn_dist::explanation::Explanation;
use burn_dist::{
    ActivationCheckpoint, Float, ParallelizeWith, Plan, Precision, Reshard, ShardStrategy,
};

use crate::transformer::run::{builder, weights};
use crate::transformer::{BATCH, DIM, Net, SEQ, VOCAB};
use crate::weights::deterministic;

const BLOCKS: usize = 2;
const STEPS: usize = 6;
const MICROBATCHES: usize = 2;

/// What a distillation leaves, and what its last step does.
struct Distilled {
    losses: Vec<f32>,
    student: Vec<TensorData>,
    explanation: Explanation,
}

/// A frozen teacher, as it was made, and a student of the same shape that has yet to learn.
fn models(device: &Device) -> (Net, Net) {
    let teacher = Net::new(BLOCKS, device).no_grad();
    (teacher, deterministic(Net::new(BLOCKS, device)))
}

/// The squared distance between the logits of both, of one microbatch.
fn loss(teacher: &Net, student: &Net, batch: usize, device: &Device) -> Tensor<1> {
    let tokens: Vec<i32> = (0..BATCH * SEQ)
        .map(|i| ((i * 7 + batch * 13 + 3) % VOCAB) as i32)
        .collect();
    let tokens = TensorData::new(tokens, [BATCH, SEQ]);
    let tokens = Tensor::<2, Int>::from_data(tokens, device);
    let wanted = teacher.forward(tokens.clone()).detach();
    let found = student.forward(tokens);
    (found - wanted).square().mean() / MICROBATCHES as f64
}

/// Distils on a mesh; the last step is explained, after a pass if one is named.
fn distill(
    axes: &str,
    of_teacher: &Plan,
    of_student: &Plan,
    pass: Option<&'static str>,
) -> Distilled {
    let mesh = builder(axes).build().expect("a mesh");
    let device = mesh.device().autodiff();
    // The teacher's weights are those of a seed, on every mesh the same.
    device.seed(11);
    let (teacher, student) = models(&device);
    let placed = |net: Net, plan: &Plan| net.parallelize_with(&mesh, plan).expect("a plan");
    let teacher = placed(teacher, of_teacher);
    let mut student = placed(student, of_student);
    let mut optimizer = AdamWConfig::new().init();
    let mut losses = Vec::new();
    let mut explanation = Explanation::default();
    for step in 0..STEPS {
        let mut one = || {
            let mut gradients = GradientsAccumulator::new();
            let mut total = None;
            for batch in 0..MICROBATCHES {
                let loss = loss(&teacher, &student, MICROBATCHES * step + batch, &device);
                let of_batch = GradientsParams::from_grads(loss.backward(), &student);
                gradients.accumulate(&student, of_batch);
                total = Some(match total.take() {
                    Some(total) => total + loss.detach(),
                    None => loss.detach(),
                });
            }
            student = optimizer.step(1e-2, student.clone(), gradients.grads());
            let total: Tensor<1> = total.expect("a microbatch");
            total.into_scalar::<f32>()
        };
        let (loss, explained) = match pass {
            Some(pass) => burn_dist::explain_after(&device, pass, one).expect("a pass"),
            None => burn_dist::explain(&device, &mut one),
        };
        losses.push(loss);
        explanation = explained;
    }
    Distilled {
        losses,
        student: weights(&student),
        explanation,
    }
}

/// In bf16, sharded as ZeRO-2, nothing recomputed.
fn of_teacher() -> Plan {
    Plan::new()
        .unit("blocks")
        .precision(Precision::new(Float::BF16))
        .strategy(ShardStrategy::GradOptim)
}

/// In f32, fully sharded, every block recomputed.
fn of_student() -> Plan {
    Plan::new()
        .unit("blocks")
        .checkpoint(ActivationCheckpoint::Full)
        .reshard(Reshard::Always)
}

#[test]
fn a_teacher_and_a_student_have_policies_of_their_own() {
    let run = |axes| distill(axes, &of_teacher(), &of_student(), None);
    let found = run("fsdp=2");
    assert!(
        found.losses[STEPS - 1] < 0.95 * found.losses[0],
        "{:?}",
        found.losses
    );
    // One device, to the order of sums.
    let alone = run("");
    for (step, (found, alone)) in found.losses.iter().zip(&alone.losses).enumerate() {
        let error = ((found - alone) / alone).abs();
        assert!(error < 1e-4, "step {step}: {found}, not {alone}");
    }
    for (found, alone) in found.student.iter().zip(&alone.student) {
        found.assert_approx_eq::<f32>(alone, Tolerance::rel_abs(1e-3, 1e-4));
    }
    // Replicas that recompute nothing, to the bit; and bf16 can be seen.
    let plain = || Plan::new().unit("blocks");
    let bf16 = plain().precision(Precision::new(Float::BF16));
    let replicas = distill("dp=2", &bf16, &plain(), None);
    assert_eq!(found.losses, replicas.losses);
    for (found, replicas) in found.student.iter().zip(&replicas.student) {
        assert!(
            found.bytes() == replicas.bytes(),
            "the student's weights differ"
        );
    }
    assert_ne!(
        found.losses,
        distill("dp=2", &plain(), &plain(), None).losses
    );
}

#[test]
fn each_of_two_models_is_planned_under_its_own_policy() {
    let explanation = distill("fsdp=2", &of_teacher(), &of_student(), None).explanation;
    // Recomputed: the student's blocks, in each microbatch.
    let text = explanation.to_string();
    assert_eq!(
        explanation.recomputed.visits,
        (MICROBATCHES * BLOCKS) as u64,
        "{text}"
    );
    assert!(text.contains("checkpoint full: "), "{text}");
    // Both have matrices of the same names and shapes; the teacher's are gathered in half the bytes, and once.
    let gathers = explanation.collectives.iter();
    let gathers = gathers.filter(|c| {
        let path = c.path.as_deref().unwrap_or_default();
        c.kind == "all_gather" && path == "blocks.*.wq"
    });
    let (count, bytes) = gathers.fold((0, 0), |(count, bytes), c| {
        (count + c.count, bytes + c.bytes)
    });
    let whole = (DIM * DIM * 4 / 2) as u64;
    // count = teacher + student, bytes = whole * (teacher / 2 + student).
    let by_student = (2 * bytes - count * whole) / whole;
    assert_eq!(
        count - by_student,
        BLOCKS as u64,
        "the teacher's gathers\n{text}"
    );
    // Forward and backward of both microbatches.
    assert_eq!(
        by_student,
        (2 * MICROBATCHES * BLOCKS) as u64,
        "the student's gathers\n{text}"
    );

    // Exchanged policies exchange what is done.
    let swapped = distill("fsdp=2", &of_student(), &of_teacher(), None).explanation;
    assert_eq!(
        swapped.recomputed.visits, 0,
        "a frozen teacher has no backward\n{swapped}"
    );
}

#[test]
fn casts_are_made_in_the_model_that_asks_for_them() {
    let distilled = distill("fsdp=2", &of_teacher(), &of_student(), Some("precision"));
    let text = distilled.explanation.after.join("\n");
    let casts = |of: &str| {
        let cast = |line: &&str| line.contains("= cast(") && line.ends_with(of);
        text.lines().filter(cast).count()
    };
    // Of two parameters of one name, one.
    for matrix in ["wq", "wk", "wv", "wo", "w1", "w2", "w3"] {
        for block in 0..BLOCKS {
            let of = format!("parameter blocks.{block}.{matrix}.weight");
            assert_eq!(casts(&of), 1, "{of}\n{text}");
        }
    }
    let low = |line: &&str| line.contains("bf16");
    assert!(text.lines().any(|line| low(&line)), "{text}");
    // The teacher has no backward, and nothing of the student's is in bf16.
    let mut backward = text
        .lines()
        .filter(|line| line.contains("# backward") || line.contains("# update"));
    assert!(backward.clone().count() > 100, "{text}");
    assert!(!backward.any(|line| low(&line)), "{text}");
}
