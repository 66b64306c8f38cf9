//! How close a real run of each schedule comes to the clock: stages that sleep instead of computing, so that ranks need
//! no core of their own.
//!
//! An action (forward, input gradient or weight gradient of one microbatch on one stage) sleeps until a deadline. The
//! limit is what the clock says: the step takes no less. Idle is the share of the step in which a rank, on average,
//! does not work; beside it that of the clock, and that of the literature's formulas, which send the gradient of an input
//! only when those of the weights are made too (`Times::sends_early`). A step is measured from when it is recorded until all
//! ranks have come to its end; figures are medians.
//!
//! `cargo bench -p burn-dist-021 --bench pipeline [-- MILLISECONDS [STEPS [MICROBATCHES]]]`

use std::thread::sleep;
use std::time::{Duration, Instant};

use burn::backend::Autodiff;
use burn::backend::Flex;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::{FlexDevice, FlexTensor};
use burn::module::{Initializer, Module, Param};
use burn::optim::{Optimizer, SgdConfig};
use burn::tensor::backend::Backend as BurnBackend;
use burn::tensor::ops::{FloatTensor, FloatTensorOps};
use burn::tensor::{ElementConversion, Tensor, TensorData, TensorPrimitive};
use burn_dist::custom::{
    BackendIr, CustomOp, CustomTensor, Execute, OpRule, RuleBuilder, Shapes, TensorInfo, call,
};
use burn_dist::mesh::ReduceOp;
use burn_dist::parallel::pipeline;
use burn_dist::schedule::ScheduleKind;
use burn_dist::schedule::{StageTimes, Times};
use burn_dist::{DeviceMesh, Dist, Parallelize, ParallelizeWith};
use serde_json::json;

type Ranks = Autodiff<Dist<Flex>>;

const WIDTH: usize = 8;

/// What of a layer `y = x w` is computed, and how long that takes.
#[derive(Clone, Debug, PartialEq, Hash)]
enum Part {
    /// Of `(x, w)`.
    Forward,
    /// The gradient of x, of `(w, g)`.
    Input,
    /// The gradient of w, of `(x, g)`.
    Weight,
}

#[derive(Clone, Debug, PartialEq, Hash)]
struct Layer {
    part: Part,
    takes: Duration,
}

impl CustomOp for Layer {
    const ID: &'static str = "bench.sleeping_layer";

    fn outputs(&self, inputs: &[TensorInfo]) -> Vec<TensorInfo> {
        let [first, second] = inputs else {
            panic!("two inputs")
        };
        match self.part {
            Part::Forward => vec![first.clone()],
            Part::Input => vec![second.clone()],
            Part::Weight => {
                let mut weight = first.clone();
                weight.shape = vec![WIDTH];
                vec![weight]
            }
        }
    }

    fn flops(&self, _: &Shapes<'_>) -> Option<f64> {
        // Real work, of which each rank does its part where it is recorded.
        Some(1.0)
    }

    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        match self.part {
            Part::Forward => RuleBuilder::notation(shapes, "n i, i -> n i").build(),
            Part::Input => RuleBuilder::notation(shapes, "i, n i -> n i").build(),
            Part::Weight => RuleBuilder::notation(shapes, "n i, n i -> i")
                .contract(ReduceOp::Sum)
                .build(),
        }
    }
}

impl Execute<Flex> for Layer {
    fn execute(&self, inputs: Vec<CustomTensor<Flex>>, _: &FlexDevice) -> Vec<CustomTensor<Flex>> {
        let deadline = Instant::now() + self.takes;
        let inputs: Vec<FlexTensor> = inputs.into_iter().map(CustomTensor::into_float).collect();
        let [a, b]: [FlexTensor; 2] = inputs.try_into().expect("two inputs");
        let row = |tensor: FlexTensor| Flex::float_reshape(tensor, [1, WIDTH].into());
        let made = match self.part {
            Part::Forward => Flex::float_mul(a, row(b)),
            Part::Input => Flex::float_mul(b, row(a)),
            Part::Weight => {
                let sum = Flex::float_sum_dim(Flex::float_mul(a, b), 0);
                Flex::float_reshape(sum, [WIDTH].into())
            }
        };
        sleep(deadline.saturating_duration_since(Instant::now()));
        vec![CustomTensor::Float(made)]
    }
}

/// A backend that has the layer.
trait Backend: BurnBackend {
    fn layer(
        part: Part,
        takes: Duration,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
    ) -> FloatTensor<Self>;
}

impl<I: BackendIr> Backend for Dist<I>
where
    Layer: Execute<I>,
{
    fn layer(
        part: Part,
        takes: Duration,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let inputs = vec![CustomTensor::Float(a), CustomTensor::Float(b)];
        let made = call(Layer { part, takes }, inputs).expect("tensors of one mesh");
        made.into_iter().next().expect("one result").into_float()
    }
}

#[derive(Debug)]
struct Gradient;

impl<I: Backend> Backward<I, 2> for Gradient {
    type State = (NodeId, NodeId, Duration);

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let [of_x, of_w] = ops.parents;
        let gradient = grads.consume::<I>(&ops.node);
        let (x, w, takes) = ops.state;
        if let Some(node) = of_x {
            let w: FloatTensor<I> = checkpointer.retrieve_node_output(w);
            grads.register::<I>(node.id, I::layer(Part::Input, takes, w, gradient.clone()));
        }
        if let Some(node) = of_w {
            let x: FloatTensor<I> = checkpointer.retrieve_node_output(x);
            grads.register::<I>(node.id, I::layer(Part::Weight, takes, x, gradient));
        }
    }
}

impl<I: Backend, C: CheckpointStrategy> Backend for Autodiff<I, C> {
    fn layer(
        part: Part,
        takes: Duration,
        x: FloatTensor<Self>,
        w: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let prepared = Gradient
            .prepare::<C>([x.node.clone(), w.node.clone()])
            .compute_bound()
            .stateful();
        match prepared {
            OpsKind::Tracked(mut prepared) => {
                let state = (prepared.checkpoint(&x), prepared.checkpoint(&w), takes);
                prepared.finish(state, I::layer(part, takes, x.primitive, w.primitive))
            }
            OpsKind::UnTracked(prepared) => {
                prepared.finish(I::layer(part, takes, x.primitive, w.primitive))
            }
        }
    }
}

#[derive(Module, Debug, Parallelize)]
struct Block<B: BurnBackend> {
    scale: Param<Tensor<B, 1>>,
}

#[derive(Module, Debug, Parallelize)]
struct Net<B: BurnBackend> {
    #[parallel(stages)]
    blocks: Vec<Block<B>>,
}

impl<I: Backend> Net<I> {
    fn new(blocks: u32, device: &I::Device) -> Self {
        let block = |_| Block {
            scale: Initializer::Ones.init([WIDTH], device),
        };
        Self {
            blocks: (0..blocks).map(block).collect(),
        }
    }

    fn forward(&self, x: Tensor<I, 2>, takes: Duration) -> Tensor<I, 2> {
        self.blocks.iter().fold(x, |x, block| {
            let (x, w) = (
                x.into_primitive().tensor(),
                block.scale.val().into_primitive().tensor(),
            );
            Tensor::from_primitive(TensorPrimitive::Float(I::layer(Part::Forward, takes, x, w)))
        })
    }
}

/// The median time of a step.
fn measure(
    ranks: u32,
    chunks: u32,
    schedule: ScheduleKind,
    microbatches: u32,
    takes: Duration,
    steps: usize,
) -> f64 {
    let mesh = DeviceMesh::parse(&format!("pp={ranks}")).expect("a mesh");
    let device = mesh.device();
    let net = Net::<Ranks>::new(ranks * chunks, &device);
    let plan = net.plan().schedule(schedule).stages_per_rank(chunks);
    let mut net = net
        .parallelize_with(&mesh, &plan)
        .expect("as many blocks as stages");
    let mut optimizer = SgdConfig::new().init();
    let rows = microbatches as usize * 2;
    let numbers: Vec<f32> = (0..rows * WIDTH).map(|i| (i % 13) as f32 / 13.0).collect();
    let mut times = Vec::new();
    for step in 0..steps + 2 {
        let data = TensorData::new(numbers.clone(), [rows, WIDTH]);
        // The input of the first stage has a gradient too, so that all stages do the same.
        let x = Tensor::<Ranks, 2>::from_data(data, &device).require_grad();
        let result = pipeline::forward_backward(&net, x, microbatches as usize, |net, x| {
            net.forward(x, takes).square().mean()
        });
        let (loss, gradients) = result.expect("rows enough");
        net = optimizer.step(1e-3, net, gradients);
        let began = Instant::now();
        let loss: f32 = loss.into_scalar().elem();
        Ranks::sync(&device).expect("no fault");
        assert!(loss.is_finite());
        if step >= 2 {
            times.push(began.elapsed().as_secs_f64() * 1e3);
        }
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let mut numbers = std::env::args()
        .skip(1)
        .filter_map(|argument| argument.parse::<u32>().ok());
    let ms = numbers.next().unwrap_or(20);
    let steps = numbers.next().unwrap_or(5) as usize;
    let microbatches = numbers.next().unwrap_or(8);
    let takes = Duration::from_millis(ms.into());
    println!("{microbatches} microbatches, actions of {ms} ms, median of {steps} steps");
    println!("ranks  schedule     stages  measured ms  clock ms  ratio   idle  clock  theory");
    let mut rows = Vec::new();
    for ranks in [2, 4] {
        for schedule in ScheduleKind::ALL {
            let chunks = if schedule.is_looped() { 2 } else { 1 };
            let of = schedule
                .schedule(ranks, chunks, microbatches)
                .expect("any number of microbatches");
            let times = StageTimes {
                forward: ms.into(),
                backward: ms.into(),
                weight: ms.into(),
            };
            let times = Times::uniform(ranks * chunks, times);
            let end =
                |times: Times| of.simulate(&times).expect("a schedule that can be").end() as f64;
            let (theory, predicted) = (end(times.clone()), end(times.sending_early()));
            let measured = measure(ranks, chunks, schedule, microbatches, takes, steps);
            let work = f64::from(microbatches * chunks * 3 * ms);
            let idle = |step: f64| 1.0 - work / step;
            let ratio = measured / predicted;
            println!(
                "{ranks:5}  {:11}  {chunks:6}  {measured:11.1}  {predicted:8.0}  {ratio:5.3}  {:5.3}  {:5.3}  {:6.3}",
                schedule.to_string(),
                idle(measured),
                idle(predicted),
                idle(theory)
            );
            rows.push(json!({
                "ranks": ranks,
                "schedule": schedule.to_string(),
                "stages_per_rank": chunks,
                "measured_ms": measured,
                "clock_ms": predicted,
                "ratio": ratio,
                "idle": idle(measured),
                "clock_idle": idle(predicted),
                "theory_idle": idle(theory),
            }));
        }
    }
    println!(
        "{}",
        json!({ "bench": "pipeline", "microbatches": microbatches, "action_ms": ms, "rows": rows })
    );
}
