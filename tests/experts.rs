//! Expert parallelism: tokens go to experts and back by an all-to-all each, and experts stay where they are.

use burn::backend::ops::FloatTensorOps;
use burn::module::{Module, Param};
use burn::nn::LinearConfig;
use burn::tensor::{Device, Tensor, TensorData, Tolerance};
use burn_dist::custom::{
    CustomOp, CustomTensor, Execute, Kernels, OpRule, RuleBuilder, Shapes, TensorInfo, WithKernels,
    call,
};
use burn_dist::explanation::{Ask, Explanation, PASSES};
use burn_dist::mesh::{MeshShape, ReduceOp};
use burn_dist::nn::mixture::MixtureConfig;
use burn_dist::parallel::ParallelError;
use burn_dist::trainer::model::Model;
use burn_dist::trainer::optimizer::optimizer;
use burn_dist::trainer::step;
use burn_dist::{
    DTensor, DeviceMesh, DeviceMeshBuilder, Dist, OnMesh, Parallelize, ParallelizeWith, Plan,
};
use burn_flex::{Flex, FlexDevice};
use moe::data::Ciphers;
use moe::model::{Config, Decoder};

const BATCH: usize = 8;
const SEQ: usize = 16;

/// Axes of the mesh, axes that experts are split over in the place of `ep`, ranks that share the experts.
const MESHES: [(&str, Option<&str>, usize); 10] = [
    ("ep=2", None, 2),
    ("ep=4", None, 4),
    ("fsdp=2,ep=2", None, 2),
    ("ep=2,fsdp=2", None, 2),
    ("dp=2,ep=2", None, 2),
    ("ep=2,tp=2", None, 2),
    ("ep=2,cp=2", None, 2),
    ("fsdp=4", Some("fsdp"), 4),
    ("fsdp=2,ep=2", Some("fsdp,ep"), 4),
    // As many groups of a sequence as ranks that share it.
    ("fsdp=2,cp=2", Some("cp,fsdp"), 4),
];

fn config() -> Config {
    let usual = Config::default();
    Config {
        mixture: MixtureConfig {
            width: 32,
            hidden: 48,
            groups: 2,
            ..usual.mixture
        },
        ..usual
    }
}

fn planned(axes: &str, over: Option<&str>, config: &Config, sizes: (usize, usize)) -> Explanation {
    let mesh = DeviceMesh::builder().axes(&axes.parse().expect("a mesh"));
    // Sums are small here, and yet none is to be made on every rank.
    let mesh = mesh.scatter_bytes_min(0);
    steady(mesh, over, config, sizes, |device, step| {
        burn_dist::explain(device, step).1
    })
}

/// Runs `look` on a steady step on a mesh where nothing is computed.
fn steady<T>(
    mesh: DeviceMeshBuilder,
    over: Option<&str>,
    config: &Config,
    (batch, seq): (usize, usize),
    look: impl FnOnce(&Device, &mut dyn FnMut()) -> T,
) -> T {
    let mesh = mesh.dry_run().build().expect("a mesh");
    let device = mesh.device().autodiff();
    let mut model = on(&mesh, over, config);
    let (mut optim, ciphers) = (optimizer(), Ciphers::new(0));
    let mut step = || {
        let rows = ciphers.rows(0..batch, seq);
        let (next, figures) = step::one(model.clone(), &mut optim, &rows, 1e-3, &device);
        model = next;
        figures.into_data();
    };
    // The first step makes the parameters and the optimizer's state.
    step();
    look(&device, &mut step)
}

fn on(mesh: &DeviceMesh, over: Option<&str>, config: &Config) -> Decoder {
    let config = Config {
        experts_over: over.map(str::to_string),
        ..config.clone()
    };
    let model = config.init(&mesh.device().autodiff());
    let plan = model.plan_on(mesh.shape()).expect("a plan");
    model.parallelize_with(mesh, &plan).expect("it fits")
}

#[test]
fn tokens_cross_twice_in_each_direction_and_are_never_gathered() {
    let config = config();
    for (axes, over, parts) in MESHES {
        let explanation = planned(axes, over, &config, (BATCH, SEQ));
        let what = format!("{axes}, experts over {over:?}\n{explanation}");
        let ranks = MeshShape::parse(axes).expect("a mesh").num_ranks() as u64;
        let (mut calls, mut bytes) = (0, 0);
        for moved in &explanation.collectives {
            match moved.kind {
                "all_to_all" => {
                    calls += moved.count;
                    bytes += moved.bytes * ranks;
                }
                // Parameters alone; and keys and values, where sequences are split.
                "all_gather" => assert!(
                    moved.from.contains('*') || moved.reason.contains("burn_dist.attention"),
                    "{moved:?} of {what}"
                ),
                _ => {}
            }
        }
        // Dispatch and combine, forward and backward.
        let times = 2 * 2 * config.layers as u64;
        assert_eq!(calls, times, "{what}");
        // Ranks along tp have the same tokens, and each gets its own.
        let copies = if axes.contains("tp") { 2 } else { 1 };
        let of_one = config.mixture.exchanged_bytes((BATCH, SEQ), parts, 4);
        assert_eq!(bytes, times * of_one * copies, "{what}");
        // No rank does the work of another, but along tp.
        for axis in ["dp", "fsdp", "cp", "ep"] {
            assert!(
                explanation.redundancy.share(axis) < 1e-3,
                "{axis} of {what}"
            );
        }
    }
}

#[test]
fn what_crosses_is_what_was_planned() {
    for (axes, over, _) in MESHES {
        let mesh = DeviceMesh::parse(axes).expect("a mesh");
        let device = mesh.device().autodiff();
        let mut model = on(&mesh, over, &config());
        let (mut optim, ciphers) = (optimizer(), Ciphers::new(0));
        let mut step = || {
            let batch = ciphers.rows(0..BATCH, SEQ);
            let (next, figures) = step::one(model.clone(), &mut optim, &batch, 1e-3, &device);
            model = next;
            figures.into_data();
        };
        step();
        let received = || -> Vec<u64> {
            let ranks = device.report().ranks.into_iter();
            let of_tokens = |kinds: Vec<(&'static str, u64, u64)>| {
                let mut kinds = kinds.into_iter();
                kinds
                    .find(|(kind, ..)| *kind == "all_to_all")
                    .map_or(0, |(.., bytes)| bytes)
            };
            ranks.map(|rank| of_tokens(rank.received)).collect()
        };
        let before = received();
        step();
        let counted = received().into_iter().zip(before);
        let counted: Vec<u64> = counted.map(|(after, before)| after - before).collect();
        let planned = planned(axes, over, &config(), (BATCH, SEQ));
        let expected = planned.totals["all_to_all"].bytes;
        assert!(expected > 0, "{axes}");
        assert_eq!(
            counted,
            vec![expected; counted.len()],
            "{axes}, experts over {over:?}"
        );
    }
}

/// However many tokens there are for small experts, these stay where they are: in the backward too, which multiplies
/// with their transposed weights.
#[test]
fn experts_stay_whatever_it_costs() {
    let mut config = config();
    config.mixture.hidden = 4;
    config.layers = 1;
    let explanation = planned("ep=4", None, &config, (32, 64));
    let moves_experts = |from: &str| from.starts_with("[{ep}");
    let gathers = explanation
        .collectives
        .iter()
        .filter(|c| c.kind == "all_gather");
    let of_experts: Vec<_> = gathers.filter(|c| moves_experts(&c.from)).collect();
    assert!(of_experts.is_empty(), "{of_experts:?}\n{explanation}");
    assert_eq!(explanation.totals["all_to_all"].count, 4, "{explanation}");
}

/// `x w` of every expert, as a kernel of one's own: `[e, n, i]` and `[e, i, o]`.
#[derive(Clone, Debug, PartialEq, Hash)]
struct Grouped;

impl CustomOp for Grouped {
    const ID: &'static str = "test.grouped_product";

    fn outputs(&self, inputs: &[TensorInfo]) -> Vec<TensorInfo> {
        let [x, w] = inputs else { panic!("two inputs") };
        let mut out = x.clone();
        out.shape[2] = w.shape[2];
        vec![out]
    }

    fn flops(&self, shapes: &Shapes<'_>) -> Option<f64> {
        let [x, w] = [shapes.inputs[0], shapes.inputs[1]];
        Some((2 * x.iter().product::<usize>() * w[2]) as f64)
    }

    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        RuleBuilder::notation(shapes, "e n i, e i o -> e n o")
            .contract(ReduceOp::Sum)
            .build()
    }
}

impl Execute<Flex> for Grouped {
    fn execute(&self, inputs: Vec<CustomTensor<Flex>>, _: &FlexDevice) -> Vec<CustomTensor<Flex>> {
        let inputs: Vec<_> = inputs.into_iter().map(CustomTensor::into_float).collect();
        let [x, w] = inputs.try_into().expect("two inputs");
        vec![CustomTensor::Float(Flex::float_matmul(x, w))]
    }
}

impl WithKernels for Grouped {
    fn kernels() -> Kernels<Self> {
        Kernels::of::<Flex>()
    }
}

#[derive(Module, Debug, Parallelize)]
struct Stack {
    #[parallel(experts)]
    weight: Param<Tensor<3>>,
}

/// Tokens go to the experts of an operation that nobody but its own crate knows, and back, by its rule alone.
#[test]
fn tokens_are_dispatched_to_a_kernel_of_ones_own() {
    let numbers = |shape: [usize; 3]| {
        let values =
            (0..shape.iter().product::<usize>()).map(|i| ((i * 7919) % 1009) as f32 / 504.5 - 1.0);
        TensorData::new(values.collect::<Vec<_>>(), shape)
    };
    let (tokens, weight) = (numbers([4, 24, 8]), numbers([4, 8, 16]));
    let whole = |data: &TensorData| Tensor::<3>::from_data(data.clone(), &Device::flex());
    let expected = whole(&tokens).matmul(whole(&weight)).into_data();
    for axes in ["ep=2", "ep=4", "fsdp=2,ep=2"] {
        let mesh = DeviceMesh::parse(axes).expect("a mesh");
        let device = mesh.device();
        let weight = Param::from_data(weight.clone(), &device);
        let stack = Stack { weight };
        let stack = stack.parallelize(&mesh).expect("it fits");
        let by_group = |x: Tensor<3>| {
            let layout = match axes {
                "fsdp=2,ep=2" => "[-, {fsdp, ep}, -]",
                _ => "[-, {ep}, -]",
            };
            x.redistribute(layout).expect("a layout of the mesh")
        };
        let x = by_group(Tensor::from_data(tokens.clone(), &device));
        let (out, explanation) = burn_dist::explain(&device, || {
            let on_mesh = |x: Tensor<3>| x.try_into_primitive::<Dist>().expect("on a mesh");
            let inputs = [x, stack.weight.val()].map(|x| CustomTensor::Float(on_mesh(x)));
            let made = call(Grouped, inputs.into()).expect("tensors of one mesh");
            let out = made.into_iter().next().expect("one result").into_float();
            by_group(Tensor::from_primitive::<Dist>(out)).into_data()
        });
        out.assert_approx_eq::<f32>(&expected, Tolerance::relative(1e-6));
        let count = |kind: &str| explanation.totals.get(kind).map_or(0, |total| total.count);
        assert_eq!(count("all_to_all"), 2, "{axes}\n{explanation}");
        let gathers = explanation
            .collectives
            .iter()
            .filter(|of| of.kind == "all_gather");
        assert!(
            gathers.clone().all(|of| of.from.contains('*')),
            "{axes}\n{explanation}"
        );
    }
}

fn stacked(shape: [usize; 3]) -> Param<Tensor<3>> {
    Param::from_tensor(Tensor::zeros(shape, &Device::flex()))
}

#[test]
fn experts_lie_over_ep_or_the_axes_that_are_named_and_rest_over_the_others() {
    let experts = [stacked([8, 16, 32])];
    for (plan, axes, expected) in [
        (Plan::new().experts("0"), "ep=4", "[{ep}, -, -]"),
        (
            Plan::new().experts("0"),
            "fsdp=2,ep=2",
            "[{ep, fsdp*}, -, -]",
        ),
        (Plan::new().experts("0"), "dp=2,ep=2", "[{ep}, -, -]"),
        // Over no axis: they rest as all others.
        (Plan::new().experts("0"), "fsdp=2,tp=2", "[{fsdp*}, -, -]"),
        (
            Plan::new().axis("fsdp").experts("0"),
            "fsdp=4",
            "[{fsdp}, -, -]",
        ),
        (
            Plan::new().axis("cp, fsdp").experts("0"),
            "fsdp=2,cp=2",
            "[{cp, fsdp}, -, -]",
        ),
        // 2 for each of 4 ranks are not enough to rest over 4 more along dim 0.
        (
            Plan::new().axis("fsdp").experts("0"),
            "fsdp=4,ep=4",
            "[{fsdp}, {ep*}, -]",
        ),
        (
            Plan::new().axis("tp").experts("0"),
            "tp=2,ep=2",
            "[{tp, ep*}, -, -]",
        ),
    ] {
        let mesh = MeshShape::parse(axes).expect("a mesh");
        let specs = plan.resolve(&experts, &mesh).expect("it fits");
        let home = specs[0].home(&mesh);
        assert_eq!(home.display(&mesh).to_string(), expected, "{axes}");
    }
    // Biases too; a batch is split over ep as over fsdp.
    let bias = Param::from_tensor(Tensor::<2>::zeros([8, 32], &Device::flex()));
    let mesh = MeshShape::parse("fsdp=2,ep=2").expect("a mesh");
    let specs = Plan::new().experts("0").resolve(&[bias], &mesh);
    let text = specs.expect("it fits")[0].to_text(&mesh);
    assert_eq!(
        text,
        "path=0;style=experts;role=bias;layout=[{ep}, -];rest=yes"
    );
    assert_eq!(mesh.data_axes(), mesh.axis_indices().collect::<Vec<_>>());
}

#[test]
fn mistakes_are_named() {
    let experts = [stacked([6, 16, 32])];
    let error = |plan: Plan, axes: &str| -> ParallelError {
        let mesh = MeshShape::parse(axes).expect("a mesh");
        plan.resolve(&experts, &mesh).expect_err("a mistake")
    };
    let by_ep = || Plan::new().experts("0");
    assert_eq!(
        error(by_ep(), "ep=4").to_string(),
        "0: 6 experts cannot be split over axis ep (size 4): use ep = 1, 2, 3 or 6, or mark it replicate / pass \
         .replicate_indivisible()"
    );
    let mesh = MeshShape::parse("ep=4").expect("a mesh");
    let whole = by_ep().replicate_indivisible().resolve(&experts, &mesh);
    assert!(whole.expect("it is left whole")[0].layout.is_replicated());
    assert_eq!(
        error(Plan::new().axis("fsdp,cp").experts("0"), "fsdp=2,cp=2").to_string(),
        "0: 6 experts cannot be split over axis fsdp x cp (size 4): use fsdp x cp = 1, 2, 3 or 6, or mark it replicate / \
         pass .replicate_indivisible()"
    );
    assert_eq!(
        error(Plan::new().axis("fsdp,cp").experts("0"), "fsdp=2").to_string(),
        "experts(\"0\"): no axis cp in the mesh; its axes are fsdp=2"
    );
    assert_eq!(
        error(Plan::new().axis("fsdp,fsdp").experts("0"), "fsdp=2").to_string(),
        "experts(\"0\"): axis fsdp is named twice: name it once"
    );
    // Other styles take one axis.
    assert_eq!(
        error(Plan::new().axis("fsdp,cp").colwise("0"), "fsdp=2,cp=2").to_string(),
        "colwise(\"0\"): no axis fsdp,cp in the mesh; its axes are fsdp=2, cp=2"
    );
    let linear = LinearConfig::new(4, 8).init(&Device::flex());
    let error = Plan::new()
        .experts("0")
        .resolve(&[linear], &mesh)
        .expect_err("no experts");
    assert_eq!(
        error.to_string(),
        "0: experts does not fit a module whose parameters are weight [4, 8], bias [8]: it splits dim 0 of stacked \
         weights [experts, in, out] and biases [experts, out]; use replicate"
    );
}

/// A step as text after each pass is read as it was, and the other passes make the same plan of it.
#[test]
fn a_step_is_read_as_it_was_after_every_pass() {
    let mesh = DeviceMesh::builder().axes(&"ep=2".parse().expect("a mesh"));
    let texts = steady(mesh, None, &config(), (BATCH, SEQ), |device, step| {
        device.start_explaining(Ask {
            checks_form: true,
            ..Ask::default()
        });
        step();
        device.explained().after
    });
    assert_eq!(texts.len(), PASSES.len(), "a step is one window");
    assert!(texts[PASSES.len() - 1].contains("all_to_all"));
}
