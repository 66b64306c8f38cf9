//! Checks of calls.

use crate::group::Group;
use burn_dist_mesh::DType;
use burn_dist_mesh::collective::{AllToAll, Collective, elem_bytes, member_before};

/// Checks that a call of `member` with an input of so many bytes makes sense by itself.
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
    match (input_bytes(collective, dtype, group, member)?, input) {
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

/// Checks what a call of `member` says of itself, and returns the bytes of the input that it needs, if it needs one.
///
/// # Errors
/// As [`check`].
pub(crate) fn input_bytes(
    collective: &Collective,
    dtype: DType,
    group: &Group,
    member: usize,
) -> Result<Option<usize>, String> {
    let k = group.len();
    let size = elem_bytes(dtype);
    let demand = |holds: bool, reason: &dyn Fn() -> String| match holds {
        true => Ok(()),
        false => Err(reason()),
    };
    let members = |what: &str, len: usize| {
        demand(len == k, &|| {
            format!("{what} lists {len} sizes for {k} members")
        })
    };
    let whole_elements = |what: &str, bytes: usize| {
        demand(bytes.is_multiple_of(size), &|| {
            format!(
                "{what} of {bytes} bytes is no whole number of {} elements",
                dtype.name()
            )
        })
    };
    let pair = |at: usize, does: &str| {
        demand(k == 2, &|| {
            format!("a transfer needs a group of two, the sender and the receiver, not {k}")
        })?;
        demand(member == at, &|| {
            format!("only the {does}; the group of the other direction has the ranks swapped")
        })
    };
    Ok(match collective {
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
        Collective::AllToAll(AllToAll {
            shape,
            split,
            concat,
            elem_bytes,
        }) => {
            members("the split dim", split.1.len())?;
            members("the concat dim", concat.1.len())?;
            if split.0 == concat.0 {
                return Err(format!(
                    "dim {} is both split and joined; split one dim and join another",
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
        Collective::Shift { by, sizes } => {
            members("the list of blocks", sizes.len())?;
            demand(k > 1, &|| {
                "the only member of a group would get its own block back; keep the block, or shift along a group of \
                 several ranks"
                    .into()
            })?;
            demand(member_before(member, *by, k) != member, &|| {
                format!(
                    "by {by} places along {k} members, a multiple of {k}, every member would get its own block back; \
                     keep the block, or shift by a number that is no multiple of {k}"
                )
            })?;
            Some(sizes[member])
        }
        Collective::Broadcast { root, bytes } => {
            let root_member = group.member(*root);
            let root_member =
                root_member.ok_or_else(|| format!("its root, rank {}, is no member", root.0))?;
            (root_member == member).then_some(*bytes)
        }
        Collective::Send { bytes } => {
            pair(0, "first rank of a pair sends")?;
            Some(*bytes)
        }
        Collective::Recv { .. } => {
            pair(1, "second rank of a pair receives")?;
            None
        }
    })
}
