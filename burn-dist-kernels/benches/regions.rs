//! Regions against the memory's own speed: how much of the rate of a copy they reach, with one thread and with two.
//!
//! A region's bytes are those of its operands and results, each moved once; the bound is a copy of the standard library
//! over as many threads, measured between them. What arithmetic takes where all is in the cache comes first.
//! `cargo bench -p burn-dist-kernels --bench regions`; the last line is JSON.

use std::mem::MaybeUninit;
use std::time::Instant;

use burn_dist_kernels::random::{Bernoulli, Normal, Philox, Samples, Uniform};
use burn_dist_kernels::region::{self, Array, Kernel, Memory, Operand, Output};
use burn_dist_mesh::DType;
use burn_dist_plan::region::{
    Binary, Extent, Fold, Formula, Instruction, Keep, Number, Region, Typed, Unary,
};
use rayon::prelude::*;

/// A formula under construction.
struct Make {
    region: Region,
}

impl Make {
    fn new(space: &[usize], spans: &[&[bool]], scalars: u32) -> Self {
        Self {
            region: Region {
                space: space.to_vec(),
                spans: spans.iter().map(|spans| spans.to_vec()).collect(),
                formula: Formula {
                    operands: vec![DType::F32; spans.len()],
                    ..Formula::default()
                },
                scalars,
                keeps: Vec::new(),
            },
        }
    }

    fn push(&mut self, instruction: Instruction) -> u32 {
        let formula = &mut self.region.formula;
        formula.instructions.push(Typed {
            instruction,
            dtype: DType::F32,
        });
        (formula.operands.len() + formula.instructions.len() - 1) as u32
    }

    fn unary(&mut self, op: Unary, x: u32) -> u32 {
        self.push(Instruction::Unary(op, x))
    }

    fn binary(&mut self, op: Binary, x: u32, y: u32) -> u32 {
        self.push(Instruction::Binary(op, x, y))
    }

    fn add(&mut self, x: u32, y: u32) -> u32 {
        self.binary(Binary::Add, x, y)
    }

    fn sub(&mut self, x: u32, y: u32) -> u32 {
        self.binary(Binary::Sub, x, y)
    }

    fn mul(&mut self, x: u32, y: u32) -> u32 {
        self.binary(Binary::Mul, x, y)
    }

    fn div(&mut self, x: u32, y: u32) -> u32 {
        self.binary(Binary::Div, x, y)
    }

    fn fold(&mut self, fold: Fold, x: u32) -> u32 {
        self.push(Instruction::Fold(fold, x))
    }

    fn constant(&mut self, number: f64) -> u32 {
        self.push(Instruction::Constant(Number::Float(number)))
    }

    fn scalar(&mut self, scalar: u32) -> u32 {
        self.push(Instruction::Scalar(scalar))
    }

    fn keep(&mut self, register: u32, keep: Keep) {
        self.region.formula.results.push(register);
        self.region.keeps.push(keep);
    }

    fn each(&mut self, register: u32) {
        self.keep(register, Keep::Each(Extent::Elements));
    }
}

const BOTH: &[bool] = &[true, true];
const COLUMNS: &[bool] = &[false, true];
const ROWS: &[bool] = &[true, false];

/// A region, and which operand each output takes over.
struct Work {
    name: &'static str,
    region: Region,
    over: Vec<Option<usize>>,
}

fn works(rows: usize, columns: usize, parameters: usize) -> Vec<Work> {
    let space = [rows, columns];
    let mut works = Vec::new();
    let mut work = |name, make: Make, over: &[Option<usize>]| {
        let region = make.region;
        works.push(Work {
            name,
            over: over.to_vec(),
            region,
        });
    };

    // x, weight -> x / root(mean of squares) * weight, and the inverse root.
    let mut make = Make::new(&space, &[BOTH, COLUMNS], 0);
    let squares = make.mul(0, 0);
    let sum = make.fold(Fold::Sum, squares);
    let (inverse, epsilon) = (make.constant(1.0 / columns as f64), make.constant(1e-5));
    let mean = make.mul(sum, inverse);
    let mean = make.add(mean, epsilon);
    let root = make.unary(Unary::Sqrt, mean);
    let inverse_root = make.unary(Unary::Recip, root);
    let normal = make.mul(0, inverse_root);
    let out = make.mul(normal, 1);
    make.each(out);
    make.keep(inverse_root, Keep::Each(Extent::Rows));
    work("RMSNorm forward", make, &[None, None]);

    // x, weight, gradient, inverse root -> gradients of x and weight.
    let mut make = Make::new(&space, &[BOTH, COLUMNS, BOTH, ROWS], 0);
    let normal = make.mul(0, 3);
    let of_weight = make.mul(2, normal);
    let weighted = make.mul(2, 1);
    let product = make.mul(weighted, normal);
    let sum = make.fold(Fold::Sum, product);
    let inverse = make.constant(1.0 / columns as f64);
    let mean = make.mul(sum, inverse);
    let shift = make.mul(normal, mean);
    let rest = make.sub(weighted, shift);
    let out = make.mul(rest, 3);
    make.each(out);
    make.keep(of_weight, Keep::OverRows(Fold::Sum));
    work("RMSNorm backward", make, &[None, None]);

    let mut make = Make::new(&space, &[BOTH], 0);
    let largest = make.fold(Fold::Max, 0);
    let shifted = make.sub(0, largest);
    let exp = make.unary(Unary::Exp, shifted);
    let sum = make.fold(Fold::Sum, exp);
    let out = make.div(exp, sum);
    make.each(out);
    work("softmax forward", make, &[None]);

    // weights, gradient -> weights * (gradient - sum of products).
    let mut make = Make::new(&space, &[BOTH, BOTH], 0);
    let product = make.mul(0, 1);
    let sum = make.fold(Fold::Sum, product);
    let shifted = make.sub(1, sum);
    let out = make.mul(0, shifted);
    make.each(out);
    work("softmax backward", make, &[None]);

    // gate, up -> gate * sigmoid(gate) * up.
    let mut make = Make::new(&space, &[BOTH, BOTH], 0);
    let sigmoid = make.unary(Unary::Sigmoid, 0);
    let silu = make.mul(0, sigmoid);
    let out = make.mul(silu, 1);
    make.each(out);
    work("SwiGLU forward", make, &[None]);

    // gate, up, gradient -> gradients of both.
    let mut make = Make::new(&space, &[BOTH, BOTH, BOTH], 0);
    let sigmoid = make.unary(Unary::Sigmoid, 0);
    let silu = make.mul(0, sigmoid);
    let of_up = make.mul(2, silu);
    let one = make.constant(1.0);
    let rest = make.sub(one, sigmoid);
    let inner = make.mul(silu, rest);
    let slope = make.add(sigmoid, inner);
    let gradient = make.mul(2, 1);
    let of_gate = make.mul(gradient, slope);
    make.each(of_gate);
    make.each(of_up);
    work("SwiGLU backward", make, &[None, None]);

    // parameter, gradient, moments -> parameter, moments. Scalars: learning rate, and what bias divides moments by.
    let mut make = Make::new(&[parameters], &[&[true], &[true], &[true], &[true]], 3);
    let (beta1, beta2) = (make.constant(0.9), make.constant(0.999));
    let (rest1, rest2) = (make.constant(0.1), make.constant(0.001));
    let epsilon = make.constant(1e-8);
    let decay = make.constant(1e-4);
    let (rate, bias1, bias2) = (make.scalar(0), make.scalar(1), make.scalar(2));
    let (kept, new) = (make.mul(2, beta1), make.mul(1, rest1));
    let first = make.add(kept, new);
    let square = make.mul(1, 1);
    let (kept, new) = (make.mul(3, beta2), make.mul(square, rest2));
    let second = make.add(kept, new);
    let (first_hat, second_hat) = (make.div(first, bias1), make.div(second, bias2));
    let root = make.unary(Unary::Sqrt, second_hat);
    let below = make.add(root, epsilon);
    let step = make.div(first_hat, below);
    let step = make.mul(step, rate);
    let decayed = make.mul(0, decay);
    let rest = make.sub(0, decayed);
    let out = make.sub(rest, step);
    make.each(out);
    make.each(first);
    make.each(second);
    work("AdamW", make, &[Some(0), Some(2), Some(3)]);
    works
}

/// GB/s of a copy, both of its sides counted.
fn copy_rate(from: &[f32], to: &mut [f32], threads: usize) -> f64 {
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        let len = from.len().div_ceil(threads * 8);
        match threads {
            1 => to.copy_from_slice(from),
            _ => {
                let pairs = to.par_chunks_mut(len).zip(from.par_chunks(len));
                pairs.for_each(|(to, from)| to.copy_from_slice(from));
            }
        }
        best = best.min(start.elapsed().as_secs_f64());
        std::hint::black_box(&to);
    }
    (from.len() * 8) as f64 / best / 1e9
}

fn strides(space: &[usize]) -> Vec<isize> {
    let mut strides = vec![1; space.len()];
    for dim in (1..space.len()).rev() {
        strides[dim - 1] = strides[dim] * space[dim] as isize;
    }
    strides
}

/// Bytes of a region, and the least seconds of some runs.
fn least(work: &Work, times: usize) -> (usize, f64) {
    let region = &work.region;
    let total: usize = region.space.iter().product();
    let rows = total / region.space[region.space.len() - 1];
    let mut bytes = 0;
    let mut strides_of = Vec::new();
    let mut memories: Vec<Vec<f32>> = Vec::new();
    for spans in &region.spans {
        let sizes = region.space.iter().zip(spans);
        let sizes: Vec<usize> = sizes
            .map(|(size, spans)| if *spans { *size } else { 1 })
            .collect();
        let len = sizes.iter().product::<usize>();
        bytes += len * 4;
        strides_of.push(strides(&sizes));
        memories.push(
            (0..len)
                .map(|i| (i * 7919 % 2003) as f32 / 1000.0 + 0.01)
                .collect(),
        );
    }
    let mut made: Vec<Vec<f32>> = Vec::new();
    for (keep, over) in region.keeps.iter().zip(&work.over) {
        let len = match keep {
            Keep::Each(Extent::Elements) => total,
            Keep::Each(Extent::Rows) => rows,
            Keep::OverRows(_) => total / rows,
            Keep::OverAll(..) => 1,
        };
        bytes += len * 4;
        made.push(vec![0.0; if over.is_some() { 0 } else { len }]);
    }
    let kernel = Kernel::new(region).expect("a kernel");
    let scalars = [
        Number::Float(1e-3),
        Number::Float(0.1),
        Number::Float(0.001),
    ];
    let mut best = f64::INFINITY;
    for _ in 0..times {
        let mut operands: Vec<Operand<'_>> = memories
            .iter_mut()
            .zip(&strides_of)
            .map(|(memory, strides)| Operand {
                memory: Memory::Unique(bytemuck::cast_slice_mut(memory)),
                offset: 0,
                strides,
            })
            .collect();
        let mut outputs: Vec<Output<'_>> = made
            .iter_mut()
            .zip(&work.over)
            .map(|(made, over)| match over {
                Some(operand) => Output::Over(*operand),
                None => {
                    let bytes: &mut [u8] = bytemuck::cast_slice_mut(made);
                    // SAFETY: the same bytes; a region writes whole elements there.
                    Output::New(unsafe {
                        &mut *(std::ptr::from_mut(bytes) as *mut [MaybeUninit<u8>])
                    })
                }
            })
            .collect();
        let start = Instant::now();
        kernel
            .run(
                &mut operands,
                &scalars[..region.scalars as usize],
                &mut outputs,
            )
            .expect("it runs");
        best = best.min(start.elapsed().as_secs_f64());
    }
    std::hint::black_box((&memories, &made));
    (bytes, best)
}

/// GB/s of a region.
fn rate(work: &Work) -> (usize, f64) {
    let (bytes, seconds) = least(work, 5);
    (bytes, bytes as f64 / seconds / 1e9)
}

/// A copy in another order.
struct Turned {
    name: &'static str,
    shape: Vec<usize>,
    strides: Vec<isize>,
    /// Whether it is two halves, one behind the other along the last dim.
    halves: bool,
}

fn copies() -> Vec<Turned> {
    let of = |name, shape: &[usize], strides: &[isize], halves| Turned {
        name,
        shape: shape.to_vec(),
        strides: strides.to_vec(),
        halves,
    };
    vec![
        of("transpose", &[4096, 4096], &[1, 4096], false),
        // [batch, tokens, heads, width] -> [batch, heads, tokens, width].
        of(
            "heads",
            &[8, 16, 2048, 64],
            &[2048 * 1024, 64, 1024, 1],
            false,
        ),
        // Keys: [batch, heads, tokens, width] -> [batch, heads, width, tokens].
        of(
            "keys",
            &[8, 16, 64, 2048],
            &[2048 * 1024, 2048 * 64, 1, 64],
            false,
        ),
        of("slice", &[4096, 3000], &[4096, 1], false),
        of("concatenation", &[4096, 2048], &[2048, 1], true),
    ]
}

/// GB/s of a copy in another order.
fn copied(copy: &Turned, from: &[f32], to: &mut [f32]) -> f64 {
    let array = Array {
        bytes: bytemuck::cast_slice(from),
        size: 4,
        offset: 0,
        shape: &copy.shape,
        strides: &copy.strides,
    };
    let half = from.len() / 2;
    let other = Array {
        offset: half,
        ..array
    };
    let times = if copy.halves { 2 } else { 1 };
    let bytes = times * 4 * copy.shape.iter().product::<usize>();
    let to: &mut [u8] = &mut bytemuck::cast_slice_mut(to)[..bytes];
    // SAFETY: the same bytes; whole elements are written there.
    let to = unsafe { &mut *(std::ptr::from_mut(to) as *mut [MaybeUninit<u8>]) };
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        match copy.halves {
            true => region::concat(&[array, other], 1, to).expect("it copies"),
            false => region::copy(&array, to).expect("it copies"),
        }
        best = best.min(start.elapsed().as_secs_f64());
    }
    std::hint::black_box(&to);
    (2 * bytes) as f64 / best / 1e9
}

/// Nanoseconds of the sum of two small matrices, the kernel ready.
fn small(side: usize) -> f64 {
    let mut make = Make::new(&[side, side], &[BOTH, BOTH], 0);
    let sum = make.add(0, 1);
    make.each(sum);
    let kernel = Kernel::new(&make.region).expect("a kernel");
    let matrix = vec![1f32; side * side];
    let mut made = vec![MaybeUninit::<u8>::uninit(); side * side * 4 + 3];
    let first = made.as_ptr().align_offset(4);
    let strides = [side as isize, 1];
    let operand = || Operand {
        memory: Memory::Shared(bytemuck::cast_slice(&matrix)),
        offset: 0,
        strides: &strides,
    };
    let mut best = f64::INFINITY;
    for _ in 0..20 {
        let start = Instant::now();
        for _ in 0..1000 {
            let to = &mut made[first..][..side * side * 4];
            kernel
                .run(&mut [operand(), operand()], &[], &mut [Output::New(to)])
                .expect("it runs");
        }
        best = best.min(start.elapsed().as_secs_f64() / 1000.0);
    }
    best * 1e9
}

/// Nanoseconds of 16 random numbers.
fn drawn(samples: &Samples) -> f64 {
    let philox = Philox::new(7, 9);
    let mut to = vec![0f32; 512];
    let mut best = f64::INFINITY;
    for _ in 0..20 {
        let start = Instant::now();
        for block in 0..2000 {
            samples.fill(&philox, block * to.len(), &mut to);
            std::hint::black_box(&mut to);
        }
        best = best.min(start.elapsed().as_secs_f64() / (2000 * to.len()) as f64);
    }
    best * 16.0 * 1e9
}

fn main() {
    // Cargo's test runs benches too.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    // Those alone whose name has a word of the command line.
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    let is_asked = |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word));
    let mut lines = Vec::new();
    for side in [1, 8, 64].into_iter().filter(|_| is_asked("small")) {
        let nanoseconds = small(side);
        println!("small: a sum of {side}x{side} takes {nanoseconds:.0} ns");
        lines.push(format!("\"small {side}\": {nanoseconds:.0}"));
    }
    let (low, width, last) = (0.0, 1.0, 1f32.next_down());
    let (threshold, is_certain) = (1 << 30, false);
    let (mean, std) = (0.0, 1.0);
    for (name, samples) in [
        ("uniform", Samples::Uniform(Uniform { low, width, last })),
        (
            "bernoulli",
            Samples::Bernoulli(Bernoulli {
                threshold,
                is_certain,
            }),
        ),
        ("normal", Samples::Normal(Normal { mean, std })),
    ] {
        if is_asked(&format!("{name} drawn")) {
            let nanoseconds = drawn(&samples);
            println!("drawn: {name:<17} {nanoseconds:.2} ns for 16 numbers");
            lines.push(format!("\"{name} drawn\": {nanoseconds:.2}"));
        }
    }
    // What arithmetic alone takes: all of it is in the second cache.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build();
    pool.expect("a pool").install(|| {
        for work in works(8, 4096, 32 << 10) {
            if is_asked(&format!("{} in the cache", work.name)) {
                let elements: usize = work.region.space.iter().product();
                let (_, seconds) = least(&work, 3000);
                let nanoseconds = seconds * 1e9 / (elements / 16) as f64;
                println!(
                    "cache: {:<17} {nanoseconds:.2} ns for 16 elements",
                    work.name
                );
                lines.push(format!("\"{} in the cache\": {nanoseconds:.2}", work.name));
            }
        }
    });
    let from: Vec<f32> = (0..32 << 20).map(|i| i as f32).collect();
    let mut to = vec![0.0; from.len()];
    for threads in [1, 2] {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .expect("a pool");
        pool.install(|| {
            let works = works(4096, 4096, 64 << 20);
            for work in works.iter().filter(|work| is_asked(work.name)) {
                let bound = copy_rate(&from, &mut to, threads);
                let (bytes, rate) = rate(work);
                println!(
                    "{threads} threads: {:<17} {:>5} MiB {rate:6.2} GB/s, {:.2} of a copy's {bound:.2}",
                    work.name,
                    bytes >> 20,
                    rate / bound
                );
                lines.push(format!("\"{} {threads}\": {:.3}", work.name, rate / bound));
            }
            for copy in copies().iter().filter(|copy| is_asked(copy.name)) {
                let bound = copy_rate(&from, &mut to, threads);
                let rate = copied(copy, &from, &mut to);
                println!(
                    "{threads} threads: {:<17} {:>5} MiB {rate:6.2} GB/s, {:.2} of a copy's {bound:.2}",
                    copy.name,
                    copy.shape.iter().product::<usize>() >> 17,
                    rate / bound
                );
                lines.push(format!("\"{} {threads}\": {:.3}", copy.name, rate / bound));
            }
        });
    }
    println!("{{{}}}", lines.join(", "));
}
