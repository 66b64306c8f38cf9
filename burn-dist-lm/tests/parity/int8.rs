//! A base that rests in 8 bits: the same bytes on every mesh, and what they come to in a step.

use std::collections::BTreeMap;
use std::path::Path;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::ModuleOptimizer;
use burn::tensor::{DType, Tensor};
use burn_dist::Float;
use burn_dist::checkpoint::hf::{self, Export, Folder};
use burn_dist::checkpoint::{Checkpointer, State};
use burn_dist::explanation::Ask;
use burn_dist::layout::Rows;
use burn_dist::train::rng::Rng;
use burn_dist::trainer::args::{AxesArgs, MeshArgs};
use burn_dist::trainer::batch::BatchSource;
use burn_dist::trainer::folder::InFolders;
use burn_dist::trainer::lora::{Adapters, Base, Layers, Targets};
use burn_dist::trainer::mesh::Mesh;
use burn_dist::trainer::optimizer::optimizer;
use burn_dist::trainer::tokens::{Batch, RandomTokens};
use burn_dist::trainer::{predict, step};
use burn_dist_lm::model::{Llama, LlamaConfig, Size};

const RANK: usize = 4;
const STEPS: usize = 4;
/// The elements that share a scale, and their bytes.
const BLOCK: [usize; 2] = [32, 33];

/// Two layers of the smallest size: all matrices are split over `fsdp=2,tp=2` without cutting a block.
fn config(base: Option<Base>) -> LlamaConfig {
    let config = LlamaConfig {
        num_layers: 2,
        ..Size::Tiny.config()
    };
    let layers = Layers::of::<Llama>(&config);
    let adapters = base.map(|base| Adapters {
        rank: RANK,
        alpha: 8.0,
        is_rank_stabilized: false,
        dropout: 0.0,
        base,
        matrices: Targets::AllLinear.matrices(&layers).expect("layers"),
    });
    LlamaConfig { adapters, ..config }
}

fn devices(axes: &str) -> MeshArgs {
    let axes = AxesArgs {
        mesh: Some(axes.parse().expect("axes")),
        ..AxesArgs::default()
    };
    axes.into()
}

fn open(devices: &MeshArgs) -> Mesh {
    let mesh = Mesh::open::<Llama>(devices).expect("a mesh");
    mesh.device().seed(5);
    mesh
}

fn mesh(axes: &str) -> Mesh {
    open(&devices(axes))
}

fn rows() -> Batch {
    let mut source = RandomTokens {
        batch: 4,
        seq: 12,
        vocab: 1024,
        rng: Rng::new(0, 0),
        held: Rows::all(4),
    };
    source.next_batch().expect("random tokens")
}

/// A folder with a model in f32.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    let (config, mesh) = (config(None), mesh("1"));
    let model: Llama = config.init(mesh.device());
    let names = Llama::names(&config);
    hf::save(
        &model,
        &names,
        dir.path(),
        &Export::default(),
        mesh.device(),
    )
    .expect("saved");
    dir
}

fn loaded(mesh: &Mesh, base: Option<Base>, dir: &Path) -> Llama {
    let config = config(base);
    let model = mesh
        .parallelize(config.init(mesh.device()))
        .expect("a model that fits");
    let folder = Folder::open(dir).expect("a folder");
    let names = Llama::names(&config);
    hf::load(model, &folder, &names, mesh.device()).expect("loaded")
}

/// The values of what rests in 8 bits, or of all matrices of layers, in order.
fn values(model: &Llama, are_packed: bool) -> Vec<Vec<f32>> {
    struct Values {
        are_packed: bool,
        is_linear: Vec<bool>,
        found: Vec<Vec<f32>>,
    }
    impl ModuleVisitor for Values {
        fn enter_module(&mut self, _: &str, container: &str) {
            self.is_linear.push(container == "Struct:Linear");
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.is_linear.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let base = param.base();
            let is_packed = matches!(base.dtype(), DType::QFloat(_));
            if self.is_linear.last() == Some(&true) {
                assert_eq!(is_packed, self.are_packed);
                let values = base.dequantize().into_data();
                self.found.push(values.iter::<f32>().collect());
            }
        }
    }
    let mut values = Values {
        are_packed,
        is_linear: Vec::new(),
        found: Vec::new(),
    };
    model.clone().valid().visit(&mut values);
    values.found
}

/// The bytes that all ranks have received.
fn received(mesh: &Mesh) -> u64 {
    let ranks = mesh.report().ranks.into_iter();
    ranks
        .flat_map(|rank| rank.received)
        .map(|(_, _, bytes)| bytes)
        .sum()
}

fn train(mesh: &Mesh, model: Llama, steps: usize) -> (Vec<u32>, Llama) {
    train_by(&mut optimizer(), mesh, model, steps)
}

fn train_by(
    optim: &mut ModuleOptimizer,
    mesh: &Mesh,
    mut model: Llama,
    steps: usize,
) -> (Vec<u32>, Llama) {
    let mut losses = Vec::new();
    for _ in 0..steps {
        let (next, loss) = step::one(model, optim, &rows(), 1e-2, mesh.device());
        model = next;
        losses.push(loss.into_scalar::<f32>().to_bits());
    }
    (losses, model)
}

/// The same model over a base in f32 that has the values of the 8 bits.
struct Widen;

impl ModuleMapper for Widen {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match param.base().dtype() {
            DType::QFloat(_) => param.map(|packed| packed.dequantize()),
            _ => param,
        }
    }
}

#[test]
fn a_base_has_the_same_bytes_on_every_mesh_and_nothing_is_off_but_its_rounding() {
    let folder = folder();
    let exact = values(&loaded(&mesh("1"), None, folder.path()), false);
    let widths: Vec<usize> = Layers::of::<Llama>(&config(None))
        .iter()
        .map(|(_, it)| it.outputs)
        .collect();
    assert!(widths.iter().all(|width| width.is_multiple_of(BLOCK[0])));
    let mut losses = BTreeMap::new();
    let mut first = None;
    for axes in ["1", "dp=2", "fsdp=2", "tp=2", "fsdp=2,tp=2", "pp=2,fsdp=2"] {
        let mesh = mesh(axes);
        let model = loaded(&mesh, Some(Base::Int8), folder.path());
        // It was packed where it rests.
        assert_eq!(received(&mesh), 0, "{axes}");
        let packed = values(&model, true);
        let first = first.get_or_insert_with(|| packed.clone());
        assert!(*first == packed, "the base on {axes}");
        for (exact, packed) in exact.iter().flatten().zip(packed.iter().flatten()) {
            assert!(exact.is_finite() && packed.is_finite());
        }
        for (exact, packed) in exact.iter().zip(&packed) {
            assert_eq!(exact.len(), packed.len());
            // All widths are whole blocks, so blocks of rows are blocks of all.
            for (exact, packed) in exact.chunks(BLOCK[0]).zip(packed.chunks(BLOCK[0])) {
                let largest = exact.iter().fold(0f32, |max, value| max.max(value.abs()));
                let off = exact.iter().zip(packed).map(|(a, b)| (a - b).abs());
                let off = off.fold(0f32, f32::max);
                assert!(off < largest / 127.0, "{off} beside {largest} on {axes}");
                assert!(off > 0.0, "nothing was rounded");
            }
        }
        let widened = model.clone().map(&mut Widen);
        let (found, _) = train(&mesh, model, STEPS);
        if !axes.contains("tp") && !axes.contains("pp") {
            // A base without a spec is in no stage, and over tp it is added up in another order.
            mesh.device().seed(5);
            assert_eq!(found, train(&mesh, widened, STEPS).0, "losses on {axes}");
        }
        if axes == "fsdp=2" {
            let devices = MeshArgs {
                activation_checkpoint: "full".parse().expect("a policy"),
                ..devices(axes)
            };
            let mesh = open(&devices);
            let model = loaded(&mesh, Some(Base::Int8), folder.path());
            // The factors are drawn where they are visited first, as above.
            values(&model, true);
            assert_eq!(
                found,
                train(&mesh, model, STEPS).0,
                "made again in the backward"
            );
        }
        losses.insert(axes, found);
    }
    assert_eq!(losses["dp=2"], losses["fsdp=2"]);
    let of_one = &losses["1"];
    for (axes, found) in &losses {
        for (found, expected) in found.iter().zip(of_one) {
            let [found, expected] = [*found, *expected].map(f32::from_bits);
            let error = ((found - expected) / expected).abs();
            assert!(error <= 1e-4, "{axes}: {found} is {error:e} off {expected}");
        }
    }
    let [begun, ended] = [of_one[0], of_one[STEPS - 1]].map(f32::from_bits);
    assert!(ended < begun - 0.1, "it learns: {begun} to {ended}");
}

#[test]
fn types_of_a_base_are_named() {
    for text in ["f32", "bf16", "f16", "int8"] {
        assert_eq!(
            text.parse::<Base>().map(|base| base.to_string()),
            Ok(text.into())
        );
    }
    let error = "int4".parse::<Base>().expect_err("there is none");
    assert!(
        error.contains("`int4`") && error.contains("f32, bf16, f16 or int8"),
        "{error}"
    );
}

/// A checkpoint has the values of the base, which become the same 8 bits, on another mesh too.
#[test]
fn a_run_goes_on_as_if_it_had_not_stopped() {
    let folder = folder();
    let run = tempfile::tempdir().expect("a folder");
    let first = mesh("fsdp=2");
    let model = loaded(&first, Some(Base::Int8), folder.path());
    let (_, model) = train(&first, model, 2);
    let before = values(&model, true);
    let mut checkpoints = Checkpointer::at(run.path(), first.device()).expect("a folder");
    let before_save = received(&first);
    checkpoints
        .save(2, State::new().module("model", &model))
        .expect("saved");
    assert_eq!(
        received(&first),
        before_save,
        "its values were made where it rests"
    );
    let (expected, _) = train(&first, model, 2);
    for axes in ["fsdp=2", "fsdp=2,tp=2", "pp=2,fsdp=2"] {
        let mesh = mesh(axes);
        let config = config(Some(Base::Int8));
        let model = mesh
            .parallelize(config.init(mesh.device()))
            .expect("a model that fits");
        let checkpoints = Checkpointer::at(run.path(), mesh.device()).expect("a folder");
        let saved = checkpoints.latest().expect("read").expect("there is one");
        let model = saved.module("model", model).expect("loaded");
        if axes.contains("pp") {
            // Saved once more from its stages.
            let again = tempfile::tempdir().expect("a folder");
            let mut checkpoints = Checkpointer::at(again.path(), mesh.device()).expect("a folder");
            let state = State::new().module("model", &model);
            checkpoints.save(2, state).expect("saved");
            let one = self::mesh("1");
            let model = one.parallelize(config.init(one.device()));
            let checkpoints = Checkpointer::at(again.path(), one.device()).expect("a folder");
            let saved = checkpoints.latest().expect("read").expect("there is one");
            let model = saved
                .module("model", model.expect("a model"))
                .expect("loaded");
            assert!(values(&model, true) == before, "the base on {axes}");
            continue;
        }
        assert!(values(&model, true) == before, "the base on {axes}");
        let (found, _) = train(&mesh, model, 2);
        if axes == "fsdp=2" {
            assert_eq!(found, expected);
        }
    }
}

/// Bytes at rest, and moved: 33 for 32 elements of the base.
#[test]
fn a_step_holds_and_gathers_8_bits() {
    let config = config(Some(Base::Int8));
    let ask = Ask {
        after: Some("precision"),
        ..Ask::default()
    };
    let planned = |param_dtype: Float, float8: Option<&str>| {
        let mut devices = devices("fsdp=2,tp=2");
        devices.forward.param_dtype = param_dtype;
        devices.forward.float8 = float8.map(|text| text.parse().expect("a scaling"));
        let dry = Mesh::dry::<Llama>(&devices).expect("a mesh");
        let model = dry
            .parallelize(config.init(dry.device()))
            .expect("a model that fits");
        let plan = predict::steps(&dry, model, |_| Ok(rows()), [1, 1], &ask);
        plan.expect("a plan").steady
    };
    let plan = planned(Float::F32, None);

    let mesh = mesh("fsdp=2,tp=2");
    let model: Llama = mesh
        .parallelize(config.init(mesh.device()))
        .expect("a model that fits");
    let mut optim = optimizer();
    let (_, _model) = train_by(&mut optim, &mesh, model, 2);
    let layers = Layers::of::<Llama>(&config);
    let all: Vec<_> = layers.iter().collect();
    let packed = |inputs: usize, outputs: usize| inputs * outputs / BLOCK[0] * BLOCK[1];
    let base: usize = all
        .iter()
        .map(|(_, it)| packed(it.inputs, it.outputs))
        .sum();
    let factors = all.iter().map(|(name, it)| {
        let (a, b) = (it.inputs * RANK, RANK * it.outputs);
        match name {
            _ if name.ends_with("lm_head") => 0,
            // Over tp a layer is split by its outputs or, where it writes to the residual, by its inputs.
            _ if name.ends_with("o_proj") || name.ends_with("down_proj") => a / 4 + b / 2,
            _ => a / 2 + b / 4,
        }
    });
    let factors: usize = factors.sum();
    let norms = (2 * config.num_layers + 1) * config.dim;
    let resting = base / 4 + 4 * (config.vocab * config.dim / 4 + norms / 2 + 3 * factors);
    for (rank, plan) in mesh.report().ranks.iter().zip(&plan.memory) {
        assert_eq!(rank.predicted_peak_bytes, rank.peak_bytes);
        assert_eq!(plan.end_bytes, rank.resident_bytes);
        assert_eq!(rank.resident_bytes as usize, resting);
    }

    // What a rank receives of each matrix: the bytes of the other rank of fsdp, in the forward and in the backward, but
    // for the layers whose input comes from nothing that is trained, and the output, whose backward comes at once.
    let collectives = plan.json["collectives"].as_array().expect("a list");
    let gathers = collectives.iter().filter(|it| it["kind"] == "all_gather");
    let last = |it: &&serde_json::Value| {
        it["shape"]
            .as_array()
            .and_then(|shape| shape.last())
            .cloned()
    };
    let of_bytes = gathers.filter(|it| last(it) == Some(BLOCK[1].into()));
    let received: u64 = of_bytes
        .map(|it| it["bytes"].as_u64().expect("bytes"))
        .sum();
    let once = all.iter().filter(|(name, _)| {
        let of_input = ["q_proj", "k_proj", "v_proj"]
            .iter()
            .any(|end| name.ends_with(end));
        (of_input && name.contains("layers.0.")) || name.ends_with("lm_head")
    });
    let once: usize = once.map(|(_, it)| packed(it.inputs, it.outputs)).sum();
    assert_eq!(received as usize, (2 * base - once) / 4, "{}", plan.text);
    // In each visit its values are made again.
    let num_unpacks = 2 * all.len() - 4;
    let unpacked = plan.after.matches("int8_unpack").count();
    assert_eq!(unpacked, num_unpacks, "{}", plan.after);
    // In the type that is computed with, and nothing is cast to that.
    let plan = planned(Float::BF16, None);
    let made = plan
        .after
        .lines()
        .filter(|line| line.contains("int8_unpack"));
    let made: Vec<&str> = made.collect();
    assert_eq!(made.len(), num_unpacks);
    assert!(
        made.iter().all(|line| line.contains("bf16")),
        "{}",
        plan.after
    );
    // Products in 8 bits have scales of their own.
    let plan = planned(Float::BF16, Some("tensorwise"));
    assert!(plan.text.contains("rests in 8 bits"), "{}", plan.text);
}
