//! Stages of a plan x parameters x mesh -> the stage of each parameter. A pure function.

use super::ParallelError;
use super::entry::{Action, Entry, Split, StageMark};
use super::fit::Match;
use super::plan::Plan;
use super::tree::{ModuleTree, Parameter};
use crate::mesh::{AxisIndex, MeshShape};
use crate::plan::clock::{ModuleCosts, is_inside};
use crate::plan::{Pipeline, ScheduleChoice, Stage};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The stage of a parameter, as far as entries name one.
#[derive(Clone, Copy, PartialEq)]
enum Named {
    Nowhere,
    Stage(u32),
    /// The one in which that entry, which splits by costs, puts it once the others are known.
    ByCost(usize),
}

/// Returns the stage of each parameter; `None` on a mesh that does not split the model into stages.
pub(super) fn stages<L>(
    plan: &Plan<L>,
    tree: &ModuleTree,
    matches: &[Vec<Match>],
    mesh: &MeshShape,
) -> Result<Option<Vec<Stage>>, ParallelError> {
    let splits = |axis: &AxisIndex| mesh.role(*axis).cuts_stages() && mesh.size(*axis) > 1;
    let Some(axis) = mesh.axis_indices().find(splits) else {
        return Ok(None);
    };
    let pipeline = Arc::new(pipeline(plan, axis, mesh)?);
    let mut named = vec![Named::Nowhere; tree.parameters.len()];
    let mut by_cost = Vec::new();
    for (number, (entry, matches)) in plan.entries.iter().zip(matches).enumerate() {
        let Action::Stage(mark) = &entry.action else {
            continue;
        };
        let stage = match mark {
            StageMark::First => Named::Stage(0),
            StageMark::Last => Named::Stage(pipeline.stages - 1),
            StageMark::At(index) => Named::Stage(existing(entry, *index, &pipeline)?),
            StageMark::Costs(costs) => {
                by_cost.push((number, costs));
                Named::ByCost(number)
            }
            StageMark::Blocks(split) => {
                let of_list = |path: &str, blocks| of_blocks(entry, path, split, blocks, &pipeline);
                for (i, stage) in of_lists(entry, tree, matches, of_list)? {
                    named[i] = Named::Stage(stage);
                }
                continue;
            }
        };
        for found in matches {
            named[found.parameter] = stage;
        }
    }
    for (number, costs) in by_cost {
        if !named.contains(&Named::ByCost(number)) {
            continue;
        }
        let entry = &plan.entries[number];
        let of_list = |path: &str, blocks| {
            let weights = weights(entry, path, costs, blocks)?;
            let beside = beside(path, costs, tree, &named, &pipeline);
            by_weight(entry, path, &weights, &beside)
        };
        for (i, stage) in of_lists(entry, tree, &matches[number], of_list)? {
            if named[i] == Named::ByCost(number) {
                named[i] = Named::Stage(stage);
            }
        }
    }
    let mut used = vec![false; pipeline.stages as usize];
    let stage = |(named, parameter): (Named, &Parameter)| {
        let Named::Stage(index) = named else {
            return Err(ParallelError::NoStage {
                path: parameter.path(),
                axis: mesh.name(axis).into(),
            });
        };
        used[index as usize] = true;
        Ok(Stage {
            index,
            pipeline: pipeline.clone(),
        })
    };
    let stages: Vec<Stage> = named
        .into_iter()
        .zip(&tree.parameters)
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

/// Returns what each block of the list at `path` costs.
fn weights(
    entry: &Entry,
    path: &str,
    costs: &ModuleCosts,
    blocks: usize,
) -> Result<Vec<f64>, ParallelError> {
    let weight = |block: usize| match costs.of(&inside(path, &block.to_string())) {
        0 => Err(ParallelError::NoCost {
            place: entry.place(),
            path: inside(path, &block.to_string()),
        }),
        ns => Ok(ns as f64),
    };
    (0..blocks).map(weight).collect()
}

/// Returns what each stage costs without the list at `path`, as far as it is known.
fn beside(
    path: &str,
    costs: &ModuleCosts,
    tree: &ModuleTree,
    named: &[Named],
    pipeline: &Pipeline,
) -> Vec<f64> {
    let mut stages = vec![0.0; pipeline.stages as usize];
    for (module, ns) in costs.iter().filter(|(module, _)| !is_inside(module, path)) {
        let is_there = |parameter: &Parameter| {
            let parameter = parameter.path();
            is_inside(&parameter, module) || is_inside(module, &parameter)
        };
        let at = tree.parameters.iter().position(is_there);
        if let Some(Named::Stage(stage)) = at.map(|at| named[at]) {
            stages[stage as usize] += ns as f64;
        }
    }
    stages
}

/// The path of something in a module; `""` is the model.
fn inside(module: &str, name: &str) -> String {
    match module {
        "" => name.to_owned(),
        module => format!("{module}.{name}"),
    }
}

/// Returns the pipeline of a plan along an axis, if its schedule can have so many stages.
fn pipeline<L>(
    plan: &Plan<L>,
    axis: AxisIndex,
    mesh: &MeshShape,
) -> Result<Pipeline, ParallelError> {
    let ranks = mesh.size(axis) as u32;
    let pipeline = |stages| Pipeline {
        axis,
        ranks,
        stages,
        schedule: plan.schedule.clone(),
    };
    let only = match &plan.schedule {
        ScheduleChoice::Kind(kind) => kind.chunks(),
        ScheduleChoice::Auto { .. } => None,
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
    let per_rank = plan.stages_per_rank.or(only).unwrap_or(1);
    let fits = per_rank > 0 && only.is_none_or(|only| only == per_rank);
    match per_rank.checked_mul(ranks).filter(|_| fits) {
        Some(stages) => Ok(pipeline(stages)),
        None => Err(ParallelError::ImpossibleSchedule {
            schedule: plan.schedule.to_string(),
            per_rank,
            only,
        }),
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

/// Returns the parameters in the lists that an entry names, with their stages; `of_list` returns the stage of each
/// block of the list at a path, of so many blocks.
fn of_lists(
    entry: &Entry,
    tree: &ModuleTree,
    matches: &[Match],
    of_list: impl Fn(&str, usize) -> Result<Vec<u32>, ParallelError>,
) -> Result<Vec<(usize, u32)>, ParallelError> {
    // The stage of each block, by the path of the list.
    let mut lists: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    let mut found = Vec::new();
    for Match {
        parameter: i, len, ..
    } in matches.iter().copied()
    {
        let parameter = &tree.parameters[i];
        let path = parameter.prefix(len);
        let block = parameter.segments.get(len).filter(|s| s.is_element());
        let Some(block) = block.and_then(|segment| segment.name.parse::<usize>().ok()) else {
            return Err(ParallelError::NoList {
                place: entry.place(),
                path,
            });
        };
        if !lists.contains_key(&path) {
            let blocks = tree.num_elements(&parameter.names[..len]);
            lists.insert(path.clone(), of_list(&path, blocks)?);
        }
        found.extend(lists[&path].get(block).map(|stage| (i, *stage)));
    }
    Ok(found)
}

/// Returns the stage of each of the `blocks` blocks of the list at `path`.
fn of_blocks(
    entry: &Entry,
    path: &str,
    split: &Split,
    blocks: usize,
    pipeline: &Pipeline,
) -> Result<Vec<u32>, ParallelError> {
    let one_per_block = |found: usize| match found == blocks {
        true => Ok(()),
        false => Err(ParallelError::NotOnePerBlock {
            place: entry.place(),
            path: path.into(),
            found,
            blocks,
        }),
    };
    let beside = vec![0.0; pipeline.stages as usize];
    match split {
        Split::Even => by_weight(entry, path, &vec![1.0; blocks], &beside),
        Split::Weights(weights) => {
            one_per_block(weights.len())?;
            by_weight(entry, path, weights, &beside)
        }
        Split::Table(table) => {
            one_per_block(table.len())?;
            let stages = table.iter().map(|stage| existing(entry, *stage, pipeline));
            stages.collect()
        }
    }
}

/// Returns the stage of each block of the list at `path`, by what each costs and what each stage costs `beside`.
fn by_weight(
    entry: &Entry,
    path: &str,
    weights: &[f64],
    beside: &[f64],
) -> Result<Vec<u32>, ParallelError> {
    if let Some(weight) = weights.iter().find(|w| !(w.is_finite() && **w > 0.0)) {
        return Err(ParallelError::NoWeight {
            place: entry.place(),
            weight: *weight,
        });
    }
    let (blocks, stages) = (weights.len(), beside.len());
    if blocks < stages {
        return Err(ParallelError::TooFewBlocks {
            place: entry.place(),
            path: path.into(),
            blocks,
            stages,
        });
    }
    Ok(balanced(weights, beside))
}

/// Cuts a list into a run of blocks for each stage, none empty, whose largest sum of `weights` is as small as can be;
/// among those the runs that differ the least, the larger ones first. `beside` is what each stage has to start with.
fn balanced(weights: &[f64], beside: &[f64]) -> Vec<u32> {
    let (_, sums) = cut(weights, beside, f64::max);
    let largest = sums.into_iter().fold(0.0, f64::max);
    // Sums are rounded: what is as large as the largest is allowed.
    let allowed = largest * (1.0 + 1e-9);
    let squares = |rest: f64, sum: f64| match sum <= allowed {
        true => rest + sum * sum,
        false => f64::INFINITY,
    };
    let (sizes, _) = cut(weights, beside, squares);
    let runs = sizes.iter().enumerate();
    runs.flat_map(|(stage, size)| std::iter::repeat_n(stage as u32, *size))
        .collect()
}

/// Returns the sizes and the sums of the runs with the least cost; `cost` adds a run's sum to the cost of those after
/// it. Of equally good first runs, the longest is taken.
fn cut(weights: &[f64], beside: &[f64], cost: impl Fn(f64, f64) -> f64) -> (Vec<usize>, Vec<f64>) {
    let (blocks, stages) = (weights.len(), beside.len());
    // best[s][i]: the least cost of the blocks from i on in the runs of stages s and later, and the size of the first.
    let mut best = vec![vec![(f64::INFINITY, 0); blocks + 1]; stages + 1];
    best[stages][blocks] = (0.0, 0);
    for stage in (0..stages).rev() {
        for first in 0..blocks {
            let mut sum = beside[stage];
            for size in 1..=blocks - first {
                sum += weights[first + size - 1];
                let found = cost(best[stage + 1][first + size].0, sum);
                if found <= best[stage][first].0 && found.is_finite() {
                    best[stage][first] = (found, size);
                }
            }
        }
    }
    let mut first = 0;
    let runs = best.iter().zip(beside).map(|(best, beside)| {
        let size = best[first].1;
        let run = &weights[first..first + size];
        first += size;
        (size, beside + run.iter().sum::<f64>())
    });
    runs.unzip()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallel::TreeBuilder;

    #[test]
    fn equal_blocks_are_split_evenly_and_the_first_stages_have_one_more() {
        for blocks in 1..=13usize {
            for stages in 1..=blocks {
                let found = balanced(&vec![1.0; blocks], &vec![0.0; stages]);
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

    /// The stages of an embedding, five blocks and a head, each with one parameter.
    fn by_costs(
        costs: &[(&str, u64)],
        more: impl Fn(Plan<()>) -> Plan<()>,
    ) -> Result<Vec<u32>, String> {
        let mut tree = TreeBuilder::default();
        let mut linear = |list: Option<&str>, name: &str| {
            if let Some(list) = list {
                tree.enter(list, "Tuple");
            }
            let container = list.map_or("Tuple", |_| "Vec");
            tree.enter(name, container);
            tree.enter("weight", "Struct:Linear");
            tree.parameter(&[2, 2]);
            tree.exit();
            tree.exit();
            if list.is_some() {
                tree.exit();
            }
        };
        linear(None, "0");
        for block in 0..5 {
            linear(Some("1"), &block.to_string());
        }
        linear(None, "2");
        let costs = costs.iter().map(|(path, ns)| (path.to_string(), *ns));
        let plan = Plan::new()
            .stage_costs("1", &costs.collect())
            .first("0")
            .last("2");
        let mesh = MeshShape::parse("pp=3").expect("a mesh");
        let specs = more(plan).resolve_tree(&tree.build(), &mesh);
        let specs = specs.map_err(|error| error.to_string())?;
        Ok(specs
            .iter()
            .flat_map(|spec| &spec.stage)
            .map(|stage| stage.index)
            .collect())
    }

    #[test]
    fn what_stages_have_beside_a_list_counts() {
        let blocks = ["1.0", "1.1", "1.2", "1.3", "1.4"].map(|block| (block, 10));
        let with =
            |more: &[(&'static str, u64)]| by_costs(&[&blocks[..], more].concat(), |plan| plan);
        assert_eq!(with(&[]).unwrap(), [0, 0, 0, 1, 1, 2, 2]);
        assert_eq!(with(&[("0.weight", 30)]).unwrap(), [0, 0, 1, 1, 2, 2, 2]);
        assert_eq!(with(&[("0", 30)]).unwrap(), [0, 0, 1, 1, 2, 2, 2]);
        assert_eq!(with(&[("1.0.inner", 30)]).unwrap(), [0, 0, 1, 1, 2, 2, 2]);
        let error = by_costs(&blocks[..4], |plan| plan).unwrap_err();
        assert!(error.contains("(\"1\"): 1.4 has no cost"), "{error}");
        // As ever, the later entry counts.
        let pinned = by_costs(&blocks, |plan| plan.stage("1.4", 0)).unwrap();
        assert_eq!(pinned, [0, 0, 0, 1, 1, 0, 2]);
        let even = by_costs(&[], |plan| plan.stages("1")).unwrap();
        assert_eq!(even, [0, 0, 0, 1, 1, 2, 2]);
    }

    /// Returns every cut of `blocks` blocks into `stages` runs.
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
                let beside: Vec<f64> = (0..stages)
                    .map(|stage| ((stage * 5 + seed) % 7) as f64 * (seed % 3) as f64)
                    .collect();
                let found = balanced(&weights, &beside);
                let mut sums = beside.clone();
                for (stage, weight) in found.iter().zip(&weights) {
                    sums[*stage as usize] += weight;
                }
                let most = |sums: &[f64]| sums.iter().copied().fold(0.0, f64::max);
                let best = cuts(weights.len(), stages).into_iter().map(|sizes| {
                    let mut rest = weights.as_slice();
                    let sums = sizes.iter().zip(&beside).map(|(size, beside)| {
                        let (run, after) = rest.split_at(*size);
                        rest = after;
                        beside + run.iter().sum::<f64>()
                    });
                    most(&sums.collect::<Vec<f64>>())
                });
                let best = best.fold(f64::INFINITY, f64::min);
                assert!(most(&sums) <= best * 1.000001, "{weights:?}: {found:?}");
                assert!(found.is_sorted(), "{found:?}");
                assert!(
                    (0..stages as u32).all(|stage| found.contains(&stage)),
                    "{found:?}"
                );
            }
        }
    }
}
