//! How a collective is carried out in one process: written once, for ranks that share a process and for those that do
//! not.
//!
//! [`Geometry`] says where each byte of each output comes from. Where all members live here, that is all: [`work`]
//! makes the [`Work`] that fills the outputs from the inputs as they are. Otherwise an [`Execution`] does, which
//!
//! - tells what to send: of the inputs of its members, just the bytes that lead to outputs in each other process, once
//!   for all ranks there;
//! - takes what arrives, in any order, gathers straight into their outputs;
//! - then makes the same kind of work, from inputs as they have arrived.
//!
//! A large all-reduce takes two *rounds*: every member reduces a part, and all gather them. Terms are added up by the
//! loops of [`buffer`](super::buffer) as one balanced tree along each axis, so that where members live changes no bit.
//!
//! An execution is plain data: it knows no thread, lock, clock or transport. Who drives it sends and receives.

#[cfg(test)]
mod tests;

use crate::buffer::{Gathered, Memory, Region, Work};
use crate::geometry::{
    Geometry, Move, Output, Source, boxes, is_reduction, localized, packed, wanted,
};
use crate::info::What;
use crate::{Block, Group};
use burn_dist_mesh::DType;
use burn_dist_mesh::collective::{Collective, Strided, chunk_sizes, elem_bytes};
use std::sync::Arc;

/// Calls that write no more than this are done by whoever finds all inputs there: waking the others would take longer.
const SMALL_BYTES_MAX: usize = 64 << 10;

/// All-reduces of at most so many bytes take one round, in which everyone sends everything: waiting for a second one
/// would take longer. Two members send as much in one round as in two, but each adds up all of it: of 1 MiB, two rounds
/// take 0.87 of the time of one over TCP, and as long as one inside a machine.
fn one_round_bytes_max(num_members: usize) -> usize {
    match num_members {
        ..=2 => 512 << 10,
        _ => 16 << 10,
    }
}

/// A collective with its element type and its axes.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub dtype: DType,
    pub collective: Collective,
    /// Sizes of the axes along which terms are added up.
    pub axes: Arc<[usize]>,
}

impl Operation {
    /// Returns that of a call; `None` if it is not a collective.
    pub(crate) fn of(what: &What) -> Option<Self> {
        match what {
            What::Exchange(..) | What::Operands(..) => None,
            What::Collective(dtype, collective, axes) => Some(Self {
                dtype: *dtype,
                collective: collective.clone(),
                axes: Arc::clone(axes),
            }),
        }
    }
}

/// Returns the work of a collective whose inputs are all here, done already if it is small.
pub(crate) fn work(
    operation: Operation,
    group: &Group,
    inputs: Vec<Option<Block>>,
    memory: &Memory,
) -> Work {
    let geometry = Geometry::new(&operation.collective, group);
    fill(geometry, &operation, true, inputs, memory)
}

/// Returns the work of `geometry`, done already if it is small; only some rounds of a reduction reduce.
fn fill(
    geometry: Geometry,
    operation: &Operation,
    reduces: bool,
    inputs: Vec<Option<Block>>,
    memory: &Memory,
) -> Work {
    let is_small = geometry.bytes() <= SMALL_BYTES_MAX;
    let op = operation.collective.reduce_op().filter(|_| reduces);
    let reduction = op.map(|op| (operation.dtype, op, Arc::clone(&operation.axes)));
    let work = Work::new(geometry, reduction, inputs, memory);
    if is_small {
        while work.run_next().is_some() {}
    }
    work
}

/// Copies boxes of `block` one after the other; a single run of bytes stays where it is.
fn pack(boxes: &[Move], block: &Block, memory: &Memory) -> Block {
    let geometry = match packed(boxes) {
        Ok(geometry) => geometry,
        Err(range) if range.is_empty() => return Block::from(Arc::clone(&memory.empty)),
        Err(range) => return block.part(range),
    };
    let work = Work::new(geometry, None, vec![Some(block.clone())], memory);
    while work.run_next().is_some() {}
    let packed = work.output(0).expect("all of its units have run");
    Block::from(Arc::clone(packed))
}

/// Chunks of whole elements, one per member.
fn chunks(bytes: usize, dtype: DType, num_members: usize) -> Strided {
    let size = elem_bytes(dtype);
    let chunks = chunk_sizes(bytes / size, num_members);
    let sizes = chunks.into_iter().map(|chunk| chunk * size);
    Strided::flat(sizes.collect::<Vec<_>>())
}

/// Part of the work of a collective: all of it, for most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    Only,
    /// Every member reduces a chunk, as the first half of an all-reduce.
    Scatter,
    /// Every member gathers them.
    Gather,
}

/// A collective in one of several processes, not yet complete.
pub(crate) struct Execution {
    operation: Operation,
    group: Group,
    /// The process of each member.
    process_of: Vec<u32>,
    /// The members that live in this process.
    here: Vec<bool>,
    round: Round,
    geometry: Geometry,
    inputs: Vec<Option<Block>>,
    /// The output into which inputs go as they come, if it is of that kind.
    gathered: Option<Gathered>,
    /// The members whose inputs are still to come.
    absent: Vec<bool>,
}

impl Execution {
    /// Returns a collective whose members live in the processes `process_of`, and are here where it says `process`;
    /// `inputs` are those of the members here.
    pub(crate) fn new(
        operation: Operation,
        group: Group,
        process_of: Vec<u32>,
        process: u32,
        inputs: Vec<Option<Block>>,
    ) -> Self {
        let (geometry, round) = match &operation.collective {
            Collective::AllReduce { bytes, .. } if *bytes > one_round_bytes_max(group.len()) => {
                let parts = chunks(*bytes, operation.dtype, group.len());
                (Geometry::parted(&parts, Source::All), Round::Scatter)
            }
            collective => (Geometry::new(collective, &group), Round::Only),
        };
        let here: Vec<bool> = process_of.iter().map(|of| *of == process).collect();
        Self {
            operation,
            group,
            process_of,
            absent: here.iter().map(|here| !here).collect(),
            here,
            round,
            geometry,
            inputs,
            gathered: None,
        }
    }

    /// Which of the rounds of the collective this is.
    pub(crate) fn round(&self) -> u8 {
        self.round as u8
    }

    /// Returns the group.
    pub(crate) fn group(&self) -> &Group {
        &self.group
    }

    /// Starts the round: has `send` send what each of the processes `others` needs (process, member, block).
    pub(crate) fn start(
        &mut self,
        others: &[u32],
        memory: &Memory,
        mut send: impl FnMut(u32, usize, Block),
    ) {
        let here = || (0..self.here.len()).filter(|member| self.here[*member]);
        for &process in others {
            if !self.process_of.contains(&process) {
                continue;
            }
            let there: Vec<bool> = self.process_of.iter().map(|of| *of == process).collect();
            let wanted = wanted(&self.geometry, &there);
            for member in here() {
                let body = self.inputs[member]
                    .as_ref()
                    .map_or_else(Block::empty, |input| {
                        let boxes = boxes(&self.geometry, &wanted, member, input.len());
                        pack(&boxes, input, memory)
                    });
                send(process, member, body);
            }
        }
        if is_reduction(&self.geometry) {
            let wanted = wanted(&self.geometry, &self.here);
            for (member, input) in self.inputs.iter_mut().enumerate() {
                if let (true, Some(whole)) = (self.here[member], &input) {
                    let boxes = boxes(&self.geometry, &wanted, member, whole.len());
                    *input = Some(pack(&boxes, whole, memory));
                }
            }
        }
        self.gathered = Gathered::new(&self.geometry, &self.here, &memory.pool);
        if let Some(gathered) = &mut self.gathered {
            for (member, input) in self.inputs.iter_mut().enumerate() {
                if let Some(input) = input.take() {
                    gathered.put(member, &input);
                }
            }
        }
    }

    /// Returns whether the input of `member` is still to come.
    pub(crate) fn awaits(&self, member: usize) -> bool {
        self.absent.get(member) == Some(&true)
    }

    /// Returns the members whose inputs are still to come.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = usize> {
        (0..self.absent.len()).filter(|member| self.absent[*member])
    }

    /// Returns whether all inputs are there.
    pub(crate) fn is_complete(&self) -> bool {
        !self.absent.contains(&true)
    }

    /// Returns where the input of `member`, of so many bytes, goes, if it has a part of an output to itself.
    pub(crate) fn region(&mut self, member: usize, bytes: usize) -> Option<Region> {
        match self.awaits(member) {
            true => self.gathered.as_mut()?.region(member, bytes),
            false => None,
        }
    }

    /// Takes the input of a member that was awaited; an empty one, if its region has been filled.
    pub(crate) fn arrive(&mut self, member: usize, body: Block) {
        assert!(self.awaits(member), "an input comes once");
        self.absent[member] = false;
        match &mut self.gathered {
            Some(gathered) => gathered.put(member, &body),
            None => self.inputs[member] = Some(body),
        }
    }

    /// Ends the round, whose inputs are all there; `None` if there is another one, which is to be
    /// [started](Self::start).
    ///
    /// # Errors
    /// If a part came with another size.
    pub(crate) fn finish(&mut self, memory: &Memory) -> Result<Option<Work>, &'static str> {
        let mut geometry = localized(&self.geometry, &self.here);
        if let Some(gathered) = self.gathered.take() {
            let whole = gathered.finish().ok_or("a part came with another size")?;
            geometry.outputs = vec![Output::Alias { member: 0 }];
            geometry.moves.clear();
            self.inputs[0] = Some(whole);
        }
        let inputs = std::mem::take(&mut self.inputs);
        let reduces = self.round != Round::Gather;
        let work = fill(geometry, &self.operation, reduces, inputs, memory);
        let (Round::Scatter, Collective::AllReduce { bytes, .. }) =
            (self.round, &self.operation.collective)
        else {
            return Ok(Some(work));
        };
        while work.run_next().is_some() {}
        let parts = chunks(*bytes, self.operation.dtype, self.here.len());
        let output = |(member, is_here): (usize, &bool)| {
            let output = is_here.then(|| work.output(member))?;
            output.map(|output| Block::from(Arc::clone(output)))
        };
        self.inputs = self.here.iter().enumerate().map(output).collect();
        self.geometry = Geometry::new(&Collective::AllGather(parts), &self.group);
        self.absent = self.here.iter().map(|here| !here).collect();
        self.round = Round::Gather;
        Ok(None)
    }
}
