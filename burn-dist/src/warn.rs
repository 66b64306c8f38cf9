//! Warnings that people have to see.

/// Warns: by an event of `tracing`, or on standard error where the program has no subscriber that takes it.
pub(crate) fn warn(text: &str) {
    match tracing::enabled!(target: "burn_dist", tracing::Level::WARN) {
        true => tracing::warn!(target: "burn_dist", "{text}"),
        false => eprintln!("warning: {text}"),
    }
}
