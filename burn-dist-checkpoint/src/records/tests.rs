//! Records that Burn has written, and those that are to be as if it had.

mod hostile;

use super::{
    Layout, Parameter, Record, RecordProblem, bpk_layout, id, mpk_layout, open_bpk, open_mpk,
};
use crate::error::CheckpointError;
use crate::storage::Storage;
use crate::storage::memory::MemoryStorage;
use burn_dist_mesh::{BoolStore, DType};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// A file that Burn 0.21.0 has written; `tests/samples/burn-0.21/README.md` says how.
pub(crate) fn sample(name: &str) -> Vec<u8> {
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples/burn-0.21");
    std::fs::read(samples.join(name)).unwrap()
}

/// The floats of the samples, in the order in which they were made: key, shape, which of them.
pub(crate) const FLOATS: [(&str, &[usize], Range<u16>); 6] = [
    ("embedding", &[4, 2], 1..9),
    ("layers.0.linear.weight", &[2, 3], 9..15),
    ("layers.0.linear.bias", &[3], 15..18),
    ("layers.0.norm.gamma", &[3], 18..21),
    ("layers.1.linear.weight", &[2, 3], 21..27),
    ("scale", &[3], 27..30),
];

/// The content of the samples, in that order.
pub(crate) fn parameters(float: DType, int: DType) -> Vec<(Parameter, Vec<u8>)> {
    let value = |n: u16| f32::from(n) * 0.25 - 3.0;
    let floats = FLOATS.iter().map(|(key, shape, range)| {
        let bytes = range.clone().flat_map(|n| match float {
            DType::F16 => half::f16::from_f32(value(n)).to_le_bytes().to_vec(),
            DType::BF16 => half::bf16::from_f32(value(n)).to_le_bytes().to_vec(),
            _ => value(n).to_le_bytes().to_vec(),
        });
        (*key, float, shape.to_vec(), bytes.collect())
    });
    let steps: Vec<u8> = [7i64, -8]
        .iter()
        .flat_map(|step| step.to_le_bytes()[..int.size()].to_vec())
        .collect();
    let native = DType::Bool(BoolStore::Native);
    let others = [
        ("steps", int, vec![2], steps),
        ("mask", native, vec![3], vec![1, 0, 1]),
    ];
    let all = floats.chain(others).zip(101..);
    let parameter = |((key, dtype, shape, bytes), id): ((&str, _, _, _), u64)| {
        let key = key.to_owned();
        let id = Some(id);
        (
            Parameter {
                key,
                dtype,
                shape,
                id,
            },
            bytes,
        )
    };
    all.map(parameter).collect()
}

fn file(bytes: &[u8]) -> MemoryStorage {
    let storage = MemoryStorage::new();
    storage
        .create(Path::new("file"))
        .unwrap()
        .append(bytes)
        .unwrap();
    storage
}

type Open = fn(&dyn Storage, &Path) -> Result<Record, CheckpointError>;

fn read(open: Open, bytes: &[u8]) -> Result<Vec<(Parameter, Vec<u8>)>, RecordProblem> {
    let record = open(&file(bytes), Path::new("file")).map_err(|error| match error {
        CheckpointError::Record { problem, .. } => problem,
        error => panic!("{error}"),
    })?;
    let tensor = |(key, stored): (&String, &crate::stored::Stored)| {
        let parameter = Parameter {
            key: key.clone(),
            dtype: stored.dtype.unwrap(),
            shape: stored.shape.clone(),
            id: record.ids.get(key).copied(),
        };
        let start = usize::try_from(stored.offset).unwrap();
        let length = usize::try_from(parameter.num_bytes()).unwrap();
        let data = match length {
            0 => Vec::new(),
            length => bytes[start..start + length].to_vec(),
        };
        (parameter, data)
    };
    Ok(record.tensors.tensors.iter().map(tensor).collect())
}

/// The file of a layout.
fn assemble(layout: &Layout, parameters: &[(Parameter, Vec<u8>)]) -> Vec<u8> {
    let part = |(before, index): &(Vec<u8>, usize)| [&before[..], &parameters[*index].1].concat();
    let parts: Vec<Vec<u8>> = layout.parts.iter().map(part).collect();
    [parts.concat(), layout.end.clone()].concat()
}

fn sorted(mut parameters: Vec<(Parameter, Vec<u8>)>) -> Vec<(Parameter, Vec<u8>)> {
    parameters.sort_by(|(a, _), (b, _)| a.key.cmp(&b.key));
    parameters
}

fn described(parameters: &[(Parameter, Vec<u8>)]) -> Vec<Parameter> {
    parameters
        .iter()
        .map(|(parameter, _)| parameter.clone())
        .collect()
}

#[test]
fn what_burn_has_written_is_read() {
    let full = sorted(parameters(DType::F32, DType::I32));
    assert_eq!(read(open_mpk, &sample("model.mpk")), Ok(full));
    let half = sorted(parameters(DType::F16, DType::I16));
    assert_eq!(read(open_mpk, &sample("half.mpk")), Ok(half));
    let packed = sorted(parameters(DType::F32, DType::I64));
    assert_eq!(read(open_bpk, &sample("model.bpk")), Ok(packed));
}

#[test]
fn what_is_written_is_as_burn_writes_it() {
    let packed = parameters(DType::F32, DType::I64);
    let layout = bpk_layout(&described(&packed)).unwrap();
    assert_eq!(assemble(&layout, &packed), sample("model.bpk"));

    // Fields of modules come in another order here, and those without parameters are left out.
    let full = parameters(DType::F32, DType::I32);
    let layout = mpk_layout(&described(&full), || panic!("they have ids")).unwrap();
    let (written, sample) = (assemble(&layout, &full), sample("model.mpk"));
    let has = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    let start = sample
        .windows(6)
        .position(|window| window == b"\xa4item\x87")
        .unwrap();
    assert_eq!(written[..start + 5], sample[..start + 5], "metadata");
    assert!(written.ends_with(b"\xa2_b\x90") && sample.ends_with(b"\xa2_b\x90"));
    for name in ["embedding", "bias", "gamma", "scale", "steps", "mask"] {
        // From the name to the next one that is not of the parameter.
        let from = written
            .windows(name.len())
            .position(|window| window == name.as_bytes())
            .unwrap();
        let rest = &written[from..];
        let to = rest
            .windows(5)
            .position(|window| window == b"dtype")
            .unwrap();
        assert!(has(&sample, &rest[..to + 9]), "{name}");
    }
    assert!(has(&written, b"\xa6layers\x92"), "a list");
    assert!(has(&written, b"\x81\xa4Bool\xa6Native"));
}

#[test]
fn ids_are_those_of_burn() {
    assert_eq!(id::encode(101), "ck00000000000");
    assert_eq!(id::encode(108), "dg00000000000");
    for number in [0, 1, 255, 256, u64::MAX, 0x0123_4567_89ab_cdef] {
        assert_eq!(id::decode(&id::encode(number)), Some(number));
    }
    for text in [
        "",
        "ck0000000000",
        "ck000000000000",
        "CK00000000000",
        "ck0000000000z",
        "vvvvvvvvvvvvv",
    ] {
        assert_eq!(id::decode(text), None, "{text}");
    }
}

fn dtypes() -> impl Strategy<Value = DType> {
    prop_oneof![
        Just(DType::F64),
        Just(DType::F32),
        Just(DType::BF16),
        Just(DType::I16),
        Just(DType::U8),
        Just(DType::Flex32),
        Just(DType::Bool(BoolStore::U32)),
        Just(DType::Bool(BoolStore::U8)),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(
        tensors in proptest::collection::btree_map("[a-c](\\.([a-z]{1,2}|[0-9]|[0-9]{2})){1,3}", (
            dtypes(),
            proptest::collection::vec(prop_oneof![4 => 0..4usize, 1 => Just(200)], 0..3),
            any::<Option<u64>>(),
        ), 0..12),
    ) {
        let parameters: BTreeMap<_, _> = tensors.into_iter().collect();
        let parameters = parameters.into_iter().map(|(key, (dtype, shape, id))| {
            let parameter = Parameter { key, dtype, shape, id };
            let bytes = (0..parameter.num_bytes()).map(|byte| byte as u8).collect();
            (parameter, bytes)
        });
        let mut parameters: Vec<(Parameter, Vec<u8>)> = parameters.collect();
        let layout = bpk_layout(&described(&parameters)).unwrap();
        prop_assert_eq!(&read(open_bpk, &assemble(&layout, &parameters)).unwrap(), &parameters);
        let Ok(layout) = mpk_layout(&described(&parameters), || 77) else {
            // One below the other.
            return Ok(());
        };
        let bytes = assemble(&layout, &parameters);
        for (parameter, _) in &mut parameters {
            parameter.id.get_or_insert(77);
        }
        prop_assert_eq!(&read(open_mpk, &bytes).unwrap(), &parameters);
    }
}
