//! What is saved of a module is all that its record holds, at any step and by any way, and what is loaded is what it
//! holds afterwards.

use std::collections::BTreeMap;

use burn::module::{ModuleMapper, ModuleVisitor};
use burn::record::{FullPrecisionSettings, Record};
use burn_dist::checkpoint::hf::{self, Export, Folder, Names};
use serde_json::Value;

use super::prelude::*;
use super::run::*;
use super::zoo::*;

/// Every value that the record of a module holds, by its path. Ids of parameters are those of the model that is loaded
/// into.
fn held<B: Backend>(module: &impl Module<B>) -> BTreeMap<String, Value> {
    let record = module.clone().into_record();
    let record = serde_json::to_value(record.into_item::<FullPrecisionSettings>()).unwrap();
    let mut held = BTreeMap::new();
    values_in(record, String::new(), &mut held);
    held
}

fn values_in(record: Value, path: String, held: &mut BTreeMap<String, Value>) {
    match record {
        Value::Object(map) if !map.contains_key("bytes") => {
            let is_param = map.contains_key("param");
            let each = map.into_iter().filter(|(key, _)| !is_param || key != "id");
            each.for_each(|(key, value)| values_in(value, format!("{path}.{key}"), held));
        }
        Value::Null => {}
        value => assert!(held.insert(path, value).is_none(), "a path twice"),
    }
}

/// Returns which values differ.
fn differing(found: &BTreeMap<String, Value>, expected: &BTreeMap<String, Value>) -> Vec<String> {
    assert!(found.keys().eq(expected.keys()) && expected.len() == 10);
    let differs = |path: &&String| found[*path] != expected[*path];
    found.keys().filter(differs).cloned().collect()
}

/// Steps after which integers and booleans differ too.
fn trained(mut model: Zoo<B>, steps: i64) -> Zoo<B> {
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
    save: fn(&Zoo<B>, &Path, &MeshDevice),
    load: fn(Zoo<B>, &Path, &MeshDevice) -> Zoo<B>,
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

fn at(root: &Path, device: &MeshDevice) -> Checkpointer<B> {
    Checkpointer::at(root, device).expect("a directory")
}

const WAYS: [Way; 4] = [
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
        name: "State::record",
        save: |model, root, device| {
            let state = State::new().record("model", model.clone().into_record());
            at(root, device).save(1, state).expect("saved");
        },
        load: |model, root, device| {
            // Burn's `load_record` leaves an update that is kept apart, which replaces what is loaded.
            drop(model.clone().into_record());
            let saved = at(root, device).open(1).expect("a checkpoint");
            model.load_record(saved.record("model").expect("its record"))
        },
    },
    Way {
        name: "DistRecorder",
        save: |model, root, _| {
            let saved = model.clone().save_file(root.join("model-1"), &DistRecorder);
            saved.expect("saved");
        },
        load: |model, root, device| {
            drop(model.clone().into_record());
            let loaded = model.load_file(root.join("model-1"), &DistRecorder, device);
            loaded.expect("the model")
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
                let device = mesh.device();
                let model = trained(model, steps);
                // Nothing but the save has asked the model for what it holds.
                (way.save)(&model, root.path(), &device);
                let expected = held::<B>(&model);
                let (mesh, fresh) = zoo(axes);
                let there = mesh.device();
                let fresh = (way.load)(fresh, root.path(), &there);
                let none: [&str; 0] = [];
                assert_eq!(
                    differing(&held::<B>(&fresh), &expected),
                    none,
                    "{case}, new"
                );
                let back = (way.load)(trained(fresh, 2), root.path(), &there);
                assert_eq!(
                    differing(&held::<B>(&back), &expected),
                    none,
                    "{case}, back"
                );
                let again = held::<B>(&trained(back, 1));
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
        let device = mesh.device();
        let mut ema = Ema::new(&model, 0.0);
        let model = trained(model, 2);
        ema.update(&model);
        let checkpoints = || Checkpointer::<Dist<Flex>>::at(root.path(), &device).unwrap();
        let state = State::new().module("average", ema.model());
        checkpoints().save(1, state).unwrap();
        // Of nothing but the last update, it is the model.
        let expected = held::<Dist<Flex>>(&model.valid());
        let none: [&str; 0] = [];
        let average = held::<Dist<Flex>>(ema.model());
        assert_eq!(differing(&average, &expected), none, "{axes}");
        let saved = checkpoints().open(1).unwrap();
        let loaded = saved.module("average", model.valid()).unwrap();
        let loaded = held::<Dist<Flex>>(&loaded);
        assert_eq!(differing(&loaded, &expected), none, "{axes}, loaded");
    }
}

/// A hand-written module with state that is in its record alone.
#[derive(Clone, Debug)]
struct Counted {
    linear: Linear<B>,
    batches: usize,
}

impl Module<B> for Counted {
    type Record = (<Linear<B> as Module<B>>::Record, usize);

    fn visit<V: ModuleVisitor<B>>(&self, visitor: &mut V) {
        self.linear.visit(visitor);
    }

    fn map<M: ModuleMapper<B>>(self, mapper: &mut M) -> Self {
        Self {
            linear: self.linear.map(mapper),
            batches: self.batches,
        }
    }

    fn collect_devices(&self, devices: Vec<MeshDevice>) -> Vec<MeshDevice> {
        Module::<B>::collect_devices(&self.linear, devices)
    }

    fn fork(self, device: &MeshDevice) -> Self {
        self.to_device(device)
    }

    fn to_device(self, device: &MeshDevice) -> Self {
        Self {
            linear: self.linear.to_device(device),
            batches: self.batches,
        }
    }

    fn load_record(self, (linear, batches): Self::Record) -> Self {
        Self {
            linear: self.linear.load_record(linear),
            batches,
        }
    }

    fn into_record(self) -> Self::Record {
        (self.linear.into_record(), self.batches)
    }
}

#[test]
fn what_only_a_record_holds_is_not_left_out_in_silence() {
    let root = directory();
    let mesh = builder("fsdp=2").build().unwrap();
    let device = mesh.device();
    let counted = |batches| Counted {
        linear: LinearConfig::new(4, 2).init(&device),
        batches,
    };
    let refused = |state| at(root.path(), &device).save(1, state).unwrap_err();
    let error = refused(State::new().module("model", &counted(3))).to_string();
    assert_eq!(
        error,
        "`model.1` cannot be saved: the module's record has it, and `visit` does not show it: save the record of the \
         module, with `State::record`"
    );
    // The way out.
    let state = State::new().record("model", counted(3).into_record());
    at(root.path(), &device).save(1, state).unwrap();
    let saved = at(root.path(), &device).open(1).unwrap();
    let loaded = counted(0).load_record(saved.record("model").unwrap());
    assert_eq!(loaded.batches, 3);
}
