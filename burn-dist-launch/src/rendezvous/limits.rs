//! How long a process may be silent: the variable, and the bounds.

use std::time::Duration;

/// The variable that says for how many seconds a process at a rendezvous may be silent before it counts as lost: at
/// least 3, since it says that it is alive every second, and at most a day. 30 if it is not set.
///
/// Anything that stops a whole process for a while, such as a debugger, makes it silent. That of each process counts
/// for it; that of the one that keeps the rendezvous, for those without.
pub const SILENCE_SECONDS: &str = "BURN_DIST_SILENCE_SECONDS";

/// How long that is if nobody says.
pub(super) const SILENCE: Duration = Duration::from_secs(30);

/// The least, three times as long as between two signs of life.
pub(super) const SILENCE_MIN: Duration = Duration::from_secs(3);
