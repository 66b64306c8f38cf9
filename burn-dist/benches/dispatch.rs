//! What one operation costs beyond its kernel: recording, planning (steady state) and running it, on 8x8 tensors.
//!
//! The physical limit is zero: the inner backend's own time, measured beside it in the same run, is the baseline of
//! every row.

use std::time::Instant;

use burn::nn::{Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::tensor::activation::softmax;
use burn::tensor::{Device, Tensor, TensorData};
use burn_dist::DeviceMesh;
use serde_json::json;

/// Operations between two synchronisations.
const OPS: usize = 1000;
const ROUNDS: usize = 60;

fn operand(device: &Device, salt: usize) -> Tensor<2> {
    let values: Vec<f32> = (0..64)
        .map(|i| ((i * 7 + salt) % 13) as f32 / 130.0)
        .collect();
    let tensor = Tensor::from_data(TensorData::new(values, [8, 8]), device);
    // A use and a read: from here on the tensor lives on the ranks.
    let _ = tensor.clone().sum().into_data();
    tensor
}

/// Nanoseconds per operation: (until recorded, until done); the least of several rounds, since the machine is shared.
fn time(device: &Device, ops: usize, mut chain: impl FnMut()) -> (f64, f64) {
    let mut best = (f64::MAX, f64::MAX);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        chain();
        let recorded = start.elapsed().as_nanos() as f64 / ops as f64;
        device.sync().expect("the mesh works");
        let done = start.elapsed().as_nanos() as f64 / ops as f64;
        best = (best.0.min(recorded), best.1.min(done));
    }
    best
}

type Modules = (Linear, RmsNorm);

fn apply(name: &str, x: Tensor<2>, y: &Tensor<2>, (linear, norm): &Modules) -> Tensor<2> {
    match name {
        "add" => x + y.clone(),
        "mul" => x * y.clone(),
        "matmul" => x.matmul(y.clone()),
        "linear" => linear.forward(x),
        "reshape" => x.reshape([4, 16]).reshape([8, 8]),
        "transpose" => x.transpose(),
        "softmax" => softmax(x, 1),
        "rms_norm" => norm.forward(x),
        _ => unreachable!("a row without an operation"),
    }
}

const ROWS: [&str; 8] = [
    "add",
    "mul",
    "matmul",
    "linear",
    "reshape",
    "transpose",
    "softmax",
    "rms_norm",
];

fn forward(device: &Device, name: &str) -> (f64, f64) {
    let (x, y) = (operand(device, 1), operand(device, 5));
    let modules = (
        LinearConfig::new(8, 8).init(device),
        RmsNormConfig::new(8).init(device),
    );
    time(device, OPS, || {
        let mut z = x.clone();
        for _ in 0..OPS {
            z = apply(name, z, &y, &modules);
        }
    })
}

/// Forward and backward of single operations, each with a graph of its own.
fn backward(device: &Device, name: &str) -> (f64, f64) {
    const OPS: usize = 50;
    let (x, y) = (operand(device, 1), operand(device, 5));
    let modules = (
        LinearConfig::new(8, 8).init(device),
        RmsNormConfig::new(8).init(device),
    );
    time(device, OPS, || {
        for _ in 0..OPS {
            let x = x.clone().require_grad();
            let z = apply(name, x.clone(), &y, &modules);
            let _ = x.grad(&z.sum().backward());
        }
    })
}

/// Nanoseconds per multiplication of a graph of many, its backward and the end of all work included.
fn graph(device: &Device) -> f64 {
    const OPS: usize = 500;
    let x = operand(device, 1).require_grad();
    let (_, done) = time(device, OPS, || {
        let mut z = x.clone();
        for _ in 0..OPS {
            z = z * x.clone();
        }
        let _ = x.grad(&z.sum().backward());
    });
    done
}

fn main() {
    let mesh1 = DeviceMesh::parse("").expect("one rank");
    let mesh2 = DeviceMesh::parse("fsdp=2").expect("two ranks");
    let (d1, d2) = (mesh1.device(), mesh2.device());
    println!(
        "nanoseconds per operation (8x8 f32, {OPS} dependent operations, least of {ROUNDS} rounds)"
    );
    println!(
        "{:<10} {:>9} {:>9} {:>9} {:>9} | forward + backward {:>9} {:>9} {:>9}",
        "", "flex", "record", "dist1", "dist2", "flex", "dist1", "dist2"
    );
    let mut rows = Vec::new();
    let mut headline = json!({});
    for name in ROWS {
        let (_, flex) = forward(&Device::flex(), name);
        let (record, dist1) = forward(&d1, name);
        let (_, dist2) = forward(&d2, name);
        let (_, flex_backward) = backward(&Device::flex().autodiff(), name);
        let (_, dist1_backward) = backward(&d1.clone().autodiff(), name);
        let (_, dist2_backward) = backward(&d2.clone().autodiff(), name);
        println!(
            "{name:<10} {flex:>9.0} {record:>9.0} {dist1:>9.0} {dist2:>9.0} |                    {flex_backward:>9.0} \
             {dist1_backward:>9.0} {dist2_backward:>9.0}"
        );
        let row = json!({
            "op": name, "flex_ns": flex, "record_ns": record, "dist1_ns": dist1, "dist2_ns": dist2,
            "flex_backward_ns": flex_backward, "dist1_backward_ns": dist1_backward, "dist2_backward_ns": dist2_backward,
        });
        if name == "add" {
            headline = row.clone();
        }
        rows.push(row);
    }
    let [flex_graph, dist1_graph, dist2_graph] =
        [Device::flex(), d1, d2].map(|device| graph(&device.autodiff()));
    println!(
        "one of 500 multiplications of a graph, with its backward: flex {flex_graph:.0}, dist1 {dist1_graph:.0}, dist2 \
         {dist2_graph:.0}"
    );
    println!(
        "{}",
        json!({
            "bench": "dispatch",
            "flex_graph_ns": flex_graph,
            "dist1_graph_ns": dist1_graph,
            "dist2_graph_ns": dist2_graph,
            "record_ns": headline["record_ns"],
            "flex_ns": headline["flex_ns"],
            "dist1_ns": headline["dist1_ns"],
            "dist2_ns": headline["dist2_ns"],
            "overhead_ns": headline["dist1_ns"].as_f64().unwrap_or(0.0) - headline["flex_ns"].as_f64().unwrap_or(0.0),
            "rows": rows,
        })
    );
}
