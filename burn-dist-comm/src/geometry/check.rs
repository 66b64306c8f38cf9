//! Whether a call makes sense, and how many bytes it receives.

use crate::collective::{AllToAll, Collective, chunk_sizes, elem_bytes};
use crate::group::Group;
use burn_dist_mesh::DType;

/// Returns the bytes that `member` receives from the other members, as the table at [`Collective`] says.
pub(crate) fn received_bytes(
    collective: &Collective,
    dtype: DType,
    group: &Group,
    member: usize,
) -> usize {
    let k = group.len();
    let is = |rank| group.ranks()[member] == rank;
    match collective {
        Collective::AllGather(parts) => parts.whole_bytes() - parts.part_bytes(member),
        Collective::ReduceScatter { parts, .. } => (k - 1) * parts.part_bytes(member),
        Collective::AllReduce { bytes, .. } => {
            let size = elem_bytes(dtype);
            let chunk = chunk_sizes(bytes / size, k)[member] * size;
            (k - 1) * chunk + (bytes - chunk)
        }
        Collective::AllToAll(AllToAll::Dims {
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
        Collective::AllToAll(AllToAll::Rows { counts, row_bytes }) => (0..k)
            .filter(|&from| from != member)
            .map(|from| counts[from * k + member] * row_bytes)
            .sum(),
        Collective::Broadcast { root, bytes } => {
            if is(*root) {
                0
            } else {
                *bytes
            }
        }
        Collective::Reduce { root, bytes, .. } => {
            if is(*root) {
                (k - 1) * bytes
            } else {
                0
            }
        }
        Collective::Scatter { root, sizes } => {
            if is(*root) {
                0
            } else {
                sizes[member]
            }
        }
        Collective::Gather { root, sizes } => {
            if is(*root) {
                sizes.iter().sum::<usize>() - sizes[member]
            } else {
                0
            }
        }
        Collective::Recv { bytes } => *bytes,
        Collective::Send { .. } | Collective::Barrier => 0,
    }
}

/// Checks that a call of `member` makes sense by itself.
///
/// # Errors
/// Says what is wrong and what would be right.
pub(crate) fn check(
    collective: &Collective,
    dtype: DType,
    group: &Group,
    member: usize,
    input: Option<usize>,
) -> Result<(), String> {
    let k = group.len();
    let size = elem_bytes(dtype);
    let members = |what: &str, len: usize| {
        if len == k {
            Ok(())
        } else {
            Err(format!("{what} lists {len} sizes for {k} members"))
        }
    };
    let whole_elements = |what: &str, bytes: usize| {
        if bytes.is_multiple_of(size) {
            Ok(())
        } else {
            Err(format!(
                "{what} of {bytes} bytes is no whole number of {} elements",
                dtype.name()
            ))
        }
    };
    let root_member = |root| {
        group
            .member(root)
            .ok_or_else(|| format!("its root, rank {}, is no member", root.0))
    };
    let pair = || {
        if k == 2 {
            Ok(())
        } else {
            Err(format!(
                "a transfer needs a group of two, the sender and the receiver, not {k}"
            ))
        }
    };
    let expected = match collective {
        Collective::AllGather(parts) => {
            members("the division", parts.mid_sizes.len())?;
            Some(parts.part_bytes(member))
        }
        Collective::ReduceScatter { parts, .. } => {
            members("the division", parts.mid_sizes.len())?;
            for &mid in parts.mid_sizes.iter() {
                whole_elements("a part", mid * parts.inner_bytes)?;
            }
            Some(parts.whole_bytes())
        }
        Collective::AllReduce { bytes, .. } => {
            whole_elements("a block", *bytes)?;
            Some(*bytes)
        }
        Collective::AllToAll(AllToAll::Dims {
            shape,
            split,
            concat,
            elem_bytes,
        }) => {
            members("the split dim", split.1.len())?;
            members("the concat dim", concat.1.len())?;
            if split.0 == concat.0 {
                return Err(format!(
                    "dim {} is both split and joined; use rows with counts for that",
                    split.0
                ));
            }
            for (dim, sizes) in [split, concat] {
                let sum: usize = sizes.iter().sum();
                if shape.get(*dim) != Some(&sum) {
                    return Err(format!(
                        "the sizes {sizes:?} of dim {dim} sum to {sum}, but the shape is {shape:?}"
                    ));
                }
            }
            let rest: usize = shape
                .iter()
                .enumerate()
                .filter(|(dim, _)| *dim != concat.0)
                .map(|(_, size)| size)
                .product();
            Some(rest * concat.1[member] * elem_bytes)
        }
        Collective::AllToAll(AllToAll::Rows { counts, row_bytes }) => {
            if counts.len() != k * k {
                return Err(format!(
                    "{k} members need {} counts, not {}",
                    k * k,
                    counts.len()
                ));
            }
            Some(counts[member * k..(member + 1) * k].iter().sum::<usize>() * row_bytes)
        }
        Collective::Broadcast { root, bytes } => (root_member(*root)? == member).then_some(*bytes),
        Collective::Reduce { root, bytes, .. } => {
            root_member(*root)?;
            whole_elements("a block", *bytes)?;
            Some(*bytes)
        }
        Collective::Scatter { root, sizes } => {
            members("the division", sizes.len())?;
            (root_member(*root)? == member).then(|| sizes.iter().sum())
        }
        Collective::Gather { root, sizes } => {
            members("the division", sizes.len())?;
            root_member(*root)?;
            Some(sizes[member])
        }
        Collective::Send { bytes } => {
            pair()?;
            if member != 0 {
                return Err("only the first rank of a pair sends; the group of the other direction has the ranks \
                    swapped".into());
            }
            Some(*bytes)
        }
        Collective::Recv { .. } => {
            pair()?;
            if member != 1 {
                return Err("only the second rank of a pair receives; the group of the other direction has the ranks \
                    swapped".into());
            }
            None
        }
        Collective::Barrier => None,
    };
    match (expected, input) {
        (Some(expected), Some(found)) if expected != found => {
            Err(format!("its input has {found} bytes instead of {expected}"))
        }
        (Some(expected), None) => Err(format!(
            "it has no input; this member gives {expected} bytes"
        )),
        (None, Some(found)) => Err(format!(
            "it has an input of {found} bytes; this member gives none"
        )),
        _ => Ok(()),
    }
}
