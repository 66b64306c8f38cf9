//! What one rank does in one window: tasks over numbered slots, as plain data.

use crate::mesh::DType;
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::sync::Arc;

use super::op::{Indexed, Op};
use super::region::{Extent, Keep, Region, ScalarOf};
use super::role::Role;
use super::stage::Stage;
use super::tensor::{NewTensor, Slot};
use super::window::{Origin, ValueIndex};
use crate::layout::Layout;
use crate::memory::MemoryClass;
use crate::mesh::collective::{Collective, Kind};
use crate::mesh::{Rank, ReduceOp};
use crate::pipeline::Action;
use crate::storage::Storage;

/// One step of a rank. Nearly all are operations: a box each would cost a cache miss per operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Task<O> {
    /// Takes value `value` (a tensor that lives between windows) into `slot`; `take` if it dies here.
    Load {
        /// Which value.
        value: ValueIndex,
        /// Where to.
        slot: Slot,
        /// True if nothing needs it afterwards.
        take: bool,
        /// Size of the rank's part.
        bytes: u64,
        /// Local shape.
        shape: Vec<usize>,
        /// Element type.
        dtype: DType,
        /// True if it lives on the host, and stays there until it is brought back.
        host: bool,
    },
    /// Takes the rank's part of a host tensor.
    Upload(Box<UploadTask>),
    /// Fills `slot` with random values by global index.
    Random(Box<RandomTask<O>>),
    /// Runs a local operation, on behalf of the module at that index of [`RankPlan::paths`].
    Op(O, u32),
    /// Runs a group of operations as one kernel.
    Region(Box<RegionTask>),
    /// Runs a collective.
    Collective(Box<CollectiveTask>),
    /// Starts collectives together, without waiting for them.
    Launch {
        /// Number of the launch in the plan.
        group: u32,
        /// The collectives.
        tasks: Vec<CollectiveTask>,
    },
    /// Waits for collectives of a launch; their outputs are there afterwards.
    Finish {
        /// Number of the launch.
        group: u32,
        /// Slots of the outputs to wait for.
        to: Vec<Slot>,
    },
    /// Keeps `slot` as value `value` beyond the window; `take` if no later task needs the slot.
    Store {
        /// From where.
        slot: Slot,
        /// As which value.
        value: ValueIndex,
        /// True if the slot is empty afterwards.
        take: bool,
        /// Size of the rank's part.
        bytes: u64,
        /// Local shape.
        shape: Vec<usize>,
        /// Element type.
        dtype: DType,
        /// True if it is kept on the host.
        host: bool,
    },
    /// Hands `slot` to the host as part of read number `read`.
    Read {
        /// From where.
        slot: Slot,
        /// Index into the window's reads.
        read: u32,
        /// Local shape.
        shape: Vec<usize>,
        /// Element type.
        dtype: DType,
        /// True if the slot is empty afterwards.
        take: bool,
    },
    /// Moves a slot to the host store.
    ToHost(Box<HostTask>),
    /// Brings a slot back from the host store.
    FromHost(Box<HostTask>),
    /// Drops a slot that no operation consumes.
    Free(Slot),
    /// Sends a slot to the rank of another stage, without waiting for it.
    Send(Box<TransferTask>),
    /// Waits for a slot from the rank of another stage.
    Receive(Box<TransferTask>),
}

impl<O> Task<O> {
    /// Returns the collectives that it starts, in their order.
    pub fn collectives(&self) -> &[CollectiveTask] {
        match self {
            Self::Collective(task) => std::slice::from_ref(task),
            Self::Launch { tasks, .. } => tasks,
            _ => &[],
        }
    }
}

/// A region with the tensors that it runs on; see [`Task::Region`].
#[derive(Clone, Debug, PartialEq)]
pub struct RegionTask {
    /// The work. Tasks of a plan that compute the same share it.
    pub region: Arc<Region>,
    /// The operands, in the order of the formula.
    pub inputs: Vec<RegionInput>,
    /// Where the results go, in the order of the formula, with their local shapes: those of the operations, which may
    /// have more dims of size one than the region.
    pub outputs: Vec<NewTensor>,
    /// The scalars, in the order of the formula.
    pub scalars: Vec<ScalarOf>,
    /// Its draws, in the order of the formula: which of [`RankPlan::draws`] each is.
    pub draws: Vec<u32>,
    /// Index into [`RankPlan::paths`] of the module that its first operation works for.
    pub path: u32,
    /// The number of operations that it stands for.
    pub operations: u32,
    /// The result of the one of them that writes at indices, by which [`RankPlan::indexed`] says what that does globally;
    /// `None` if none does, or several do.
    pub indexed: Option<Slot>,
    /// Bytes of freed memory that the rank may keep, from here to the next region, without holding more
    /// than at its peak.
    pub room: u64,
}

/// An operand of a region.
#[derive(Clone, Debug, PartialEq)]
pub struct RegionInput {
    /// Where it is.
    pub slot: Slot,
    /// Local shape. Its dims that are not of size one are, in order, products of neighbours among the dims of the space
    /// that it spans: each has some of them, of which the last one is the fastest.
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: DType,
    /// True if the slot is empty afterwards.
    pub take: bool,
}

impl RegionTask {
    /// Returns for each output the operand whose buffer it takes, if it takes one: the first that no output before it
    /// has taken, which spans the space, has elements of the same size, dies here, and is `alone`: it lies in order
    /// from the start of a buffer that nobody else holds.
    pub fn in_place(&self, alone: impl Fn(usize) -> bool) -> Vec<Option<usize>> {
        self.in_place_of(|index| self.inputs[index].take && alone(index))
    }

    /// Returns the same, where `free` says of each operand that it dies here and is alone.
    pub(crate) fn in_place_of(&self, free: impl Fn(usize) -> bool) -> Vec<Option<usize>> {
        let mut free: Vec<usize> = (0..self.inputs.len())
            .filter(|&index| self.region.spans[index].iter().all(|spans| *spans) && free(index))
            .collect();
        let keeps = self.outputs.iter().zip(&self.region.keeps);
        let taken = keeps.map(|(out, keep)| {
            let fits = |index: &usize| self.inputs[*index].dtype.size() == out.dtype.size();
            let at = match keep {
                Keep::Each(Extent::Elements) => free.iter().position(fits)?,
                _ => return None,
            };
            Some(free.remove(at))
        });
        taken.collect()
    }

    /// Returns the strides of an operand along the dims of the space, from those along its own dims: zero along those
    /// that it does not span.
    pub fn strides(&self, index: usize, own: &[isize]) -> Vec<isize> {
        let space = self.region.space.iter().zip(&self.region.spans[index]);
        let spanned = space.enumerate().rev();
        let mut spanned = spanned.filter(|(_, (size, spans))| **spans && **size != 1);
        let mut strides = vec![0; self.region.space.len()];
        if self.inputs[index].shape.contains(&0) {
            // No element is read by them.
            return strides;
        }
        for (size, stride) in self.inputs[index].shape.iter().zip(own).rev() {
            let mut product = 1;
            while product < *size {
                let (dim, (part, _)) = spanned.next().expect("dims are products of spanned ones");
                strides[dim] = stride * product as isize;
                product *= part;
            }
        }
        strides
    }

    /// Returns the bytes that it reads and writes, each operand and each result once.
    pub fn bytes(&self) -> u64 {
        let inputs = self
            .inputs
            .iter()
            .map(|input| input.shape.iter().product::<usize>() * input.dtype.size());
        let outputs = self.outputs.iter().map(NewTensor::bytes);
        inputs.chain(outputs).sum::<usize>() as u64
    }
}

/// A slot on its way between the ranks of two stages; see [`Task::Send`] and [`Task::Receive`].
///
/// Messages between two ranks keep their order.
#[derive(Clone, Debug, PartialEq)]
pub struct TransferTask {
    /// The other rank.
    pub peer: Rank,
    /// What is sent, or where it is received.
    pub slot: Slot,
    /// Local shape.
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: DType,
    /// Index into the collectives of the plan.
    pub record: u32,
    /// Index into [`RankPlan::paths`] of the module that makes it.
    pub path: u32,
    /// True if the slot is empty once it is sent.
    pub take: bool,
}

impl TransferTask {
    /// Returns its size in bytes.
    pub fn bytes(&self) -> u64 {
        (self.shape.iter().product::<usize>() * self.dtype.size()) as u64
    }
}

/// A move to the host store or back; see [`Task::ToHost`].
#[derive(Clone, Debug, PartialEq)]
pub struct HostTask {
    /// What is moved.
    pub slot: Slot,
    /// Local shape.
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: DType,
}

/// The rank's part of a host tensor; see [`Task::Upload`].
#[derive(Clone, Debug, PartialEq)]
pub struct UploadTask {
    /// Which value.
    pub value: ValueIndex,
    /// Where to.
    pub slot: Slot,
    /// Element type.
    pub dtype: DType,
    /// Local shape.
    pub shape: Vec<usize>,
    /// Flat element ranges of the host tensor, in local order; `None` for all of it.
    pub runs: Option<Arc<[Range<usize>]>>,
    /// The reductions whose terms the rank is to hold instead of the values (fuzz layouts), and the seed that picks the
    /// terms.
    pub terms: Vec<TermOf>,
    /// See `terms`.
    pub seed: u64,
}

/// Which term of a reduction a rank holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TermOf {
    /// How the terms combine.
    pub op: ReduceOp,
    /// Which term, counted over all axes partial by `op`.
    pub index: usize,
    /// Number of terms.
    pub count: usize,
}

/// Random values by global index; see [`Task::Random`].
#[derive(Clone, Debug, PartialEq)]
pub struct RandomTask<O> {
    /// Where to.
    pub slot: Slot,
    /// Element type.
    pub dtype: DType,
    /// The random operation of the window: what to draw.
    pub op: O,
    /// Number of the random operation within the window: its stream is the recorder's plus this.
    pub stream: u64,
    /// Local shape.
    pub shape: Vec<usize>,
    /// Flat element ranges of the global tensor, in local order.
    pub runs: Arc<[Range<usize>]>,
}

/// A collective of one rank; see [`Task::Collective`].
#[derive(Clone, Debug, PartialEq)]
pub struct CollectiveTask {
    /// What is done, and which piece goes where, in bytes of `dtype`.
    pub collective: Collective,
    /// The members, in order.
    pub group: Arc<[Rank]>,
    /// Index of this rank in `group`.
    pub index: usize,
    /// Sizes of the axes that the group runs over, the first major: reductions have the bits of one over each of them,
    /// the last first.
    pub axes: Arc<[usize]>,
    /// Element type.
    pub dtype: DType,
    /// From where.
    pub from: Slot,
    /// Where to.
    pub to: Slot,
    /// Local shape before.
    pub from_shape: Vec<usize>,
    /// Local shape after.
    pub to_shape: Vec<usize>,
    /// Index into the collectives of the plan.
    pub record: u32,
    /// Index into [`RankPlan::paths`] of the module it serves.
    pub path: u32,
    /// True if `from` is empty afterwards.
    pub take: bool,
}

impl CollectiveTask {
    /// Returns the kind of collective.
    pub fn kind(&self) -> Kind {
        self.collective.kind()
    }

    /// Returns the bytes that this rank receives from other members.
    pub fn bytes(&self) -> u64 {
        let Self { group, index, .. } = self;
        self.collective.received_bytes(self.dtype, group, *index) as u64
    }
}

/// The plan of one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct RankPlan<O> {
    /// In order.
    pub tasks: Vec<Task<O>>,
    /// Random values that regions draw, none of which is a task of its own.
    pub draws: Vec<RandomTask<O>>,
    /// Number of slots.
    pub num_slots: u32,
    /// Module paths that operations refer to; an index beyond it is "unknown".
    pub paths: Arc<[Arc<str>]>,
    /// What each slot is used for.
    pub classes: Arc<[MemoryClass]>,
    /// How the inner backend stores tensors.
    pub storage: Storage,
    /// Of operations that read or write at indices, by the slot of their result, what they do globally.
    pub indexed: Arc<FxHashMap<Slot, Indexed>>,
    /// The actions of its schedule, in the order in which they begin, with the tasks from the first operation of each to
    /// its last; empty without a pipeline.
    pub actions: Arc<[(Action, Range<u32>)]>,
    /// Bytes of freed memory that the rank may keep up to the first region; see [`RegionTask::room`].
    pub room: u64,
}

impl<O: Op> RankPlan<O> {
    /// Finds the tasks of each action, by the slots that operations make in it.
    pub(crate) fn find_actions(&mut self, made_in: &FxHashMap<Slot, Action>) {
        let mut found: Vec<(Action, Range<u32>)> = Vec::new();
        let mut known: FxHashMap<Action, usize> = FxHashMap::default();
        for (index, task) in (0..).zip(&self.tasks) {
            let of = |slot: Slot| made_in.get(&slot);
            let action = match task {
                Task::Op(op, _) => op.outputs().find_map(|out| of(out.id)),
                Task::Region(task) => task.outputs.iter().find_map(|out| of(out.id)),
                _ => None,
            };
            let Some(&action) = action else { continue };
            let at = *known.entry(action).or_insert_with(|| {
                found.push((action, index..index));
                found.len() - 1
            });
            found[at].1.end = index + 1;
        }
        self.actions = found.into();
    }
}

/// A value that a window leaves behind.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Which.
    pub value: ValueIndex,
    /// Where it rests.
    pub layout: Arc<Layout>,
    /// What it is to training.
    pub role: Role,
    /// What it is made of, if its layout is not decided.
    pub origin: Option<Origin>,
    /// The stage whose ranks have it; `None` if all do.
    pub stage: Option<Stage>,
}

/// How the host puts a read tensor together.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadPlan {
    /// The layout it is read in; no partial axes.
    pub layout: Arc<Layout>,
    /// Ranks that send their part.
    pub senders: Vec<Rank>,
    /// Global shape.
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: DType,
}

/// One collective of the plan, as `explain` shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct CollectiveRecord {
    /// Which.
    pub kind: Kind,
    /// Names of the mesh axes it runs over.
    pub axes: String,
    /// Why it is there.
    pub reason: String,
    /// Path of the module it serves, if known.
    pub path: Option<Arc<str>>,
    /// Global shape of the tensor.
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: DType,
    /// Layout before and after, in text form.
    pub layouts: (String, String),
    /// Bytes the busiest rank receives.
    pub bytes: u64,
    /// Ranks that take part.
    pub members: usize,
    /// True if they are on several nodes.
    pub spans_nodes: bool,
    /// Number of the launch it is part of, if it is started together with others.
    pub launch: Option<u32>,
}

impl CollectiveRecord {
    /// Returns how many times its latency it takes, as those count it that receive; see [`Kind::rounds`].
    pub fn rounds(&self) -> u64 {
        match self.kind {
            Kind::Send => 0,
            kind => kind.rounds(self.members),
        }
    }
}
