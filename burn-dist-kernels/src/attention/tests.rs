//! Against the definition, in f64.

use super::*;
use proptest::prelude::*;

/// Attention and its gradients by the definition, whole matrices at a time, in the order of their shapes.
struct Reference {
    out: Vec<f64>,
    log_sum_exp: Vec<f64>,
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    bias: Vec<f64>,
}

/// The values of a case, in the order of their views' shapes.
#[derive(Clone, Debug)]
struct Case {
    sizes: Sizes,
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    gradient: Vec<f64>,
    mask: Option<Vec<u8>>,
    bias: Option<Vec<f64>>,
    scale: f64,
    visible: Visible,
    dropout: Option<Dropout>,
}

/// Numbers between -1 and 1, the same for a seed.
fn numbers(len: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    // As f32 has them, so that both types start from the same.
    (0..len).map(|_| f64::from(next() as f32)).collect()
}

/// The factor of a weight: the definition of which are dropped.
fn kept(dropout: &Dropout, [batch, head, member]: [usize; 3], query: usize, key: usize) -> f64 {
    let origin = dropout.origin;
    let of = |places: Places, index: usize| places.start + index * places.step;
    let head = of(origin.heads, head) * origin.group_size + of(origin.group, member);
    let (query, batch) = (of(origin.queries, query), of(origin.batch, batch));
    let key = of(origin.keys, key);
    let counter = [key / 4, query, head, batch].map(|at| [at as u32]);
    let [word] = crate::philox::philox4x32(counter, dropout.seed)[key % 4];
    let kept = 1.0 - dropout.share;
    match f64::from(word) < kept * 2f64.powi(32) {
        true => 1.0 / kept,
        false => 0.0,
    }
}

impl Case {
    fn new(sizes: Sizes, visible: Visible, with_mask: bool, with_bias: bool, seed: u64) -> Self {
        let Sizes {
            batch,
            heads,
            group,
            queries,
            keys,
            width,
            value_width,
        } = sizes;
        let pairs = batch * heads * group * queries * keys;
        let is_hidden = |x: f64| u8::from(x > 0.3);
        Self {
            sizes,
            q: numbers(batch * heads * group * queries * width, seed + 1),
            k: numbers(batch * heads * keys * width, seed + 2),
            v: numbers(batch * heads * keys * value_width, seed + 3),
            gradient: numbers(batch * heads * group * queries * value_width, seed + 4),
            mask: with_mask.then(|| {
                numbers(pairs, seed + 5)
                    .into_iter()
                    .map(is_hidden)
                    .collect()
            }),
            bias: with_bias.then(|| numbers(pairs, seed + 6)),
            scale: 2.0,
            visible,
            dropout: None,
        }
    }

    fn q_shape(&self) -> [usize; 5] {
        let s = self.sizes;
        [s.batch, s.heads, s.group, s.queries, s.width]
    }

    fn out_shape(&self) -> [usize; 5] {
        let s = self.sizes;
        [s.batch, s.heads, s.group, s.queries, s.value_width]
    }

    fn reference(&self) -> Reference {
        let s = self.sizes;
        let heads = s.batch * s.heads * s.group;
        let mut made = Reference {
            out: vec![0.0; heads * s.queries * s.value_width],
            log_sum_exp: vec![f64::NEG_INFINITY; heads * s.queries],
            q: vec![0.0; self.q.len()],
            k: vec![0.0; self.k.len()],
            v: vec![0.0; self.v.len()],
            bias: vec![0.0; heads * s.queries * s.keys],
        };
        for head in 0..heads {
            let shared = head / s.group;
            for query in 0..s.queries {
                let row = head * s.queries + query;
                let q = &self.q[row * s.width..][..s.width];
                let gradient = &self.gradient[row * s.value_width..][..s.value_width];
                let key_at = |key: usize| (shared * s.keys + key) * s.width;
                let value_at = |key: usize| (shared * s.keys + key) * s.value_width;
                let position = (query * self.visible.step) as isize + self.visible.offset;
                let score = |key: usize| {
                    let behind = position - key as isize;
                    let mask = self
                        .mask
                        .as_ref()
                        .is_some_and(|mask| mask[row * s.keys + key] != 0);
                    let early = self
                        .visible
                        .window
                        .is_some_and(|window| behind >= window as isize);
                    if mask || (self.visible.causal && behind < 0) || early {
                        return f64::NEG_INFINITY;
                    }
                    let k = &self.k[key_at(key)..][..s.width];
                    let product: f64 = q.iter().zip(k).map(|(q, k)| q * k).sum();
                    let bias = self
                        .bias
                        .as_ref()
                        .map_or(0.0, |bias| bias[row * s.keys + key]);
                    product * self.scale + bias
                };
                let scores: Vec<f64> = (0..s.keys).map(score).collect();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                if largest == f64::NEG_INFINITY {
                    continue;
                }
                let sum: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
                made.log_sum_exp[row] = largest + sum.ln();
                let weights: Vec<f64> = scores
                    .iter()
                    .map(|score| (score - largest).exp() / sum)
                    .collect();
                let mut factors = vec![1.0; s.keys];
                if let Some(dropout) = &self.dropout {
                    for (key, factor) in factors.iter_mut().enumerate() {
                        let at = [shared / s.heads, shared % s.heads, head % s.group];
                        *factor = kept(dropout, at, query, key);
                    }
                }
                let to_weights: Vec<f64> = (0..s.keys)
                    .map(|key| {
                        let v = &self.v[value_at(key)..][..s.value_width];
                        let products = v.iter().zip(gradient).map(|(v, gradient)| v * gradient);
                        products.sum::<f64>() * factors[key]
                    })
                    .collect();
                let mean: f64 = weights.iter().zip(&to_weights).map(|(w, g)| w * g).sum();
                for key in 0..s.keys {
                    let to_score = weights[key] * (to_weights[key] - mean);
                    made.bias[row * s.keys + key] = to_score;
                    for (column, gradient) in gradient.iter().enumerate() {
                        made.out[row * s.value_width + column] +=
                            weights[key] * factors[key] * self.v[value_at(key) + column];
                        made.v[value_at(key) + column] += weights[key] * factors[key] * gradient;
                    }
                    for (column, q) in q.iter().enumerate() {
                        made.q[row * s.width + column] +=
                            to_score * self.scale * self.k[key_at(key) + column];
                        made.k[key_at(key) + column] += to_score * self.scale * q;
                    }
                }
            }
        }
        made
    }

    fn run<T: Attend>(&self, cast: impl Fn(f64) -> T) -> (Forward<T>, Gradients<T>) {
        let s = self.sizes;
        let cast = |values: &[f64]| values.iter().map(|x| cast(*x)).collect::<Vec<T>>();
        let (q, k, v, gradient) = (
            cast(&self.q),
            cast(&self.k),
            cast(&self.v),
            cast(&self.gradient),
        );
        let bias = self.bias.as_deref().map(&cast);
        let scale = cast(&[self.scale])[0];
        let pairs = [s.batch, s.heads, s.group, s.queries, s.keys];
        let inputs = Inputs {
            sizes: s,
            q: View::contiguous(&q, self.q_shape()),
            k: View::contiguous(&k, [s.batch, s.heads, s.keys, s.width]),
            v: View::contiguous(&v, [s.batch, s.heads, s.keys, s.value_width]),
            mask: self
                .mask
                .as_deref()
                .map(|mask| View::contiguous(mask, pairs)),
            bias: bias.as_deref().map(|bias| View::contiguous(bias, pairs)),
            scale,
            visible: self.visible,
            dropout: self.dropout,
        };
        let made = Attend::forward(&inputs);
        let gradients = Attend::backward(
            &inputs,
            made.made(),
            View::contiguous(&gradient, self.out_shape()),
            true,
        );
        (made, gradients)
    }
}

/// Compares with a bound on the sum of as many terms of size one.
fn close<T: Copy + Into<f64>>(what: &str, found: &[T], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let found: f64 = (*found).into();
        if found == *expected {
            continue;
        }
        let error = (found - expected).abs();
        assert!(
            error <= tolerance * expected.abs().max(1.0),
            "{what}[{index}]: {found} for {expected}"
        );
    }
}

fn check(case: &Case) {
    let expected = case.reference();
    let (made, gradients) = case.run(|x| x as f32);
    // Scores are as large as scale * width, and so is their error in units of f32's.
    let tolerance = 1e-6 * (4.0 + case.sizes.width as f64);
    let of_sums = tolerance * (1 + case.sizes.group * case.sizes.queries) as f64;
    close("out", &made.out.data, &expected.out, tolerance);
    close(
        "log-sum-exp",
        &made.log_sum_exp,
        &expected.log_sum_exp,
        tolerance,
    );
    close("q", &gradients.q.data, &expected.q, tolerance * 4.0);
    close("k", &gradients.k.data, &expected.k, of_sums);
    close("v", &gradients.v.data, &expected.v, of_sums);
    close("bias", &gradients.bias, &expected.bias, tolerance);
    let (made, gradients) = case.run(|x| x);
    let tolerance = 1e-13 * (4 + case.sizes.width + case.sizes.group * case.sizes.queries) as f64;
    close("out in f64", &made.out.data, &expected.out, tolerance);
    close(
        "log-sum-exp in f64",
        &made.log_sum_exp,
        &expected.log_sum_exp,
        tolerance,
    );
    close("q in f64", &gradients.q.data, &expected.q, tolerance);
    close("k in f64", &gradients.k.data, &expected.k, tolerance);
    close("v in f64", &gradients.v.data, &expected.v, tolerance);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn it_is_the_definition(
        (batch, heads, group) in (1usize..3, 1usize..3, 1usize..4),
        (queries, keys) in (0usize..140, 0usize..300),
        (width, value_width) in (0usize..20, 0usize..20),
        causal in any::<bool>(),
        window in proptest::option::of(1usize..100),
        (offset, step) in (-40isize..200, 1usize..5),
        (with_mask, with_bias) in any::<(bool, bool)>(),
        dropout in proptest::option::of(dropouts()),
        seed in 0u64..1000,
    ) {
        let sizes = Sizes { batch, heads, group, queries, keys, width, value_width };
        let visible = Visible { causal, window, offset, step };
        check(&Case { dropout, ..Case::new(sizes, visible, with_mask, with_bias, seed) });
    }
}

/// Half of the weights at most: those that are left are no more than twice as large.
fn dropouts() -> impl Strategy<Value = Dropout> {
    let places = || (0usize..50, 1usize..5).prop_map(|(start, step)| Places { start, step });
    let origin = (places(), places(), places(), 1usize..9, places(), places());
    let origin = origin.prop_map(|(batch, heads, group, group_size, queries, keys)| Origin {
        batch,
        heads,
        group,
        group_size,
        queries,
        keys,
    });
    (0.0f64..0.5, any::<[u32; 2]>(), origin).prop_map(|(share, seed, origin)| Dropout {
        share,
        seed,
        origin,
    })
}

/// Keys one after the other, and every third of them.
#[test]
fn parts_drop_what_the_whole_drops() {
    let whole = Dropout {
        share: 0.3,
        seed: [7, 9],
        origin: Origin::whole(2),
    };
    let mut all = vec![0f32; 300];
    whole.factors([1, 1, 1], 5, 0..300, &mut all);
    let dropped = all.iter().filter(|factor| **factor == 0.0).count();
    // 300 Bernoulli trials: four standard deviations are 32.
    assert!(dropped.abs_diff(90) < 32, "{dropped}");
    for (start, step, len) in [(0, 1, 300), (17, 1, 200), (2, 3, 99), (5, 8, 36)] {
        let part = Dropout {
            origin: Origin {
                batch: Places { start: 1, step: 1 },
                queries: Places { start: 3, step: 2 },
                keys: Places { start, step },
                ..whole.origin
            },
            ..whole
        };
        let mut found = vec![0f32; len];
        // In two blocks, the second of which begins anywhere.
        part.factors([0, 1, 1], 1, 0..13, &mut found[..13]);
        part.factors([0, 1, 1], 1, 13..len, &mut found[13..]);
        let expected: Vec<f32> = (0..len).map(|i| all[start + i * step]).collect();
        assert_eq!(found, expected, "{start}, {step}");
    }
}

fn causal(batch: usize) -> Case {
    let sizes = Sizes {
        batch,
        heads: 2,
        group: 2,
        queries: 130,
        keys: 130,
        width: 8,
        value_width: 8,
    };
    let visible = Visible {
        causal: true,
        ..Visible::default()
    };
    Case::new(sizes, visible, false, false, 7)
}

#[test]
fn a_split_of_the_batch_changes_no_bit() {
    let whole = causal(3);
    let (made, gradients) = whole.run(|x| x as f32);
    for index in 0..3 {
        let part = |values: &[f64]| values[index * values.len() / 3..][..values.len() / 3].to_vec();
        let one = Case {
            sizes: Sizes {
                batch: 1,
                ..whole.sizes
            },
            q: part(&whole.q),
            k: part(&whole.k),
            v: part(&whole.v),
            gradient: part(&whole.gradient),
            ..whole.clone()
        };
        let (one, of_one) = one.run(|x| x as f32);
        let len = one.out.data.len();
        assert_eq!(one.out.data, made.out.data[index * len..][..len]);
        let len = of_one.k.data.len();
        assert_eq!(of_one.k.data, gradients.k.data[index * len..][..len]);
    }
}

#[test]
fn threads_change_no_bit() {
    let case = causal(2);
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .expect("threads");
        pool.install(|| case.run(|x| x as f32))
    };
    assert_eq!(run(1), run(3));
}

/// Returns the elements of an array in the order of its shape.
fn in_order<const N: usize>(shape: [usize; N], strides: [usize; N], data: &[f64]) -> Vec<f64> {
    let elements = (0..shape.iter().product()).map(|mut index| {
        let mut at = 0;
        for dim in (0..N).rev() {
            at += index % shape[dim] * strides[dim];
            index /= shape[dim];
        }
        data[at]
    });
    elements.collect()
}

/// Returns an array whose dims lie in an order, the outermost first.
fn lying<const N: usize>(shape: [usize; N], order: [usize; N], data: &[f64]) -> Array<f64, N> {
    let mut strides = [0; N];
    let mut apart = 1;
    for dim in order.into_iter().rev() {
        strides[dim] = apart;
        apart *= shape[dim];
    }
    let mut made = vec![0.0; data.len()];
    let places: Vec<f64> = (0..data.len()).map(|place| place as f64).collect();
    for (place, x) in in_order(shape, strides, &places).into_iter().zip(data) {
        made[place as usize] = *x;
    }
    let data = made;
    Array {
        data,
        shape,
        strides,
    }
}

/// Heads that lie between each other, as a linear layer makes them, and any other order: results lie as what they are
/// of, but for their last dim.
#[test]
fn any_order_in_memory_is_read_and_kept() {
    let case = causal(2);
    let s = case.sizes;
    let (made, gradients) = case.run(|x| x);
    let of_k = [s.batch, s.heads, s.keys, s.width];
    let of_v = [s.batch, s.heads, s.keys, s.value_width];
    for (q_order, k_order, v_order) in [
        ([0, 3, 1, 2, 4], [0, 2, 1, 3], [0, 2, 1, 3]),
        ([3, 2, 0, 1, 4], [2, 0, 1, 3], [1, 0, 2, 3]),
        ([0, 4, 1, 3, 2], [3, 0, 1, 2], [0, 1, 3, 2]),
    ] {
        let q = lying(case.q_shape(), q_order, &case.q);
        let k = lying(of_k, k_order, &case.k);
        let v = lying(of_v, v_order, &case.v);
        let gradient = lying(case.out_shape(), [4, 1, 0, 2, 3], &case.gradient);
        let inputs = Inputs {
            sizes: s,
            q: q.view(),
            k: k.view(),
            v: v.view(),
            mask: None,
            bias: None,
            scale: case.scale,
            visible: case.visible,
            dropout: None,
        };
        let found = Attend::forward(&inputs);
        let back = Attend::backward(&inputs, found.made(), gradient.view(), true);
        fn check<const N: usize>(
            found: &Array<f64, N>,
            expected: &Array<f64, N>,
            order: [usize; N],
        ) {
            let elements = in_order(found.shape, found.strides, &found.data);
            close("elements", &elements, &expected.data, 1e-13);
            let last_is_last = order.into_iter().filter(|dim| dim + 1 != N).chain([N - 1]);
            let mut order = [0; N];
            order
                .iter_mut()
                .zip(last_is_last)
                .for_each(|(to, dim)| *to = dim);
            assert!(*found == lying(found.shape, order, &elements), "{order:?}");
        }
        check(&found.out, &made.out, q_order);
        check(&back.q, &gradients.q, q_order);
        check(&back.k, &gradients.k, k_order);
        check(&back.v, &gradients.v, v_order);
        close("log-sum-exp", &found.log_sum_exp, &made.log_sum_exp, 1e-13);
        close("bias", &back.bias, &gradients.bias, 1e-13);
    }
}

#[test]
fn nan_reaches_its_own_rows() {
    let mut case = causal(1);
    let s = case.sizes;
    // A query of the first head.
    case.q[5 * s.width] = f64::NAN;
    let (made, gradients) = case.run(|x| x as f32);
    for (row, out) in made.out.data.chunks(s.value_width).enumerate() {
        assert_eq!(out.iter().any(|x| x.is_nan()), row == 5, "row {row}");
    }
    assert!(gradients.k.data[..s.width].iter().any(|x| x.is_nan()));
    assert!(
        gradients.q.data[..5 * s.width]
            .iter()
            .all(|x| x.is_finite())
    );
}

#[test]
#[should_panic(expected = "takes 24 elements of 23")]
fn a_view_lies_inside_its_data() {
    View::contiguous(&[0.0f32; 23], [2, 3, 4]);
}

#[test]
fn pairs_are_counted() {
    let sizes = [0, 1, 2, 5, 8];
    for (queries, keys) in sizes
        .iter()
        .flat_map(|q| sizes.iter().map(move |k| (*q, *k)))
    {
        let places = (-9..10).flat_map(|offset| (1..5).map(move |step| (offset, step)));
        for (offset, step) in places {
            for causal in [false, true] {
                for window in [None, Some(1), Some(3), Some(20)] {
                    let visible = Visible {
                        causal,
                        window,
                        offset,
                        step,
                    };
                    let counted: usize = (0..queries).map(|i| visible.of(i, keys).len()).sum();
                    let found = visible.pairs(queries, keys);
                    assert_eq!(found, counted as u128, "{visible:?}, {queries} x {keys}");
                }
            }
        }
    }
}
