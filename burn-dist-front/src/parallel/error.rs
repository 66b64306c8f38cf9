//! Errors of a plan; each message ends with what to do.

use super::Style;
use crate::layout::LayoutError;
use crate::mesh::{MeshShape, any_of};
use crate::plan::{Precision, ScheduleKind};

/// Why a module could not be parallelised. Nothing has been changed or moved when one is returned.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ParallelError {
    /// A pattern names nothing in the module.
    #[error(
        "{entry}(\"{pattern}\") names nothing in this module; its paths, closest first: {}{}",
        .closest.join(", "),
        if *.num_more > 0 { format!(" and {num_more} more") } else { String::new() }
    )]
    UnknownPath {
        /// The entry of the plan: `colwise`.
        entry: String,
        /// The pattern.
        pattern: String,
        /// Paths that exist, closest first; `*` stands for the indices of a list.
        closest: Vec<String>,
        /// How many further paths exist.
        num_more: usize,
    },
    /// A pattern cannot be read.
    #[error("{entry}(\"{pattern}\"): {reason}")]
    MalformedPattern {
        /// The entry of the plan.
        entry: String,
        /// The pattern.
        pattern: String,
        /// Why it cannot be read.
        reason: String,
    },
    /// An axis that was named explicitly is not in the mesh.
    #[error("{place}: no axis {axis} in the mesh; its axes are {}", .axes.join(", "))]
    UnknownAxis {
        /// Where the axis was named.
        place: String,
        /// The axis.
        axis: String,
        /// The axes of the mesh.
        axes: Vec<String>,
    },
    /// An axis was named twice for one split.
    #[error("{place}: axis {axis} is named twice: name it once")]
    AxisTwice {
        /// Where it was named.
        place: String,
        /// The axis.
        axis: String,
    },
    /// A count, such as attention heads, does not split evenly over the axis.
    #[error(
        "{}: {count} {what} cannot be split over axis {axis} (size {size}): use {axis} = {}, \
         or mark it replicate / pass .replicate_indivisible()",
        path_or_root(.path),
        divisors(*.count)
    )]
    Indivisible {
        /// The module.
        path: String,
        /// The count that was asked to be split.
        count: usize,
        /// The name of what is counted: `kv heads`.
        what: String,
        /// The axis.
        axis: String,
        /// Its size.
        size: usize,
    },
    /// A style was put on something it has no meaning for.
    #[error("{}: {style} does not fit {found}: {advice}", path_or_root(.path))]
    DoesNotFit {
        /// The module or parameter the style was put on.
        path: String,
        /// The style.
        style: Style,
        /// A description of what it was put on.
        found: String,
        /// Advice: what to do instead.
        advice: String,
    },
    /// A style that splits weights was put on a field without any.
    #[error("{path}: {style} needs float parameters and there are none: remove the attribute")]
    NoParameters {
        /// The field.
        path: String,
        /// The style.
        style: Style,
    },
    /// An entry of a plan gives a style to the base of an adapter.
    #[error(
        "{place}: {path} is the frozen base of an adapter, which no entry splits alone: name the module that holds it, \
         and base and factors are split alike"
    )]
    AdaptedBase {
        /// The entry of the plan.
        place: String,
        /// The base.
        path: String,
    },
    /// A layout in text cannot be read.
    #[error("{place}: {source}")]
    MalformedLayout {
        /// The entry with the layout.
        place: String,
        /// Why it cannot be read.
        source: LayoutError,
    },
    /// A unit was asked for where there are modules without float parameters.
    #[error(
        "{place}: {} has no float parameters, so it is no unit: remove the entry, or name what holds some",
        path_or_root(.path)
    )]
    NoUnit {
        /// The entry of the plan.
        place: String,
        /// The first such module.
        path: String,
    },
    /// A precision reduces in a type that it neither computes in nor is f32.
    #[error("{place}: cannot reduce in {} what is computed in {}: reduce in f32 or in {}", .precision.reduce, .precision.param, .precision.param)]
    ImpossiblePrecision {
        /// The entry with the precision.
        place: String,
        /// The precision that was asked for.
        precision: Precision,
    },
    /// A sharding strategy was set for an axis that does not shard.
    #[error(
        "{place}: `{axis}` of the mesh {mesh} is not a shard axis: strategies are for axes named fsdp, dp_shard, zero, \
         shard, cp, context or ep, or given such a role"
    )]
    NotSharded {
        /// The entry with the strategy.
        place: String,
        /// The axis.
        axis: String,
        /// The mesh.
        mesh: MeshShape,
    },
    /// A tensor was to be split over the axis that splits the model into stages.
    #[error(
        "{place}: no tensor is split over {axis}, which splits the model into stages: leave it out"
    )]
    PipelineAxis {
        /// Where the axis was named.
        place: String,
        /// The axis.
        axis: String,
    },
    /// A parameter belongs to no stage, on a mesh that splits the model into stages.
    #[error(
        "{path} has no stage, and axis {axis} of the mesh splits the model into stages: mark the list of blocks that \
         it is in `stages`, or what it is in `first` or `last`, or add .stage(\"{path}\", 0) to the plan"
    )]
    NoStage {
        /// The parameter.
        path: String,
        /// The axis.
        axis: String,
    },
    /// A stage that has no parameter.
    #[error(
        "stage {stage} of {stages} has no parameters: give it some, or use fewer stages (a shorter pipeline axis, or \
         fewer stages_per_rank)"
    )]
    EmptyStage {
        /// The stage.
        stage: u32,
        /// Number of stages.
        stages: u32,
    },
    /// A stage that the pipeline does not have.
    #[error("{place}: there is no stage {stage}: this pipeline has stages 0 to {}", .stages - 1)]
    NoSuchStage {
        /// The entry with the stage.
        place: String,
        /// The stage.
        stage: u32,
        /// Number of stages.
        stages: u32,
    },
    /// Something other than a list of blocks was to be cut into stages.
    #[error(
        "{place}: {} is no list of blocks: name the list itself, or mark a single module first, last or \
         .stage(\"..\", N)",
        path_or_root(.path)
    )]
    NoList {
        /// The entry of the plan.
        place: String,
        /// The module that is no list.
        path: String,
    },
    /// A list with fewer blocks than there are stages.
    #[error(
        "{place}: {path} has {blocks} block(s) for {stages} stages: use fewer stages (a shorter pipeline axis, or \
         fewer stages_per_rank), or say by .stage_table(\"{path}\", &[..]) which stages have none of them"
    )]
    TooFewBlocks {
        /// The entry of the plan.
        place: String,
        /// The list.
        path: String,
        /// Its blocks.
        blocks: usize,
        /// Number of stages.
        stages: usize,
    },
    /// A table of stages, or weights, of another length than the list.
    #[error("{place}: {found} number(s) for the {blocks} block(s) of {path}: give one for each")]
    NotOnePerBlock {
        /// The entry of the plan.
        place: String,
        /// The list.
        path: String,
        /// Numbers passed.
        found: usize,
        /// Its blocks.
        blocks: usize,
    },
    /// The weight of a block that is none.
    #[error("{place}: {weight} is no weight: give what each block costs, a number above 0")]
    NoWeight {
        /// The entry of the plan.
        place: String,
        /// The number.
        weight: f64,
    },
    /// Costs in which a block is missing.
    #[error(
        "{place}: {path} has no cost: give those of a step that uses it, simulated on a mesh without a pipeline axis"
    )]
    NoCost {
        /// The entry of the plan.
        place: String,
        /// The block.
        path: String,
    },
    /// A schedule with a number of stages on each rank that it cannot have.
    #[error(
        "schedule {schedule} cannot have {per_rank} stage(s) per rank: {}",
        stages_of(*.only)
    )]
    ImpossibleSchedule {
        /// The schedule.
        schedule: String,
        /// Stages on each rank.
        per_rank: u32,
        /// How many it has, if that is not left open.
        only: Option<u32>,
    },
    /// A table of a schedule that is for another pipeline.
    #[error(
        "the schedule is a table for {of_ranks} ranks with {of_chunks} stage(s) each, and the pipeline has {ranks} ranks \
         with {per_rank}: write a table for these, or use a schedule by name"
    )]
    TableDoesNotFit {
        /// Ranks along the pipeline axis.
        ranks: u32,
        /// Stages on each.
        per_rank: u32,
        /// Ranks of the table.
        of_ranks: u32,
        /// Stages on each of them.
        of_chunks: u32,
    },
    /// The model's device belongs to another mesh than the one passed.
    #[error(
        "{path} is on a device of mesh {found}, not of {asked}: \
         create the model on the device of the mesh it is parallelised over"
    )]
    OtherMesh {
        /// The first parameter found elsewhere.
        path: String,
        /// The mesh passed.
        asked: MeshShape,
        /// The mesh of the parameter's device.
        found: MeshShape,
    },
    /// The model's device belongs to no mesh.
    #[error(
        "{path} is on {device}, which is no device of a mesh: create the model on the device of the mesh {asked}"
    )]
    NoMesh {
        /// The first parameter found elsewhere.
        path: String,
        /// Its device.
        device: String,
        /// The mesh passed.
        asked: MeshShape,
    },
    /// A record holds a parameter of another shape than the model, which has been parallelised.
    #[error(
        "{path}: the record holds a parameter of shape {found:?}, and the model's has {expected:?}: load it into a model of the config that it was saved from"
    )]
    RecordShape {
        /// The parameter.
        path: String,
        /// Its shape in the model.
        expected: Vec<usize>,
        /// Its shape in the record.
        found: Vec<usize>,
    },
}

burn_dist_mesh::debug_by_message!(ParallelError);

/// The module itself has the empty path, which would read as nothing.
fn path_or_root(path: &str) -> &str {
    if path.is_empty() { "(root)" } else { path }
}

/// How many stages a rank has under a schedule that may have `only` so many, and what else could be used.
fn stages_of(only: Option<u32>) -> String {
    match only {
        None => "it takes 1 or more".into(),
        Some(1) => {
            let any = ScheduleKind::ALL
                .into_iter()
                .filter(|kind| kind.chunks().is_none());
            let names: Vec<String> = any.map(|kind| kind.to_string()).collect();
            let names = any_of(names.iter().map(String::as_str));
            format!("it has 1; use {names} for more")
        }
        Some(_) => {
            "it has 2, one on the way there and one on the way back; leave stages_per_rank out"
                .into()
        }
    }
}

/// The sizes that do divide `count`, in words: `1, 2 or 4`.
fn divisors(count: usize) -> String {
    let all: Vec<String> = (1..=count)
        .filter(|size| count.is_multiple_of(*size))
        .map(|size| size.to_string())
        .collect();
    match all.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => "1".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_what_to_do() {
        let error = ParallelError::Indivisible {
            path: "layers.0.attention.wk".into(),
            count: 4,
            what: "kv heads".into(),
            axis: "tp".into(),
            size: 3,
        };
        assert_eq!(
            error.to_string(),
            "layers.0.attention.wk: 4 kv heads cannot be split over axis tp (size 3): use tp = 1, 2 or 4, \
             or mark it replicate / pass .replicate_indivisible()"
        );
    }

    #[test]
    fn divisors_in_words() {
        assert_eq!(divisors(0), "1");
        assert_eq!(divisors(1), "1");
        assert_eq!(divisors(7), "1 or 7");
        assert_eq!(divisors(12), "1, 2, 3, 4, 6 or 12");
    }
}
