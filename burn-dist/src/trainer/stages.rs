//! Which part of the model is on which ranks of a mesh with a pipeline axis, for people.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::report::count_text;
use crate::mesh::{MeshShape, Rank};
use crate::parallel::ParamSpec;

/// The stages of a model as a table: ranks, parameters, modules; `None` if it has none.
pub fn table(specs: &[ParamSpec], mesh: &MeshShape) -> Option<String> {
    let pipeline = specs.first()?.stage.as_ref()?.pipeline.clone();
    let mut text = format!(
        "{} stages over {}, schedule {}\n{:>8} {:>12} {:>16}  modules\n",
        pipeline.stages,
        mesh.name(pipeline.axis),
        pipeline.schedule,
        "stage",
        "ranks",
        "parameters"
    );
    for stage in 0..pipeline.stages {
        let here = |spec: &&ParamSpec| spec.stage.as_ref().is_some_and(|s| s.index == stage);
        let specs: Vec<&ParamSpec> = specs.iter().filter(here).collect();
        let count = |spec: &&ParamSpec| spec.layout.shape().iter().product::<usize>();
        let parameters: usize = specs.iter().map(count).sum();
        let coord = pipeline.coord(stage) as usize;
        let ranks = (0..mesh.num_ranks()).filter(|rank| {
            let rank = Rank(*rank as u32);
            mesh.coord(rank, pipeline.axis) == coord
        });
        let _ = writeln!(
            text,
            "{stage:>8} {:>12} {:>16}  {}",
            runs(ranks),
            count_text(parameters as u64),
            modules(&specs)
        );
    }
    Some(text)
}

/// The outermost modules of parameters, those of lists by their numbers: `tok_embeddings, layers 0-3`.
fn modules(specs: &[&ParamSpec]) -> String {
    let mut names: Vec<&str> = Vec::new();
    let mut elements: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for spec in specs {
        let mut path = spec.path.split('.');
        let name = path.next().unwrap_or_default();
        if !names.contains(&name) {
            names.push(name);
        }
        if let Some(number) = path.next().and_then(|number| number.parse().ok()) {
            let numbers = elements.entry(name).or_default();
            if numbers.last() != Some(&number) {
                numbers.push(number);
            }
        }
    }
    let texts = names.iter().map(|name| match elements.get(name) {
        Some(numbers) => format!("{name} {}", runs(numbers.iter().copied())),
        None => name.to_string(),
    });
    texts.collect::<Vec<_>>().join(", ")
}

/// Numbers in rising order as text: `0-3,8`.
fn runs(numbers: impl Iterator<Item = usize>) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let text = |(first, last)| match first == last {
        true => format!("{first}"),
        false => format!("{first}-{last}"),
    };
    runs.into_iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_runs() {
        assert_eq!(runs([0, 1, 2, 5, 7, 8].into_iter()), "0-2,5,7-8");
        assert_eq!(runs(std::iter::empty()), "");
    }
}
