//! The only contact with the mesh: on which device there is training, and what it reports.
//!
//! Everything else takes a `Device` of Burn and would run on any one as it is.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, anyhow, bail};
use burn_core::tensor::Device;

use super::args::{Backend, MeshArgs, Strategy};
use super::exit::ended_by;
use super::model::Model;
use super::processes::Processes;
use super::report::{PlanStats, RankMemory, Traffic};
use super::stages;
#[cfg(feature = "cuda")]
use crate::backend::CudaDevice;
#[cfg(feature = "wgpu")]
use crate::backend::WgpuDevice;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
use crate::backend::{self, CubeDevice};
use crate::clock::Simulation;
use crate::explanation::{Ask, MemoryPlan, MemoryTimeline};
use crate::layout::Rows;
use crate::mesh::{Axis, AxisRole, MeshShape};
use crate::parallel::{ParallelError, ParamSpec};
use crate::report::{AccountedMemory, MeshReport, RankStats, RankTimes};
use crate::schedule::Timeline;
use crate::train::files::write_whole;
use crate::{
    DeviceMesh, Fault, Float, Hold, OnMesh, ParallelizeWith, Plan, Precision, ShardStrategy,
};

/// The work of a training step on the mesh.
#[derive(Debug, Clone)]
pub struct Explanation {
    /// The program after the pass that was asked for, window by window.
    pub after: String,
    /// Why the value that was asked about is made so, of each window that has it.
    pub why: String,
    /// For people.
    pub text: String,
    /// For programs.
    pub json: serde_json::Value,
    /// Flops of the model in a step.
    pub model_flops: f64,
    /// Memory of each planned rank.
    pub memory: Vec<MemoryPlan>,
    /// How it runs over the tasks of the step.
    pub timelines: Vec<MemoryTimeline>,
    /// Each window on the hardware that was asked for.
    pub simulations: Vec<Simulation>,
}

/// Returns what the shard axes of `shape` do.
fn strategy(shape: &MeshShape, strategy: Strategy) -> anyhow::Result<ShardStrategy> {
    let has = |is: fn(AxisRole) -> bool| shape.axes().iter().any(|axis| is(axis.role));
    Ok(match strategy {
        Strategy::Hsdp if !has(AxisRole::replicates) || !has(AxisRole::shards) => {
            bail!(
                "--strategy hsdp shards over fsdp within each replica of dp, and the mesh {shape} lacks one of them: \
                 try --mesh dp=2,fsdp=2"
            );
        }
        Strategy::Ddp => ShardStrategy::Replicate,
        Strategy::Fsdp | Strategy::Hsdp => ShardStrategy::Full,
        Strategy::Zero2 => ShardStrategy::GradOptim,
        Strategy::Zero1 => ShardStrategy::Optim,
    })
}

/// Amends a model's plan by the policy that the flags ask for.
///
/// `units` is the path of the list that stages are cut from.
fn policy(plan: Plan, units: &str, args: &MeshArgs) -> anyhow::Result<Plan> {
    let forward = &args.forward;
    let mut plan = plan
        .checkpoint(args.activation_checkpoint)
        .reshard(args.reshard)
        .prefetch(forward.prefetch)
        .context(forward.context)
        .async_tp(forward.async_tp)
        .offload(forward.offload)
        .accumulation(args.accumulate_reduce)
        .schedule(args.pipeline.schedule.clone());
    if let Some(stages) = args.pipeline.stages_per_rank {
        plan = plan.stages_per_rank(stages);
    }
    if let Some(costs) = &args.pipeline.costs {
        plan = plan.stage_costs(units, costs);
    }
    if let Some(shape) = &forward.axes.mesh {
        plan = plan.strategy(strategy(shape, forward.strategy)?);
    }
    if args.reduce_dtype != Float::F32 && args.reduce_dtype != forward.param_dtype {
        bail!(
            "--reduce-dtype {} is neither f32 nor --param-dtype {}: gradients are made in the latter",
            args.reduce_dtype,
            forward.param_dtype
        );
    }
    if forward.param_dtype != Float::F32 {
        plan = plan.precision(Precision::new(forward.param_dtype).reduce(args.reduce_dtype));
    }
    if let Some(float8) = &forward.float8 {
        plan = plan.float8(float8.clone());
    }
    if forward.replicate_indivisible {
        plan = plan.replicate_indivisible();
    }
    Ok(plan)
}

/// The number of a parameter's module in the list `units`: `layers.3.norm.gamma` -> 3.
fn unit(units: &str, path: &str) -> Option<usize> {
    let rest = path.strip_prefix(units)?.strip_prefix('.')?;
    rest.split('.').next()?.parse().ok()
}

/// The outermost list of modules that a parameter is in: `layers.3.norm.gamma` -> `layers`.
fn list(path: &str) -> Option<&str> {
    let numbers = path.match_indices('.').filter(|(at, _)| {
        let next = path[at + 1..].split('.').next();
        next.is_some_and(|next| next.parse::<usize>().is_ok())
    });
    numbers.map(|(at, _)| &path[..at]).next()
}

/// The axes that a model can be trained on, for people: `pp, dp, fsdp, cp and tp`.
fn axes_of<M: Model>() -> String {
    let mut axes = vec!["pp", "dp", "fsdp", "cp"];
    axes.extend(M::AXES);
    let last = axes.pop().unwrap_or_default();
    format!("{} and {last}", axes.join(", "))
}

/// The error of a program that was built without the patch: where a program asks a mesh for its device itself, the
/// compiler says so.
const NO_PATCH: &str = "Burn does not know the devices of meshes: this program was built without the patch of \
     burn-ndarray. Build it in a workspace whose Cargo.toml has\n\n[patch.crates-io]\nburn-ndarray = { path = \
     \"../burn-dist/carriers/burn-ndarray\" }\n\nas that of burn-dist has: a program of burn-dist is installed from a \
     checkout, with `cargo install --path`";

/// The devices of this run.
#[derive(Debug)]
pub struct Mesh {
    mesh: DeviceMesh,
    /// With gradients.
    device: Device,
    /// The same without.
    plain: Device,
    args: MeshArgs,
    /// The processes that have its ranks.
    processes: Processes,
}

impl Drop for Mesh {
    fn drop(&mut self) {
        if let Some(fault) = self.fault() {
            ended_by(&fault);
        }
    }
}

/// The work that the ranks of this process have done so far.
#[derive(Debug, Clone, Default)]
pub struct Account {
    /// Bytes held by each.
    pub memory: Vec<RankMemory>,
    /// How each spent its time.
    pub times: Vec<RankTimes>,
    /// Collectives by kind: calls of one rank, bytes received by all.
    pub traffic: BTreeMap<String, Traffic>,
}

impl Account {
    /// Sums up what a mesh reports of its ranks in this process.
    pub fn of(report: &MeshReport) -> Self {
        let mut account = Self::default();
        for rank in &report.ranks {
            account.memory.push(memory(rank));
            for (kind, count, bytes) in &rank.received {
                let total = account.traffic.entry(kind.to_string()).or_default();
                total.add(&Traffic {
                    count: *count,
                    bytes: *bytes,
                });
            }
            account.times.push(rank.times.clone());
        }
        account
    }
}

fn memory(rank: &RankStats) -> RankMemory {
    RankMemory {
        rank: rank.rank as usize,
        predicted_peak_bytes: rank.predicted_peak_bytes,
        peak_bytes: rank.peak_bytes,
        host_peak_bytes: rank.host_peak_bytes,
        peak_bytes_by_class: rank.peak_by_class(),
        most_bytes_by_class: rank.most_by_class(),
        at_rest_bytes: rank.at_rest_bytes,
    }
}

impl Mesh {
    /// Opens the devices; without a mesh, one.
    ///
    /// # Errors
    /// If the model is not split over one of the axes, this process can open no more meshes, or the program was built
    /// without the patch of burn-ndarray.
    pub fn open<M: Model>(args: &MeshArgs) -> anyhow::Result<Self> {
        Self::build::<M>(args, false, false)
    }

    /// Opens devices whose ranks note what they do when, for [`Self::save_trace`].
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn traced<M: Model>(args: &MeshArgs) -> anyhow::Result<Self> {
        Self::build::<M>(args, false, true)
    }

    /// Opens devices that plan and explain, but execute nothing.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn dry<M: Model>(args: &MeshArgs) -> anyhow::Result<Self> {
        Self::build::<M>(args, true, false)
    }

    /// Takes devices that the program has opened itself, and laid its model out over.
    ///
    /// # Errors
    /// If the other processes cannot be reached, or the program was built without the patch of burn-ndarray.
    pub fn of(mesh: DeviceMesh) -> anyhow::Result<Self> {
        let args = MeshArgs::default();
        Self::opened(mesh, &args, false)
    }

    fn opened(mesh: DeviceMesh, args: &MeshArgs, dry: bool) -> anyhow::Result<Self> {
        let plain = mesh.known_device().context(NO_PATCH)?;
        Ok(Self {
            device: plain.clone().autodiff(),
            plain,
            mesh,
            args: args.clone(),
            processes: match crate::launch::world()?.filter(|_| !dry) {
                Some(world) => Processes::of(&world)?,
                None => Processes::default(),
            },
        })
    }

    fn build<M: Model>(args: &MeshArgs, dry: bool, trace: bool) -> anyhow::Result<Self> {
        let mut builder = DeviceMesh::builder();
        let forward = &args.forward;
        if let Some(shape) = &forward.axes.mesh {
            // All its ranks would do the same work.
            let is_used = |axis: &Axis| M::AXES.contains(&axis.name.as_str());
            let idle = |axis: &&Axis| axis.role.splits_model() && !is_used(axis);
            if let Some(axis) = shape.axes().iter().find(idle) {
                bail!(
                    "nothing of this model is split over axis `{}` of the mesh {shape}: use {}",
                    axis.name,
                    axes_of::<M>()
                );
            }
            builder = builder.axes(shape);
        }
        // Whether it can be is known before a device is opened.
        policy(Plan::new(), M::UNITS, args)?;
        builder = builder
            .links(forward.link.clone().unwrap_or_default())
            .gpu_transport(forward.gpu_transport.into())
            .nodes(forward.axes.ranks_per_node.clone().unwrap_or_default())
            .account_memory(true);
        if let Some(regions) = forward.regions {
            builder = builder.regions(regions);
        }
        #[cfg(any(feature = "cuda", feature = "wgpu"))]
        let ranks = forward.axes.mesh.as_ref().map_or(1, MeshShape::num_ranks);
        builder = match forward.backend {
            Backend::Flex => builder,
            // Both are one backend, and the device says which.
            #[cfg(feature = "wgpu")]
            Backend::Wgpu => builder.backend::<backend::Wgpu>().devices(&vec![
                CubeDevice::from(
                    WgpuDevice::default()
                );
                ranks
            ]),
            #[cfg(feature = "cuda")]
            Backend::Cuda => builder.backend::<backend::Cuda>().devices(&vec![
                CubeDevice::from(
                    CudaDevice::default()
                );
                ranks
            ]),
        };
        if let Some(hardware) = &args.hardware {
            builder = builder.hardware(hardware);
        }
        if trace {
            builder = builder.trace();
        }
        if dry {
            builder = builder.dry_run();
        }
        let mesh = builder.build().context("cannot open the mesh")?;
        Self::opened(mesh, args, dry)
    }

    /// The processes that have its ranks.
    pub fn processes(&self) -> &Processes {
        &self.processes
    }

    /// Returns whether every process gives its own rows of a batch, rather than one the whole.
    pub fn gives_rows(&self) -> bool {
        self.processes.are_several()
    }

    /// The device that training runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The same without gradients: for answers, and for what is held out.
    pub fn inference_device(&self) -> Device {
        self.plain.clone()
    }

    /// Keeps the window of the mesh open until the result is dropped.
    pub fn hold(&self) -> Hold {
        self.device.hold()
    }

    /// The fault that has stopped the mesh, if one has.
    pub fn fault(&self) -> Option<Fault> {
        self.device.fault()
    }

    /// Returns whether tensors of the ranks are in the memory of this machine, rather than in that of a GPU.
    pub fn in_host_memory(&self) -> bool {
        self.args.forward.backend.in_host_memory()
    }

    /// Number of ranks.
    pub fn world_size(&self) -> usize {
        self.mesh.shape().num_ranks()
    }

    /// Number of parts that the rows of a batch are split into, if there are enough.
    pub fn num_row_groups(&self) -> usize {
        let shape = self.mesh.shape();
        shape.group_size(&shape.data_axes())
    }

    /// Returns what to write instead, if another order of the axes would be better.
    pub fn advice(&self) -> Option<String> {
        self.mesh.topology().advice(self.mesh.shape())
    }

    /// The ranks along each axis, and the links that the axes use, as a table; with advice if another order of the axes
    /// would be better.
    pub fn table(&self) -> String {
        self.mesh.table() + &self.advice().unwrap_or_default()
    }

    /// Which part of `model` is on which ranks, as a table; `None` if all of them have all of it.
    ///
    /// # Errors
    /// If the model cannot be laid out so.
    pub fn stages<M: Model>(&self, model: &M) -> anyhow::Result<Option<String>> {
        let (_, specs) = self.resolve(model)?;
        Ok(stages::table(&specs, self.mesh.shape()))
    }

    /// The number of the model's parameters.
    ///
    /// # Errors
    /// If the model cannot be laid out so.
    pub fn num_params<M: Model>(&self, model: &M) -> anyhow::Result<usize> {
        let (_, specs) = self.resolve(model)?;
        Ok(specs.iter().map(|spec| spec.layout.numel()).sum())
    }

    /// The number of modules in the list that the model is made of; 0 if it names none.
    ///
    /// # Errors
    /// If the model cannot be laid out so.
    pub fn num_units<M: Model>(&self, model: &M) -> anyhow::Result<usize> {
        let (_, specs) = self.resolve(model)?;
        let units = specs.iter().filter_map(|spec| unit(M::UNITS, &spec.path));
        Ok(units.max().map_or(0, |last| last + 1))
    }

    /// The plan of a model under the policy of the run, and what it says of each parameter.
    fn resolve<M: Model>(&self, model: &M) -> anyhow::Result<(Plan, Vec<ParamSpec>)> {
        let plan = policy(model.plan_on(self.mesh.shape())?, M::UNITS, &self.args)?;
        let specs = plan.resolve(model, self.mesh.shape());
        let specs = specs.map_err(|error| self.misfit(&error))?;
        Ok((plan, specs))
    }

    /// Refuses a model that says of itself what its parameters are not.
    fn check_says<M: Model>(&self, specs: &[ParamSpec]) -> anyhow::Result<()> {
        let paths = specs.iter().map(|spec| spec.path.as_str());
        let is_there = paths.clone().any(|path| unit(M::UNITS, path).is_some());
        if !M::UNITS.is_empty() && !is_there {
            let mut lists: Vec<&str> = paths.filter_map(list).collect();
            lists.dedup();
            bail!(
                "the model says that it is made of the list `{}` (Model::UNITS), and has no parameters there; its lists: {}",
                M::UNITS,
                match lists.as_slice() {
                    [] => "none".to_string(),
                    lists => lists.join(", "),
                }
            );
        }
        let shape = self.mesh.shape();
        for (index, axis) in shape.axes().iter().enumerate() {
            let says = M::AXES.contains(&axis.name.as_str()) && axis.role.splits_model();
            let splits = |spec: &ParamSpec| {
                let mut axes = spec.layout.sharded_axes();
                axes.any(|axis| usize::from(axis.0) == index)
            };
            if says
                && axis.size > 1
                && !self.args.forward.replicate_indivisible
                && !specs.iter().any(splits)
            {
                bail!(
                    "the model says that its tensors are split over axis `{}` (Model::AXES), and its plan splits none over \
                     that of the mesh {shape}: all ranks along it would do the same",
                    axis.name
                );
            }
        }
        Ok(())
    }

    /// The rows that this process has to read of a step's `batch` rows, cut into microbatches.
    pub fn rows(&self, batch: usize, microbatches: usize) -> Rows {
        let each = batch / microbatches;
        let here = self.mesh.local_rows(each);
        let parts = (0..microbatches).flat_map(|part| {
            let start = part * each;
            let rows = here.ranges().iter();
            rows.map(move |rows| start + rows.start..start + rows.end)
        });
        Rows::new(batch, parts)
    }

    /// The mesh as text; "1" for one device.
    pub fn name(&self) -> String {
        match self.world_size() {
            1 => "1".to_string(),
            _ => self.mesh.to_string(),
        }
    }

    /// Lays the model's parameters out over the mesh.
    ///
    /// # Errors
    /// If the model cannot be laid out so, or says of its units or axes what they are not.
    pub fn parallelize<M: Model>(&self, model: M) -> anyhow::Result<M> {
        let (plan, specs) = self.resolve(&model)?;
        self.check_says::<M>(&specs)?;
        model
            .parallelize_with(self.mesh.shape(), &plan)
            .map_err(|error| self.misfit(&error))
    }

    fn misfit(&self, error: &ParallelError) -> anyhow::Error {
        let way_out = match error {
            ParallelError::Indivisible { .. } => "; here: --replicate-indivisible",
            ParallelError::ImpossibleSchedule { .. } => "; here: --schedule, --stages-per-rank",
            _ => "",
        };
        anyhow!(
            "the model does not fit the mesh {}: {error}{way_out}",
            self.name()
        )
    }

    /// Returns what the mesh has done so far.
    pub fn report(&self) -> MeshReport {
        self.device.report()
    }

    /// Returns whether the model is cut into stages.
    pub fn has_stages(&self) -> bool {
        self.mesh.shape().pipeline_axis().is_some()
    }

    /// When the stages worked on which microbatch in the last step, if the devices were opened by [`Self::traced`].
    pub fn pipeline(&self) -> Option<Timeline> {
        self.device.trace()?.pipeline()
    }

    /// Writes what every rank of this process did when, and returns how many events were too many to keep.
    ///
    /// # Errors
    /// If the devices were not opened by [`Self::traced`], or the file cannot be written.
    pub fn save_trace(&self, path: &Path) -> anyhow::Result<u64> {
        let trace = self.device.trace().context("the mesh keeps no trace")?;
        write_whole(path, |to| trace.write(to))
            .with_context(|| format!("cannot write the trace {}", path.display()))?;
        Ok(trace.left_out())
    }

    /// Returns the memory that the ranks of this process held, by the buffers themselves, each with its number.
    pub fn accounted(&self) -> Vec<(usize, AccountedMemory)> {
        let ranks = self.device.report().ranks;
        ranks
            .into_iter()
            .filter_map(|rank| Some((rank.rank as usize, rank.accounted?)))
            .collect()
    }

    /// Returns what the planner has done so far.
    pub fn plan(&self) -> PlanStats {
        let report = self.device.report();
        PlanStats {
            windows: report.cache.windows,
            hits: report.cache.hits,
            misses: report.cache.misses,
            plan_ms: report.plan_time.as_secs_f64() * 1e3,
        }
    }

    /// Shares of the work that ranks along an axis do more than once, by axis.
    pub fn redundancy(&self) -> BTreeMap<String, f64> {
        let redundancy = self.device.report().redundancy;
        let axes = redundancy.axes.iter();
        axes.map(|axis| (axis.axis.clone(), redundancy.share(&axis.axis)))
            .collect()
    }

    /// Runs `step` and returns what its plans do, and what else is asked.
    ///
    /// # Errors
    /// If a plan cannot be simulated.
    pub fn explain<T>(
        &self,
        ask: Ask,
        step: impl FnOnce() -> T,
    ) -> anyhow::Result<(T, Explanation)> {
        self.device.start_explaining(ask);
        let result = step();
        let explanation = self.device.explained();
        let explanation = Explanation {
            after: explanation.after.join("\n"),
            why: explanation.why.join("\n"),
            text: explanation.to_string(),
            json: explanation.to_json(),
            model_flops: explanation.redundancy.model_flops,
            memory: explanation.memory,
            timelines: explanation.timelines,
            simulations: explanation
                .simulations
                .into_iter()
                .collect::<Result<_, _>>()?,
        };
        Ok((result, explanation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_is_in_a_list_by_its_path() {
        assert_eq!(unit("layers", "layers.3.norm.gamma"), Some(3));
        assert_eq!(unit("layers", "layers_of.3.norm"), None);
        assert_eq!(unit("image.blocks", "image.blocks.11.up"), Some(11));
        assert_eq!(list("image.blocks.11.up.2"), Some("image.blocks"));
        assert_eq!(list("norm.gamma"), None);
    }
}
