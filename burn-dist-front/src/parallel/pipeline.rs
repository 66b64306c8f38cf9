//! How a batch is cut into microbatches along its rows.

/// Why a batch cannot be cut into microbatches. Nothing has been computed when one is returned.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// No microbatches were asked for.
    #[error("a batch was to be cut into 0 microbatches: use 1 or more")]
    NoMicrobatches,
    /// More microbatches than rows.
    #[error(
        "a batch of {rows} row(s) cannot be cut into {microbatches} microbatches: use at most {rows}, or a larger batch"
    )]
    TooFewRows {
        /// Rows of the batch.
        rows: usize,
        /// Microbatches asked for.
        microbatches: usize,
    },
    /// Parts of a batch that have different numbers of rows.
    #[error(
        "the parts of the batch have {} rows: dim 0 of each has to be the batch",
        .rows.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
    )]
    UnevenBatch {
        /// Rows of each part.
        rows: Vec<usize>,
    },
}

burn_dist_mesh::debug_by_message!(PipelineError);

/// Returns the number of rows of each microbatch of a batch whose parts have so many `rows`; the first ones have one
/// more where the number does not divide them.
///
/// # Errors
/// [`PipelineError`] for a batch that cannot be cut so.
pub fn microbatches(rows: Vec<usize>, microbatches: usize) -> Result<Vec<usize>, PipelineError> {
    if microbatches == 0 {
        return Err(PipelineError::NoMicrobatches);
    }
    let first = rows.first().copied().unwrap_or(0);
    if rows.iter().any(|other| *other != first) {
        return Err(PipelineError::UnevenBatch { rows });
    }
    if first < microbatches {
        return Err(PipelineError::TooFewRows {
            rows: first,
            microbatches,
        });
    }
    let more = first % microbatches;
    let size = |number| first / microbatches + usize::from(number < more);
    Ok((0..microbatches).map(size).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_shared_out() {
        assert_eq!(microbatches(vec![8], 4), Ok(vec![2; 4]));
        assert_eq!(microbatches(vec![7], 3), Ok(vec![3, 2, 2]));
        assert_eq!(microbatches(vec![4, 4], 1), Ok(vec![4]));
    }

    #[test]
    fn batches_that_cannot_be_cut_say_so() {
        let text = |error: Result<_, PipelineError>| error.unwrap_err().to_string();
        assert_eq!(
            text(microbatches(vec![3], 4)),
            "a batch of 3 row(s) cannot be cut into 4 microbatches: use at most 3, or a larger batch"
        );
        assert_eq!(
            text(microbatches(vec![3, 4], 2)),
            "the parts of the batch have 3, 4 rows: dim 0 of each has to be the batch"
        );
        assert_eq!(
            text(microbatches(vec![3], 0)),
            "a batch was to be cut into 0 microbatches: use 1 or more"
        );
    }
}
