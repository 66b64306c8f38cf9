//! Checksums, names, headers and manifests on their own.

use super::*;
use proptest::prelude::*;
use serde_json::{Map, Value};

fn empty() -> Manifest {
    Manifest {
        save_id: SaveId::new(1),
        block_bytes: 1 << 16,
        mesh: "fsdp=2".parse().unwrap(),
        metadata: Map::new(),
        files: Vec::new(),
        tensors: Vec::new(),
    }
}

proptest! {
    #[test]
    fn blocks_are_hashed_however_bytes_come(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
        block in 1usize..60,
    ) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        let mut hasher = BlockHasher::new(block);
        let mut start = 0;
        for end in cuts.into_iter().chain([bytes.len()]) {
            hasher.update(&bytes[start..end]);
            start = end;
        }
        let expected: Vec<Checksum> = bytes.chunks(block).map(checksum).collect();
        prop_assert_eq!(hasher.finish(), expected);
        // The next piece starts afresh.
        hasher.update(b"x");
        prop_assert_eq!(hasher.finish(), [checksum(b"x")]);
    }

    #[test]
    fn metadata_comes_back_bit_by_bit(float in any::<f64>(), text in any::<String>(), number in any::<i64>()) {
        let mut manifest = empty();
        manifest.metadata.insert("float".into(), float.into());
        manifest.metadata.insert(text.clone(), text.into());
        manifest.metadata.insert("number".into(), number.into());
        let read = Manifest::from_bytes(manifest.to_bytes().unwrap()).unwrap();
        let bits = |manifest: &Manifest| manifest.metadata.get("float").and_then(Value::as_f64).map(f64::to_bits);
        prop_assert_eq!(bits(&read), bits(&manifest));
        prop_assert_eq!(read, manifest);
    }
}

#[test]
fn checksums_are_xxh3() {
    // From the reference implementation of xxHash.
    assert_eq!(checksum(b"").to_string(), "2d06800538d394c2");
    assert_eq!(checksum(b"a").to_string(), "e6c632b61e964e1f");
}

#[test]
fn blocks_grow_with_the_checkpoint() {
    assert_eq!(block_bytes(0), 1 << 16);
    assert_eq!(block_bytes(1 << 30), 1 << 16);
    assert_eq!(block_bytes(20 << 30), 1 << 19);
    assert_eq!(block_bytes(u64::MAX), BLOCK_BYTES_MAX);
}

#[test]
fn headers_are_read_back_and_aligned() {
    let metadata = Header::metadata_of(SaveId::new(5), 1);
    let entries = [("a\"b", "F32", vec![2, 3], 24), ("c", "U8", vec![], 1)];
    let bytes = Header::to_bytes(&metadata, entries.into_iter()).unwrap();
    assert!(bytes.len().is_multiple_of(8));
    let prefix = bytes[..PREFIX_BYTES].try_into().unwrap();
    assert_eq!(
        Header::length(prefix, bytes.len() as u64).unwrap(),
        bytes.len()
    );
    assert!(Header::length(prefix, bytes.len() as u64 - 1).is_err());
    assert!(Header::length([255; 8], u64::MAX).is_err());
    let header = Header::parse(&bytes[PREFIX_BYTES..]).unwrap();
    assert_eq!(header.metadata, metadata);
    assert_eq!(header.tensor("a\"b").unwrap().data_offsets, [0, 24]);
    assert_eq!(header.tensor("c").unwrap().shape, [0; 0]);
    let nothing = Header::to_bytes(&Default::default(), std::iter::empty()).unwrap();
    assert_eq!(&nothing[PREFIX_BYTES..], b"{}      ");
}

#[test]
fn save_ids_are_their_text() {
    let id = SaveId::new(0xabc);
    assert_eq!(id.to_string().parse(), Ok(id));
    assert_ne!(SaveId::random().unwrap(), SaveId::random().unwrap());
    for text in [
        "",
        "+0000000000000000000000000000abc",
        "0000000000000000000000000000ABC0",
        "abc",
    ] {
        assert!(text.parse::<SaveId>().is_err(), "{text}");
    }
}

#[test]
fn a_large_grid_of_pieces_is_checked_fast() {
    // 300 x 300 pieces of one element: all pairs would be 4e9.
    let (side, mut manifest) = (300, empty());
    let file_bytes = (side * side) as u64;
    manifest.files = vec![FileEntry {
        name: file_name(0, 1),
        bytes: file_bytes,
        header_bytes: 0,
        header_checksum: Checksum(0),
    }];
    let piece = |i: usize| PieceEntry {
        file: 0,
        offset: i as u64,
        start: vec![i / side, i % side],
        extent: vec![1, 1],
        checksums: vec![Checksum(0)],
    };
    manifest.tensors = vec![TensorEntry {
        key: "grid".into(),
        dtype: "u8".into(),
        shape: vec![side, side],
        factors: None,
        layout: "[-, -]".into(),
        stage: None,
        pieces: (0..side * side).map(piece).collect(),
    }];
    manifest.check().unwrap();
    manifest.tensors[0].pieces[777].start = vec![5, 6];
    assert!(matches!(
        manifest.check(),
        Err(ManifestError::Overlap { .. })
    ));
}
