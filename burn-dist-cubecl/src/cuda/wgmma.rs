//! `wgmma` as an engine.

use cubecl::server::Handle;

use super::call::{Call, empty, try_out};
use super::task::Task;
use burn_dist_kernels::cuda::engine::{Device, Engine, EngineError};
use burn_dist_kernels::cuda::product::Product;
use burn_dist_kernels::cuda::wgmma::{Kernel, TensorMap};

/// The kernel in CUDA for Hopper.
pub(super) struct Wgmma;

impl Engine<Call, Handle> for Wgmma {
    fn name(&self) -> &'static str {
        "wgmma"
    }

    fn supports(&self, device: &Device, product: &Product) -> Result<(), &'static str> {
        match device.compute {
            (9, 0) => Kernel::of(product).map(drop),
            _ => Err("only on Hopper"),
        }
    }

    fn launch(
        &self,
        device: &Device,
        product: &Product,
        call: &Call,
    ) -> Result<Handle, EngineError> {
        let failed = |reason: &str| EngineError::Failed {
            engine: self.name(),
            reason: reason.into(),
        };
        let kernel = Kernel::of(product).map_err(failed)?;
        let out = empty(call, product);
        let [a, b] = &call.values;
        let [a_map, b_map] = TensorMap::of(product);
        let mut buffers = vec![&call.scales[0], &call.scales[1]];
        if product.bias {
            buffers.push(
                call.bias
                    .as_ref()
                    .ok_or_else(|| failed("there is no bias"))?,
            );
        }
        buffers.push(&out);
        let blocks = Kernel::blocks(product, device.multiprocessors);
        let maps = [(a, a_map), (b, b_map)];
        Task::Wgmma(kernel).launch(&call.client, blocks, &maps, &buffers, Kernel::info(product));
        Ok(out)
    }

    fn try_out(&self, device: &Device, product: &Product, call: &Call) -> Result<(), EngineError> {
        try_out(self, device, product, call)
    }
}
