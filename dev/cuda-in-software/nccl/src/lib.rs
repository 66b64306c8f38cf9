//! NCCL in software.
//!
//! Programs load it as `libnccl.so.2`. What they call is put on streams of the driver beside it as meetings: the
//! streams of all members come to it, and go on when its bytes have moved. Between processes, each member's stream
//! comes to a meeting of its own, and goes on when letters of all others are there. See the folder's README.

mod calls;
mod communicator;
mod hub;
mod issue;
mod mail;
mod moves;
mod status;
