//! The manifest: what a checkpoint holds, and where.

use super::checksum::{self, Checksum, checksum};
use super::{FORMAT, ManifestError, NonFinite, SaveId, bounded, dtype_of};
use crate::region::{Region, RegionError};
use burn_dist_mesh::{DType, MeshShape};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The version of the format that is written, and the highest that is read.
pub const VERSION: u64 = 1;
/// No manifest is longer: it is read as a whole.
pub(crate) const MANIFEST_BYTES_MAX: usize = 1 << 30;
/// The entry of the metadata that the commit makes.
const NON_FINITE: &str = "non-finite";

/// The content of a checkpoint, and where it is.
///
/// One that was read is [checked](Manifest::check): pieces lie in their files, share no byte, and make up their
/// tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Which save made it.
    pub save_id: SaveId,
    /// The size of the blocks that have a checksum; the last of a piece may be shorter.
    pub block_bytes: usize,
    /// The mesh that it was saved on.
    pub mesh: MeshShape,
    /// The metadata of the user: step, schedule, position in the data. The entry `non-finite` is the commit's: see
    /// [`Manifest::non_finite`].
    #[serde(deserialize_with = "bounded::metadata")]
    pub metadata: Map<String, Value>,
    /// The files, one for each writer.
    #[serde(deserialize_with = "bounded::rows")]
    pub files: Vec<FileEntry>,
    /// The tensors, sorted by key.
    #[serde(deserialize_with = "bounded::rows")]
    pub tensors: Vec<TensorEntry>,
}

/// One safetensors file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Its name in the directory.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// How many of them come before the data.
    pub header_bytes: u64,
    /// The checksum of these.
    pub header_checksum: Checksum,
}

/// One tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorEntry {
    /// Its path in the model or the optimizer.
    pub key: String,
    /// The [name](DType::name) of its type.
    pub dtype: String,
    /// The global shape.
    #[serde(deserialize_with = "bounded::dims")]
    pub shape: Vec<usize>,
    /// The factors of every dim, where the layout splits one within: pieces are boxes in the grid of all factors.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "bounded::factors"
    )]
    pub factors: Option<Vec<Vec<usize>>>,
    /// The layout that it had, in the text form of layouts.
    pub layout: String,
    /// The pipeline stage that it was on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<usize>,
    /// Where its elements are.
    #[serde(deserialize_with = "bounded::rows")]
    pub pieces: Vec<PieceEntry>,
}

/// One piece of a tensor: a box of its elements, in one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PieceEntry {
    /// Index of the file.
    pub file: usize,
    /// The first byte, counted from the start of the file.
    pub offset: u64,
    /// Where the box starts along each dim of the grid.
    #[serde(deserialize_with = "bounded::dims")]
    pub start: Vec<usize>,
    /// The size of the box along each dim of the grid.
    #[serde(deserialize_with = "bounded::dims")]
    pub extent: Vec<usize>,
    /// The checksums of its blocks.
    #[serde(with = "checksum::list")]
    pub checksums: Vec<Checksum>,
}

impl TensorEntry {
    /// Returns the shape that pieces are boxes in: the global shape, or the factors of all dims.
    pub fn grid(&self) -> Vec<usize> {
        match &self.factors {
            Some(factors) => factors.concat(),
            None => self.shape.clone(),
        }
    }

    /// Returns the type of its elements; `None` if its name is that of no type.
    pub fn dtype(&self) -> Option<DType> {
        dtype_of(&self.dtype)
    }

    /// Returns the elements of a piece.
    ///
    /// # Errors
    /// [`RegionError`] if the numbers are no box; not in a manifest that is checked.
    pub fn region(&self, piece: &PieceEntry) -> Result<Region, RegionError> {
        Region::new(self.grid(), piece.start.clone(), piece.extent.clone())
    }

    /// Returns the shape of a piece: one size for each dim of the tensor.
    pub(crate) fn local_shape(&self, piece: &PieceEntry) -> Vec<usize> {
        local_shape(self.factors.as_deref(), &piece.extent)
    }
}

/// Returns the shape of a box, dims that are written as factors being one.
pub(crate) fn local_shape(factors: Option<&[Vec<usize>]>, extent: &[usize]) -> Vec<usize> {
    let Some(factors) = factors else {
        return extent.to_vec();
    };
    let mut rest = extent;
    let mut shape = Vec::with_capacity(factors.len());
    for dim in factors {
        let (own, after) = rest.split_at(dim.len().min(rest.len()));
        shape.push(own.iter().product());
        rest = after;
    }
    shape
}

impl Manifest {
    /// Returns the tensor of this key.
    pub fn tensor(&self, key: &str) -> Option<&TensorEntry> {
        let found = self
            .tensors
            .binary_search_by(|tensor| tensor.key.as_str().cmp(key));
        found.ok().map(|index| &self.tensors[index])
    }

    /// Returns which values of it were not finite when it was saved, if any were.
    ///
    /// Checkpoints that were saved before this was looked at have none that are known.
    pub fn non_finite(&self) -> Option<NonFinite> {
        let entry = self.metadata.get(NON_FINITE)?;
        serde_json::from_value(entry.clone()).ok()
    }

    /// Sets that.
    pub(crate) fn set_non_finite(&mut self, found: Option<&NonFinite>) {
        self.metadata.remove(NON_FINITE);
        if let Some(NonFinite { key, elements }) = found {
            let entry = serde_json::json!({ "key": key, "elements": elements });
            self.metadata.insert(NON_FINITE.to_owned(), entry);
        }
    }

    /// Returns the bytes of all tensors.
    pub fn num_bytes(&self) -> u64 {
        let of = |tensor: &TensorEntry| {
            let numel: usize = tensor.shape.iter().product();
            numel as u64 * tensor.dtype().map_or(0, |dtype| dtype.size() as u64)
        };
        self.tensors.iter().map(of).sum()
    }

    /// Returns the bytes of the file.
    ///
    /// # Errors
    /// Those of [`Manifest::check`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, ManifestError> {
        self.check()?;
        let json = serde_json::to_vec(self)?;
        let mut bytes = prefix().into_bytes();
        // After the opening brace.
        let body = &json[1..];
        bytes.extend_from_slice(format!("{}\",", checksum(body)).as_bytes());
        bytes.extend_from_slice(body);
        match bytes.len() <= MANIFEST_BYTES_MAX {
            true => Ok(bytes),
            false => Err(ManifestError::TooLong {
                bytes: bytes.len() as u64,
                max: MANIFEST_BYTES_MAX,
            }),
        }
    }

    /// Returns whether a file that starts so may be a manifest.
    pub(crate) fn is_start(bytes: &[u8]) -> bool {
        bytes.starts_with(format_prefix().as_bytes())
    }

    /// Reads the bytes of the file and checks what they say.
    ///
    /// # Errors
    /// [`ManifestError::Format`], [`ManifestError::Version`], [`ManifestError::Checksum`], [`ManifestError::Json`] and
    /// those of [`Manifest::check`].
    pub fn from_bytes(mut bytes: Vec<u8>) -> Result<Self, ManifestError> {
        let after = bytes
            .strip_prefix(format_prefix().as_bytes())
            .ok_or(ManifestError::Format)?;
        let digits = after.iter().take_while(|c| c.is_ascii_digit()).count();
        let version = str::from_utf8(&after[..digits]).ok();
        match version.filter(|text| !text.is_empty()).map(str::parse) {
            Some(Ok(VERSION)) => {}
            None => return Err(ManifestError::Format),
            Some(version) => {
                return Err(ManifestError::Version {
                    found: version.unwrap_or(u64::MAX),
                    supported: VERSION,
                });
            }
        }
        let after = bytes
            .strip_prefix(prefix().as_bytes())
            .ok_or(ManifestError::Format)?;
        let (stated, body) = after.split_at_checked(16).ok_or(ManifestError::Format)?;
        let stated = checksum::parse(stated).ok_or(ManifestError::Format)?;
        let body = body.strip_prefix(b"\",").ok_or(ManifestError::Format)?;
        let found = checksum(body);
        if stated != found {
            return Err(ManifestError::Checksum {
                expected: stated,
                found,
            });
        }
        // The rest of the object, made one by an opening brace instead of the comma: no copy of a large text.
        let brace = bytes.len() - body.len() - 1;
        bytes[brace] = b'{';
        let manifest: Self = serde_json::from_slice(&bytes[brace..])?;
        // The check takes memory of its own.
        drop(bytes);
        manifest.check()?;
        Ok(manifest)
    }
}

fn format_prefix() -> String {
    format!("{{\"format\":\"{FORMAT}\",\"version\":")
}

fn prefix() -> String {
    format!("{}{VERSION},\"checksum\":\"", format_prefix())
}
