//! Random numbers that regions draw in the place of a task.

use rustc_hash::FxHashSet;

use super::look::{core, size};
use super::walk::{Drawn, Fate, Operand, Walk, What};
use crate::ir::{Op, RandomTask, Task};
use crate::mesh::DType;
use crate::options::Draws;

impl<'a, O: Op> Walk<'a, O> {
    /// Returns whether a region may draw what a task draws, if that is its space in the end.
    pub(super) fn draws(&self, task: &RandomTask<O>) -> bool {
        let is_drawn = matches!(task.dtype, DType::F32 | DType::F16 | DType::BF16);
        self.joins && self.kernels.draws != Draws::None && is_drawn && !task.shape.contains(&0)
    }

    /// Returns the task that draws, if a task does.
    pub(super) fn random(&self, at: usize) -> &'a RandomTask<O> {
        let tasks = self.tasks;
        match &tasks[at] {
            Task::Random(task) => task,
            _ => unreachable!("it draws"),
        }
    }

    /// Has a region draw what a task draws, and returns that value.
    pub(super) fn draw(&mut self, region: u32, at: usize) -> u32 {
        let out = self.random(at).output();
        let node = self.push(region, out.dtype, What::Drawn(at));
        let of = &mut self.nodes[node as usize];
        of.size = out.numel();
        of.slot = Some((out.id, out.shape.to_vec()));
        self.drawn.insert(at, Drawn::InRegion(node));
        let making = &mut self.regions[region as usize];
        making.instructions += 1;
        making.tensors += 1;
        node
    }

    /// Decides who draws, once all spaces are known: a region whose elements are those of the task, or the task, if in
    /// some region they have become rows, or their numbers are none that kernels draw by.
    pub(super) fn settle_draws(&mut self) {
        let mut by_tasks: FxHashSet<usize> = FxHashSet::default();
        for node in 0..self.nodes.len() as u32 {
            let What::Drawn(at) = self.nodes[node as usize].what else {
                continue;
            };
            let region = self.region_of(node);
            let space = &self.regions[region as usize].core;
            let task = self.random(at);
            // In rows of one, a value is one of a row.
            let are_elements = size(space) == size(&task.shape) && space.last() != Some(&1);
            if !are_elements || !self.kernels.draws.has(space, &task.runs) {
                by_tasks.insert(at);
            }
        }
        let drawn = self.drawn.iter().filter_map(|(at, drawn)| match drawn {
            Drawn::InRegion(node) if !by_tasks.contains(at) => Some((*at, *node)),
            _ => None,
        });
        for (at, node) in drawn.collect::<Vec<_>>() {
            let out = self.random(at).output();
            self.fates[at] = Fate::Joins;
            let region = self.region_of(node);
            let making = &mut self.regions[region as usize];
            making.operations += 1;
            making.bytes_apart += (out.numel() * out.dtype.size()) as u64;
        }
        for node in 0..self.nodes.len() {
            let What::Drawn(at) = self.nodes[node].what else {
                continue;
            };
            if by_tasks.contains(&at) {
                let task = self.random(at);
                let over = core(&task.shape);
                let of = &mut self.nodes[node];
                of.what = What::Operand(Operand {
                    slot: task.slot,
                    shape: task.shape.clone(),
                    spans: vec![true; over.len()],
                    over,
                });
                of.slot = None;
                of.is_read = false;
            }
        }
    }
}
