//! The result of each collective, element by element and as slowly as need be.

use burn_dist_comm::{AllToAll, Collective, Group};
use burn_dist_mesh::ReduceOp;
use burn_dist_mesh::{BoolStore, DType};
use half::{bf16, f16};

/// Every dtype that moves and reduces.
pub(super) const DTYPES: [DType; 15] = [
    DType::F64,
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::I64,
    DType::I32,
    DType::I16,
    DType::I8,
    DType::U64,
    DType::U32,
    DType::U16,
    DType::U8,
    DType::Bool(BoolStore::Native),
    DType::Bool(BoolStore::U8),
    DType::Bool(BoolStore::U32),
];

pub(super) const OPS: [ReduceOp; 5] = [
    ReduceOp::Sum,
    ReduceOp::Mean,
    ReduceOp::Min,
    ReduceOp::Max,
    ReduceOp::Prod,
];

/// A generator of small unrelated numbers (an LCG; its low bits are dropped).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Self(seed ^ 0x5851_f42d_4c95_7f2d);
        random.below(2);
        random.below(2);
        random
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

/// Bytes of `num` elements: integers of all sizes, floats with fractions (so that sums round), booleans of 0 and 1.
pub(super) fn fill(dtype: DType, num: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(num * dtype.size());
    for _ in 0..num {
        let float = (random.below(4001) as f64 - 2000.0) / 7.0;
        let int = (random.below(1 << 30) as u64) << 33 | random.below(1 << 30) as u64;
        match dtype {
            DType::F64 => bytes.extend(float.to_ne_bytes()),
            DType::F32 => bytes.extend((float as f32).to_ne_bytes()),
            DType::F16 => bytes.extend(f16::from_f64(float).to_ne_bytes()),
            DType::BF16 => bytes.extend(bf16::from_f64(float).to_ne_bytes()),
            DType::Bool(BoolStore::U32) => bytes.extend(((int & 1) as u32).to_ne_bytes()),
            DType::Bool(_) => bytes.push((int & 1) as u8),
            // Both ends of the words are random, whatever the width.
            _ => bytes.extend(&(int ^ int.rotate_left(40)).to_ne_bytes()[..dtype.size()]),
        }
    }
    bytes
}

/// How far to shift along `k` members: a few places or very many, in either direction, but no multiple of `k`.
pub(super) fn shift_by(k: usize, random: &mut Random) -> isize {
    let k = k as isize;
    let places = 1 + random.below(k as usize - 1) as isize;
    let turns = [0, -1, 1, 3, -5, isize::MAX / k - 1, isize::MIN / k][random.below(7)];
    turns * k + places
}

/// The bytes that `member` brings, if any.
pub(super) fn input_bytes(collective: &Collective, group: &Group, member: usize) -> Option<usize> {
    let is_root = |root| group.ranks()[member] == root;
    match collective {
        Collective::AllGather(parts) => {
            Some(parts.outer * parts.mid_sizes[member] * parts.inner_bytes)
        }
        Collective::ReduceScatter { parts, .. } => {
            Some(parts.outer * parts.mid_sizes.iter().sum::<usize>() * parts.inner_bytes)
        }
        Collective::AllReduce { bytes, .. } => Some(*bytes),
        Collective::AllToAll(AllToAll {
            shape,
            concat,
            elem_bytes,
            ..
        }) => {
            let mut local = shape.to_vec();
            local[concat.0] = concat.1[member];
            Some(local.iter().product::<usize>() * elem_bytes)
        }
        Collective::Broadcast { root, bytes } => is_root(*root).then_some(*bytes),
        Collective::Shift { sizes, .. } => Some(sizes[member]),
        Collective::Send { bytes } | Collective::Recv { bytes } => (member == 0).then_some(*bytes),
    }
}

/// The output of every member.
pub(super) fn expected(
    collective: &Collective,
    dtype: DType,
    group: &Group,
    inputs: &[Vec<u8>],
) -> Vec<Vec<u8>> {
    let k = group.len();
    let root = |root| group.member(root).unwrap();
    match collective {
        Collective::AllGather(parts) => {
            let mut whole = Vec::new();
            for o in 0..parts.outer {
                for (input, mid) in inputs.iter().zip(parts.mid_sizes.iter()) {
                    let row = mid * parts.inner_bytes;
                    whole.extend(&input[o * row..(o + 1) * row]);
                }
            }
            vec![whole; k]
        }
        Collective::ReduceScatter { op, parts } => {
            let whole = reduce(dtype, *op, inputs);
            let row = parts.mid_sizes.iter().sum::<usize>() * parts.inner_bytes;
            let mut outputs = vec![Vec::new(); k];
            for o in 0..parts.outer {
                let mut at = o * row;
                for (output, mid) in outputs.iter_mut().zip(parts.mid_sizes.iter()) {
                    output.extend(&whole[at..at + mid * parts.inner_bytes]);
                    at += mid * parts.inner_bytes;
                }
            }
            outputs
        }
        Collective::AllReduce { op, .. } => vec![reduce(dtype, *op, inputs); k],
        Collective::AllToAll(AllToAll {
            shape,
            split,
            concat,
            elem_bytes,
        }) => {
            let mut whole = vec![0; shape.iter().product::<usize>() * elem_bytes];
            let mut start = 0;
            for (input, &size) in inputs.iter().zip(concat.1.iter()) {
                let mut local = shape.to_vec();
                local[concat.0] = size;
                for (i, element) in input.chunks_exact(*elem_bytes).enumerate() {
                    let mut index = unravel(i, &local);
                    index[concat.0] += start;
                    let at = ravel(&index, shape) * elem_bytes;
                    whole[at..at + elem_bytes].copy_from_slice(element);
                }
                start += size;
            }
            let mut start = 0;
            let mut outputs = Vec::new();
            for &size in split.1.iter() {
                let mut local = shape.to_vec();
                local[split.0] = size;
                let mut output = Vec::new();
                for i in 0..local.iter().product() {
                    let mut index = unravel(i, &local);
                    index[split.0] += start;
                    let at = ravel(&index, shape) * elem_bytes;
                    output.extend(&whole[at..at + elem_bytes]);
                }
                outputs.push(output);
                start += size;
            }
            outputs
        }
        Collective::Shift { by, .. } => {
            // One place at a time, forwards; as many as are left once all whole turns are taken away.
            let mut blocks = inputs.to_vec();
            for _ in 0..(*by as i128).rem_euclid(k as i128) {
                let last = blocks.pop().unwrap();
                blocks.insert(0, last);
            }
            blocks
        }
        Collective::Broadcast { root: from, .. } => vec![inputs[root(*from)].clone(); k],
        Collective::Send { .. } | Collective::Recv { .. } => vec![vec![], inputs[0].clone()],
    }
}

fn unravel(mut i: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (at, &size) in index.iter_mut().zip(shape).rev() {
        *at = i % size;
        i /= size;
    }
    index
}

fn ravel(index: &[usize], shape: &[usize]) -> usize {
    index
        .iter()
        .zip(shape)
        .fold(0, |flat, (i, size)| flat * size + i)
}

/// Combines terms as a balanced tree, split at the largest power of two.
fn tree<W: Copy>(terms: &[W], combine: &impl Fn(W, W) -> W) -> W {
    match *terms {
        [term] => term,
        _ => {
            let middle = (1..terms.len())
                .rfind(|n| n.is_power_of_two())
                .expect("at least one");
            let (left, right) = terms.split_at(middle);
            combine(tree(left, combine), tree(right, combine))
        }
    }
}

/// Reduces element by element: floats in their own type, integers with wrap-around. A mean is summed in f32 if its type
/// has 16 bits.
pub(super) fn reduce(dtype: DType, op: ReduceOp, inputs: &[Vec<u8>]) -> Vec<u8> {
    macro_rules! fold {
        ($type:ty, $read:expr, $write:expr, $sum:expr, $prod:expr, $over:expr) => {{
            let mut output = Vec::new();
            let size = size_of::<$type>();
            for at in (0..inputs[0].len()).step_by(size) {
                let values: Vec<_> = inputs
                    .iter()
                    .map(|input| {
                        $read(<$type>::from_ne_bytes(
                            input[at..at + size].try_into().unwrap(),
                        ))
                    })
                    .collect();
                let first = values[0];
                let rest = values[1..].iter().copied();
                let rounded = |value| $read($write(value));
                let value = match op {
                    ReduceOp::Sum => tree(&values, &|a, b| rounded($sum(a, b))),
                    // Of equal terms it is the term, whatever their sum rounds to.
                    ReduceOp::Mean if values.iter().all(|value| *value == first) => first,
                    ReduceOp::Mean => $over(tree(&values, &$sum), inputs.len()),
                    ReduceOp::Min => rest.fold(first, |a, b| if b < a { b } else { a }),
                    ReduceOp::Max => rest.fold(first, |a, b| if b > a { b } else { a }),
                    ReduceOp::Prod => tree(&values, &|a, b| rounded($prod(a, b))),
                };
                output.extend(<$type>::to_ne_bytes($write(value)));
            }
            output
        }};
    }
    macro_rules! float {
        ($type:ty, $wide:ty, $read:expr, $write:expr) => {
            fold!($type, $read, $write, |a, b| a + b, |a, b| a * b, |a, k| a
                / k as $wide)
        };
    }
    macro_rules! int {
        ($type:ty) => {
            fold!(
                $type,
                |x| x,
                |x| x,
                <$type>::wrapping_add,
                <$type>::wrapping_mul,
                |a, k| (i128::from(a) / k as i128) as $type
            )
        };
    }
    match dtype {
        DType::F64 => float!(f64, f64, |x| x, |x| x),
        DType::F32 => float!(f32, f32, |x| x, |x| x),
        DType::F16 => float!(f16, f32, f16::to_f32, f16::from_f32),
        DType::BF16 => float!(bf16, f32, bf16::to_f32, bf16::from_f32),
        DType::I64 => int!(i64),
        DType::I32 => int!(i32),
        DType::I16 => int!(i16),
        DType::I8 => int!(i8),
        DType::U64 => int!(u64),
        DType::U32 | DType::Bool(BoolStore::U32) => int!(u32),
        DType::U16 => int!(u16),
        DType::U8 | DType::Bool(_) => int!(u8),
        other => panic!("no reference for {other:?}"),
    }
}
