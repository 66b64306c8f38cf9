//! Plans, as a person writes them.

use super::entry::{Action, Entry, Split, StageMark, StyleEntry, Target};
use super::pattern::Pattern;
use super::{Describe, LayoutText, Line, ParallelError, ParamSpec, Scope, Style};
use crate::mesh::MeshShape;
use crate::plan::clock::ModuleCosts;
use crate::plan::{
    Accumulation, ActivationCheckpoint, AsyncTp, ContextParallel, Float8, Offload, Precision,
    Reshard, ScheduleChoice, ShardStrategy, UnitPolicy,
};
use std::marker::PhantomData;
use std::sync::Arc;

/// The tensor-parallel axis used where none is named. A mesh may lack it: its styles then split nothing.
pub(super) const DEFAULT_AXIS: &str = "tp";

/// A plan for a model: which parameter is split over which axis, by path, and how the model is trained.
///
/// A pattern is a dotted path; in a segment `*` stands for any characters, and a segment `**` for any number of
/// segments. A pattern names a module, a parameter, or a list of them (then it stands for each element); `""` names the
/// model itself. Later entries override earlier ones for the parameters both name.
///
/// Methods without a pattern say how the model is trained (precision, checkpointing and so on); [`Plan::unit_policy`]
/// says it of a unit. It travels with the parameters: two models on one mesh may differ.
///
/// `L` is the [line of Burn](Line) whose modules it is for.
#[derive(Clone, Debug)]
pub struct Plan<L> {
    pub(super) entries: Vec<Entry>,
    /// The axis of the styles added from here on.
    axis: Option<String>,
    pub(super) replicate_indivisible: bool,
    /// How the model is trained.
    pub(super) policy: UnitPolicy,
    /// In which order ranks work on microbatches.
    pub(super) schedule: ScheduleChoice,
    /// Stages on each rank, if they are set.
    pub(super) stages_per_rank: Option<u32>,
    line: PhantomData<fn() -> L>,
}

/// The plan that says nothing.
impl<L> Default for Plan<L> {
    fn default() -> Self {
        Self::new()
    }
}

impl<L> Plan<L> {
    /// Returns the plan that says nothing: every parameter is whole, and rests over the FSDP axes; nothing is cast,
    /// recomputed or offloaded.
    pub fn new() -> Self {
        Self {
            entries: Vec::new(),
            axis: None,
            replicate_indivisible: false,
            policy: UnitPolicy::default(),
            schedule: ScheduleChoice::default(),
            stages_per_rank: None,
            line: PhantomData,
        }
    }

    /// Returns the plan that the attributes of a module describe.
    #[doc(hidden)]
    pub fn described(module: &(impl Describe + ?Sized)) -> Self {
        let mut scope = Scope::default();
        module.describe(&mut scope);
        Self {
            entries: scope.into_entries(),
            ..Self::new()
        }
    }

    /// Splits output features: weights `[-, {tp}]`, biases `[{tp}]`.
    pub fn colwise(self, pattern: &str) -> Self {
        self.style(Style::Colwise, pattern)
    }

    /// Splits input features: weights `[{tp}, -]`, biases whole.
    pub fn rowwise(self, pattern: &str) -> Self {
        self.style(Style::Rowwise, pattern)
    }

    /// Splits the vocabulary: the rows of an `Embedding`, the columns of a `Linear`.
    pub fn vocab(self, pattern: &str) -> Self {
        self.style(Style::Vocab, pattern)
    }

    /// Lets a module, or everything in it, work on parts of the sequence; parameters are whole.
    pub fn sequence(self, pattern: &str) -> Self {
        self.style(Style::Sequence, pattern)
    }

    /// Keeps a module, or everything in it, whole over the tensor-parallel axes.
    pub fn replicate(self, pattern: &str) -> Self {
        self.style(Style::Replicate, pattern)
    }

    /// Splits stacked experts: weights `[experts, in, out]` as `[{ep}, -, -]`, biases `[experts, out]` as `[{ep}, -]`.
    ///
    /// Over the axes of role [`Expert`](burn_dist_mesh::AxisRole::Expert), named `ep`, which a mesh may lack; or over those
    /// that [`Plan::axis`] names: any but those of a pipeline, several separated by commas, the first major.
    pub fn experts(self, pattern: &str) -> Self {
        self.style(Style::Experts, pattern)
    }

    /// Keeps a module, or everything in it, whole on every rank: it does not rest in pieces either.
    pub fn skip(self, pattern: &str) -> Self {
        self.with(pattern, Action::Skip)
    }

    /// Names the axis of the styles added after this; the mesh has to have it. Without, it is `tp`, which a mesh may
    /// lack.
    pub fn axis(mut self, axis: &str) -> Self {
        self.axis = Some(axis.into());
        self
    }

    /// Gives the layout in which a module takes its input. The mesh has to have its axes, except for `tp`, which is
    /// left out where it is missing.
    pub fn input(self, pattern: &str, layout: &str) -> Self {
        self.with(pattern, Action::Input(LayoutText::parse(layout)))
    }

    /// Gives the layout in which a module gives its output; axes as in [`Plan::input`].
    pub fn output(self, pattern: &str, layout: &str) -> Self {
        self.with(pattern, Action::Output(LayoutText::parse(layout)))
    }

    /// Marks a module as an FSDP unit, gathered and freed as a whole; of a list, each element. The nearest one counts.
    pub fn unit(self, pattern: &str) -> Self {
        self.with(pattern, Action::Unit(UnitPolicy::new()))
    }

    /// Marks a module as a unit, as [`Plan::unit`] does, with a policy of its own, whatever the model's is. It holds
    /// for units inside it too: of several policies the nearest counts, and of two at one path the later.
    pub fn unit_policy(self, pattern: &str, policy: UnitPolicy) -> Self {
        self.with(pattern, Action::Unit(policy))
    }

    /// Cuts a list of blocks into the stages of a mesh with a pipeline axis (`pp`): equally many blocks to each, the
    /// first stages one more where that cannot be. On another mesh it does nothing, and so do the methods below.
    ///
    /// On a mesh with a pipeline axis, every float parameter needs a stage: by `stages` for the list that it is in, by
    /// [`Plan::first`] or [`Plan::last`], or by [`Plan::stage`]. It lives on the ranks of its stage alone. As with
    /// styles, the later entry counts.
    pub fn stages(self, pattern: &str) -> Self {
        self.with(pattern, Action::Stage(StageMark::Blocks(Split::Even)))
    }

    /// Cuts a list of blocks into stages by what each block costs, in any unit: as [`Plan::stages`], but so that the
    /// costliest stage costs as little as can be. `weights` has one number above 0 for each block.
    pub fn stage_weights(self, pattern: &str, weights: &[f64]) -> Self {
        let split = Split::Weights(weights.into());
        self.with(pattern, Action::Stage(StageMark::Blocks(split)))
    }

    /// Cuts a list of blocks into stages by what a step of the model costs on modelled hardware: as
    /// [`Plan::stage_weights`], and what stages have beside the list counts too, such as a large head on the last one.
    pub fn stage_costs(self, pattern: &str, costs: &ModuleCosts) -> Self {
        let mark = StageMark::Costs(Arc::new(costs.clone()));
        self.with(pattern, Action::Stage(mark))
    }

    /// Gives each block of a list its stage, from 0: as [`Plan::stages`], by a table. Stages need not be consecutive:
    /// two towers may be on different ones.
    pub fn stage_table(self, pattern: &str, table: &[u32]) -> Self {
        let split = Split::Table(table.into());
        self.with(pattern, Action::Stage(StageMark::Blocks(split)))
    }

    /// Gives a module, or everything in it, the first stage: an embedding.
    pub fn first(self, pattern: &str) -> Self {
        self.with(pattern, Action::Stage(StageMark::First))
    }

    /// Gives a module, or everything in it, the last stage: the last norm, and the head.
    pub fn last(self, pattern: &str) -> Self {
        self.with(pattern, Action::Stage(StageMark::Last))
    }

    /// Gives a module, or everything in it, a stage, counted from 0.
    pub fn stage(self, pattern: &str, stage: u32) -> Self {
        self.with(pattern, Action::Stage(StageMark::At(stage)))
    }

    /// Sets in which order the ranks of a pipeline work on microbatches: a [kind](burn_dist_plan::ScheduleKind), 1F1B by default,
    /// or a table of one's own, which also says how many stages a rank has.
    pub fn schedule(mut self, schedule: impl Into<ScheduleChoice>) -> Self {
        self.schedule = schedule.into();
        self
    }

    /// Sets how many stages each rank of a pipeline has: 1 by default, 2 for schedules in the shape of a V, which have
    /// no other number. More than one are for schedules that are [looped](burn_dist_plan::ScheduleKind::is_looped).
    pub fn stages_per_rank(mut self, stages: u32) -> Self {
        self.stages_per_rank = Some(stages);
        self
    }

    /// Sets what all shard axes do with parameters, gradients and optimizer state: as [`UnitPolicy::strategy`], for the
    /// model.
    pub fn strategy(self, strategy: ShardStrategy) -> Self {
        self.model(|policy| policy.strategy(strategy))
    }

    /// Sets what one shard axis does: as [`UnitPolicy::strategy_over`], for the model.
    pub fn strategy_over(self, axis: impl Into<String>, strategy: ShardStrategy) -> Self {
        self.model(|policy| policy.strategy_over(axis, strategy))
    }

    /// Sets when gathered parameters are released: as [`UnitPolicy::reshard`], for the model.
    pub fn reshard(self, reshard: Reshard) -> Self {
        self.model(|policy| policy.reshard(reshard))
    }

    /// Sets how many units ahead of their use parameters are gathered: as [`UnitPolicy::prefetch`], for the model.
    pub fn prefetch(self, units: u32) -> Self {
        self.model(|policy| policy.prefetch(units))
    }

    /// Sets when the gradients of several backward passes are reduced: as [`UnitPolicy::accumulation`], for the model.
    pub fn accumulation(self, accumulation: Accumulation) -> Self {
        self.model(|policy| policy.accumulation(accumulation))
    }

    /// Sets how attention gets keys and values that other ranks have of a sequence: as [`UnitPolicy::context`], for the
    /// model.
    pub fn context(self, context: ContextParallel) -> Self {
        self.model(|policy| policy.context(context))
    }

    /// Sets whether products run beside the tensor-parallel transfers that they wait for: as [`UnitPolicy::async_tp`],
    /// for the model.
    pub fn async_tp(self, async_tp: AsyncTp) -> Self {
        self.model(|policy| policy.async_tp(async_tp))
    }

    /// Sets which activations are made again in the backward: as [`UnitPolicy::checkpoint`], for the model.
    pub fn checkpoint(self, checkpoint: ActivationCheckpoint) -> Self {
        self.model(|policy| policy.checkpoint(checkpoint))
    }

    /// Sets what is computed in: as [`UnitPolicy::precision`], for the model.
    pub fn precision(self, precision: Precision) -> Self {
        self.model(|policy| policy.precision(precision))
    }

    /// Sets that linear layers compute in float8, or with `None` that they do not: as [`UnitPolicy::float8`], for the
    /// model.
    pub fn float8(self, float8: impl Into<Option<Float8>>) -> Self {
        self.model(|policy| policy.float8(float8))
    }

    /// Sets what lives in host memory while it is not needed: as [`UnitPolicy::offload`], for the model.
    pub fn offload(self, offload: Offload) -> Self {
        self.model(|policy| policy.offload(offload))
    }

    /// Says something of the model's policy.
    fn model(mut self, say: impl FnOnce(UnitPolicy) -> UnitPolicy) -> Self {
        self.policy = say(self.policy);
        self
    }

    /// Requires that the size of `axis` divides `count`, such as a number of heads, where the pattern's modules are
    /// split over it.
    ///
    /// The mesh has to have the axis, unless it is `tp`.
    pub fn require_divisible(self, pattern: &str, count: usize, axis: &str) -> Self {
        self.with(
            pattern,
            Action::Divisible {
                count,
                axis: axis.into(),
            },
        )
    }

    /// Replicates what would be split unevenly against [`Plan::require_divisible`] or `heads`, instead of failing.
    pub fn replicate_indivisible(mut self) -> Self {
        self.replicate_indivisible = true;
        self
    }

    /// Returns one spec per float parameter, in the order of the module's walk. Nothing is initialised, moved or
    /// changed.
    ///
    /// Where a lazy parameter has mappers (`LinearLayout::Col`), the sizes in its layout are those Burn states before
    /// they run.
    ///
    /// # Errors
    /// [`ParallelError::UnknownPath`] for a pattern that names nothing (also one of [`Float8::skip`], in the model or the
    /// unit that it is set for), [`ParallelError::UnknownAxis`] for a named axis the mesh lacks,
    /// [`ParallelError::AxisTwice`], [`ParallelError::Indivisible`], [`ParallelError::DoesNotFit`] and
    /// [`ParallelError::NoParameters`] for styles that cannot be, [`ParallelError::NoUnit`] for a unit without float
    /// parameters, [`ParallelError::ImpossiblePrecision`] and [`ParallelError::NotSharded`] for policies that cannot
    /// be, and [`ParallelError::MalformedPattern`] and [`ParallelError::MalformedLayout`] for text that cannot be read.
    ///
    /// On a mesh with a pipeline axis also [`ParallelError::NoStage`] for a parameter without a stage,
    /// [`ParallelError::EmptyStage`], [`ParallelError::NoSuchStage`] and [`ParallelError::ImpossibleSchedule`] for
    /// stages that cannot be, [`ParallelError::NoList`], [`ParallelError::TooFewBlocks`],
    /// [`ParallelError::NotOnePerBlock`] and [`ParallelError::NoWeight`] for lists that cannot be cut into them, and
    /// [`ParallelError::PipelineAxis`] for a tensor that is to be split over that axis.
    pub fn resolve<B, M>(
        &self,
        module: &M,
        mesh: &impl AsRef<MeshShape>,
    ) -> Result<Vec<ParamSpec>, ParallelError>
    where
        L: Line<M, B>,
    {
        self.resolve_tree(&L::tree(module), mesh.as_ref())
    }

    fn style(self, style: Style, pattern: &str) -> Self {
        let axes = self.axis.as_deref().map(|named| match style {
            Style::Experts => named.split(',').map(|axis| axis.trim().into()).collect(),
            _ => vec![named.into()],
        });
        self.with(
            pattern,
            Action::Style(StyleEntry {
                style,
                axes,
                heads: None,
            }),
        )
    }

    fn with(mut self, pattern: &str, action: Action) -> Self {
        let target = Target::Pattern {
            text: pattern.into(),
            pattern: Pattern::parse(pattern),
        };
        self.entries.push(Entry { target, action });
        self
    }
}
