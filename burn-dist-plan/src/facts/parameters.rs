//! Parameters of a window: what replaces them, their casts and views, and what is made of them alone.

use std::sync::Arc;

use super::finder::Finder;
use crate::ir::{Op, ParamSpec, ValueIndex};

/// The most parameters that a value may replace: the nearest. An average has two or three terms.
const PATHS_MAX: usize = 8;

/// A path from a parameter to a value of which it is a term.
#[derive(Clone, Copy)]
struct Path {
    from: ValueIndex,
    length: u32,
    /// The operand through which it comes.
    through: ValueIndex,
}

impl<O: Op> Finder<'_, O> {
    /// Finds what replaces each parameter, and what leads there.
    pub(super) fn follow_parameters(&mut self) {
        // The shortest to each value, at most `PATHS_MAX`, in order.
        let mut paths: Vec<Vec<Path>> = vec![Vec::new(); self.window.dies.len()];
        for (value, tag) in self.tags.iter().enumerate() {
            if tag.is_some() {
                let from = value as ValueIndex;
                paths[value].push(Path {
                    from,
                    length: 0,
                    through: from,
                });
            }
        }
        let is_backward = |value: ValueIndex| self.backward[value as usize] > 0;
        for op in self.ops.iter().filter(|op| op.elementwise().is_some()) {
            let adds = op.adds();
            let made_of = op.inputs.iter().filter(|(input, _)| is_backward(*input));
            let gradients = made_of.count();
            for &(input, is_alike) in &op.inputs {
                let scaled = gradients > usize::from(is_backward(input));
                if !is_alike || (scaled && !adds) {
                    continue;
                }
                for path in paths[input as usize].clone() {
                    let longer = Path {
                        from: path.from,
                        length: path.length + u32::from(!op.traits.is_cast),
                        through: input,
                    };
                    let known = &mut paths[op.out as usize];
                    match known.iter_mut().find(|known| known.from == path.from) {
                        Some(known) if known.length <= longer.length => {}
                        Some(known) => *known = longer,
                        None => known.push(longer),
                    }
                }
            }
            let known = &mut paths[op.out as usize];
            known.sort_by_key(|path| (path.length, path.from));
            known.truncate(PATHS_MAX);
        }
        // Of all pairs of a parameter and a value that lives on: those made of gradients first, then those whose
        // parameter dies, then the nearest.
        let mut pairs: Vec<(bool, bool, u32, ValueIndex, ValueIndex)> = Vec::new();
        for (value, paths) in paths.iter().enumerate() {
            let value = value as ValueIndex;
            if !self.survives(value) || self.tags[value as usize].is_some() {
                continue;
            }
            for path in paths {
                let (made, replaced) = (is_backward(value), !self.survives(path.from));
                if made || replaced {
                    pairs.push((!made, !replaced, path.length, path.from, value));
                }
            }
        }
        pairs.sort_unstable();
        let mut is_replaced = vec![false; self.window.dies.len()];
        for (.., from, value) in pairs {
            if is_replaced[from as usize] || self.tags[value as usize].is_some() {
                continue;
            }
            is_replaced[from as usize] = true;
            let spec = self.tags[from as usize].clone();
            let mut at = value;
            while at != from {
                self.tags[at as usize] = spec.clone();
                let path = paths[at as usize].iter().find(|path| path.from == from);
                at = path.map_or(from, |path| path.through);
            }
        }
    }

    pub(super) fn cast_parameters(&mut self) {
        let ops = self.ops.iter().zip(&self.window.ops);
        for (seen, op) in ops.filter(|(seen, _)| seen.traits.is_cast) {
            let spec = seen.inputs().next().and_then(|of| self.tags[of].clone());
            for out in op.outputs() {
                let tag = &mut self.tags[out.id as usize];
                let spec = spec.as_ref().map(|spec| match seen.traits.unpacks {
                    true => ParamSpec::of_cast(spec, out.shape),
                    false => spec.clone(),
                });
                *tag = tag.take().or(spec);
            }
        }
    }

    /// Finds the views of parameters: a transposed matrix, say.
    pub(super) fn views(&self) -> Vec<Option<Arc<ParamSpec>>> {
        let mut views: Vec<Option<Arc<ParamSpec>>> = vec![None; self.tags.len()];
        for op in &self.ops {
            let is_look = op.traits.is_view || op.traits.is_cast;
            let Some(from) = op.inputs().next().filter(|_| is_look) else {
                continue;
            };
            let of = self.tags[from].as_ref().or(views[from].as_ref()).cloned();
            for out in op.outputs().filter(|out| self.tags[*out].is_none()) {
                views[out] = of.clone();
            }
        }
        views
    }

    /// Finds what is made of parameters and constants alone, and lives on.
    pub(super) fn functions_of_parameters(&mut self) {
        let constant = self.constants();
        let mut of: Vec<Option<Arc<ParamSpec>>> = self.tags.clone();
        for op in self.ops.iter().filter(|op| op.elementwise().is_some()) {
            let mut inputs = op.inputs();
            let out = op.out as usize;
            if of[out].is_none() && inputs.all(|input| of[input].is_some() || constant[input]) {
                let mut specs = op.alike().rev();
                of[out] = specs.find_map(|input| of[input as usize].clone());
            }
        }
        for (value, spec) in of.into_iter().enumerate() {
            if self.tags[value].is_none() && self.survives(value as ValueIndex) {
                self.tags[value] = spec;
            }
        }
    }
}
