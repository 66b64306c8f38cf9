//! Products of matrices as a step of a Llama makes them: how much of the machine's own peak they reach, with one thread
//! and with all of a pool of two.
//!
//! `cargo bench -p burn-dist-kernels --bench products`; the last line is JSON.

use std::time::Instant;

use gemm::Parallelism;

/// A product, or a batch of them.
struct Shape {
    name: &'static str,
    batch: usize,
    rows: usize,
    inner: usize,
    columns: usize,
    /// Whether the left factor lies in memory by columns.
    left_turned: bool,
    /// Whether the right one does.
    right_turned: bool,
}

/// The products of a linear layer: forward `x W`, gradient of `x` `g W^T`, gradient of `W` `x^T g`.
fn linear(name: [&'static str; 3], rows: usize, inner: usize, columns: usize) -> [Shape; 3] {
    let of = |name, [rows, inner, columns]: [usize; 3], left_turned, right_turned| Shape {
        name,
        batch: 1,
        rows,
        inner,
        columns,
        left_turned,
        right_turned,
    };
    [
        of(name[0], [rows, inner, columns], false, false),
        of(name[1], [rows, columns, inner], false, true),
        of(name[2], [inner, rows, columns], true, false),
    ]
}

/// The models of the example: both have 2,048 tokens a step; S has width 256, 768 within, a vocabulary of 2,048, M
/// twice, twice and four times that.
fn shapes() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for shape in [
        linear(["S q", "S q dx", "S q dW"], 2048, 256, 256),
        linear(["S up", "S up dx", "S up dW"], 2048, 256, 768),
        linear(["S down", "S down dx", "S down dW"], 2048, 768, 256),
        linear(["S head", "S head dx", "S head dW"], 2048, 256, 2048),
        linear(["M q", "M q dx", "M q dW"], 2048, 512, 512),
        linear(["M up", "M up dx", "M up dW"], 2048, 512, 1536),
        linear(["M down", "M down dx", "M down dW"], 2048, 1536, 512),
        linear(["M head", "M head dx", "M head dW"], 2048, 512, 8192),
    ] {
        shapes.extend(shape);
    }
    for (name, batch, rows, inner, columns) in [
        ("S scores", 64, 256, 32, 256),
        ("S values", 64, 256, 256, 32),
        ("M scores", 32, 512, 64, 512),
        ("M values", 32, 512, 512, 64),
        ("small batch", 256, 16, 16, 16),
    ] {
        shapes.push(Shape {
            name,
            batch,
            rows,
            inner,
            columns,
            left_turned: false,
            right_turned: name.ends_with("scores"),
        });
    }
    shapes
}

fn product(shape: &Shape, out: &mut [f32], left: &[f32], right: &[f32], parallelism: Parallelism) {
    let Shape {
        rows,
        inner,
        columns,
        ..
    } = *shape;
    let (left_row, left_column) = if shape.left_turned {
        (1, rows)
    } else {
        (inner, 1)
    };
    let (right_row, right_column) = if shape.right_turned {
        (1, inner)
    } else {
        (columns, 1)
    };
    assert!(
        out.len() >= rows * columns && left.len() >= rows * inner && right.len() >= inner * columns
    );
    // SAFETY: every element lies inside, as just checked, and `out` is borrowed mutably.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            inner,
            out.as_mut_ptr(),
            1,
            columns as isize,
            false,
            left.as_ptr(),
            left_column as isize,
            left_row as isize,
            right.as_ptr(),
            right_column as isize,
            right_row as isize,
            0.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// GFLOP/s of the best of several rounds.
fn rate(shape: &Shape, threads: usize) -> f64 {
    use rayon::prelude::*;
    let number = |i: usize| (i * 7919 % 2003) as f32 / 1000.0 - 1.0;
    let left: Vec<f32> = (0..shape.batch * shape.rows * shape.inner)
        .map(number)
        .collect();
    let right: Vec<f32> = (0..shape.batch * shape.inner * shape.columns)
        .map(number)
        .collect();
    let mut out = vec![0f32; shape.batch * shape.rows * shape.columns];
    let flops = 2 * shape.batch * shape.rows * shape.inner * shape.columns;
    let times = (400_000_000 / flops).clamp(3, 2000);
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        for _ in 0..times {
            match shape.batch {
                1 => {
                    let parallelism = match threads {
                        1 => Parallelism::None,
                        _ => Parallelism::Rayon(threads),
                    };
                    product(shape, &mut out, &left, &right, parallelism);
                }
                _ => {
                    let each = shape.rows * shape.columns;
                    let of = |index: usize, out: &mut [f32]| {
                        let left = &left[index * shape.rows * shape.inner..];
                        let right = &right[index * shape.inner * shape.columns..];
                        product(shape, out, left, right, Parallelism::None);
                    };
                    match threads {
                        1 => out
                            .chunks_exact_mut(each)
                            .enumerate()
                            .for_each(|(index, out)| of(index, out)),
                        _ => {
                            let at_once = shape.batch.div_ceil(4 * threads);
                            out.par_chunks_exact_mut(each)
                                .enumerate()
                                .with_min_len(at_once)
                                .for_each(|(index, out)| of(index, out));
                        }
                    }
                }
            }
        }
        best = best.min(start.elapsed().as_secs_f64());
    }
    std::hint::black_box(&out);
    (flops * times) as f64 / best / 1e9
}

fn main() {
    // Cargo's test runs benches too.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let peak_shape = Shape {
        name: "peak",
        batch: 1,
        rows: 1024,
        inner: 1024,
        columns: 1024,
        left_turned: false,
        right_turned: false,
    };
    let mut lines = Vec::new();
    for threads in [1, 2] {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .expect("a pool");
        pool.install(|| {
            let peak = rate(&peak_shape, threads);
            println!("{threads} threads: 1024^3 {peak:.1} GFLOP/s");
            lines.push(format!("\"peak {threads}\": {peak:.1}"));
            for shape in shapes() {
                let rate = rate(&shape, threads);
                println!(
                    "  {:<12} {}x[{}, {}] [{}, {}]: {rate:.1} GFLOP/s, {:.2} of it",
                    shape.name,
                    shape.batch,
                    shape.rows,
                    shape.inner,
                    shape.inner,
                    shape.columns,
                    rate / peak
                );
                lines.push(format!("\"{} {threads}\": {rate:.1}", shape.name));
            }
        });
    }
    println!("{{{}}}", lines.join(", "));
}
