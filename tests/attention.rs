//! Attention as one operation on meshes: burn-nn's module against its composition on one device, and dropped weights.

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::attention::{MultiHeadAttention, MultiHeadAttentionConfig};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor, TensorData, Tolerance};
use burn_dist::nn::{AttentionOptions, FusedAttention, MhaInput, attention};
use burn_dist::{
    ActivationCheckpoint, ContextParallel, DTensor, DeviceMesh, Float, ParallelizeWith, Plan,
    Precision,
};

use crate::weights::deterministic;

const BATCH: usize = 4;
const QUERIES: usize = 6;
const KEYS: usize = 8;
const D_MODEL: usize = 16;

fn module(dropout: f64, device: &Device) -> MultiHeadAttention {
    let config = MultiHeadAttentionConfig::new(D_MODEL, 4).with_dropout(dropout);
    deterministic(config.init(device))
}

fn numbers(shape: &[usize], seed: usize) -> TensorData {
    let len: usize = shape.iter().product();
    let value = |i: usize| ((i * 7919 + seed * 104_729) % 1009) as f32 / 504.5 - 1.0;
    TensorData::new((0..len).map(value).collect::<Vec<f32>>(), shape.to_vec())
}

/// Which keys are hidden: about a third, all of them in the second row and none in the first.
fn hidden(shape: &[usize], seed: usize) -> TensorData {
    let keys = shape[shape.len() - 1];
    let hidden = numbers(shape, seed);
    let hidden = hidden.iter::<f32>().enumerate();
    let hidden: Vec<bool> = hidden
        .map(|(i, x)| i >= keys && (i < 2 * keys || x > 0.3))
        .collect();
    TensorData::new(hidden, shape.to_vec())
}

#[derive(Clone, Copy, Debug)]
struct Case {
    crosses: bool,
    pad: bool,
    attn: bool,
}

/// Returns the cases: whether queries and keys are two sequences, and the masks.
fn cases() -> impl Iterator<Item = Case> {
    let cases = [
        (false, false, false),
        (false, true, false),
        (false, false, true),
        (true, false, false),
        (true, true, true),
    ];
    cases
        .into_iter()
        .map(|(crosses, pad, attn)| Case { crosses, pad, attn })
}

struct Gradients<'a> {
    of: &'a burn::tensor::Gradients,
    found: Vec<TensorData>,
}

impl ModuleVisitor for Gradients<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradient = param.val().grad(self.of).expect("every parameter is used");
        self.found.push(gradient.into_data());
    }
}

/// The result, and the gradients of sequences and parameters of the sum of its squares.
fn run(
    case: Case,
    module: &MultiHeadAttention,
    device: &Device,
    attend: impl Fn(&MultiHeadAttention, MhaInput) -> Tensor<3>,
) -> Vec<TensorData> {
    let sequence = |len: usize, seed: usize| {
        let data = numbers(&[BATCH, len, D_MODEL], seed);
        Tensor::<3>::from_data(data, device).require_grad()
    };
    let mut sequences = vec![sequence(QUERIES, 1)];
    if case.crosses {
        sequences.extend([sequence(KEYS, 2), sequence(KEYS, 3)]);
    }
    let (mut input, keys) = match &sequences[..] {
        [query, key, value] => {
            let input = MhaInput::new(query.clone(), key.clone(), value.clone());
            (input, KEYS)
        }
        _ => (MhaInput::self_attn(sequences[0].clone()), QUERIES),
    };
    if case.pad {
        input = input.mask_pad(Tensor::from_data(hidden(&[BATCH, keys], 4), device));
    }
    if case.attn {
        let mask = hidden(&[BATCH, QUERIES, keys], 5);
        input = input.mask_attn(Tensor::from_data(mask, device));
    }
    let out = attend(module, input);
    let of = out.clone().powi_scalar(2).sum().backward();
    let mut gradients = Gradients {
        of: &of,
        found: vec![out.into_data()],
    };
    for sequence in &sequences {
        let gradient = sequence.grad(&of).expect("it is attended to");
        gradients.found.push(gradient.into_data());
    }
    module.visit(&mut gradients);
    gradients.found
}

fn composed(module: &MultiHeadAttention, input: MhaInput) -> Tensor<3> {
    module.forward(input.into()).context
}

fn parallel(axes: &str, dropout: f64) -> (MultiHeadAttention, DeviceMesh) {
    let mesh = DeviceMesh::builder()
        .axes(&axes.parse().expect("a mesh"))
        .scatter_bytes_min(0)
        .build()
        .expect("a mesh");
    let plan = Plan::new()
        .colwise("query")
        .colwise("key")
        .colwise("value")
        .rowwise("output");
    let module = module(dropout, &mesh.device().autodiff());
    let module = module.parallelize_with(&mesh, &plan).expect("a plan");
    (module, mesh)
}

#[test]
fn one_operation_on_every_mesh_is_the_composition_on_one_device() {
    let device = Device::flex().autodiff();
    let one = module(0.0, &device);
    let expected: Vec<_> = cases()
        .map(|case| run(case, &one, &device, composed))
        .collect();
    for axes in ["", "dp=2", "tp=2", "fsdp=2", "fsdp=2,tp=2", "cp=2", "dp=3"] {
        let (module, mesh) = parallel(axes, 0.0);
        for (case, expected) in cases().zip(&expected) {
            let found = run(
                case,
                &module,
                &mesh.device().autodiff(),
                FusedAttention::attend,
            );
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(expected) {
                // Gradients of parameters are sums over 24 rows of terms of size one.
                found.assert_approx_eq::<f32>(expected, Tolerance::rel_abs(1e-5, 1e-5));
            }
        }
    }
}

/// Burn-nn drops scores, which one operation does not: the same numbers are drawn, on any mesh.
#[test]
fn scores_are_dropped_as_burn_nn_drops_them() {
    let case = Case {
        crosses: false,
        pad: true,
        attn: false,
    };
    let on = |axes: &str, attend: fn(&MultiHeadAttention, MhaInput) -> _| {
        let (module, mesh) = parallel(axes, 0.3);
        mesh.device().autodiff().seed(5);
        run(case, &module, &mesh.device().autodiff(), attend)
    };
    let expected = on("", composed);
    for axes in ["", "fsdp=2,tp=2"] {
        let found = on(axes, FusedAttention::attend);
        for (found, expected) in found.iter().zip(&expected) {
            found.assert_approx_eq::<f32>(expected, Tolerance::rel_abs(1e-5, 1e-5));
        }
    }
}

/// Twice the sequence is twice the memory; of the composition it is four times as much where scores are most of it.
#[test]
fn memory_is_linear_in_the_sequence() {
    let peak = |len: usize, attend: fn(&MultiHeadAttention, MhaInput) -> _| {
        let (module, mesh) = parallel("", 0.0);
        let device = mesh.device().autodiff();
        let ((), plan) = burn_dist::explain(&device, || {
            let x = Tensor::<3>::from_data(numbers(&[1, len, D_MODEL], 1), &device);
            let out: Tensor<3> = attend(&module, MhaInput::self_attn(x));
            let gradients = out.sum().backward();
            let gradient = module.output.weight.val().grad(&gradients);
            gradient.expect("it is used").into_data();
        });
        plan.memory[0].peak_bytes as f64
    };
    let growth = |attend| peak(512, attend) / peak(256, attend);
    let (one, composition) = (growth(FusedAttention::attend), growth(composed));
    assert!(one < 2.1, "{one}");
    assert!(composition > 3.5, "{composition}");
}

/// What is made of tensors in a layout on a mesh: a module makes queries, so that a plan can say how keys come.
fn dropping(axes: &str, layout: &str, way: ContextParallel) -> Vec<TensorData> {
    let mesh = DeviceMesh::builder()
        .axes(&axes.parse().expect("a mesh"))
        .scatter_bytes_min(0)
        .build()
        .expect("a mesh");
    let device = mesh.device().autodiff();
    let linear = LinearConfig::new(4, 4).init(&device);
    let plan = Plan::new().unit("").context(way);
    let linear = deterministic(linear).parallelize_with(&mesh, &plan);
    let linear = linear.expect("a plan");
    device.seed(11);
    let tensor = |heads: usize, seed: usize| {
        let x = Tensor::<4>::from_data(numbers(&[4, heads, 24, 4], seed), &device);
        x.redistribute(layout).expect("a layout").require_grad()
    };
    let [q, k, v] = [(4, 1), (2, 2), (2, 3)].map(|(heads, seed)| tensor(heads, seed));
    let options = AttentionOptions::causal().dropout(0.3);
    let out = attention(linear.forward(q.clone()), k.clone(), v.clone(), options);
    let gradients = out.clone().powi_scalar(2).sum().backward();
    let of = |x: &Tensor<4>| x.grad(&gradients).expect("a gradient").into_data();
    let weight = linear.weight.val().grad(&gradients).expect("it is used");
    let mut all = vec![out.to_data(), weight.into_data()];
    all.extend([&q, &k, &v].map(of));
    all
}

/// Which weights are dropped is a matter of where they are: forward and backward, whatever is split, and however keys
/// come.
#[test]
fn every_mesh_drops_the_same_weights() {
    let auto = ContextParallel::Auto;
    let expected = dropping("", "[-, -, -, -]", auto);
    for (axes, layout, way) in [
        ("dp=2", "[{dp}, -, -, -]", auto),
        ("dp=3", "[{dp}, -, -, -]", auto),
        ("tp=2", "[-, {tp}, -, -]", auto),
        ("fsdp=2,tp=2", "[{fsdp}, {tp}, -, -]", auto),
        ("cp=3", "[-, -, {cp}, -]", ContextParallel::Ring),
        ("cp=3", "[-, -, {cp}, -]", ContextParallel::Gather),
        ("cp=4", "[-, -, (6 . 4{cp}), -]", ContextParallel::Ring),
        ("cp=4", "[-, -, (6 . 4{cp}), -]", ContextParallel::Gather),
        (
            "dp=2,cp=2",
            "[{dp}, -, (12 . 2{cp}), -]",
            ContextParallel::Ring,
        ),
    ] {
        let found = dropping(axes, layout, way);
        for (found, expected) in found.iter().zip(&expected) {
            // Sums over up to 384 rows of terms of size one, in another order.
            found.assert_approx_eq::<f32>(expected, Tolerance::rel_abs(1e-5, 1e-5));
        }
    }
    let other = dropping("", "[-, -, -, -]", auto);
    assert_eq!(other, expected);
}

/// Twice the sequence is twice the memory, weights dropped or not.
#[test]
fn dropped_weights_are_not_held() {
    let peak = |len: usize| {
        let device = DeviceMesh::parse("").expect("a mesh").device().autodiff();
        let ((), plan) = burn_dist::explain(&device, || {
            let x = Tensor::<4>::from_data(numbers(&[1, 4, len, 4], 1), &device);
            let x = x.require_grad();
            let options = AttentionOptions::causal().dropout(0.3);
            let out = attention(x.clone(), x.clone(), x.clone(), options);
            let gradients = out.sum().backward();
            x.grad(&gradients).expect("a gradient").into_data();
        });
        plan.memory[0].peak_bytes as f64
    };
    let growth = peak(512) / peak(256);
    assert!(growth < 2.1, "{growth}");
}

/// Layers whose heads attend to themselves, and forget some of it.
#[derive(Module, Debug)]
struct Layers {
    blocks: Vec<Layer>,
}

#[derive(Module, Debug)]
struct Layer {
    heads: Linear,
    output: Linear,
}

impl Layers {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, len, width] = x.dims();
        self.blocks.iter().fold(x, |x, block| {
            let heads = block.heads.forward(x.clone());
            let heads = heads.reshape([batch, len, 4, width / 4]).swap_dims(1, 2);
            let options = AttentionOptions::causal().dropout(0.3);
            let out = attention(heads.clone(), heads.clone(), heads, options);
            let out = out.swap_dims(1, 2).reshape([batch, len, width]);
            x + block.output.forward(out)
        })
    }
}

/// What two layers make on a mesh, the gradients of their weights, and how many steps were run again.
fn layers(plan: Plan) -> ([TensorData; 2], u64) {
    let mesh = DeviceMesh::parse("fsdp=2").expect("a mesh");
    let device = mesh.device().autodiff();
    let linear = || LinearConfig::new(D_MODEL, D_MODEL).init(&device);
    let layer = || Layer {
        heads: linear(),
        output: linear(),
    };
    let layers = deterministic(Layers {
        blocks: vec![layer(), layer()],
    });
    let layers = layers.parallelize_with(&mesh, &plan.unit("blocks"));
    let layers = layers.expect("a plan");
    device.seed(11);
    let (found, plan) = burn_dist::explain(&device, || {
        let x = numbers(&[BATCH, QUERIES, D_MODEL], 1);
        let out = layers.forward(Tensor::from_data(x, &device));
        let of = out.clone().powi_scalar(2).sum().backward();
        let linear = layers
            .blocks
            .iter()
            .flat_map(|block| [&block.heads, &block.output]);
        let weights = linear.map(|linear| linear.weight.val());
        let gradients = weights.map(|weight| weight.grad(&of).expect("it is used"));
        // The gradients are read first: what is made again is so in the window of the backward.
        let gradients = Tensor::cat(gradients.collect(), 0).into_data();
        [out.into_data(), gradients]
    });
    (found, plan.recomputed.ops)
}

/// What is made again drops the same weights.
#[test]
fn checkpointing_drops_the_same_weights() {
    let (expected, none) = layers(Plan::new());
    let (found, again) = layers(Plan::new().checkpoint(ActivationCheckpoint::Full));
    assert!(none == 0 && again > 0, "{none}, {again}");
    assert_eq!(found, expected);
}

/// In 16 bits, too: a seed is no float.
#[test]
fn sixteen_bits_drop_the_same_weights() {
    let (expected, _) = layers(Plan::new());
    let (found, _) = layers(Plan::new().precision(Precision::new(Float::BF16)));
    // About ten roundings by 2^-9 a layer, of values up to two.
    found[0].assert_approx_eq::<f32>(&expected[0], Tolerance::absolute(0.08));
    assert_ne!(found[0], expected[0]);
}
