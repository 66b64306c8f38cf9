//! A table of programs whose values are easily mistaken for others: each row says what every value is.
//! Long for its rows.

use std::sync::Arc;

use super::*;
use crate::ir::Mark;
use crate::layout::Layout;
use crate::toy::{Builder, Kind};

const WIDTH: usize = 4;

/// A weight of a linear layer.
fn weight(b: &mut Builder, path: &str) -> ValueIndex {
    b.param(Builder::spec(path, &[WIDTH, WIDTH], None))
}

/// Something of a shape on the ranks, with a role.
fn placed(b: &mut Builder, shape: &[usize], role: Role) -> ValueIndex {
    b.placed_as(shape, Layout::replicated(shape), role)
}

/// Makes what an optimizer has kept for a weight.
fn moment(b: &mut Builder, of: &str) -> ValueIndex {
    let shape = [WIDTH, WIDTH];
    placed(b, &shape, Role::State(spec(of, &shape)))
}

fn spec(path: &str, shape: &[usize]) -> Arc<ParamSpec> {
    Arc::new(Builder::spec(path, shape, None))
}

/// Describes a role with the path of its parameter.
fn text(role: &Role) -> String {
    match (role, role.belongs_to()) {
        (Role::Parameter(_), Some(spec)) => format!("parameter {}", spec.path),
        (Role::State(_), Some(spec)) => format!("state of {}", spec.path),
        (Role::Gradient(_), Some(spec)) => format!("gradient of {}", spec.path),
        _ => role.name().to_string(),
    }
}

/// Compares the roles of some values.
#[track_caller]
fn check(b: &Builder, expected: &[(ValueIndex, &str)]) -> Facts {
    let facts = Facts::new(&b.window);
    for (value, expected) in expected {
        let found = text(&facts.roles[*value as usize]);
        assert_eq!(&found, expected, "value {value}");
    }
    facts
}

/// `p - lr g`, which outlives the window in place of `p`.
fn sgd(b: &mut Builder, p: ValueIndex, g: ValueIndex) -> ValueIndex {
    let new = b.pair(Kind::Sub, p, g);
    b.survive(new);
    new
}

/// A loss of `y`, and its gradient.
fn loss(b: &mut Builder, y: ValueIndex) -> (ValueIndex, ValueIndex) {
    let squares = b.pair(Kind::Mul, y, y);
    let mut loss = squares;
    for dim in 0..b.shape(y).len() {
        loss = b.sum_dim(loss, dim);
    }
    b.read(loss);
    let ones = b.ones_for(y);
    (loss, b.pair(Kind::Mul, ones, y))
}

/// The gradient of a weight: a linear layer of data, its loss, and the backward.
fn weight_gradient(b: &mut Builder, w: ValueIndex) -> ValueIndex {
    let x = b.data(&[3, WIDTH]);
    let y = b.linear(x, w);
    let (_, g) = loss(b, y);
    b.linear_backward(x, w, g).1
}

#[test]
fn a_layer_with_a_loss_and_an_update() {
    let mut b = Builder::new("");
    let w = weight(&mut b, "w");
    let x = b.data(&[3, WIDTH]);
    let y = b.linear(x, w);
    let (l, g) = loss(&mut b, y);
    let (gx, gw) = b.linear_backward(x, w, g);
    let new = sgd(&mut b, w, gw);
    let facts = check(
        &b,
        &[
            (w, "parameter w"),
            (x, "input"),
            (y, "activation"),
            (l, "activation"),
            (g, "activation"),
            (gx, "activation"),
            (gw, "gradient of w"),
            (new, "parameter w"),
        ],
    );
    use Phase::{Backward, Forward, Update};
    // Linear, the squares and their sums; the ones, their width, the gradients; the update.
    assert_eq!(facts.phases[..4], [Forward; 4]);
    assert_eq!(facts.phases[4..9], [Backward; 5]);
    assert_eq!(facts.phases[9..], [Update]);
    assert_eq!(facts.microbatches, [0; 10]);
}

/// A weight that decays before its gradient is taken off is replaced by what comes of both.
#[test]
fn a_weight_that_decays() {
    let mut b = Builder::new("");
    let w = weight(&mut b, "w");
    let x = b.data(&[3, WIDTH]);
    let y = b.linear(x, w);
    let (_, g) = loss(&mut b, y);
    let (_, gw) = b.linear_backward(x, w, g);
    let decayed = b.op(Kind::Scale(0), &[w], &[WIDTH, WIDTH]);
    let new = sgd(&mut b, decayed, gw);
    let facts = check(&b, &[(gw, "gradient of w"), (new, "parameter w")]);
    assert!(facts.update_of[decayed as usize].is_some());
}

/// At batch 1 the residual stream has the shape of a position parameter that is added to it.
#[test]
fn a_position_parameter_at_batch_one() {
    let shape = [1, 3, WIDTH];
    let mut b = Builder::new("");
    let pos = b.param(Builder::spec("pos", &shape, None));
    let w = weight(&mut b, "w");
    let x = b.data(&shape);
    let tokens = b.linear(x, w);
    let h = b.pair(Kind::Add, tokens, pos);
    let a = b.exp(h);
    let residual = b.pair(Kind::Add, h, a);
    let (_, g) = loss(&mut b, residual);
    // d exp(h) = g * a; the residual adds g.
    let ga = b.pair(Kind::Mul, g, a);
    let gh = b.pair(Kind::Add, g, ga);
    let (_, gw) = b.linear_backward(x, w, gh);
    let new_pos = sgd(&mut b, pos, gh);
    let new_w = sgd(&mut b, w, gw);
    check(
        &b,
        &[
            (pos, "parameter pos"),
            (tokens, "activation"),
            (h, "activation"),
            (a, "activation"),
            (residual, "activation"),
            (new_pos, "parameter pos"),
            (gw, "gradient of w"),
            (new_w, "parameter w"),
        ],
    );
}

#[test]
fn an_activation_of_a_parameters_shape_that_is_kept_is_none() {
    let mut b = Builder::new("");
    let pos = b.param(Builder::spec("pos", &[3, WIDTH], None));
    b.survive(pos);
    let x = b.data(&[3, WIDTH]);
    let h = b.pair(Kind::Add, x, pos);
    b.survive(h);
    check(&b, &[(pos, "parameter pos"), (h, "activation")]);
}

#[test]
fn tied_weights_have_one_gradient() {
    let mut b = Builder::new("");
    let w = weight(&mut b, "w");
    let x = b.data(&[3, WIDTH]);
    let h = b.linear(x, w);
    let y = b.linear(h, w);
    let (_, g) = loss(&mut b, y);
    let (gh, second) = b.linear_backward(h, w, g);
    let (_, first) = b.linear_backward(x, w, gh);
    let sum = b.pair(Kind::Add, first, second);
    let new = sgd(&mut b, w, sum);
    check(
        &b,
        &[
            (first, "gradient of w"),
            (second, "gradient of w"),
            (sum, "gradient of w"),
            (new, "parameter w"),
            (h, "activation"),
            (gh, "activation"),
        ],
    );
}

#[test]
fn frozen_weights_and_lora() {
    let mut b = Builder::new("");
    let frozen = weight(&mut b, "frozen");
    let down = b.param(Builder::spec("down", &[WIDTH, 2], None));
    let up = b.param(Builder::spec("up", &[2, WIDTH], None));
    b.survive(frozen);
    let x = b.data(&[3, WIDTH]);
    // W + A B, as large as W.
    let delta = b.matmul(down, up);
    let merged = b.pair(Kind::Add, frozen, delta);
    let y = b.linear(x, merged);
    let (_, g) = loss(&mut b, y);
    let (_, g_merged) = b.linear_backward(x, merged, g);
    let up_t = b.transpose(up);
    let g_down = b.matmul(g_merged, up_t);
    let down_t = b.transpose(down);
    let g_up = b.matmul(down_t, g_merged);
    let new_down = sgd(&mut b, down, g_down);
    let new_up = sgd(&mut b, up, g_up);
    check(
        &b,
        &[
            (frozen, "parameter frozen"),
            (merged, "activation"),
            (g_down, "gradient of down"),
            (g_up, "gradient of up"),
            (new_down, "parameter down"),
            (new_up, "parameter up"),
        ],
    );
}

#[test]
fn two_parameters_of_one_shape_that_are_multiplied() {
    let mut b = Builder::new("");
    let p = b.param(Builder::spec("p", &[3, WIDTH], None));
    let q = b.param(Builder::spec("q", &[3, WIDTH], None));
    let y = b.pair(Kind::Mul, p, q);
    let (_, g) = loss(&mut b, y);
    let gp = b.pair(Kind::Mul, g, q);
    let gq = b.pair(Kind::Mul, g, p);
    let new_p = sgd(&mut b, p, gp);
    let new_q = sgd(&mut b, q, gq);
    check(
        &b,
        &[
            (y, "activation"),
            (gp, "gradient of p"),
            (gq, "gradient of q"),
            (new_p, "parameter p"),
            (new_q, "parameter q"),
        ],
    );
}

#[test]
fn a_moment_with_weight_decay_is_state() {
    let mut b = Builder::new("");
    let w = weight(&mut b, "w");
    let m = moment(&mut b, "w");
    let gw = weight_gradient(&mut b, w);
    // L2 decay: the moment is made of the parameter too.
    let decayed = b.pair(Kind::Add, gw, w);
    let new_m = b.pair(Kind::Add, m, decayed);
    b.survive(new_m);
    let new = sgd(&mut b, w, new_m);
    let facts = check(
        &b,
        &[
            (m, "state of w"),
            (gw, "gradient of w"),
            (new_m, "state of w"),
            (new, "parameter w"),
        ],
    );
    assert_eq!(facts.phases.last(), Some(&Phase::Update));
}

/// What a moment becomes before a gradient is added is no gradient, and belongs to the update: it may be made as soon
/// as the window begins.
#[test]
fn a_moment_that_decays_is_state() {
    let mut b = Builder::new("");
    let w = weight(&mut b, "w");
    let m = moment(&mut b, "w");
    let gw = weight_gradient(&mut b, w);
    let decayed = b.exp(m);
    let made = b.window.ops.len() - 1;
    let scaled = b.exp(gw);
    let new_m = b.pair(Kind::Add, decayed, scaled);
    b.survive(new_m);
    let new = sgd(&mut b, w, new_m);
    let facts = check(
        &b,
        &[
            (decayed, "state of w"),
            (scaled, "gradient of w"),
            (new_m, "state of w"),
            (new, "parameter w"),
        ],
    );
    assert_eq!(
        facts.phases[made..made + 2],
        [Phase::Update, Phase::Backward]
    );
}

/// The first step: the moment is the gradient, scaled.
#[test]
fn the_first_moment_is_state() {
    let mut b = Builder::new("");
    let w = weight(&mut b, "w");
    let gw = weight_gradient(&mut b, w);
    let m = b.exp(gw);
    b.survive(m);
    let new = sgd(&mut b, w, m);
    check(&b, &[(m, "state of w"), (new, "parameter w")]);
}

#[test]
fn accumulation_in_one_window_and_over_two() {
    let mut b = Builder::new("");
    let w = weight(&mut b, "w");
    let mut sum = None;
    for _ in 0..2 {
        let gw = weight_gradient(&mut b, w);
        sum = Some(match sum {
            Some(sum) => b.pair(Kind::Add, sum, gw),
            None => gw,
        });
    }
    let sum = sum.expect("two");
    let new = sgd(&mut b, w, sum);
    let facts = check(&b, &[(sum, "gradient of w"), (new, "parameter w")]);
    assert_eq!(facts.microbatches.first(), Some(&0));
    assert_eq!(facts.microbatches.last(), Some(&1));
    let second = b.window.ops.iter().rposition(|op| op.kind == Kind::Linear);
    assert_eq!(facts.phases[second.expect("two")], Phase::Forward);
    assert_eq!(facts.microbatches[second.expect("two")], 1);
    // With a read in between: what the first window leaves is known in the second.
    let mut b = Builder::new("");
    let w = weight(&mut b, "w");
    b.survive(w);
    let gw = weight_gradient(&mut b, w);
    b.survive(gw);
    let facts = check(&b, &[(w, "parameter w"), (gw, "gradient of w")]);
    let left = facts.roles[gw as usize].clone();
    let mut b = Builder::new("");
    let w = weight(&mut b, "w");
    let before = placed(&mut b, &[WIDTH, WIDTH], left);
    let gw = weight_gradient(&mut b, w);
    let sum = b.pair(Kind::Add, before, gw);
    let new = sgd(&mut b, w, sum);
    check(
        &b,
        &[
            (before, "gradient of w"),
            (sum, "gradient of w"),
            (new, "parameter w"),
        ],
    );
}

#[test]
fn queries_keys_and_values_share_their_input() {
    let mut b = Builder::new("");
    let names = ["q", "k", "v"];
    let weights = names.map(|name| weight(&mut b, name));
    weights.iter().for_each(|w| b.survive(*w));
    let x = b.data(&[3, WIDTH]);
    let made = weights.map(|w| b.linear(x, w));
    let sum = b.pair(Kind::Mul, made[0], made[1]);
    let sum = b.pair(Kind::Mul, sum, made[2]);
    let (_, g) = loss(&mut b, sum);
    let mut gradients = Vec::new();
    for (w, other) in weights.iter().zip([made[1], made[2], made[0]]) {
        let of_result = b.pair(Kind::Mul, g, other);
        let (_, gw) = b.linear_backward(x, *w, of_result);
        b.survive(gw);
        gradients.push(gw);
    }
    for (gradient, name) in gradients.iter().zip(names) {
        check(&b, &[(*gradient, &format!("gradient of {name}"))]);
    }
}

#[test]
fn an_optimizer_in_a_window_of_its_own() {
    let mut b = Builder::new("");
    let w = weight(&mut b, "w");
    let shape = [WIDTH, WIDTH];
    let g = placed(&mut b, &shape, Role::Gradient(Some(spec("w", &shape))));
    let scaled = b.exp(g);
    let new = sgd(&mut b, w, scaled);
    let facts = check(
        &b,
        &[
            (g, "gradient of w"),
            (scaled, "gradient of w"),
            (new, "parameter w"),
        ],
    );
    assert_eq!(facts.phases, [Phase::Backward, Phase::Update]);
}

#[test]
fn a_second_backward_ends_in_gradients_of_the_second_loss() {
    let mut b = Builder::new("");
    let w = weight(&mut b, "w");
    let x = b.data(&[3, WIDTH]);
    let y = b.linear(x, w);
    let (_, g) = loss(&mut b, y);
    let (gx, _) = b.linear_backward(x, w, g);
    // A penalty on the gradient of the input.
    let (_, gg) = loss(&mut b, gx);
    let (_, gw) = b.linear_backward(gg, w, gg);
    let new = sgd(&mut b, w, gw);
    let facts = check(
        &b,
        &[
            (gx, "activation"),
            (gw, "gradient of w"),
            (new, "parameter w"),
        ],
    );
    assert_eq!(facts.microbatches.last(), Some(&1));
}

#[test]
fn averages_of_weights() {
    // The first average is the parameter itself, which lives on with it.
    let mut b = Builder::new("");
    let w = weight(&mut b, "w");
    b.survive(w);
    let gw = weight_gradient(&mut b, w);
    let new = sgd(&mut b, w, gw);
    let average = b.pair(Kind::Add, w, new);
    b.survive(average);
    check(&b, &[(new, "parameter w"), (average, "parameter w")]);
    // Later ones are of the average before.
    let mut b = Builder::new("");
    let w = weight(&mut b, "w");
    let before = b.param(Builder::spec("average", &[WIDTH, WIDTH], None));
    let gw = weight_gradient(&mut b, w);
    let new = sgd(&mut b, w, gw);
    let average = b.pair(Kind::Add, before, new);
    b.survive(average);
    check(&b, &[(new, "parameter w"), (average, "parameter average")]);
}

#[test]
fn weights_that_are_clipped_without_a_gradient() {
    let mut b = Builder::new("");
    let w = weight(&mut b, "w");
    let clipped = b.exp(w);
    b.survive(clipped);
    check(&b, &[(clipped, "parameter w")]);
}

/// A GAN: the loss of one network goes through another, whose weights it does not update.
#[test]
fn two_networks_two_optimizers() {
    let mut b = Builder::new("");
    let (first, second) = (weight(&mut b, "first"), weight(&mut b, "second"));
    b.survive(second);
    let x = b.data(&[3, WIDTH]);
    let h = b.linear(x, first);
    let y = b.linear(h, second);
    let (_, g) = loss(&mut b, y);
    let (gh, _) = b.linear_backward(h, second, g);
    let (_, gw) = b.linear_backward(x, first, gh);
    let new = sgd(&mut b, first, gw);
    check(
        &b,
        &[
            (second, "parameter second"),
            (gw, "gradient of first"),
            (new, "parameter first"),
        ],
    );
}

/// A program that never reads: the window holds two steps.
#[test]
fn two_steps_in_one_window() {
    let shape = [1, 3, WIDTH];
    let mut b = Builder::new("");
    let mut pos = b.param(Builder::spec("pos", &shape, None));
    let mut made = Vec::new();
    for step in 0..2 {
        let x = b.data(&shape);
        let h = b.pair(Kind::Add, x, pos);
        let a = b.exp(h);
        let ones = b.ones_for(a);
        let g = b.pair(Kind::Mul, ones, a);
        let new = b.pair(Kind::Sub, pos, g);
        if step == 1 {
            b.survive(new);
        }
        made.push((h, g, new));
        pos = new;
    }
    for (h, _, new) in &made {
        check(&b, &[(*h, "activation"), (*new, "parameter pos")]);
    }
    let facts = Facts::new(&b.window);
    assert_eq!(facts.microbatches.first(), Some(&0));
    assert_eq!(facts.microbatches.last(), Some(&1));
    // The forward of the second step is forward, though it uses what gradients made.
    let second = b.window.ops.len() / 2;
    assert_eq!(facts.phases[second], Phase::Forward);
}

#[test]
fn without_parameters_nothing_is_claimed() {
    let mut b = Builder::new("");
    let x = b.data(&[3, WIDTH]);
    let y = b.exp(x);
    b.survive(y);
    let unknown = placed(&mut b, &[3, WIDTH], Role::Unknown);
    let z = b.pair(Kind::Add, unknown, y);
    b.survive(z);
    let constant = b.op(Kind::Full(3), &[], &[3, WIDTH]);
    check(
        &b,
        &[
            (y, "activation"),
            (unknown, "unknown"),
            (z, "activation"),
            (constant, "constant"),
        ],
    );
}

#[test]
fn a_marked_value_is_a_parameter() {
    let mut b = Builder::new("");
    let random = b.op(Kind::Random, &[], &[WIDTH, WIDTH]);
    let w = b.mark(Mark::Param(spec("w", &[WIDTH, WIDTH])), random);
    b.survive(w);
    check(&b, &[(w, "parameter w")]);
}

/// Two tables of one shape, each read at indices that the backward shapes again for itself.
#[test]
fn tables_are_distinguished_by_their_indices() {
    let mut b = Builder::new("");
    let words = b.param(Builder::spec("words", &[5, WIDTH], None));
    let places = b.param(Builder::spec("places", &[5, WIDTH], None));
    let at_words = b.data(&[3, 1]);
    let at_places = b.data(&[3, 1]);
    let mut read = |table, indices| {
        let flat = b.reshape(indices, &[3]);
        b.lookup(table, flat)
    };
    let (w, p) = (read(words, at_words), read(places, at_places));
    let y = b.pair(Kind::Add, w, p);
    let (_, g) = loss(&mut b, y);
    let mut sum = |indices| {
        let flat = b.reshape(indices, &[3]);
        let zeros = b.op(Kind::Full(0), &[], &[5, WIDTH]);
        let gradient = b.sum_at(zeros, flat, g);
        b.survive(gradient);
        gradient
    };
    let (g_places, g_words) = (sum(at_places), sum(at_words));
    check(
        &b,
        &[
            (words, "parameter words"),
            (places, "parameter places"),
            (w, "activation"),
            (p, "activation"),
            (g_words, "gradient of words"),
            (g_places, "gradient of places"),
        ],
    );
}

/// One weight applied twice and another to a reshape, or to a cast of one: each gradient is that of the input it was
/// applied to, or of what that gave.
#[test]
fn gradients_of_inputs_know_them() {
    for is_cast in [false, true] {
        gradients_know_inputs(is_cast);
    }
}

fn gradients_know_inputs(is_cast: bool) {
    let mut b = Builder::new("");
    let (twice, once) = (weight(&mut b, "twice"), weight(&mut b, "once"));
    let x = b.data(&[3, WIDTH]);
    let h = b.linear(x, twice);
    let a = b.exp(h);
    let i = b.linear(a, twice);
    let wide = b.exp(i);
    let wide = b.reshape(wide, &[1, 3, WIDTH]);
    let reshaped = b.reshape(wide, &[3, WIDTH]);
    let flat = match is_cast {
        true => b.op(Kind::Cast, &[reshaped], &[3, WIDTH]),
        false => reshaped,
    };
    let y = b.linear(flat, once);
    let (_, g) = loss(&mut b, y);
    let (g_flat, _) = b.linear_backward(flat, once, g);
    let g_wide = b.reshape(g_flat, &[1, 3, WIDTH]);
    let gi = b.reshape(g_wide, &[3, WIDTH]);
    let gi = b.pair(Kind::Mul, gi, i);
    let (ga, _) = b.linear_backward(a, twice, gi);
    let gh = b.pair(Kind::Mul, ga, h);
    let (gx, _) = b.linear_backward(x, twice, gh);
    let sum = b.pair(Kind::Add, gx, gx);
    let other = b.pair(Kind::Add, gx, ga);
    let facts = Facts::new(&b.window);
    let of = |value: ValueIndex| facts.gradient_of[value as usize];
    assert_eq!(
        of(g_flat),
        Some(reshaped),
        "also where a layer takes a cast"
    );
    assert_eq!(of(g_wide), Some(wide));
    assert_eq!(of(gi), Some(i), "what a layer's backward takes");
    assert_eq!(of(gh), Some(h), "also of the first of two uses");
    assert_eq!(of(ga), Some(a));
    assert_eq!(of(gx), Some(x));
    assert_eq!(of(sum), Some(x));
    assert_eq!(of(other), None, "a sum for two inputs");
}

/// What an optimizer keeps of a parameter and its gradient is no parameter, however near.
#[test]
fn a_parameter_scaled_by_its_gradient_is_none() {
    let mut b = Builder::new("");
    let w = weight(&mut b, "w");
    let gw = weight_gradient(&mut b, w);
    let scaled = b.pair(Kind::Mul, w, gw);
    b.survive(scaled);
    let new = sgd(&mut b, w, gw);
    check(&b, &[(scaled, "gradient"), (new, "parameter w")]);
}

/// Noise on weights: no gradient is in it, but the old weights die.
#[test]
fn weights_that_data_is_added_to() {
    let mut b = Builder::new("");
    let w = weight(&mut b, "w");
    let noise = b.data(&[WIDTH, WIDTH]);
    let new = b.pair(Kind::Add, w, noise);
    b.survive(new);
    check(&b, &[(new, "parameter w"), (noise, "input")]);
}

/// A gradient that is multiplied by a matrix too is needed whole: it is no part of the update alone.
#[test]
fn a_gradient_with_another_use() {
    let mut b = Builder::new("");
    let w = weight(&mut b, "w");
    let gw = weight_gradient(&mut b, w);
    let squared = b.matmul(gw, gw);
    b.read(squared);
    let new = sgd(&mut b, w, gw);
    let facts = check(&b, &[(gw, "gradient of w"), (new, "parameter w")]);
    assert_eq!(facts.update_of[gw as usize], None);
    assert!(!facts.of_layer[gw as usize], "pieces are not enough");
}

/// The sum of all elements, as for a norm, takes pieces.
#[test]
fn a_gradient_whose_norm_is_taken() {
    let mut b = Builder::new("");
    let bias = b.param(Builder::spec("bias", &[WIDTH], None));
    let g = placed(&mut b, &[WIDTH], Role::Gradient(None));
    let norm = b.sum_dim(g, 0);
    b.read(norm);
    let new = sgd(&mut b, bias, g);
    let facts = check(&b, &[(new, "parameter bias")]);
    let of = facts.update_of[g as usize].as_ref();
    assert_eq!(of.map(|of| of.path.as_str()), Some("bias"));
}

/// An elementwise operation that repeats a gradient of one element needs it whole.
#[test]
fn a_gradient_that_is_repeated() {
    let mut b = Builder::new("");
    let scale = b.param(Builder::spec("scale", &[1, 1], None));
    let g = placed(&mut b, &[1, 1], Role::Gradient(None));
    let x = b.data(&[3, WIDTH]);
    let wide = b.op(Kind::Mul, &[x, g], &[3, WIDTH]);
    b.read(wide);
    let new = sgd(&mut b, scale, g);
    let facts = check(&b, &[(new, "parameter scale")]);
    assert_eq!(facts.update_of[g as usize], None);
}

/// A state of which the program says nothing, and what comes of it.
#[test]
fn an_unknown_that_updates_is_state() {
    let mut b = Builder::new("");
    let w = weight(&mut b, "w");
    let m = placed(&mut b, &[WIDTH, WIDTH], Role::Unknown);
    let g = placed(&mut b, &[WIDTH, WIDTH], Role::Gradient(None));
    let moved = b.pair(Kind::Add, m, g);
    b.survive(moved);
    let new = sgd(&mut b, w, moved);
    check(
        &b,
        &[
            (m, "state of w"),
            (moved, "state of w"),
            (new, "parameter w"),
        ],
    );
}

/// Gradients that no update uses: of a weight that is no parameter, of an input, and a sum of two of one parameter.
#[test]
fn gradients_without_an_update() {
    let mut b = Builder::new("");
    let w = weight(&mut b, "w");
    let other = placed(&mut b, &[WIDTH, WIDTH], Role::Unknown);
    let x = b.data(&[3, WIDTH]);
    let h = b.linear(x, w);
    let y = b.linear(h, other);
    let (_, g) = loss(&mut b, y);
    let (gh, g_other) = b.linear_backward(h, other, g);
    let (gx, gw) = b.linear_backward(x, w, gh);
    let kept = b.exp(gx);
    b.survive(kept);
    let sum = b.pair(Kind::Add, gw, gw);
    b.survive(sum);
    let doubled = b.pair(Kind::Add, g_other, g_other);
    let facts = check(
        &b,
        &[
            (g_other, "gradient"),
            (doubled, "gradient"),
            (gx, "activation"),
            (kept, "gradient"),
            (gw, "gradient of w"),
            (sum, "gradient of w"),
        ],
    );
    assert!(facts.of_layer[doubled as usize]);
}

/// Values that last: what is read, what outlives the window, and what an update is made of, in whatever shape.
#[test]
fn what_lasts() {
    let mut b = Builder::new("");
    let scale = b.param(Builder::spec("scale", &[WIDTH], None));
    let x = b.data(&[3, WIDTH]);
    let y = b.exp(x);
    let kept = b.exp(y);
    b.survive(kept);
    let (l, g) = loss(&mut b, kept);
    let rows = b.sum_dim(g, 0);
    let gradient = b.reshape(rows, &[WIDTH]);
    let new = sgd(&mut b, scale, gradient);
    let facts = Facts::new(&b.window);
    let lasting = |value: ValueIndex| facts.lasting[value as usize];
    let updating = |value: ValueIndex| facts.updating[value as usize];
    assert!(lasting(kept) && !updating(kept));
    assert!(lasting(l) && !updating(l));
    assert!(updating(gradient) && updating(rows), "a reshape");
    assert!(lasting(new) && lasting(rows));
    assert!(!lasting(y) && !lasting(g) && !lasting(x));
}
