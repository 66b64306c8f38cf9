//! What a plan says of stages x parameters x mesh -> the stage of each parameter. A pure function.

use super::ParallelError;
use super::plan::{Action, Entry, Plan};
use super::resolve::Meeting;
use super::walk::Walk;
use crate::mesh::{AxisIndex, AxisRole, MeshShape};
use crate::plan::{Pipeline, ScheduleChoice, Stage};
use std::collections::BTreeMap;
use std::sync::Arc;

/// To which stage parameters belong.
#[derive(Clone, Debug)]
pub(super) enum StageMark {
    /// The first one.
    First,
    /// The last one.
    Last,
    /// This one.
    At(u32),
    /// The blocks of a list, one run of them after the other.
    Blocks(Split),
}

/// Which blocks of a list each stage has.
#[derive(Clone, Debug)]
pub(super) enum Split {
    /// Equally many; the first stages have one more where that cannot be.
    Even,
    /// By the cost of each block: the costliest stage costs as little as can be.
    Weights(Vec<f64>),
    /// The stage of each block.
    Table(Vec<u32>),
}

/// Returns the stage of each parameter; `None` on a mesh that does not split the model into stages.
pub(super) fn stages(
    plan: &Plan,
    walk: &Walk,
    met: &[Vec<Meeting>],
    mesh: &MeshShape,
) -> Result<Option<Vec<Stage>>, ParallelError> {
    let splits = |axis: &AxisIndex| mesh.role(*axis) == AxisRole::Pipeline && mesh.size(*axis) > 1;
    let Some(axis) = mesh.axis_indices().find(splits) else {
        return Ok(None);
    };
    let pipeline = Arc::new(pipeline(plan, axis, mesh)?);
    let mut found: Vec<Option<u32>> = vec![None; walk.parameters.len()];
    for (entry, met) in plan.entries.iter().zip(met) {
        let Action::Stage(mark) = &entry.action else {
            continue;
        };
        let index = match mark {
            StageMark::First => 0,
            StageMark::Last => pipeline.stages - 1,
            StageMark::At(index) => existing(entry, *index, &pipeline)?,
            StageMark::Blocks(split) => {
                split_lists(entry, split, walk, met, &pipeline, &mut found)?;
                continue;
            }
        };
        for (stage, met) in found.iter_mut().zip(met) {
            if met.is_some() {
                *stage = Some(index);
            }
        }
    }
    let mut used = vec![false; pipeline.stages as usize];
    let stage = |(stage, parameter): (Option<u32>, &super::walk::Parameter)| {
        let index = stage.ok_or_else(|| ParallelError::NoStage {
            path: parameter.path(),
            axis: mesh.name(axis).into(),
        })?;
        used[index as usize] = true;
        Ok(Stage {
            index,
            pipeline: pipeline.clone(),
        })
    };
    let stages: Vec<Stage> = found
        .into_iter()
        .zip(&walk.parameters)
        .map(stage)
        .collect::<Result<_, ParallelError>>()?;
    match used.iter().position(|used| !used) {
        Some(stage) if !stages.is_empty() => Err(ParallelError::EmptyStage {
            stage: stage as u32,
            stages: pipeline.stages,
        }),
        _ => Ok(Some(stages)),
    }
}

/// Returns the pipeline of a plan along an axis, if its schedule can have so many stages.
fn pipeline(plan: &Plan, axis: AxisIndex, mesh: &MeshShape) -> Result<Pipeline, ParallelError> {
    let ranks = mesh.size(axis) as u32;
    let pipeline = |stages| Pipeline {
        axis,
        ranks,
        stages,
        schedule: plan.schedule.clone(),
    };
    let schedule = match &plan.schedule {
        ScheduleChoice::Kind(kind) => *kind,
        ScheduleChoice::Table(table) => {
            let asked = plan.stages_per_rank.unwrap_or(table.chunks);
            return match (table.ranks, table.chunks) == (ranks, asked) {
                true => Ok(pipeline(table.stages())),
                false => Err(ParallelError::TableDoesNotFit {
                    ranks,
                    per_rank: asked,
                    of_ranks: table.ranks,
                    of_chunks: table.chunks,
                }),
            };
        }
    };
    let only = schedule.chunks();
    let per_rank = plan.stages_per_rank.or(only).unwrap_or(1);
    let fits = per_rank > 0 && only.is_none_or(|only| only == per_rank);
    match per_rank.checked_mul(ranks).filter(|_| fits) {
        Some(stages) => Ok(pipeline(stages)),
        None => Err(ParallelError::ImpossibleSchedule { schedule, per_rank }),
    }
}

fn existing(entry: &Entry, stage: u32, pipeline: &Pipeline) -> Result<u32, ParallelError> {
    match stage < pipeline.stages {
        true => Ok(stage),
        false => Err(ParallelError::NoSuchStage {
            place: entry.place(),
            stage,
            stages: pipeline.stages,
        }),
    }
}

/// Gives the parameters in the lists that an entry names their stages.
fn split_lists(
    entry: &Entry,
    split: &Split,
    walk: &Walk,
    met: &[Meeting],
    pipeline: &Pipeline,
    found: &mut [Option<u32>],
) -> Result<(), ParallelError> {
    // The stage of each block, by the path of the list.
    let mut lists: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for (i, parameter) in walk.parameters.iter().enumerate() {
        let Some((len, _)) = met[i] else { continue };
        let path = parameter.prefix(len);
        let block = parameter.segments.get(len).filter(|s| s.is_element());
        let Some(block) = block.and_then(|segment| segment.name.parse::<usize>().ok()) else {
            return Err(ParallelError::NoList {
                place: entry.place(),
                path,
            });
        };
        if !lists.contains_key(&path) {
            let blocks = num_blocks(walk, &parameter.names[..len]);
            let stages = stages_of_blocks(entry, &path, split, blocks, pipeline)?;
            lists.insert(path.clone(), stages);
        }
        found[i] = lists[&path].get(block).copied();
    }
    Ok(())
}

/// Returns the number of blocks in the list at `path`.
fn num_blocks(walk: &Walk, path: &[String]) -> usize {
    let inside = walk
        .modules
        .iter()
        .filter(|names| names.starts_with(path))
        .filter_map(|names| names.get(path.len())?.parse::<usize>().ok());
    inside.max().map_or(0, |last| last + 1)
}

/// Returns the stage of each of the `blocks` blocks of the list at `path`.
fn stages_of_blocks(
    entry: &Entry,
    path: &str,
    split: &Split,
    blocks: usize,
    pipeline: &Pipeline,
) -> Result<Vec<u32>, ParallelError> {
    let stages = pipeline.stages as usize;
    let one_per_block = |found: usize| match found == blocks {
        true => Ok(()),
        false => Err(ParallelError::NotOnePerBlock {
            place: entry.place(),
            path: path.into(),
            found,
            blocks,
        }),
    };
    let even = vec![1.0; blocks];
    let weights = match split {
        Split::Even => &even,
        Split::Weights(weights) => weights,
        Split::Table(table) => {
            one_per_block(table.len())?;
            let stages = table.iter().map(|stage| existing(entry, *stage, pipeline));
            return stages.collect();
        }
    };
    one_per_block(weights.len())?;
    if let Some(weight) = weights.iter().find(|w| !(w.is_finite() && **w > 0.0)) {
        return Err(ParallelError::NoWeight {
            place: entry.place(),
            weight: *weight,
        });
    }
    if blocks < stages {
        return Err(ParallelError::TooFewBlocks {
            place: entry.place(),
            path: path.into(),
            blocks,
            stages,
        });
    }
    Ok(balanced(weights, stages))
}

/// Cuts a list into `stages` runs of blocks, none empty, whose largest sum of `weights` is as small as can be; among
/// those the runs that differ the least, the larger ones first.
fn balanced(weights: &[f64], stages: usize) -> Vec<u32> {
    let most = |lists: &[f64]| lists.iter().copied().fold(0.0, f64::max);
    let largest = most(&cut(weights, stages, f64::max).1);
    // Sums are rounded: what is as large as the largest is allowed.
    let allowed = largest * (1.0 + 1e-9);
    let squares = |rest: f64, sum: f64| match sum <= allowed {
        true => rest + sum * sum,
        false => f64::INFINITY,
    };
    let (sizes, _) = cut(weights, stages, squares);
    let runs = sizes.iter().enumerate();
    runs.flat_map(|(stage, size)| std::iter::repeat_n(stage as u32, *size))
        .collect()
}

/// Returns the sizes and the sums of the runs with the least cost; `cost` adds a run's sum to the cost of those after
/// it. Of equally good first runs, the longest is taken.
fn cut(weights: &[f64], stages: usize, cost: impl Fn(f64, f64) -> f64) -> (Vec<usize>, Vec<f64>) {
    let blocks = weights.len();
    // best[s][i]: the least cost of the blocks from i on in s runs, and the size of the first of them.
    let mut best = vec![vec![(f64::INFINITY, 0); blocks + 1]; stages + 1];
    best[0][blocks] = (0.0, 0);
    for runs in 1..=stages {
        for first in 0..blocks {
            let mut sum = 0.0;
            for size in 1..=blocks - first {
                sum += weights[first + size - 1];
                let found = cost(best[runs - 1][first + size].0, sum);
                if found <= best[runs][first].0 && found.is_finite() {
                    best[runs][first] = (found, size);
                }
            }
        }
    }
    let mut first = 0;
    let sizes: Vec<usize> = (1..=stages)
        .rev()
        .map(|runs| {
            let size = best[runs][first].1;
            first += size;
            size
        })
        .collect();
    let mut rest = weights;
    let sums = sizes.iter().map(|size| {
        let (run, after) = rest.split_at(*size);
        rest = after;
        run.iter().sum()
    });
    let sums = sums.collect();
    (sizes, sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_blocks_are_split_evenly_and_the_first_stages_have_one_more() {
        for blocks in 1..=13usize {
            for stages in 1..=blocks {
                let found = balanced(&vec![1.0; blocks], stages);
                let more = blocks % stages;
                let sizes = (0..stages).map(|stage| blocks / stages + usize::from(stage < more));
                let expected: Vec<u32> = sizes
                    .enumerate()
                    .flat_map(|(stage, size)| vec![stage as u32; size])
                    .collect();
                assert_eq!(found, expected, "{blocks} blocks, {stages} stages");
            }
        }
    }

    /// All ways to cut `blocks` blocks into `stages` runs.
    fn cuts(blocks: usize, stages: usize) -> Vec<Vec<usize>> {
        if stages == 1 {
            return vec![vec![blocks]];
        }
        (1..=blocks + 1 - stages)
            .flat_map(|first| {
                let rest = cuts(blocks - first, stages - 1);
                rest.into_iter().map(move |mut sizes| {
                    sizes.insert(0, first);
                    sizes
                })
            })
            .collect()
    }

    #[test]
    fn the_costliest_stage_costs_as_little_as_can_be() {
        for seed in 0..60usize {
            let weights: Vec<f64> = (0..3 + seed % 6)
                .map(|i| ((i * 37 + seed * 11) % 13) as f64 / 4.0 + 0.1)
                .collect();
            for stages in 1..=weights.len() {
                let found = balanced(&weights, stages);
                let mut sums = vec![0.0f64; stages];
                for (stage, weight) in found.iter().zip(&weights) {
                    sums[*stage as usize] += weight;
                }
                let most = |sums: &[f64]| sums.iter().copied().fold(0.0, f64::max);
                let best = cuts(weights.len(), stages).into_iter().map(|sizes| {
                    let mut rest = weights.as_slice();
                    let sums = sizes.iter().map(|size| {
                        let (run, after) = rest.split_at(*size);
                        rest = after;
                        run.iter().sum()
                    });
                    most(&sums.collect::<Vec<f64>>())
                });
                let best = best.fold(f64::INFINITY, f64::min);
                assert!(most(&sums) <= best * 1.000001, "{weights:?}: {found:?}");
                assert!(found.is_sorted(), "{found:?}");
                assert!(sums.iter().all(|sum| *sum > 0.0), "{found:?}");
            }
        }
    }
}
