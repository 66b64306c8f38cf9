//! Casts and products of tensors as linear layers have them.

use std::sync::Once;

use cubecl::cuda::CudaRuntime;
use cubecl::prelude::*;
use cubecl::server::Handle;

use burn_dist_plan::policy::Fp8;

use super::call::Call;
use super::dsl::CUBECL;
use super::{engines, transposed};
use crate::element::Element;
use crate::float8::{self, Form, Operand, Tiles};
use crate::launch::Elements;
use burn_dist_kernels::cuda::engine::{Device, EngineError};
use burn_dist_kernels::cuda::product::{BLOCK, Out, Product, Scales};
use burn_dist_kernels::cuda::quantize::{Kernel, Shared};

/// Enqueues a product by the engine that is chosen for it, and returns the engine's name as well. Tiles and dims of
/// operands are those of the tensors; values of those that `are_turned` lie by columns. Engines take operands along
/// whose rows they add up, so others are turned round first; CubeCL's kernel takes them by rows.
///
/// # Panics
/// If the operands do not fit each other, or one that is turned has a size that is not a multiple of 16.
pub fn product(
    client: &ComputeClient<CudaRuntime>,
    device: &Device,
    operands: [Operand<'_>; 2],
    are_turned: [bool; 2],
    bias: Option<&Elements>,
    out: Element,
) -> (Handle, &'static str) {
    let by_engine = describe(&operands, bias.map(|bias| bias.element), out)
        .filter(|product| {
            engines()
                .choose(device, product)
                .is_ok_and(|name| name != CUBECL)
        })
        .and_then(|product| run(client, device, &operands, are_turned, bias, &product).ok());
    by_engine.unwrap_or_else(|| {
        static WARNED: Once = Once::new();
        WARNED.call_once(|| {
            tracing::warn!(
                "a product in float8 runs by the kernel that every device has, which is fast on none: no other \
                 engine supports it, or those that do have failed"
            );
        });
        let by_rows = [0, 1].map(|side| match are_turned[side] {
            true => {
                let [rows, columns] = sizes(&operands[side]);
                transposed(client, operands[side].values, [columns, rows])
                    .expect("a turned tensor has sizes that are multiples of 16")
            }
            false => operands[side].values.clone(),
        });
        let operands = [0, 1].map(|side| Operand {
            values: &by_rows[side],
            ..operands[side]
        });
        let made = float8::product(client, operands, bias, Form::Bytes, out);
        (made, CUBECL)
    })
}

/// Returns whether a device has an instruction that casts to 8 bits, and tensor cores that multiply them.
pub fn casts_by_instruction(device: &Device) -> bool {
    device.compute >= (8, 9)
}

/// Enqueues the cast of a tensor to 8 bits by the device's own instruction, in one pass: for each of `are_turned`, by
/// columns or by rows. `None` where the device has none, or sizes are not multiples of 16; CubeCL's kernel gives the
/// same bits by rows.
pub fn quantize(
    client: &ComputeClient<CudaRuntime>,
    device: &Device,
    values: &Elements,
    scales: &Handle,
    tiles: Tiles,
    format: Fp8,
    are_turned: &[bool],
) -> Option<Vec<Handle>> {
    let shared = shared(tiles).filter(|_| casts_by_instruction(device))?;
    let kernel = Kernel {
        from: out_of(values.element),
        format,
        shared,
        as_is: are_turned.contains(&false),
        transposed: are_turned.contains(&true),
    };
    let sizes = [tiles.count * tiles.height, tiles.width];
    let [as_is, turned] = super::quantized(client, kernel, &values.handle, scales, sizes).ok()?;
    let made = are_turned.iter().map(|is_turned| match is_turned {
        true => turned.clone(),
        false => as_is.clone(),
    });
    made.collect()
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

/// Runs a product by an engine; one that fails has warned, and the next one was asked.
fn run(
    client: &ComputeClient<CudaRuntime>,
    device: &Device,
    operands: &[Operand<'_>; 2],
    are_turned: [bool; 2],
    bias: Option<&Elements>,
    product: &Product,
) -> Result<(Handle, &'static str), EngineError> {
    let values = |operand: &Operand<'_>, is_turned: bool| {
        let [rows, columns] = sizes(operand);
        match (operand.is_last_inner, is_turned) {
            (true, false) | (false, true) => Ok(operand.values.clone()),
            (false, false) => transposed(client, operand.values, [rows, columns]),
            (true, true) => transposed(client, operand.values, [columns, rows]),
        }
    };
    let [a, b] = operands;
    let call = Call {
        client: client.clone(),
        values: [values(a, are_turned[0])?, values(b, are_turned[1])?],
        scales: [a.scales.clone(), b.scales.clone()],
        bias: bias.map(|bias| bias.handle.clone()),
    };
    engines().run(device, product, &call)
}

/// Returns the rows and columns of an operand's tensor.
fn sizes(operand: &Operand<'_>) -> [usize; 2] {
    let Tiles {
        count,
        height,
        width,
        ..
    } = operand.tiles;
    [count * height, width]
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
    // Rows of the result may be any number, such as the tokens of a prompt, unless they have to be turned round.
    let is_any = operands[0].is_last_inner || m.is_multiple_of(16);
    let fits = k == other && [n, k].iter().all(|size| size.is_multiple_of(16)) && is_any;
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
