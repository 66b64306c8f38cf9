//! Any region of a parameter of any form and type, against a model that turns whole parameters.

use super::{Parameter, assert_is, bytes_of, model, names_in, open, save};
use crate::error::CheckpointError;
use crate::hf::{Form, INDEX, Wanted};
use crate::storage::memory::MemoryStorage;
use crate::stored::COLUMNS;
use crate::{Match, Region, RegionError, Request};
use burn_dist_mesh::DType;
use proptest::prelude::*;
use std::collections::BTreeMap;

const DTYPES: [DType; 4] = [DType::U8, DType::BF16, DType::F32, DType::I64];

/// Shapes that a form fits, as factors of each dim.
fn shapes() -> impl Strategy<Value = (Form, Vec<Vec<usize>>)> {
    let factor = || prop_oneof![4 => 1..5usize, 1 => Just(9usize), 1 => Just(0usize)];
    let dim = move || proptest::collection::vec(factor(), 1..3);
    let rotary = (1..4usize, prop_oneof![Just(1usize), 2..5usize], 0..6usize);
    prop_oneof![
        proptest::collection::vec(dim(), 0..4).prop_map(|shape| (Form::Same, shape)),
        [dim(), dim()].prop_map(|shape| (Form::Transposed, shape.to_vec())),
        dim().prop_map(|shape| (Form::Transposed, vec![shape])),
        (rotary, 0..3usize).prop_map(|((half, heads, inputs), kind)| {
            let form = Form::Rotary { head_dim: 2 * half };
            match kind {
                0 => (form, vec![vec![heads, 2 * half]]),
                1 => (form, vec![vec![inputs], vec![heads, 2, half]]),
                _ => (form, vec![vec![inputs], vec![heads * 2 * half]]),
            }
        }),
    ]
}

/// A region of a parameter: a box among the factors, or elements that follow each other.
fn region(factors: &[Vec<usize>], numbers: &[usize], is_range: bool) -> Region {
    let grid = match is_range {
        true => vec![factors.iter().flatten().product()],
        false => factors.concat(),
    };
    let mut numbers = numbers.iter().copied().cycle();
    let mut next = |size: usize| numbers.next().unwrap_or(0) % (size + 1);
    let start: Vec<usize> = grid.iter().map(|&size| next(size)).collect();
    let extent: Vec<usize> = grid
        .iter()
        .zip(&start)
        .map(|(&size, &start)| next(size - start))
        .collect();
    Region::new(grid, start, extent).unwrap()
}

/// Every element twice: a conversion to a type of twice the size.
fn twice(size: usize) -> impl Fn(&[u8], &mut [u8]) + Sync {
    move |from, to| {
        assert_eq!(from.len() * 2, to.len());
        for (from, to) in from.chunks(size).zip(to.chunks_mut(2 * size)) {
            to[..size].copy_from_slice(from);
            to[size..].copy_from_slice(from);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn any_region_of_any_form_is_read_bit_by_bit(
        (form, factors) in shapes(),
        dtype in 0..4usize,
        numbers in proptest::collection::vec(0..40usize, 12),
        is_range in any::<bool>(),
        is_converted in any::<bool>(),
    ) {
        let (storage, dtype) = (MemoryStorage::new(), DTYPES[dtype]);
        let shape: Vec<usize> = factors.iter().map(|dim| dim.iter().product()).collect();
        let parameter = Parameter::new("p", form, dtype, &shape, 3);
        // Another one before it, so that it does not start with the data.
        let other = Parameter::new("o", Form::Same, DType::F64, &[3], 4);
        save(&storage, &[other, parameter.clone()], None, &[]).unwrap();
        let folder = open(&storage).unwrap();
        let region = region(&factors, &numbers, is_range);
        let mut expected = Vec::new();
        let size = dtype.size();
        for element in region.ranges().flatten() {
            expected.extend_from_slice(&parameter.bytes[element * size..(element + 1) * size]);
        }
        let needed = expected.len() as u64;
        let wanted = [(DType::U8, DType::U16), (DType::BF16, DType::F32), (DType::F32, DType::F64)];
        let wanted = wanted.iter().find(|(from, _)| *from == dtype).filter(|_| is_converted);
        let convert = twice(size);
        let is_whole = region.is_whole();
        let mut bytes;
        let read = match wanted {
            Some((_, wanted)) => {
                let mut doubled = vec![0; 2 * expected.len()];
                convert(&expected, &mut doubled);
                expected = doubled;
                bytes = vec![0; expected.len()];
                let request = Request::new("p", *wanted, &shape, region, &mut bytes);
                folder.read(form, &mut request.converted(&convert)).unwrap()
            }
            None => {
                bytes = vec![0; expected.len()];
                let mut request = Request::new("p", dtype, &shape, region, &mut bytes);
                folder.read(form, &mut request).unwrap()
            }
        };
        prop_assert_eq!(&bytes, &expected);
        prop_assert_eq!(read.needed, needed);
        // Elements that follow each other are up to three boxes; a box is read by so many columns at once. Each of
        // them has gaps of its own.
        let boxes = if is_range { 3 } else { 1 };
        let sorted = form.matrix(&shape).map_or(1, |(_, outputs)| outputs.div_ceil(COLUMNS).max(1));
        let most = (boxes * sorted * parameter.bytes.len()) as u64;
        prop_assert!(read.read >= needed && read.read <= most, "{} of {most}", read.read);
        // A head whose columns are read at two times has gaps even in the whole.
        let is_cut = sorted > 1 && !COLUMNS.is_multiple_of(form.step());
        prop_assert!(!is_whole || is_cut || read.read == needed);
    }

    #[test]
    fn what_is_written_is_what_the_field_reads(
        shapes in proptest::collection::vec((shapes(), 0..4usize), 0..6),
        limit in prop_oneof![Just(None), (1..200u64).prop_map(Some)],
    ) {
        let parameters = shapes.iter().enumerate().map(|(index, ((form, factors), dtype))| {
            let shape: Vec<usize> = factors.iter().map(|dim| dim.iter().product()).collect();
            Parameter::new(&format!("p{index}"), *form, DTYPES[*dtype], &shape, index as u8)
        });
        let parameters: Vec<Parameter> = parameters.collect();
        let storage = MemoryStorage::new();
        save(&storage, &parameters, limit, &[("config.json", "{}")]).unwrap();
        assert_is(&open(&storage).unwrap(), &parameters, "as written");

        let mut places: BTreeMap<String, String> = BTreeMap::new();
        let names = names_in(&storage);
        let files: Vec<&String> = names.iter().filter(|name| name.ends_with(".safetensors")).collect();
        for file in &files {
            let bytes = bytes_of(&storage, file);
            let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
            let metadata = header.metadata().clone().unwrap();
            prop_assert_eq!(metadata.get("format").map(String::as_str), Some("pt"));
            let content = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            let sizes: Vec<usize> = content.iter().map(|(_, view)| view.data().len()).collect();
            let total: usize = sizes.iter().sum();
            let count = sizes.iter().filter(|size| **size > 0).count();
            prop_assert!(limit.is_none_or(|limit| total as u64 <= limit || count == 1));
            for (name, view) in content.iter() {
                let parameter = parameters.iter().find(|parameter| parameter.name == name).unwrap();
                prop_assert_eq!(view.data(), parameter.stored());
                prop_assert_eq!(view.shape(), parameter.form.stored_shape(&parameter.shape));
                places.insert(name.to_owned(), (*file).clone());
            }
        }
        prop_assert_eq!(places.len(), parameters.len());
        if files.len() == 1 {
            prop_assert_eq!(names, ["config.json", "model.safetensors"]);
            return Ok(());
        }
        let count = files.len();
        for (index, file) in files.iter().enumerate() {
            prop_assert_eq!(*file, &format!("model-{:05}-of-{count:05}.safetensors", index + 1));
        }
        let index: serde_json::Value = serde_json::from_slice(&bytes_of(&storage, INDEX)).unwrap();
        let total: usize = parameters.iter().map(|parameter| parameter.bytes.len()).sum();
        prop_assert_eq!(&index["metadata"], &serde_json::json!({"total_size": total}));
        prop_assert_eq!(&index["weight_map"], &serde_json::json!(places));
    }
}

#[test]
fn only_what_is_needed_is_read() {
    let storage = MemoryStorage::new();
    let (rotary, shape) = (Form::Rotary { head_dim: 4 }, [40, 24]);
    let parameters = [
        Parameter::new("q", rotary, DType::F32, &shape, 1),
        Parameter::new("up", Form::Transposed, DType::F32, &shape, 1),
        Parameter::new("same", Form::Same, DType::F32, &shape, 1),
        Parameter::new("small", Form::Transposed, DType::F32, &[5, 4], 1),
    ];
    save(&storage, &parameters, None, &[]).unwrap();
    let folder = open(&storage).unwrap();
    let read = |name: &str, form, start: [usize; 2], extent: [usize; 2]| {
        let region = Region::new(shape.to_vec(), start.to_vec(), extent.to_vec()).unwrap();
        let mut bytes = vec![0; region.numel() * 4];
        let mut request = Request::new(name, DType::F32, &shape, region, &mut bytes);
        let read = folder.read(form, &mut request).unwrap();
        assert_eq!(read.needed, (extent[0] * extent[1] * 4) as u64);
        read.read - read.needed
    };
    // Columns are rows of the tensor; those of a head lie together.
    assert_eq!(read("up", Form::Transposed, [0, 5], [40, 7]), 0);
    assert_eq!(read("q", rotary, [0, 8], [40, 12]), 0);
    assert_eq!(read("q", rotary, [0, 9], [40, 1]), 0);
    assert_eq!(read("same", Form::Same, [7, 0], [9, 24]), 0);
    // Rows are parts of its rows: with gaps that are larger than what is read for nothing.
    assert_eq!(read("up", Form::Transposed, [0, 0], [20, 24]), 0);
    assert_eq!(read("same", Form::Same, [0, 3], [40, 12]), 0);
    // With smaller ones, they are: one element of five is left out.
    let region = Region::new(vec![5, 4], vec![0, 0], vec![4, 4]).unwrap();
    let mut bytes = [0; 64];
    let mut request = Request::new("small", DType::F32, &[5, 4], region, &mut bytes);
    let read = folder.read(Form::Transposed, &mut request).unwrap();
    assert!(read.read > read.needed);
}

#[test]
fn errors_name_what_does_not_fit() {
    let storage = MemoryStorage::new();
    save(&storage, &model(1), None, &[]).unwrap();
    let folder = open(&storage).unwrap();
    let read = |name: &str, form, dtype, shape: &[usize], bytes: usize| {
        let region = Region::whole(shape).unwrap();
        let mut bytes = vec![0; bytes];
        let mut request = Request::new(name, dtype, shape, region, &mut bytes);
        folder.read(form, &mut request).unwrap_err()
    };
    let turned = Form::Transposed;
    let error = read("down", turned, DType::F16, &[6, 5], 60);
    assert!(error.to_string().contains("missing     down"), "{error}");
    let error = read("up", turned, DType::F16, &[5, 6], 60);
    assert!(error.to_string().contains("[6, 5] is wanted"), "{error}");
    let error = read("up", turned, DType::F32, &[6, 5], 120);
    assert!(
        error.to_string().contains("f32 [5, 6] is wanted"),
        "{error}"
    );
    let error = read("up", turned, DType::F16, &[6, 5], 59);
    assert!(matches!(error, CheckpointError::Bytes { .. }), "{error}");
    let error = read("up", turned, DType::F16, &[6, 5, 1], 60);
    assert!(matches!(error, CheckpointError::Form { .. }), "{error}");
    let odd = Form::Rotary { head_dim: 3 };
    let error = read("up", odd, DType::F16, &[5, 6], 60);
    assert!(matches!(error, CheckpointError::Form { .. }), "{error}");
    let uneven = Form::Rotary { head_dim: 4 };
    let error = read("up", uneven, DType::F16, &[5, 6], 60);
    assert!(matches!(error, CheckpointError::Form { .. }), "{error}");
    let other = Region::whole(&[31]).unwrap();
    let mut bytes = [0; 62];
    let mut request = Request::new("up", DType::F16, &[6, 5], other, &mut bytes);
    let error = folder.read(turned, &mut request).unwrap_err();
    assert!(matches!(error, CheckpointError::Grid { .. }), "{error}");
    let _: RegionError = Region::new(vec![2], vec![1], vec![2]).unwrap_err();
}

#[test]
fn what_is_wanted_is_compared_with_what_there_is() {
    let storage = MemoryStorage::new();
    save(&storage, &model(1), None, &[]).unwrap();
    let folder = open(&storage).unwrap();
    let parameters = model(1);
    let wanted = |parameter: &'static Parameter| Wanted {
        name: &parameter.name,
        form: parameter.form,
        dtype: Some(parameter.dtype),
        shape: &parameter.shape,
    };
    let parameters: &'static [Parameter] = parameters.leak();
    let all = || parameters.iter().map(wanted);
    assert!(folder.check(all(), Match::Exact).unwrap().is_empty());
    let report = folder.check(all().skip(1), Match::Subset).unwrap();
    assert_eq!(report.unexpected, ["embedding"]);
    assert!(folder.check(all().skip(1), Match::Exact).is_err());
    let other = Wanted {
        dtype: Some(DType::F64),
        ..wanted(&parameters[3])
    };
    let error = folder.check([other], Match::Subset).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("f64 [5, 6] is wanted, the checkpoint has F16"),
        "{error}"
    );
    let any = Wanted {
        dtype: None,
        ..other
    };
    assert!(folder.check([any], Match::Subset).is_ok());
}
