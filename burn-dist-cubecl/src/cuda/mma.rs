//! `mma` in CubeCL's language as an engine.

use cubecl::server::Handle;

use super::call::{Call, try_out};
use crate::float8::mma;
use burn_dist_kernels::cuda::engine::{Device, Engine, EngineError};
use burn_dist_kernels::cuda::product::Product;

/// The kernel for tensor cores that multiply float8, by an instruction of a plane.
pub(super) struct Mma;

impl Engine<Call, Handle> for Mma {
    fn name(&self) -> &'static str {
        "mma"
    }

    fn supports(&self, device: &Device, product: &Product) -> Result<(), &'static str> {
        mma::supports(device.compute, product)
    }

    fn launch(&self, _: &Device, product: &Product, call: &Call) -> Result<Handle, EngineError> {
        let bias = call.bias.as_ref().filter(|_| product.bias);
        if product.bias && bias.is_none() {
            return Err(EngineError::Failed {
                engine: self.name(),
                reason: "there is no bias".into(),
            });
        }
        Ok(mma::product(
            &call.client,
            product,
            call.values.each_ref(),
            call.scales.each_ref(),
            bias,
        ))
    }

    fn try_out(&self, device: &Device, product: &Product, call: &Call) -> Result<(), EngineError> {
        try_out(self, device, product, call)
    }
}
