//! NVRTC in software.
//!
//! Programs load it as `libnvrtc.so.13`. It compiles kernels in CUDA C++ by the host's C++ compiler, with headers that
//! give the words of CUDA, into shared objects that the driver beside it opens: what programs take for PTX is the path
//! of one. See the folder's README.

mod calls;
mod headers;
mod kernels;
mod program;
mod ptx;
