//! Training steps on a mesh of one NVIDIA GPU, against the same model on the GPU without burn-dist, in the same run.
//!
//! ```text
//! cargo bench -p llama --features cuda,plain-cuda --bench gpu [-- S|M|1b]
//! ```
//!
//! Meshes alternate with the plain device step by step, and the figure is the median ratio. The last line is JSON.

use std::time::Instant;

use burn::optim::ModuleOptimizer;
use burn::tensor::Device;
use burn_dist::backend::{CubeDevice, Cuda, CudaDevice};
use burn_dist::layout::Rows;
use burn_dist::train::rng::Rng;
use burn_dist::trainer::batch::BatchSource;
use burn_dist::trainer::optimizer;
use burn_dist::trainer::step;
use burn_dist::trainer::tokens::{Batch, RandomTokens};
use burn_dist::{DeviceMesh, Parallelize};
use burn_dist_lm::model::{Llama, Size};
use serde_json::json;

struct Trainer {
    model: Option<Llama>,
    optimizer: ModuleOptimizer,
    device: Device,
}

impl Trainer {
    fn new(model: Llama, device: Device) -> Self {
        let optimizer = optimizer::optimizer();
        let model = Some(model);
        Self {
            model,
            optimizer,
            device,
        }
    }

    /// Makes a step, and returns its loss and its seconds, from the batch to the loss on the host.
    fn step(&mut self, batch: &Batch) -> (f32, f64) {
        let start = Instant::now();
        let model = self.model.take().expect("put back below");
        let (model, loss) = step::one(model, &mut self.optimizer, batch, 3e-4, &self.device);
        let loss = loss.into_scalar::<f32>();
        self.model = Some(model);
        (loss, start.elapsed().as_secs_f64())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let only: Option<String> = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    let mut rows = Vec::new();
    println!("size  mesh         tokens/s      plain  ratio   loss, plain");
    for (size, [batch, seq], steps) in [
        (Size::S, [8, 256], 15),
        (Size::M, [4, 512], 9),
        (Size::B1, [4, 1024], 3),
    ] {
        let name = size.name();
        if only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        let config = size.config();
        for axes in ["dp=1", "fsdp=2", "fsdp=2,tp=2"] {
            let device = Device::cuda(0).autodiff();
            let mut plain = Trainer::new(config.init(&device), device);
            let builder = DeviceMesh::builder().axes(&axes.parse().expect("axes"));
            let ranks = axes
                .parse::<burn_dist::mesh::MeshShape>()
                .expect("axes")
                .num_ranks();
            let mesh = builder
                .backend::<Cuda>()
                .devices(&vec![CubeDevice::from(CudaDevice::default()); ranks])
                .build()
                .expect("a mesh");
            let device = mesh.device().autodiff();
            let model = config
                .init(&device)
                .parallelize(mesh.shape())
                .expect("it fits");
            let mut meshed = Trainer::new(model, device);
            let mut source = RandomTokens {
                batch,
                seq,
                vocab: config.vocab,
                rng: Rng::new(0, 1),
                held: Rows::all(batch),
            };
            let mut next = || source.next_batch().expect("random tokens");
            for _ in 0..3 {
                let batch = next();
                plain.step(&batch);
                meshed.step(&batch);
            }
            let mut losses = [0.0; 2];
            let times: Vec<[f64; 2]> = (0..steps)
                .map(|_| {
                    let batch = next();
                    let (alone, on_mesh) = (plain.step(&batch), meshed.step(&batch));
                    losses = [on_mesh.0, alone.0];
                    [on_mesh.1, alone.1]
                })
                .collect();
            let ratio = median(times.iter().map(|[mesh, plain]| plain / mesh).collect());
            let [mesh, plain] =
                [0, 1].map(|side: usize| median(times.iter().map(|times| times[side]).collect()));
            let rate = |seconds: f64| (batch * seq) as f64 / seconds;
            let (of_mesh, of_plain) = (rate(mesh), rate(plain));
            println!(
                "{name:<5} {axes:<12} {of_mesh:>8.0} {of_plain:>10.0} {ratio:>6.3}   {:.4}, {:.4}",
                losses[0], losses[1]
            );
            rows.push(json!({
                "size": name, "mesh": axes, "tokens_per_s": of_mesh, "plain_tokens_per_s": of_plain,
                "ratio_to_plain": ratio, "losses": losses,
            }));
        }
    }
    println!("{}", json!({ "bench": "llama_gpu", "rows": rows }));
}
