//! Which bytes of a collective a process needs.
//!
//! The [`Geometry`] of a collective says where each byte of each output comes from. A process needs those that lead to
//! outputs its own ranks read; of another process's inputs it gets just these, packed, in the order of the moves.

use super::{Geometry, Move, Output, Source};
use std::ops::Range;

/// Returns for each output whether one of `members` reads it.
pub(crate) fn wanted(geometry: &Geometry, members: &[bool]) -> Vec<bool> {
    let mut wanted = vec![false; geometry.outputs.len()];
    for (reader, is_one) in geometry.readers.iter().zip(members) {
        if let (Some(output), true) = (reader, is_one) {
            wanted[*output] = true;
        }
    }
    wanted
}

/// Returns the boxes of `member`'s input (of `bytes` bytes) that lead to the outputs in `wanted`.
pub(crate) fn boxes(
    geometry: &Geometry,
    wanted: &[bool],
    member: usize,
    bytes: usize,
) -> Vec<Move> {
    let alias = Output::Alias { member };
    let mut outputs = geometry.outputs.iter().zip(wanted);
    if outputs.any(|(output, wanted)| *wanted && *output == alias) {
        return vec![Move::run(Source::Member(member), 0, [0, 0, bytes])];
    }
    let moves = geometry.moves.iter();
    moves
        .filter(|step| wanted[step.output])
        .filter(|step| step.source == Source::All || step.source == Source::Member(member))
        .copied()
        .collect()
}

/// Returns the loops of a move with its boxes one after the other, as strides.
fn dense(step: &Move) -> [usize; 3] {
    let inner = step.run;
    let middle = step.loops[2].count * inner;
    [step.loops[1].count * middle, middle, inner]
}

/// Returns whether the bytes of a box lie one after the other where they come from.
fn is_run(step: &Move) -> bool {
    let mut loops = step.loops.iter().zip(dense(step));
    loops.all(|(l, stride)| l.count == 1 || l.src_stride == stride)
}

/// Returns the geometry that copies boxes of one input one after the other; an error is the range, if they are
/// one run of it.
pub(crate) fn packed(boxes: &[Move]) -> Result<Geometry, Range<usize>> {
    match boxes {
        [] => return Err(0..0),
        [one] if is_run(one) => return Err(one.src..one.src + one.bytes()),
        _ => {}
    }
    let mut at = 0;
    let moves = boxes.iter().map(|step| {
        let mut step = Move {
            source: Source::Member(0),
            output: 0,
            dst: at,
            ..*step
        };
        let strides = dense(&step);
        for (l, stride) in step.loops.iter_mut().zip(strides) {
            l.dst_stride = stride;
        }
        at += step.bytes();
        step
    });
    let moves = moves.collect();
    Ok(Geometry {
        outputs: vec![Output::Filled { bytes: at }],
        readers: vec![Some(0)],
        moves,
    })
}

/// Returns what is left to do in a process whose ranks are `members`, with inputs as they arrive there: those of other
/// processes packed, and in a reduction all of them.
pub(crate) fn localized(geometry: &Geometry, members: &[bool]) -> Geometry {
    let wanted = wanted(geometry, members);
    let mut number = vec![usize::MAX; geometry.outputs.len()];
    let mut outputs = Vec::new();
    for (index, output) in geometry.outputs.iter().enumerate() {
        if wanted[index] {
            number[index] = outputs.len();
            outputs.push(*output);
        }
    }
    let mut packed = vec![0; members.len()];
    let mut packed_of_all = 0;
    let moves = geometry
        .moves
        .iter()
        .filter(|step| wanted[step.output])
        .map(|step| {
            let mut step = *step;
            step.output = number[step.output];
            let at = match step.source {
                Source::All => Some(&mut packed_of_all),
                Source::Member(member) => (!members[member]).then(|| &mut packed[member]),
            };
            if let Some(at) = at {
                step.src = *at;
                let strides = dense(&step);
                for (l, stride) in step.loops.iter_mut().zip(strides) {
                    l.src_stride = stride;
                }
                *at += step.bytes();
            }
            step
        })
        .collect();
    let readers = geometry.readers.iter().zip(members);
    Geometry {
        outputs,
        readers: readers
            .map(|(reader, is_one)| reader.filter(|_| *is_one).map(|output| number[output]))
            .collect(),
        moves,
    }
}

/// Returns whether the moves read all inputs at the same place.
pub(crate) fn is_reduction(geometry: &Geometry) -> bool {
    geometry.moves.iter().any(|step| step.source == Source::All)
}
