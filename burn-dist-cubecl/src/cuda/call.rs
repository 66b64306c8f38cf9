//! The tensors of a product, and a first try of an engine with them.

use burn_dist_kernels::cuda::engine::{Device, Engine, EngineError};
use burn_dist_kernels::cuda::product::Product;
use burn_dist_kernels::cuda::reference::{Operands, Sums};
use cubecl::cuda::CudaRuntime;
use cubecl::prelude::*;
use cubecl::server::Handle;

/// The tensors that a product is computed with. Operands and the result lie in memory by rows; `a` is `[m, k]`, `b` is
/// `[n, k]`.
#[derive(Clone)]
pub struct Call {
    /// CubeCL's stream and memory.
    pub client: ComputeClient<CudaRuntime>,
    /// Values of both operands in 8 bits.
    pub values: [Handle; 2],
    /// The scales that they were multiplied with, in f32.
    pub scales: [Handle; 2],
    /// In the type of the result, if the product has one.
    pub bias: Option<Handle>,
}

/// Runs a small product of a kind, waits for it, and compares it with the reference: sizes that end inside of tiles,
/// and more than one tile along each dim.
pub(super) fn try_out(
    engine: &dyn Engine<Call, Handle>,
    device: &Device,
    product: &Product,
    call: &Call,
) -> Result<(), EngineError> {
    let failed = |reason: String| EngineError::Failed {
        engine: engine.name(),
        reason,
    };
    let small = Product {
        m: 272,
        n: 144,
        k: 272,
        ..*product
    };
    engine
        .supports(device, &small)
        .map_err(|reason| failed(reason.into()))?;
    let operands = Operands::pseudo_random(small);
    let client = &call.client;
    // What has failed before is not this engine's.
    client
        .flush()
        .map_err(|error| failed(format!("before it, the device reported: {error:?}")))?;
    let floats = |values: &[f32]| client.create_from_slice(bytemuck::cast_slice(values));
    let bias = operands.bias_bytes();
    let own = Call {
        client: client.clone(),
        values: operands
            .values
            .each_ref()
            .map(|values| client.create_from_slice(values)),
        scales: operands.scales.each_ref().map(|scales| floats(scales)),
        bias: small.bias.then(|| client.create_from_slice(&bias)),
    };
    let out = engine.launch(device, &small, &own)?;
    let found = client
        .read_one(out)
        .map_err(|error| failed(format!("{error:?}")))?;
    operands.check(&found, Sums::TensorCores).map_err(failed)
}

/// Returns the buffer of a result.
pub(super) fn empty(call: &Call, product: &Product) -> Handle {
    call.client
        .empty(product.m * product.n * product.out.bytes())
}
