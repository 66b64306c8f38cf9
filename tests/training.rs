//! A small transformer trains alike on every mesh.

use burn::tensor::Device;
use burn_dist::{DeviceMesh, ParallelizeWith};

#[path = "training/net.rs"]
mod net;

use net::{close, plan, train};

#[test]
fn every_mesh_trains_like_one_device() {
    let steps = 5;
    let expected = train(&Device::flex().autodiff(), steps, |net| net);
    for text in [
        "",
        "dp=2",
        "fsdp=2",
        "fsdp=3",
        "tp=2",
        "tp=3",
        "fsdp=2,tp=2",
        "dp=2,fsdp=2",
        "tp=2,dp=3",
    ] {
        // Even the small gradients of this net are scattered.
        let mesh = DeviceMesh::builder()
            .axes(&text.parse().expect("a mesh"))
            .scatter_bytes_min(0)
            .build()
            .expect("a mesh");
        let losses = train(&mesh.device().autodiff(), steps, |net| {
            net.parallelize_with(mesh.shape(), &plan()).expect("a plan")
        });
        close(&losses, &expected, text);
    }
}

#[test]
fn fuzzed_layouts_train_like_one_device() {
    let steps = 2;
    let expected = train(&Device::flex().autodiff(), steps, |net| net);
    for seed in 0..6 {
        let mesh = DeviceMesh::builder()
            .axis("fsdp", 2)
            .axis("tp", 3)
            .fuzz_layouts(seed)
            .build()
            .expect("a mesh");
        let losses = train(&mesh.device().autodiff(), steps, |net| net);
        close(&losses, &expected, &format!("seed {seed}"));
    }
}
