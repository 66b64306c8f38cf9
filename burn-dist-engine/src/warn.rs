//! Warnings that people have to see.

use std::io::Write;

/// Warns: by an event of `tracing`, or on standard error where the program has no subscriber that takes it.
pub fn warn(text: &str) {
    match tracing::enabled!(target: "burn_dist", tracing::Level::WARN) {
        true => tracing::warn!(target: "burn_dist", "{text}"),
        // Whoever reads it may have closed it: nobody is left to be told.
        false => drop(writeln!(std::io::stderr(), "warning: {text}")),
    }
}
