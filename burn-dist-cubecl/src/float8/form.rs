//! How devices store float8.

/// How a device stores values of float8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// 8 bits each.
    Bytes,
    /// An f32 each: for devices whose language has no bytes, as WGSL.
    Grid,
}
