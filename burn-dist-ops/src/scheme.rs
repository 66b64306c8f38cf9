//! Quantization schemes, written down in a few bytes.

use burn_backend::quantization::{QuantMode, QuantScheme, QuantStore, QuantValue, ScaleDtype};

const VALUES: [QuantValue; 9] = [
    QuantValue::Q8F,
    QuantValue::E5M2,
    QuantValue::E4M3,
    QuantValue::Q4F,
    QuantValue::E2M1,
    QuantValue::Q2F,
    QuantValue::Q8S,
    QuantValue::Q4S,
    QuantValue::Q2S,
];

const SCALES: [ScaleDtype; 5] = [
    ScaleDtype::F32,
    ScaleDtype::F16,
    ScaleDtype::BF16,
    ScaleDtype::UE8M0,
    ScaleDtype::UE4M3,
];

/// Writes a scheme down: value, type of the scale of the tensor (0: there is none), store and its dim, the block sizes
/// after their number (0: no blocks), the type of the blocks' scales, and the mode.
pub(super) fn encode(scheme: QuantScheme) -> [u8; 15] {
    let mut code = [0; 15];
    let number = |position: Option<usize>| position.expect("the table is complete") as u8;
    let scale = |dtype| number(SCALES.iter().position(|scale| *scale == dtype));
    code[0] = number(VALUES.iter().position(|value| *value == scheme.value));
    // A scheme that says no scale is another one than that which says the scale that this means.
    code[1] = match scheme.tensor_scale() {
        Some(dtype) if scheme == scheme.per_tensor(dtype) => 1 + scale(dtype),
        _ => 0,
    };
    (code[2], code[3]) = match scheme.store {
        QuantStore::Native => (0, 0),
        QuantStore::PackedNative(dim) => (1, dim as u8),
        QuantStore::PackedU32(dim) => (2, dim as u8),
    };
    if let Some(block) = scheme.block_scale() {
        let sizes = block.size.as_slice();
        code[4] = 1 + sizes.len() as u8;
        code[5..5 + sizes.len()].copy_from_slice(sizes);
        code[10] = scale(block.dtype);
    }
    code[11] = match scheme.mode {
        QuantMode::Symmetric => 0,
        QuantMode::Lookup => 1,
    };
    code
}

/// Reads what [`encode`] has written.
pub(super) fn decode(code: [u8; 15]) -> QuantScheme {
    let scheme = QuantScheme::default()
        .with_mode(match code[11] {
            0 => QuantMode::Symmetric,
            _ => QuantMode::Lookup,
        })
        .with_value(VALUES[usize::from(code[0])])
        .with_store(match code[2] {
            0 => QuantStore::Native,
            1 => QuantStore::PackedNative(code[3].into()),
            _ => QuantStore::PackedU32(code[3].into()),
        });
    let scheme = match usize::from(code[1]) {
        0 => scheme,
        scale => scheme.per_tensor(SCALES[scale - 1]),
    };
    match usize::from(code[4]) {
        0 => scheme,
        sizes => scheme.per_block(&code[5..4 + sizes], SCALES[usize::from(code[10])]),
    }
}

/// Returns the scheme of tensors that rest in 8 bits on a mesh: blocks of 32 signed elements along the last dim, each
/// beside its scale, a power of two.
pub(crate) fn packed() -> Option<QuantScheme> {
    let block = [burn_dist_kernels::int8::BLOCK as u8];
    let scheme = QuantScheme::default()
        .with_value(QuantValue::Q8S)
        .with_store(QuantStore::PackedNative(0));
    Some(scheme.per_block(block, ScaleDtype::UE8M0))
}

/// Returns schemes of every kind.
#[cfg(test)]
pub(super) fn all() -> Vec<QuantScheme> {
    let mut all = Vec::new();
    let stores = [
        QuantStore::Native,
        QuantStore::PackedNative(1),
        QuantStore::PackedU32(3),
    ];
    let blocks: [&[u8]; 3] = [&[1], &[32], &[2, 255, 1, 7, 9]];
    for value in VALUES {
        for store in stores {
            let scheme = QuantScheme::default();
            let scheme = scheme.with_value(value).with_store(store);
            all.push(scheme);
            all.push(scheme.with_mode(QuantMode::Lookup));
            for scale in SCALES {
                all.push(scheme.per_tensor(scale));
                for block in blocks {
                    all.push(scheme.per_block(block, scale));
                    all.push(scheme.per_tensor(ScaleDtype::F32).per_block(block, scale));
                }
            }
        }
    }
    all
}
