//! Layers in float8 in the toy language.

use crate::explain::Explanation;
use crate::policy::{Checkpoint, Float, Float8, Policy, Precision, Scaling};
use crate::tests::MESHES;
use crate::toy::{Builder, Kind, options, planned, whole};
use crate::window::Window;
use crate::{Facts, PlanOptions, plan, text_after};

/// Three layers in two units and their backward, with an update: `up`, `down`, and a head.
fn step(mesh: &str, sizes: [usize; 3]) -> Builder {
    let mut b = Builder::new(mesh);
    let [width, hidden, classes] = sizes;
    let mut spec = |name: &str, unit: &str, shape: [usize; 2], split: Option<usize>| {
        let mut spec = Builder::spec(&format!("{name}.weight"), &shape, Some(unit));
        if let (Some(dim), Ok(tp)) = (split, b.mesh.axis("tp")) {
            spec.layout.dims[dim].factors[0].axes = vec![tp];
        }
        b.param(spec)
    };
    let up = spec("block.up", "block", [width, hidden], Some(1));
    let down = spec("block.down", "block", [hidden, width], Some(0));
    let head = spec("head", "head", [width, classes], None);
    let x = b.data(&[12, width]);
    let h = b.linear(x, up);
    let a = b.exp(h);
    let y = b.linear(a, down);
    let z = b.linear(y, head);
    b.read(z);
    let ones = b.ones_for(z);
    let g = b.pair(Kind::Mul, ones, z);
    let (gy, g_head) = b.linear_backward(y, head, g);
    let (ga, g_down) = b.linear_backward(a, down, gy);
    let gh = b.pair(Kind::Mul, ga, h);
    let (gx, g_up) = b.linear_backward(x, up, gh);
    b.survive(gx);
    for (weight, gradient) in [(up, g_up), (down, g_down), (head, g_head)] {
        let new = b.pair(Kind::Sub, weight, gradient);
        b.survive(new);
    }
    b
}

fn policy(float8: Float8) -> Policy {
    Policy {
        float8: Some(float8),
        ..Policy::default()
    }
}

/// What is computed on one device.
fn in_float8(b: &Builder) -> Window<crate::toy::Toy> {
    let facts = Facts::new(&b.window);
    let visits = crate::units::Visits::new(&b.window, &facts);
    let layers = super::layers(&b.window, &facts);
    super::rewrite(&b.window, &[], &visits, &layers).window
}

#[test]
fn every_mesh_gives_what_one_device_gives() {
    let recipes = ["tensorwise", "tensorwise,gather=off", "rowwise"];
    for mesh in MESHES {
        for recipe in recipes {
            for checkpoint in [Checkpoint::None, Checkpoint::Full] {
                let float8: Float8 = recipe.parse().expect("a recipe");
                let b = step(mesh, [16, 32, 16]).under(Policy {
                    checkpoint,
                    ..policy(float8)
                });
                let plan = plan(&b.window, &b.mesh, &options(&b.mesh)).expect("a plan");
                let expected = whole(&in_float8(&b));
                assert_ne!(expected, whole(&b.window), "float8 changes values");
                let found = planned(&b.window, &plan, &b.mesh);
                assert_eq!(found.len(), expected.len());
                for (value, expected) in expected {
                    assert_eq!(found[&value], expected, "{value}: {recipe} on `{mesh}`");
                }
            }
        }
    }
}

#[test]
fn golden_plans() {
    for (name, recipe) in [("tensorwise", "tensorwise"), ("rowwise", "rowwise")] {
        let b = step("fsdp=2", [16, 32, 16]).under(Policy {
            precision: Precision::new(Float::BF16),
            ..policy(recipe.parse().expect("a recipe"))
        });
        for pass in ["float8", "schedule"] {
            let after = text_after(&b.window, &b.mesh, &options(&b.mesh), pass).expect("a pass");
            insta::assert_snapshot!(format!("{name}_after_{pass}"), after);
        }
    }
}

fn explained(b: &Builder) -> Explanation {
    let plan = plan(&b.window, &b.mesh, &options(&b.mesh)).expect("a plan");
    let mut explanation = Explanation::new(b.mesh.to_string());
    explanation.add(&plan);
    explanation
}

/// The weights' maxima travel together, and weights as bytes.
#[test]
fn weights_are_gathered_as_bytes_after_one_reduction() {
    let gathered = |policy: Policy| {
        let explanation = explained(&step("fsdp=2", [16, 32, 16]).under(policy));
        let bytes = |path: &str| -> u64 {
            let moved = explanation.collectives.iter();
            let of = moved.filter(|c| c.kind == "all_gather" && c.path.as_deref() == Some(path));
            of.map(|c| c.bytes).sum()
        };
        let maxima = explanation.collectives.iter().filter(|c| c.shape == [2]);
        let maxima: u64 = maxima.map(|c| c.count).sum();
        (
            bytes("block.up") + bytes("block.down"),
            bytes("head"),
            maxima,
        )
    };
    let low = Precision::new(Float::BF16);
    let bf16 = gathered(Policy {
        precision: low,
        ..Policy::default()
    });
    let float8 = |recipe: &str| {
        gathered(Policy {
            precision: low,
            ..policy(recipe.parse().expect("a recipe"))
        })
    };
    assert!(bf16.0 > 0 && bf16.2 == 0);
    assert_eq!(float8("tensorwise"), (bf16.0 / 2, bf16.1, 1));
    assert_eq!(float8("tensorwise,gather=off"), (bf16.0, bf16.1, 0));
    assert_eq!(float8("rowwise"), (bf16.0, bf16.1, 0));
}

#[test]
fn a_backend_without_bytes_is_told() {
    let plan = |policy| {
        let b = step("fsdp=2", [16, 32, 16]).under(policy);
        let options = PlanOptions {
            bytes_missing: true,
            ..options(&b.mesh)
        };
        plan(&b.window, &b.mesh, &options).map(|_| ())
    };
    let error = plan(policy(Float8::new(Scaling::Tensorwise))).expect_err("no bytes");
    assert!(
        error
            .to_string()
            .starts_with("block.up.weight is to be computed in float8"),
        "{error}"
    );
    assert!(plan(Policy::default()).is_ok());
    assert!(plan(policy(Float8::new(Scaling::Tensorwise).skip("block"))).is_ok());
}

/// What is left as it is, and why.
#[test]
fn skipped_layers_are_named() {
    let lines = |sizes: [usize; 3], float8: Float8| {
        let text = explained(&step("", sizes).under(policy(float8))).to_string();
        let lines = text.lines().filter(|line| line.starts_with("float8"));
        lines.map(String::from).collect::<Vec<_>>()
    };
    let tensorwise = || Float8::new(Scaling::Tensorwise);
    assert_eq!(
        lines([16, 32, 16], tensorwise()),
        [
            "float8: 2 of 3 linear layer(s)",
            "float8 skips head.weight: output head"
        ]
    );
    assert_eq!(
        lines([16, 24, 16], tensorwise()),
        [
            "float8: 0 of 3 linear layer(s)",
            "float8 skips block.up.weight: sizes [16, 24] are not multiples of 16",
            "float8 skips block.down.weight: sizes [24, 16] are not multiples of 16",
            "float8 skips head.weight: output head"
        ]
    );
    for pattern in ["block.down", "**.down", "block.down.weight", "*.d*"] {
        assert_eq!(
            lines([16, 32, 16], tensorwise().skip(pattern))[1],
            format!("float8 skips block.down.weight: skip `{pattern}`")
        );
    }
    assert_eq!(
        lines([16, 32, 16], tensorwise().skip("block")),
        [
            "float8: 0 of 3 linear layer(s)",
            "float8 skips block.up.weight, block.down.weight: skip `block`",
            "float8 skips head.weight: output head"
        ]
    );
}

/// A product with a table in the place of a head: the layer before it is none.
#[test]
fn a_head_that_is_tied_to_an_embedding_is_no_layer() {
    let mut b = Builder::new("");
    let table = b.param(Builder::spec("embedding.weight", &[48, 16], None));
    let down = b.param(Builder::spec("down.weight", &[16, 16], None));
    let x = b.data(&[4, 16]);
    let y = b.linear(x, down);
    let transposed = b.transpose(table);
    let logits = b.matmul(y, transposed);
    b.read(logits);
    let b = b.under(policy(Float8::new(Scaling::Tensorwise)));
    let layers = explained(&b).float8;
    assert_eq!(layers.len(), 1);
    assert_eq!(
        (layers[0].path.as_str(), &layers[0].skipped),
        ("down.weight", &None)
    );
}

/// A window that has the backward alone skips the same layers.
#[test]
fn a_backward_of_its_own_skips_the_head_too() {
    let mut b = Builder::new("");
    let down = b.param(Builder::spec("down.weight", &[16, 16], Some("down")));
    let head = b.param(Builder::spec("head.weight", &[16, 16], Some("head")));
    let (x, y) = (b.data(&[4, 16]), b.data(&[4, 16]));
    let g = b.data(&[4, 16]);
    let ones = b.ones_for(g);
    let g = b.pair(Kind::Mul, ones, g);
    let (gy, g_head) = b.linear_backward(y, head, g);
    let (_, g_down) = b.linear_backward(x, down, gy);
    for (weight, gradient) in [(down, g_down), (head, g_head)] {
        let new = b.pair(Kind::Sub, weight, gradient);
        b.survive(new);
    }
    let b = b.under(policy(Float8::new(Scaling::Tensorwise)));
    let skipped = explained(&b).float8;
    let skipped: Vec<_> = skipped
        .iter()
        .map(|layer| (layer.path.as_str(), layer.skipped.as_deref()))
        .collect();
    assert_eq!(
        skipped,
        [("head.weight", Some("output head")), ("down.weight", None)]
    );
}
