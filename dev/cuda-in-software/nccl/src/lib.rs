//! NCCL in software, within a process.
//!
//! Programs load it as `libnccl.so.2`. What they call is put on streams of the driver beside it as meetings: the
//! streams of all members come to it, and go on when its bytes have moved. See the folder's README.

mod calls;
mod communicator;
mod driver;
mod issue;
mod moves;
mod status;
