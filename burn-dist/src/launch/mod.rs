//! How the processes of a program are started, and how they find each other.
//!
//! | module | idea |
//! | --- | --- |
//! | [`place`] | which of several processes this one is, from what its launcher says |
//! | [`rendezvous`] | where processes meet before they have a transport: keys, barriers, and who has vanished (features `mpi`, `cuda`, `cli`) |
//! | [`run`] | the program `burn-dist run` (feature `cli`) |
//!
//! A program needs none of this by name: [`World::of_launcher`](crate::comm::World::of_launcher) does it. One that can resume asks [`restarts`].

#[cfg(feature = "rendezvous")]
pub mod meet;
pub mod place;
#[cfg(feature = "rendezvous")]
pub mod rendezvous;
#[cfg(all(feature = "cli", unix))]
pub mod run;

#[cfg(feature = "rendezvous")]
pub use meet::meeting;
pub use place::{Launcher, Master, Place, PlaceError};

/// The variable in which `burn-dist run --max-restarts` counts its restarts.
pub const RESTART: &str = "BURN_DIST_RESTART";

/// Returns how often `burn-dist run --max-restarts` has started this program anew, after a failure: 0 for the first time, and under other launchers.
///
/// What a program that saves its state does with it:
///
/// ```
/// let resume = burn_dist::launch::restarts() > 0;
/// assert!(!resume, "nothing has failed yet");
/// ```
pub fn restarts() -> u32 {
    let counted = std::env::var(RESTART).ok();
    counted
        .and_then(|count| count.trim().parse().ok())
        .unwrap_or(0)
}
