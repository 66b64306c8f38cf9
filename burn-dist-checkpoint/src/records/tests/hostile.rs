//! Records that lie, and what Burn would not read.

use super::{Open, read, sample};
use crate::records::{Parameter, RecordProblem, bpk_layout, mpk_layout, open_bpk, open_mpk};
use burn_dist_mesh::DType;
use proptest::prelude::*;

/// MessagePack by hand: a record with this item.
fn with_item(item: &[u8]) -> Vec<u8> {
    [b"\x82\xa8metadata\x80\xa4item".as_slice(), item].concat()
}

/// A tensor of bytes, as an item has it.
fn tensor(bytes: &[u8], shape: &[u8], dtype: &str) -> Vec<u8> {
    let mut out = b"\x83\xa5bytes\xc4".to_vec();
    out.push(bytes.len() as u8);
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\xa5shape");
    out.push(0x90 + shape.len() as u8);
    out.extend_from_slice(shape);
    out.extend_from_slice(b"\xa5dtype");
    out.push(0xa0 + dtype.len() as u8);
    out.extend_from_slice(dtype.as_bytes());
    out
}

fn parameter(tensor: &[u8]) -> Vec<u8> {
    [b"\x82\xa2id\xadck00000000000\xa5param".as_slice(), tensor].concat()
}

#[test]
fn what_is_no_record_of_a_module_is_refused() {
    let fine = parameter(&tensor(b"ab", &[2], "U8"));
    let problem = |bytes: &[u8]| read(open_mpk, bytes).unwrap_err();
    let with = |item: &[u8]| problem(&with_item(item));
    let named = |item: &[u8]| [b"\x81\xa1a".as_slice(), item].concat();
    assert_eq!(
        read(open_mpk, &with_item(&named(&fine))).unwrap()[0].0.key,
        "a"
    );
    // As an optimizer has it: tensors that are no parameters.
    let found = with(&named(&tensor(b"ab", &[2], "U8")));
    assert_eq!(found, RecordProblem::NoParameter { key: "a".into() });
    for (bytes, shape, dtype) in [
        (&b"ab"[..], &[3][..], "U8"),
        (b"ab", &[2], "F32"),
        (b"ab", &[2, 2], "U8"),
        (b"ab", &[], "U8"),
    ] {
        let found = with(&named(&parameter(&tensor(bytes, shape, dtype))));
        assert!(matches!(found, RecordProblem::Bytes { .. }), "{found}");
    }
    let found = with(&named(&parameter(&tensor(b"ab", &[2], "QFloat"))));
    assert!(matches!(found, RecordProblem::DType { .. }), "{found}");
    let twice = [b"\x82\xa1a".as_slice(), &fine, b"\xa1a", &fine].concat();
    assert_eq!(with(&twice), RecordProblem::Duplicate { key: "a".into() });
    let more = [with_item(&named(&fine)), vec![0]].concat();
    assert!(matches!(problem(&more), RecordProblem::Rest { .. }));
    assert!(matches!(
        problem(b"\x81\xa8metadata\x80"),
        RecordProblem::Kind {
            expected: "item",
            ..
        }
    ));
    assert!(matches!(problem(b"\x93abc"), RecordProblem::Kind { .. }));
    assert!(matches!(problem(b""), RecordProblem::Cut { .. }));
    assert!(matches!(with(&[0xc1]), RecordProblem::Kind { .. }));
    // More pairs, values and bytes than there are.
    for claim in [
        &b"\xdf\xff\xff\xff\xff"[..],
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x01",
    ] {
        assert!(
            matches!(with(claim), RecordProblem::Cut { .. }),
            "{claim:?}"
        );
    }
    for deep in [&b"\x91"[..], b"\x81\xa1a"] {
        let found = with(&deep.repeat(100_000));
        assert!(matches!(found, RecordProblem::Deep { .. }), "{found}");
        // Beside the item, too.
        let beside = [b"\x82\xa8metadata".as_slice(), &deep.repeat(100_000)].concat();
        assert!(matches!(problem(&beside), RecordProblem::Deep { .. }));
    }
    let long = [b"\x81\xda\x04\x00".as_slice(), &[b'a'; 1024], &fine].concat();
    assert!(matches!(with(&long), RecordProblem::Deep { .. }));
    for end in 0..sample("model.mpk").len() {
        assert!(
            read(open_mpk, &sample("model.mpk")[..end]).is_err(),
            "{end}"
        );
    }
}

/// A burnpack with this description, and so many bytes of data.
fn pack(description: &ciborium::Value, data: usize) -> Vec<u8> {
    let mut cbor = Vec::new();
    ciborium::into_writer(description, &mut cbor).unwrap();
    let length = u32::try_from(cbor.len()).unwrap();
    let mut out = [&b"NRUB\x01\x00"[..], &length.to_le_bytes(), &cbor].concat();
    out.resize(out.len().next_multiple_of(256) + data, 7);
    out
}

#[test]
fn burnpacks_that_lie_are_refused() {
    use ciborium::cbor;

    let with = |dtype: &str, shape: [u64; 1], offsets: [u64; 2]| {
        let tensors = cbor!({"tensors" => {"a" => {
            "dtype" => dtype, "shape" => shape, "data_offsets" => offsets
        }}});
        read(open_bpk, &pack(&tensors.unwrap(), 8))
    };
    assert_eq!(with("F32", [2], [0, 8]).unwrap()[0].1, [7; 8]);
    assert!(
        with("F32", [0], [u64::MAX, u64::MAX]).unwrap()[0]
            .1
            .is_empty()
    );
    for (shape, offsets) in [
        ([2], [0, 4]),
        ([2], [8, 0]),
        ([2], [1, 9]),
        ([2], [u64::MAX - 7, u64::MAX]),
        ([1 << 62], [0, 8]),
        ([3], [0, 12]),
    ] {
        let found = with("F32", shape, offsets).unwrap_err();
        assert!(
            matches!(found, RecordProblem::Bytes { .. }),
            "{shape:?} {offsets:?}: {found}"
        );
    }
    for dtype in ["QFloat", "", "Bool"] {
        let found = with(dtype, [8], [0, 8]).unwrap_err();
        assert!(matches!(found, RecordProblem::DType { .. }), "{found}");
    }
    let sample = sample("model.bpk");
    let changed = |at: usize, byte: u8| {
        let mut bytes = sample.clone();
        bytes[at] = byte;
        read(open_bpk, &bytes).unwrap_err()
    };
    assert!(matches!(changed(0, b'X'), RecordProblem::Kind { .. }));
    assert_eq!(
        changed(4, 2),
        RecordProblem::Version {
            found: 2,
            supported: 1
        }
    );
    assert!(matches!(
        changed(9, 0x7f),
        RecordProblem::Description { .. }
    ));
    assert!(matches!(changed(10, 0xff), RecordProblem::Cbor(_)));
    for end in 0..sample.len() {
        assert!(read(open_bpk, &sample[..end]).is_err(), "{end}");
    }
}

#[test]
fn what_burn_would_not_read_is_not_written() {
    let one = |key: &str, dtype, shape: &[usize]| Parameter {
        key: key.into(),
        dtype,
        shape: shape.to_vec(),
        id: None,
    };
    let large = one("a", DType::F32, &[1 << 30]);
    let error = mpk_layout(std::slice::from_ref(&large), || 1).unwrap_err();
    assert!(matches!(error, RecordProblem::TooLarge { .. }), "{error}");
    assert!(bpk_layout(&[large]).is_ok());
    let larger = one("a", DType::U8, &[(10 << 30) + 1]);
    assert!(matches!(
        bpk_layout(&[larger]).unwrap_err(),
        RecordProblem::TooLarge { .. }
    ));
    let all = vec![one("a", DType::U8, &[10 << 30]); 10];
    assert!(matches!(
        bpk_layout(&all).unwrap_err(),
        RecordProblem::TooLarge { .. } | RecordProblem::Duplicate { .. }
    ));
    let many = vec![one("a", DType::U8, &[1]); 100_001];
    assert!(matches!(
        bpk_layout(&many).unwrap_err(),
        RecordProblem::TooMany { .. }
    ));
    for keys in [
        ["a", "a"],
        ["a", "a.b"],
        ["a.b", "a"],
        ["a..b", "c"],
        ["", "c"],
        ["c", ".c"],
    ] {
        let both = keys.map(|key| one(key, DType::U8, &[1]));
        let error = mpk_layout(&both, || 1).unwrap_err();
        assert!(
            matches!(error, RecordProblem::Path { .. }),
            "{keys:?}: {error}"
        );
    }
    let deep = one(&["a"; 200].join("."), DType::U8, &[1]);
    assert!(matches!(
        mpk_layout(&[deep], || 1).unwrap_err(),
        RecordProblem::Path { .. }
    ));
}

proptest! {
    /// Whatever is changed: an error, or tensors that lie in the file.
    #[test]
    fn damaged_records_do_no_harm(
        is_pack in any::<bool>(),
        changes in proptest::collection::vec((0..2600usize, any::<u8>()), 1..5),
    ) {
        let (open, mut bytes): (Open, _) = match is_pack {
            true => (open_bpk, sample("model.bpk")),
            false => (open_mpk, sample("model.mpk")),
        };
        let length = bytes.len();
        for (at, byte) in changes {
            bytes[at % length] = byte;
        }
        // Takes the bytes of every tensor.
        if let Err(problem) = read(open, &bytes) {
            prop_assert!(!problem.to_string().is_empty());
        }
    }
}
