//! `burn-dist run`: starts the processes of a program, and stays with them to their end.
//!
//! Each process has a *supervisor*: a small process of this same program that starts it, hands its output to the
//! launcher, passes signals on, and says how it ended. Supervisors are started by `mpirun`, or directly with torchrun's
//! variables; everything else is the same in both cases. Nothing outlives the launcher: a supervisor whose launcher is
//! gone kills what it has started, process group and all, and a program whose supervisor is gone is killed by the
//! system.
//!
//! When a process fails, the others have [`Options::linger`] to end by themselves, which lets them say what they know
//! and write their records; then they get SIGTERM, and after [`Options::grace`] SIGKILL. The first failure is what is
//! reported, last and alone, with the last lines of its stderr; a process that SIGKILL or a fault (SIGSEGV, SIGBUS,
//! SIGILL, SIGFPE) has ended goes before those that failed because of it.
//!
//! With several machines, the launchers meet at the rendezvous too. One whose process has failed tells the others,
//! which end theirs likewise and report the same failure with the same exit code; and each stays until the
//! processes of all machines have ended well.
//!
//! SIGINT, SIGTERM and SIGHUP are passed on, and nobody is hurried after that: processes may save what they have. A
//! second one, at least a second later, is a SIGKILL for all, and with a third the launcher leaves. SIGUSR1, SIGUSR2
//! and SIGQUIT are passed on, and mean nothing here. What the launcher was started to ignore (`nohup`), all ignore.
//!
//! | exit code | meaning |
//! | --- | --- |
//! | 0 | every process has ended with 0 |
//! | N | that of the process that failed first, or ended first not with 0 after a signal |
//! | 128 + S | it was killed by signal S (137: SIGKILL, by the kernel for want of memory, say), or S came before all had started |
//! | 2 | options that cannot be |
//! | 125 | the launcher itself failed: no `mpirun`, a port in use; or `mpirun` ended before the processes |
//! | 126, 127 | the program cannot be run, is not there |
//!
//! | file | idea |
//! | --- | --- |
//! | `options` | what is asked, checked; the environment of each process |
//! | `supervisor` | one process, and the launcher's word to it |
//! | `output` | lines with the number of their process |
//! | `terminal` | a terminal of its own for process 0, so that its progress bar works |
//! | `signals`, `limits` | what the launcher was started with: ignored signals, open files |
//! | `starters` | `mpirun`, or what has started the supervisors |
//! | `events` | what happens, one after the other |
//! | `policy` | what the launcher does about it |
//! | `others` | the launchers of other machines |
//! | `outcome` | how it went, in words |
//! | `start` | one start of all processes, to its end |
//! | `restart` | starts until one goes well |

mod events;
mod limits;
mod options;
mod others;
mod outcome;
mod output;
mod policy;
mod restart;
mod signals;
mod start;
mod starters;
mod supervisor;
mod terminal;

pub use options::{Options, RunError, Transport};
pub use restart::run;
pub use supervisor::supervise;
