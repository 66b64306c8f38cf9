//! A call on its way between processes.

use super::landing::Landing;
use super::remote::Opened;
use crate::collective::{Collective, Strided, chunk_sizes, elem_bytes};
use crate::geometry::Geometry;
use crate::info::{CallInfo, What};
use crate::{Block, Group};
use burn_dist_mesh::DType;
use burn_dist_mesh::Rank;
use burn_dist_mesh::ReduceOp;
use rustc_hash::FxHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A call on its way.
pub(super) struct Call {
    pub opened: Opened,
    pub mesh: u64,
    pub channel: u64,
    /// Of each member, whether it lives here.
    pub members: Vec<bool>,
    pub dtype: DType,
    /// Type, operation, and sizes of the axes by which terms are added up.
    pub reduction: Option<(DType, ReduceOp, Arc<[usize]>)>,
    pub round: Round,
    pub geometry: Geometry,
    pub inputs: Vec<Option<Block>>,
    /// Where inputs go as they come, if their places are known.
    pub landing: Option<Landing>,
    /// Of each member, whether its input is still to come.
    pub absent: Vec<bool>,
    pub fingerprint: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Round {
    Only,
    /// Of an all-reduce: every member reduces a chunk.
    Scatter,
    /// Every member gathers them.
    Gather,
}

pub(super) type CallKey = (u64, u64, u64, u8);

pub(super) fn hash(value: impl Hash) -> u64 {
    let mut hasher = FxHasher::default();
    value.hash(&mut hasher);
    hasher.finish()
}

/// What must be equal for all members of a call.
pub(super) fn fingerprint(info: &CallInfo) -> u64 {
    let what = match &info.what {
        // Both halves of a transfer.
        What::Collective(dtype, Collective::Send { bytes } | Collective::Recv { bytes }, _) => {
            format!("transfer of {bytes} bytes of {}", dtype.name())
        }
        what => what.to_string(),
    };
    let folds = match &info.what {
        What::Collective(_, _, folds) => &folds[..],
        What::Exchange(..) => &[],
    };
    hash((what, folds, info.label()))
}

impl Call {
    pub fn group(&self) -> &Group {
        &self.opened.channel.group
    }

    pub fn key(&self) -> CallKey {
        (
            self.mesh,
            self.channel,
            self.opened.info.sequence,
            self.round as u8,
        )
    }

    pub fn absent(&self) -> impl Iterator<Item = Rank> {
        let ranks = self.group().ranks().iter().zip(&self.absent);
        ranks.filter(|(_, absent)| **absent).map(|(rank, _)| *rank)
    }
}

/// Chunks of whole elements, one per member.
pub(crate) fn chunks(bytes: usize, dtype: DType, num_members: usize) -> Strided {
    let size = elem_bytes(dtype);
    let chunks = chunk_sizes(bytes / size, num_members);
    Strided::flat(
        chunks
            .into_iter()
            .map(|chunk| chunk * size)
            .collect::<Vec<_>>(),
    )
}
