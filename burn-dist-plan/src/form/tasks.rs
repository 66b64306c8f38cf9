//! Tasks of ranks, and what passes report.

use super::{Failed, Form, Known, Reader, Tensors, Writer, form, lines};
use crate::float8::Float8Layer;
use crate::ir::{
    CollectiveRecord, CollectiveTask, HostTask, Indexed, Op, RandomTask, RankPlan, Task, TermOf,
    TransferTask, UploadTask,
};
use crate::memory::{MemoryPlan, PeakCause};
use crate::mesh::collective::{AllToAll, Collective, Kind, Strided};
use crate::passes::Report;
use crate::passes::async_tp::Overlap;
use crate::passes::checkpoint::Recomputed;
use crate::passes::lower::Lowered;
use crate::{AxisRedundancy, FewRows, Fused, Redundancy};

form!(struct Lowered<O> { "" plan, "\nvisits of tasks " visits, "\nactions of slots " actions });
form!(struct RankPlan<O> {
    "tasks " tasks as local, "\ndraws " draws or Vec::new(), "\nslots " num_slots as slots, "\npaths " paths, "\nclasses " classes,
    "\nstorage " storage, "\nindexed " indexed, "\nactions " actions, "\nroom " room or 0,
});
form!(struct Indexed { "" op, " of " shape, " dim " dim, " from " start });
form!(enum Task<O> {
    "load" => Load {
        " %" value, " to s" slot, " " dtype, " " shape, " bytes " bytes, " take" take or false, " host" host or false,
    },
    "upload" => Upload(" " task),
    "random" => Random(" " task),
    "run" => Op(" " op, " in " path),
    "region" => Region(" " task),
    "collective" => Collective(" " task),
    "launch" => Launch { " " group, " " tasks as lines },
    "finish" => Finish { " " group, " " to },
    "store" => Store {
        " s" slot, " as %" value, " " dtype, " " shape, " bytes " bytes, " take" take or false, " host" host or false,
    },
    "read" => Read { " " read, " s" slot, " " dtype, " " shape, " take" take or false },
    "to_host" => ToHost(" " task),
    "from_host" => FromHost(" " task),
    "free" => Free(" s" slot),
    "send" => Send(" " task),
    "receive" => Receive(" " task),
});
form!(struct TransferTask {
    "s" slot, " " dtype, " " shape, " peer " peer, " record " record, " in " path, " take" take or false,
});
form!(struct HostTask { "s" slot, " " dtype, " " shape });
form!(struct UploadTask {
    "%" value, " to s" slot, " " dtype, " " shape, " runs " runs or None, " terms " terms or Vec::new(),
    " seed " seed or 0,
});
form!(struct TermOf { "" op, " " index, " of " count });
form!(struct RandomTask<O> {
    "" op as of_window, " stream " stream, " to s" slot, " " dtype, " " shape, " runs " runs,
});
form!(struct Strided { "" outer, " x " mid_sizes, " x " inner_bytes });
form!(struct AllToAll { "" shape, " split " split, " concat " concat, " elements of " elem_bytes });
form!(enum Collective {
    "all_gather" => AllGather(" " parts), "reduce_scatter" => ReduceScatter { " " op, " " parts },
    "all_reduce" => AllReduce { " " op, " bytes " bytes }, "all_to_all" => AllToAll(" " moved),
    "shift" => Shift { " by " by, " sizes " sizes }, "broadcast" => Broadcast { " from " root, " bytes " bytes },
    "send" => Send { " bytes " bytes }, "recv" => Recv { " bytes " bytes },
});
form!(enum Kind {
    "all_gather" => AllGather, "reduce_scatter" => ReduceScatter, "all_reduce" => AllReduce,
    "all_to_all" => AllToAll, "shift" => Shift, "broadcast" => Broadcast, "send" => Send, "recv" => Recv,
    "exchange" => Exchange,
});
form!(struct CollectiveTask {
    "s" to, " = " collective, " of s" from, " take" take or false, " as " index, " of " group, " axes " axes,
    " " dtype, " " from_shape, " to " to_shape, " record " record, " in " path,
});
form!(struct CollectiveRecord {
    "" kind, " over " axes, " for " reason, " in " path or None, " " dtype, " " shape, " layouts " layouts,
    " bytes " bytes, " members " members, " spans_nodes" spans_nodes or false, " launch " launch or None,
});

/// Tasks of a rank, whose tensors are local.
pub(super) mod local {
    use super::*;

    pub(in super::super) fn write<O: Op + Form>(tasks: &[Task<O>], to: &mut Writer<'_>) {
        to.known.tensors = Tensors::new("s");
        lines::write(tasks, to);
    }

    pub(in super::super) fn read<O: Op + Form>(
        from: &mut Reader<'_>,
    ) -> Result<Vec<Task<O>>, Failed> {
        from.known.tensors = Tensors::new("s");
        lines::read(from)
    }
}

/// An operation of the window: its tensors are values, where those of a task are slots.
mod of_window {
    use super::*;

    pub(super) fn write<O: Op + Form>(op: &O, to: &mut Writer<'_>) {
        let slots = enter(&mut to.known);
        op.write(to);
        to.known.tensors = slots;
    }

    pub(super) fn read<O: Op + Form>(from: &mut Reader<'_>) -> Result<O, Failed> {
        let slots = enter(&mut from.known);
        let op = O::read(from)?;
        from.known.tensors = slots;
        Ok(op)
    }

    /// Begins with values of which nothing is known; returns what is known of slots.
    fn enter(known: &mut Known<'_>) -> Tensors {
        std::mem::replace(&mut known.tensors, Tensors::new("%"))
    }
}

/// The number of slots, after the tasks that have them.
mod slots {
    use super::*;

    pub(super) fn write(num_slots: &u32, to: &mut Writer<'_>) {
        num_slots.write(to);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<u32, Failed> {
        Ok(from.num_tensors()? as u32)
    }
}

form!(struct Report {
    "float8 " float8 as lines, "\nrecomputed " recomputed, "\nredundancy " redundancy, "\nscheduled " scheduled,
    "\noverlaps " overlaps as lines, "\nfused " fused or None, "\nmemory " memory as lines, "\nwhy " why or None,
});
form!(struct Float8Layer { "" path, " skipped " skipped or None, " gathered_before " gathered_before or None });
form!(struct Recomputed { "" visits, " of " visits_seen, " ops " ops, " collectives " collectives });
form!(struct Redundancy {
    "" flops, " model " model_flops, " hardware " hardware_flops, " axes " axes, " few rows " few_rows or None,
    " has_rows" has_rows or false,
});
form!(struct AxisRedundancy {
    "" axis, " " flops, " first " first or None, " is_product" is_product or false, " is_model" is_model or false,
    " is_data" is_data or false, " is_split" is_split or false,
});
form!(struct FewRows { "" rows, " ranks " ranks });
form!(struct Fused {
    "" regions, " regions, " different, " different, of " operations, " operations, " absorbed, " absorbed, saving "
    bytes_saved, " bytes, peak " peak_bytes, " instead of " peak_bytes_apart,
});
form!(struct Overlap { "" kind, " along " axis, " in " path or None, " whole " whole or None });
form!(struct MemoryPlan {
    "peak " peak_bytes, " " peak_by_class, " at " peak_cause, " classes " class_peaks, " start " start_bytes,
    " end " end_bytes, " host " host_peak_bytes,
});
form!(struct PeakCause { "" op, " in " path or None, " task " task });
