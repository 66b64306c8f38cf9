//! A unit whose precision the backend does not have; what is computed is tested in the promises.

use std::sync::Arc;

use crate::toy::{self, Builder};
use crate::{Float, PlanOptions, Policy, Precision, plan};

#[test]
fn a_type_that_the_backend_lacks_is_named() {
    let window = |precision| {
        let mut b = Builder::new("fsdp=2");
        let mut spec = Builder::spec("head.weight", &[4, 4], None);
        spec.policy = Arc::new(Policy {
            precision,
            ..Policy::default()
        });
        let weight = b.param(spec);
        b.survive(weight);
        b
    };
    let plan = |window: Builder| {
        let options = PlanOptions {
            floats_missing: vec![Float::BF16],
            ranks: Vec::new(),
            ..toy::options(&window.mesh)
        };
        plan(&window.window, &window.mesh, &options)
    };
    let f16 = Precision::new(Float::F16);
    for precision in [Precision::new(Float::BF16), f16.output(Float::BF16)] {
        let error = plan(window(precision)).expect_err("no bf16");
        let text = error.to_string();
        assert!(
            text.starts_with("head.weight is to be computed in bf16") && text.contains("f32, f16"),
            "{text}"
        );
    }
    assert!(plan(window(f16)).is_ok());
}
