//! Tensors that are asked for against those that there are.

use crate::format::Manifest;
use burn_dist_mesh::DType;
use std::collections::BTreeSet;
use std::fmt;

/// Which differences between what is asked for and what there is are errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Match {
    /// All of them.
    #[default]
    Exact,
    /// Tensors that nobody asks for are fine.
    Subset,
    /// None: what fits is loaded, the rest is reported.
    Lenient,
}

/// The differences between the tensors that are asked for and those of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyReport {
    /// Asked for, and not in the checkpoint.
    pub missing: Vec<String>,
    /// In the checkpoint, and not asked for.
    pub unexpected: Vec<String>,
    /// Tensors of another shape or type.
    pub mismatched: Vec<Mismatch>,
}

/// A tensor that has another shape or type than is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The tensor.
    pub key: String,
    /// The shape that is asked for.
    pub wanted_shape: Vec<usize>,
    /// The shape in the checkpoint.
    pub found_shape: Vec<usize>,
    /// The type that is asked for.
    pub wanted_dtype: DType,
    /// The name of that of the checkpoint.
    pub found_dtype: String,
}

/// A tensor that there is.
pub(crate) struct Found<'a> {
    pub shape: &'a [usize],
    pub dtype: Option<DType>,
    pub dtype_name: &'a str,
}

impl KeyReport {
    /// Compares with tensors of this key, type and shape; the last says that any type will do.
    pub(crate) fn new<'a>(
        manifest: &Manifest,
        wanted: impl IntoIterator<Item = (&'a str, DType, Vec<usize>, bool)>,
    ) -> Self {
        let find = |key: &str| {
            manifest.tensor(key).map(|tensor| Found {
                shape: &tensor.shape,
                dtype: tensor.dtype(),
                dtype_name: &tensor.dtype,
            })
        };
        let keys = manifest.tensors.iter().map(|tensor| tensor.key.as_str());
        Self::between(wanted, find, keys)
    }

    /// Compares what is wanted with what is found under `keys`.
    pub(crate) fn between<'a, 'f>(
        wanted: impl IntoIterator<Item = (&'a str, DType, Vec<usize>, bool)>,
        find: impl Fn(&str) -> Option<Found<'f>>,
        keys: impl Iterator<Item = &'f str>,
    ) -> Self {
        let mut report = Self::default();
        let mut asked: BTreeSet<&str> = BTreeSet::new();
        for (key, dtype, shape, is_converted) in wanted {
            if !asked.insert(key) {
                continue;
            }
            let Some(tensor) = find(key) else {
                report.missing.push(key.to_owned());
                continue;
            };
            let is_type = tensor.dtype == Some(dtype) || is_converted;
            if tensor.shape != shape || !is_type {
                report.mismatched.push(Mismatch {
                    key: key.to_owned(),
                    wanted_shape: shape,
                    found_shape: tensor.shape.to_vec(),
                    wanted_dtype: dtype,
                    found_dtype: tensor.dtype_name.to_owned(),
                });
            }
        }
        let unexpected = keys.filter(|key| !asked.contains(key));
        report.unexpected = unexpected.map(str::to_owned).collect();
        report
    }

    /// Returns whether there is no difference.
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.mismatched.is_empty()
    }

    /// Returns whether a tensor that is asked for is there as it is asked for.
    pub fn fits(&self, key: &str) -> bool {
        let is_other = |other: &Mismatch| other.key == key;
        !self.missing.iter().any(|missing| missing == key) && !self.mismatched.iter().any(is_other)
    }

    /// Returns whether its differences are none that `wanted` makes errors.
    pub fn is_fine(&self, wanted: Match) -> bool {
        match wanted {
            Match::Exact => self.is_empty(),
            Match::Subset => self.missing.is_empty() && self.mismatched.is_empty(),
            Match::Lenient => true,
        }
    }
}

/// Every difference on a line of its own.
impl fmt::Display for KeyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} tensors are missing, {} unexpected, {} of another shape or type",
            self.missing.len(),
            self.unexpected.len(),
            self.mismatched.len()
        )?;
        for key in &self.missing {
            write!(f, "\n  missing     {key}")?;
        }
        for key in &self.unexpected {
            write!(f, "\n  unexpected  {key}")?;
        }
        for other in &self.mismatched {
            write!(
                f,
                "\n  mismatched  {}: {} {:?} is wanted, the checkpoint has {} {:?}",
                other.key,
                other.wanted_dtype,
                other.wanted_shape,
                other.found_dtype,
                other.found_shape
            )?;
        }
        Ok(())
    }
}
