//! On one device, against burn-nn's composition.

use super::*;
use burn_core::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn_core::tensor::{Device, Gradients as OfGraph, TensorData, Tolerance};
use burn_nn::attention::MultiHeadAttentionConfig;

fn device() -> Device {
    Device::flex().autodiff()
}

const BATCH: usize = 2;
const QUERIES: usize = 5;
const D_MODEL: usize = 12;

fn numbers(shape: &[usize], seed: usize) -> TensorData {
    let len: usize = shape.iter().product();
    let value = |i: usize| ((i * 7919 + seed * 104_729) % 1009) as f32 / 504.5 - 1.0;
    TensorData::new((0..len).map(value).collect::<Vec<f32>>(), shape.to_vec())
}

/// Fills parameters with numbers of about the size that they are initialised with.
struct Fill(usize);

impl ModuleMapper for Fill {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.0 += 1;
        param.map(|x| {
            Tensor::from_data(numbers(&x.dims(), self.0), &x.device())
                .mul_scalar(0.5)
                .require_grad()
        })
    }
}

struct Gradients<'a> {
    of: &'a OfGraph,
    found: Vec<TensorData>,
}

impl ModuleVisitor for Gradients<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradient = param.val().grad(self.of).expect("every parameter is used");
        self.found.push(gradient.into_data());
    }
}

fn module(config: MultiHeadAttentionConfig) -> MultiHeadAttention {
    config.init(&device()).map(&mut Fill(10))
}

fn without_dropout() -> MultiHeadAttention {
    module(MultiHeadAttentionConfig::new(D_MODEL, 3).with_dropout(0.0))
}

/// The masks of a case, and whether a row of each is hidden whole.
#[derive(Clone, Copy, Debug)]
struct Case {
    keys: Option<usize>,
    pad: bool,
    attn: bool,
    rows_without_keys: bool,
}

fn mask(shape: &[usize], seed: usize, whole: bool) -> TensorData {
    let keys = shape[shape.len() - 1];
    let hidden = numbers(shape, seed);
    let hidden = hidden.iter::<f32>().enumerate();
    let row_is = |i: usize, row| i / keys == row;
    // The first row is seen whole, the second may be hidden whole.
    let hidden: Vec<bool> = hidden
        .map(|(i, x)| !row_is(i, 0) && (x > 0.3 || whole && row_is(i, 1)))
        .collect();
    TensorData::new(hidden, shape.to_vec())
}

/// Result and gradients of sequences and parameters, of the sum of squares.
fn run(
    case: Case,
    module: &MultiHeadAttention,
    attend: impl Fn(&MultiHeadAttention, MhaInput) -> Tensor<3>,
) -> Vec<TensorData> {
    let keys = case.keys.unwrap_or(QUERIES);
    let sequence = |len: usize, seed: usize| {
        Tensor::<3>::from_data(numbers(&[BATCH, len, D_MODEL], seed), &device()).require_grad()
    };
    let query = sequence(QUERIES, 1);
    let mut all = vec![query.clone()];
    let mut input = match case.keys {
        None => MhaInput::self_attn(query),
        Some(_) => {
            all.extend([sequence(keys, 2), sequence(keys, 3)]);
            MhaInput::new(query, all[1].clone(), all[2].clone())
        }
    };
    if case.pad {
        let mask = mask(&[BATCH, keys], 4, case.rows_without_keys);
        input = input.mask_pad(Tensor::from_data(mask, &device()));
    }
    if case.attn {
        let mask = mask(&[BATCH, QUERIES, keys], 5, case.rows_without_keys);
        input = input.mask_attn(Tensor::from_data(mask, &device()));
    }
    let out = attend(module, input);
    let of = out.clone().powi_scalar(2).sum().backward();
    let mut gradients = Gradients {
        of: &of,
        found: Vec::new(),
    };
    module.visit(&mut gradients);
    let of_inputs = all
        .iter()
        .map(|x| x.grad(&of).expect("a gradient").into_data());
    let mut found = vec![out.into_data()];
    found.extend(of_inputs);
    found.extend(gradients.found);
    found
}

fn composed(module: &MultiHeadAttention, input: MhaInput) -> Tensor<3> {
    module.forward(input.into()).context
}

#[test]
fn it_is_the_composition() {
    let module = without_dropout();
    for keys in [None, Some(7)] {
        for (pad, attn) in [(false, false), (true, false), (false, true), (true, true)] {
            for rows_without_keys in [false, true] {
                let case = Case {
                    keys,
                    pad,
                    attn,
                    rows_without_keys,
                };
                let found = run(case, &module, FusedAttention::attend);
                let expected = run(case, &module, composed);
                assert_eq!(found.len(), expected.len());
                for (found, expected) in found.iter().zip(&expected) {
                    // Gradients are sums over up to ten rows of terms of size one: a few units of f32 each.
                    found.assert_approx_eq::<f32>(expected, Tolerance::rel_abs(1e-5, 1e-5));
                }
            }
        }
    }
}

/// Where dims of masks have size one.
#[test]
fn masks_stretch() {
    let module = without_dropout();
    let x = Tensor::<3>::from_data(numbers(&[BATCH, QUERIES, D_MODEL], 1), &device());
    for (pad, attn) in [
        ([1, QUERIES], [1, QUERIES, QUERIES]),
        ([BATCH, QUERIES], [1, 1, QUERIES]),
    ] {
        let input = MhaInput::self_attn(x.clone())
            .mask_pad(Tensor::from_data(mask(&pad, 4, false), &device()))
            .mask_attn(Tensor::from_data(mask(&attn, 5, false), &device()));
        let expected = composed(&module, input.clone()).into_data();
        let found = module.attend(input).into_data();
        found.assert_approx_eq::<f32>(&expected, Tolerance::rel_abs(1e-5, 1e-5));
    }
}

/// A function that one operation does not compute has burn-nn's bits.
#[test]
fn what_is_another_function_is_composed() {
    let config = || MultiHeadAttentionConfig::new(D_MODEL, 3).with_dropout(0.0);
    let case = Case {
        keys: None,
        pad: true,
        attn: false,
        rows_without_keys: true,
    };
    for config in [
        config().with_dropout(0.4),
        config().with_quiet_softmax(true),
        config().with_min_float(-3.0),
    ] {
        let module = module(config.clone());
        let [found, expected] = [FusedAttention::attend, composed].map(|attend| {
            device().seed(7);
            run(case, &module, attend)
        });
        assert_eq!(found, expected, "{config}");
    }
}

#[test]
fn nothing_is_dropped_without_gradients() {
    let module = module(MultiHeadAttentionConfig::new(D_MODEL, 3).with_dropout(0.4)).valid();
    let x = Tensor::<3>::from_data(numbers(&[BATCH, QUERIES, D_MODEL], 1), &Device::flex());
    let expected = module
        .forward(MhaInput::self_attn(x.clone()).into())
        .context;
    let found = module.attend(MhaInput::self_attn(x));
    assert_ne!(found.to_data(), expected.to_data());
    found
        .into_data()
        .assert_approx_eq::<f32>(&expected.into_data(), Tolerance::rel_abs(1e-5, 1e-5));
}

#[test]
#[should_panic(
    expected = "attention of d_model 12 needs a key of shape [2, 7, 12], and this one has [2, 7, 8]"
)]
fn a_width_that_is_not_the_models_is_refused() {
    let of = |len: usize, width: usize| Tensor::zeros([BATCH, len, width], &device());
    without_dropout().attend(MhaInput::new(of(5, 12), of(7, 8), of(7, 8)));
}

#[test]
#[should_panic(
    expected = "attention of 5 queries to 5 keys, in a batch of 2, needs a mask_pad of shape [2, 5], and this one has \
                [2, 7]: give it the dims [b, k], true where keys are hidden"
)]
fn a_mask_of_another_length_is_refused() {
    let x = Tensor::zeros([BATCH, 5, D_MODEL], &device());
    let mask = Tensor::<2>::zeros([BATCH, 7], &device()).greater_elem(0.0);
    without_dropout().attend(MhaInput::self_attn(x).mask_pad(mask));
}

#[test]
#[should_panic(expected = "needs a mask_attn of shape [2, 5, 5], and this one has [2, 4, 5]")]
fn a_mask_of_other_queries_is_refused() {
    let x = Tensor::zeros([BATCH, 5, D_MODEL], &device());
    let mask = Tensor::<3>::zeros([BATCH, 4, 5], &device()).greater_elem(0.0);
    without_dropout().attend(MhaInput::self_attn(x).mask_attn(mask));
}
