//! `burn-dist run`: starts the processes of a program, and stays with them to their end.
//!
//! Each process has a *seat*: a small process of this same program that starts it, hands its output to the launcher, passes signals on, and says how it ended. Seats are started by
//! `mpirun`, or directly with torchrun's variables; everything else is the same in both cases. Nothing outlives the launcher: a seat whose launcher is gone kills what it has
//! started, process group and all, and a program whose seat is gone is killed by the system.
//!
//! When a process fails, the others have [`Options::linger`] to end by themselves, which lets them say what they know and write their records; then they get SIGTERM, and after
//! [`Options::grace`] SIGKILL. The first failure is what is reported, last and alone, with the last lines of its stderr; a process killed by a signal that nobody here has sent
//! goes before those that failed because of it.
//!
//! | exit code | meaning |
//! | --- | --- |
//! | 0 | every process has ended with 0 |
//! | N | that of the process that failed first |
//! | 128 + S | it was killed by signal S (137: SIGKILL, by the kernel for want of memory, say) |
//! | 2 | options that cannot be |
//! | 125 | the launcher itself failed: no `mpirun`, a port in use |
//! | 126, 127 | the program cannot be run, is not there |
//!
//! | file | idea |
//! | --- | --- |
//! | `options` | what is asked, checked; the environment of each process |
//! | `seat` | one process, and the launcher's word to it |
//! | `output` | lines with the number of their process |
//! | `terminal` | a terminal of its own for process 0, so that its progress bar works |
//! | `supervise` | from start to end, once |

mod options;
mod output;
mod seat;
mod supervise;
mod terminal;

pub use options::{Options, RunError, Transport};
pub use seat::sit;
pub use supervise::run;
