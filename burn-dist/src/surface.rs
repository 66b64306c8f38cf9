//! The parts of the other crates that users see, by topic: each type under one path.

/// Axes of a mesh, links and nodes, and how ranks on them communicate.
pub mod mesh {
    #[doc(inline)]
    pub use burn_dist_comm::Chaos;
    #[doc(inline)]
    pub use burn_dist_gpu::{GpuTransport, Reduction};
    #[doc(inline)]
    pub use burn_dist_mesh::{
        Axis, AxisIndex, AxisRole, DType, Degree, Link, LinkError, Links, MeshError, MeshShape,
        Nodes, ParallelDims, Rank, ReduceOp, TextError, Topology,
    };
}

/// Layouts: who holds which part of a tensor.
pub mod layout {
    #[doc(inline)]
    pub use burn_dist_plan::layout::{
        DimLayout, Factor, Layout, LayoutError, LayoutText, Partial, Rows,
    };
}

/// Results of [`explain`](crate::explain()): collectives, work and memory of a program, before anything runs.
pub mod explanation {
    #[doc(inline)]
    pub use burn_dist_plan::explain::{
        Accumulated, Ask, CollectiveTotal, ExplainedCollective, Explanation, Overlap, human_bytes,
    };
    #[doc(inline)]
    pub use burn_dist_plan::float8::Float8Layer;
    #[doc(inline)]
    pub use burn_dist_plan::memory::{
        ClassBytes, Ledger, MemoryClass, MemoryPlan, MemoryTimeline, PeakCause,
    };
    #[doc(inline)]
    pub use burn_dist_plan::{AskedValue, AxisRedundancy, FewRows, PASSES, PlanError, Redundancy};
}

/// Reports of a mesh: what its ranks did, and for how long.
pub mod report {
    #[doc(inline)]
    pub use burn_dist_comm::{KindStats, Stats};
    #[doc(inline)]
    pub use burn_dist_engine::record::MeshReport;
    #[doc(inline)]
    pub use burn_dist_engine::run::{AccountedMemory, AxesTimes, RankStats, RankTimes, Trace};
    #[doc(inline)]
    pub use burn_dist_plan::cache::CacheStats;
}

/// Schedules of pipeline stages: those of the literature, and tables of one's own.
pub mod schedule {
    #[doc(inline)]
    pub use burn_dist_plan::ScheduleChoice;
    #[doc(inline)]
    pub use burn_dist_plan::pipeline::{
        Action, Bytes, Choice, Kind, Limits, Placement, Schedule, ScheduleError, ScheduleKind,
        Span, StageTimes, Timeline, Times,
    };
}

/// The processes of a program: which this one is, how it reaches the others, and when it shall stop.
pub mod launch {
    #[cfg(feature = "mpi")]
    #[doc(inline)]
    pub use burn_dist_comm::Mpi;
    #[doc(inline)]
    pub use burn_dist_comm::{
        CommError, Destination, Matcher, Message, Peer, StartError, Transport, Votes, World,
    };
    #[doc(inline)]
    pub use burn_dist_launch::{
        ClusterEnv, ClusterEnvError, Launcher, Master, Stop, restarts, world,
    };
}
