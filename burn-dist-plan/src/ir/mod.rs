//! The program that passes read and rewrite, and all that several of them speak of. Nothing here names a pass.
//!
//! | file | idea |
//! | --- | --- |
//! | `tensor`, `traits`, `op`, `op/` | the operations of a recorded program, and what one becomes on a rank |
//! | `float8` | operations of float8 training, which the planner alone makes |
//! | `param`, `stage`, `owner`, `role` | what is known of a parameter, and of what belongs to one |
//! | `region` | elementwise work as small programs over rows |
//! | `window` | recorded operations in canonical form |
//! | `values`, `step`, `chunked`, `cut`, `program` | the program of all ranks: values, slots, steps |
//! | `collective`, `levels` | which collective a step is, and its stages over several nodes |
//! | `task`, `access` | what one rank does, and which slots it reads and makes |
//! | `rename`, `flops` | operands of an operation rewritten; its work |

mod access;
mod chunked;
mod collective;
mod cut;
pub(crate) mod float8;
pub mod flops;
pub(crate) mod levels;
mod numbering;
pub mod op;
mod owner;
pub mod param;
mod program;
pub mod region;
mod rename;
mod role;
pub mod stage;
mod step;
pub(crate) mod task;
pub(crate) mod tensor;
mod traits;
mod values;
pub mod window;

pub(crate) use access::Access;
pub(crate) use chunked::Chunked;
pub(crate) use collective::{collective, described, ordered};
pub(crate) use cut::Cut;
pub(crate) use float8::{BLOCK, Float8Op, Float8Store, Product, ScaleOf, Ways};
pub(crate) use flops::is_product;
pub(crate) use op::Emitted;
pub(crate) use op::{
    Adjoint, FloatClass, Indexed, Indexing, Launched, Layer, LocalView, Mark, NewTensor, Op, Shift,
    Side, Steps, Tensor, TensorIndex, Work,
};
pub(crate) use owner::Owner;
pub use param::{ParamRole, ParamSpec, Style};
pub use program::Accumulated;
pub(crate) use program::{Outlives, Program, ProgramStep};
pub(crate) use rename::{redirect, rename};
pub use role::{Phase, Role};
pub use stage::{Pipeline, ScheduleChoice, Stage};
pub(crate) use step::{LocalStep, Move, OnNodes, Reason, Transfer};
pub(crate) use task::{
    CollectiveRecord, CollectiveTask, HostTask, Output, RandomTask, RankPlan, ReadPlan,
    RegionInput, RegionTask, Task, TermOf, TransferTask, UploadTask,
};
pub(crate) use tensor::Slot;
pub(crate) use values::{OpIndex, SlotInfo, Source, Value, Version};
pub(crate) use window::op_bytes;
pub(crate) use window::{Entry, InputState, Origin, ValueIndex, Window};
