//! Headers of safetensors files.
//!
//! ```text
//! 8 bytes   n: length of the header, little endian
//! n bytes   JSON: {"__metadata__": {text: text}, name: {"dtype", "shape", "data_offsets": [from, to]}, ...}
//! the rest  data: one tensor after the other, without gaps
//! ```

use super::{FORMAT, SaveId, VERSION, dims, push};
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::fmt;

/// Bytes before the JSON text.
pub(crate) const PREFIX_BYTES: usize = 8;
/// Readers of safetensors accept no longer JSON text.
pub(crate) const HEADER_BYTES_MAX: usize = 100_000_000;

/// Something that is no header of a safetensors file, or none of this format.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The file ends within the header, or no reader would accept it.
    #[error(
        "its header would be of {length} bytes, of at most {HEADER_BYTES_MAX}, and the file has {file_bytes}"
    )]
    Length {
        /// The length in the file.
        length: u64,
        /// Its size.
        file_bytes: u64,
    },
    /// Not the JSON of a safetensors file.
    #[error("its header is not that of a safetensors file: {0}")]
    Json(#[from] serde_json::Error),
    /// Too many tensors for one file.
    #[error(
        "its header would be of {length} bytes; readers of safetensors accept {max}: use more writers"
    )]
    TooLong {
        /// How long it would be.
        length: usize,
        /// How long it may be.
        max: usize,
    },
}

burn_dist_mesh::debug_by_message!(HeaderError);

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Entry {
    pub dtype: String,
    #[serde(deserialize_with = "dims")]
    pub shape: Vec<usize>,
    pub data_offsets: [u64; 2],
}

/// The header of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    /// The metadata that are of this format: see [`Header::metadata_of`].
    pub metadata: BTreeMap<String, String>,
    /// Sorted by name, each there once.
    tensors: Vec<(String, Entry)>,
}

/// Where the metadata are among the tensors.
const METADATA: &str = "__metadata__";
/// The names of the metadata of a save's files.
const KEYS: [&str; 4] = ["format", "version", "save_id", "writer"];

impl Header {
    /// Returns the metadata of a file of a save.
    pub(crate) fn metadata_of(save_id: SaveId, writer: usize) -> BTreeMap<String, String> {
        let values = [
            FORMAT.to_owned(),
            VERSION.to_string(),
            save_id.to_string(),
            writer.to_string(),
        ];
        let pairs = KEYS.into_iter().zip(values);
        pairs.map(|(key, value)| (key.to_owned(), value)).collect()
    }

    /// Returns the bytes of a header, its length in front, padded with spaces to a multiple of 8.
    pub(crate) fn to_bytes<'a>(
        metadata: &BTreeMap<String, String>,
        tensors: impl Iterator<Item = (&'a str, &'static str, Vec<usize>, u64)>,
    ) -> Result<Vec<u8>, HeaderError> {
        let mut text = String::from("{");
        if !metadata.is_empty() {
            text += &format!("\"__metadata__\":{},", serde_json::to_string(metadata)?);
        }
        let mut from = 0;
        for (name, dtype, shape, bytes) in tensors {
            let (name, to) = (serde_json::to_string(name)?, from + bytes);
            let shape = serde_json::to_string(&shape)?;
            text += &format!(
                "{name}:{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":[{from},{to}]}},"
            );
            from = to;
        }
        if text.ends_with(',') {
            text.pop();
        }
        text.push('}');
        while !text.len().is_multiple_of(8) {
            text.push(' ');
        }
        if text.len() > HEADER_BYTES_MAX {
            return Err(HeaderError::TooLong {
                length: text.len(),
                max: HEADER_BYTES_MAX,
            });
        }
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(text.as_bytes());
        Ok(bytes)
    }

    /// Returns how long a header is that starts with `prefix`, the prefix included.
    pub(crate) fn length(
        prefix: [u8; PREFIX_BYTES],
        file_bytes: u64,
    ) -> Result<usize, HeaderError> {
        let length = u64::from_le_bytes(prefix);
        let error = HeaderError::Length { length, file_bytes };
        match usize::try_from(length).map(|length| (length, length.saturating_add(PREFIX_BYTES))) {
            Ok((length, total)) if length <= HEADER_BYTES_MAX && total as u64 <= file_bytes => {
                Ok(total)
            }
            _ => Err(error),
        }
    }

    /// Returns the tensor of this name.
    pub(crate) fn tensor(&self, name: &str) -> Option<&Entry> {
        let found = self
            .tensors
            .binary_search_by(|(own, _)| own.as_str().cmp(name));
        found.ok().map(|index| &self.tensors[index].1)
    }

    /// Returns the tensors by name.
    pub(crate) fn into_tensors(self) -> Vec<(String, Entry)> {
        self.tensors
    }

    /// Reads a header, without the length in front.
    pub(crate) fn parse(json: &[u8]) -> Result<Self, HeaderError> {
        Ok(serde_json::from_slice(json)?)
    }
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("tensors by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let (mut metadata, mut tensors) = (None, Vec::new());
                while let Some(name) = map.next_key::<String>()? {
                    if name != METADATA {
                        let entry = map.next_value()?;
                        push(&mut tensors, (name, entry));
                    } else if metadata.is_some() {
                        return Err(A::Error::custom(format_args!("{METADATA} is there twice")));
                    } else {
                        metadata = Some(map.next_value::<Metadata>()?.0);
                    }
                }
                tensors.sort_unstable_by(|(one, _): &(String, _), (other, _)| one.cmp(other));
                match tensors.windows(2).find(|pair| pair[0].0 == pair[1].0) {
                    Some(pair) => {
                        let name = &pair[0].0;
                        Err(A::Error::custom(format_args!("{name} is there twice")))
                    }
                    None => Ok(Header {
                        metadata: metadata.unwrap_or_default(),
                        tensors,
                    }),
                }
            }
        }
        reader.deserialize_map(All)
    }
}

/// Texts by name, of which those of this format are kept.
struct Metadata(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        struct Texts;
        impl<'de> Visitor<'de> for Texts {
            type Value = Metadata;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("texts by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
                let mut own = BTreeMap::new();
                while let Some((name, text)) = map.next_entry::<String, String>()? {
                    if KEYS.contains(&name.as_str()) {
                        own.insert(name, text);
                    }
                }
                Ok(Metadata(own))
            }
        }
        reader.deserialize_map(Texts)
    }
}
