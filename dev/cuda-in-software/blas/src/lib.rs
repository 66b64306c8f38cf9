//! cuBLASLt in software, as far as it is called.
//!
//! Programs load it as `libcublasLt.so.13`. A product is put on a stream of the driver beside it, which looks at its
//! operands. See the folder's README.

// The name of the library is NVIDIA's.
#![allow(non_snake_case)]

mod calls;
mod number;
mod product;
