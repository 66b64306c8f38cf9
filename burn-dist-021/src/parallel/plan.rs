//! Plans of this line of Burn.

use super::walk::Burn021;

/// A plan for a model: which parameter is split over which axis, by path, and how the model is trained.
///
/// A pattern is a dotted path; in a segment `*` stands for any characters, and a segment `**` for any number of
/// segments. A pattern names a module, a parameter, or a list of them (then it stands for each element); `""` names the
/// model itself. Later entries override earlier ones for the parameters both name.
///
/// Methods without a pattern say how the model is trained (precision, checkpointing and so on); `unit_policy` says it
/// of a unit. It travels with the parameters: two models on one mesh may differ.
///
/// ```
/// use burn::backend::Flex;
/// use burn::nn::LinearConfig;
/// use burn_dist::mesh::MeshShape;
/// use burn_dist::Plan;
///
/// let up = LinearConfig::new(16, 64).init::<Flex>(&Default::default());
/// let down = LinearConfig::new(64, 16).init::<Flex>(&Default::default());
/// let mesh = MeshShape::parse("fsdp=2,tp=2")?;
///
/// let specs = Plan::new().colwise("0").rowwise("1").unit("*").resolve(&(up, down), &mesh)?;
/// let text: Vec<String> = specs.iter().map(|spec| spec.to_text(&mesh)).collect();
/// assert_eq!(text[0], "path=0.weight;style=colwise;role=weight;layout=[-, {tp}];unit=0;rest=yes");
/// assert_eq!(text[1], "path=0.bias;style=colwise;role=bias;layout=[{tp}];unit=0;rest=yes");
/// assert_eq!(text[2], "path=1.weight;style=rowwise;role=weight;layout=[{tp}, -];unit=1;rest=yes");
/// assert_eq!(text[3], "path=1.bias;style=rowwise;role=bias;layout=[-];unit=1;rest=yes");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Stacked experts, over the axes of role `Expert` or over others:
///
/// ```
/// use burn::backend::Flex;
/// use burn::module::Param;
/// use burn::tensor::Tensor;
/// use burn_dist::Plan;
/// use burn_dist::mesh::MeshShape;
///
/// let experts = [Param::from_tensor(Tensor::<Flex, 3>::zeros([8, 16, 64], &Default::default()))];
/// let layout = |plan: Plan, mesh| -> Result<String, Box<dyn std::error::Error>> {
///     let mesh = MeshShape::parse(mesh)?;
///     Ok(plan.resolve(&experts, &mesh)?[0].layout.display(&mesh).to_string())
/// };
/// assert_eq!(layout(Plan::new().experts("0"), "fsdp=2,ep=4")?, "[{ep}, -, -]");
/// assert_eq!(layout(Plan::new().axis("fsdp,cp").experts("0"), "fsdp=2,cp=2")?, "[{fsdp, cp}, -, -]");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A unit with a policy of its own:
///
/// ```
/// use burn_dist::{ActivationCheckpoint, Float, Plan, Precision, UnitPolicy};
///
/// let first = UnitPolicy::new().checkpoint(ActivationCheckpoint::Full).precision(Precision::new(Float::F32));
/// let plan = Plan::new().precision(Precision::new(Float::BF16)).unit("layers").unit_policy("layers.0", first);
/// ```
///
/// Stages of a pipeline, evenly, by cost, and the order in which ranks work on microbatches:
///
/// ```
/// use burn::backend::Flex;
/// use burn::nn::LinearConfig;
/// use burn_dist::Plan;
/// use burn_dist::mesh::MeshShape;
///
/// let linear = || LinearConfig::new(8, 8).with_bias(false).init::<Flex>(&Default::default());
/// let model = (linear(), vec![linear(), linear(), linear()], linear());
/// let plan = Plan::new().first("0").stages("1").last("2");
/// let specs = plan.resolve(&model, &MeshShape::parse("pp=2,fsdp=2")?)?;
/// let stages: Vec<u32> = specs.iter().flat_map(|spec| &spec.stage).map(|stage| stage.index).collect();
/// assert_eq!(stages, [0, 0, 0, 1, 1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// ```
/// use burn::backend::{Autodiff, Flex};
/// use burn::nn::LinearConfig;
/// use burn::tensor::{Distribution, Tensor};
/// use burn_dist::clock::{Hardware, ModuleCosts};
/// use burn_dist::mesh::MeshShape;
/// use burn_dist::{DeviceMesh, Dist, ParallelizeWith, Plan};
///
/// type B = Autodiff<Dist<Flex>>;
///
/// let mesh = DeviceMesh::builder().dry_run().build()?;
/// let device = mesh.device();
/// let linear = |size| LinearConfig::new(512, size).with_bias(false).init::<B>(&device);
/// let blocks = (0..4).map(|_| linear(512)).collect::<Vec<_>>();
/// let model = (blocks, linear(4096)).parallelize_with(&mesh, &Plan::new())?;
/// let (_, windows) = burn_dist::simulate::<B, _>(&device, &Hardware::preset("h100")?, || {
///     let x = Tensor::<B, 2>::random([512, 512], Distribution::Default, &device);
///     let x = model.0.iter().fold(x, |x, block| block.forward(x));
///     model.1.forward(x).sum().backward();
/// })?;
/// let plan = Plan::new().stage_costs("0", &ModuleCosts::new(&windows)).last("1");
/// let specs = plan.resolve(&model, &MeshShape::parse("pp=2")?)?;
/// let stages: Vec<u32> = specs.iter().flat_map(|spec| &spec.stage).map(|stage| stage.index).collect();
/// // The head is worth more than the blocks: the last stage has as few of them as can be.
/// assert_eq!(stages, [0, 0, 0, 1, 1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// ```
/// use burn_dist::Plan;
/// use burn_dist::schedule::{Schedule, ScheduleKind};
///
/// let by_name = Plan::new().schedule(ScheduleKind::ZbV);
/// let table: Schedule = "schedule ranks=2 chunks=1 placement=loop microbatches=1\nF0.0 BW0.0\nF1.0 BW1.0".parse()?;
/// let by_table = Plan::new().schedule(table);
/// # Ok::<(), burn_dist::schedule::ScheduleError>(())
/// ```
pub type Plan = burn_dist_front::parallel::Plan<Burn021>;
