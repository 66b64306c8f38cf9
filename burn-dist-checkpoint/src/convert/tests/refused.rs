//! Sources that cannot be converted, and conversions that are interrupted.

use super::{KINDS, content, convert, expected, samples, with_floats, write};
use crate::convert::source::Source;
use crate::convert::{Conversion, ConvertError, Kind};
use crate::error::CheckpointError;
use crate::hf::Names;
use crate::storage::Storage;
use crate::storage::memory::Survives;
use burn_dist_mesh::DType;
use std::path::Path;
use std::sync::Arc;

#[test]
fn errors_name_what_cannot_be_converted() {
    let storage = samples();
    write(&storage, "bad/text", b"hello, here is a text");
    write(&storage, "bad/empty", b"");
    write(&storage, "bad/a.mpk.gz", &[0x1f, 0x8b, 8, 0]);
    write(&storage, "bad/x.safetensors", b"\x08\0\0\0\0\0\0\0{}      ");
    let said = |from: &str| {
        let error = convert(&storage, (from, "to"), Kind::Hf, |_| {}).unwrap_err();
        assert!(matches!(error, ConvertError::Unknown { .. }), "{error}");
        error.to_string()
    };
    assert!(
        said("bad/text").starts_with("bad/text is a file of another kind: a checkpoint (a dir")
    );
    assert!(said("bad/empty").contains("is an empty file"));
    assert!(said("bad/a.mpk.gz").contains("gunzip"));
    assert!(said("bad/x.safetensors").contains("give its folder"));
    assert!(said("bad").contains("is a directory without any of these"));
    let missing = convert(&storage, ("none", "to"), Kind::Hf, |_| {}).unwrap_err();
    assert!(matches!(
        missing,
        ConvertError::Checkpoint(CheckpointError::Io { .. })
    ));

    let target = |to: &str, kind: Option<Kind>| {
        let mut conversion = Conversion::new(Path::new("burn/model.mpk"), Path::new(to));
        (conversion.kind, conversion.storage) = (kind, Arc::new(storage.clone()));
        conversion.run()
    };
    assert!(matches!(
        target("to/x", None),
        Err(ConvertError::Target { .. })
    ));
    assert_eq!(target("bad/y.bpk", None).unwrap().to, Kind::Bpk);
    assert_eq!(target("bad/y.mpk", None).unwrap().to, Kind::Mpk);
    target("hf", Some(Kind::Hf)).unwrap();
    target("run", Some(Kind::Checkpoint)).unwrap();
    for (to, kind) in [
        ("bad/y.bpk", Kind::Bpk),
        ("bad/y.mpk", Kind::Mpk),
        ("hf", Kind::Hf),
        ("hf", Kind::Bpk),
        ("bad/text", Kind::Checkpoint),
        ("bad/text", Kind::Hf),
    ] {
        let error = target(to, Some(kind)).unwrap_err();
        assert!(
            matches!(error, ConvertError::Exists { .. }),
            "{to}: {error}"
        );
    }
    for dtype in [DType::I32, DType::Flex32, DType::U8] {
        let error = convert(&storage, ("hf", "x.mpk"), Kind::Mpk, |c| {
            c.dtype = Some(dtype)
        });
        assert!(
            matches!(error.unwrap_err(), ConvertError::Floats { .. }),
            "{dtype}"
        );
    }
    // The same step of a run.
    let again = target("run", Some(Kind::Checkpoint)).unwrap_err();
    assert!(
        matches!(
            again,
            ConvertError::Checkpoint(CheckpointError::Exists { .. })
        ),
        "{again}"
    );

    let names = Names::parse("embedding = \"e\"\nignored = [\"mask\"]", &[]).unwrap();
    let error = convert(&storage, ("burn/model.mpk", "x"), Kind::Hf, |c| {
        c.names = Some(&names)
    });
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("layers.0.linear.weight\n  ") && !error.contains("embedding"),
        "{error}"
    );
    let error = convert(&storage, ("hf", "x.mpk"), Kind::Mpk, |c| {
        c.names = Some(&names)
    });
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("\n  scale") && !error.contains("mask"),
        "{error}"
    );
    let turned = Names::parse("x = \"x, rotary(4)\"", &[]).unwrap();
    let error = convert(&with_floats(&[1.0]), ("from", "x.mpk"), Kind::Mpk, |c| {
        c.names = Some(&turned)
    });
    assert!(matches!(
        error.unwrap_err(),
        ConvertError::Checkpoint(CheckpointError::Form { .. })
    ));
}

#[test]
fn an_interrupted_conversion_leaves_all_or_nothing() {
    for kind in KINDS {
        let before = samples();
        for calls in 0.. {
            let storage = before.restart(Survives::Everything);
            storage.crash_at(calls);
            let result = convert(&storage, ("burn/model.mpk", "to/a"), kind, |_| {});
            for survives in [
                Survives::Nothing,
                Survives::Everything,
                Survives::Some(calls),
            ] {
                let after = storage.restart(survives);
                let shared: Arc<dyn Storage> = Arc::new(after.clone());
                let path = Path::new("to/a");
                if Source::open(&shared, path, None).is_ok() {
                    let found = content(&after, "to/a", kind, None);
                    assert_eq!(found, expected(DType::F32, DType::I32), "{kind} {calls}");
                } else {
                    assert!(result.is_err(), "{kind} {calls} {survives:?}");
                }
                // And the next one goes on from there.
                if result.is_err() && content_is_missing(&shared) {
                    convert(&after, ("burn/model.mpk", "to/a"), kind, |_| {}).unwrap();
                }
            }
            if result.is_ok() {
                assert!(calls > 5, "{kind}");
                break;
            }
        }
    }
}

fn content_is_missing(storage: &Arc<dyn Storage>) -> bool {
    Source::open(storage, Path::new("to/a"), None).is_err()
}
