//! The promise of the whole program: a mesh trains as one device does.
//!
//! Llama S for 16 steps of AdamW, and some of them on each mesh, with shorter sequences than its default so that an
//! unoptimised build takes seconds; and adapters over a base in 8 bits.

use burn::module::Module;
use burn::store::ModuleRecord;
use burn::tensor::{Bytes, Device};
use burn_dist::train::rng::Rng;
use burn_dist::trainer::batch::BatchSource;
use burn_dist::trainer::optimizer;
use burn_dist::trainer::step;
use burn_dist::trainer::tokens::RandomTokens;
use burn_dist::{DeviceMesh, Parallelize};
use burn_dist_lm::model::{Llama, Size};

#[path = "parity/int8.rs"]
mod int8;

one_thread::one_thread_per_process!();

const STEPS: usize = 16;
/// On a mesh.
const STEPS_THERE: usize = 5;
const BATCH: usize = 4;
const SEQ: usize = 16;

fn bytes(model: Llama) -> Vec<u8> {
    let bytes = model.into_record().into_bytes();
    bytes.expect("records in memory").to_vec()
}

/// The weights that every run starts from.
fn initial() -> Vec<u8> {
    let device = Device::flex();
    device.seed(7);
    bytes(Size::S.config().init(&device))
}

/// Losses of a run of so many steps, and the weights after it.
fn run(
    initial: &[u8],
    device: &Device,
    steps: usize,
    place: impl FnOnce(Llama) -> Llama,
) -> (Vec<f32>, Vec<u8>) {
    let config = Size::S.config();
    let record = ModuleRecord::from_bytes(Bytes::from_bytes_vec(initial.to_vec()));
    let record = record.expect("the weights of the same model");
    let mut model = place(config.init(device)).load_record(record);
    let mut optim = optimizer::optimizer();
    let mut source = RandomTokens {
        batch: BATCH,
        seq: SEQ,
        vocab: config.vocab,
        rng: Rng::new(3, 0),
        held: burn_dist::layout::Rows::all(BATCH),
    };
    // One batch: random tokens can only be learned by heart.
    let batch = source.next_batch().expect("random tokens");
    let mut losses = Vec::new();
    for _ in 0..steps {
        let (next, loss) = step::one(model, &mut optim, &batch, 1e-3, device);
        model = next;
        losses.push(loss.into_scalar());
    }
    (losses, bytes(model))
}

fn on_mesh(initial: &[u8], text: &str) -> (Vec<f32>, Vec<u8>) {
    let mesh = DeviceMesh::parse(text).expect("a mesh");
    run(initial, &mesh.device().autodiff(), STEPS_THERE, |model| {
        model.parallelize(&mesh).expect("the model fits")
    })
}

#[test]
fn every_mesh_has_the_losses_of_one_device() {
    let initial = initial();
    let (expected, _) = run(&initial, &Device::flex().autodiff(), STEPS, |model| model);
    assert!(
        expected[STEPS - 1] < 0.5 * expected[0] && expected[0] > 7.0,
        "it learns something: {expected:?}"
    );
    let data_and_model = ["", "fsdp=2", "tp=2", "tp=4", "fsdp=2,tp=2", "dp=2"];
    // Of 16 tokens, three ranks have 6, 6 and 4.
    let context = [
        "cp=2",
        "cp=3",
        "cp=4",
        "fsdp=2,cp=2",
        "cp=2,tp=2",
        "pp=2,cp=2",
    ];
    for text in data_and_model.into_iter().chain(context) {
        let (losses, _) = on_mesh(&initial, text);
        for (step, (found, expected)) in losses.iter().zip(&expected).enumerate() {
            let error = ((found - expected) / expected).abs();
            assert!(
                error <= 1e-4,
                "mesh `{text}`, step {step}: {found} is {error:e} off {expected}"
            );
        }
    }
}

#[test]
fn sharded_and_replicated_data_parallelism_are_bitwise_alike() {
    let initial = initial();
    for ranks in [2, 4] {
        let sharded = on_mesh(&initial, &format!("fsdp={ranks}"));
        let replicated = on_mesh(&initial, &format!("dp={ranks}"));
        assert_eq!(sharded.0, replicated.0, "losses on {ranks} ranks");
        assert!(sharded.1 == replicated.1, "weights on {ranks} ranks differ");
    }
}

#[test]
fn a_run_repeats_bitwise() {
    let initial = initial();
    let first = on_mesh(&initial, "fsdp=2,tp=2");
    let second = on_mesh(&initial, "fsdp=2,tp=2");
    assert_eq!(first.0, second.0);
    assert!(first.1 == second.1, "weights differ between runs");
}
