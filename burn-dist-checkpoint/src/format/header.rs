//! Headers of safetensors files.
//!
//! ```text
//! 8 bytes   n: length of the header, little endian
//! n bytes   JSON: {"__metadata__": {text: text}, name: {"dtype", "shape", "data_offsets": [from, to]}, ...}
//! the rest  data: one tensor after the other, without gaps
//! ```

use super::{FORMAT, SaveId, VERSION};
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
        /// What the file says.
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
    pub shape: Vec<usize>,
    pub data_offsets: [u64; 2],
}

/// What the header of a file says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Header {
    #[serde(rename = "__metadata__", default)]
    pub metadata: BTreeMap<String, String>,
    #[serde(flatten, deserialize_with = "unique")]
    pub tensors: BTreeMap<String, Entry>,
}

impl Header {
    /// Returns the metadata of a file of a save.
    pub(crate) fn metadata_of(save_id: SaveId, writer: usize) -> BTreeMap<String, String> {
        let pairs = [
            ("format", FORMAT.to_owned()),
            ("version", VERSION.to_string()),
            ("save_id", save_id.to_string()),
            ("writer", writer.to_string()),
        ];
        pairs.map(|(k, v)| (k.to_owned(), v)).into()
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

    /// Reads a header, without the length in front.
    pub(crate) fn parse(json: &[u8]) -> Result<Self, HeaderError> {
        Ok(serde_json::from_slice(json)?)
    }
}

/// Reads tensors; a name that is there twice is an error.
fn unique<'de, D: Deserializer<'de>>(reader: D) -> Result<BTreeMap<String, Entry>, D::Error> {
    struct Tensors;
    impl<'de> Visitor<'de> for Tensors {
        type Value = BTreeMap<String, Entry>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("tensors by name")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut tensors = BTreeMap::new();
            while let Some((name, entry)) = map.next_entry::<String, Entry>()? {
                if tensors.contains_key(&name) {
                    return Err(A::Error::custom(format_args!("{name} is there twice")));
                }
                tensors.insert(name, entry);
            }
            Ok(tensors)
        }
    }
    reader.deserialize_map(Tensors)
}
