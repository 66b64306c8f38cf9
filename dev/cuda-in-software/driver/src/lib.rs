//! CUDA's driver in software.
//!
//! Programs load it as `libcuda.so.1`. Its memory is the host's, at addresses of its own, and kernels are shared
//! objects that the compiler beside it makes. What a program asks for is queued, and runs late, in one of the orders
//! that streams and events allow; every access of a kernel and of a copy is checked. See the folder's README.

mod access;
mod calls;
mod clock;
mod fault;
mod machine;
mod meeting;
mod memory;
mod module;
mod queue;
mod run;
mod setup;
mod shadow;
mod status;
