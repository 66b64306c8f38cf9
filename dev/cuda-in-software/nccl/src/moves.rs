//! What members bring to a meeting, and how its bytes move.

use crate::driver::Check;
use half::{bf16, f16};
use std::ffi::c_void;
use std::sync::Mutex;

/// `ncclDataType_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind(pub(crate) i32);

impl Kind {
    pub(crate) fn bytes(self) -> Option<usize> {
        Some(match self.0 {
            0 | 1 | 10 | 11 => 1,
            6 | 9 => 2,
            2 | 3 | 7 => 4,
            4 | 5 | 8 => 8,
            _ => return None,
        })
    }
}

/// `ncclRedOp_t`: sum, product, max, min, average.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fold(pub(crate) i32);

/// What a call asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    AllGather,
    Broadcast(usize),
    AllReduce(Fold),
    ReduceScatter(Fold),
    Reduce(Fold, usize),
    Send,
    Receive,
}

/// A call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub(crate) what: What,
    pub(crate) send: u64,
    pub(crate) recv: u64,
    pub(crate) count: usize,
    pub(crate) kind: Kind,
}

/// A meeting: what each member brings.
pub(crate) struct Round(Mutex<Brought>);

struct Brought {
    /// Members that have asked for the round.
    asked: usize,
    ops: Vec<Vec<Op>>,
}

/// Codes of a body.
const UNLIKE: u32 = 2;
const NOT_THERE: u32 = 3;

impl Round {
    pub(crate) fn new(members: usize) -> Self {
        Round(Mutex::new(Brought {
            asked: 0,
            ops: vec![Vec::new(); members],
        }))
    }

    /// Counts a member that has asked, and says whether it is the last.
    pub(crate) fn is_last(&self) -> bool {
        let mut brought = self.0.lock().expect("no panic in a round");
        brought.asked += 1;
        brought.asked == brought.ops.len()
    }

    pub(crate) fn bring(&self, member: usize, ops: Vec<Op>) {
        self.0.lock().expect("no panic in a round").ops[member] = ops;
    }
}

/// What the driver calls when all streams have come.
///
/// # Safety
/// The first pointer is to a round, and the last is the check's.
pub(crate) unsafe extern "C" fn run(
    round: *const c_void,
    check: Check,
    context: *const c_void,
) -> u32 {
    // SAFETY: the caller's promise.
    let round = unsafe { &*round.cast::<Round>() };
    let ops = round.0.lock().expect("no panic in a round").ops.clone();
    let memory = Memory { check, context };
    let done = match ops[0].first().map(|op| op.what) {
        Some(What::Send | What::Receive) => pair(&ops, &memory),
        Some(_) => collective(&ops, &memory),
        None => Err(UNLIKE),
    };
    done.err().unwrap_or(0)
}

/// Memory of devices, which the driver looks at.
struct Memory {
    check: Check,
    context: *const c_void,
}

impl Memory {
    /// Reads bytes that are added up.
    fn read(&self, at: u64, bytes: usize) -> Result<Vec<u8>, u32> {
        self.get(at, bytes, 0)
    }

    /// Reads bytes that are moved on, which nothing need have written.
    fn take(&self, at: u64, bytes: usize) -> Result<Vec<u8>, u32> {
        self.get(at, bytes, 2)
    }

    fn get(&self, at: u64, bytes: usize, how: u32) -> Result<Vec<u8>, u32> {
        match (self.check)(self.context, at, bytes as u64, how) {
            // SAFETY: the driver has said that the bytes are there.
            0 => Ok(unsafe { std::slice::from_raw_parts(at as *const u8, bytes) }.to_vec()),
            _ => Err(NOT_THERE),
        }
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), u32> {
        match (self.check)(self.context, at, bytes.len() as u64, 1) {
            0 => {
                // SAFETY: the driver has said that the bytes are there.
                unsafe { (at as *mut u8).copy_from(bytes.as_ptr(), bytes.len()) };
                Ok(())
            }
            _ => Err(NOT_THERE),
        }
    }
}

/// Sends of one member are received by the other, in order.
fn pair(ops: &[Vec<Op>], memory: &Memory) -> Result<(), u32> {
    let of = |member: usize, what: What| ops[member].iter().filter(move |op| op.what == what);
    let ways = if ops.len() == 1 {
        vec![(0, 0)]
    } else {
        vec![(0, 1), (1, 0)]
    };
    for (from, to) in ways {
        if of(from, What::Send).count() != of(to, What::Receive).count() {
            return Err(UNLIKE);
        }
        for (send, receive) in of(from, What::Send).zip(of(to, What::Receive)) {
            if (send.count, send.kind) != (receive.count, receive.kind) {
                return Err(UNLIKE);
            }
            let bytes = send.count * send.kind.bytes().ok_or(UNLIKE)?;
            memory.write(receive.recv, &memory.take(send.send, bytes)?)?;
        }
    }
    Ok(())
}

fn collective(ops: &[Vec<Op>], memory: &Memory) -> Result<(), u32> {
    let mut members = Vec::new();
    for brought in ops {
        match brought[..] {
            [op] => members.push(op),
            _ => return Err(UNLIKE),
        }
    }
    let first = members[0];
    let is_like = |op: &Op| (op.what, op.count, op.kind) == (first.what, first.count, first.kind);
    if !members.iter().all(is_like) {
        return Err(UNLIKE);
    }
    let num = members.len();
    let part = first.count * first.kind.bytes().ok_or(UNLIKE)?;
    let folded = |bytes: usize, fold: Fold| {
        let sent = members.iter().map(|op| memory.read(op.send, bytes));
        fold_all(&sent.collect::<Result<Vec<_>, u32>>()?, first.kind, fold)
    };
    match first.what {
        What::AllGather => {
            let sent = members.iter().map(|op| memory.take(op.send, part));
            let all = sent.collect::<Result<Vec<_>, u32>>()?.concat();
            members
                .iter()
                .try_for_each(|op| memory.write(op.recv, &all))
        }
        What::Broadcast(root) => {
            let bytes = memory.take(members.get(root).ok_or(UNLIKE)?.send, part)?;
            members
                .iter()
                .try_for_each(|op| memory.write(op.recv, &bytes))
        }
        What::AllReduce(fold) => {
            let all = folded(part, fold)?;
            members
                .iter()
                .try_for_each(|op| memory.write(op.recv, &all))
        }
        What::Reduce(fold, root) => {
            let all = folded(part, fold)?;
            memory.write(members.get(root).ok_or(UNLIKE)?.recv, &all)
        }
        What::ReduceScatter(fold) => {
            let all = folded(part * num, fold)?;
            let parts = members.iter().enumerate();
            let mut parts = parts.map(|(rank, op)| (op, &all[rank * part..(rank + 1) * part]));
            parts.try_for_each(|(op, bytes)| memory.write(op.recv, bytes))
        }
        What::Send | What::Receive => Err(UNLIKE),
    }
}

/// Folds what all have sent, in the order of ranks: one of the orders that NCCL may take.
fn fold_all(all: &[Vec<u8>], kind: Kind, fold: Fold) -> Result<Vec<u8>, u32> {
    macro_rules! wrapping {
        ($number:ty) => {
            numbers::<$number, i128>(all, fold, |x| x.into(), |x| x as $number)
        };
    }
    match kind.0 {
        0 => wrapping!(i8),
        1 => wrapping!(u8),
        2 => wrapping!(i32),
        3 => wrapping!(u32),
        4 => wrapping!(i64),
        5 => wrapping!(u64),
        6 => numbers::<f16, f32>(all, fold, f16::to_f32, f16::from_f32),
        7 => numbers::<f32, f32>(all, fold, |x| x, |x| x),
        8 => numbers::<f64, f64>(all, fold, |x| x, |x| x),
        9 => numbers::<bf16, f32>(all, fold, bf16::to_f32, bf16::from_f32),
        _ => Err(UNLIKE),
    }
}

/// Numbers that folds compute in.
trait Number: Copy + PartialOrd {
    fn add(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn parts(self, count: usize) -> Self;
}

macro_rules! number {
    ($kind:ty, $add:expr, $times:expr) => {
        impl Number for $kind {
            fn add(self, other: Self) -> Self {
                $add(self, other)
            }
            fn times(self, other: Self) -> Self {
                $times(self, other)
            }
            fn parts(self, count: usize) -> Self {
                self / count as $kind
            }
        }
    };
}
number!(f32, |x, y| x + y, |x, y| x * y);
number!(f64, |x, y| x + y, |x, y| x * y);
number!(i128, i128::wrapping_add, i128::wrapping_mul);

fn numbers<T: Copy, N: Number>(
    all: &[Vec<u8>],
    fold: Fold,
    up: impl Fn(T) -> N,
    down: impl Fn(N) -> T,
) -> Result<Vec<u8>, u32> {
    let size = size_of::<T>();
    let mut out = Vec::with_capacity(all[0].len());
    for at in (0..all[0].len()).step_by(size) {
        let mut folded: Option<T> = None;
        for bytes in all {
            // SAFETY: the range is of as many bytes, and all bits are numbers.
            let next = unsafe { bytes[at..at + size].as_ptr().cast::<T>().read_unaligned() };
            folded = Some(match folded {
                None => next,
                Some(folded) => {
                    let (x, y) = (up(folded), up(next));
                    down(match fold.0 {
                        0 | 4 => x.add(y),
                        1 => x.times(y),
                        2 => {
                            if x < y {
                                y
                            } else {
                                x
                            }
                        }
                        3 => {
                            if y < x {
                                y
                            } else {
                                x
                            }
                        }
                        _ => return Err(UNLIKE),
                    })
                }
            });
        }
        let mut folded = folded.ok_or(UNLIKE)?;
        if fold.0 == 4 {
            folded = down(up(folded).parts(all.len()));
        }
        // SAFETY: a number is as many bytes.
        out.extend_from_slice(unsafe {
            std::slice::from_raw_parts((&raw const folded).cast::<u8>(), size)
        });
    }
    Ok(out)
}
