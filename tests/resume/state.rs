//! What is saved of a module is all that it holds, at any step and by any way, and what is loaded is what it holds
//! afterwards.

use std::collections::BTreeMap;

use burn::module::ModuleVisitor;
use burn_dist::checkpoint::hf::{self, Export, Folder, Names};

use super::prelude::*;
use super::run::*;
use super::zoo::*;

/// The values of a module, by their paths.
type Held = BTreeMap<String, TensorData>;

/// Every value that a module holds, by its path.
fn held(module: &impl Module) -> Held {
    struct Values {
        path: Vec<String>,
        held: Held,
    }
    impl Values {
        fn take(&mut self, data: TensorData) {
            let path = self.path.join(".");
            assert!(self.held.insert(path, data).is_none(), "a path twice");
        }
    }
    impl ModuleVisitor for Values {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.to_string());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.take(param.val().into_data());
        }
        fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
            self.take(param.val().into_data());
        }
        fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
            self.take(param.val().into_data());
        }
    }
    let mut values = Values {
        path: Vec::new(),
        held: Held::new(),
    };
    module.visit(&mut values);
    values.held
}

/// Returns which values differ.
fn differing(found: &Held, expected: &Held) -> Vec<String> {
    assert!(found.keys().eq(expected.keys()) && expected.len() == 10);
    let differs = |path: &&String| found[*path] != expected[*path];
    found.keys().filter(differs).cloned().collect()
}

/// Steps after which integers and booleans differ too.
fn trained(mut model: Zoo, steps: i64) -> Zoo {
    let device = model.rows.weight.device();
    let mut optimizer = AdamConfig::new().init();
    for step in 0..steps {
        (model, _) = draw(model, &mut optimizer, &device);
        model.counts = model.counts.map(|counts| counts + step + 1);
        model.mask = model.mask.map(Tensor::bool_not);
    }
    model
}

/// A way to save a module, and to load it into another.
struct Way {
    name: &'static str,
    save: fn(&Zoo, &Path, &Device),
    load: fn(Zoo, &Path, &Device) -> Zoo,
}

const NAMES: &str = r#"
"columns.weight" = "columns.weight"
"columns.bias" = "columns.bias"
"norm.gamma" = "norm.gamma"
"norm.beta" = "norm.beta"
"norm.running_mean" = "norm.running_mean"
"norm.running_var" = "norm.running_var"
"rows.weight" = "rows.weight"
"rows.bias" = "rows.bias"
"counts" = "counts"
"mask" = "mask"
"#;

fn names() -> Names {
    Names::parse(NAMES, &[]).expect("names")
}

fn at(root: &Path, device: &Device) -> Checkpointer {
    Checkpointer::at(root, device).expect("a directory")
}

const WAYS: [Way; 2] = [
    Way {
        name: "State::module",
        save: |model, root, device| {
            let state = State::new().module("model", model);
            at(root, device).save(1, state).expect("saved");
        },
        load: |model, root, device| {
            let saved = at(root, device).open(1).expect("a checkpoint");
            saved.module("model", model).expect("the model")
        },
    },
    Way {
        name: "hf",
        save: |model, root, device| {
            hf::save(model, &names(), root, &Export::default(), device).expect("saved");
        },
        load: |model, root, device| {
            let folder = Folder::open(root).expect("a model");
            hf::load(model, &folder, &names(), device).expect("the model")
        },
    },
];

#[test]
fn every_value_of_a_record_is_saved_and_loaded_at_any_step() {
    for axes in ["", "fsdp=2"] {
        for way in WAYS {
            for steps in 1..4 {
                let case = format!("{} on `{axes}` after {steps} steps", way.name);
                let root = directory();
                let (mesh, model) = zoo(axes);
                let device = mesh.device().autodiff();
                let model = trained(model, steps);
                // Nothing but the save has asked the model for what it holds.
                (way.save)(&model, root.path(), &device);
                let expected = held(&model);
                let (mesh, fresh) = zoo(axes);
                let there = mesh.device().autodiff();
                let fresh = (way.load)(fresh, root.path(), &there);
                let none: [&str; 0] = [];
                assert_eq!(differing(&held(&fresh), &expected), none, "{case}, new");
                let back = (way.load)(trained(fresh, 2), root.path(), &there);
                assert_eq!(differing(&held(&back), &expected), none, "{case}, back");
                let again = held(&trained(back, 1));
                let changed = differing(&again, &expected);
                assert!(changed.len() >= 6, "{case}, trained on: {changed:?}");
            }
        }
    }
}

#[test]
fn an_average_follows_every_value_of_a_record() {
    for axes in ["", "fsdp=2"] {
        let root = directory();
        let (mesh, model) = zoo(axes);
        let device = mesh.device().autodiff();
        let mut ema = Ema::new(&model, 0.0);
        let model = trained(model, 2);
        ema.update(&model);
        let checkpoints = || Checkpointer::at(root.path(), &device).unwrap();
        let state = State::new().module("average", ema.model());
        checkpoints().save(1, state).unwrap();
        // Of nothing but the last update, it is the model.
        let expected = held(&model.valid());
        let none: [&str; 0] = [];
        let average = held(ema.model());
        assert_eq!(differing(&average, &expected), none, "{axes}");
        let saved = checkpoints().open(1).unwrap();
        let loaded = saved.module("average", model.valid()).unwrap();
        let loaded = held(&loaded);
        assert_eq!(differing(&loaded, &expected), none, "{axes}, loaded");
    }
}
