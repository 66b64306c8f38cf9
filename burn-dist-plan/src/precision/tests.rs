//! A unit whose precision the backend does not have; what is computed is tested in the promises.

use crate::toy::{self, Builder};
use crate::{Float, PlanOptions, Precision, plan};

#[test]
fn a_type_that_the_backend_lacks_is_named() {
    let window = |precision| {
        let mut b = Builder::new("fsdp=2");
        let mut spec = Builder::spec("head.weight", &[4, 4], None);
        spec.precision = precision;
        let weight = b.param(spec);
        b.survive(weight);
        b
    };
    let plan = |window: Builder, precision| {
        let options = PlanOptions {
            precision,
            floats_missing: vec![Float::BF16],
            ranks: Vec::new(),
            ..toy::options(&window.mesh)
        };
        plan(&window.window, &window.mesh, &options)
    };
    let bf16 = Some(Precision::new(Float::BF16));
    for (of_unit, of_mesh) in [
        (bf16, None),
        (None, bf16),
        (Some(Precision::new(Float::F16).output(Float::BF16)), None),
    ] {
        let error = plan(window(of_unit), of_mesh).expect_err("no bf16");
        let text = error.to_string();
        assert!(
            text.starts_with("head.weight is to be computed in bf16") && text.contains("f32, f16"),
            "{text}"
        );
    }
    // The unit's own precision counts.
    let f16 = Some(Precision::new(Float::F16));
    assert!(plan(window(f16), bf16).is_ok());
}
