//! Groups of options for the command lines of training programs.

mod checkpoints;
mod convert;
mod mixture;
pub mod numbers;
mod optimizer;
mod rows;
mod run;
mod show;
mod step;
mod texts;
mod train;

use std::path::Path;

use clap::{Args, ValueEnum};

use crate::clock::{Hardware, ModuleCosts};
use crate::mesh::{GpuTransport, Links, MeshShape, Nodes};
use crate::schedule::{Schedule, ScheduleChoice};
use crate::train::files;
use crate::{
    Accumulation, ActivationCheckpoint, AsyncTp, ContextParallel, Float, Float8, Offload, Regions,
    Reshard,
};

pub use checkpoints::{CheckpointArgs, Resume};
pub use convert::ConvertArgs;
pub use mixture::MixtureArgs;
pub use optimizer::{OptimizerArgs, ScheduleArgs};
pub use rows::{ByteSize, RowsArgs};
pub use run::RunArgs;
pub use show::{EvaluateArgs, ExplainArgs, HardwareArgs, SearchArgs, ShowMeshArgs, SimulateArgs};
pub use step::StepArgs;
pub use texts::TextArgs;
pub use train::{OutputArgs, TrainArgs};

/// How the ranks along pp share the layers, and in which order they work.
#[derive(Debug, Clone, Default, Args)]
pub struct PipelineArgs {
    /// In which order the ranks along pp work on microbatches: gpipe, 1f1b, interleaved, looped-bfs, zb-h1, zb-h2, zb-v
    /// or dualpipe-v; auto, or auto=N, for the fastest by which a rank holds at most N bytes; or the file of a table.
    #[arg(long, value_name = "NAME|FILE", default_value_t, value_parser = schedule)]
    pub schedule: ScheduleChoice,
    /// Stages on each rank along pp; 1 by default, 2 for zb-v and dualpipe-v.
    #[arg(long, value_name = "N")]
    pub stages_per_rank: Option<u32>,
    /// How layers are cut into stages: equally many for each, or so that the costliest stage costs as little as can be,
    /// with the embedding and the head, on a modelled H100.
    #[arg(long, value_enum, default_value_t)]
    pub stages_by: StagesBy,
    /// The cost of modules, once it is known.
    #[arg(skip)]
    pub costs: Option<ModuleCosts>,
}

/// How layers are cut into stages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum StagesBy {
    /// Equally many layers for each.
    #[default]
    Layers,
    /// By what a step costs.
    Cost,
}

/// No table of a schedule is longer.
const TABLE_BYTES_MAX: u64 = 8 << 20;

/// Reads the name of a schedule, or the file of a table.
fn schedule(text: &str) -> Result<ScheduleChoice, String> {
    let unknown = match text.parse::<ScheduleChoice>() {
        Ok(choice) => return Ok(choice),
        Err(unknown) => unknown,
    };
    match files::read_text(Path::new(text), TABLE_BYTES_MAX) {
        Ok(table) => match table.parse::<Schedule>() {
            Ok(table) => Ok(table.into()),
            Err(error) => Err(format!("{text}: {error}")),
        },
        Err(error) => Err(format!("{unknown}; nor is it the file of a table: {error}")),
    }
}

/// The axes, and the machines under them: all that `mesh` shows.
#[derive(Debug, Clone, Default, Args)]
pub struct AxesArgs {
    /// Axes of the device mesh, outermost first, of pp, dp, fsdp, cp and tp: fsdp=2,tp=2; 1 for one device.
    #[arg(long, value_name = "AXES", value_parser = mesh)]
    pub mesh: Option<MeshShape>,
    /// Ranks on each node (machine), such as 4, or node by node, such as 4+2; by default processes on one host form a
    /// node.
    #[arg(long, value_name = "N")]
    pub ranks_per_node: Option<Nodes>,
}

/// The devices, and how a forward pass is laid out over them: all that `generate` needs.
#[derive(Debug, Clone, Default, Args)]
pub struct ForwardArgs {
    /// The axes.
    #[command(flatten)]
    pub axes: AxesArgs,
    /// Devices of the ranks: this machine's CPU (flex); with the features of these names, GPUs through Vulkan, Metal or
    /// DX12 (wgpu), or NVIDIA's (cuda).
    #[arg(long, value_enum, default_value_t)]
    pub backend: Backend,
    /// Keep whole on every rank of tp what it cannot split evenly, such as 2 kv heads over 4 ranks, instead of failing.
    #[arg(long)]
    pub replicate_indivisible: bool,
    /// Type in which parameters are gathered and multiplied, over master weights in f32: f32, bf16 or f16.
    #[arg(long, value_name = "TYPE", default_value_t = Float::F32)]
    pub param_dtype: Float,
    /// Compute linear layers in float8: tensorwise, rowwise or blockwise128, and what the policy's text takes besides,
    /// such as tensorwise,gather=off.
    #[arg(long, value_name = "SCALING")]
    pub float8: Option<Float8>,
    /// Shard over fsdp: parameters, gradients and optimizer state (fsdp); parameters only between steps
    /// (zero2), gradients only in the optimizer too (zero1); nothing (ddp); over fsdp within dp (hsdp).
    #[arg(long, value_enum, default_value = "fsdp")]
    pub strategy: Strategy,
    /// Units whose parameters are gathered ahead of their use.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub prefetch: u32,
    /// Make collectives take the time of a network, for all axes (latency_us=20,gbps=10), by nodes
    /// (inside:latency_us=2,gbps=400;between:latency_us=20,gbps=40) or axis by axis
    /// (tp:latency_us=5,gbps=100;fsdp:latency_us=20,gbps=10).
    #[arg(long, value_name = "LINK")]
    pub link: Option<Links>,
    /// How ranks communicate that have an NVIDIA GPU each: by copies within a process and NCCL (auto), by copies
    /// between processes of one machine too (workspace), by NCCL alone (nccl), or through host memory (host).
    #[arg(long, value_name = "WAY", value_enum, default_value_t)]
    pub gpu_transport: Transport,
    /// How elementwise work runs: in as few kernels as possible (on), one operation at a time with the same functions
    /// (off), or by the backend's own operations (flex). Without it, as BURN_DIST_REGIONS says, or on on Burn's CPU
    /// backend and flex on GPUs.
    #[arg(long, value_name = "HOW")]
    pub regions: Option<Regions>,
    /// How attention gets keys and values that other ranks of cp have: passed from rank to rank (ring), gathered
    /// (gather), or what takes less time (auto).
    #[arg(long, value_name = "WAY", default_value_t = ContextParallel::Auto)]
    pub context: ContextParallel,
    /// Compute products in chunks beside the tp transfers that they wait for: on, off, or where the link
    /// is known and it takes less time (auto).
    #[arg(long, value_name = "WHEN", default_value_t = AsyncTp::Auto)]
    pub async_tp: AsyncTp,
    /// Keep in host memory while it is not needed: none, or a list of params, optimizer and activations, with
    /// host=BYTES for a limit.
    #[arg(long, value_name = "WHAT", default_value_t = Offload::default())]
    pub offload: Offload,
}

/// The devices of the ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// This machine's CPU.
    #[default]
    Flex,
    /// GPUs through Vulkan, Metal or DX12.
    #[cfg(feature = "wgpu")]
    Wgpu,
    /// NVIDIA's GPUs.
    #[cfg(feature = "cuda")]
    Cuda,
}

impl Backend {
    /// Returns whether tensors of the ranks are in the memory of this machine, rather than in that of a GPU.
    pub fn in_host_memory(self) -> bool {
        self == Self::Flex
    }
}

/// How ranks communicate that have an NVIDIA GPU each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// By copies within a process, and NCCL.
    #[default]
    Auto,
    /// By copies between processes of one machine too.
    Workspace,
    /// By NCCL alone.
    Nccl,
    /// Through host memory.
    Host,
}

impl From<Transport> for GpuTransport {
    fn from(transport: Transport) -> Self {
        match transport {
            Transport::Auto => Self::Auto,
            Transport::Workspace => Self::Workspace,
            Transport::Nccl => Self::Nccl,
            Transport::Host => Self::Host,
        }
    }
}

/// The devices, and how training is laid out over them.
#[derive(Debug, Clone, Default, Args)]
pub struct MeshArgs {
    /// The options of a forward pass.
    #[command(flatten)]
    pub forward: ForwardArgs,
    /// Type in which gradients are reduced: f32, or the type of --param-dtype.
    #[arg(long, value_name = "TYPE", default_value_t = Float::F32)]
    pub reduce_dtype: Float,
    /// Which activations the backward makes again instead of keeping them: none, full, every=N, selective, or bytes=N
    /// (kept per rank beside the borders).
    #[arg(long, value_name = "POLICY", default_value_t = ActivationCheckpoint::None)]
    pub activation_checkpoint: ActivationCheckpoint,
    /// When gathered parameters are dropped after forward: always, last (all but the last unit), every=N or never.
    #[arg(long, value_name = "WHEN", default_value_t = Reshard::AllButLast)]
    pub reshard: Reshard,
    /// When gradients of the microbatches of --accumulate are reduced over the ranks: once a step (step), each
    /// microbatch (microbatch: more traffic, less memory), or once for those between two reads of the loss, which here
    /// are those of a step (window).
    #[arg(long, value_name = "WHEN", default_value_t = Accumulation::PerWindow)]
    pub accumulate_reduce: Accumulation,
    /// How a pipeline is scheduled.
    #[command(flatten)]
    pub pipeline: PipelineArgs,
    /// The devices that the ranks run on, once they are known.
    #[arg(skip)]
    pub hardware: Option<Hardware>,
}

impl From<ForwardArgs> for MeshArgs {
    fn from(forward: ForwardArgs) -> Self {
        Self {
            forward,
            ..Self::default()
        }
    }
}

impl From<AxesArgs> for MeshArgs {
    fn from(axes: AxesArgs) -> Self {
        let forward = ForwardArgs {
            axes,
            ..ForwardArgs::default()
        };
        forward.into()
    }
}

/// The tensors that data parallelism shards.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Strategy {
    /// Parameters, gradients and optimizer state.
    #[default]
    Fsdp,
    /// Fsdp within each replica: needs both axes.
    Hsdp,
    /// Gradients and optimizer state; parameters between steps.
    Zero2,
    /// Optimizer state; parameters between steps, gradients from the optimizer on.
    Zero1,
    /// Nothing.
    Ddp,
}

fn mesh(text: &str) -> Result<MeshShape, String> {
    if text.trim().is_empty() {
        return Err("there are no axes in it: write them as name=size, for example fsdp=2,tp=2, or 1 for one device".to_string());
    }
    MeshShape::parse(text).map_err(|error| error.to_string())
}
