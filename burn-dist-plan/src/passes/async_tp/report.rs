//! Report: collectives that products run beside, and why others stay as they are.

use serde::Serialize;

/// A collective along a tensor-parallel axis, and whether products run beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Overlap {
    /// `all_gather` or `reduce_scatter`.
    pub kind: &'static str,
    /// The axis.
    pub axis: String,
    /// Path of the module that it serves.
    pub path: Option<String>,
    /// Why it stays one collective.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub whole: Option<&'static str>,
}
