//! A unit whose precision the backend does not have; what is computed is tested in the promises.

use std::sync::Arc;

use crate::mesh::DType;
use crate::toy::{self, Builder, Kind};
use crate::{Float, PlanOptions, Policy, Precision, plan, text_after};

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

/// Parameters that are computed with as they were recorded make an activation: in f32, whatever it is combined with.
#[test]
fn what_is_made_of_parameters_as_recorded_counts() {
    let mut b = Builder::new("");
    let w = b.param(Builder::spec("w", &[4, 4], Some("unit")));
    let [keys, values] = ["keys", "values"].map(|path| {
        let spec = Builder::spec(path, &[4, 4], Some("unit"));
        b.param(spec)
    });
    let x = b.data(&[4, 4]);
    let y = b.linear(x, w);
    let met = b.op(Kind::Meet, &[keys, values], &[4, 4]);
    let sum = b.pair(Kind::Add, y, met);
    let z = b.exp(sum);
    b.survive(z);
    let b = b.under(Policy {
        precision: Precision::new(Float::BF16),
        ..Policy::default()
    });
    let text = text_after(&b.window, &b.mesh, &toy::options(&b.mesh), "precision").expect("a pass");
    let is_sum = |line: &&str| line.contains(" = add(");
    let line = text.lines().find(is_sum).expect("a sum");
    assert!(line.contains("f32") && !line.contains("bf16"), "{text}");
}

/// A unit's output is cast where another unit uses it; the gradient of its weight is no output, and an activation is
/// none because a loss of its shape is read.
#[test]
fn gradients_are_no_outputs() {
    let mut b = Builder::new("");
    let w = b.param(Builder::spec("up.weight", &[4, 4], Some("up")));
    let v = b.param(Builder::spec("down.weight", &[4, 4], Some("down")));
    let x = b.data(&[4, 4]);
    let h = b.linear(x, w);
    let y = b.linear(h, v);
    let doubled = b.pair(Kind::Add, y, y);
    b.read(doubled);
    let ones = b.ones_for(y);
    let g = b.pair(Kind::Mul, ones, y);
    let (gh, gv) = b.linear_backward(h, v, g);
    let (_, gw) = b.linear_backward(x, w, gh);
    // While the first unit has its turn.
    let gv = b.pair(Kind::Mul, gv, gv);
    for (weight, gradient) in [(v, gv), (w, gw)] {
        let new = b.pair(Kind::Sub, weight, gradient);
        b.survive(new);
    }
    let b = b.under(Policy {
        precision: Precision::new(Float::BF16).output(Float::F16),
        ..Policy::default()
    });
    let text = text_after(&b.window, &b.mesh, &toy::options(&b.mesh), "precision").expect("a pass");
    insta::assert_snapshot!(text);
}

/// A parameter that rests in bf16 and is recorded as a cast to f32 is read as it rests by a unit that computes in bf16;
/// by one that computes in f32, as recorded.
#[test]
fn a_parameter_that_rests_in_few_bits_is_not_cast_there_and_back() {
    let text = |precision| {
        let mut b = Builder::new("");
        let w = b.param(Builder::spec("up.weight", &[4, 4], Some("up")));
        let wide = b.op(Kind::Cast, &[w], &[4, 4]);
        let x = b.data(&[4, 4]);
        let y = b.linear(x, wide);
        b.survive(y);
        b.window.inputs[0].dtype = DType::BF16;
        b.window.ops[0].inputs[0].dtype = DType::BF16;
        let b = b.under(Policy {
            precision,
            ..Policy::default()
        });
        text_after(&b.window, &b.mesh, &toy::options(&b.mesh), "precision").expect("a pass")
    };
    let low = text(Precision::new(Float::BF16));
    assert!(
        low.contains(" = linear(%4, %0)") && !low.contains("cast(%1)"),
        "{low}"
    );
    let whole = text(Precision::default());
    assert!(whole.contains(" = linear(%2, %1)"), "{whole}");
}
