//! The inner loops over rows of scores, compiled for the vectors of the machine at hand.
//!
//! Sums run in a fixed number of lanes, and exponentials are those of [regions](crate::region), so that results have
//! the same bits on every machine.

use pulp::NullaryFnOnce;

use crate::region::{Double, Instructions, Level, Loop, Single};

/// Lanes of sums and maxima.
const LANES: usize = 16;

/// The work of attention on rows.
pub trait Rows: Sized {
    /// Returns the largest element, or -infinity; NaN are passed over.
    fn largest(row: &[Self]) -> Self;

    /// Puts `exp(x - shift)` in the place of each element and returns their sum.
    fn exp_sum(row: &mut [Self], shift: Self) -> Self;

    /// Returns the sum of the products of two rows.
    fn dot(left: &[Self], right: &[Self]) -> Self;

    /// Puts `exp(x - shift)` in the place of each element.
    fn exp_each(row: &mut [Self], shift: Self);

    /// Multiplies each element.
    fn scale(row: &mut [Self], factor: Self);

    /// Puts `weight * (gradient - mean)` in the place of each gradient: the backward of softmax.
    fn softmax_backward(gradients: &mut [Self], weights: &[Self], mean: Self);
}

/// The sum of lanes: those 8 apart first, then 4, 2 and 1.
macro_rules! total {
    ($lanes:ident) => {{
        let mut width = LANES / 2;
        while width > 0 {
            for lane in 0..width {
                $lanes[lane] += $lanes[lane + width];
            }
            width /= 2;
        }
        $lanes[0]
    }};
}

macro_rules! rows {
    ($type:ty, $exp:path) => {
        impl Rows for $type {
            fn largest(row: &[Self]) -> Self {
                struct Largest<'a>(&'a [$type]);
                impl NullaryFnOnce for Largest<'_> {
                    type Output = $type;
                    #[inline(always)]
                    fn call(self) -> $type {
                        let larger = |a: $type, b: $type| if b > a { b } else { a };
                        let mut lanes = [<$type>::NEG_INFINITY; LANES];
                        let (blocks, rest) = self.0.as_chunks::<LANES>();
                        for block in blocks {
                            for (lane, x) in lanes.iter_mut().zip(block) {
                                *lane = larger(*lane, *x);
                            }
                        }
                        lanes
                            .iter()
                            .chain(rest)
                            .fold(<$type>::NEG_INFINITY, |a, b| larger(a, *b))
                    }
                }
                Level::best().run(Largest(row))
            }

            fn exp_sum(row: &mut [Self], shift: Self) -> Self {
                struct ExpSum<'a>(&'a mut [$type], $type);
                impl Loop for ExpSum<'_> {
                    type Output = $type;
                    #[inline(always)]
                    fn call<I: Instructions>(self) -> $type {
                        let mut lanes = [0.0; LANES];
                        let (blocks, rest) = self.0.as_chunks_mut::<LANES>();
                        for block in blocks {
                            for (lane, x) in lanes.iter_mut().zip(block) {
                                *x = $exp(*x - self.1);
                                *lane += *x;
                            }
                        }
                        for (lane, x) in lanes.iter_mut().zip(rest) {
                            *x = $exp(*x - self.1);
                            *lane += *x;
                        }
                        total!(lanes)
                    }
                }
                Level::best().run_fused(ExpSum(row, shift))
            }

            fn dot(left: &[Self], right: &[Self]) -> Self {
                struct Dot<'a>(&'a [$type], &'a [$type]);
                impl NullaryFnOnce for Dot<'_> {
                    type Output = $type;
                    #[inline(always)]
                    fn call(self) -> $type {
                        let mut lanes = [0.0; LANES];
                        let (left, left_rest) = self.0.as_chunks::<LANES>();
                        let (right, right_rest) = self.1.as_chunks::<LANES>();
                        for (left, right) in left.iter().zip(right) {
                            for lane in 0..LANES {
                                lanes[lane] += left[lane] * right[lane];
                            }
                        }
                        let rest = left_rest.iter().zip(right_rest);
                        for (lane, (left, right)) in lanes.iter_mut().zip(rest) {
                            *lane += left * right;
                        }
                        total!(lanes)
                    }
                }
                Level::best().run(Dot(left, right))
            }

            fn exp_each(row: &mut [Self], shift: Self) {
                struct Exp<'a>(&'a mut [$type], $type);
                impl Loop for Exp<'_> {
                    type Output = ();
                    #[inline(always)]
                    fn call<I: Instructions>(self) {
                        for x in self.0 {
                            *x = $exp(*x - self.1);
                        }
                    }
                }
                Level::best().run_fused(Exp(row, shift));
            }

            fn scale(row: &mut [Self], factor: Self) {
                struct Scale<'a>(&'a mut [$type], $type);
                impl NullaryFnOnce for Scale<'_> {
                    type Output = ();
                    #[inline(always)]
                    fn call(self) {
                        for x in self.0 {
                            *x *= self.1;
                        }
                    }
                }
                Level::best().run(Scale(row, factor));
            }

            fn softmax_backward(gradients: &mut [Self], weights: &[Self], mean: Self) {
                struct Softmax<'a>(&'a mut [$type], &'a [$type], $type);
                impl NullaryFnOnce for Softmax<'_> {
                    type Output = ();
                    #[inline(always)]
                    fn call(self) {
                        for (gradient, weight) in self.0.iter_mut().zip(self.1) {
                            *gradient = *weight * (*gradient - self.2);
                        }
                    }
                }
                Level::best().run(Softmax(gradients, weights, mean));
            }
        }
    };
}
rows!(f32, Single::<I>::exp);
rows!(f64, Double::exp);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_of_what_is_hidden_is_zero_and_of_nan_nan() {
        let mut row = [f32::NEG_INFINITY, -1e30, 0.0, f32::NAN, -f32::NAN];
        f32::exp_each(&mut row, 0.0);
        assert_eq!(
            row[..3].iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
            [0, 0, 1f32.to_bits()]
        );
        assert!(row[3..].iter().all(|x| x.is_nan()));
    }

    #[test]
    fn rows_of_any_length() {
        for len in 0..70 {
            let row: Vec<f64> = (0..len).map(|i| -f64::from(i * 7 % 13) / 3.0).collect();
            let narrow: Vec<f32> = row.iter().map(|x| *x as f32).collect();
            let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            assert_eq!(f64::largest(&row), largest);
            assert_eq!(f32::largest(&narrow), largest as f32);
            let sum: f64 = row.iter().map(|x| (x - 0.5).exp()).sum();
            let mut made = narrow.clone();
            let found = f32::exp_sum(&mut made, 0.5);
            assert!((f64::from(found) - sum).abs() <= 1e-6 * sum);
            let squares: f64 = row.iter().map(|x| x * x).sum();
            assert!((f64::dot(&row, &row) - squares).abs() <= 1e-14 * squares);
            let found = f64::from(f32::dot(&narrow, &narrow));
            assert!((found - squares).abs() <= 1e-6 * squares);
            let mut again = narrow;
            f32::exp_each(&mut again, 0.5);
            assert_eq!(made, again);
        }
    }
}
