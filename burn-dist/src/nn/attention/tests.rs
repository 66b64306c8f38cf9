//! Kernels, blocks and their splits against the composition of Burn's operations.

use super::blocks;
use super::op::{Attention, AttentionBackward};
use super::*;
use burn_core::tensor::{TensorData, Tolerance};
use burn_flex::{Flex, FlexDevice};
use proptest::prelude::*;

use crate::custom::{CustomTensor, Execute, check};

/// A case of attention, on any backend.
#[derive(Clone, Debug)]
struct Case {
    /// Batch, heads of keys, group, queries, keys, width, width of values.
    sizes: [usize; 7],
    causal: bool,
    window: Option<usize>,
    /// Shapes of mask and bias as seen by scores: dims that are false have size one.
    mask: Option<[bool; 4]>,
    bias: Option<[bool; 4]>,
    scale: Option<f64>,
}

fn numbers(shape: &[usize], seed: usize) -> TensorData {
    let len: usize = shape.iter().product();
    let value = |i: usize| ((i * 7919 + seed * 104_729) % 1009) as f32 / 504.5 - 1.0;
    TensorData::new((0..len).map(value).collect::<Vec<f32>>(), shape.to_vec())
}

impl Case {
    fn stretched(&self, kept: [bool; 4]) -> [usize; 4] {
        let [b, g, n, q, k, ..] = self.sizes;
        let full = [b, g * n, q, k];
        std::array::from_fn(|dim| if kept[dim] { full[dim] } else { 1 })
    }

    fn inputs(&self) -> [TensorData; 3] {
        let [b, g, n, q, k, e, v] = self.sizes;
        [
            numbers(&[b, g * n, q, e], 1),
            numbers(&[b, g, k, e], 2),
            numbers(&[b, g, k, v], 3),
        ]
    }

    fn bias_data(&self) -> Option<TensorData> {
        self.bias.map(|kept| numbers(&self.stretched(kept), 4))
    }

    fn options(&self, device: &Device) -> AttentionOptions {
        let mask = self.mask.map(|kept| {
            let values = Tensor::<4>::from_data(numbers(&self.stretched(kept), 5), device);
            values.greater_elem(0.4)
        });
        AttentionOptions {
            causal: self.causal,
            mask,
            window: self.window,
            scale: self.scale,
            ..AttentionOptions::default()
        }
    }
}

/// The definition in Burn's operations.
fn composed(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, options: AttentionOptions) -> Tensor<4> {
    weighed(q, k, v, options, |weights| weights)
}

/// The definition, with weights that are changed.
fn weighed(
    q: Tensor<4>,
    k: Tensor<4>,
    v: Tensor<4>,
    options: AttentionOptions,
    change: impl Fn(Tensor<4>) -> Tensor<4>,
) -> Tensor<4> {
    let [_, heads, queries, width] = q.dims();
    let [_, groups, keys, _] = k.dims();
    let each = |x: Tensor<4>| {
        let [b, g, s, e] = x.dims();
        let x = x.unsqueeze_dim::<5>(2).repeat_dim(2, heads / groups);
        x.reshape([b, g * (heads / groups), s, e])
    };
    let (k, v) = (each(k), each(v));
    let scale = options.scale.unwrap_or((width as f64).powf(-0.5));
    let mut scores = q.matmul(k.swap_dims(2, 3)) * scale;
    if let Some(bias) = options.bias {
        scores = scores + bias;
    }
    let positions = Scores {
        scale,
        causal: options.causal,
        window: options.window,
        offset: keys as isize - queries as isize,
        step: 1,
        dropout: None,
    };
    let hidden = blocks::hidden(positions, queries, 0..keys, &scores.device());
    let hidden = hidden.map(|hidden| hidden.reshape([1, 1, queries, keys]));
    let mut seen = scores.ones_like();
    for mask in options.mask.into_iter().chain(hidden) {
        seen = seen * mask.clone().bool_not().float();
        scores = scores.mask_fill(mask, -1e30);
    }
    change(softmax(scores, 3) * seen).matmul(v)
}

/// The result, and the gradients of queries, keys, values and bias of the sum of its squares.
fn run(
    case: &Case,
    device: &Device,
    attend: impl Fn(Tensor<4>, Tensor<4>, Tensor<4>, AttentionOptions) -> Tensor<4>,
) -> Vec<TensorData> {
    let [q, k, v] = case
        .inputs()
        .map(|data| Tensor::<4>::from_data(data, device).require_grad());
    let bias = case.bias_data();
    let bias = bias.map(|data| Tensor::<4>::from_data(data, device).require_grad());
    let mut options = case.options(device);
    options.bias = bias.clone();
    let out = attend(q.clone(), k.clone(), v.clone(), options);
    let grads = (out.clone() * out.clone()).sum().backward();
    let of = |x: &Tensor<4>| x.grad(&grads).expect("a gradient").into_data();
    let mut all = vec![out.into_data(), of(&q), of(&k), of(&v)];
    all.extend(bias.as_ref().map(of));
    all
}

fn cases() -> impl Strategy<Value = Case> {
    let kept = || proptest::option::of(any::<[bool; 4]>());
    (
        (
            1usize..3,
            1usize..3,
            1usize..3,
            1usize..24,
            1usize..24,
            1usize..6,
            1usize..6,
        ),
        any::<bool>(),
        proptest::option::of(1usize..12),
        kept(),
        kept(),
        proptest::option::of(0.1f64..2.0),
    )
        .prop_map(
            |((b, g, n, q, k, e, v), causal, window, mask, bias, scale)| Case {
                sizes: [b, g, n, q, k, e, v],
                causal,
                window,
                mask,
                bias,
                scale,
            },
        )
}

/// Compares results and gradients. Each term is right to a few units of f32; gradients of keys and values are sums over
/// the queries of a group, that of a bias over all pairs that share an element.
fn check_same(case: &Case, found: &[TensorData], expected: &[TensorData]) {
    let [b, g, n, q, k, ..] = case.sizes;
    let pairs = b * g * n * q * k;
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let terms = match index {
            0 | 1 => k,
            2 | 3 => n * q,
            _ => pairs / found.num_elements(),
        };
        let tolerance = Tolerance::rel_abs(1e-5, 1e-6 * (8 + terms) as f32);
        found.assert_approx_eq::<f32>(expected, tolerance);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn it_is_the_composition(case in cases()) {
        let expected = run(&case, &Device::flex().autodiff(), composed);
        let found = run(&case, &Device::flex().autodiff(), attention);
        check_same(&case, &found, &expected);
    }

    /// Autodiff derives the gradients of blocks from their operations.
    #[test]
    fn blocks_of_operations_are_the_kernels(case in cases()) {
        let expected = run(&case, &Device::flex().autodiff(), attention);
        let found = run(&case, &Device::flex().autodiff(), by_blocks);
        check_same(&case, &found, &expected);
    }
}

/// Inputs as an operation takes them.
fn in_groups(
    q: Tensor<4>,
    k: Tensor<4>,
    v: Tensor<4>,
    options: AttentionOptions,
) -> (Inputs, Scores) {
    let [b, h, queries, e] = q.dims();
    let [_, g, keys, _] = k.dims();
    let dims = |d: [usize; 4]| {
        let [groups, group] = if d[1] == 1 { [1, 1] } else { [g, h / g] };
        [d[0], groups, group, d[2], d[3]]
    };
    let scores = Scores {
        scale: options.scale.unwrap_or((e as f64).powf(-0.5)),
        causal: options.causal,
        window: options.window,
        offset: keys as isize - queries as isize,
        step: 1,
        dropout: None,
    };
    let inputs = Inputs {
        q: q.reshape([b, g, h / g, queries, e]),
        k,
        v,
        mask: options.mask.map(|mask| {
            let dims = dims(mask.dims());
            mask.reshape(dims)
        }),
        bias: options.bias.map(|bias| {
            let dims = dims(bias.dims());
            bias.reshape(dims)
        }),
        seed: None,
    };
    (inputs, scores)
}

fn by_blocks(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, options: AttentionOptions) -> Tensor<4> {
    let [b, h, queries, _] = q.dims();
    let width = v.dims()[3];
    let (inputs, scores) = in_groups(q, k, v, options);
    let of_keys = |tensor: Tensor<4>| tensor.unsqueeze_dim::<5>(2);
    let qkv = [inputs.q, of_keys(inputs.k), of_keys(inputs.v)];
    let (out, _) = blocks::forward(blocks::Tensors::new(qkv, inputs.mask, inputs.bias, scores));
    out.reshape([b, h, queries, width])
}

/// Every split that the rules allow, with and without positions, masks and biases.
#[test]
fn every_split_gives_the_same() {
    let device = FlexDevice;
    for (causal, window) in [
        (false, None),
        (true, None),
        (false, Some(3)),
        (true, Some(2)),
    ] {
        for (has_mask, has_bias, drops) in [
            (false, false, false),
            (true, false, false),
            (false, true, false),
            (true, true, false),
            (false, false, true),
            (true, true, true),
        ] {
            let dropout = drops.then_some(Dropped {
                share: 0.4,
                origin: Origin::whole(3),
            });
            let forward = Attention {
                scores: Scores {
                    scale: 0.7,
                    causal,
                    window,
                    offset: 1,
                    step: 1,
                    dropout,
                },
                has_mask,
                has_bias,
                block: None,
            };
            let mut inputs = vec![
                numbers(&[2, 2, 3, 5, 4], 1),
                numbers(&[2, 2, 6, 4], 2),
                numbers(&[2, 2, 6, 3], 3),
            ];
            if has_mask {
                let values = numbers(&[2, 1, 3, 5, 6], 4);
                let hidden: Vec<bool> = values.iter::<f32>().map(|x| x > 0.5).collect();
                inputs.push(TensorData::new(hidden, [2, 1, 3, 5, 6]));
            }
            if has_bias {
                inputs.push(numbers(&[1, 2, 3, 1, 6], 5));
            }
            if drops {
                inputs.push(TensorData::from([12_345i64, 67_890]));
            }
            let splits = check::<Flex, _>(&forward, inputs.clone(), 1e-5, &device);
            assert!(splits.unwrap_or_else(|error| panic!("{error}")) > 10);
            let made = made(&forward, inputs.clone());
            inputs.extend(made);
            inputs.push(numbers(&[2, 2, 3, 5, 3], 6));
            for with_bias in [false, has_bias] {
                let backward = AttentionBackward {
                    adds: false,
                    forward: forward.clone(),
                    with_bias,
                };
                let splits = check::<Flex, _>(&backward, inputs.clone(), 1e-5, &device);
                assert!(splits.unwrap_or_else(|error| panic!("{error}")) > 10);
            }
        }
    }
}

/// Returns the results of the forward.
fn made(op: &Attention, inputs: Vec<TensorData>) -> Vec<TensorData> {
    use burn_backend::ops::{BoolTensorOps, FloatTensorOps, IntTensorOps};
    let tensors = inputs.into_iter().map(|data| match data.dtype() {
        burn_std::DType::Bool(_) => {
            CustomTensor::<Flex>::Bool(Flex::bool_from_data(data, &FlexDevice))
        }
        burn_std::DType::I64 => CustomTensor::Int(Flex::int_from_data(data, &FlexDevice)),
        _ => CustomTensor::Float(Flex::float_from_data(data, &FlexDevice)),
    });
    let made = op.execute(tensors.collect(), &FlexDevice);
    let read = |tensor: CustomTensor<Flex>| {
        burn_std::future::block_on(Flex::float_into_data(tensor.into_float()))
    };
    made.into_iter()
        .map(|tensor| read(tensor).expect("on the host"))
        .collect()
}

/// Plans account memory by it.
#[test]
fn results_lie_as_their_inputs_in_every_type() {
    use burn_backend::ops::FloatTensorOps;
    use burn_dist_plan::storage::Strided;
    use burn_flex::FlexTensor;
    use burn_std::FloatDType::{BF16, F16, F32, F64};

    use crate::ops::custom::CustomOp;

    let strided = |tensor: &FlexTensor| Strided {
        shape: tensor.layout().shape().to_vec(),
        strides: tensor.layout().strides().to_vec(),
        offset: tensor.layout().start_offset(),
    };
    // As linear layers leave them, `[batch, positions, heads, ..]`, and one behind the other.
    let orders: [[&[usize]; 2]; 2] = [
        [&[0, 2, 3, 1, 4], &[0, 2, 1, 3]],
        [&[0, 1, 2, 3, 4], &[0, 1, 2, 3]],
    ];
    for dtype in [F32, F64, BF16, F16] {
        for [of_queries, of_keys] in orders {
            let lying = |shape: &[usize], order: &[usize], seed| {
                let mut stored = vec![0; shape.len()];
                order
                    .iter()
                    .zip(shape)
                    .for_each(|(dim, size)| stored[*dim] = *size);
                let tensor = Flex::float_from_data(numbers(&stored, seed), &FlexDevice);
                Flex::float_cast(tensor, dtype).permute(order)
            };
            let op = Attention {
                scores: Scores {
                    scale: 0.3,
                    causal: true,
                    window: None,
                    offset: 0,
                    step: 1,
                    dropout: None,
                },
                has_mask: false,
                has_bias: false,
                block: None,
            };
            let mut inputs = vec![
                lying(&[2, 3, 2, 70, 4], of_queries, 1),
                lying(&[2, 3, 70, 4], of_keys, 2),
                lying(&[2, 3, 70, 6], of_keys, 3),
            ];
            fn check<O: CustomOp + Execute<Flex>>(
                op: &O,
                inputs: &[FlexTensor],
                strided: impl Fn(&FlexTensor) -> Strided,
            ) -> Vec<FlexTensor> {
                let given = inputs.iter().cloned().map(CustomTensor::Float);
                let made = op.execute(given.collect(), &FlexDevice);
                let made: Vec<FlexTensor> =
                    made.into_iter().map(CustomTensor::into_float).collect();
                for (output, tensor) in made.iter().enumerate() {
                    let shape = tensor.layout().shape().to_vec();
                    let expected = match op.lies_as(output) {
                        Some(input) => Strided::in_order_of(&shape, &strided(&inputs[input])),
                        None => Strided::contiguous(&shape),
                    };
                    assert_eq!(strided(tensor), expected, "{op:?}, {output}");
                }
                made
            }
            let made = check(&op, &inputs, strided);
            let gradient = made[0].clone();
            inputs.extend(made);
            inputs.push(gradient);
            let backward = AttentionBackward {
                forward: op,
                with_bias: true,
                adds: false,
            };
            check(&backward, &inputs, strided);
        }
    }
}

#[test]
fn a_query_that_sees_nothing_gives_zeros() {
    let device = Device::flex().autodiff();
    let [q, k] = [[1, 1, 4, 2], [1, 1, 2, 2]]
        .map(|shape| Tensor::<4>::from_data(numbers(&shape, 1), &device).require_grad());
    // Two queries lie before the first key.
    let out = attention(q.clone(), k.clone(), k.clone(), AttentionOptions::causal());
    let grads = out.clone().sum().backward();
    let rows: Vec<f32> = out.into_data().try_to_vec().expect("f32");
    assert_eq!(rows[..4], [0.0; 4]);
    assert!(rows[4..].iter().all(|x| *x != 0.0));
    let of_q: Vec<f32> = q
        .grad(&grads)
        .expect("a gradient")
        .into_data()
        .try_to_vec()
        .expect("f32");
    assert_eq!(of_q[..4], [0.0; 4]);
}

#[test]
fn dropped_weights_keep_their_mean() {
    let device = Device::flex().autodiff();
    let q = Tensor::<4>::zeros([1, 1, 1, 4], &device).require_grad();
    let k = Tensor::zeros([1, 1, 4000, 4], &device);
    let v = Tensor::ones([1, 1, 4000, 4], &device);
    let options = AttentionOptions::causal().dropout(0.25);
    let out = attention(q, k.clone(), v.clone(), options.clone());
    let found: f32 = out.mean().into_scalar();
    // 4,000 Bernoulli trials: four standard deviations are 0.037.
    assert!((found - 1.0).abs() < 0.037 && found != 1.0, "{found}");
    // So do those of operations, where a backend has no kernels for it.
    let q = Tensor::<5>::zeros([1, 1, 1, 1, 4], &device);
    let scores = Scores {
        scale: 1.0,
        causal: true,
        window: None,
        offset: 3999,
        step: 1,
        dropout: None,
    };
    let out = dropped(q, k.clone(), v.clone(), None, None, scores, 0.25);
    let found: f32 = out.mean().into_scalar();
    assert!((found - 1.0).abs() < 0.037 && found != 1.0, "{found}");
    // Without gradients nothing is dropped.
    let q = Tensor::<4>::zeros([1, 1, 1, 4], &Device::flex());
    let options = AttentionOptions::causal().dropout(0.25);
    let out = attention(q, k.inner(), v.inner(), options);
    assert!((out.mean().into_scalar::<f32>() - 1.0f32).abs() < 1e-6);
}

/// The same weights are dropped in the forward and in the backward, and by the same seed again.
#[test]
fn dropped_weights_are_those_of_a_seed() {
    let device = Device::flex().autodiff();
    let case = Case {
        sizes: [2, 2, 2, 20, 23, 4, 3],
        causal: true,
        window: Some(15),
        mask: Some([true, false, true, true]),
        bias: Some([true, true, false, true]),
        scale: None,
    };
    let [batch, groups, group, queries, keys, ..] = case.sizes;
    let dropping = |q, k, v, options: AttentionOptions| {
        device.seed(3);
        attention(q, k, v, options.dropout(0.3))
    };
    // With an identity for values, the result is the weights: which of them are left.
    let [q, k, _] = case
        .inputs()
        .map(|data| Tensor::<4>::from_data(data, &device));
    let identity = Tensor::<2>::eye(keys, &device);
    let identity = identity.expand([batch, groups, keys, keys]);
    let no_options = AttentionOptions::default;
    let all = attention(q.clone(), k.clone(), identity.clone(), no_options());
    let left = dropping(q, k, identity, no_options());
    let factors = (left / all).inner();
    let is_kept = factors.clone().greater_elem(1.0).float();
    let kept: f32 = is_kept.clone().mean().into_scalar();
    // 3,680 Bernoulli trials: four standard deviations are 0.03.
    assert!((kept - 0.7).abs() < 0.03, "{kept}");
    let expected = is_kept.clone() / 0.7;
    factors
        .into_data()
        .assert_approx_eq::<f32>(&expected.into_data(), Tolerance::rel_abs(1e-5, 1e-6));
    let factors = Tensor::<4>::from_inner(is_kept / 0.7);
    assert_eq!(factors.dims(), [batch, groups * group, queries, keys]);
    let expected = run(&case, &device, |q, k, v, options| {
        weighed(q, k, v, options, |weights| weights * factors.clone())
    });
    let found = run(&case, &device, dropping);
    check_same(&case, &found, &expected);
}

#[test]
fn sixteen_bits_have_statistics_in_f32() {
    let device = Device::flex();
    for dtype in [burn_std::DType::BF16, burn_std::DType::F16] {
        let x = Tensor::<4>::from_data(numbers(&[1, 2, 40, 8], 1), &device);
        let narrow = x.clone().cast(dtype);
        let (inputs, scores) = in_groups(
            narrow.clone(),
            narrow.clone(),
            narrow,
            AttentionOptions::causal(),
        );
        let made = Flex::attention_forward(inputs_of(inputs), scores);
        assert_eq!(made.out.dtype(), dtype);
        assert_eq!(made.log_sum_exp.dtype(), burn_std::DType::F32);
        let out: Tensor<5> = Flex::tensor(made.out);
        let expected = attention(x.clone(), x.clone(), x, AttentionOptions::causal());
        let out = out
            .cast(burn_std::DType::F32)
            .reshape([1, 2, 40, 8])
            .into_data();
        out.assert_approx_eq::<f32>(&expected.into_data(), Tolerance::absolute(2e-2));
    }
}

#[test]
#[should_panic(expected = "3 heads of queries are no multiple of 2 heads of keys")]
fn heads_that_do_not_divide_are_refused() {
    let of = |heads| Tensor::<4>::zeros([1, heads, 4, 2], &Device::flex());
    attention(of(3), of(2), of(2), AttentionOptions::default());
}

#[test]
#[should_panic(expected = "a mask of shape [1, 1, 5, 4] does not stretch to [1, 2, 4, 4]")]
fn a_mask_of_the_wrong_shape_is_refused() {
    let x = Tensor::<4>::zeros([1, 2, 4, 2], &Device::flex());
    let mask = Tensor::<4>::zeros([1, 1, 5, 4], &Device::flex()).greater_elem(0.0);
    attention(
        x.clone(),
        x.clone(),
        x,
        AttentionOptions::default().mask(mask),
    );
}

#[test]
fn the_work_of_parts_is_that_of_the_whole() {
    use crate::custom::{CustomOp, Shapes};
    let flops = |scores: Scores, queries: usize| {
        let (q, k, v) = ([2, 3, 4, queries, 8], [2, 3, 20, 8], [2, 3, 20, 6]);
        let op = Attention {
            scores,
            has_mask: false,
            has_bias: false,
            block: None,
        };
        let shapes = Shapes {
            inputs: vec![&q, &k, &v],
            outputs: vec![],
        };
        CustomOp::flops(&op, &shapes).expect("a product")
    };
    let scores = |causal, window, offset| Scores {
        scale: 1.0,
        causal,
        window,
        offset,
        step: 1,
        dropout: None,
    };
    // Every query sees every key: two products of [12, 8] and [8, 20], and [12, 20] and [20, 6].
    assert_eq!(
        flops(scores(false, None, 0), 12),
        24.0 * 2.0 * (12.0 * 20.0 * (8.0 + 6.0))
    );
    for (causal, window) in [(true, None), (true, Some(3)), (false, Some(5))] {
        let whole = flops(scores(causal, window, 8), 12);
        let part = |start: usize, len| flops(scores(causal, window, 8 + start as isize), len);
        assert_eq!(
            part(0, 5) + part(5, 4) + part(9, 3),
            whole,
            "{causal}, {window:?}"
        );
        assert!(whole < flops(scores(false, None, 8), 12));
    }
}
