//! Runs windows: on one device, and their plans on all ranks of a mesh.
//!
//! Elements are numbers of a finite field, so that sums and products are exact in any order, and a value that is not
//! where it should be is seen. Long for the operations, each of which it runs.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use super::{Kind, Toy, field};
use crate::ir::region::Unary;
use crate::ir::{
    CollectiveTask, Float8Op, InputState, Product, RandomTask, RankPlan, ScaleOf, Slot, Stage,
    Task, TensorIndex, Window,
};
use crate::layout::Layout;
use crate::layout::runs;
use crate::mesh::collective::{Collective, Strided, member_before};
use crate::mesh::{MeshShape, Rank, ReduceOp};
use crate::plan::Plan;

/// The size of the field, a prime.
pub(super) const PRIME: u64 = 65521;

/// A tensor.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Array {
    pub shape: Vec<usize>,
    pub data: Vec<u64>,
}

fn numel(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// Returns a number of the field that looks random.
fn random(stream: u64, index: usize) -> u64 {
    let mut z = (stream << 32) + index as u64 + 0x9E37_79B9_7F4A_7C15;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (z ^ (z >> 31)) % PRIME
}

/// The inverse of a number of the field.
pub(super) fn inverse(number: u64) -> u64 {
    let (mut result, mut base, mut exponent) = (1, number % PRIME, PRIME - 2);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = result * base % PRIME;
        }
        base = base * base % PRIME;
        exponent >>= 1;
    }
    result
}

impl Array {
    /// Takes fractions with a power of two below the line, which the field has.
    pub(crate) fn of_f64(values: &[f64], shape: &[usize]) -> Self {
        const SCALE: f64 = 8.0;
        let number = |value: &f64| {
            let scaled = (value * SCALE).round() as i64;
            let scaled = scaled.rem_euclid(PRIME as i64) as u64;
            scaled * inverse(SCALE as u64) % PRIME
        };
        Self {
            shape: shape.to_vec(),
            data: values.iter().map(number).collect(),
        }
    }

    /// Returns the elements, which are whole numbers, or fractions as [`Array::of_f64`] takes them.
    pub(crate) fn to_f64(&self) -> Vec<f64> {
        let value = |&x: &u64| {
            let scaled = x * 64 % PRIME;
            let signed = match scaled > PRIME / 2 {
                true => scaled as f64 - PRIME as f64,
                false => scaled as f64,
            };
            signed / 64.0
        };
        self.data.iter().map(value).collect()
    }

    fn random(stream: u64, shape: &[usize]) -> Self {
        Self {
            shape: shape.to_vec(),
            data: (0..numel(shape))
                .map(|index| random(stream, index))
                .collect(),
        }
    }

    fn full(number: u64, shape: &[usize]) -> Self {
        Self {
            shape: shape.to_vec(),
            data: vec![number; numel(shape)],
        }
    }

    pub(super) fn reshaped(mut self, shape: &[usize]) -> Self {
        assert_eq!(
            self.data.len(),
            numel(shape),
            "{:?} as {shape:?}",
            self.shape
        );
        self.shape = shape.to_vec();
        self
    }

    fn map(&self, f: impl Fn(u64) -> u64) -> Self {
        Self {
            shape: self.shape.clone(),
            data: self.data.iter().map(|&x| f(x) % PRIME).collect(),
        }
    }

    fn zip(&self, other: &Self, f: impl Fn(u64, u64) -> u64) -> Self {
        assert_eq!(self.shape, other.shape);
        let pairs = self.data.iter().zip(&other.data);
        Self {
            shape: self.shape.clone(),
            data: pairs.map(|(&a, &b)| f(a, b) % PRIME).collect(),
        }
    }

    /// Sees the dims before and after `dim` as one each.
    fn around(&self, dim: usize) -> (usize, usize, usize) {
        let (before, after) = (&self.shape[..dim], &self.shape[dim + 1..]);
        (numel(before), self.shape[dim], numel(after))
    }

    fn slice(&self, dim: usize, range: Range<usize>) -> Self {
        let (outer, size, inner) = self.around(dim);
        let mut shape = self.shape.clone();
        shape[dim] = range.len();
        let rows = (0..outer).flat_map(|o| {
            let start = (o * size + range.start) * inner;
            self.data[start..start + range.len() * inner]
                .iter()
                .copied()
        });
        Self {
            data: rows.collect(),
            shape,
        }
    }

    fn concat(parts: &[Self], dim: usize) -> Self {
        let (outer, _, inner) = parts[0].around(dim);
        let mut shape = parts[0].shape.clone();
        shape[dim] = parts.iter().map(|part| part.shape[dim]).sum();
        let data = (0..outer).flat_map(|o| {
            parts.iter().flat_map(move |part| {
                let width = part.shape[dim] * inner;
                part.data[o * width..(o + 1) * width].iter().copied()
            })
        });
        Self {
            data: data.collect(),
            shape,
        }
    }

    /// Picks the elements in `runs`, flat ranges of it.
    fn pick(&self, runs: &[Range<usize>], shape: Vec<usize>) -> Self {
        let data = runs.iter().flat_map(|run| self.data[run.clone()].iter());
        Self {
            data: data.copied().collect(),
            shape,
        }
    }

    fn transposed(&self) -> Self {
        let ndim = self.shape.len();
        let (rows, columns) = (self.shape[ndim - 2], self.shape[ndim - 1]);
        let mut shape = self.shape.clone();
        shape.swap(ndim - 2, ndim - 1);
        let matrices = self.data.chunks((rows * columns).max(1));
        let data = matrices.flat_map(|matrix| {
            (0..columns).flat_map(move |c| (0..rows).map(move |r| matrix[r * columns + c]))
        });
        Self {
            data: data.collect(),
            shape,
        }
    }

    /// `[.., m, k] x [.., k, n]`: the right has a matrix for each of the left, or one.
    fn matmul(&self, other: &Self, shape: &[usize]) -> Self {
        let terms = *self.shape.last().expect("a matrix");
        let columns = *other.shape.last().expect("a matrix");
        let matrix = terms * columns;
        let others = other.data.len() / matrix.max(1);
        let rows_of_each = match others {
            0 | 1 => usize::MAX,
            _ => self.shape[self.shape.len() - 2],
        };
        let mut out = Self::full(0, shape);
        for (row, out) in out.data.chunks_mut(columns.max(1)).enumerate() {
            let other = &other.data[row / rows_of_each * matrix..];
            // A sum of products of two numbers below 2^16 fits into 64 bits until there are 2^32 of them.
            for (k, &x) in self.data[row * terms..][..terms].iter().enumerate() {
                let others = &other[k * columns..][..columns];
                out.iter_mut()
                    .zip(others)
                    .for_each(|(sum, &y)| *sum += x * y);
            }
            out.iter_mut().for_each(|sum| *sum %= PRIME);
        }
        out
    }

    pub(super) fn expanded(&self, shape: &[usize]) -> Self {
        let mut out = self.clone();
        for (dim, &size) in shape.iter().enumerate() {
            if out.shape[dim] != size {
                out = Self::concat(&vec![out; size], dim);
            }
        }
        out
    }

    fn sum_dim(&self, dim: usize) -> Self {
        let parts: Vec<Self> = (0..self.shape[dim])
            .map(|index| self.slice(dim, index..index + 1))
            .collect();
        let mut sum = Self::full(0, &{
            let mut shape = self.shape.clone();
            shape[dim] = 1;
            shape
        });
        for part in parts {
            sum = sum.zip(&part, |a, b| a + b);
        }
        sum
    }
}

/// Returns the shape of the product of a matrix with its transpose.
fn square(of: &Array) -> [usize; 2] {
    [of.shape[1]; 2]
}

/// Runs one operation on the shapes that it has. `stream` numbers random ones.
pub(super) fn run(op: &Toy, inputs: &[Array], stream: &mut u64) -> Array {
    for (input, expected) in inputs.iter().zip(&op.inputs) {
        assert_eq!(input.shape, expected.shape, "operand of {op:?}");
    }
    let shape = &op.out.shape;
    let out = match (&op.kind, inputs) {
        (Kind::Add, [a, b]) => a.zip(b, |a, b| a + b),
        (Kind::Sub, [a, b]) => a.zip(b, |a, b| a + PRIME - b),
        (Kind::Mul, [a, b]) => {
            let (a, b) = (a.expanded(shape), b.expanded(shape));
            a.zip(&b, |a, b| a * b)
        }
        (Kind::Exp, [a]) => a.map(|x| field::unary(Unary::Exp, x)),
        (Kind::Matmul, [a, b]) => a.matmul(b, shape),
        (Kind::Transpose, [a]) => a.transposed(),
        (Kind::SumDim(dim), [a]) => a.sum_dim(*dim),
        (Kind::MaxDim(dim), [a]) => {
            let parts = (0..a.shape[*dim]).map(|index| a.slice(*dim, index..index + 1));
            let most = parts.reduce(|most, part| most.zip(&part, u64::max));
            most.unwrap_or_else(|| Array::full(0, shape))
        }
        (Kind::Unary(unary), [a]) => a.map(|x| field::unary(*unary, x)),
        (Kind::Binary(binary), [a, b]) => {
            let (a, b) = (a.expanded(shape), b.expanded(shape));
            a.zip(&b, |a, b| field::binary(*binary, a, b))
        }
        (Kind::Sum, [a]) => (0..shape.len()).fold(a.clone(), |sum, dim| sum.sum_dim(dim)),
        (Kind::Linear, [x, w]) => x.matmul(w, shape),
        (Kind::LinearX, [w, g]) => g.matmul(&w.transposed(), shape),
        (Kind::LinearW, [x, g]) => {
            let rows = |a: &Array| {
                let width = *a.shape.last().expect("rows");
                a.clone().reshaped(&[a.data.len() / width.max(1), width])
            };
            rows(x).transposed().matmul(&rows(g), shape)
        }
        (Kind::Expand, [a]) => a.expanded(shape),
        (Kind::Reshape, [a]) => a.clone().reshaped(shape),
        (Kind::Slice(dim, range), [a]) => a.slice(*dim, range.clone()),
        (Kind::Concat(dim), parts) => Array::concat(parts, *dim),
        (Kind::Lookup { size, rows }, [table, indices]) => {
            let width = table.shape[1];
            let row = |index: &u64| match row_of(*index, *size, rows) {
                Some(row) => table.data[row * width..(row + 1) * width].to_vec(),
                None => vec![0; width],
            };
            Array {
                shape: shape.clone(),
                data: indices.data.iter().flat_map(row).collect(),
            }
        }
        (Kind::SumAt { size, rows, base }, [table, indices, terms]) => {
            let width = table.shape[1];
            let mut out = match base {
                true => table.clone(),
                false => Array::full(0, shape),
            };
            for (index, term) in indices.data.iter().zip(terms.data.chunks(width.max(1))) {
                let Some(row) = row_of(*index, *size, rows) else {
                    continue;
                };
                for (out, term) in out.data[row * width..].iter_mut().zip(term) {
                    *out = (*out + term) % PRIME;
                }
            }
            out
        }
        (Kind::AddAt, [x, indices, values]) => {
            let mut out = x.clone();
            let width = shape.last().copied().unwrap_or(1);
            let added = indices.data.iter().zip(&values.data);
            for (row, (index, value)) in out.data.chunks_mut(width).zip(added) {
                let to = &mut row[*index as usize % width];
                *to = (*to + value) % PRIME;
            }
            out
        }
        (Kind::Power(times), [a]) => a.map(|x| (0..*times).fold(x, |power, _| power * x % PRIME)),
        (Kind::Scale(slot), [a]) => a.map(|x| x * field::scalar(*slot)),
        (Kind::Cast | Kind::Mark(_), [a]) | (Kind::Like, [_, a]) => a.clone(),
        (Kind::Meet, [x, y]) => x.matmul(&y.transposed().matmul(y, &square(y)), shape),
        (Kind::MeetBack, [x, y]) => y.matmul(&x.transposed().matmul(x, &square(x)), shape),
        (Kind::Float8(op), _) => float8(*op, inputs, shape),
        (Kind::Full(number), []) => Array::full(*number as u64, shape),
        (Kind::Random, []) => {
            *stream += 1;
            Array::random(*stream - 1, shape)
        }
        _ => panic!("{} inputs for {op:?}", inputs.len()),
    };
    assert_eq!(&out.shape, shape, "result of {op:?}");
    out
}

/// Returns what a rank draws.
fn drawn(task: &RandomTask<Toy>) -> Array {
    let indices = task.runs.iter().flat_map(|run| run.clone());
    Array {
        data: indices.map(|index| random(task.stream, index)).collect(),
        shape: task.shape.clone(),
    }
}

/// What float8 training computes, in the field: maxima of numbers, scales that are not zero, and products that are not
/// divided by them.
fn float8(op: Float8Op, inputs: &[Array], shape: &[usize]) -> Array {
    let row = |array: &Array, of: ScaleOf, index: usize| of.index(&array.shape, index);
    let scaled = |array: &Array, scale: &Array, of: ScaleOf| Array {
        shape: array.shape.clone(),
        data: (0..array.data.len())
            .map(|index| array.data[index] * scale.data[row(array, of, index)] % PRIME)
            .collect(),
    };
    match op {
        Float8Op::Amax(of) => {
            let mut out = Array::full(0, shape);
            for (index, value) in inputs[0].data.iter().enumerate() {
                let out = &mut out.data[row(&inputs[0], of, index)];
                *out = (*out).max(*value);
            }
            out
        }
        Float8Op::Stack => Array::concat(inputs, 0),
        Float8Op::Scale { .. } => inputs[0].map(|x| x + 3),
        Float8Op::Quantize { of, .. } => scaled(&inputs[0], &inputs[1], of),
        Float8Op::Product {
            product, scales, ..
        } => {
            let a = scaled(&inputs[0], &inputs[2], scales[0]);
            let b = scaled(&inputs[1], &inputs[3], scales[1]);
            multiplied(product, &a, &b, shape)
        }
        Float8Op::ProductOfRank { product, .. } => {
            multiplied(product, &inputs[0], &inputs[1], shape)
        }
    }
}

fn multiplied(product: Product, a: &Array, b: &Array, shape: &[usize]) -> Array {
    let rows = |a: &Array| {
        let width = *a.shape.last().expect("rows");
        a.clone().reshaped(&[a.data.len() / width.max(1), width])
    };
    match product {
        Product::Forward => a.matmul(b, shape),
        Product::Input => b.matmul(&a.transposed(), shape),
        Product::Weight => rows(a).transposed().matmul(&rows(b), shape),
    }
}

/// Returns the row that an index means, counted from the first of `rows`.
fn row_of(index: u64, size: usize, rows: &Range<usize>) -> Option<usize> {
    let row = index as usize % size.max(1);
    rows.contains(&row).then(|| row - rows.start)
}

/// Returns what a value from outside holds in all tests.
fn input(value: TensorIndex, shape: &[usize]) -> Array {
    Array::random(1000 + u64::from(value), shape)
}

/// Runs a window on one device. Returns the values that outlive it and those that are read.
pub(crate) fn whole(window: &Window<Toy>) -> HashMap<TensorIndex, Array> {
    let inputs = window.inputs.iter();
    let mut values: HashMap<TensorIndex, Array> = inputs
        .map(|of| (of.value, input(of.value, &of.shape)))
        .collect();
    let mut stream = 0;
    for op in &window.ops {
        let operands = op.inputs.iter().map(|operand| values[&operand.id].clone());
        let out = run(op, &operands.collect::<Vec<_>>(), &mut stream);
        if let Some(also) = &op.also {
            values.insert(also.id, out.clone());
        }
        values.insert(op.out.id, out);
    }
    let lives = |value: &TensorIndex| !window.dies[*value as usize] || window.reads.contains(value);
    values.retain(|value, _| lives(value));
    values
}

/// Messages between ranks, from the first to the second.
type Messages = HashMap<(Rank, Rank), VecDeque<(Slot, Array)>>;

/// What one rank holds.
#[derive(Default)]
struct RankState {
    at: usize,
    slots: HashMap<Slot, Array>,
    kept: HashMap<TensorIndex, Array>,
    reads: HashMap<u32, Array>,
    /// Results of collectives that are under way.
    started: HashMap<Slot, Array>,
}

/// Runs the plan of a window on all ranks and puts together what outlives it and what is read.
pub(crate) fn planned(
    window: &Window<Toy>,
    plan: &Plan<Toy>,
    mesh: &MeshShape,
) -> HashMap<TensorIndex, Array> {
    let mut ranks: Vec<RankState> = Vec::new();
    let has = |rank: Rank, stage: &Option<Stage>| {
        let at = |stage: &Stage| mesh.coord(rank, stage.pipeline.axis) as u32 == stage.coord();
        stage.as_ref().is_none_or(at)
    };
    for rank in mesh.ranks() {
        let mut state = RankState::default();
        for of in &window.inputs {
            if let InputState::Placed { layout, stage, .. } = &of.state
                && has(rank, stage)
            {
                let runs = runs(layout, mesh, rank);
                let part = input(of.value, &of.shape);
                let part = part.pick(&runs, layout.local_shape(mesh, rank));
                state.kept.insert(of.value, part);
            }
        }
        ranks.push(state);
    }
    let mut messages = Messages::new();
    loop {
        let before: Vec<usize> = ranks.iter().map(|state| state.at).collect();
        for (rank, (state, plan)) in (0..).zip(ranks.iter_mut().zip(&plan.ranks)) {
            while state.at < plan.tasks.len()
                && state.local(window, plan, Rank(rank), &mut messages)
            {
                state.at += 1;
            }
        }
        meet(&mut ranks, plan);
        if ranks.iter().map(|state| state.at).eq(before) {
            break;
        }
    }
    for (rank, (state, plan)) in ranks.iter().zip(&plan.ranks).enumerate() {
        assert_eq!(state.at, plan.tasks.len(), "rank {rank} came to its end");
    }
    assert!(
        messages.values().all(VecDeque::is_empty),
        "all messages were received"
    );
    let mut found = HashMap::new();
    for output in &plan.outputs {
        let holders = mesh.ranks().filter(|rank| has(*rank, &output.stage));
        let of = |rank: Rank| (rank, ranks[rank.0 as usize].kept[&output.value].clone());
        let whole = assembled(&output.layout, mesh, &holders.map(of).collect::<Vec<_>>());
        found.insert(output.value, whole);
        let others = mesh.ranks().filter(|rank| !has(*rank, &output.stage));
        for other in others {
            let kept = &ranks[other.0 as usize].kept;
            assert!(
                !kept.contains_key(&output.value),
                "rank {other} has no such stage"
            );
        }
    }
    for (index, (read, value)) in plan.reads.iter().zip(&window.reads).enumerate() {
        let parts = (0..).map(Rank).zip(&ranks);
        let parts = parts
            .filter_map(|(rank, state)| Some((rank, state.reads.get(&(index as u32))?.clone())));
        let parts: Vec<(Rank, Array)> = parts.collect();
        assert!(
            read.senders
                .iter()
                .all(|sender| parts.iter().any(|(rank, _)| rank == sender))
        );
        found.insert(*value, assembled(&read.layout, mesh, &parts));
    }
    // What was not touched stays where it was.
    for of in &window.inputs {
        if !window.dies[of.value as usize] && !found.contains_key(&of.value) {
            found.insert(of.value, input(of.value, &of.shape));
        }
    }
    found
}

/// Runs the collectives that all members have come to.
fn meet(ranks: &mut [RankState], plan: &Plan<Toy>) {
    let waiting = ranks
        .iter()
        .zip(&plan.ranks)
        .map(|(state, plan)| plan.tasks.get(state.at).map_or(&[][..], Task::collectives));
    let waiting: Vec<&[CollectiveTask]> = waiting.collect();
    let is_ready = |tasks: &&[CollectiveTask]| {
        let mut members = tasks.iter().flat_map(|task| task.group.iter());
        !tasks.is_empty() && members.all(|rank| waiting[rank.0 as usize].len() == tasks.len())
    };
    let ready: Vec<usize> = (0..ranks.len())
        .filter(|rank| is_ready(&waiting[*rank]))
        .collect();
    for &rank in &ready {
        for (index, task) in waiting[rank].iter().enumerate() {
            let members = task.group.iter().map(|member| {
                let member = member.0 as usize;
                let other = &waiting[member][index];
                (other, ranks[member].slots[&other.from].clone())
            });
            let (tasks, sent): (Vec<_>, Vec<_>) = members.unzip();
            let result = collective(task, &tasks, &sent);
            ranks[rank].started.insert(task.to, result);
        }
    }
    for rank in ready {
        let (state, tasks) = (&mut ranks[rank], waiting[rank]);
        if matches!(plan.ranks[rank].tasks[state.at], Task::Collective(_)) {
            state.finish(&[tasks[0].to]);
        }
        for task in tasks.iter().filter(|task| task.take) {
            state.slots.remove(&task.from);
        }
        state.at += 1;
    }
}

/// Puts the parts of ranks together; terms of sums are added up.
fn assembled(layout: &Layout, mesh: &MeshShape, parts: &[(Rank, Array)]) -> Array {
    let mut whole = Array::full(0, &layout.shape());
    let axes: Vec<_> = layout.axes_used();
    let terms: Vec<_> = layout.partial.iter().map(|partial| partial.axis).collect();
    let first = parts[0].0;
    for (rank, part) in parts {
        let rank = *rank;
        let repeats = mesh
            .axis_indices()
            .any(|axis| !axes.contains(&axis) && mesh.coord(rank, axis) > mesh.coord(first, axis));
        let mut from = 0;
        for run in runs(layout, mesh, rank).iter() {
            for index in run.clone() {
                let element = part.data[from];
                from += 1;
                match repeats {
                    false if terms.is_empty() => whole.data[index] = element,
                    false => whole.data[index] = (whole.data[index] + element) % PRIME,
                    true if terms.is_empty() => {
                        assert_eq!(whole.data[index], element, "rank {rank:?} holds another");
                    }
                    true => {}
                }
            }
        }
        assert_eq!(
            from,
            part.data.len(),
            "rank {rank:?} holds more than its part"
        );
    }
    whole
}

/// Returns what a member of a collective gets; `tasks` and `sent` are those of all members.
fn collective(task: &CollectiveTask, tasks: &[&CollectiveTask], sent: &[Array]) -> Array {
    for (index, other) in tasks.iter().enumerate() {
        assert_eq!(other.collective, task.collective);
        assert_eq!((&other.group, other.index), (&task.group, index));
    }
    let elem = task.dtype.size();
    let sum = |op: ReduceOp, blocks: Vec<Array>| {
        let sum = blocks.into_iter().reduce(|sum, block| match op {
            ReduceOp::Sum | ReduceOp::Mean => sum.zip(&block, |a, b| a + b),
            ReduceOp::Prod => sum.zip(&block, |a, b| a * b),
            // Of the numbers as they stand, as `f8_amax` takes them.
            ReduceOp::Max => sum.zip(&block, u64::max),
            op => panic!("the field has no order: {op:?}"),
        });
        let sum = sum.expect("a group has a member");
        match op {
            ReduceOp::Mean => sum.map(|x| x * inverse(task.group.len() as u64)),
            _ => sum,
        }
    };
    let piece = |block: &Array, dim: usize, sizes: &[usize]| {
        let start = sizes[..task.index].iter().sum();
        block.slice(dim, start..start + sizes[task.index])
    };
    // A block around the dim that is divided.
    let seen = |parts: &Strided, mid: usize| [parts.outer, mid, parts.inner_bytes / elem];
    let out = match &task.collective {
        Collective::AllReduce { op, .. } => sum(*op, sent.to_vec()),
        Collective::AllGather(parts) => {
            let blocks = sent.iter().zip(parts.mid_sizes.iter());
            let blocks = blocks.map(|(block, &mid)| block.clone().reshaped(&seen(parts, mid)));
            Array::concat(&blocks.collect::<Vec<_>>(), 1)
        }
        Collective::ReduceScatter { op, parts } => {
            let blocks = sent.iter().map(|block| {
                let block = block.clone().reshaped(&seen(parts, parts.mid()));
                piece(&block, 1, &parts.mid_sizes)
            });
            sum(*op, blocks.collect())
        }
        Collective::AllToAll(pieces) => {
            let ((cut, cut_sizes), (joined, joined_sizes)) = (&pieces.split, &pieces.concat);
            let blocks = sent.iter().zip(joined_sizes.iter()).map(|(block, &size)| {
                let mut shape = pieces.shape.to_vec();
                shape[*joined] = size;
                piece(&block.clone().reshaped(&shape), *cut, cut_sizes)
            });
            Array::concat(&blocks.collect::<Vec<_>>(), *joined)
        }
        Collective::Shift { by, .. } => {
            sent[member_before(task.index, *by, task.group.len())].clone()
        }
        other => panic!("a plan has no {}", other.kind().name()),
    };
    out.reshaped(&task.to_shape)
}

impl RankState {
    /// Runs the task that it has come to; `false` if that needs the other ranks.
    fn local(
        &mut self,
        window: &Window<Toy>,
        plan: &RankPlan<Toy>,
        rank: Rank,
        messages: &mut Messages,
    ) -> bool {
        match &plan.tasks[self.at] {
            Task::Send(task) => {
                let channel = messages.entry((rank, task.peer)).or_default();
                channel.push_back((task.slot, self.slots[&task.slot].clone()));
                if task.take {
                    self.slots.remove(&task.slot);
                }
            }
            Task::Receive(task) => {
                let channel = messages.get_mut(&(task.peer, rank));
                let Some((slot, array)) = channel.and_then(VecDeque::pop_front) else {
                    return false;
                };
                assert_eq!((&array.shape, slot), (&task.shape, task.slot));
                self.slots.insert(task.slot, array);
            }
            Task::Collective(_) | Task::Launch { .. } => return false,
            Task::Finish { to, .. } => self.finish(to),
            Task::Load {
                value,
                slot,
                take,
                shape,
                ..
            } => {
                let kept = self.kept[value].clone();
                assert_eq!(&kept.shape, shape);
                if *take {
                    self.kept.remove(value);
                }
                self.slots.insert(*slot, kept);
            }
            Task::Upload(task) => {
                assert!(task.terms.is_empty(), "no fuzz layouts here");
                let of = window.inputs.iter().find(|input| input.value == task.value);
                let data = input(task.value, &of.expect("an input").shape);
                let part = match &task.runs {
                    Some(runs) => data.pick(runs, task.shape.clone()),
                    None => data,
                };
                self.slots.insert(task.slot, part);
            }
            Task::Random(task) => {
                self.slots.insert(task.slot, drawn(task));
            }
            Task::Op(op, _) => {
                let inputs = op.inputs.iter().map(|input| self.slots[&input.id].clone());
                let out = run(op, &inputs.collect::<Vec<_>>(), &mut 0);
                for input in op.inputs.iter().filter(|input| input.last_use) {
                    self.slots.remove(&input.id);
                }
                if let Some(also) = &op.also {
                    self.slots.insert(also.id, out.clone());
                }
                self.slots.insert(op.out.id, out);
            }
            Task::Region(task) => {
                let inputs = task.inputs.iter().map(|input| {
                    let array = self.slots[&input.slot].clone();
                    assert_eq!(array.shape, input.shape, "operand of {task:?}");
                    array
                });
                let draws = task
                    .draws
                    .iter()
                    .map(|draw| drawn(&plan.draws[*draw as usize]));
                let made = field::run_region(
                    task,
                    &inputs.collect::<Vec<_>>(),
                    &draws.collect::<Vec<_>>(),
                );
                for input in task.inputs.iter().filter(|input| input.take) {
                    self.slots.remove(&input.slot);
                }
                for (out, array) in task.outputs.iter().zip(made) {
                    self.slots.insert(out.id, array);
                }
            }
            Task::Store {
                slot, value, take, ..
            } => {
                self.kept.insert(*value, self.slots[slot].clone());
                if *take {
                    self.slots.remove(slot);
                }
            }
            Task::Read {
                slot, read, take, ..
            } => {
                self.reads.insert(*read, self.slots[slot].clone());
                if *take {
                    self.slots.remove(slot);
                }
            }
            Task::ToHost(_) | Task::FromHost(_) => {}
            Task::Free(slot) => {
                self.slots.remove(slot).expect("what is freed is there");
            }
        }
        true
    }

    fn finish(&mut self, to: &[Slot]) {
        for slot in to {
            let result = self.started.remove(slot).expect("it was started");
            self.slots.insert(*slot, result);
        }
    }
}
