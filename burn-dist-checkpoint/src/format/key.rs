//! Names of tensors and of their pieces.

use crate::region::Region;

/// Returns whether `key` can name a tensor: a path without brackets, which mark pieces, and control characters.
pub(crate) fn is_key(key: &str) -> bool {
    let is_bad = |c: char| c == '[' || c == ']' || c.is_control();
    !key.is_empty() && key != "__metadata__" && !key.contains(is_bad)
}

/// Returns the name of a piece among the tensors of its file: the key of a whole tensor, else the key and the box.
pub(crate) fn piece_name(key: &str, region: &Region) -> String {
    match region.is_whole() {
        true => key.to_owned(),
        false => format!("{key}{region}"),
    }
}
