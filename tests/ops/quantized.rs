//! Quantized tensors. They live below `Autodiff`, which does not take them: cases use the inner backend.

use burn::module::{Module, Param, Quantizer};
use burn::nn::Linear;
use burn::tensor::activation::gelu;
use burn::tensor::quantization::{
    Calibration, QuantScheme, QuantStore, QuantValue, ScaleDtype, compute_q_params, compute_range,
};
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_dist::{DeviceMesh, Parallelize, ParallelizeWith, Plan};

use super::harness::cases;

/// Whole tensors and blocks, signed and full range, packed and not, and what Burn takes by default.
fn schemes() -> Vec<QuantScheme> {
    let plain = QuantScheme::default().with_store(QuantStore::Native);
    vec![
        QuantScheme::default(),
        plain.with_value(QuantValue::Q8S),
        plain.with_value(QuantValue::Q4S),
        plain
            .with_value(QuantValue::Q8S)
            .per_block([4], ScaleDtype::F32),
        plain
            .with_value(QuantValue::Q8F)
            .per_block([8], ScaleDtype::F32),
    ]
}

fn outer<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    Tensor::from_inner(tensor)
}

cases! {
    fn by_range(c) {
        c.exact();
        for scheme in schemes() {
            for x in [c.constant([6, 8]), c.constant([3, 16])] {
                let q = x.inner().quantize_dynamic(&scheme);
                c.quantized(q.clone());
                c.value(outer(q.dequantize()));
            }
        }
    }
    fn by_parameters(c) {
        c.exact();
        for scheme in schemes() {
            let x = c.constant([6, 8]).inner();
            let params = compute_q_params(&scheme, compute_range(&scheme, &x, &Calibration::MinMax));
            c.value(outer(params.scales.clone()));
            let q = x.quantize(&scheme, params);
            c.quantized(q.clone());
            c.value(outer(q.dequantize()));
        }
    }
    fn of_what_is_computed(c) {
        // Partial products are summed before they are quantized; what is dequantized is split again.
        for scheme in schemes() {
            // Small ints: their products add up to the same in every order.
            let (x, w) = (c.constant([6, 4]).round().inner(), c.constant([4, 8]).round().inner());
            let q = x.matmul(w).quantize_dynamic(&scheme);
            c.value(outer(q.dequantize().exp().log() * 2.0));
        }
    }
    fn views(c) {
        c.exact();
        for scheme in schemes() {
            // Blocks of 8 are whole in each.
            let q = c.constant([8, 8]).inner().quantize_dynamic(&scheme);
            c.quantized(q.clone().reshape([4, 16]));
            c.quantized(q.clone().transpose());
            c.quantized(q.clone().unsqueeze::<3>().permute([2, 0, 1]));
            c.quantized(q.clone().flip([0, 1]));
            c.quantized(q.clone().slice(1..3));
            c.value(outer(q.clone().unsqueeze::<3>().expand([2, 8, 8])));
            let indices = Tensor::<1, Int>::from_ints([3, 0, 3], &c.device);
            c.quantized(q.clone().select(0, indices));
            let indices = c.int(0, 4, [2, 8]).inner();
            c.quantized(q.clone().gather(0, indices));
            c.quantized(q.clone().repeat_dim(0, 2));
            c.quantized(Tensor::cat(vec![q.clone(), q], 1));
        }
    }
    fn searches(c) {
        for scheme in schemes() {
            let q = c.constant([8, 8]).inner().quantize_dynamic(&scheme);
            c.out_int(Tensor::from_inner(q.clone().argmax(1)));
            c.out_int(Tensor::from_inner(q.clone().argmin(0)));
            // Burn cuts a column into no blocks.
            if scheme.block_size().is_none() {
                c.quantized(q.max_dim(1));
            }
        }
    }
    fn sorted(c) {
        // Sorting goes by way of the host. Where random layouts cut what comes back into terms, its last bit may move,
        // and with it a value in the middle of two steps: a step is at most 4 / 14, with 4 bits for values up to 2.
        c.tolerance(0.29);
        for scheme in schemes() {
            let q = c.constant([8, 8]).inner().quantize_dynamic(&scheme);
            c.value(outer(q.sort(1).dequantize()));
        }
    }
    fn arithmetic(c) {
        for scheme in schemes() {
            let x = c.constant([4, 8]).inner().quantize_dynamic(&scheme);
            let y = c.constant([4, 8]).inner().quantize_dynamic(&scheme);
            c.value(outer(x.clone() + y.clone()));
            c.value(outer(x.clone() * y.clone() - 0.5));
            c.value(outer(x.clone().exp()));
            c.value(outer(x.clone().sum_dim(1)));
            c.quantized(x.abs());
            let dense = c.constant([4, 8]).inner();
            c.value(outer(dense + y));
        }
    }
    fn products(c) {
        for scheme in schemes() {
            let w = c.constant([4, 8]).inner().quantize_dynamic(&scheme);
            let x = c.constant([6, 4]).inner();
            c.value(outer(x.clone().matmul(w.clone())));
            let bias = c.constant([8]).inner();
            c.value(outer(burn::tensor::module::linear(x, w.clone(), Some(bias))));
            c.value(outer(w.clone().matmul(w.transpose())));
        }
    }
    fn from_host(c) {
        c.exact();
        for scheme in schemes() {
            // On every device the same quantized data, as a record holds it.
            let values: Vec<f32> = (0..48).map(|i| (i * 37 % 101) as f32 / 64.0).collect();
            let data = Tensor::<2>::from_data(TensorData::new(values, [6, 8]), &Device::flex().autodiff())
                .quantize_dynamic(&scheme)
                .into_data();
            let q = Tensor::<2>::from_data(data, &c.device);
            c.quantized(q.clone());
            c.value(outer(q.clone().dequantize()));
            c.value(outer(q.slice(2..5).dequantize() + 1.0));
        }
    }
}

#[derive(Module, Debug, Parallelize)]
struct FeedForward {
    #[parallel(colwise)]
    up: Linear,
    #[parallel(rowwise)]
    down: Linear,
}

impl FeedForward {
    fn new(device: &Device) -> Self {
        let linear = |inputs: usize, outputs: usize| Linear {
            weight: Param::from_tensor(numbers([inputs, outputs], device)),
            bias: Some(Param::from_tensor(numbers([outputs], device))),
        };
        Self {
            up: linear(16, 32),
            down: linear(32, 16),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.down.forward(gelu(self.up.forward(x)))
    }
}

fn numbers<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    let count: usize = shape.iter().product();
    let values: Vec<f32> = (0..count)
        .map(|i| (i * 37 % 101) as f32 / 250.0 - 0.2)
        .collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

fn quantizer() -> Quantizer {
    let scheme = QuantScheme::default()
        .with_store(QuantStore::Native)
        .with_value(QuantValue::Q8S)
        .per_block([8], ScaleDtype::F32);
    Quantizer::new(Calibration::MinMax, scheme)
}

/// Inference with quantized weights: a model quantized where it is placed, and a quantized model placed afterwards.
#[test]
fn a_model_with_quantized_weights() {
    let plain = FeedForward::new(&Device::flex().autodiff());
    let x = || numbers::<2>([6, 16], &Device::flex().autodiff());
    let dense = plain.forward(x()).into_data();
    let plain = plain.quantize_weights(&mut quantizer());
    let expected = plain.forward(x()).into_data();
    assert_ne!(dense, expected, "quantized weights are not what they were");

    for text in ["fsdp=2", "tp=2", "fsdp=2,tp=2", "dp=3", ""] {
        let mesh = DeviceMesh::parse(text).unwrap();
        let device = mesh.device().autodiff();
        let model = || FeedForward::new(&device);
        let placed = model().parallelize(&mesh).unwrap();
        let quantized = model().quantize_weights(&mut quantizer());
        let orders = [
            ("placed first", placed.quantize_weights(&mut quantizer())),
            (
                "quantized first",
                quantized.parallelize_with(&mesh, &Plan::new()).unwrap(),
            ),
        ];
        for (order, model) in orders {
            let x = numbers([6, 16], &device);
            // Quantizes what has not been quantized so far, so that the next window shows inference alone.
            model.forward(x).into_data();
            let x = numbers([6, 16], &device);
            let (found, explanation) = burn_dist::explain(&device, || model.forward(x).into_data());
            for (x, y) in found.iter::<f64>().zip(expected.iter::<f64>()) {
                let close = (x - y).abs() < 1e-5 * y.abs().max(1.0);
                assert!(close, "{text}: {order}: {x} instead of {y}");
            }
            // Weights are there already, and each rank computes the part of the batch that it holds.
            assert!(
                explanation.collectives.is_empty(),
                "{text}: {order}\n{explanation}"
            );
        }
    }
}

#[test]
fn quantized_tensors_move_between_meshes() {
    let meshes = ["tp=2", "fsdp=3"].map(|text| DeviceMesh::parse(text).unwrap());
    let [here, there] = meshes.each_ref().map(DeviceMesh::device);
    for scheme in schemes() {
        let q = numbers::<2>([8, 8], &here).quantize_dynamic(&scheme);
        let moved = q.clone().to_device(&there);
        assert_eq!(moved.device(), there);
        assert_eq!(moved.clone().into_data(), q.clone().into_data());
        assert_eq!(moved.dequantize().into_data(), q.dequantize().into_data());
    }
}

/// Burn looks at it first.
#[test]
#[should_panic(expected = "must be evenly divisible by block size")]
fn a_block_that_does_not_fit_is_refused() {
    let mesh = DeviceMesh::parse("tp=2").unwrap();
    let scheme = QuantScheme::default().per_block([8], ScaleDtype::F32);
    let _ = numbers::<2>([3, 3], &mesh.device()).quantize_dynamic(&scheme);
}
