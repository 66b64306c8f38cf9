//! What burn-dist promises on Burn's current line, through its public API, on ranks that are threads. On Burn 0.21 it
//! promises the same (`tests-021`), and more of it is tested there.
//!
//! One program: each of its own would compile what they share once more.

mod experts;
mod regions;

one_thread::one_thread_per_process!();
