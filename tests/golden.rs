//! What the planner makes of three models, after its passes, as text: a change here is a change of every plan.
//!
//! `after_precision` is the window with what its values are to training, `after_propagate` the program with its layouts
//! and redistributions, `after_schedule` that with collectives ahead of their use.

use burn::module::{Module, Param};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig, Lstm, LstmConfig};
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_dist::{DeviceMesh, Parallelize};

use crate::llama::{self, LlamaConfig, RandomTokens, Size, optimizer};

const PASSES: [&str; 3] = ["precision", "propagate", "schedule"];

/// Compares what there is of the last window of `step` after each pass.
fn check(model: &str, device: &Device, mut step: impl FnMut()) {
    for pass in PASSES {
        let (_, explanation) = burn_dist::explain_after(device, pass, &mut step).expect("a pass");
        let text = explanation.after.last().expect("a window");
        insta::assert_snapshot!(format!("{model}_after_{pass}"), text);
    }
}

fn mesh(axes: &str) -> DeviceMesh {
    let axes = axes.parse().expect("a mesh");
    let mesh = DeviceMesh::builder().axes(&axes).scatter_bytes_min(0);
    mesh.dry_run().build().expect("a mesh")
}

/// One step of stochastic gradient descent on the mean of squares.
fn descend<M: Module>(
    model: M,
    optimizer: &mut ModuleOptimizer,
    forward: impl FnOnce(&M) -> Tensor<2>,
) -> M {
    let loss = forward(&model).powf_scalar(2.0).mean();
    let gradients = GradientsParams::from_grads(loss.backward(), &model);
    let model = optimizer.step(0.1, model, gradients);
    loss.into_data();
    model
}

#[test]
fn a_llama_block() {
    let mesh = mesh("fsdp=2,tp=2");
    let device = mesh.device().autodiff();
    let config = LlamaConfig {
        num_layers: 1,
        ..Size::Tiny.config()
    };
    let mut source = RandomTokens {
        batch: 4,
        seq: 16,
        vocab: config.vocab,
        state: 0,
    };
    let model = config.init(&device).parallelize(&mesh);
    let mut optimizer = optimizer();
    let mut model = Some(model.expect("it fits"));
    let mut step = || {
        let batch = source.next_batch();
        let before = model.take().expect("a model");
        let (after, loss) = llama::step(before, &mut optimizer, &batch, 1e-4, &device);
        loss.into_data();
        model = Some(after);
    };
    // The first one makes the parameters and the optimizer's state.
    step();
    check("llama", &device, step);
}

/// A recurrent cell over three steps, and a head.
#[derive(Module, Debug, Parallelize)]
struct Recurrent {
    #[parallel(unit)]
    cell: Lstm,
    head: Linear,
}

#[test]
fn an_lstm() {
    let mesh = mesh("fsdp=2");
    let device = mesh.device().autodiff();
    let model = Recurrent {
        cell: LstmConfig::new(4, 4, true).init(&device),
        head: LinearConfig::new(4, 2).init(&device),
    };
    let mut model = Some(model.parallelize(&mesh).expect("it fits"));
    let mut optimizer = SgdConfig::new().init();
    let mut step = || {
        let data = TensorData::new((0..48).map(|x| x as f32).collect::<Vec<_>>(), [4, 3, 4]);
        let x = Tensor::<3>::from_data(data, &device);
        let before = model.take().expect("a model");
        model = Some(descend(before, &mut optimizer, |model| {
            let (_, state) = model.cell.forward(x, None);
            model.head.forward(state.hidden)
        }));
    };
    step();
    check("lstm", &device, step);
}

/// An embedding whose table is the head too.
#[derive(Module, Debug, Parallelize)]
struct Tied {
    table: Embedding,
    scale: Param<Tensor<1>>,
}

#[test]
fn tied_weights() {
    let mesh = mesh("fsdp=2");
    let device = mesh.device().autodiff();
    let model = Tied {
        table: EmbeddingConfig::new(8, 4).init(&device),
        scale: Param::from_tensor(Tensor::ones([4], &device)),
    };
    let mut model = Some(model.parallelize(&mesh).expect("it fits"));
    let mut optimizer = SgdConfig::new().init();
    let mut step = || {
        let data = TensorData::new(vec![0i64, 3, 5, 1], [4, 1]);
        let tokens = Tensor::<2, Int>::from_data(data, &device);
        let before = model.take().expect("a model");
        model = Some(descend(before, &mut optimizer, |model| {
            let h: Tensor<2> = model.table.forward(tokens).squeeze_dim(1);
            let h = h * model.scale.val().unsqueeze();
            h.matmul(model.table.weight.val().transpose())
        }));
    };
    step();
    check("tied", &device, step);
}
