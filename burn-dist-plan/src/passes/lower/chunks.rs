//! Chunks as steps of one rank.
//!
//! Rank r of p shifts its block by 1, 2 .. p - 1 places at once, and computes the chunks r, r - 1, r - 2 .. as they
//! arrive. What is scattered goes the other way: it computes the chunks r + 1, r + 2 .. r - 1, each of which goes
//! straight to the rank whose it is while the next one is computed, and r last. Terms of a sum are added as soon as both
//! are there, in the order of a reduce-scatter: a balanced tree over the ranks, split at the largest power of two, every
//! sum rounded to the type of the elements.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::ir::{
    Chunked, Cut, Launched, LocalView, NewTensor, Op, Shift, Slot, SlotInfo, Steps, TensorIndex,
    rename,
};
use crate::layout::Layout;
use crate::mesh::{BoolStore, MeshShape, Rank};

/// What a rank knows of the program that chunks are a part of.
pub(crate) struct RankView<'a> {
    pub mesh: &'a MeshShape,
    pub rank: Rank,
    pub slots: &'a [SlotInfo],
    /// The slot that stands for each one.
    pub alias: &'a [Slot],
    pub bool_store: BoolStore,
}

impl<O: Op> Chunked<O> {
    /// Returns the steps of one rank; intermediate tensors have slots from `first_temp` on.
    pub(crate) fn emitted(&self, at: &RankView<'_>, first_temp: Slot) -> Steps<O> {
        let mut emission = Emission {
            chunked: self,
            at,
            index: at.mesh.coord(at.rank, self.axis),
            parts: at.mesh.size(self.axis),
            made: HashMap::new(),
            steps: Steps::new(first_temp),
        };
        match self.gathers() {
            true => emission.gather(),
            false => emission.scatter(),
        }
        emission.steps
    }
}

struct Emission<'a, O> {
    chunked: &'a Chunked<O>,
    at: &'a RankView<'a>,
    /// The rank's coordinate along the axis, and how many there are.
    index: usize,
    parts: usize,
    /// Chunks that are there, of slots that [stand](RankView::alias) for others.
    made: HashMap<(Slot, usize), NewTensor>,
    steps: Steps<O>,
}

impl<O: Op> Emission<'_, O> {
    fn gather(&mut self) {
        let moved = &self.chunked.moved;
        let layout = Arc::new(moved.step.from.clone());
        let own = self.tensor(self.at.alias[moved.from as usize], moved.to, &layout);
        let mut arriving = Vec::new();
        for places in 1..self.parts {
            let chunk = (self.index + self.parts - places) % self.parts;
            let home = self.rank_of(chunk);
            let id = self.steps.temp();
            let block = NewTensor {
                shape: layout.local_shape(self.at.mesh, home),
                id,
                dtype: own.dtype,
            };
            let launched = self.shift(&layout, &own, &block, (0, places));
            arriving.push((chunk, block, launched));
        }
        self.made.insert((moved.to, self.index), own);
        self.compute(self.index);
        for (chunk, block, launched) in arriving {
            self.steps.finish(launched);
            self.made.insert((moved.to, chunk), block);
            self.compute(chunk);
        }
        let kept = self.chunked.keeps_whole.then(|| {
            let cut = Cut::of(&moved.step.from, self.chunked.axis, &self.chunked.chunks);
            let cut = cut.expect("what is gathered is cut");
            (moved.to, Arc::new(cut.layout))
        });
        let made = self.chunked.steps.iter().flat_map(|step| {
            let outputs = step.op.outputs().map(|out| out.id);
            outputs.zip(step.outputs.iter().cloned())
        });
        for (slot, layout) in made.chain(kept) {
            self.join(slot, &layout);
        }
    }

    fn scatter(&mut self) {
        let moved = &self.chunked.moved;
        let layout = Arc::new(moved.step.to.clone());
        let own_shape = layout.local_shape(self.at.mesh, self.at.rank);
        let dtype = self.at.slots[moved.to as usize].dtype;
        let mut terms = Terms::new(moved.to, self.parts);
        let mut under_way: Option<(usize, NewTensor, Launched)> = None;
        for places in 1..=self.parts {
            let chunk = (self.index + places) % self.parts;
            let term = self.term(chunk);
            let mut next = None;
            if places < self.parts {
                let from = (self.index + self.parts - places) % self.parts;
                let id = self.steps.temp();
                let arrived = NewTensor {
                    shape: own_shape.clone(),
                    id,
                    dtype,
                };
                let launched = self.shift(&layout, &term, &arrived, (-(places as isize), places));
                next = Some((from, arrived, launched));
            } else {
                terms.there.insert(self.index..self.index + 1, term);
            }
            if let Some((from, arrived, launched)) = std::mem::replace(&mut under_way, next) {
                self.steps.finish(launched);
                terms.there.insert(from..from + 1, arrived);
            }
            if own_shape.contains(&0) {
                continue;
            }
            terms.add(0..self.parts, &mut self.steps);
        }
        if own_shape.contains(&0) {
            self.steps.push(O::zeros(NewTensor {
                id: moved.to,
                shape: own_shape,
                dtype,
            }));
        }
    }

    /// Returns this rank's term of a chunk.
    fn term(&mut self, chunk: usize) -> NewTensor {
        let slot = self.chunked.moved.from;
        self.compute(chunk);
        let alias = self.at.alias[slot as usize];
        if let Some(term) = self.made.get(&(alias, chunk)) {
            return term.clone();
        }
        // A rank that will hold nothing gets nothing.
        let last = self.chunked.last();
        let shape = last.outputs[0].local_shape(&self.chunked.chunks, self.chunk_rank(chunk));
        let zeros = self.temp(slot, shape);
        self.steps.push(O::zeros(zeros.clone()));
        zeros
    }

    /// Computes a chunk of everything.
    fn compute(&mut self, chunk: usize) {
        let chunked = self.chunked;
        for step in &chunked.steps {
            let rank = self.chunk_rank(chunk);
            let shape = |layout: &Layout| layout.local_shape(&chunked.chunks, rank);
            let is_empty = |layout: &Arc<Layout>| shape(layout).contains(&0);
            if step.outputs.iter().all(is_empty) {
                continue;
            }
            let inputs: Vec<TensorIndex> = step
                .op
                .inputs()
                .zip(&step.inputs)
                .map(|(input, layout)| self.input(input.id, layout, chunk))
                .collect();
            let outputs = step.op.outputs().zip(&step.outputs).map(|(out, layout)| {
                let made = self.temp(out.id, shape(layout));
                self.made.insert((out.id, chunk), made.clone());
                made.id
            });
            let outputs: Vec<TensorIndex> = outputs.collect();
            let mut op = step.op.clone();
            rename(&mut op, &inputs, &outputs);
            let view = LocalView {
                rule: &step.rule,
                assignment: step.assignment.as_deref(),
                inputs: &step.inputs,
                outputs: &step.outputs,
                mesh: &chunked.chunks,
                rank,
                bool_store: self.at.bool_store,
            };
            op.lower(&view, &mut self.steps);
        }
    }

    /// Returns where an operation that computes a chunk finds an input.
    fn input(&mut self, slot: Slot, layout: &Arc<Layout>, chunk: usize) -> TensorIndex {
        if slot == Slot::MAX {
            return slot;
        }
        let alias = self.at.alias[slot as usize];
        let Some(cut) = Cut::found(layout, &self.chunked.chunks) else {
            return alias;
        };
        if let Some(made) = self.made.get(&(alias, chunk)) {
            return made.id;
        }
        let seen = self.seen(&cut);
        let info = &self.at.slots[slot as usize];
        let whole = self.tensor(alias, slot, &info.layout.clone());
        let shape = layout.local_shape(&self.chunked.chunks, self.chunk_rank(chunk));
        let part = self.temp(slot, shape);
        self.made.insert((alias, chunk), part.clone());
        if part.shape.contains(&0) {
            self.steps.push(O::zeros(part.clone()));
            return part.id;
        }
        let range = self.range(&cut, chunk);
        if seen.shape == whole.shape {
            self.steps
                .push(O::slice(whole, seen.dim, range, part.clone()));
            return part.id;
        }
        let viewed = self.temp(slot, seen.shape.clone());
        let mut shape = seen.shape;
        shape[seen.dim] = range.len();
        let sliced = self.temp(slot, shape);
        self.steps.push(O::reshape(whole, viewed.clone()));
        self.steps
            .push(O::slice(viewed, seen.dim, range, sliced.clone()));
        self.steps.push(O::reshape(sliced, part.clone()));
        part.id
    }

    /// Puts the chunks of a slot together.
    fn join(&mut self, slot: Slot, layout: &Arc<Layout>) {
        let cut = Cut::found(layout, &self.chunked.chunks).expect("what is made is cut");
        let whole = self.at.slots[slot as usize].layout.clone();
        let whole = self.tensor(slot, slot, &whole);
        if whole.shape.contains(&0) {
            self.steps.push(O::zeros(whole));
            return;
        }
        let seen = self.seen(&cut);
        let is_seen = seen.shape == whole.shape;
        let mut parts = Vec::new();
        for chunk in 0..self.parts {
            let len = self.range(&cut, chunk).len();
            let Some(part) = self.made.get(&(slot, chunk)).filter(|_| len > 0).cloned() else {
                continue;
            };
            if is_seen {
                parts.push(part);
                continue;
            }
            let mut shape = seen.shape.clone();
            shape[seen.dim] = len;
            let viewed = self.temp(slot, shape);
            self.steps.push(O::reshape(part, viewed.clone()));
            parts.push(viewed);
        }
        let joined = match is_seen {
            true => whole.clone(),
            false => self.temp(slot, seen.shape),
        };
        self.steps
            .push(O::concatenate(parts, seen.dim, joined.clone()));
        if !is_seen {
            self.steps.push(O::reshape(joined, whole));
        }
    }

    /// Returns a block with every factor as a dim of its own, if the factors of the dim that is cut are several.
    fn seen(&self, cut: &Cut) -> Seen {
        let together = cut.together();
        let mut shape = Vec::new();
        let mut dim = 0;
        for (at, factors) in together.dims.iter().enumerate() {
            let local = factors.factors.iter().map(|factor| {
                let range = factor.range(self.at.mesh, self.at.rank);
                range.len()
            });
            match at == cut.dim {
                true => {
                    dim = shape.len() + cut.factor;
                    shape.extend(local);
                }
                false => shape.push(local.product()),
            }
        }
        Seen { shape, dim }
    }

    /// Returns where a chunk lies in the rank's block.
    fn range(&self, cut: &Cut, chunk: usize) -> Range<usize> {
        let together = cut.together();
        let whole = together.dims[cut.dim].factors[cut.factor].range(self.at.mesh, self.at.rank);
        let part = cut.layout.dims[cut.dim].factors[cut.factor]
            .range(&self.chunked.chunks, self.chunk_rank(chunk));
        part.start - whole.start..part.end - whole.start
    }

    /// Returns the rank that stands for a chunk of this rank on the mesh with an axis of chunks.
    fn chunk_rank(&self, chunk: usize) -> Rank {
        let rank = self.at.rank.0 as usize * self.parts + chunk;
        Rank(u32::try_from(rank).expect("a rank of the mesh of chunks"))
    }

    /// Returns the rank whose a chunk is.
    fn rank_of(&self, chunk: usize) -> Rank {
        let RankView { mesh, rank, .. } = self.at;
        mesh.with_coord(*rank, self.chunked.axis, chunk)
    }

    fn tensor(&self, id: TensorIndex, slot: Slot, layout: &Layout) -> NewTensor {
        NewTensor {
            id,
            shape: layout.local_shape(self.at.mesh, self.at.rank),
            dtype: self.at.slots[slot as usize].dtype,
        }
    }

    fn temp(&mut self, slot: Slot, shape: Vec<usize>) -> NewTensor {
        NewTensor {
            id: self.steps.temp(),
            shape,
            dtype: self.at.slots[slot as usize].dtype,
        }
    }

    /// Starts to move a block by `places`, which has come some already.
    fn shift(
        &mut self,
        layout: &Arc<Layout>,
        from: &NewTensor,
        to: &NewTensor,
        (come, places): (isize, usize),
    ) -> Launched {
        self.steps.launch(vec![Shift {
            from: from.id,
            to: to.id,
            dtype: from.dtype,
            layout: layout.clone(),
            axes: vec![self.chunked.axis],
            come,
            by: places as isize,
        }])
    }
}

/// A block as a tensor in which one dim is cut.
struct Seen {
    shape: Vec<usize>,
    dim: usize,
}

/// The terms of a sum, and sums of them, by the ranks whose they are.
struct Terms {
    there: HashMap<Range<usize>, NewTensor>,
    to: Slot,
    count: usize,
}

impl Terms {
    fn new(to: Slot, count: usize) -> Self {
        Self {
            there: HashMap::new(),
            to,
            count,
        }
    }

    /// Adds what is there of the terms in `range`, if it can be added in the one order of sums.
    fn add<O: Op>(&mut self, range: Range<usize>, steps: &mut Steps<O>) -> Option<NewTensor> {
        if let Some(there) = self.there.get(&range) {
            return Some(there.clone());
        }
        if range.len() == 1 {
            return None;
        }
        let middle = range.start + range.len().next_power_of_two() / 2;
        let left = self.add(range.start..middle, steps);
        let right = self.add(middle..range.end, steps);
        let (left, right) = left.zip(right)?;
        let id = match range.len() == self.count {
            true => self.to,
            false => steps.temp(),
        };
        let sum = NewTensor { id, ..left.clone() };
        steps.push(O::add(left, right, sum.clone()));
        self.there.insert(range, sum.clone());
        Some(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesh::DType;
    use crate::toy::{Kind, Toy};

    /// Returns the sum that rank `index` makes of terms that come in the order in which ranks send them.
    fn sum_on(index: usize, parts: usize) -> String {
        let mut terms = Terms::new(100, parts);
        let mut steps = Steps::<Toy>::new(200);
        for places in 1..=parts {
            let from = (index + parts - places) % parts;
            let term = NewTensor {
                id: from as TensorIndex,
                shape: vec![1],
                dtype: DType::F32,
            };
            terms.there.insert(from..from + 1, term);
            terms.add(0..parts, &mut steps);
        }
        let mut names: HashMap<TensorIndex, String> = HashMap::new();
        let name = |names: &HashMap<_, String>, id: TensorIndex| {
            names.get(&id).cloned().unwrap_or_else(|| id.to_string())
        };
        for op in steps.ops() {
            assert_eq!(op.kind, Kind::Add);
            let [left, right] = &op.inputs[..] else {
                panic!("two terms")
            };
            let sum = format!("({}+{})", name(&names, left.id), name(&names, right.id));
            names.insert(op.out.id, sum);
        }
        name(&names, 100)
    }

    /// The terms of a sum are added as a balanced tree over the ranks, in whatever order they come.
    #[test]
    fn terms_are_added_in_the_one_order() {
        fn tree(range: std::ops::Range<usize>) -> String {
            if range.len() == 1 {
                return range.start.to_string();
            }
            let middle = range.start + range.len().next_power_of_two() / 2;
            format!(
                "({}+{})",
                tree(range.start..middle),
                tree(middle..range.end)
            )
        }
        assert_eq!(tree(0..6), "(((0+1)+(2+3))+(4+5))");
        for parts in 2..9 {
            for index in 0..parts {
                let found = sum_on(index, parts);
                assert_eq!(found, tree(0..parts), "rank {index} of {parts}");
            }
        }
    }
}
