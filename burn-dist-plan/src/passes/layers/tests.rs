//! One model in several forms: its layers as layers, and as lines of Burn record them.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::form::laws::check;
use crate::ir::{Mark, Role, TensorIndex};
use crate::layout::Policy;
use crate::plan::Plan;
use crate::policy::{AsyncTp, Float, Float8, Precision};
use crate::tests::MESHES;
use crate::toy::{Builder, Kind, Toy, options, planned, whole};
use crate::{LayoutText, plan, text_after};

/// How a layer is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// A layer.
    Layer,
    /// A product with a weight that has a dim of size one for the batch.
    Batched,
    /// A product of a matrix, of which the batch is a part of the rows.
    Merged,
}

const ALL: [Form; 3] = [Form::Layer, Form::Batched, Form::Merged];

/// `[batch, rows]` of the data.
type Sizes = [usize; 2];

struct Layered {
    b: Builder,
    form: Form,
    /// For each layer what its backward needs: `x`, the weight, and both as the product had them.
    saved: Vec<[TensorIndex; 4]>,
}

impl Layered {
    fn forward(&mut self, x: TensorIndex, w: TensorIndex) -> TensorIndex {
        let b = &mut self.b;
        let (of_x, of_w) = (b.shape(x), b.shape(w));
        let [batch, rows, width] = [of_x[0], of_x[1], of_x[2]];
        let (y, left, right) = match self.form {
            Form::Layer => (b.linear(x, w), x, w),
            Form::Batched => {
                let right = b.reshape(w, &[1, of_w[0], of_w[1]]);
                (b.matmul(x, right), x, right)
            }
            Form::Merged => {
                let left = b.reshape(x, &[batch * rows, width]);
                let y = b.matmul(left, w);
                (b.reshape(y, &[batch, rows, of_w[1]]), left, w)
            }
        };
        self.saved.push([x, w, left, right]);
        y
    }

    /// The gradients of `x` and of the weight of the last layer that has none yet.
    fn backward(&mut self, g: TensorIndex) -> (TensorIndex, TensorIndex) {
        let [x, w, left, right] = self.saved.pop().expect("a layer");
        let b = &mut self.b;
        let (of_x, of_w, of_g) = (b.shape(x), b.shape(w), b.shape(g));
        if self.form == Form::Layer {
            return b.linear_backward(x, w, g);
        }
        let g = match self.form {
            Form::Merged => b.reshape(g, &[of_g[0] * of_g[1], of_g[2]]),
            _ => g,
        };
        let turned = b.transpose(right);
        let gx = b.matmul(g, turned);
        let turned = b.transpose(left);
        let gw = b.matmul(turned, g);
        match self.form {
            Form::Merged => (b.reshape(gx, &of_x), gw),
            _ => {
                let gw = b.sum_dim(gw, 0);
                (gx, b.reshape(gw, &of_w))
            }
        }
    }
}

/// A feed-forward layer whose input and result are split over tp by sequence, its backward and an update. The values
/// that are compared: the new weights, the gradient of the data, the loss.
fn feed_forward(mesh: &str, form: Form, [batch, rows]: Sizes) -> (Builder, Vec<TensorIndex>) {
    let mut b = Builder::new(mesh);
    let gate = b.split_weight("gate.weight", [16, 32], 1);
    let up = b.split_weight("up.weight", [16, 32], 1);
    let down = b.split_weight("down.weight", [32, 16], 0);
    let head = b.split_weight("head.weight", [16, 16], 1);
    let data = b.data(&[batch, rows, 16]);
    let x = by_sequence(&mut b, data);
    let saved = Vec::new();
    let mut model = Layered { b, form, saved };
    let gated = model.forward(x, gate);
    let upped = model.forward(x, up);
    let h = model.b.pair(Kind::Mul, gated, upped);
    let y = model.forward(h, down);
    let y = by_sequence(&mut model.b, y);
    let y = model.b.pair(Kind::Add, x, y);
    let z = model.forward(y, head);
    let loss = model.b.pair(Kind::Mul, z, z);
    let loss = model.b.sum(loss);
    let ones = model.b.ones_for(z);
    let g = model.b.pair(Kind::Mul, ones, z);
    let (g, g_head) = model.backward(g);
    let gy = by_sequence(&mut model.b, g);
    let (gh, g_down) = model.backward(gy);
    let g_upped = model.b.pair(Kind::Mul, gh, gated);
    let g_gated = model.b.pair(Kind::Mul, gh, upped);
    let (from_up, g_up) = model.backward(g_upped);
    let (from_gate, g_gate) = model.backward(g_gated);
    let mut b = model.b;
    let gx = b.pair(Kind::Add, from_up, from_gate);
    let gx = by_sequence(&mut b, gx);
    let gx = b.pair(Kind::Add, gx, g);
    let mut made = vec![gx, loss];
    for (weight, gradient) in [(gate, g_gate), (up, g_up), (down, g_down), (head, g_head)] {
        made.push(b.pair(Kind::Sub, weight, gradient));
    }
    b.read(loss);
    made.iter()
        .filter(|value| **value != loss)
        .for_each(|value| b.survive(*value));
    (b, made)
}

/// The value with dim 1 split over tp.
fn by_sequence(b: &mut Builder, value: TensorIndex) -> TensorIndex {
    let Ok(tp) = b.mesh.axis("tp") else {
        return value;
    };
    let mut layout = crate::layout::of_batch(&b.mesh, &b.shape(value));
    layout.dims[1].factors[0].axes = vec![tp];
    layout.normalize(&b.mesh);
    b.mark(Mark::Redistribute(Arc::new(layout)), value)
}

fn planned_for(b: &Builder, what: &str) -> Plan<Toy> {
    let options = options(&b.mesh);
    plan(&b.window, &b.mesh, &options).unwrap_or_else(|error| panic!("{what}: {error}"))
}

/// How often each collective is there, with its layouts.
fn collectives(plan: &Plan<Toy>) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for record in &plan.collectives {
        let text = format!("{} {:?} {}", record.kind.name(), record.axes, record.bytes);
        *found.entry(text).or_default() += 1;
    }
    found
}

/// Whatever a layer is recorded as, its values are the same on every mesh, and what travels is, in whatever chunks.
#[test]
fn every_form_is_planned_like_a_layer() {
    for mesh in MESHES.iter().chain(&["fsdp=2,tp=2", "tp=4"]) {
        for async_tp in [AsyncTp::Off, AsyncTp::On] {
            let of = |form: Form| {
                let (b, made) = feed_forward(mesh, form, [4, 8]);
                let b = b.under(Policy {
                    async_tp,
                    ..Policy::default()
                });
                let what = format!("{form:?} on `{mesh}`");
                let plan = planned_for(&b, &what);
                let (expected, found) = (whole(&b.window), planned(&b.window, &plan, &b.mesh));
                let values = made.iter().map(|value| {
                    assert_eq!(found[value], expected[value], "{value}: {what}");
                    expected[value].clone()
                });
                let overlaps = plan.overlaps.iter();
                let pairs = overlaps.filter(|overlap| overlap.whole.is_none()).count();
                (values.collect::<Vec<_>>(), collectives(&plan), pairs)
            };
            let [layer, others @ ..] = ALL.map(of);
            for (form, other) in ALL[1..].iter().zip(others) {
                assert_eq!(other, layer, "{form:?} on `{mesh}`, {async_tp:?}");
            }
        }
    }
}

/// The operations of the window after the pass, but for reshapes.
fn operations(b: &Builder) -> Vec<String> {
    let text = text_after(&b.window, &b.mesh, &options(&b.mesh), "layers").expect("a pass");
    let lines = text.lines().filter_map(|line| {
        let (_, op) = line.split_once(" = ")?;
        op.split(['(', ' ']).next().map(str::to_string)
    });
    lines.filter(|name| name != "reshape").collect()
}

#[test]
fn every_form_becomes_layers() {
    let of = |form| operations(&feed_forward("fsdp=2", form, [4, 8]).0);
    let layer = of(Form::Layer);
    let count = |name: &str| layer.iter().filter(|op| *op == name).count();
    assert_eq!(
        [count("linear"), count("linear_x"), count("linear_w")],
        [4; 3],
        "{layer:?}"
    );
    assert_eq!(of(Form::Batched), layer);
    assert_eq!(of(Form::Merged), layer);
}

/// Weights, their casts and what shares an operand are found in float8 and in 16 bits as those of layers.
#[test]
fn every_form_computes_in_float8() {
    for recipe in ["tensorwise", "rowwise", "blockwise128"] {
        for precision in [Precision::default(), Precision::new(Float::BF16)] {
            let of = |form: Form| {
                let float8: Float8 = recipe.parse().expect("a recipe");
                let (b, _) = feed_forward("fsdp=2", form, [16, 16]);
                let b = b.under(Policy {
                    float8: Some(float8),
                    precision,
                    ..Policy::default()
                });
                let options = options(&b.mesh);
                let text = text_after(&b.window, &b.mesh, &options, "float8").expect("a pass");
                let names = [
                    "f8_quantize",
                    "f8_linear(",
                    "_x_backward",
                    "_weight_backward",
                ];
                let counts = names.map(|name| text.matches(name).count());
                let plan = planned_for(&b, recipe);
                let skipped = plan.float8.iter().filter(|layer| layer.skipped.is_some());
                (plan.float8.len(), skipped.count(), counts)
            };
            let [layer, batched, merged] = ALL.map(of);
            assert_eq!((layer.0, layer.1), (4, 1), "all but the head");
            assert_eq!(batched, layer, "{recipe}");
            assert_eq!(merged, layer, "{recipe}");
        }
    }
}

/// Products that look like layers and are none: of two parameters, a table that is a head too, products of two
/// activations or of two gradients, a weight's gradient that is needed before it is summed.
#[test]
fn what_is_no_layer_stays_a_product() {
    let mut b = Builder::new("");
    let table = b.param(Builder::spec("table", &[4, 4], None));
    let down = b.param(Builder::spec("down", &[4, 2], None));
    let up = b.param(Builder::spec("up", &[2, 4], None));
    let x = b.data(&[3, 4]);
    // A head that is tied to a table: `x E^T`.
    let turned = b.transpose(table);
    let y = b.matmul(x, turned);
    // `A B`, both parameters.
    let merged = b.matmul(down, up);
    // Attention: `y y^T y`.
    let y_turned = b.transpose(y);
    let scores = b.matmul(y, y_turned);
    let z = b.matmul(scores, y);
    let ones = b.ones_for(z);
    let g = b.pair(Kind::Mul, ones, z);
    // Of the head: the gradient of `x` is a product with the table as it is.
    let gx = b.matmul(g, table);
    let x_turned = b.transpose(x);
    let of_table = b.matmul(x_turned, g);
    for value in [merged, gx, of_table, y] {
        b.survive(value);
    }
    let found = operations(&b);
    assert!(
        found.iter().all(|op| !op.starts_with("linear")),
        "{found:?}"
    );
    assert_eq!(found.iter().filter(|op| *op == "matmul").count(), 6);

    // Of a weight that two parameters make, `W + A B`: the gradient of `B` is `A^T g`.
    let mut b = Builder::new("");
    let [w, down, up] = [("w", [4, 4]), ("down", [4, 2]), ("up", [2, 4])]
        .map(|(path, shape)| b.param(Builder::spec(path, &shape, None)));
    let x = b.data(&[3, 4]);
    let more = b.matmul(down, up);
    let merged = b.pair(Kind::Add, w, more);
    let y = b.matmul(x, merged);
    let ones = b.ones_for(y);
    let g = b.pair(Kind::Mul, ones, y);
    let x_turned = b.transpose(x);
    let of_merged = b.matmul(x_turned, g);
    let down_turned = b.transpose(down);
    let of_up = b.matmul(down_turned, of_merged);
    let new = b.pair(Kind::Sub, up, of_up);
    b.survive(new);
    let found = operations(&b);
    assert!(
        found.iter().all(|op| !op.starts_with("linear")),
        "{found:?}"
    );

    // What takes its place is made of a gradient with itself.
    let mut b = Builder::new("");
    let w = b.param(Builder::spec("w", &[4, 4], None));
    let x = b.data(&[3, 4]);
    let y = b.matmul(x, w);
    let ones = b.ones_for(y);
    let g = b.pair(Kind::Mul, ones, y);
    let turned = b.transpose(g);
    let squares = b.matmul(turned, g);
    let new = b.pair(Kind::Sub, w, squares);
    b.survive(new);
    let found = operations(&b);
    let count = |name: &str| found.iter().filter(|op| *op == name).count();
    assert_eq!(
        [count("linear"), count("matmul"), count("linear_w")],
        [1, 1, 0]
    );

    // The gradient of a batch of weights is read: it is needed as it is.
    let mut b = Builder::new("");
    let w = b.param(Builder::spec("w", &[4, 4], None));
    let x = b.data(&[2, 3, 4]);
    let wide = b.reshape(w, &[1, 4, 4]);
    let y = b.matmul(x, wide);
    let ones = b.ones_for(y);
    let g = b.pair(Kind::Mul, ones, y);
    let turned = b.transpose(x);
    let each = b.matmul(turned, g);
    b.read(each);
    let sum = b.sum_dim(each, 0);
    let sum = b.reshape(sum, &[4, 4]);
    let new = b.pair(Kind::Sub, w, sum);
    b.survive(new);
    let found = operations(&b);
    let count = |name: &str| found.iter().filter(|op| *op == name).count();
    assert_eq!(
        [count("linear"), count("matmul"), count("linear_w")],
        [1, 1, 0]
    );
}

/// A gradient that no update of its window uses is known by the product that made it, of whatever form.
#[test]
fn a_gradient_that_waits_for_its_update_is_known() {
    for form in ALL {
        let b = Builder::new("fsdp=2");
        let mut model = Layered {
            b,
            form,
            saved: Vec::new(),
        };
        let w = model.b.param(Builder::spec("w", &[4, 4], None));
        let x = model.b.data(&[4, 4, 4]);
        let y = model.forward(x, w);
        let ones = model.b.ones_for(y);
        let g = model.b.pair(Kind::Mul, ones, y);
        let (gx, gw) = model.backward(g);
        let mut b = model.b;
        b.survive(gx);
        b.survive(gw);
        b.survive(w);
        let plan = planned_for(&b, "a gradient");
        let left = plan.outputs.iter().find(|output| output.value == gw);
        let left = left.expect("it lives on");
        assert!(
            matches!(&left.role, Role::Gradient(Some(spec)) if spec.path == "w"),
            "{form:?}: {:?}",
            left.role
        );
    }
}

/// Burn's autodiff adds up a batch of gradients once it comes to the view that the weight was used by, which is at the
/// end of a backward: the gradient is made where its product was, so that nothing waits for it, and nothing is kept.
#[test]
fn a_gradient_is_made_where_its_product_was() {
    let mut b = Builder::new("fsdp=2");
    let weights = ["first", "second"].map(|path| b.param(Builder::spec(path, &[4, 4], None)));
    let views = weights.map(|w| b.reshape(w, &[1, 4, 4]));
    let x = b.data(&[4, 3, 4]);
    let y = b.matmul(x, views[0]);
    let z = b.matmul(y, views[1]);
    let ones = b.ones_for(z);
    let g = b.pair(Kind::Mul, ones, z);
    let y_turned = b.transpose(y);
    let of_second = b.matmul(y_turned, g);
    let turned = b.transpose(views[1]);
    let gy = b.matmul(g, turned);
    let x_turned = b.transpose(x);
    let of_first = b.matmul(x_turned, gy);
    for (w, each) in weights.into_iter().zip([of_first, of_second]) {
        let sum = b.sum_dim(each, 0);
        let sum = b.reshape(sum, &[4, 4]);
        let new = b.pair(Kind::Sub, w, sum);
        b.survive(new);
    }
    let found = operations(&b);
    let layers = found.iter().filter(|op| op.starts_with("linear"));
    let layers: Vec<&str> = layers.map(String::as_str).collect();
    assert_eq!(
        layers,
        ["linear", "linear", "linear_w", "linear_x", "linear_w"]
    );
    check(&b, &options(&b.mesh), "sums at the end");
}

/// A module's layouts of its input and its output apply where its tokens are flattened.
#[test]
fn the_layouts_of_a_module_apply_to_flattened_tokens() {
    let of = |form: Form| {
        let mut b = Builder::new("tp=2");
        let tp = b.mesh.axis("tp").expect("an axis");
        let mut spec = Builder::spec("w", &[4, 4], None);
        spec.layout.dims[1].factors[0].axes = vec![tp];
        spec.input = Some(LayoutText::parse("[-, {tp}, -]").expect("a layout"));
        spec.output = Some(LayoutText::parse("[-, {tp}, -]").expect("a layout"));
        let w = b.param(spec);
        let x = b.data(&[2, 4, 4]);
        let saved = Vec::new();
        let mut model = Layered { b, form, saved };
        let y = model.forward(x, w);
        let mut b = model.b;
        b.survive(y);
        let plan = planned_for(&b, "a module");
        let (expected, found) = (whole(&b.window), planned(&b.window, &plan, &b.mesh));
        assert_eq!(found[&y], expected[&y]);
        let y = plan.outputs.iter().find(|output| output.value == y);
        let layout = y.expect("it lives on").layout.display(&b.mesh).to_string();
        (layout, collectives(&plan))
    };
    let layer = of(Form::Layer);
    assert_eq!(layer.0, "[-, {tp}, -]");
    assert_eq!(of(Form::Batched), layer);
    assert_eq!(of(Form::Merged), layer);
}

/// The laws of texts and facts, of windows whose products become layers, and of those in types of 16 and 8 bits.
#[test]
fn facts_follow_products_that_become_layers() {
    for mesh in ["fsdp=2", "fsdp=2,tp=2"] {
        for form in ALL {
            for float8 in [None, Some("tensorwise"), Some("rowwise")] {
                let (b, _) = feed_forward(mesh, form, [4, 4]);
                let b = b.under(Policy {
                    precision: Precision::new(Float::BF16),
                    float8: float8.map(|float8| float8.parse().expect("a policy")),
                    ..Policy::default()
                });
                check(
                    &b,
                    &options(&b.mesh),
                    &format!("{form:?}, {mesh}, {float8:?}"),
                );
            }
        }
    }
}
