//! How devices store float8.

/// How a device stores values of float8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// As 8 bits.
    Bytes,
    /// As f32: for devices whose language has no bytes, as WGSL.
    Grid,
}
