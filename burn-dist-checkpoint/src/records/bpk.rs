//! Burnpack, as `burn-store` 0.21 writes it.
//!
//! ```text
//! 4 bytes   "NRUB"
//! 2 bytes   version, little endian: 1
//! 4 bytes   n: length of the description
//! n bytes   CBOR: {"tensors": {path: {"dtype", "shape", "data_offsets": [from, to], "param_id"}}, "metadata": {...}}
//! zeros     up to a multiple of 256
//! the rest  data: offsets count from here, and each tensor starts at a multiple of 256
//! ```

use super::{Layout, Parameter, Record, RecordProblem, dtype};
use crate::error::{CheckpointError, io_error};
use crate::format::dims;
use crate::region::Region;
use crate::storage::Storage;
use crate::stored::{Stored, Tensors};
use serde::de::{Error, IgnoredAny, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

pub(crate) const MAGIC: [u8; 4] = *b"NRUB";
const VERSION: u16 = 1;
const HEADER_BYTES: usize = 10;
const ALIGNMENT: u64 = 256;
/// The most that Burn reads: of the description, of a tensor, tensors, and of the file.
const DESCRIPTION_BYTES: u64 = 100 << 20;
const TENSOR_BYTES: u64 = 10 << 30;
const TENSORS: usize = 100_000;
const FILE_BYTES: u64 = 100 << 30;

/// The fields that are read of the description; others are passed over.
#[derive(Deserialize)]
struct Found {
    #[serde(deserialize_with = "tensors")]
    tensors: Vec<(String, Descriptor)>,
}

/// The description, as it is written.
#[derive(Serialize)]
struct Description {
    tensors: BTreeMap<String, Descriptor>,
    metadata: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
struct Descriptor {
    dtype: DTypeName,
    #[serde(deserialize_with = "shape")]
    shape: Vec<u64>,
    data_offsets: (u64, u64),
    #[serde(default, skip_serializing_if = "Option::is_none")]
    param_id: Option<u64>,
}

/// The name of a type: a text, or a map of one to how it is stored.
#[derive(Default)]
struct DTypeName {
    name: String,
    store: Option<String>,
}

impl Serialize for DTypeName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.store {
            None => serializer.serialize_str(&self.name),
            Some(store) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry(&self.name, store)?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for DTypeName {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        struct Name;
        impl<'de> Visitor<'de> for Name {
            type Value = DTypeName;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a type")
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<DTypeName, E> {
                let name = name.to_owned();
                Ok(DTypeName { name, store: None })
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<DTypeName, A::Error> {
                let Some((name, Store(store))) = map.next_entry()? else {
                    return Ok(DTypeName::default());
                };
                match map.next_key::<IgnoredAny>()? {
                    None => Ok(DTypeName { name, store }),
                    Some(_) => Err(A::Error::custom("a type has two names")),
                }
            }
        }
        reader.deserialize_any(Name)
    }
}

/// How a type is stored, if that is a text: of quantized types it is more.
struct Store(Option<String>);

impl<'de> Deserialize<'de> for Store {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Store;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("how a type is stored")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Store, E> {
                Ok(Store(Some(text.to_owned())))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Store, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Store(None))
            }
        }
        reader.deserialize_any(Text)
    }
}

/// Reads tensors by name, no more than Burn reads; a name that is there twice is an error.
fn tensors<'de, D: Deserializer<'de>>(reader: D) -> Result<Vec<(String, Descriptor)>, D::Error> {
    struct Tensors;
    impl<'de> Visitor<'de> for Tensors {
        type Value = Vec<(String, Descriptor)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("tensors by name")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut tensors = Vec::new();
            while let Some(tensor) = map.next_entry()? {
                if tensors.len() == TENSORS {
                    return Err(A::Error::custom(format_args!(
                        "there are more than {TENSORS} tensors"
                    )));
                }
                tensors.push(tensor);
            }
            tensors.sort_by(|(one, _): &(String, _), (other, _)| one.cmp(other));
            match tensors.windows(2).find(|pair| pair[0].0 == pair[1].0) {
                Some(pair) => {
                    let name = &pair[0].0;
                    Err(A::Error::custom(format_args!(
                        "the tensor {name} is there twice"
                    )))
                }
                None => Ok(tensors),
            }
        }
    }
    reader.deserialize_map(Tensors)
}

fn shape<'de, D: Deserializer<'de>>(reader: D) -> Result<Vec<u64>, D::Error> {
    let shape = dims(reader)?;
    Ok(shape.into_iter().map(|size| size as u64).collect())
}

/// Reads what a file says of its tensors.
pub(crate) fn open(storage: &dyn Storage, path: &Path) -> Result<Record, CheckpointError> {
    let file = storage.open_linked(path);
    let file = file.map_err(io_error("open the file", path))?;
    let problem = |problem| {
        let path = path.to_path_buf();
        CheckpointError::Record { path, problem }
    };
    let num_bytes = file.num_bytes();
    if num_bytes < HEADER_BYTES as u64 {
        return Err(problem(RecordProblem::Cut { at: num_bytes }));
    }
    let read = |buffer: &mut [u8], offset| {
        let read = file.read_at(buffer, offset);
        read.map_err(io_error("read the file", path))
    };
    let mut header = [0; HEADER_BYTES];
    read(&mut header, 0)?;
    let [m0, m1, m2, m3, v0, v1, n0, n1, n2, n3] = header;
    if [m0, m1, m2, m3] != MAGIC {
        let expected = "burnpack";
        return Err(problem(RecordProblem::Kind { expected, at: 0 }));
    }
    let found = u16::from_le_bytes([v0, v1]);
    if found != VERSION {
        let supported = VERSION;
        return Err(problem(RecordProblem::Version { found, supported }));
    }
    let bytes = u64::from(u32::from_le_bytes([n0, n1, n2, n3]));
    let max = DESCRIPTION_BYTES.min(num_bytes - HEADER_BYTES as u64);
    if bytes > max {
        return Err(problem(RecordProblem::Description { bytes, max }));
    }
    // No longer than that.
    let mut cbor = vec![0; usize::try_from(bytes).unwrap_or(usize::MAX)];
    read(&mut cbor, HEADER_BYTES as u64)?;
    let description: Found = ciborium::from_reader(&cbor[..])
        .map_err(|error| problem(RecordProblem::Cbor(error.to_string())))?;
    drop(cbor);
    check_overlap(&description.tensors).map_err(problem)?;
    let data = data_start(bytes);
    let (mut tensors, mut ids) = (BTreeMap::new(), BTreeMap::new());
    for (key, descriptor) in description.tensors {
        if let Some(id) = descriptor.param_id {
            ids.insert(key.clone(), id);
        }
        let stored = stored(&key, descriptor, data, num_bytes).map_err(problem)?;
        tensors.insert(key, stored);
    }
    let files = vec![(path.to_path_buf(), file)];
    Ok(Record {
        tensors: Tensors { files, tensors },
        ids,
    })
}

/// Checks that no two tensors share a byte.
fn check_overlap(tensors: &[(String, Descriptor)]) -> Result<(), RecordProblem> {
    let places = tensors
        .iter()
        .map(|(key, tensor)| (tensor.data_offsets, key));
    let mut places: Vec<_> = places.filter(|((from, to), _)| from < to).collect();
    places.sort_unstable();
    let shared = places.windows(2).find(|pair| pair[1].0.0 < pair[0].0.1);
    shared.map_or(Ok(()), |pair| {
        Err(RecordProblem::Overlap {
            key: pair[1].1.clone(),
            other: pair[0].1.clone(),
        })
    })
}

/// Returns where a tensor is, if it is in the file.
fn stored(
    key: &str,
    descriptor: Descriptor,
    data: u64,
    num_bytes: u64,
) -> Result<Stored, RecordProblem> {
    let Descriptor {
        shape,
        data_offsets: (from, to),
        ..
    } = descriptor;
    let DTypeName { name, store } = &descriptor.dtype;
    let (name, store) = (name.as_str(), store.as_deref());
    let Some(dtype) = dtype::find(name, store) else {
        return Err(RecordProblem::DType {
            key: key.to_owned(),
            found: name.to_owned(),
        });
    };
    let sizes: Option<Vec<usize>> = shape.iter().map(|size| (*size).try_into().ok()).collect();
    let region = sizes.and_then(|sizes| Region::whole(&sizes).ok());
    let expected = region.as_ref().map(|region| region.numel() as u64);
    let expected = expected.and_then(|numel| numel.checked_mul(dtype.size() as u64));
    let is_inside = data.checked_add(to).is_some_and(|end| end <= num_bytes);
    // A tensor without elements has no bytes that could be in the file.
    let is_fine = from <= to && expected == Some(to - from) && (is_inside || from == to);
    let Some(region) = region.filter(|_| is_fine) else {
        return Err(RecordProblem::Bytes {
            key: key.to_owned(),
            bytes: to.saturating_sub(from),
            at: data.saturating_add(from),
            dtype: name.to_owned(),
            shape,
        });
    };
    Ok(Stored {
        file: 0,
        offset: data.saturating_add(from),
        dtype: Some(dtype),
        dtype_name: name.to_owned(),
        shape: region.grid().to_vec(),
    })
}

/// Returns the file of these parameters.
pub(crate) fn layout(parameters: &[Parameter]) -> Result<Layout, RecordProblem> {
    if parameters.len() > TENSORS {
        let (found, max) = (parameters.len(), TENSORS);
        return Err(RecordProblem::TooMany { found, max });
    }
    let (mut tensors, mut end) = (BTreeMap::new(), 0u64);
    let mut starts = Vec::new();
    for parameter in parameters {
        let (key, bytes) = (parameter.key.clone(), parameter.num_bytes());
        let start = end.next_multiple_of(ALIGNMENT);
        end = start.saturating_add(bytes);
        if bytes > TENSOR_BYTES || end > FILE_BYTES - DESCRIPTION_BYTES {
            let max = TENSOR_BYTES;
            return Err(RecordProblem::TooLarge { key, bytes, max });
        }
        let Some((name, store)) = dtype::name(parameter.dtype) else {
            let found = parameter.dtype.to_string();
            return Err(RecordProblem::DType { key, found });
        };
        let dtype = DTypeName {
            name: name.to_owned(),
            store: store.map(str::to_owned),
        };
        let descriptor = Descriptor {
            dtype,
            shape: parameter.shape.iter().map(|size| *size as u64).collect(),
            data_offsets: (start, end),
            param_id: parameter.id,
        };
        starts.push(start);
        if tensors.insert(key.clone(), descriptor).is_some() {
            return Err(RecordProblem::Duplicate { key });
        }
    }
    let metadata = [
        ("format", "burnpack"),
        ("producer", "burn"),
        ("version", "0.21.0"),
    ];
    let metadata = metadata.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let description = Description {
        tensors,
        metadata: metadata.into(),
    };
    let mut cbor = Vec::new();
    ciborium::into_writer(&description, &mut cbor)
        .map_err(|error| RecordProblem::Cbor(error.to_string()))?;
    let bytes = cbor.len() as u64;
    let length = u32::try_from(bytes).ok();
    let Some(length) = length.filter(|_| bytes <= DESCRIPTION_BYTES) else {
        let max = DESCRIPTION_BYTES;
        return Err(RecordProblem::Description { bytes, max });
    };
    let mut layout = Layout::default();
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&length.to_le_bytes());
    out.append(&mut cbor);
    // Less than a page of zeros.
    let zeros = |out: &mut Vec<u8>, from: u64, to: u64| {
        out.resize(out.len() + usize::try_from(to - from).unwrap_or(0), 0);
    };
    zeros(&mut out, HEADER_BYTES as u64 + bytes, data_start(bytes));
    let mut end = 0;
    for (index, parameter) in parameters.iter().enumerate() {
        zeros(&mut out, end, starts[index]);
        layout.parts.push((std::mem::take(&mut out), index));
        end = starts[index] + parameter.num_bytes();
    }
    layout.end = out;
    Ok(layout)
}

fn data_start(description_bytes: u64) -> u64 {
    (HEADER_BYTES as u64 + description_bytes).next_multiple_of(ALIGNMENT)
}
