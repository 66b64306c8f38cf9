//! A unit whose precision the backend does not have; what is computed is tested in `tests/precision.rs`.

use std::sync::Arc;

use burn_backend::DType;
use burn_std::BoolStore;

use crate::layout::Layout;
use crate::mesh::{MeshShape, Topology};
use crate::parallel::{ParamRole, ParamSpec, Style};
use crate::plan::window::{Input, InputState, Window};
use crate::plan::{Checkpoint, Float, PlanOptions, Precision, Sharding, plan};

#[test]
fn a_type_that_the_backend_lacks_is_named() {
    let layout = Layout::replicated(&[4, 4]);
    let window = |precision| Window {
        inputs: vec![Input {
            value: 0,
            shape: vec![4, 4],
            dtype: DType::F32,
            state: InputState::Placed {
                layout: Arc::new(layout.clone()),
                tag: Some(Arc::new(ParamSpec {
                    path: "head.weight".into(),
                    style: Style::Replicate,
                    role: ParamRole::Weight,
                    layout: layout.clone(),
                    input: None,
                    output: None,
                    unit: None,
                    checkpoint: false,
                    precision,
                    strategy: None,
                    at_rest: true,
                })),
                origin: None,
            },
        }],
        dies: vec![false],
        ..Window::default()
    };
    let options = |precision| PlanOptions {
        defer: true,
        split_batches: true,
        fuzz: None,
        scatter_bytes_min: 0,
        sharding: Sharding::default(),
        checkpoint: Checkpoint::None,
        precision,
        floats_missing: vec![Float::BF16],
        everyone_reads: false,
        topology: Topology::single(2),
        links: Default::default(),
        hierarchy_bytes_min: None,
        ranks: Vec::new(),
        bool_store: BoolStore::Native,
        offload: Default::default(),
        storage: Default::default(),
    };
    let mesh = MeshShape::new([("fsdp", 2)]).expect("a mesh");
    let bf16 = Some(Precision::new(Float::BF16));
    for (of_unit, of_mesh) in [
        (bf16, None),
        (None, bf16),
        (Some(Precision::new(Float::F16).output(Float::BF16)), None),
    ] {
        let error = plan(&window(of_unit), &mesh, &options(of_mesh)).expect_err("no bf16");
        let text = error.to_string();
        assert!(
            text.starts_with("head.weight is to be computed in bf16") && text.contains("f32, f16"),
            "{text}"
        );
    }
    // The unit's own precision counts.
    let f16 = Some(Precision::new(Float::F16));
    assert!(plan(&window(f16), &mesh, &options(bf16)).is_ok());
}
