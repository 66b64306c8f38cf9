//! Copies between GPUs of several processes of one machine, through memory that all of them have mapped: a *symmetric
//! workspace*, which each rank has one of.
//!
//! | file | what |
//! | --- | --- |
//! | [`api`] | the few calls of CUDA's driver that share memory and wait for words, as a trait |
//! | [`os`] | Linux: memory without a name, descriptors sent over a socket; other systems have none of it |
//! | [`segment`] | what the members of a group tell each other: a page of host memory that all of them have mapped |
//! | [`rounds`] | which bytes of a call pass through a workspace when: pure |
//! | [`workspace`] | the workspace of a lane, and its links to those of others |
//! | [`launching`] | the copies of one call |
//! | `driver` | CUDA's driver (feature `cuda`) |
//!
//! A backend allocates from a pool whose memory no other process can map. So a member copies what it sends into its
//! workspace, and the others copy it from there to where it belongs: twice the copies of one process
//! ([`crate::peer`]), of which only the second crosses between GPUs. (PyTorch's symmetric memory does the same:
//! `torch.distributed._symmetric_memory`.)
//!
//! # What is shared
//! - The workspace, [`workspace::SLOTS`] slots of device memory. It is made with CUDA's virtual memory management, and
//!   reaches another process as a file descriptor, over a Unix socket (`SCM_RIGHTS`). There is one per rank and lane,
//!   as there is one stream.
//! - A segment per group and lane: host memory from `memfd_create`, which the first member makes and the others map.
//!   Devices write and wait for some of its words, hosts for others.
//!
//! A socket has an abstract name that members tell each other with their cards, a number of 128 bits that nobody else
//! knows; both ends check that the other one belongs to the same user.
//!
//! # Rounds
//! What a member sends in a call is one row of bytes, cut into pieces of a slot's size; round r carries the r-th piece
//! of every member. Slots are used in turn, by the calls of a lane one after the other.
//!
//! ```text
//! host of member m                                       stream of member m
//! ----------------                                       ------------------
//! enter (crate::streams)                                 waits for the backend
//! slot used before: waits until its readers have         waits for `read` of each of them
//!   put their copies on their streams (`followed`)
//! stage: round 0 into the slot                           copies, ready[m] = round
//! staged[m] = round, offer, offered[m] = call
//! waits for the offers of all members, taken[m] = call
//! each round r: stages it, unless it is the first one    as above
//!   waits for `staged` of each j that it reads of        waits for ready[j], copies
//!   followed[m] = round                                  read[m] = round
//! leave                                                  left = n
//! ```
//!
//! | word, of each member | set by | waited for by | says |
//! | --- | --- | --- | --- |
//! | `ready` | its device, behind what it stages | devices of those that read of it | the slot may be read |
//! | `read` | its device, behind its copies | devices of those that it has read of | the slot may be written again |
//! | `offered` | its host | all hosts | its offer of this call can be read |
//! | `taken` | its host | all hosts, before their next offer | it has read the offers of this call |
//! | `staged` | its host | hosts of those that read of it | what sets `ready` has been submitted |
//! | `followed` | its host | hosts of those that it has read of | what sets `read` has been submitted |
//!
//! - A stream waits for a word only when what sets it has been submitted to its device. So nothing waits on a device
//!   for a host that has not come yet, and a stream comes to its end whatever hosts do.
//! - There is no cycle: a round waits for `ready` of the same round, and for `read` of earlier rounds; all ranks make
//!   the calls of a lane in one order.
//! - What a call sends belongs to the backend again when it has been staged: nobody else reads it.
//! - Host memory carries the words, not the workspace: a host sees who is late, and ends waits by a store.
//!
//! # Faults
//! A process that dies takes its streams with it, and words that it would have set are never set. Whoever ends its
//! calls after a fault ([`Channels::abort`](crate::nccl::groups::Channels::abort)):
//!
//! 1. has notified the others of the fault, and sets `fault` in each of its segments;
//! 2. sets all words of its segments past what anyone waits for, so that streams come to their end.
//!
//! From then on others may copy what is not there yet, or no more. They do not hand it out: whoever reads a value first
//! waits for its calls, then looks at `fault`, which was set before, and waits for the fault itself.
//!
//! Memory that another process has mapped stays as long as it is mapped there, whatever becomes of the process that
//! made it. Each process unmaps when its own streams have come to their end, and else never.
//!
//! # What is not here
//! Sums in the network (multicast, NVLink SHARP), and kernels that read others' memory themselves. No machine with two
//! GPUs has run any of this. It is simulated between threads and between processes, with real descriptors, sockets,
//! pages.

pub mod api;
#[cfg(feature = "cuda")]
pub mod driver;
pub(crate) mod launching;
#[cfg(target_os = "linux")]
pub mod os;
#[cfg(not(target_os = "linux"))]
#[path = "os_none.rs"]
pub mod os;
pub(crate) mod rounds;
pub(crate) mod segment;
#[cfg(test)]
mod tests;
pub(crate) mod workspace;
