//! Products of matrices as a step of a Llama makes them: how much of the machine's own peak they reach, with one thread
//! and with all of a pool of two.
//!
//! `cargo bench -p burn-dist-kernels --bench products`; the last line is JSON.

use std::mem::MaybeUninit;
use std::time::Instant;

use burn_dist_kernels::product::{Matrices, Sizes, product, sum_of_products};

/// A batch of products.
struct Shape {
    name: &'static str,
    batch: usize,
    rows: usize,
    inner: usize,
    columns: usize,
    /// Whether left matrices lie in memory by columns.
    left_turned: bool,
    /// Whether right ones do.
    right_turned: bool,
    /// Whether there is one right matrix.
    shares_right: bool,
    /// Whether the result is the sum of all products.
    sums: bool,
}

/// The products of a linear layer: forward `x W`, gradient of `x` `g W^T`, gradient of `W` `x^T g`; `rows` of each of a
/// batch.
fn linear(
    name: [&'static str; 3],
    [batch, rows]: [usize; 2],
    inner: usize,
    columns: usize,
) -> [Shape; 3] {
    let of = |name, [rows, inner, columns]: [usize; 3], left_turned, right_turned| Shape {
        name,
        batch,
        rows,
        inner,
        columns,
        left_turned,
        right_turned,
        shares_right: !left_turned,
        sums: left_turned,
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
        linear(["S q", "S q dx", "S q dW"], [8, 256], 256, 256),
        linear(["S up", "S up dx", "S up dW"], [8, 256], 256, 768),
        linear(["S down", "S down dx", "S down dW"], [8, 256], 768, 256),
        linear(["S head", "S head dx", "S head dW"], [8, 256], 256, 2048),
        linear(["M q", "M q dx", "M q dW"], [4, 512], 512, 512),
        linear(["M up", "M up dx", "M up dW"], [4, 512], 512, 1536),
        linear(["M down", "M down dx", "M down dW"], [4, 512], 1536, 512),
        linear(["M head", "M head dx", "M head dW"], [4, 512], 512, 8192),
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
            shares_right: false,
            sums: false,
        });
    }
    shapes
}

/// GFLOP/s of the best of several rounds.
fn rate(shape: &Shape) -> f64 {
    let number = |i: usize| (i * 7919 % 2003) as f32 / 1000.0 - 1.0;
    let numbers = |len: usize| (0..len).map(number).collect::<Vec<f32>>();
    let Shape {
        batch,
        rows,
        inner,
        columns,
        ..
    } = *shape;
    let rights = if shape.shares_right { 1 } else { batch };
    let (left, right) = (
        numbers(batch * rows * inner),
        numbers(rights * inner * columns),
    );
    let results = if shape.sums { 1 } else { batch };
    let mut out = vec![MaybeUninit::new(0f32); results * rows * columns];
    let sizes = Sizes {
        batch: &[batch],
        rows,
        inner,
        columns,
    };
    let turn = |is_turned, [rows, columns]: [usize; 2]| match is_turned {
        true => (1, rows as isize),
        false => (columns as isize, 1),
    };
    let (left_rows, left_columns) = turn(shape.left_turned, [rows, inner]);
    let (right_rows, right_columns) = turn(shape.right_turned, [inner, columns]);
    let left = Matrices {
        values: &left,
        offset: 0,
        batch: &[(rows * inner) as isize],
        rows: left_rows,
        columns: left_columns,
    };
    let right = Matrices {
        values: &right,
        offset: 0,
        batch: &[(if shape.shares_right {
            0
        } else {
            inner * columns
        }) as isize],
        rows: right_rows,
        columns: right_columns,
    };
    let flops = 2 * batch * rows * inner * columns;
    let times = (400_000_000 / flops).clamp(3, 2000);
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        for _ in 0..times {
            match shape.sums {
                true => sum_of_products(sizes, left, right, &mut out),
                false => product(sizes, left, right, &mut out),
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
        shares_right: true,
        sums: false,
    };
    let mut lines = Vec::new();
    for threads in [1, 2] {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .expect("a pool");
        pool.install(|| {
            let peak = rate(&peak_shape);
            println!("{threads} threads: 1024^3 {peak:.1} GFLOP/s");
            lines.push(format!("\"peak {threads}\": {peak:.1}"));
            for shape in shapes() {
                let rate = rate(&shape);
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
