//! The work of one collective, done by whichever members have time.

use super::Memory;
use super::kernels::{self, Reduction};
use super::pool::PoolMemory;
use crate::block::{Block, SharedBuffer};
use crate::geometry::{Geometry, Move, Output, Source};
use crate::sync::lock;
use burn_dist_mesh::DType;
use burn_dist_mesh::ReduceOp;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Calls that read and write more than this write past the caches: their outputs would push each other out of the last
/// level before anyone reads them. About the last-level cache of a socket; reducing 64 MiB on 32 MiB of cache gains a
/// quarter.
const CACHED_BYTES_MAX: usize = 40 << 20;

/// Outputs that are checked byte by byte in debug builds; larger ones only by their sum.
const CHECKED_BYTES_MAX: usize = 16 << 10;

/// A collective whose members have all arrived: inputs, outputs, and units of work that anyone may claim.
///
/// No member waits for a particular other one: who waits claims units until none is left. So a collective finishes as
/// soon as one member waits for it, and a member that is slow (or computes something else) costs the others only its
/// share.
#[derive(Debug)]
pub(crate) struct Work {
    units: Vec<Move>,
    /// The next unit to claim.
    next: AtomicUsize,
    /// Units not finished.
    left: AtomicUsize,
    /// Deposits of members; dropped with the last unit, so that no rank's memory outlives its use.
    inputs: Mutex<Option<Arc<[Option<Block>]>>>,
    slots: Vec<Filling>,
    readers: Vec<Option<usize>>,
    reduction: Option<Reduction>,
    past_cache: bool,
    empty: SharedBuffer,
}

/// An output: first a buffer that units write, then the finished bytes.
#[derive(Debug)]
struct Filling {
    /// Units of this output that are not finished.
    left: AtomicUsize,
    /// `Some` until the last unit has finished.
    filling: Mutex<Option<PoolMemory>>,
    finished: OnceLock<SharedBuffer>,
}

/// Size of a unit: large enough to hide the claiming (0.1 us), small enough that the last ones finish together.
fn unit_bytes(written: usize, num_members: usize) -> usize {
    (written / (8 * num_members))
        .clamp(32 << 10, 256 << 10)
        .next_multiple_of(4096)
}

impl Work {
    /// Returns the work of `geometry`, cut into units.
    ///
    /// `inputs` are by member, checked against the collective, and aligned to the dtype of `reduction`, if there is
    /// one.
    pub(crate) fn new(
        mut geometry: Geometry,
        reduction: Option<(DType, ReduceOp, Arc<[usize]>)>,
        mut inputs: Vec<Option<Block>>,
        Memory { pool, empty }: &Memory,
    ) -> Self {
        let written = geometry.bytes();
        let read: usize = inputs.iter().flatten().map(Block::len).sum();
        let past_cache = read + written > CACHED_BYTES_MAX;
        geometry.split(unit_bytes(written, inputs.len()));
        let mut bytes_left = vec![0; geometry.outputs.len()];
        let mut units_left = vec![0; geometry.outputs.len()];
        for unit in &geometry.moves {
            bytes_left[unit.output] += unit.bytes();
            units_left[unit.output] += 1;
        }
        let done = |whole| Filling {
            left: AtomicUsize::new(0),
            filling: Mutex::default(),
            finished: OnceLock::from(whole),
        };
        let slots = geometry
            .outputs
            .iter()
            .enumerate()
            .map(|(index, output)| match *output {
                Output::Alias { member } => {
                    let input = match geometry.moves.is_empty() {
                        true => inputs[member].take(),
                        false => inputs[member].clone(),
                    };
                    let input = input.expect("the member whose input is handed on has one");
                    done(pool.adopt(input))
                }
                Output::Filled { bytes: 0 } => done(Arc::clone(empty)),
                Output::Filled { bytes } => {
                    // What makes `run_next` sound: moves of the right total size that, as `Geometry` promises, do not
                    // overlap.
                    assert_eq!(
                        bytes_left[index], bytes,
                        "the moves of a collective cover its outputs"
                    );
                    debug_assert!(
                        bytes > CHECKED_BYTES_MAX || geometry.is_exact(),
                        "the moves of a collective do not overlap"
                    );
                    Filling {
                        left: AtomicUsize::new(units_left[index]),
                        filling: Mutex::new(Some(pool.take(bytes))),
                        finished: OnceLock::new(),
                    }
                }
            });
        let slots = slots.collect();
        let inputs = (!geometry.moves.is_empty()).then(|| inputs.into());
        Self {
            next: AtomicUsize::new(0),
            left: AtomicUsize::new(geometry.moves.len()),
            units: geometry.moves,
            inputs: Mutex::new(inputs),
            slots,
            readers: geometry.readers,
            reduction: reduction.map(|(dtype, op, axes)| Reduction {
                dtype,
                op,
                axes,
                past_cache,
            }),
            past_cache,
            empty: Arc::clone(empty),
        }
    }

    /// The output of `member`, once it is finished.
    pub(crate) fn output(&self, member: usize) -> Option<&SharedBuffer> {
        match self.readers[member] {
            Some(slot) => self.slots[slot].finished.get(),
            None => Some(&self.empty),
        }
    }

    /// Claims a unit and does it. Returns whether that finished an output, or `None` if all units are claimed.
    pub(crate) fn run_next(&self) -> Option<bool> {
        // The load keeps idle callers from counting on and on.
        if self.next.load(Ordering::Relaxed) >= self.units.len() {
            return None;
        }
        let unit = self.units.get(self.next.fetch_add(1, Ordering::Relaxed))?;
        let inputs = lock(&self.inputs)
            .clone()
            .expect("inputs stay until the last unit has finished");
        let slot = &self.slots[unit.output];
        let (dst, dst_len) = {
            let filling = lock(&slot.filling);
            let buffer = filling
                .as_ref()
                .expect("an output is filled until its last unit has finished");
            (buffer.as_ptr(), buffer.len())
        };
        let input = |member: usize| inputs[member].as_ref().map_or(&[][..], Block::as_slice);
        // SAFETY: the buffer lives until `slot.left` reaches zero, which needs this unit; the unit was claimed by this
        // thread alone, and the units of an output write disjoint bytes (`Geometry`), so nobody else accesses the bytes
        // it writes. Inputs of a reduction are aligned to its dtype (see `new`), the buffer to 64, and units are cut at
        // multiples of 64 bytes from whole elements.
        unsafe {
            match (unit.source, &self.reduction) {
                (Source::Member(member), _) => {
                    kernels::copy(unit, input(member), dst, dst_len, self.past_cache)
                }
                (Source::All, Some(how)) => {
                    let all: Vec<&[u8]> = (0..inputs.len()).map(input).collect();
                    kernels::reduce(unit, &all, dst, dst_len, how);
                }
                (Source::All, None) => {
                    unreachable!("only reductions have units that read all inputs")
                }
            }
        }
        drop(inputs);
        // Acquire and release: the last one sees what all others wrote before it hands the buffer over.
        let finished = slot.left.fetch_sub(1, Ordering::AcqRel) == 1;
        if finished {
            let buffer = lock(&slot.filling)
                .take()
                .expect("only the last unit takes the buffer");
            // SAFETY: all units of this output have finished, so all bytes are written and nobody writes any more.
            let output = unsafe { buffer.finish() };
            slot.finished
                .set(output)
                .expect("an output is finished once");
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            *lock(&self.inputs) = None;
        }
        Some(finished)
    }
}
