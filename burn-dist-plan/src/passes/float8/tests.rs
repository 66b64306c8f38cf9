//! Layers in float8 in the toy language.

use crate::explain::Explanation;
use crate::ir::{Float8Op, Float8Store, Ways};
use crate::ir::{Pipeline, Stage, Window};
use crate::layout::Policy;
use crate::memory::MemoryClass;
use crate::mesh::DType;
use crate::policy::{ActivationCheckpoint, Float, Float8, Precision, Scaling};
use crate::tests::MESHES;
use crate::toy::{Builder, Kind, Toy, options, planned, whole};
use crate::{Facts, PlanOptions, ScheduleKind, plan, text_after};
use std::sync::Arc;

/// Three layers in two units and their backward, with an update: `up`, `down`, and a head.
fn step(mesh: &str, sizes: [usize; 3]) -> Builder {
    step_of(mesh, 12, sizes)
}

fn step_of(mesh: &str, rows: usize, sizes: [usize; 3]) -> Builder {
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
    let x = b.data(&[rows, width]);
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

const BYTES: Float8Store = Float8Store {
    dtype: DType::U8,
    turns: false,
};
const GRID: Float8Store = Float8Store {
    dtype: DType::F32,
    ..BYTES
};
/// As on a device whose products add up along rows.
const TURNED: Float8Store = Float8Store {
    turns: true,
    ..BYTES
};

/// What is computed on one device.
fn in_float8(b: &Builder) -> Window<Toy> {
    in_float8_as(b, BYTES)
}

/// As [`in_float8`], with a form of tensors in 8 bits.
fn in_float8_as(b: &Builder, store: Float8Store) -> Window<Toy> {
    let facts = Facts::new(&b.window);
    let visits = crate::facts::Visits::new(&b.window, &facts);
    let layers = super::layers::layers(&b.window, &facts, &b.mesh);
    super::rewrite::rewrite(&b.window, &[], &visits, &layers, store).window
}

#[test]
fn every_mesh_gives_what_one_device_gives() {
    // Of the last, blocks are cut by some meshes and not by others.
    let cases = [
        ("tensorwise", 12, [16, 32, 16]),
        ("tensorwise,gather=off", 12, [16, 32, 16]),
        ("rowwise", 12, [16, 32, 16]),
        ("blockwise128", 12, [16, 32, 16]),
        ("blockwise128", 12, [144, 272, 16]),
        ("blockwise128", 256, [128, 256, 16]),
        ("blockwise128,gather=off", 12, [128, 384, 16]),
    ];
    for mesh in MESHES {
        for (recipe, rows, sizes) in cases {
            let is_large = sizes[0] > 100;
            let checkpoints = [ActivationCheckpoint::Full, ActivationCheckpoint::None];
            for checkpoint in checkpoints.into_iter().take(if is_large { 1 } else { 2 }) {
                let float8: Float8 = recipe.parse().expect("a recipe");
                let b = step_of(mesh, rows, sizes).under(Policy {
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

/// What a device wants by rows and by columns changes neither values nor what travels.
#[test]
fn by_rows_and_by_columns_are_the_same_values() {
    for mesh in MESHES {
        for recipe in ["tensorwise", "rowwise", "blockwise128,gather=off"] {
            for checkpoint in [ActivationCheckpoint::None, ActivationCheckpoint::Full] {
                let b = step_of(mesh, 12, [144, 272, 16]).under(Policy {
                    checkpoint,
                    ..policy(recipe.parse().expect("a recipe"))
                });
                let [by_rows, both] = [BYTES, TURNED].map(|float8_store| {
                    let options = PlanOptions {
                        float8_store,
                        ..options(&b.mesh)
                    };
                    plan(&b.window, &b.mesh, &options).expect("a plan")
                });
                let found = planned(&b.window, &both, &b.mesh);
                for (value, expected) in whole(&in_float8(&b)) {
                    assert_eq!(found[&value], expected, "{value}: {recipe} on `{mesh}`");
                }
                let [by_rows, both] = [by_rows, both].map(|plan| {
                    let mut explanation = Explanation::new(b.mesh.to_string());
                    explanation.add(&plan);
                    format!("{:?}", explanation.totals)
                });
                assert_eq!(both, by_rows, "{recipe} on `{mesh}`");
            }
        }
    }
}

/// How often tensors are cast by rows, by columns, and both at once.
fn casts(b: &Builder, store: Float8Store) -> [usize; 3] {
    let window = in_float8_as(b, store);
    let count = |wanted: Ways| {
        let ops = window.ops.iter();
        let is_wanted = |op: &&Toy| matches!(op.kind, Kind::Float8(Float8Op::Quantize { ways, .. }) if ways == wanted);
        ops.filter(is_wanted).count()
    };
    [Ways::AsIs, Ways::Turned, Ways::Both].map(count)
}

#[test]
fn a_cast_writes_what_its_products_want() {
    for (recipe, by_rows, wanted) in [
        // Both weights are gathered by rows. Inputs and gradients of results are wanted both ways.
        ("tensorwise", [6, 0, 0], [2, 0, 4]),
        // Forward and backward of a weight are two visits of its unit.
        ("tensorwise,gather=off", [8, 0, 0], [2, 2, 4]),
        // Every operand of the six products is cast for it alone.
        ("rowwise", [12, 0, 0], [6, 6, 0]),
        ("blockwise128,gather=off", [12, 0, 0], [6, 6, 0]),
    ] {
        let b = step("fsdp=2", [16, 32, 16]).under(policy(recipe.parse().expect("a recipe")));
        assert_eq!(casts(&b, BYTES), by_rows, "{recipe}");
        assert_eq!(casts(&b, TURNED), wanted, "{recipe}");
    }
}

#[test]
fn scales_of_a_rank_take_no_communication() {
    for mesh in MESHES {
        for scaling in ["tensorwise", "rowwise", "blockwise128"] {
            let recipe = format!("{scaling},scope=rank").parse().expect("a recipe");
            let b = step(mesh, [16, 32, 16]).under(policy(recipe));
            let plan = plan(&b.window, &b.mesh, &options(&b.mesh)).expect("a plan");
            // In the field a product has no scales.
            let found = planned(&b.window, &plan, &b.mesh);
            for (value, expected) in whole(&b.window) {
                assert_eq!(found[&value], expected, "{value}: {scaling} on `{mesh}`");
            }
            let text = text_after(&b.window, &b.mesh, &options(&b.mesh), "float8").expect("a pass");
            assert_eq!(text.matches("f8_linear").count(), 6, "{text}");
            assert!(!text.contains("f8_amax"), "{text}");
            let without = explained(&step(mesh, [16, 32, 16]));
            let (found, expected) = (explained(&b).totals, without.totals);
            assert_eq!(
                format!("{found:?}"),
                format!("{expected:?}"),
                "{scaling} on `{mesh}`"
            );
        }
    }
}

#[test]
fn golden_plans() {
    let small = [16, 32, 16];
    for (name, recipe, mesh, rows, sizes) in [
        ("tensorwise", "tensorwise", "fsdp=2", 12, small),
        ("rowwise", "rowwise", "fsdp=2", 12, small),
        (
            "blockwise128",
            "blockwise128",
            "fsdp=2,tp=2",
            512,
            [512, 1024, 16],
        ),
        (
            "blockwise128_cut",
            "blockwise128",
            "fsdp=3",
            12,
            [256, 384, 16],
        ),
    ] {
        let b = step_of(mesh, rows, sizes).under(Policy {
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

/// Blocks of weights that no shard cuts are quantised where they rest: their scales are gathered, and nothing is
/// reduced. Where shards cut them, the weight is gathered as without float8, and explain says so.
#[test]
fn blocks_are_gathered_as_bytes_where_shards_cut_none() {
    let bf16 = Precision::new(Float::BF16);
    let explained = |mesh: &str, float8: Option<&str>| {
        let policy = Policy {
            precision: bf16,
            float8: float8.map(|text| text.parse().expect("a recipe")),
            ..Policy::default()
        };
        explained(&step_of(mesh, 6, [256, 512, 16]).under(policy))
    };
    let bytes = |explanation: &Explanation, path: &str, shape: [usize; 2]| -> u64 {
        let moved = explanation.collectives.iter();
        let of = moved.filter(|c| c.kind == "all_gather" && c.path.as_deref() == Some(path));
        of.filter(|c| c.shape == shape).map(|c| c.bytes).sum()
    };
    let plain = explained("fsdp=2", None);
    let whole = explained("fsdp=2", Some("blockwise128"));
    for (path, shape, scales) in [
        ("block.up", [256, 512], [2, 4]),
        ("block.down", [512, 256], [4, 2]),
    ] {
        assert_eq!(2 * bytes(&whole, path, shape), bytes(&plain, path, shape));
        // Of 8 scales in f32, a rank gets the 4 of the other.
        assert_eq!(bytes(&whole, path, scales), 4 * 4);
    }
    assert!(whole.collectives.iter().all(|c| c.kind != "all_reduce"));
    assert!(!whole.to_string().contains("before the cast"));
    let plain = explained("fsdp=4", None);
    let cut = explained("fsdp=4", Some("blockwise128"));
    assert_eq!(
        bytes(&cut, "block.up", [256, 512]),
        bytes(&plain, "block.up", [256, 512])
    );
    assert_eq!(
        2 * bytes(&cut, "block.down", [512, 256]),
        bytes(&plain, "block.down", [512, 256])
    );
    let text = cut.to_string();
    let line = "float8 gathers block.up.weight before the cast: blocks of 128 straddle the shards of [{fsdp*}, -]";
    assert!(text.lines().any(|found| found == line), "{text}");
    let off = explained("fsdp=4", Some("blockwise128,gather=off"));
    assert!(!off.to_string().contains("before the cast"));
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
fn a_backend_without_bytes_has_values_of_float8_in_f32() {
    for scaling in [Scaling::Tensorwise, Scaling::Rowwise] {
        let b = step("fsdp=2", [16, 32, 16]).under(policy(Float8::new(scaling)));
        let [bytes, grid] = [BYTES, GRID].map(|float8_store| {
            let options = PlanOptions {
                float8_store,
                ..options(&b.mesh)
            };
            plan(&b.window, &b.mesh, &options).expect("a plan");
            format!("{:?}", in_float8_as(&b, float8_store).ops)
        });
        assert!(bytes.contains("U8") && !grid.contains("U8"));
        assert_eq!(
            bytes.replace("U8", "F32"),
            grid,
            "the same but for the type"
        );
    }
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

/// Blocks `x + exp(x up) down` one after the other, a unit each, and their backward, of each layer the gradient of its
/// weight first or last; along `pp` in stages.
fn blocks(mesh: &str, num: usize, weights_first: bool) -> Builder {
    let mut b = Builder::new(mesh);
    let pipeline = b.mesh.pipeline_axis().map(|axis| {
        let ranks = b.mesh.size(axis) as u32;
        Arc::new(Pipeline {
            axis,
            ranks,
            stages: ranks,
            schedule: ScheduleKind::OneFOneB.into(),
        })
    });
    let weights: Vec<[u32; 2]> = (0..num)
        .map(|index| {
            ["up", "down"].map(|name| {
                let (path, unit) = (format!("{index}.{name}.weight"), index.to_string());
                let mut spec = Builder::spec(&path, &[32, 32], Some(&unit));
                spec.stage = pipeline.as_ref().map(|pipeline| Stage {
                    index: (index * pipeline.stages as usize / num) as u32,
                    pipeline: Arc::clone(pipeline),
                });
                b.param(spec)
            })
        })
        .collect();
    let mut x = b.data(&[16, 32]);
    let mut saved = Vec::new();
    for [up, down] in &weights {
        let h = b.linear(x, *up);
        let e = b.exp(h);
        let y = b.linear(e, *down);
        saved.push((x, e));
        x = b.pair(Kind::Add, x, y);
    }
    b.read(x);
    let ones = b.ones_for(x);
    let mut g = b.pair(Kind::Mul, ones, x);
    let backward = |b: &mut Builder, x: u32, w: u32, g: u32| match weights_first {
        true => {
            let of_w = b.op(Kind::LinearW, &[x, g], &[32, 32]);
            (b.op(Kind::LinearX, &[w, g], &[16, 32]), of_w)
        }
        false => b.linear_backward(x, w, g),
    };
    for ([up, down], (x, e)) in weights.iter().zip(saved).rev() {
        let (ge, of_down) = backward(&mut b, e, *down, g);
        let gh = b.pair(Kind::Mul, ge, e);
        let (gx, of_up) = backward(&mut b, x, *up, gh);
        for (weight, gradient) in [(down, of_down), (up, of_up)] {
            let new = b.pair(Kind::Sub, *weight, gradient);
            b.survive(new);
        }
        g = b.pair(Kind::Add, g, gx);
    }
    b.survive(g);
    b
}

/// Scales that are made of all weights at once belong to none of them: which stretch of the program works on which unit
/// is what it is without float8.
#[test]
fn units_are_made_again_whatever_their_products_are_computed_in() {
    for mesh in ["", "fsdp=2", "fsdp=2,tp=2"] {
        let recomputed = |float8: Option<&str>| {
            let b = blocks(mesh, 4, false).under(Policy {
                checkpoint: ActivationCheckpoint::Full,
                float8: float8.map(|recipe| recipe.parse().expect("a recipe")),
                ..Policy::default()
            });
            let plan = plan(&b.window, &b.mesh, &options(&b.mesh)).expect("a plan");
            (plan.recomputed.visits, plan.recomputed.visits_seen)
        };
        let expected = recomputed(None);
        assert_eq!(
            expected,
            (3, 3),
            "the last one needs what it has made at once"
        );
        for recipe in [
            "tensorwise",
            "tensorwise,gather=off",
            "rowwise",
            "blockwise128",
        ] {
            assert_eq!(recomputed(Some(recipe)), expected, "{recipe} on `{mesh}`");
        }
    }
}

/// In low precision, products of the forward and of the backward each have casts of their operands; what they have in 8
/// bits they share, so that most of these casts are for nothing.
#[test]
fn no_cast_is_left_that_nothing_reads() {
    for recipe in [
        "tensorwise",
        "rowwise",
        "blockwise128",
        "tensorwise,scope=rank",
    ] {
        let b = blocks("", 2, false).under(Policy {
            precision: Precision::new(Float::BF16),
            ..policy(recipe.parse().expect("a recipe"))
        });
        let text = text_after(&b.window, &b.mesh, &options(&b.mesh), "float8").expect("a pass");
        let casts = |text: &str| {
            let lines = text.lines().filter(|line| line.contains("= cast("));
            let made = lines.filter_map(|line| Some(line.split_once(" = ")?.0.to_owned()));
            made.collect::<Vec<String>>()
        };
        let found = casts(&text);
        assert!(!found.is_empty(), "{recipe}");
        for value in found {
            let reads = [",", ")"].map(|end| text.matches(&format!("{value}{end}")).count());
            let survives = text.contains(&format!("store {value} "));
            assert!(
                reads.iter().sum::<usize>() > 0 || survives,
                "{recipe}: {value} in\n{text}"
            );
        }
    }
}

/// What a backward makes again on a stage is made when the backward comes to it: scales along columns, which stand
/// before the products of weights and are made of forward values alone, do not bring it forward.
#[test]
fn stages_make_again_what_a_backward_comes_to() {
    let activations = |float8: Option<&str>| {
        let b = blocks("pp=2", 8, true).under(Policy {
            checkpoint: ActivationCheckpoint::Full,
            float8: float8.map(|recipe| recipe.parse().expect("a recipe")),
            ..Policy::default()
        });
        let plan = plan(&b.window, &b.mesh, &options(&b.mesh)).expect("a plan");
        plan.memory[0].class_peaks[&MemoryClass::Activation]
    };
    // A block of the stage at a time, beside the borders; what is in 8 bits is there twice.
    let plain = activations(None);
    let found = activations(Some("rowwise"));
    assert!(
        found <= plain * 5 / 4,
        "{found} B, without float8 {plain} B"
    );
}
