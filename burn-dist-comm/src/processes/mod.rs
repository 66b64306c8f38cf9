//! Ranks of one mesh in several processes.
//!
//! Once all ranks of this process have made a call, the *progress engine* sends what the other processes need of their
//! inputs, and takes what comes of the others' ([`execution`](super::execution)). Each process sends a block to each
//! other process once, whatever the number of ranks there. The engine knows ranks by a trait only, so that nothing here
//! knows [`local`](super::local), which is above it.
//!
//! State machines keep the knowledge that processes have of each other: plain data, to which events come and from which
//! messages and verdicts follow. They have no thread, lock or clock, and are tested in every order of events of small
//! worlds. The engine hands them what it receives, and sends what they say.
//!
//! | state machine | idea |
//! | --- | --- |
//! | `membership` | the processes that are there, have taken their leave, have ended |
//! | `agreement` | whether all processes run the same windows |
//! | `farewell` | the end of a program: processes that are waited for, and those that do not answer |
//! | `faults` | the first fault wins, and everyone is notified once |
//! | `calls` | calls in flight, and inputs that came before theirs |
//! | `mesh` | all of it for one mesh |
//!
//! | file | idea |
//! | --- | --- |
//! | `engine`, `limits` | the progress engine: who drives it, and how much it keeps |
//! | `progress` | one turn of it: messages in, messages out |
//! | `head`, `window` | what a message says besides its body, and what it says of a window |
//! | `ranks`, `remote` | what the engine knows of the ranks here, and what they ask of it |
//! | `waiting`, `answer` | what the engine keeps of what came early, and for who waits |
//! | `peer`, `placement` | who the processes are, and which ranks they run |
//! | `watch` | which processes of this machine have ended, as the system tells |

mod agreement;
mod answer;
mod calls;
mod engine;
mod farewell;
mod faults;
mod head;
mod limits;
mod membership;
mod mesh;
mod peer;
mod placement;
mod progress;
mod ranks;
mod remote;
mod waiting;
mod watch;
mod window;

pub(crate) use agreement::Verdict;
pub(crate) use answer::Answer;
pub(crate) use engine::Engine;
pub(crate) use limits::{LIMITS, Limits};
pub(crate) use membership::End;
pub use peer::Peer;
pub(crate) use placement::Placement;
pub(crate) use ranks::{Opened, Ranks};
pub(crate) use remote::Remote;
pub use window::{KindName, PartPrint, WindowPrint};
