//! Quantization schemes of Burn 0.21, written down in a few bytes.

use burn_backend::quantization::{
    BlockSize, QuantLevel, QuantMode, QuantParam, QuantScheme, QuantStore, QuantValue,
};

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

const PARAMS: [QuantParam; 5] = [
    QuantParam::F32,
    QuantParam::F16,
    QuantParam::BF16,
    QuantParam::UE8M0,
    QuantParam::UE4M3,
];

/// Writes a scheme down: value, parameters, store and its dim, then the block sizes after their number (0: one block).
pub(super) fn encode(scheme: QuantScheme) -> [u8; 15] {
    let QuantMode::Symmetric = scheme.mode;
    let mut code = [0; 15];
    let number = |position: Option<usize>| position.expect("the table is complete") as u8;
    code[0] = number(VALUES.iter().position(|value| *value == scheme.value));
    code[1] = number(PARAMS.iter().position(|param| *param == scheme.param));
    (code[2], code[3]) = match scheme.store {
        QuantStore::Native => (0, 0),
        QuantStore::PackedNative(dim) => (1, dim as u8),
        QuantStore::PackedU32(dim) => (2, dim as u8),
    };
    if let QuantLevel::Block(sizes) = scheme.level {
        let sizes = sizes.as_slice();
        code[4] = 1 + sizes.len() as u8;
        code[5..5 + sizes.len()].copy_from_slice(sizes);
    }
    code
}

pub(super) fn decode(code: [u8; 15]) -> QuantScheme {
    QuantScheme {
        value: VALUES[usize::from(code[0])],
        param: PARAMS[usize::from(code[1])],
        store: match code[2] {
            0 => QuantStore::Native,
            1 => QuantStore::PackedNative(code[3].into()),
            _ => QuantStore::PackedU32(code[3].into()),
        },
        level: match usize::from(code[4]) {
            0 => QuantLevel::Tensor,
            sizes => QuantLevel::Block(BlockSize::new(&code[5..4 + sizes])),
        },
        mode: QuantMode::Symmetric,
    }
}

/// Returns the scheme of tensors that rest in 8 bits on a mesh: this line has none.
pub(crate) fn packed() -> Option<QuantScheme> {
    None
}

/// Returns schemes of every kind.
#[cfg(test)]
pub(super) fn all() -> Vec<QuantScheme> {
    let mut all = Vec::new();
    let levels = [
        QuantLevel::Tensor,
        QuantLevel::block([]),
        QuantLevel::block([32]),
        QuantLevel::block([2, 255, 1, 7, 9]),
    ];
    let stores = [
        QuantStore::Native,
        QuantStore::PackedNative(1),
        QuantStore::PackedU32(3),
    ];
    for value in VALUES {
        for param in PARAMS {
            for store in stores {
                for level in levels {
                    let scheme = QuantScheme::default();
                    let scheme = scheme.with_value(value).with_param(param);
                    all.push(scheme.with_store(store).with_level(level));
                }
            }
        }
    }
    all
}
