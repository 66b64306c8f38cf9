//! The collective operations, as plain data: one description, with which piece goes where, from the pass that inserts
//! one to the communicator that runs it.

use crate::{DType, Rank, ReduceOp};
use std::fmt;
use std::sync::Arc;

/// A tensor seen as `[outer, mid, inner]`, row-major, whose middle dim is divided among the members of a group.
///
/// ```text
/// outer = 2, mid_sizes = [2, 1], inner_bytes = 4
/// whole   o0: a a b   o1: a a b        (each letter is 4 bytes; a belongs to member 0, b to member 1)
/// part 0  o0: a a     o1: a a
/// part 1  o0: b       o1: b
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Strided {
    /// Product of the dims before the divided one.
    pub outer: usize,
    /// The size of the divided dim on each member; sizes may differ and may be 0.
    pub mid_sizes: Arc<[usize]>,
    /// Bytes of one step of the divided dim: the product of the dims after it times the size of an element.
    pub inner_bytes: usize,
}

impl Strided {
    /// Returns a whole that is the concatenation of `sizes` bytes per member.
    pub fn flat(sizes: impl Into<Arc<[usize]>>) -> Self {
        Self {
            outer: 1,
            mid_sizes: sizes.into(),
            inner_bytes: 1,
        }
    }

    /// Returns `[outer, mid, inner]` with `mid` cut into chunks of `ceil(mid / num_members)`, the last ones shorter or
    /// empty.
    pub fn chunked(outer: usize, mid: usize, inner_bytes: usize, num_members: usize) -> Self {
        Self {
            outer,
            mid_sizes: chunk_sizes(mid, num_members).into(),
            inner_bytes,
        }
    }

    /// Size of the divided dim of the whole.
    pub fn mid(&self) -> usize {
        self.mid_sizes.iter().sum()
    }

    /// Bytes of the whole.
    pub fn whole_bytes(&self) -> usize {
        self.outer * self.mid() * self.inner_bytes
    }

    /// Bytes of the part of `member`.
    pub fn part_bytes(&self, member: usize) -> usize {
        self.outer * self.mid_sizes[member] * self.inner_bytes
    }
}

/// Returns the sizes of `num_chunks` chunks of `ceil(size / num_chunks)`; the last ones are shorter or empty.
///
/// 7 over 3 gives 3, 3, 1; 2 over 4 gives 1, 1, 0, 0.
pub fn chunk_sizes(size: usize, num_chunks: usize) -> Vec<usize> {
    let chunk = size.div_ceil(num_chunks);
    (0..num_chunks)
        .map(|i| chunk.min(size.saturating_sub(i * chunk)))
        .collect()
}

/// How an all-to-all moves the division of a row-major tensor from one dim to another: the `concat` dim is divided on
/// entry, the `split` dim on return.
///
/// Member `i` enters with the whole `split` dim and `concat.1[i]` of the `concat` dim; it returns with `split.1[i]` of
/// the `split` dim and the whole `concat` dim. The receiver copies from each sender's block in place; nothing is
/// packed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AllToAll {
    /// The undivided shape; its sizes at the two dims are the sums of the sizes below.
    pub shape: Arc<[usize]>,
    /// The dim that is cut, and its size on each member after the call.
    pub split: (usize, Arc<[usize]>),
    /// The dim that is joined, and its size on each member before the call.
    pub concat: (usize, Arc<[usize]>),
    /// Bytes of one element.
    pub elem_bytes: usize,
}

/// Returns the member that is `by` places further along a group of `num_members`, cyclically.
///
/// In a group of 4, member 0 is 1 place after member 3, and also -6 places after member 2.
pub fn member_after(member: usize, by: isize, num_members: usize) -> usize {
    let places = by.rem_euclid(num_members as isize) as usize;
    (member + places) % num_members
}

/// Returns the member that is `by` places before a member, cyclically: the one whose block a shift brings it.
pub fn member_before(member: usize, by: isize, num_members: usize) -> usize {
    // Not by -`by`, which the least number does not have.
    let places = by.rem_euclid(num_members as isize) as usize;
    (member + num_members - places) % num_members
}

/// One collective operation, described identically by every member of the group.
///
/// Sizes are in bytes unless they say otherwise. For k members, m the caller:
///
/// | variant | input of m | output of m | bytes received by m, as counted |
/// | --- | --- | --- | --- |
/// | `AllGather` | part m | the whole | sum of the other parts |
/// | `ReduceScatter` | the whole | part m of the reduction | (k-1) x part m |
/// | `AllReduce` | n bytes | n bytes, reduced | (k-1) x chunk m + (n - chunk m), chunks of ceil(n/k) elements: as a reduce-scatter and an all-gather |
/// | `AllToAll` | see [`AllToAll`] | | what the others send to m |
/// | `Shift` | block m | block (m - by) mod k | that block |
/// | `Broadcast` | n bytes on the root | the root's n bytes | n; 0 on the root |
/// | `Send`, `Recv` | n bytes on the sender | n bytes on the receiver | n on the receiver |
///
/// Where a member has no output, it is empty. Transposes: all-gather and reduce-scatter (sum) are each other's,
/// shifts by n and by -n too; all-reduce (sum) and all-to-all (with split and
/// concat swapped) are their own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Collective {
    /// Joins the parts of all members.
    AllGather(Strided),
    /// Reduces the wholes of all members and leaves each with its part.
    ReduceScatter {
        /// How elements combine.
        op: ReduceOp,
        /// How the whole is divided.
        parts: Strided,
    },
    /// Reduces the blocks of all members and leaves each with all of it.
    AllReduce {
        /// How elements combine.
        op: ReduceOp,
        /// Bytes of the block.
        bytes: usize,
    },
    /// Every member sends a different part to every other.
    AllToAll(AllToAll),
    /// Every member sends its block to the member some places further along the group, cyclically, and receives that of
    /// the member as many places before it. Blocks only move: their elements may be of any type.
    ///
    /// ```text
    /// by = 1     member 0   1   2   3        by = -1    member 0   1   2   3
    /// before            a   b   c   d        before            a   b   c   d
    /// after             d   a   b   c        after             b   c   d   a
    /// ```
    Shift {
        /// How many places: backwards if negative, and any number of times round the group, but no multiple of its
        /// size. All members say it by the same number.
        by: isize,
        /// Bytes of the block that each member brings. A member says by it what it sends and what it expects; sizes may
        /// differ and may be 0.
        sizes: Arc<[usize]>,
    },
    /// Gives the root's block to all.
    Broadcast {
        /// The rank that has it.
        root: Rank,
        /// Bytes of the block.
        bytes: usize,
    },
    /// Sends to the second rank of a pair; finishes without waiting for the receiver.
    Send {
        /// Bytes of the block.
        bytes: usize,
    },
    /// Receives from the first rank of a pair.
    Recv {
        /// Bytes of the block.
        bytes: usize,
    },
}

/// The kinds of calls, as counted and recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// [`Collective::AllGather`].
    AllGather,
    /// [`Collective::ReduceScatter`].
    ReduceScatter,
    /// [`Collective::AllReduce`].
    AllReduce,
    /// [`Collective::AllToAll`].
    AllToAll,
    /// [`Collective::Shift`].
    Shift,
    /// [`Collective::Broadcast`].
    Broadcast,
    /// [`Collective::Send`].
    Send,
    /// [`Collective::Recv`].
    Recv,
    /// Members of one process hand each other values.
    Exchange,
}

impl Kind {
    /// All kinds, in order of declaration.
    pub const ALL: [Kind; 9] = [
        Kind::AllGather,
        Kind::ReduceScatter,
        Kind::AllReduce,
        Kind::AllToAll,
        Kind::Shift,
        Kind::Broadcast,
        Kind::Send,
        Kind::Recv,
        Kind::Exchange,
    ];

    /// The name in texts and reports: `all_gather`, ...
    pub fn name(self) -> &'static str {
        match self {
            Kind::AllGather => "all_gather",
            Kind::ReduceScatter => "reduce_scatter",
            Kind::AllReduce => "all_reduce",
            Kind::AllToAll => "all_to_all",
            Kind::Shift => "shift",
            Kind::Broadcast => "broadcast",
            Kind::Send => "send",
            Kind::Recv => "recv",
            Kind::Exchange => "exchange",
        }
    }

    /// Steps of the ring algorithm between `members` members, each of which takes one latency; see the
    /// [formula](crate::link).
    ///
    /// A broadcast passes through all members in turn. A shift is one step, in which each sends and receives one block.
    /// An exchange hands over what is in shared memory, and takes none.
    pub fn rounds(self, members: usize) -> u64 {
        let others = members.saturating_sub(1) as u64;
        match self {
            Kind::AllReduce => 2 * others,
            Kind::Shift => others.min(1),
            Kind::Exchange => 0,
            _ => others,
        }
    }
}

impl Collective {
    /// Returns the collective of a kind of which a member brings `block`, row-major, which is cut into pieces for the
    /// members, or joined from theirs: a dim, and the size of each member's piece of it. `None` if the kind has no such
    /// pieces.
    pub fn of_pieces(
        kind: Kind,
        op: Option<ReduceOp>,
        block: &[usize],
        cut: Option<(usize, Arc<[usize]>)>,
        joined: Option<(usize, Arc<[usize]>)>,
        elem_bytes: usize,
    ) -> Option<Self> {
        let parts = |(dim, sizes): (usize, Arc<[usize]>)| Strided {
            outer: block[..dim].iter().product(),
            inner_bytes: block[dim + 1..].iter().product::<usize>() * elem_bytes,
            mid_sizes: sizes,
        };
        Some(match kind {
            Kind::AllGather => Self::AllGather(parts(joined?)),
            Kind::ReduceScatter => Self::ReduceScatter {
                op: op?,
                parts: parts(cut?),
            },
            Kind::AllReduce => Self::AllReduce {
                op: op?,
                bytes: block.iter().product::<usize>() * elem_bytes,
            },
            Kind::AllToAll => {
                let (split, concat) = (cut?, joined?);
                let mut shape = block.to_vec();
                shape[concat.0] = concat.1.iter().sum();
                Self::AllToAll(AllToAll {
                    shape: shape.into(),
                    split,
                    concat,
                    elem_bytes,
                })
            }
            Kind::Shift | Kind::Broadcast | Kind::Send | Kind::Recv | Kind::Exchange => {
                return None;
            }
        })
    }

    /// The kind of call.
    pub fn kind(&self) -> Kind {
        match self {
            Self::AllGather(_) => Kind::AllGather,
            Self::ReduceScatter { .. } => Kind::ReduceScatter,
            Self::AllReduce { .. } => Kind::AllReduce,
            Self::AllToAll(_) => Kind::AllToAll,
            Self::Shift { .. } => Kind::Shift,
            Self::Broadcast { .. } => Kind::Broadcast,
            Self::Send { .. } => Kind::Send,
            Self::Recv { .. } => Kind::Recv,
        }
    }

    /// How elements combine, if they do.
    pub fn reduce_op(&self) -> Option<ReduceOp> {
        match self {
            Self::ReduceScatter { op, .. } | Self::AllReduce { op, .. } => Some(*op),
            _ => None,
        }
    }

    /// Returns the bytes that `member` of `group` receives from the other members, as the table at [`Collective`] says.
    ///
    /// # Panics
    /// If pieces are listed for fewer members.
    pub fn received_bytes(&self, dtype: DType, group: &[Rank], member: usize) -> usize {
        let k = group.len();
        match self {
            Self::AllGather(parts) => parts.whole_bytes() - parts.part_bytes(member),
            Self::ReduceScatter { parts, .. } => (k - 1) * parts.part_bytes(member),
            Self::AllReduce { bytes, .. } => {
                let size = elem_bytes(dtype);
                let chunk = chunk_sizes(bytes / size, k)[member] * size;
                (k - 1) * chunk + (bytes - chunk)
            }
            Self::AllToAll(AllToAll {
                shape,
                split,
                concat,
                elem_bytes,
            }) => {
                let others = concat.1.iter().sum::<usize>() - concat.1[member];
                let rest: usize = shape
                    .iter()
                    .enumerate()
                    .filter(|(dim, _)| *dim != split.0 && *dim != concat.0)
                    .map(|(_, size)| size)
                    .product();
                rest * split.1[member] * others * elem_bytes
            }
            Self::Shift { by, sizes } => sizes[member_before(member, *by, k)],
            Self::Broadcast { root, .. } if group[member] == *root => 0,
            Self::Broadcast { bytes, .. } | Self::Recv { bytes } => *bytes,
            Self::Send { .. } => 0,
        }
    }

    /// Returns the text of messages: the kind, how elements combine, and what is moved, in elements where it has whole
    /// ones, such as `all_reduce sum f32 x 1024`.
    pub fn display(&self, dtype: DType) -> impl fmt::Display + '_ {
        Text(self, dtype)
    }

    /// Returns whether both calls are parts of one operation.
    pub fn matches(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Send { bytes: sent }, Self::Recv { bytes: expected })
            | (Self::Recv { bytes: expected }, Self::Send { bytes: sent }) => sent == expected,
            (Self::Send { .. }, _) | (Self::Recv { .. }, _) => false,
            _ => self == other,
        }
    }
}

struct Text<'a>(&'a Collective, DType);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(collective, dtype) = *self;
        f.write_str(collective.kind().name())?;
        if let Some(op) = collective.reduce_op() {
            write!(f, " {}", op.name())?;
        }
        write!(f, " {} ", dtype.name())?;
        let size = elem_bytes(dtype);
        let elements = |bytes: usize| match bytes.is_multiple_of(size) {
            true => (bytes / size).to_string(),
            false => format!("{bytes} B"),
        };
        match collective {
            Collective::AllGather(parts) | Collective::ReduceScatter { parts, .. } => {
                let inner = elements(parts.inner_bytes);
                write!(f, "of [{}, {:?}, {inner}]", parts.outer, parts.mid_sizes)
            }
            Collective::AllReduce { bytes, .. }
            | Collective::Send { bytes }
            | Collective::Recv { bytes } => write!(f, "x {}", elements(*bytes)),
            Collective::AllToAll(pieces) => {
                let ((split, cut), (concat, joined)) = (&pieces.split, &pieces.concat);
                let shape = &pieces.shape;
                write!(
                    f,
                    "{shape:?}, dim {split} split into {cut:?}, dim {concat} joined from {joined:?}"
                )
            }
            Collective::Shift { by, sizes } => write!(f, "by {by} of {sizes:?} B"),
            Collective::Broadcast { root, bytes } => {
                write!(f, "x {} from rank {}", elements(*bytes), root.0)
            }
        }
    }
}

/// Returns the bytes of one element, for dtypes that have whole bytes; 1 for packed quantized values, which only move.
pub fn elem_bytes(dtype: DType) -> usize {
    match dtype {
        DType::Quantized(_) => 1,
        other => other.size(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_the_kind_the_reduction_and_what_is_moved() {
        let op = ReduceOp::Sum;
        let sizes: Arc<[usize]> = [2, 1].into();
        let parts = Strided::chunked(2, 3, 20, 2);
        let texts = [
            (
                Collective::AllGather(parts.clone()),
                "all_gather f32 of [2, [2, 1], 5]",
            ),
            (
                Collective::ReduceScatter { op, parts },
                "reduce_scatter sum f32 of [2, [2, 1], 5]",
            ),
            (
                Collective::AllReduce { op, bytes: 4096 },
                "all_reduce sum f32 x 1024",
            ),
            (
                Collective::AllToAll(AllToAll {
                    shape: [3, 4].into(),
                    split: (0, sizes.clone()),
                    concat: (1, [2, 2].into()),
                    elem_bytes: 4,
                }),
                "all_to_all f32 [3, 4], dim 0 split into [2, 1], dim 1 joined from [2, 2]",
            ),
            (
                Collective::Shift { by: -1, sizes },
                "shift f32 by -1 of [2, 1] B",
            ),
            (
                Collective::Broadcast {
                    root: Rank(3),
                    bytes: 7,
                },
                "broadcast f32 x 7 B from rank 3",
            ),
            (Collective::Send { bytes: 8 }, "send f32 x 2"),
            (Collective::Recv { bytes: 8 }, "recv f32 x 2"),
        ];
        for (collective, text) in texts {
            assert_eq!(collective.display(DType::F32).to_string(), text);
        }
    }
}
