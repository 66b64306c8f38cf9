//! Products of matrices, bit for bit as Burn's Flex makes them.
//!
//! Flex calls the crate `gemm` once for each matrix of a batch, and writes to memory that it has set to zero and moved.
//! Here results go to memory that is only written, a batch that shares its right matrix is one product of more rows, and
//! products that are added up are added in place. Each element is still the same sum: `gemm` adds up along the inner dim
//! in blocks whose length depends on that dim alone. Products so small that it has loops of their own for them are made
//! one by one.

use std::mem::MaybeUninit;

use gemm::Parallelism;
use rayon::prelude::*;

/// Multiplications from which on the threads share a product; Flex's number.
const SHARED_MIN: usize = 192 * 192 * 192;
/// Multiplications of a batch from which on the threads share its products; Flex's number.
const BATCH_SHARED_MIN: usize = 128 * 128 * 128;
/// Elements of a result up to which `gemm` may have loops that add up in another order.
const SMALL: usize = 16 * 16;
/// Inner dims up to which `gemm` has loops of their own.
const THIN: usize = 2;
/// Rows and columns up to which `gemm` has blocks of another length.
const TILE: usize = 64;
/// Rows of the smallest part of a product that a thread has: `gemm` goes through 6 or 16 of them at a time.
const ROWS: usize = 96;
/// Inner dims up to which `gemm` finds an element in one block, so that adding it to what is there rounds once more.
const ONE_BLOCK: usize = 512;

/// The sizes of a batch of products, `[batch..., rows, inner]` by `[batch..., inner, columns]`.
#[derive(Clone, Copy, Debug)]
pub struct Sizes<'a> {
    /// Sizes of the batch, one for each of its dims.
    pub batch: &'a [usize],
    /// Rows of left matrices and of results.
    pub rows: usize,
    /// Columns of left matrices, rows of right ones.
    pub inner: usize,
    /// Columns of right matrices and of results.
    pub columns: usize,
}

/// Matrices in memory.
#[derive(Clone, Copy, Debug)]
pub struct Matrices<'a> {
    /// The memory that holds them.
    pub values: &'a [f32],
    /// The first element.
    pub offset: usize,
    /// Elements from one index to the next along each dim of the batch; zero where it repeats.
    pub batch: &'a [isize],
    /// Elements from one row to the next.
    pub rows: isize,
    /// Elements from one column to the next.
    pub columns: isize,
}

impl Matrices<'_> {
    /// # Panics
    /// If an element lies outside.
    fn check(&self, batch: &[usize], rows: usize, columns: usize) {
        assert_eq!(
            batch.len(),
            self.batch.len(),
            "a stride for each dim of the batch"
        );
        let own = [(&rows, &self.rows), (&columns, &self.columns)];
        let (mut least, mut most) = (self.offset as isize, self.offset as isize);
        for (size, stride) in batch.iter().zip(self.batch).chain(own) {
            let reach = stride.saturating_mul(size.saturating_sub(1) as isize);
            least = least.saturating_add(reach.min(0));
            most = most.saturating_add(reach.max(0));
        }
        assert!(
            least >= 0 && (most as usize) < self.values.len(),
            "elements {least} to {most} of {}",
            self.values.len()
        );
    }

    /// Returns the first element of a matrix of the batch.
    fn first(&self, batch: &[usize], index: usize) -> isize {
        let mut rest = index;
        let dims = batch.iter().zip(self.batch).rev();
        let along = dims.map(|(size, stride)| {
            let at = rest % size;
            rest /= size;
            at as isize * stride
        });
        self.offset as isize + along.sum::<isize>()
    }
}

impl<'a> Sizes<'a> {
    fn is_empty(&self) -> bool {
        self.count() * self.rows * self.columns == 0
    }

    /// Returns the number of products.
    fn count(&self) -> usize {
        self.batch.iter().product()
    }

    /// Returns the multiplications of one product.
    fn work(&self) -> usize {
        let result = self.rows.saturating_mul(self.columns);
        result.saturating_mul(self.inner)
    }

    /// Returns whether elements are the same sums whatever rows are beside them, and however matrices lie.
    pub fn is_divisible(&self) -> bool {
        let (least, most) = (self.rows.min(self.columns), self.rows.max(self.columns));
        let is_in_tiles = self.inner <= ONE_BLOCK || most > TILE;
        least > 1 && self.inner > THIN && least * most > SMALL && is_in_tiles
    }

    /// Returns the same products, with dims of the batch as rows where that is the same for both matrices.
    fn with_rows_of_batch(mut self, left: &Matrices<'a>, right: &Matrices<'a>) -> Self {
        if !self.is_divisible() {
            return self;
        }
        while let Some((&size, outer)) = self.batch.split_last() {
            let dim = outer.len();
            let is_next = left.batch[dim] == left.rows * self.rows as isize;
            let repeats = right.batch[dim] == 0;
            if size != 1 && !(is_next && repeats) {
                break;
            }
            self.rows *= size;
            self.batch = outer;
        }
        self
    }
}

/// One call of `gemm`: rows of one matrix of the batch.
#[derive(Clone, Copy)]
struct Call<'a> {
    sizes: Sizes<'a>,
    left: Matrices<'a>,
    right: Matrices<'a>,
}

impl Call<'_> {
    /// Writes the product with all threads.
    fn run_shared(&self, index: usize, out: &mut [MaybeUninit<f32>]) {
        let (sizes, threads) = (self.sizes, rayon::current_num_threads());
        if threads == 1 || !sizes.is_divisible() || sizes.rows < threads * ROWS {
            return self.run(index, Parallelism::Rayon(0), out, false);
        }
        // Threads meet once: `gemm` lets them meet for each block, and before it for the factors of that.
        let (rows, parts) = parts(sizes.rows, threads, ROWS);
        let parts = split(out, parts, rows * sizes.columns);
        parts.into_par_iter().enumerate().for_each(|(part, out)| {
            let call = self.of_rows(part * rows, out.len() / sizes.columns);
            call.run(index, Parallelism::None, out, false);
        });
    }

    /// Returns the same products of so many rows from `first` on.
    fn of_rows(&self, first: usize, rows: usize) -> Self {
        let Self { sizes, left, right } = *self;
        let skipped = left.rows * first as isize;
        Self {
            sizes: Sizes { rows, ..sizes },
            left: Matrices {
                offset: left.offset.wrapping_add_signed(skipped),
                ..left
            },
            right,
        }
    }

    /// Writes the product, or adds it to what is there if that is written.
    fn run(
        &self,
        index: usize,
        parallelism: Parallelism,
        out: &mut [MaybeUninit<f32>],
        adds: bool,
    ) {
        let Self { sizes, left, right } = self;
        assert_eq!(
            out.len(),
            sizes.rows * sizes.columns,
            "memory for one product"
        );
        let (at_left, at_right) = (
            left.first(sizes.batch, index),
            right.first(sizes.batch, index),
        );
        // SAFETY: all elements of the batch lie inside, which `check` has found; the result has its memory for itself,
        // and where it is read, it was written.
        unsafe {
            gemm::gemm(
                sizes.rows,
                sizes.columns,
                sizes.inner,
                out.as_mut_ptr().cast::<f32>(),
                1,
                sizes.columns as isize,
                adds,
                left.values.as_ptr().offset(at_left),
                left.columns,
                left.rows,
                right.values.as_ptr().offset(at_right),
                right.columns,
                right.rows,
                if adds { 1.0 } else { 0.0 },
                1.0,
                false,
                false,
                false,
                parallelism,
            );
        }
    }
}

/// Writes the products of a batch, `[batch..., rows, columns]` in order.
///
/// # Panics
/// If `out` has another size, or a matrix lies outside of its memory.
pub fn product<'a>(
    sizes: Sizes<'a>,
    left: Matrices<'a>,
    right: Matrices<'a>,
    out: &mut [MaybeUninit<f32>],
) {
    assert_eq!(out.len(), sizes.count() * sizes.rows * sizes.columns);
    if sizes.is_empty() {
        return;
    }
    check(&sizes, &left, &right);
    let sizes = sizes.with_rows_of_batch(&left, &right);
    let (left, right) = (left.of(sizes.batch.len()), right.of(sizes.batch.len()));
    let (count, size) = (sizes.count(), sizes.rows * sizes.columns);
    let call = Call { sizes, left, right };
    let all_work = count.saturating_mul(sizes.work());
    let by_matrix = count >= 4 && all_work >= BATCH_SHARED_MIN;
    if sizes.work() >= SHARED_MIN && !by_matrix {
        for (index, out) in out.chunks_exact_mut(size).enumerate() {
            call.run_shared(index, out);
        }
    } else if count > 1 && all_work >= BATCH_SHARED_MIN {
        let each = out.par_chunks_exact_mut(size).enumerate();
        each.for_each(|(index, out)| call.run(index, Parallelism::None, out, false));
    } else {
        for (index, out) in out.chunks_exact_mut(size).enumerate() {
            call.run(index, Parallelism::None, out, false);
        }
    }
}

/// Writes the sum of the products of a batch, `[rows, columns]`, as they would be added one after the other to zeros.
///
/// # Panics
/// The same as of [`product`].
pub fn sum_of_products<'a>(
    sizes: Sizes<'a>,
    left: Matrices<'a>,
    right: Matrices<'a>,
    out: &mut [MaybeUninit<f32>],
) {
    assert_eq!(out.len(), sizes.rows * sizes.columns);
    out.fill(MaybeUninit::new(0.0));
    if sizes.is_empty() || sizes.inner == 0 {
        return;
    }
    check(&sizes, &left, &right);
    let threads = rayon::current_num_threads();
    let is_shared = sizes.is_divisible()
        && (sizes.inner <= ONE_BLOCK || sizes.columns > TILE)
        && threads > 1
        && sizes.count().saturating_mul(sizes.work()) >= BATCH_SHARED_MIN;
    // Rows of each part: so many that it is found as the whole would be.
    let least = (SMALL / sizes.columns + 1).max(2);
    let (rows, parts) = match is_shared {
        true => parts(sizes.rows, threads, least),
        false => (sizes.rows, 1),
    };
    let parts: Vec<&mut [MaybeUninit<f32>]> = split(out, parts, rows * sizes.columns);
    let run = |(part, out): (usize, &mut [MaybeUninit<f32>])| {
        let whole = Call { sizes, left, right };
        whole
            .of_rows(part * rows, out.len() / sizes.columns)
            .sum(out);
    };
    match parts.len() {
        1 => parts.into_iter().enumerate().for_each(run),
        _ => parts.into_par_iter().enumerate().for_each(run),
    }
}

impl Call<'_> {
    /// Adds the products of the batch to what is there, which is written.
    fn sum(&self, out: &mut [MaybeUninit<f32>]) {
        // Small products are not found in blocks.
        let in_place = self.sizes.is_divisible() && self.sizes.inner <= ONE_BLOCK;
        let mut apart = match in_place {
            true => Vec::new(),
            false => vec![MaybeUninit::uninit(); out.len()],
        };
        for index in 0..self.sizes.count() {
            if in_place {
                self.run(index, Parallelism::None, out, true);
                continue;
            }
            self.run(index, Parallelism::None, &mut apart, false);
            for (sum, product) in out.iter_mut().zip(&apart) {
                // SAFETY: sums begin as zeros, and the product was written.
                unsafe { sum.write(sum.assume_init() + product.assume_init()) };
            }
        }
    }
}

impl<'a> Matrices<'a> {
    /// Returns them with the first dims of the batch alone.
    fn of(self, dims: usize) -> Self {
        Self {
            batch: &self.batch[..dims],
            ..self
        }
    }
}

/// Returns how many rows a part has, and how many parts there are: one for each thread, of at least so many rows. The
/// last has what is left over too.
fn parts(rows: usize, threads: usize, least: usize) -> (usize, usize) {
    let each = rows.div_ceil(threads).next_multiple_of(16).max(least);
    let rest = usize::from(rows % each >= least);
    (each, (rows / each + rest).max(1))
}

/// Splits memory in so many parts, all of a length but the last.
fn split<T>(mut rest: &mut [T], count: usize, len: usize) -> Vec<&mut [T]> {
    let mut parts = Vec::with_capacity(count);
    for _ in 1..count {
        let (part, others) = rest.split_at_mut(len);
        parts.push(part);
        rest = others;
    }
    parts.push(rest);
    parts
}

fn check(sizes: &Sizes<'_>, left: &Matrices<'_>, right: &Matrices<'_>) {
    if sizes.inner > 0 {
        left.check(sizes.batch, sizes.rows, sizes.inner);
        right.check(sizes.batch, sizes.inner, sizes.columns);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The calls of Flex: one for each matrix of the batch.
    fn one_by_one(call: &Call<'_>) -> Vec<Vec<f32>> {
        let len = call.sizes.rows * call.sizes.columns;
        let each = (0..call.sizes.count()).map(|index| {
            let mut out = vec![MaybeUninit::new(0.0); len];
            call.run(index, Parallelism::None, &mut out, false);
            read(&out)
        });
        each.collect()
    }

    fn read(out: &[MaybeUninit<f32>]) -> Vec<f32> {
        // SAFETY: all of it was written.
        out.iter().map(|x| unsafe { x.assume_init() }).collect()
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|x| x.to_bits()).collect()
    }

    fn values(len: usize, seed: u64) -> Vec<f32> {
        let mut state = seed | 1;
        let next = |_| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            ((state >> 33) as f32 / (1u64 << 31) as f32 - 0.5) * 4.0
        };
        (0..len).map(next).collect()
    }

    /// Strides of a batch of matrices in order, or of turned ones; of one matrix for all of a dim where it repeats.
    fn strides(
        batch: &[usize],
        repeats: &[bool],
        [rows, columns]: [usize; 2],
        turned: bool,
    ) -> (Vec<isize>, [isize; 2], usize) {
        let own = match turned {
            true => [1, rows as isize],
            false => [columns as isize, 1],
        };
        let mut len = rows * columns;
        let mut all = vec![0; batch.len()];
        for dim in (0..batch.len()).rev() {
            if !repeats[dim] {
                all[dim] = len as isize;
                len *= batch[dim];
            }
        }
        (all, own, len)
    }

    fn size() -> impl Strategy<Value = usize> {
        prop_oneof![
            Just(1),
            Just(2),
            Just(3),
            4..40usize,
            Just(64),
            Just(130),
            Just(260)
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn products_are_those_of_one_call_each(
            batch in prop::collection::vec(1..5usize, 0..3),
            (rows, inner, columns) in (size(), prop_oneof![size(), 500..1100usize], size()),
            repeats in prop::collection::vec(any::<[bool; 2]>(), 2),
            turned in any::<[bool; 2]>(),
            threads in 1..4usize,
        ) {
            let of = |side: usize| repeats.iter().map(|r| r[side]).collect::<Vec<_>>();
            let (left_batch, left_own, left_len) = strides(&batch, &of(0), [rows, inner], turned[0]);
            let (right_batch, right_own, right_len) = strides(&batch, &of(1), [inner, columns], turned[1]);
            let (left_values, right_values) = (values(left_len, 3), values(right_len, 5));
            let sizes = Sizes { batch: &batch, rows, inner, columns };
            let left = Matrices {
                values: &left_values,
                offset: 0,
                batch: &left_batch,
                rows: left_own[0],
                columns: left_own[1],
            };
            let right = Matrices {
                values: &right_values,
                offset: 0,
                batch: &right_batch,
                rows: right_own[0],
                columns: right_own[1],
            };
            let expected = one_by_one(&Call { sizes, left, right });
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let mut out = vec![MaybeUninit::uninit(); expected.concat().len()];
            pool.install(|| product(sizes, left, right, &mut out));
            prop_assert_eq!(bits(&read(&out)), bits(&expected.concat()));
            let mut sums = vec![0.0; rows * columns];
            for one in &expected {
                sums.iter_mut().zip(one).for_each(|(sum, x)| *sum += x);
            }
            let mut out = vec![MaybeUninit::uninit(); rows * columns];
            pool.install(|| sum_of_products(sizes, left, right, &mut out));
            prop_assert_eq!(bits(&read(&out)), bits(&sums));
        }
    }

    /// Also where a row or two are left over.
    #[test]
    fn rows_that_threads_share_are_those_of_one_call() {
        for (rows, threads) in [192, 193, 194, 289, 300, 385]
            .into_iter()
            .flat_map(|rows| [(rows, 2), (rows, 3)])
        {
            for [inner, columns] in [[160, 256], [600, 70]] {
                let (left, right) = (values(rows * inner, 3), values(inner * columns, 5));
                let of = |values, columns| Matrices {
                    values,
                    offset: 0,
                    batch: &[],
                    rows: columns,
                    columns: 1,
                };
                let (left, right) = (of(&left, inner as isize), of(&right, columns as isize));
                let sizes = Sizes {
                    batch: &[],
                    rows,
                    inner,
                    columns,
                };
                assert!(sizes.work() >= SHARED_MIN);
                let expected = one_by_one(&Call { sizes, left, right });
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
                let mut out = vec![MaybeUninit::uninit(); rows * columns];
                pool.unwrap()
                    .install(|| product(sizes, left, right, &mut out));
                assert_eq!(
                    bits(&read(&out)),
                    bits(&expected.concat()),
                    "{rows} {threads}"
                );
            }
        }
    }

    #[test]
    #[should_panic(expected = "elements 0 to 6 of 6")]
    fn a_matrix_outside_of_its_memory_is_refused() {
        let values = [0.0; 6];
        let of = |columns| Matrices {
            values: &values,
            offset: 0,
            batch: &[],
            rows: columns,
            columns: 1,
        };
        let sizes = Sizes {
            batch: &[],
            rows: 2,
            inner: 3,
            columns: 2,
        };
        let mut out = [MaybeUninit::uninit(); 4];
        product(sizes, of(4), of(2), &mut out);
    }
}
