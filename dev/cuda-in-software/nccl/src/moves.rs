//! What members bring to a meeting, and how its bytes move.

use half::{bf16, f16};
use software_meeting::{Check, How, Memory};
use std::ffi::c_void;
use std::ops::Range;
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

/// What a member brings to a meeting: its calls, and the bytes that each sends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Letter {
    pub(crate) ops: Vec<Op>,
    pub(crate) bytes: Vec<Vec<u8>>,
}

/// A meeting within a process: the calls of each member.
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

/// What the driver calls when all streams of a process's meeting have come.
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
    let all = round.0.lock().expect("no panic in a round").ops.clone();
    let memory = Memory { check, context };
    let read = all.into_iter().enumerate();
    let num = read.len();
    let letters = read.map(|(member, ops)| letter(&memory, ops, member, num));
    let letters = letters.collect::<Result<Vec<Letter>, u32>>();
    let done = letters.and_then(|letters| deliver(&letters, 0..num, &memory));
    done.err().unwrap_or(0)
}

/// Reads what a member sends by its calls.
pub(crate) fn letter(memory: &Memory, ops: Vec<Op>, me: usize, num: usize) -> Result<Letter, u32> {
    let get = |at, bytes, how| memory.get(at, bytes, how).map_err(|_| NOT_THERE);
    let mut bytes = Vec::new();
    for op in &ops {
        let part = op.bytes()?;
        bytes.push(match op.what {
            What::AllGather | What::Send => get(op.send, part, How::Move)?,
            What::Broadcast(root) if root == me => get(op.send, part, How::Move)?,
            What::AllReduce(_) | What::Reduce(..) => get(op.send, part, How::Read)?,
            What::ReduceScatter(_) => get(op.send, part * num, How::Read)?,
            What::Broadcast(_) | What::Receive => Vec::new(),
        });
    }
    Ok(Letter { ops, bytes })
}

impl Op {
    fn bytes(&self) -> Result<usize, u32> {
        Ok(self.count * self.kind.bytes().ok_or(UNLIKE)?)
    }
}

/// Writes what some members receive, given the letters of all.
pub(crate) fn deliver(letters: &[Letter], to: Range<usize>, memory: &Memory) -> Result<(), u32> {
    match letters[0].ops.first().map(|op| op.what) {
        Some(What::Send | What::Receive) => pair(letters, to, memory),
        Some(_) => collective(letters, to, memory),
        None => Err(UNLIKE),
    }
}

/// Sends of one member are received by the other, in order.
fn pair(letters: &[Letter], to: Range<usize>, memory: &Memory) -> Result<(), u32> {
    for receiver in to {
        let sender = &letters[letters.len() - 1 - receiver];
        let sent = sender.ops.iter().zip(&sender.bytes);
        let sent: Vec<_> = sent.filter(|(op, _)| op.what == What::Send).collect();
        let received = letters[receiver].ops.iter();
        let received: Vec<_> = received.filter(|op| op.what == What::Receive).collect();
        if sent.len() != received.len() {
            return Err(UNLIKE);
        }
        for ((send, bytes), receive) in sent.into_iter().zip(received) {
            if (send.count, send.kind) != (receive.count, receive.kind) {
                return Err(UNLIKE);
            }
            memory.write(receive.recv, bytes).map_err(|_| NOT_THERE)?;
        }
    }
    Ok(())
}

fn collective(letters: &[Letter], to: Range<usize>, memory: &Memory) -> Result<(), u32> {
    let mut members = Vec::new();
    for letter in letters {
        match (&letter.ops[..], &letter.bytes[..]) {
            ([op], [bytes]) => members.push((op, bytes)),
            _ => return Err(UNLIKE),
        }
    }
    let first = members[0].0;
    let is_like = |op: &Op| (op.what, op.count, op.kind) == (first.what, first.count, first.kind);
    if !members.iter().all(|(op, _)| is_like(op)) {
        return Err(UNLIKE);
    }
    let sent = || members.iter().map(|(_, bytes)| *bytes);
    let folded = |fold: Fold| fold_all(&sent().collect::<Vec<_>>(), first.kind, fold);
    let all = match first.what {
        What::AllGather => sent().flatten().copied().collect(),
        What::Broadcast(root) => members.get(root).ok_or(UNLIKE)?.1.clone(),
        What::AllReduce(fold) | What::Reduce(fold, _) | What::ReduceScatter(fold) => folded(fold)?,
        What::Send | What::Receive => return Err(UNLIKE),
    };
    let part = first.bytes()?;
    for member in to {
        let bytes = match first.what {
            What::Reduce(_, root) if root != member => continue,
            What::ReduceScatter(_) => &all[member * part..(member + 1) * part],
            _ => &all[..],
        };
        let to = members[member].0.recv;
        memory.write(to, bytes).map_err(|_| NOT_THERE)?;
    }
    Ok(())
}

/// Folds what all have sent, in the order of ranks: one of the orders that NCCL may take.
fn fold_all(all: &[&Vec<u8>], kind: Kind, fold: Fold) -> Result<Vec<u8>, u32> {
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
    all: &[&Vec<u8>],
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
