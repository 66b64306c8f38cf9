//! Which bytes go where in a collective: pure data, computed alike by every member.
//!
//! A collective fills a few *outputs* by a list of *moves*. Members whose results are equal read the same output, so
//! that a process that holds several of them writes it once. Every byte of a filled output is written by exactly one
//! move; `is_exact` checks it, and the code that lets several threads fill one output rests on it.

mod check;
mod share;
mod step;
#[cfg(test)]
mod tests;

pub(crate) use check::{check, input_bytes};
pub(crate) use share::{boxes, is_reduction, localized, packed, wanted};
pub(crate) use step::{Loop, Move, Source};

use super::group::Group;
use burn_dist_mesh::collective::{AllToAll, Collective, Strided, member_before};
use step::ONCE;

/// A result of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// Written by the moves.
    Filled { bytes: usize },
    /// The whole input of a member, as it is.
    Alias { member: usize },
}

/// The outputs of a collective, who reads which, and the moves that fill them.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    pub(crate) outputs: Vec<Output>,
    /// For each member the output it returns; `None` is the empty one.
    pub(crate) readers: Vec<Option<usize>>,
    pub(crate) moves: Vec<Move>,
}

impl Geometry {
    /// Returns the geometry of a valid `collective` among the members of `group`.
    pub(crate) fn new(collective: &Collective, group: &Group) -> Self {
        let k = group.len();
        if k == 1 {
            return Self::alias(0, vec![Some(0)]);
        }
        match collective {
            Collective::AllGather(parts) => Self::joined(parts),
            Collective::ReduceScatter { parts, .. } => Self::parted(parts, Source::All),
            Collective::AllReduce { bytes, .. } => Self::reduced(*bytes, k),
            Collective::AllToAll(pieces) => Self::swapped(pieces),
            Collective::Shift { by, .. } => Self::shifted(*by, k),
            Collective::Broadcast { root, .. } => {
                let root = group.member(*root);
                let root = root.expect("a valid call has a root in its group");
                Self::alias(root, vec![Some(0); k])
            }
            Collective::Send { .. } | Collective::Recv { .. } => {
                Self::alias(0, vec![None, Some(0)])
            }
        }
    }

    /// Cuts the moves into units of about `target` bytes, a multiple of 64.
    pub(crate) fn split(&mut self, target: usize) {
        assert!(
            target > 0 && target.is_multiple_of(64),
            "units must not cut elements"
        );
        let moves = std::mem::take(&mut self.moves);
        for step in moves {
            step.split_into(target, &mut self.moves);
        }
    }

    /// Sum of the bytes of all moves.
    pub(crate) fn bytes(&self) -> usize {
        self.moves.iter().map(Move::bytes).sum()
    }

    fn alias(member: usize, readers: Vec<Option<usize>>) -> Self {
        Self {
            outputs: vec![Output::Alias { member }],
            readers,
            moves: vec![],
        }
    }

    /// One output per member, its input as it is, which another one reads.
    fn shifted(by: isize, k: usize) -> Self {
        Self {
            outputs: (0..k).map(|member| Output::Alias { member }).collect(),
            readers: (0..k).map(|to| Some(member_before(to, by, k))).collect(),
            moves: vec![],
        }
    }

    fn push(&mut self, step: Move) {
        if step.bytes() > 0 {
            self.moves.push(step.merged());
        }
    }

    fn reduced(bytes: usize, k: usize) -> Self {
        let mut geometry = Self {
            outputs: vec![Output::Filled { bytes }],
            readers: vec![Some(0); k],
            moves: vec![],
        };
        geometry.push(Move::run(Source::All, 0, [0, 0, bytes]));
        geometry
    }

    /// One output, the whole, from each member's part.
    fn joined(parts: &Strided) -> Self {
        let mut geometry = Self {
            outputs: vec![Output::Filled {
                bytes: parts.whole_bytes(),
            }],
            readers: vec![Some(0); parts.mid_sizes.len()],
            moves: vec![],
        };
        let row = parts.mid() * parts.inner_bytes;
        let mut offset = 0;
        for (member, &mid) in parts.mid_sizes.iter().enumerate() {
            let run = mid * parts.inner_bytes;
            let rows = Loop {
                count: parts.outer,
                src_stride: run,
                dst_stride: row,
            };
            geometry.push(Move {
                source: Source::Member(member),
                output: 0,
                src: 0,
                dst: offset,
                loops: [ONCE, ONCE, rows],
                run,
            });
            offset += run;
        }
        geometry
    }

    /// One output per member, its part, from wholes in `source`.
    pub(crate) fn parted(parts: &Strided, source: Source) -> Self {
        let members = 0..parts.mid_sizes.len();
        let part = |member| Output::Filled {
            bytes: parts.part_bytes(member),
        };
        let mut geometry = Self {
            outputs: members.clone().map(part).collect(),
            readers: members.map(Some).collect(),
            moves: vec![],
        };
        let row = parts.mid() * parts.inner_bytes;
        let mut offset = 0;
        for (member, &mid) in parts.mid_sizes.iter().enumerate() {
            let run = mid * parts.inner_bytes;
            let rows = Loop {
                count: parts.outer,
                src_stride: row,
                dst_stride: run,
            };
            geometry.push(Move {
                source,
                output: member,
                src: offset,
                dst: 0,
                loops: [ONCE, ONCE, rows],
                run,
            });
            offset += run;
        }
        geometry
    }

    /// One output per member, its part along the dim that is cut, from each member's part along the other one.
    fn swapped(pieces: &AllToAll) -> Self {
        let AllToAll {
            shape,
            split: (split_dim, split_sizes),
            concat: (concat_dim, concat_sizes),
            elem_bytes,
        } = pieces;
        let (first, second) = (*split_dim.min(concat_dim), *split_dim.max(concat_dim));
        // The shape as [p, first, q, second, r].
        let p: usize = shape[..first].iter().product();
        let q: usize = shape[first + 1..second].iter().product();
        let r: usize = shape[second + 1..].iter().product::<usize>() * elem_bytes;
        let rest = p * q * r;
        let (split_whole, concat_whole): (usize, usize) =
            (split_sizes.iter().sum(), concat_sizes.iter().sum());
        let k = split_sizes.len();
        let outputs = split_sizes
            .iter()
            .map(|a| Output::Filled {
                bytes: rest * a * concat_whole,
            })
            .collect();
        let mut geometry = Self {
            outputs,
            readers: (0..k).map(Some).collect(),
            moves: vec![],
        };
        let mut split_start = 0;
        for (to, &a) in split_sizes.iter().enumerate() {
            let mut concat_start = 0;
            for (from, &b) in concat_sizes.iter().enumerate() {
                // Sizes of the two dims in the sender's block, in the receiver's, and in the box that moves.
                let (src_dims, dst_dims, box_dims, src_at, dst_at) = if split_dim < concat_dim {
                    (
                        (split_whole, b),
                        (a, concat_whole),
                        (a, b),
                        (split_start, 0),
                        (0, concat_start),
                    )
                } else {
                    (
                        (b, split_whole),
                        (concat_whole, a),
                        (b, a),
                        (0, split_start),
                        (concat_start, 0),
                    )
                };
                let strides =
                    |dims: (usize, usize)| (dims.0 * q * dims.1 * r, q * dims.1 * r, dims.1 * r);
                let (s, d) = (strides(src_dims), strides(dst_dims));
                geometry.push(Move {
                    source: Source::Member(from),
                    output: to,
                    src: src_at.0 * s.1 + src_at.1 * r,
                    dst: dst_at.0 * d.1 + dst_at.1 * r,
                    loops: [
                        Loop {
                            count: p,
                            src_stride: s.0,
                            dst_stride: d.0,
                        },
                        Loop {
                            count: box_dims.0,
                            src_stride: s.1,
                            dst_stride: d.1,
                        },
                        Loop {
                            count: q,
                            src_stride: s.2,
                            dst_stride: d.2,
                        },
                    ],
                    run: box_dims.1 * r,
                });
                concat_start += b;
            }
            split_start += a;
        }
        geometry
    }

    /// Returns whether every byte of every filled output is written exactly once. Slow: for tests and debug builds.
    pub(crate) fn is_exact(&self) -> bool {
        self.outputs.iter().enumerate().all(|(index, output)| {
            let Output::Filled { bytes } = *output else {
                return true;
            };
            let mut written = vec![0_u8; bytes];
            for step in self.moves.iter().filter(|step| step.output == index) {
                let [a, b, c] = step.loops;
                for (i, j, l) in (0..a.count).flat_map(|i| {
                    (0..b.count).flat_map(move |j| (0..c.count).map(move |l| (i, j, l)))
                }) {
                    let at = step.dst + i * a.dst_stride + j * b.dst_stride + l * c.dst_stride;
                    let Some(run) = written.get_mut(at..at + step.run) else {
                        return false;
                    };
                    run.iter_mut()
                        .for_each(|count| *count = count.saturating_add(1));
                }
            }
            written.iter().all(|&count| count == 1)
        })
    }
}
