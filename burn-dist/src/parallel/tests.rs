//! Effects of `parallelize` on parameters: layouts that it asks for are noted, and not installed.

use super::{ParallelError, ParallelizeWith, Plan};
use crate as burn_dist;
use crate::mesh::MeshShape;
use crate::record::noting;
use crate::{DTensor, DeviceMesh};
use burn::module::{Lora, Module, Param, ParamId};
use burn::nn::{Linear, LinearConfig, LinearLayout};
use burn::tensor::{Device, Int, Tensor};
use burn_dist::Parallelize;
use burn_dist_front::parallel::idle_axes;
use std::sync::LazyLock;

static MESH: LazyLock<DeviceMesh> =
    LazyLock::new(|| DeviceMesh::parse("fsdp=2,tp=2").expect("a mesh"));

fn mesh() -> MeshShape {
    MESH.shape().clone()
}

fn device() -> Device {
    MESH.device()
}

/// Returns what `f` returns, and the paths and shapes of the layouts that were asked for meanwhile.
fn pinned<T>(f: impl FnOnce() -> T) -> (T, Vec<(String, Vec<usize>)>) {
    let mut result = None;
    let specs = noting(|| result = Some(f()));
    let calls = specs
        .into_iter()
        .map(|spec| (spec.path.clone(), spec.layout.shape()));
    (result.expect("it was called"), calls.collect())
}

/// Returns what `f` returns, and the paths of [`pinned`] alone.
fn paths<T>(f: impl FnOnce() -> T) -> (T, Vec<String>) {
    let (result, calls) = pinned(f);
    (result, calls.into_iter().map(|(path, _)| path).collect())
}

#[derive(Module, Debug, Parallelize)]
struct Pair {
    #[parallel(colwise)]
    up: Linear,
    #[parallel(rowwise)]
    down: Linear,
}

fn pair(layout: LinearLayout) -> Pair {
    pair_on(&device(), layout)
}

fn pair_on(device: &Device, layout: LinearLayout) -> Pair {
    let config = |input, output| LinearConfig::new(input, output).with_layout(layout);
    Pair {
        up: config(3, 5).init(device),
        down: config(5, 2).with_bias(false).init(device),
    }
}

fn tracked(layout: LinearLayout) -> Pair {
    pair_on(&device().autodiff(), layout)
}

const PATHS: [&str; 3] = ["up.weight", "up.bias", "down.weight"];

/// The values of a pair's parameters.
fn values(pair: &Pair) -> Vec<Vec<f32>> {
    let read = |data: burn::tensor::TensorData| data.try_into_vec::<f32>().expect("f32");
    let bias = pair.up.bias.as_ref().expect("has a bias");
    vec![
        read(pair.up.weight.val().into_data()),
        read(bias.val().into_data()),
        read(pair.down.weight.val().into_data()),
    ]
}

fn ids(pair: &Pair) -> Vec<ParamId> {
    let bias = pair.up.bias.as_ref().expect("has a bias");
    vec![pair.up.weight.id, bias.id, pair.down.weight.id]
}

#[test]
fn lazy_parameters_stay_lazy_and_are_pinned_when_made() {
    let before = pair(LinearLayout::Row);
    let ids_before = ids(&before);
    let (after, at_once) = paths(|| before.parallelize(&mesh()).expect("fits"));
    assert!(!after.up.weight.is_initialized());
    assert!(at_once.is_empty());
    assert_eq!(ids(&after), ids_before);
    let (_, when_made) = paths(|| values(&after));
    assert_eq!(when_made, PATHS);
}

#[test]
fn initialised_parameters_are_pinned_at_once() {
    let before = pair(LinearLayout::Row);
    let (expected, ids_before) = (values(&before), ids(&before));
    let (after, at_once) = paths(|| before.parallelize(&mesh()).expect("fits"));
    assert_eq!(at_once, PATHS);
    let (found, later) = paths(|| values(&after));
    assert_eq!(found, expected);
    assert_eq!(ids(&after), ids_before);
    assert!(later.is_empty());
}

#[test]
fn loading_pins_again_whatever_came_first() {
    for layout in [LinearLayout::Row, LinearLayout::Col] {
        for initialised_first in [false, true] {
            // Burn 0.22.1 compares the record with the shape in use, and so takes back no transposed parameter.
            let is_taken_back = matches!(layout, LinearLayout::Row);
            if initialised_first && !is_taken_back {
                continue;
            }
            let source = pair(layout);
            let expected = values(&source);
            let model = pair(layout);
            if initialised_first {
                values(&model);
            }
            let (model, _) = paths(|| model.parallelize(&mesh()).expect("fits"));
            let (model, calls) = pinned(|| model.load_record(source.clone().into_record()));
            let shape = |path: &str, shape: &[usize]| (path.to_string(), shape.to_vec());
            assert_eq!(
                calls,
                [
                    shape("up.weight", &[3, 5]),
                    shape("up.bias", &[5]),
                    shape("down.weight", &[5, 2])
                ]
            );
            let (found, later) = paths(|| values(&model));
            assert_eq!(found, expected);
            assert!(later.is_empty());
            // The mappers are still there: a second round trip gives the same values and pins them.
            if is_taken_back {
                let (again, calls) = paths(|| model.clone().load_record(model.into_record()));
                assert_eq!(values(&again), expected);
                assert_eq!(calls, PATHS);
            }
            // Loading first and placing afterwards is the same model.
            let late = pair(layout).load_record(source.into_record());
            let (late, calls) = paths(|| late.parallelize(&mesh()).expect("fits"));
            assert_eq!(values(&late), expected);
            assert_eq!(calls, PATHS);
        }
    }
}

#[test]
fn transposed_storage_is_pinned_in_the_shape_it_is_used_in() {
    let model = pair(LinearLayout::Col).parallelize(&mesh()).expect("fits");
    // A layout of another shape than its tensor ends the mesh.
    let (_, calls) = pinned(|| values(&model));
    assert_eq!(calls[0].1, [3, 5]);
    assert_eq!(calls[2].1, [5, 2]);
}

#[test]
fn parameters_stay_leaves_of_the_autodiff_graph() {
    let forward = |pair: &Pair| {
        let x = Tensor::<2>::ones([4, 3], &device().autodiff());
        pair.down.forward(pair.up.forward(x)).sum().backward()
    };
    let source = tracked(LinearLayout::Row);
    // Clones of a lazy parameter would each draw their own values.
    values(&source);
    let lazy = tracked(LinearLayout::Row)
        .parallelize(&mesh())
        .expect("fits");
    let loaded = lazy.clone().load_record(source.clone().into_record());
    let initialised = source.clone().parallelize(&mesh()).expect("fits");
    let expected = source
        .up
        .weight
        .grad(&forward(&source))
        .expect("tracked")
        .into_data();
    for (name, model) in [
        ("lazy", lazy),
        ("loaded", loaded),
        ("initialised", initialised),
    ] {
        let grads = forward(&model);
        let grad = model.up.weight.grad(&grads).expect(name);
        assert_eq!(grad.dims(), [3, 5], "{name}");
        if name != "lazy" {
            assert_eq!(grad.into_data(), expected, "{name}");
        }
        assert!(model.down.weight.grad(&grads).is_some(), "{name}");
    }
    let frozen = tracked(LinearLayout::Row)
        .no_grad()
        .parallelize(&mesh())
        .expect("fits");
    assert!(!frozen.up.weight.is_require_grad());
}

#[test]
fn a_second_plan_comes_on_top_of_the_first() {
    let once = pair(LinearLayout::Row).parallelize(&mesh()).expect("fits");
    let twice = once
        .parallelize_with(&mesh(), &Plan::new().replicate("**"))
        .expect("fits");
    let (_, calls) = paths(|| values(&twice));
    assert_eq!(
        calls,
        [
            "up.weight",
            "up.weight",
            "up.bias",
            "up.bias",
            "down.weight",
            "down.weight"
        ]
    );
}

#[test]
fn foreign_modules_take_a_plan() {
    let linear: Linear = LinearConfig::new(2, 2).init(&device());
    let linear = linear
        .parallelize_with(&mesh(), &Plan::new().colwise(""))
        .expect("fits");
    let (_, calls) = paths(|| linear.weight.val());
    assert_eq!(calls, ["weight"]);
}

#[derive(Module, Debug, Parallelize)]
struct Counter {
    count: Param<Tensor<1, Int>>,
}

#[test]
fn int_parameters_are_left_alone() {
    let zeros = |device: &Device, _| Tensor::<1, Int>::zeros([4], device);
    let count = Param::uninitialized(ParamId::new(), zeros, device(), false, [4].into());
    let counter = Counter { count }
        .parallelize(&mesh())
        .expect("nothing to do");
    assert!(!counter.count.is_initialized());
    let (_, calls) = paths(|| counter.count.val());
    assert!(calls.is_empty());
}

#[test]
fn a_model_of_another_mesh_is_refused() {
    let other = DeviceMesh::parse("tp=4").expect("a mesh");
    let error = pair_on(&other.device(), LinearLayout::Row)
        .parallelize(&mesh())
        .expect_err("other mesh");
    assert_eq!(
        error.to_string(),
        "up.weight is on a device of mesh tp=4, not of fsdp=2,tp=2: create the model on the device of the mesh it is \
         parallelised over"
    );
    assert!(pair(LinearLayout::Row).parallelize(&mesh()).is_ok());
}

#[test]
fn axes_that_split_nothing_of_a_model_are_found() {
    let idle = |text: &str, plan: Plan| {
        let mesh = MeshShape::parse(text).expect("a mesh");
        let specs = plan.resolve(&pair(LinearLayout::Row), &mesh);
        let specs = specs.expect("it fits");
        let idle = idle_axes(&specs, &mesh).into_iter();
        idle.map(|axis| axis.name.clone()).collect::<Vec<_>>()
    };
    let none: [&str; 0] = [];
    assert_eq!(idle("fsdp=2,tp=2", Plan::new()), ["tp"]);
    assert_eq!(idle("fsdp=2,tp=2", Plan::new().colwise("up")), none);
    assert_eq!(idle("tp=2", Plan::new().output("up", "[-, {tp}]")), none);
    assert_eq!(
        idle("heads:model=2,tp=2", Plan::new().colwise("up")),
        ["heads"]
    );
    // Batches and what rests are split over these, whatever the model is.
    let others = "tp=1,dp=2,fsdp=2,cp=2,ep=2";
    assert_eq!(idle(others, Plan::new()), none);
}

#[test]
fn a_program_that_returns_an_error_prints_what_it_says() {
    let mesh = MeshShape::parse("pp=2").expect("a mesh");
    let error = Plan::new().resolve(&pair(LinearLayout::Row), &mesh);
    let error = error.expect_err("no stage is said");
    assert!(matches!(error, ParallelError::NoStage { .. }));
    let message = error.to_string();
    let returned: Box<dyn std::error::Error> = error.into();
    assert_eq!(format!("{returned:?}"), message);
}

#[test]
fn a_model_of_no_mesh_is_refused() {
    let error = pair_on(&Device::flex(), LinearLayout::Row)
        .parallelize(&mesh())
        .expect_err("no mesh");
    assert!(matches!(error, ParallelError::NoMesh { .. }));
    assert!(
        error.to_string().contains(
            "which is no device of a mesh: create the model on the device of the mesh fsdp=2,tp=2"
        ),
        "{error}"
    );
}

/// A lazy parameter that is made keeps one value: the recipe of its load mapper keeps none.
#[test]
fn a_lazy_parameter_is_made_once() {
    let model = pair(LinearLayout::Col).parallelize(&mesh()).expect("fits");
    let clone = model.clone();
    assert_eq!(values(&model), values(&clone));
    // What it is loaded into afterwards goes through the mappers of both.
    let (again, calls) = paths(|| {
        let fresh = pair(LinearLayout::Col).parallelize(&mesh()).expect("fits");
        fresh.load_record(model.clone().into_record())
    });
    assert_eq!(values(&again), values(&model));
    assert_eq!(calls, PATHS);
}

#[test]
fn factors_of_lora_are_split_as_their_base_is() {
    let lora = || tracked(LinearLayout::Row).apply_lora(Lora::new(2, 4.0));
    let plan = Plan::new().colwise("up").rowwise("down");
    let specs = plan.resolve(&lora(), &mesh()).expect("it fits");
    let text = |spec: &super::ParamSpec| format!("{} {}", spec.path, spec.layout.display(&mesh()));
    let found: Vec<String> = specs.iter().map(text).collect();
    assert_eq!(
        found,
        [
            "up.weight [-, {tp}]",
            "up.weight.lora.a [-, -]",
            "up.weight.lora.b [-, {tp}]",
            "up.bias [{tp}]",
            "down.weight [{tp}, -]",
            "down.weight.lora.a [{tp}, -]",
            "down.weight.lora.b [-, -]",
        ]
    );
    let model = lora().parallelize_with(&mesh(), &plan).expect("it fits");
    assert!(!model.up.weight.base().is_require_grad());
    let adapter = model.up.weight.adapter().expect("it has one");
    assert!(adapter.b.val().is_require_grad());
    assert_eq!(
        adapter.b.val().layout_text().expect("on a mesh"),
        "[{fsdp*}, {tp}]"
    );
    let x = Tensor::<2>::ones([4, 3], &device().autodiff());
    let grads = model.down.forward(model.up.forward(x)).sum().backward();
    assert!(adapter.a.val().grad(&grads).is_some());
    assert!(model.up.weight.base().grad(&grads).is_none());

    let error = Plan::new().colwise("up.weight").resolve(&lora(), &mesh());
    assert_eq!(
        error.expect_err("it names the base").to_string(),
        "colwise(\"up.weight\"): up.weight is the frozen base of an adapter, which no entry splits alone: name the \
         module that holds it, and base and factors are split alike"
    );
    assert!(
        Plan::new()
            .replicate("**")
            .resolve(&lora(), &mesh())
            .is_ok()
    );
    // A factor may be named.
    let plan = Plan::new().rowwise("up.weight.lora.a");
    let specs = plan.resolve(&lora(), &mesh()).expect("it fits");
    assert_eq!(text(&specs[1]), "up.weight.lora.a [{tp}, -]");
}
