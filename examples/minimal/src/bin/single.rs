//! Trains a small Llama-style decoder to predict the next byte of a text, on one device:
//! `cargo run --release -p minimal --bin single`.
//!
//! `main.rs` is the same program for a mesh of devices.

use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::Device;
use minimal::{Decoder, LEARNING_RATE, STEPS, batch};
use std::error::Error;
use std::process::ExitCode;

fn train() -> Result<(), Box<dyn Error>> {
    let device = Device::flex().autodiff();
    device.seed(0);
    let mut model = Decoder::new(&device);
    let mut optimizer = AdamWConfig::new().init();
    for step in 0..STEPS {
        let [bytes, next] = batch(step, &device);
        let loss = model.loss(bytes, next);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(LEARNING_RATE, model, gradients);
        println!(
            "step {:>2}  loss {:.5}",
            step + 1,
            loss.into_scalar::<f32>()
        );
    }
    Ok(())
}

fn main() -> ExitCode {
    match train() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}
