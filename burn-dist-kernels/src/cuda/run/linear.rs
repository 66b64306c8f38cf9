//! Casts and products of tensors as linear layers have them.

use std::sync::Once;

use cubecl::cuda::CudaRuntime;
use cubecl::prelude::*;
use cubecl::server::Handle;

use burn_dist_plan::policy::Fp8;

use super::super::engine::{Device, EngineError};
use super::super::product::{BLOCK, Out, Product, Scales};
use super::super::quantize::{Kernel, Shared};
use super::{Call, engines, transposed};
use crate::element::Element;
use crate::float8::{self, Form, Operand, Tiles};
use crate::launch::Elements;

/// Enqueues a product by the engine that is chosen for it, and returns the engine's name as well. Operands whose
/// columns are added up are turned round first, but for CubeCL's kernel, which takes them as they lie.
///
/// # Panics
/// If the operands do not fit each other.
pub fn product(
    client: &ComputeClient<CudaRuntime>,
    device: &Device,
    operands: [Operand<'_>; 2],
    bias: Option<&Elements>,
    out: Element,
) -> (Handle, &'static str) {
    let by_engine = describe(&operands, bias.map(|bias| bias.element), out)
        .filter(|product| {
            engines()
                .choose(device, product)
                .is_ok_and(|name| name != CUBECL)
        })
        .and_then(|product| run(client, device, &operands, bias, &product).ok());
    by_engine.unwrap_or_else(|| {
        static WARNED: Once = Once::new();
        WARNED.call_once(|| {
            tracing::warn!(
                "a product in float8 runs by the kernel that every device has, which is fast on none: no other \
                 engine supports it, or those that do have failed"
            );
        });
        let made = float8::product(client, operands, bias, Form::Bytes, out);
        (made, CUBECL)
    })
}

/// Enqueues the cast of a tensor to 8 bits: by the device's own instruction where it has one and sizes are multiples of
/// 16, else by CubeCL's kernel, which gives the same bits.
pub fn quantize(
    client: &ComputeClient<CudaRuntime>,
    device: &Device,
    values: &Elements,
    scales: &Handle,
    tiles: Tiles,
    format: Fp8,
) -> Handle {
    // From 8.9 on there is an instruction.
    let shared = (device.compute >= (8, 9)).then(|| shared(tiles)).flatten();
    let by_instruction = shared.and_then(|shared| {
        let kernel = Kernel {
            from: out_of(values.element),
            format,
            shared,
            as_is: true,
            transposed: false,
        };
        let sizes = [tiles.count * tiles.height, tiles.width];
        let [as_is, _] = super::quantized(client, kernel, &values.handle, scales, sizes).ok()?;
        as_is
    });
    by_instruction
        .unwrap_or_else(|| float8::quantize(client, values, scales, tiles, format, Form::Bytes))
}

/// Returns what shares a scale in a tensor as it lies.
fn shared(tiles: Tiles) -> Option<Shared> {
    let rows = scales(tiles, true).map(Shared::Rows);
    rows.or_else(|| scales(tiles, false).map(Shared::Columns))
}

fn out_of(element: Element) -> Out {
    match element {
        Element::F32 => Out::F32,
        Element::F16 => Out::F16,
        Element::Bf16 => Out::BF16,
    }
}

/// The name of the engine that every device has.
pub(super) const CUBECL: &str = "cubecl";

/// Runs a product by an engine; one that fails has said so, and the next one was asked.
fn run(
    client: &ComputeClient<CudaRuntime>,
    device: &Device,
    operands: &[Operand<'_>; 2],
    bias: Option<&Elements>,
    product: &Product,
) -> Result<(Handle, &'static str), EngineError> {
    let values = |operand: &Operand<'_>| {
        let Tiles {
            count,
            height,
            width,
            ..
        } = operand.tiles;
        match operand.is_last_inner {
            true => Ok(operand.values.clone()),
            false => transposed(client, operand.values, [count * height, width]),
        }
    };
    let [a, b] = operands;
    let call = Call {
        client: client.clone(),
        values: [values(a)?, values(b)?],
        scales: [a.scales.clone(), b.scales.clone()],
        bias: bias.map(|bias| bias.handle.clone()),
    };
    engines().run(device, product, &call)
}

/// Returns what a product is to engines; `None` if only CubeCL's kernel computes it.
fn describe(operands: &[Operand<'_>; 2], bias: Option<Element>, out: Element) -> Option<Product> {
    let [(m, k), (n, other)] = operands.each_ref().map(|operand| {
        let Tiles {
            count,
            height,
            width,
            ..
        } = operand.tiles;
        match operand.is_last_inner {
            true => (count * height, width),
            false => (width, count * height),
        }
    });
    let [a, b] = operands
        .each_ref()
        .map(|operand| scales(operand.tiles, operand.is_last_inner));
    let fits =
        k == other && [n, k].iter().all(|size| size.is_multiple_of(16)) && m.is_multiple_of(16);
    let is_of_type = bias.is_none_or(|bias| bias == out);
    (fits && is_of_type).then_some(())?;
    Some(Product {
        m,
        n,
        k,
        formats: operands.each_ref().map(|operand| operand.format),
        scales: [a?, b?],
        out: out_of(out),
        bias: bias.is_some(),
    })
}

/// Returns what shares a scale in an operand once what is added up is last. Matrices below each other are one if no
/// rectangle would cross from one to the next.
fn scales(tiles: Tiles, is_last_inner: bool) -> Option<Scales> {
    let Tiles {
        count,
        height,
        width,
        tile_height,
        tile_width,
    } = tiles;
    let is_all = |tile: usize, size: usize| tile >= size;
    let is_whole = count == 1 || (tile_height != 0 && height.is_multiple_of(tile_height));
    let (rows, columns) = (
        is_all(tile_height, height) && count == 1,
        is_all(tile_width, width),
    );
    let found = match (rows, columns) {
        (true, true) => Scales::Tensor,
        _ if !is_whole => return None,
        (_, true) if is_last_inner && tile_height == 1 => Scales::Row,
        (true, _) if !is_last_inner && tile_width == 1 => Scales::Row,
        _ => match (tile_height, tile_width, is_last_inner) {
            (1, BLOCK, true) => Scales::Tile,
            (BLOCK, 1, false) => Scales::TileOfColumn,
            (BLOCK, BLOCK, true) => Scales::Block,
            (BLOCK, BLOCK, false) => Scales::BlockOfColumn,
            _ => return None,
        },
    };
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_shares_a_scale_once_operands_are_turned() {
        let of = |count,
                  [height, width]: [usize; 2],
                  [tile_height, tile_width]: [usize; 2],
                  is_last_inner| {
            scales(
                Tiles {
                    count,
                    height,
                    width,
                    tile_height,
                    tile_width,
                },
                is_last_inner,
            )
        };
        const ALL: usize = Tiles::ALL;
        for (count, shape, tile, is_last_inner, expected) in [
            (1, [256, 512], [ALL, ALL], true, Some(Scales::Tensor)),
            (1, [256, 512], [ALL, ALL], false, Some(Scales::Tensor)),
            (1, [256, 512], [1, ALL], true, Some(Scales::Row)),
            (1, [256, 512], [ALL, 1], false, Some(Scales::Row)),
            // Scales that change along what is added up, of no block.
            (1, [256, 512], [1, ALL], false, None),
            (1, [256, 512], [ALL, 1], true, None),
            (1, [256, 512], [1, 128], true, Some(Scales::Tile)),
            (1, [256, 512], [128, 1], false, Some(Scales::TileOfColumn)),
            (1, [256, 512], [128, 128], true, Some(Scales::Block)),
            (
                1,
                [256, 512],
                [128, 128],
                false,
                Some(Scales::BlockOfColumn),
            ),
            (1, [256, 512], [64, 64], true, None),
            // Two matrices below each other.
            (2, [256, 512], [128, 1], false, Some(Scales::TileOfColumn)),
            (2, [192, 512], [128, 1], false, None),
            (2, [256, 512], [ALL, ALL], true, None),
            (2, [192, 512], [1, 128], true, Some(Scales::Tile)),
        ] {
            assert_eq!(
                of(count, shape, tile, is_last_inner),
                expected,
                "{count} {shape:?} {tile:?} {is_last_inner}"
            );
        }
    }
}
