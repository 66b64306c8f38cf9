//! Why processes are not connected at the start.

/// A process is gone or late, and another start may go better: see
/// [`CommError::exit_code`](crate::CommError::exit_code).
pub const EXIT_TEMPORARY: u8 = 75;
/// Processes cannot be set up as asked: see [`CommError::exit_code`](crate::CommError::exit_code).
pub const EXIT_CONFIG: u8 = 78;

/// Why processes are not connected at the start, and whether another start may go better.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct StartError {
    reason: String,
    exit_code: u8,
}

burn_dist_mesh::debug_by_message!(StartError);

impl StartError {
    /// A process is missing, late or gone, or a connection has ended: another start may go better.
    pub fn temporary(reason: impl Into<String>) -> Self {
        Self::relayed(reason, EXIT_TEMPORARY)
    }

    /// They are set up as cannot be: another start ends alike.
    pub fn config(reason: impl Into<String>) -> Self {
        Self::relayed(reason, EXIT_CONFIG)
    }

    /// Another process has reported it, with its own exit code.
    pub fn relayed(reason: impl Into<String>, exit_code: u8) -> Self {
        Self {
            reason: reason.into(),
            exit_code,
        }
    }

    /// Returns the exit code for a program that this ends: see [`CommError::exit_code`](crate::CommError::exit_code).
    pub fn exit_code(&self) -> u8 {
        self.exit_code
    }
}
