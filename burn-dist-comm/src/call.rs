//! Calls: a collective with its group, its lane and its input.

use super::block::Block;
use super::group::{Group, Lane};
use super::info::What;
use burn_dist_mesh::DType;
use burn_dist_mesh::Rank;
use burn_dist_mesh::ReduceOp;
use burn_dist_mesh::collective::{AllToAll, Collective, Kind, Strided};
use std::sync::Arc;

/// A collective with its place (group, lane), its element type and its input, ready to be started.
#[derive(Clone, Debug)]
#[must_use = "a call does nothing until it is started"]
pub struct Call {
    pub(crate) group: Group,
    pub(crate) lane: Lane,
    pub(crate) label: Arc<str>,
    pub(crate) dtype: DType,
    pub(crate) collective: Collective,
    pub(crate) input: Option<Block>,
    /// Sizes of the axes that reductions follow; empty for one axis.
    pub(crate) axes: Arc<[usize]>,
    /// True if counters and the flight record see it.
    pub(crate) counted: bool,
}

impl Call {
    /// Returns `collective` on `group`; `input` as the table at [`Collective`] says.
    pub fn new(group: &Group, dtype: DType, collective: Collective, input: Option<Block>) -> Self {
        Self {
            group: group.clone(),
            lane: Lane::default(),
            label: "".into(),
            dtype,
            collective,
            input,
            axes: Arc::new([]),
            counted: true,
        }
    }

    /// Returns the all-gather of `part`, divided as `parts` says.
    pub fn all_gather(group: &Group, dtype: DType, parts: Strided, part: impl Into<Block>) -> Self {
        let collective = Collective::AllGather(parts);
        Self::new(group, dtype, collective, Some(part.into()))
    }

    /// Returns the reduce-scatter of `whole`, divided as `parts` says.
    pub fn reduce_scatter(
        group: &Group,
        dtype: DType,
        op: ReduceOp,
        parts: Strided,
        whole: impl Into<Block>,
    ) -> Self {
        let collective = Collective::ReduceScatter { op, parts };
        Self::new(group, dtype, collective, Some(whole.into()))
    }

    /// Returns the all-reduce of `block`.
    pub fn all_reduce(group: &Group, dtype: DType, op: ReduceOp, block: impl Into<Block>) -> Self {
        let block = block.into();
        let bytes = block.len();
        Self::new(
            group,
            dtype,
            Collective::AllReduce { op, bytes },
            Some(block),
        )
    }

    /// Returns the all-to-all of `block`.
    pub fn all_to_all(
        group: &Group,
        dtype: DType,
        pieces: AllToAll,
        block: impl Into<Block>,
    ) -> Self {
        let collective = Collective::AllToAll(pieces);
        Self::new(group, dtype, collective, Some(block.into()))
    }

    /// Returns the shift of `block` by `by` places along the group, cyclically.
    ///
    /// Member m of k gets the block of member (m - by) mod k. Law: a shift by n and one by -n give every member its own
    /// block back.
    ///
    /// ```
    /// use burn_dist_comm::{Call, Communicator, Group, LocalHub, LocalOptions, elements};
    /// use burn_dist_mesh::DType;
    ///
    /// let ring = Group::world(3)?;
    /// let ranks = LocalHub::connect(3, LocalOptions::default())?;
    /// let shift = |mine: u8| Call::shift(&ring, DType::U8, 1, vec![1; 3], elements(vec![mine]));
    /// let pending = ranks.iter().zip([10, 11, 12]).map(|(comm, mine)| comm.start(shift(mine)));
    /// let pending = pending.collect::<Result<Vec<_>, _>>()?;
    /// let got = pending.into_iter().map(|pending| pending.wait().map(|block| block[0]));
    /// assert_eq!(got.collect::<Result<Vec<_>, _>>()?, [12, 10, 11]);
    /// # Ok::<(), burn_dist_comm::CommError>(())
    /// ```
    ///
    /// # Sizes
    /// `sizes` are the bytes of the blocks that members bring, in the order of the group: `block` has those of the
    /// caller, and the output those of the member that it comes from.
    /// # Communication
    /// One round, in which the caller receives the bytes of its output. As any collective, the call is over when all
    /// members have made it, also those that the caller has nothing of. In one process, the receiver gets the sender's
    /// buffer itself if the block is all of it, and a copy of a part.
    /// # Errors
    /// Of [`Communicator::start`](super::Communicator::start): [`CommError::Invalid`](super::CommError::Invalid) if
    /// `by` is a multiple of the size of the group (as every number is for a group of one), if `sizes` are not one per
    /// member, or if `block` has another size; [`CommError::NotAMember`](super::CommError::NotAMember). Members that
    /// disagree about `by`, `sizes` or `dtype` get [`CommError::Mismatch`](super::CommError::Mismatch) in one process
    /// and [`CommError::Diverged`](super::CommError::Diverged) in several.
    pub fn shift(
        group: &Group,
        dtype: DType,
        by: isize,
        sizes: impl Into<Arc<[usize]>>,
        block: impl Into<Block>,
    ) -> Self {
        let sizes = sizes.into();
        let collective = Collective::Shift { by, sizes };
        Self::new(group, dtype, collective, Some(block.into()))
    }

    /// Returns the broadcast of the root's `bytes` bytes; `block` is `Some` on the root only.
    pub fn broadcast(
        group: &Group,
        dtype: DType,
        root: Rank,
        bytes: usize,
        block: Option<Block>,
    ) -> Self {
        Self::new(group, dtype, Collective::Broadcast { root, bytes }, block)
    }

    /// Returns the sender's half of a transfer over `pair`, a group of two: the sender and the receiver.
    pub fn send(pair: &Group, dtype: DType, block: impl Into<Block>) -> Self {
        let block = block.into();
        let bytes = block.len();
        Self::new(pair, dtype, Collective::Send { bytes }, Some(block))
    }

    /// Returns the receiver's half of a transfer of `bytes` bytes over `pair`, a group of two: the sender and the
    /// receiver.
    pub fn recv(pair: &Group, dtype: DType, bytes: usize) -> Self {
        Self::new(pair, dtype, Collective::Recv { bytes }, None)
    }

    /// Makes a reduction have the bits of one over each of several axes of these sizes, the last first: the group is
    /// all of them together, the first axis major, and their product its length. Without, members are reduced in order
    /// as along one axis.
    ///
    /// # Communication
    /// None: the order in which terms are combined changes, and nothing that is moved.
    pub fn axis_by_axis(mut self, axes: impl Into<Arc<[usize]>>) -> Self {
        self.axes = axes.into();
        self
    }

    /// The group.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// The lane.
    pub fn lane(&self) -> Lane {
        self.lane
    }

    /// The type of elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The label.
    pub fn label(&self) -> &Arc<str> {
        &self.label
    }

    /// Keeps the call out of counters and flight record: it sets something up for another one, which stands there.
    pub fn uncounted(mut self) -> Self {
        self.counted = false;
        self
    }

    /// Moves the call to `lane`.
    pub fn on_lane(mut self, lane: Lane) -> Self {
        self.lane = lane;
        self
    }

    /// Names the place in the model (a module path), for errors and records; all members give the same.
    pub fn labelled(mut self, label: impl Into<Arc<str>>) -> Self {
        self.label = label.into();
        self
    }
}

#[cfg(test)]
impl Call {
    /// Returns a call whose result is of no use: whoever waits for it waits for all members.
    pub(crate) fn barrier(group: &Group) -> Self {
        let parts = Strided::flat(vec![1; group.len()]);
        Self::all_gather(group, DType::U8, parts, vec![0_u8])
    }
}

/// The place of an exchange of values: all members deposit one and receive all.
#[derive(Clone, Debug)]
pub struct Exchange {
    pub(crate) group: Group,
    pub(crate) lane: Lane,
    pub(crate) label: Arc<str>,
    pub(crate) what: What,
}

impl Exchange {
    /// Returns an exchange on `group`; `what` says what is exchanged and must be equal on all members.
    pub fn new(group: &Group, what: impl Into<Arc<str>>) -> Self {
        Self {
            group: group.clone(),
            lane: Lane::default(),
            label: "".into(),
            what: What::Exchange(what.into(), (Kind::Exchange, 0)),
        }
    }

    /// Returns the exchange of the operands of a call: for ranks that share a device, and do the collective by handing
    /// each other tensors. It counts as that collective, and all members must describe it alike.
    pub fn of_operands(call: &Call) -> Self {
        Self {
            group: call.group.clone(),
            lane: call.lane,
            label: call.label.clone(),
            what: What::Operands(call.dtype, call.collective.clone(), call.axes.clone()),
        }
    }

    /// Counts an exchange of something else as a call of `kind` by which this rank receives `bytes`: for a tensor that
    /// changes hands.
    pub fn counted_as(mut self, kind: Kind, bytes: usize) -> Self {
        if let What::Exchange(_, counted) = &mut self.what {
            *counted = (kind, bytes);
        }
        self
    }

    /// Moves the call to `lane`.
    pub fn on_lane(mut self, lane: Lane) -> Self {
        self.lane = lane;
        self
    }

    /// Names the place in the model (a module path), for errors and records; all members give the same.
    pub fn labelled(mut self, label: impl Into<Arc<str>>) -> Self {
        self.label = label.into();
        self
    }
}
