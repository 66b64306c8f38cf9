//! How much of a tensor-parallel transfer hides behind the product beside it: products that sleep for as long as their
//! rows take, so that ranks need no core of their own, over a modelled link.
//!
//! `gather` is an all-gather of x and a product of it, `scatter` a product and the reduce-scatter of its result. With
//! transfer T and product C on p ranks, the limit of p chunks is `max(T, C) + min(T, C) / p`; one after the other they
//! take `T + C`. Figures are medians; a ratio is measured time over the limit.
//!
//! `cargo bench -p burn-dist-021 --bench async_tp [-- MILLISECONDS [STEPS]]`

use std::thread::sleep;
use std::time::{Duration, Instant};

use burn::backend::Flex;
use burn::backend::flex::{FlexDevice, FlexTensor};
use burn::module::{Module, Param};
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensorOps;
use burn::tensor::{Tensor, TensorData, TensorPrimitive};
use burn_dist::custom::{
    CustomOp, CustomTensor, Execute, OpRule, RuleBuilder, Shapes, TensorInfo, call,
};
use burn_dist::mesh::{Link, Links, ReduceOp};
use burn_dist::{AsyncTp, DTensor, DeviceMesh, Dist, MeshDevice, Parallelize, ParallelizeWith};
use serde_json::json;

type B = Dist<Flex>;

/// Rows of x, and its width.
const ROWS: usize = 256;
const WIDTH: usize = 64;
const LATENCY_US: f64 = 50.0;

/// `x w`, which takes a rank so long for all rows.
#[derive(Clone, Debug, PartialEq, Hash)]
struct Product {
    takes: Duration,
}

impl CustomOp for Product {
    const ID: &'static str = "bench.sleeping_product";

    fn outputs(&self, inputs: &[TensorInfo]) -> Vec<TensorInfo> {
        let [x, w] = inputs else { panic!("two inputs") };
        let mut out = x.clone();
        out.shape[1] = w.shape[1];
        vec![out]
    }

    fn flops(&self, shapes: &Shapes<'_>) -> Option<f64> {
        let [x, w] = [shapes.inputs[0], shapes.inputs[1]];
        Some((2 * x[0] * x[1] * w[1]) as f64)
    }

    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        RuleBuilder::notation(shapes, "n i, i o -> n o")
            .contract(ReduceOp::Sum)
            .build()
    }
}

impl Execute<Flex> for Product {
    fn execute(&self, inputs: Vec<CustomTensor<Flex>>, _: &FlexDevice) -> Vec<CustomTensor<Flex>> {
        let began = Instant::now();
        let inputs: Vec<FlexTensor> = inputs.into_iter().map(CustomTensor::into_float).collect();
        let [x, w]: [FlexTensor; 2] = inputs.try_into().expect("two inputs");
        let rows = Tensor::<Flex, 2>::from_primitive(TensorPrimitive::Float(x.clone())).dims()[0];
        let out = Flex::float_matmul(x, w);
        let deadline = began + self.takes.mul_f64(rows as f64 / ROWS as f64);
        sleep(deadline.saturating_duration_since(Instant::now()));
        vec![CustomTensor::Float(out)]
    }
}

#[derive(Module, Debug, Parallelize)]
#[parallel(unit)]
struct Layer<B: Backend> {
    #[parallel(colwise)]
    up: Param<Tensor<B, 2>>,
    #[parallel(rowwise)]
    down: Param<Tensor<B, 2>>,
}

fn numbers(shape: [usize; 2]) -> TensorData {
    let values = (0..shape[0] * shape[1]).map(|i| ((i * 7919) % 1009) as f32 / 1009.0);
    TensorData::new(values.collect::<Vec<_>>(), shape)
}

fn product(x: Tensor<B, 2>, w: Tensor<B, 2>, takes: Duration) -> Tensor<B, 2> {
    let inputs = [x, w].map(|tensor| CustomTensor::Float(tensor.into_primitive().tensor()));
    let made = call(Product { takes }, inputs.into()).expect("tensors of one mesh");
    let out = made.into_iter().next().expect("one result").into_float();
    Tensor::from_primitive(TensorPrimitive::Float(out))
}

struct Case {
    device: MeshDevice,
    layer: Layer<B>,
    takes: Duration,
}

impl Case {
    fn new(ranks: usize, transfer_ms: f64, async_tp: AsyncTp, takes: Duration) -> Self {
        let bytes = (ROWS * WIDTH * 4 * (ranks - 1) / ranks) as f64;
        let latency_ms = (ranks - 1) as f64 * LATENCY_US / 1e3;
        let gbps = bytes * 8.0 / ((transfer_ms - latency_ms) * 1e6);
        let link = Link::new(LATENCY_US, gbps).expect("a bandwidth above zero");
        let mesh = DeviceMesh::builder()
            .axis("tp", ranks)
            .links(Links::all(link))
            .build()
            .expect("a mesh");
        let device = mesh.device();
        let weight = || Param::from_data(numbers([WIDTH, WIDTH]), &device);
        let layer = Layer {
            up: weight(),
            down: weight(),
        };
        let plan = layer.plan().async_tp(async_tp);
        let layer = layer.parallelize_with(&mesh, &plan).expect("it fits");
        Self {
            device,
            layer,
            takes,
        }
    }

    /// The median time of a transfer and a product, and the sum of what is made.
    fn measure(&self, gathers: bool, steps: usize) -> (f64, f32) {
        let layout = |text, x: Tensor<B, 2>| x.redistribute(text).expect("a layout of the mesh");
        let x = Tensor::<B, 2>::from_data(numbers([ROWS, WIDTH]), &self.device);
        let x = match gathers {
            true => layout("[{tp}, -]", x),
            false => layout("[-, {tp}]", x),
        };
        B::sync(&self.device).expect("no fault");
        let (mut times, mut sum) = (Vec::new(), 0.0);
        for step in 0..steps + 2 {
            let began = Instant::now();
            let y = match gathers {
                true => product(x.clone(), self.layer.up.val(), self.takes),
                false => {
                    let y = product(x.clone(), self.layer.down.val(), self.takes);
                    layout("[{tp}, -]", y)
                }
            };
            B::sync(&self.device).expect("no fault");
            if step >= 2 {
                times.push(began.elapsed().as_secs_f64() * 1e3);
            }
            sum = y.sum().into_scalar();
        }
        times.sort_by(f64::total_cmp);
        (times[times.len() / 2], sum)
    }
}

fn main() {
    let numbers = std::env::args().skip(1);
    let mut numbers = numbers.filter_map(|argument| argument.parse::<u32>().ok());
    let ms = numbers.next().unwrap_or(80);
    let steps = numbers.next().unwrap_or(5) as usize;
    let takes = Duration::from_millis(ms.into());
    println!("products of {ms} ms, median of {steps} steps");
    println!("ranks  what     transfer/product  limit ms  in chunks  ratio   one after the other");
    let mut rows = Vec::new();
    for ranks in [2, 4, 8] {
        for share in [0.3, 1.0, 2.0] {
            let (product, transfer) = (f64::from(ms), f64::from(ms) * share);
            let of = |async_tp| Case::new(ranks, transfer, async_tp, takes);
            let (on, off) = (of(AsyncTp::On), of(AsyncTp::Off));
            for gathers in [true, false] {
                let what = if gathers { "gather" } else { "scatter" };
                let limit = product.max(transfer) + product.min(transfer) / ranks as f64;
                let (chunked, sum) = on.measure(gathers, steps);
                let (whole, expected) = off.measure(gathers, steps);
                assert_eq!(sum, expected, "the same values");
                let ratio = chunked / limit;
                println!(
                    "{ranks:5}  {what:7}  {share:16.1}  {limit:8.1}  {chunked:9.1}  {ratio:5.3}  {whole:19.1}"
                );
                rows.push(json!({
                    "ranks": ranks,
                    "what": what,
                    "transfer_ms": transfer,
                    "product_ms": product,
                    "limit_ms": limit,
                    "measured_ms": chunked,
                    "ratio": ratio,
                    "whole_ms": whole,
                }));
            }
        }
    }
    println!(
        "{}",
        json!({ "bench": "async_tp", "product_ms": ms, "rows": rows })
    );
}
