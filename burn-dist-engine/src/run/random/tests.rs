//! The law that a part is the part of the whole, and the shape of the distributions.

#![allow(
    clippy::single_range_in_vec_init,
    reason = "a region of one dim is one range"
)]

use super::*;
use proptest::prelude::*;

const DTYPES: [DType; 12] = [
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::I64,
    DType::I32,
    DType::I16,
    DType::I8,
    DType::U64,
    DType::U32,
    DType::U16,
    DType::U8,
];

const DISTRIBUTIONS: [Distribution; 4] = [
    Distribution::Default,
    Distribution::Uniform(0.0, 100.0),
    Distribution::Normal(50.0, 10.0),
    Distribution::Bernoulli(0.3),
];

fn drawing<'t>(
    distribution: Distribution,
    dtype: DType,
    shape: &'t [usize],
    runs: &'t [Range<usize>],
) -> Drawing<'t> {
    Drawing {
        seed: 1,
        stream: 2,
        distribution,
        dtype,
        shape,
        runs,
    }
}

fn whole(distribution: Distribution, dtype: DType, shape: &[usize]) -> TensorData {
    let region: Vec<_> = shape.iter().map(|size| 0..*size).collect();
    fill(1, 2, distribution, dtype, shape, &region).unwrap()
}

/// The elements of `region` by looking each up.
fn cut(data: &TensorData, shape: &[usize], region: &[Range<usize>]) -> Vec<u8> {
    let bytes = data.as_bytes();
    let size = bytes.len() / shape.iter().product::<usize>().max(1);
    let mut out = Vec::new();
    let count: usize = region.iter().map(|range| range.len()).product();
    for n in 0..count {
        let (mut flat, mut scale, mut rest) = (0, 1, n);
        for (range, dim) in region.iter().zip(shape).rev() {
            flat += (range.start + rest % range.len()) * scale;
            rest /= range.len();
            scale *= dim;
        }
        out.extend_from_slice(&bytes[flat * size..(flat + 1) * size]);
    }
    out
}

fn a_region() -> impl Strategy<Value = (Vec<usize>, Vec<Range<usize>>)> {
    let dim = (0usize..24).prop_flat_map(|size| {
        let part = (0..=size, 0..=size).prop_map(|(a, b)| a.min(b)..a.max(b));
        (Just(size), prop_oneof![Just(0..size), part])
    });
    proptest::collection::vec(dim, 0..4).prop_map(|dims| dims.into_iter().unzip())
}

proptest! {
    #[test]
    fn a_region_is_the_region_of_the_whole((shape, region) in a_region(), d in 0usize..12, k in 0usize..4) {
        let (dtype, distribution) = (DTYPES[d], DISTRIBUTIONS[k]);
        let part = fill(1, 2, distribution, dtype, &shape, &region).unwrap();
        let local: Vec<usize> = region.iter().map(|range| range.len()).collect();
        prop_assert_eq!(part.shape().to_vec(), local);
        prop_assert_eq!(part.dtype(), dtype);
        let all = whole(distribution, dtype, &shape);
        prop_assert_eq!(part.as_bytes(), &cut(&all, &shape, &region)[..]);
    }

    #[test]
    fn runs_of_any_cut_make_the_whole(mut cuts in proptest::collection::vec(0usize..500, 0..6), k in 0usize..4) {
        cuts.extend([0, 500]);
        cuts.sort_unstable();
        let runs = cuts.windows(2).map(|pair| pair[0]..pair[1]);
        let parts = fill_runs(1, 2, DISTRIBUTIONS[k], DType::F32, [500], runs).unwrap();
        prop_assert_eq!(parts, whole(DISTRIBUTIONS[k], DType::F32, &[500]));
    }
}

proptest! {
    /// Elements that are drawn from one on are those that the whole part has there.
    #[test]
    fn pieces_are_those_of_the_part(
        (shape, region) in a_region(),
        d in 0usize..3,
        k in 0usize..4,
        cut in 0usize..2000,
        len in 0usize..2000,
    ) {
        let (dtype, distribution) = ([DType::F32, DType::F16, DType::BF16][d], DISTRIBUTIONS[k]);
        let local: Vec<usize> = region.iter().map(|range| range.len()).collect();
        let count: usize = local.iter().product();
        let runs: Vec<_> = region_runs(&shape, &region).collect();
        let pieces = drawing(distribution, dtype, &local, &runs).pieces().unwrap();
        let first = cut.min(count);
        let mut made = vec![std::mem::MaybeUninit::new(f32::NAN); len.min(count - first)];
        pieces.draw(first, &mut made);
        // SAFETY: written above.
        let made: Vec<f32> = made.iter().map(|made| unsafe { made.assume_init() }).collect();
        let part = fill(1, 2, distribution, dtype, &shape, &region).unwrap();
        let part: Vec<f32> = part.iter::<f32>().collect();
        prop_assert_eq!(&made, &part[first..first + made.len()]);
    }
}

#[test]
fn no_pieces_are_drawn_of_other_types() {
    let of = |dtype, distribution| {
        drawing(distribution, dtype, &[4], &[0..4])
            .pieces()
            .map(|_| ())
    };
    let refused = |found: Result<(), RandomError>| found.unwrap_err().to_string();
    let other = refused(of(DType::I32, Distribution::Default));
    assert!(other.contains("I32"), "{other}");
    let wrong = refused(of(DType::F32, Distribution::Bernoulli(1.5)));
    assert!(wrong.contains("1.5"), "{wrong}");
}

/// Parts of several pieces, cut anywhere, on any number of threads.
#[test]
fn threads_make_the_same_values() {
    let count = 3 * ELEMENTS_OF_A_PIECE + 5;
    let cuts = [
        0,
        7,
        7,
        ELEMENTS_OF_A_PIECE - 2,
        ELEMENTS_OF_A_PIECE + 1,
        count,
    ];
    let runs = || cuts.windows(2).map(|pair| pair[0]..pair[1]);
    for dtype in [DType::F32, DType::BF16, DType::I64] {
        for distribution in DISTRIBUTIONS {
            let alone = whole(distribution, dtype, &[count]);
            // Element by element, each by itself.
            for at in [0, 1, ELEMENTS_OF_A_PIECE, count - 1] {
                let one = fill(1, 2, distribution, dtype, &[count], &[at..at + 1]).unwrap();
                let size = dtype.size();
                assert_eq!(
                    one.as_bytes(),
                    &alone.as_bytes()[at * size..(at + 1) * size]
                );
            }
            for threads in [1, 2, 3] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
                let made = || fill_runs(1, 2, distribution, dtype, [count], runs()).unwrap();
                assert_eq!(pool.unwrap().install(made), alone);
            }
        }
    }
}

#[test]
fn runs_of_a_region_join_whole_dims() {
    let runs =
        |shape: &[usize], region: &[Range<usize>]| region_runs(shape, region).collect::<Vec<_>>();
    assert_eq!(runs(&[4, 6], &[1..3, 2..5]), [8..11, 14..17]);
    assert_eq!(runs(&[4, 6], &[1..3, 0..6]), [6..18]);
    assert_eq!(runs(&[2, 4, 6], &[0..2, 1..3, 0..6]), [6..18, 30..42]);
    assert_eq!(runs(&[2, 3], &[0..2, 0..3]), [0..6]);
    assert_eq!(runs(&[], &[]), [0..1]);
    assert!(runs(&[4, 6], &[1..3, 2..2]).is_empty());
}

#[test]
fn seeds_and_streams_differ_and_repeat() {
    let make = |seed, stream| {
        fill(
            seed,
            stream,
            Distribution::Default,
            DType::F32,
            &[64],
            &[0..64],
        )
        .unwrap()
    };
    assert_eq!(make(1, 2), make(1, 2));
    let all = [
        make(1, 2),
        make(2, 1),
        make(1, 3),
        make(1 << 32, 2),
        make(1, 2 << 32),
    ];
    for (i, a) in all.iter().enumerate() {
        assert!(all[..i].iter().all(|b| a != b));
    }
}

/// Values that must not change between versions: checkpoints and papers refer to seeds.
#[test]
fn values_are_pinned() {
    let bits = |distribution| -> Vec<u32> {
        let data = fill(42, 0, distribution, DType::F32, &[5], &[0..5]).unwrap();
        data.iter::<f32>().map(f32::to_bits).collect()
    };
    assert_eq!(
        bits(Distribution::Default),
        [1058859760, 1055910546, 1033239168, 1051624806, 1065147169]
    );
    assert_eq!(
        bits(Distribution::Normal(0.0, 1.0)),
        [3212336732, 1044819176, 3214813395, 1073103676, 3180716083]
    );
    let ints = fill(
        42,
        0,
        Distribution::Uniform(-10.0, 10.0),
        DType::I64,
        &[5],
        &[0..5],
    )
    .unwrap();
    assert_eq!(ints.iter::<i64>().collect::<Vec<_>>(), [-1, -4, -4, -1, 3]);
}

const COUNT: usize = 1 << 18;

fn sample(distribution: Distribution, dtype: DType) -> Vec<f64> {
    whole(distribution, dtype, &[COUNT]).iter::<f64>().collect()
}

/// The largest distance between the empirical and the true distribution function (Kolmogorov-Smirnov).
fn distance(mut values: Vec<f64>, cdf: impl Fn(f64) -> f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let n = values.len() as f64;
    let at = |(i, v): (usize, &f64)| {
        let p = cdf(*v);
        (p - i as f64 / n).abs().max((p - (i + 1) as f64 / n).abs())
    };
    values.iter().enumerate().map(at).fold(0.0, f64::max)
}

/// Exceeded by chance once in about 10^8 cases.
fn limit() -> f64 {
    3.1 / (COUNT as f64).sqrt()
}

#[test]
fn floats_have_their_distribution() {
    let values = sample(Distribution::Default, DType::F32);
    assert!(values.iter().all(|v| (0.0..1.0).contains(v)));
    assert!(distance(values, |v| v) < limit());

    let values = sample(Distribution::Uniform(-3.0, 5.0), DType::F64);
    assert!(values.iter().all(|v| (-3.0..5.0).contains(v)));
    assert!(distance(values, |v| (v + 3.0) / 8.0) < limit());

    let values = sample(Distribution::Normal(1.0, 2.0), DType::F32);
    let mut tails = values.iter().map(|v| (v - 1.0).abs() / 2.0);
    assert!(tails.any(|z| z > 4.0), "values far out occur");
    assert!(distance(values, |v| normal_cdf((v - 1.0) / 2.0)) < limit());
}

/// The standard normal distribution function by Simpson's rule on its density.
fn normal_cdf(z: f64) -> f64 {
    let steps = 200;
    let h = z / steps as f64;
    let density = |x: f64| (-0.5 * x * x).exp() / core::f64::consts::TAU.sqrt();
    let sum: f64 = (0..=steps)
        .map(|i| match i {
            0 => density(0.0),
            i if i == steps => density(z),
            i if i % 2 == 1 => 4.0 * density(i as f64 * h),
            i => 2.0 * density(i as f64 * h),
        })
        .sum();
    0.5 + sum * h / 3.0
}

#[test]
fn neighbours_are_uncorrelated() {
    let values = sample(Distribution::Normal(0.0, 1.0), DType::F32);
    for lag in 1..=8 {
        let product: f64 = values.iter().zip(&values[lag..]).map(|(a, b)| a * b).sum();
        let correlation = product / COUNT as f64;
        assert!(
            correlation.abs() < 6.0 / (COUNT as f64).sqrt(),
            "lag {lag}: {correlation}"
        );
    }
}

#[test]
fn bernoulli_hits_its_rate() {
    for dtype in [DType::F32, DType::I64] {
        let values = sample(Distribution::Bernoulli(0.3), dtype);
        assert!(values.iter().all(|v| *v == 0.0 || *v == 1.0));
        let rate = values.iter().sum::<f64>() / COUNT as f64;
        assert!(
            (rate - 0.3).abs() < 6.0 * (0.21 / COUNT as f64).sqrt(),
            "{rate}"
        );
        assert!(
            sample(Distribution::Bernoulli(0.0), dtype)
                .iter()
                .all(|v| *v == 0.0)
        );
        assert!(
            sample(Distribution::Bernoulli(1.0), dtype)
                .iter()
                .all(|v| *v == 1.0)
        );
    }
}

#[test]
fn ints_are_those_between_the_truncated_bounds() {
    for dtype in [DType::I64, DType::I8, DType::U16] {
        let values = sample(Distribution::Uniform(0.9, 10.7), dtype);
        for wanted in 0..10 {
            let share = values.iter().filter(|v| **v == f64::from(wanted)).count();
            let expected = COUNT as f64 / 10.0;
            assert!(
                (share as f64 - expected).abs() < 6.0 * expected.sqrt(),
                "{wanted}: {share}"
            );
        }
        assert!(values.iter().all(|v| (0.0..10.0).contains(v)));
    }
    let values = sample(Distribution::Uniform(-2.5, 1.0), DType::I32);
    assert!(values.iter().all(|v| [-2.0, -1.0, 0.0].contains(v)));
    // The whole range of a small dtype, each value about as often as the others.
    let values = sample(Distribution::Default, DType::I8);
    for wanted in -128..128 {
        let share = values.iter().filter(|v| **v == f64::from(wanted)).count();
        assert!(
            (share as f64 - 1024.0).abs() < 6.0 * 32.0,
            "{wanted}: {share}"
        );
    }
    let values = sample(Distribution::Default, DType::U64);
    assert!(distance(values, |v| v / 2f64.powi(64)) < limit());
}

#[test]
fn what_cannot_be_drawn_says_so() {
    let make = |distribution, dtype| fill(1, 2, distribution, dtype, &[4], &[0..4]);
    for (low, high) in [
        (1.0, 1.0),
        (2.0, 1.0),
        (f64::NAN, 1.0),
        (0.0, f64::INFINITY),
    ] {
        let error = make(Distribution::Uniform(low, high), DType::F32).unwrap_err();
        assert!(matches!(error, RandomError::EmptyRange { .. }), "{error}");
    }
    for (low, high) in [
        (0.1, 0.9),
        (3.0, 1.0),
        (0.0, f64::INFINITY),
        (f64::NAN, 1.0),
    ] {
        let error = make(Distribution::Uniform(low, high), DType::I32).unwrap_err();
        assert!(matches!(error, RandomError::EmptyRange { .. }), "{error}");
    }
    for p in [-0.1, 1.5, f64::NAN] {
        let error = make(Distribution::Bernoulli(p), DType::F32).unwrap_err();
        assert!(matches!(error, RandomError::Probability { .. }), "{error}");
    }
    let error = make(Distribution::Normal(0.0, f64::INFINITY), DType::F32).unwrap_err();
    assert!(matches!(error, RandomError::NotFinite { .. }), "{error}");
    let bool = DType::Bool(burn_std::BoolStore::Native);
    let error = make(Distribution::Default, bool).unwrap_err();
    assert_eq!(error, RandomError::UnsupportedDtype { dtype: bool });

    for region in [vec![0..5], vec![0..2, 0..1], vec![]] {
        let error = fill(1, 2, Distribution::Default, DType::F32, &[4], &region).unwrap_err();
        assert!(matches!(error, RandomError::Region { .. }), "{error}");
    }
    let error = fill_runs(
        1,
        2,
        Distribution::Default,
        DType::F32,
        [4],
        [0..2, 4..9].into_iter(),
    );
    let expected = RandomError::Elements {
        shape: vec![4],
        expected: 4,
        found: 7,
    };
    assert_eq!(error, Err(expected));
}
