//! The sizes of a run: the model that the command line names, not yet built, and the rows of a step.

use anyhow::bail;
use burn_dist::trainer::error::TooFewRows;
use burn_dist::trainer::mesh::Mesh;

use crate::cli::ModelArgs;
use crate::hf;
use crate::model::{LlamaConfig, Size};

/// The model that the command line names, not yet built.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    pub(super) config: LlamaConfig,
    /// The size's name, or the model's folder.
    pub(super) name: String,
    pub(super) seq: usize,
    pub(super) batch: usize,
    /// Microbatches of a step.
    pub(super) accumulate: usize,
}

/// More tokens than any row and any step has.
const SEQ_MAX: usize = 1 << 22;
const TOKENS_MAX: usize = 1 << 30;

impl Shape {
    pub(super) fn new(args: &ModelArgs) -> anyhow::Result<Self> {
        Self::of_batch(args, args.batch)
    }

    /// The model of a size, with the size's own rows and tokens of a step.
    pub(super) fn of_size(size: Size) -> Self {
        let (seq, batch) = size.default_seq_and_batch();
        Self {
            config: size.config(),
            name: size.name().to_string(),
            seq,
            batch,
            accumulate: 1,
        }
    }

    /// Does the same as [`Self::new`], with another number of rows of a step; `None` is the size's own.
    pub(super) fn of_batch(args: &ModelArgs, rows: Option<usize>) -> anyhow::Result<Self> {
        let shape = match &args.model {
            Some(dir) => Self {
                config: hf::read_config(dir)?,
                name: dir.display().to_string(),
                seq: 512,
                batch: 8,
                ..Self::of_size(args.size)
            },
            None => Self::of_size(args.size),
        };
        let batch = rows.unwrap_or(shape.batch);
        let seq = args.seq.unwrap_or(shape.seq);
        // What follows from them is counted in 64 bits.
        let tokens = batch
            .checked_mul(seq)
            .filter(|tokens| *tokens <= TOKENS_MAX);
        if seq > SEQ_MAX || tokens.is_none() {
            bail!(
                "{batch} rows of {seq} tokens are more than a step can have: give a --seq of at most {SEQ_MAX}, and a \
                 --batch with which a step has at most {TOKENS_MAX} tokens"
            );
        }
        if !batch.is_multiple_of(args.accumulate) {
            bail!(
                "--accumulate {} does not divide the {batch} rows of a step: give a --batch that is a multiple of it",
                args.accumulate
            );
        }
        if let Some(mesh) = &args.devices.forward.axes.mesh {
            let ranks = mesh.group_size(&mesh.context_axes());
            if seq < ranks {
                bail!(
                    "the mesh {mesh} splits sequences over {ranks} ranks, and a sequence has {seq} tokens: give a --seq \
                     of at least {ranks}, or cp fewer ranks"
                );
            }
        }
        Ok(Self {
            seq,
            batch,
            accumulate: args.accumulate,
            ..shape
        })
    }
}

impl Shape {
    /// Checks that each rank that takes rows of its own has some, unless all are `allowed` to compute the same.
    ///
    /// # Errors
    /// [`TooFewRows`].
    pub(super) fn check_rows(&self, mesh: &Mesh, allowed: bool) -> Result<(), TooFewRows> {
        let (rows, ranks) = (self.batch / self.accumulate, mesh.num_row_groups());
        match rows < ranks && !allowed {
            true => Err(TooFewRows {
                mesh: mesh.name(),
                rows,
                ranks,
                accumulate: self.accumulate,
            }),
            false => Ok(()),
        }
    }
}
