//! The kernel in CubeCL's language as an engine.

use cubecl::server::Handle;

use super::call::{Call, try_out};
use crate::element::Element;
use crate::float8::{Form, Operand, Tiles};
use crate::launch::Elements;
use burn_dist_kernels::cuda::engine::{Device, Engine, EngineError};
use burn_dist_kernels::cuda::product::{BLOCK, Out, Product, Scales};

/// The name of the engine that every device has.
pub(super) const CUBECL: &str = "cubecl";

/// The kernel that every device runs.
pub(super) struct Dsl;

impl Engine<Call, Handle> for Dsl {
    fn name(&self) -> &'static str {
        CUBECL
    }

    fn supports(&self, _: &Device, product: &Product) -> Result<(), &'static str> {
        let is_of_column =
            |scales: &Scales| matches!(scales, Scales::TileOfColumn | Scales::BlockOfColumn);
        match product.scales.iter().any(is_of_column) {
            true => Err("scales of columns have to lie by rows"),
            false => Ok(()),
        }
    }

    fn launch(&self, _: &Device, product: &Product, call: &Call) -> Result<Handle, EngineError> {
        let operand = |side: usize, rows: usize| Operand {
            values: &call.values[side],
            scales: &call.scales[side],
            tiles: tiles(product.scales[side], rows, product.k),
            format: product.formats[side],
            is_last_inner: true,
        };
        let out = match product.out {
            Out::F32 => Element::F32,
            Out::F16 => Element::F16,
            Out::BF16 => Element::Bf16,
        };
        let bias = call.bias.clone().filter(|_| product.bias);
        let bias = bias.map(|handle| Elements {
            handle,
            element: out,
        });
        let operands = [operand(0, product.m), operand(1, product.n)];
        Ok(crate::float8::product(
            &call.client,
            operands,
            bias.as_ref(),
            Form::Bytes,
            out,
        ))
    }

    fn try_out(&self, device: &Device, product: &Product, call: &Call) -> Result<(), EngineError> {
        try_out(self, device, product, call)
    }
}

fn tiles(scales: Scales, rows: usize, depth: usize) -> Tiles {
    let (tile_height, tile_width) = match scales {
        Scales::Tensor => (Tiles::ALL, Tiles::ALL),
        Scales::Row => (1, Tiles::ALL),
        Scales::Tile | Scales::TileOfColumn => (1, BLOCK),
        Scales::Block | Scales::BlockOfColumn => (BLOCK, BLOCK),
    };
    Tiles {
        count: 1,
        height: rows,
        width: depth,
        tile_height,
        tile_width,
    }
}
