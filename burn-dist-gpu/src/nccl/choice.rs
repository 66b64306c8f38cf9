//! Choices of users: the transport between GPUs, and the order of sums.

use super::op::Fold;
use burn_dist_mesh::DType;
use burn_dist_mesh::ReduceOp;

/// How ranks communicate that each have a GPU of their own.
///
/// Ranks that share a GPU exchange handles, whatever is chosen here; groups in which only some do go through the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GpuTransport {
    /// Copies on device memory where all ranks of a group are in one process, all their GPUs have access to each
    /// other's memory, and data is only moved: gathers, all-to-alls, shifts, and reductions whose terms are sent. NCCL
    /// for all else.
    ///
    /// A trace event (`burn_dist`, info) says of each group which it is. No machine with two GPUs has run the copies.
    #[default]
    Auto,
    /// Like `Auto`, with copies also where the ranks of a group are in several processes of one machine: through a
    /// [workspace](crate::symmetric) of 64 MiB per rank and lane that its processes share. A mesh whose GPUs or driver
    /// cannot share memory stops and says why. No machine with two GPUs has run this either.
    Workspace,
    /// NCCL, on device memory. It is loaded when it is first needed; a mesh that cannot find it stops and says where it
    /// has looked.
    Nccl,
    /// Host memory, and the transport between processes.
    Host,
}

/// In which order terms are added up by ranks that communicate with NCCL.
///
/// In order is the default, because it is what this crate promises everywhere: results are those of any other transport
/// bit by bit, equal from run to run, and `fsdp=N` equals `dp=N`. It moves as many bytes as a ring does: every member
/// gets all terms of its piece, adds them up on its device as a balanced tree, and an all-reduce then gathers the
/// pieces. What it gives up is what NCCL does in the network (NVLink SHARP, trees for small messages), and it needs
/// memory for the terms of one piece.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// One balanced tree along each axis, every sum rounded to the type of the elements: the bits of every other
    /// transport.
    #[default]
    InOrder,
    /// The order of NCCL: sums and means of floats may round differently, and may depend on NCCL's version and on how
    /// the GPUs are connected; halves are added in halves.
    Fast,
}

/// Returns NCCL's name for a reduction where it may do it itself: where the order of terms changes no bit, or may
/// change some.
///
/// Integer sums, products and extremes are exact in any order. A mean of integers rounds on each axis, extremes of
/// floats differ in NaN, and booleans have operations of their own: these are always folded in order.
pub fn native_fold(op: ReduceOp, dtype: DType, reduction: Reduction) -> Option<Fold> {
    match (dtype.is_float(), op) {
        _ if matches!(dtype, DType::Bool(_)) => None,
        (true, ReduceOp::Sum) if reduction == Reduction::Fast => Some(Fold::Sum),
        (true, ReduceOp::Mean) if reduction == Reduction::Fast => Some(Fold::Avg),
        (true, _) | (false, ReduceOp::Mean) => None,
        (false, ReduceOp::Sum) => Some(Fold::Sum),
        (false, ReduceOp::Prod) => Some(Fold::Prod),
        (false, ReduceOp::Min) => Some(Fold::Min),
        (false, ReduceOp::Max) => Some(Fold::Max),
    }
}
