//! Rows of a matrix by their numbers: read, or added up. All threads of rayon's pool share the result.

use std::mem::MaybeUninit;

use rayon::prelude::*;

use super::SHARED_MIN;
use crate::region::error::RegionError;
use crate::region::memory::bytes_of;

/// Checks the sizes of a result.
fn check(expected: usize, found: usize) -> Result<(), RegionError> {
    match expected == found {
        true => Ok(()),
        false => Err(RegionError::Memory {
            what: format!("rows of {expected} bytes in {found} bytes"),
        }),
    }
}

/// Checks that indices name one of some rows each.
fn check_indices(indices: &[i64], rows: usize) -> Result<(), RegionError> {
    let is_row = |index: &i64| usize::try_from(*index).is_ok_and(|row| row < rows);
    match indices.iter().find(|index| !is_row(index)) {
        Some(&index) => Err(RegionError::IndexOutside { index, len: rows }),
        None => Ok(()),
    }
}

/// Writes the rows that indices name, one after the other. A row has some bytes, and all of them lie in order.
///
/// # Errors
/// [`RegionError::IndexOutside`] of the first index that names none; [`RegionError::Memory`] if the result has another
/// size.
///
/// ```
/// use burn_dist_kernels::region::pick_rows;
/// let mut picked = vec![std::mem::MaybeUninit::uninit(); 6];
/// pick_rows(&[1, 2, 3, 4, 5, 6], 2, &[2, 0, 2], &mut picked)?;
/// // SAFETY: every byte is written.
/// let picked: Vec<u8> = picked.into_iter().map(|x| unsafe { x.assume_init() }).collect();
/// assert_eq!(picked, [5, 6, 1, 2, 5, 6]);
/// # Ok::<(), burn_dist_kernels::region::RegionError>(())
/// ```
pub fn pick_rows(
    from: &[u8],
    row_bytes: usize,
    indices: &[i64],
    to: &mut [MaybeUninit<u8>],
) -> Result<(), RegionError> {
    check(indices.len() * row_bytes, to.len())?;
    check_indices(indices, from.len() / row_bytes.max(1))?;
    if row_bytes == 0 {
        return Ok(());
    }
    let pick = |(to, index): (&mut [MaybeUninit<u8>], &i64)| {
        let first = *index as usize * row_bytes;
        to.write_copy_of_slice(&from[first..first + row_bytes]);
    };
    match to.len() < SHARED_MIN {
        true => to.chunks_exact_mut(row_bytes).zip(indices).for_each(pick),
        false => {
            let to = to.par_chunks_exact_mut(row_bytes).zip(indices);
            to.with_min_len(SHARED_MIN / 2 / row_bytes + 1)
                .for_each(pick);
        }
    }
    Ok(())
}

/// Writes a matrix of so many rows, in each of which those of `added` are added up that indices name it for, in order;
/// the others are zero.
///
/// # Errors
/// As [`pick_rows`].
///
/// ```
/// use burn_dist_kernels::region::add_rows;
/// let mut sums = vec![std::mem::MaybeUninit::uninit(); 3 * 2];
/// add_rows(3, &[1.0, 2.0, 10.0, 20.0, 100.0, 200.0], &[2, 0, 2], &mut sums)?;
/// // SAFETY: every element is written.
/// let sums: Vec<f32> = sums.into_iter().map(|x| unsafe { x.assume_init() }).collect();
/// assert_eq!(sums, [10.0, 20.0, 0.0, 0.0, 101.0, 202.0]);
/// # Ok::<(), burn_dist_kernels::region::RegionError>(())
/// ```
pub fn add_rows(
    rows: usize,
    added: &[f32],
    indices: &[i64],
    to: &mut [MaybeUninit<f32>],
) -> Result<(), RegionError> {
    let width = to.len() / rows.max(1);
    check(size_of_val(to), rows * width * size_of::<f32>())?;
    check(size_of_val(added), indices.len() * width * size_of::<f32>())?;
    check_indices(indices, rows)?;
    if width == 0 {
        return Ok(());
    }
    // Each part has rows of its own, and goes through all indices: so a row is added up in their order.
    let add = |(part, to): (usize, &mut [MaybeUninit<f32>]), part_rows: usize| {
        let first = part * part_rows;
        bytes_of(to).fill(MaybeUninit::new(0));
        // SAFETY: every byte is written above, and zeros are floats.
        let to = unsafe { to.assume_init_mut() };
        let own = first..first + to.len() / width;
        for (index, added) in indices.iter().zip(added.chunks_exact(width)) {
            let row = *index as usize;
            if own.contains(&row) {
                let to = &mut to[(row - first) * width..][..width];
                to.iter_mut()
                    .zip(added)
                    .for_each(|(to, added)| *to += added);
            }
        }
    };
    match size_of_val(to) < SHARED_MIN {
        true => add((0, to), rows),
        false => {
            let part_rows = rows.div_ceil(rayon::current_num_threads());
            let parts = to.par_chunks_mut(part_rows * width).enumerate();
            parts.for_each(|part| add(part, part_rows));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::region::memory::places;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// On any number of threads, of small matrices and of ones that threads share.
        #[test]
        fn rows_are_those_that_indices_name(
            rows in 1usize..300,
            width in 1usize..300,
            seed in proptest::collection::vec(0usize..1 << 20, 0..200),
            threads in 1usize..4,
        ) {
            let indices: Vec<i64> = seed.iter().map(|index| (index % rows) as i64).collect();
            let number = |i: usize| ((i * 7919) % 1013) as f32 / 7.0 - 60.0;
            let table: Vec<f32> = (0..rows * width).map(number).collect();
            let added: Vec<f32> = (0..indices.len() * width).map(number).collect();
            let mut picked = vec![f32::NAN; indices.len() * width];
            let mut sums = vec![f32::NAN; rows * width];
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let from = bytemuck::cast_slice(&table);
                pick_rows(from, width * 4, &indices, bytes_of(places(&mut picked))).unwrap();
                add_rows(rows, &added, &indices, places(&mut sums)).unwrap();
            });
            let mut expected = vec![0f32; rows * width];
            for (at, index) in indices.iter().enumerate() {
                let row = *index as usize * width;
                prop_assert_eq!(&picked[at * width..][..width], &table[row..][..width]);
                for column in 0..width {
                    expected[row + column] += added[at * width + column];
                }
            }
            prop_assert_eq!(sums, expected);
        }
    }

    #[test]
    fn an_index_of_no_row_is_an_error_that_names_it() {
        for wrong in [-1, 3, i64::MIN, i64::MAX] {
            let expected = Err(RegionError::IndexOutside {
                index: wrong,
                len: 3,
            });
            let mut to = [f32::NAN; 4];
            let picked = pick_rows(&[0; 24], 8, &[2, wrong], bytes_of(places(&mut to)));
            assert_eq!(picked, expected);
            let mut to = [f32::NAN; 6];
            assert_eq!(
                add_rows(3, &[1.0; 4], &[2, wrong], places(&mut to)),
                expected
            );
        }
        let mut to = [f32::NAN; 3];
        let short = pick_rows(&[0; 24], 8, &[2, 1], bytes_of(places(&mut to)));
        assert!(
            matches!(short, Err(RegionError::Memory { .. })),
            "{short:?}"
        );
    }
}
