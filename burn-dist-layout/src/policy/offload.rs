//! Offload to host memory.

use std::fmt;
use std::str::FromStr;

use burn_dist_mesh::TextError;

/// The tensors that live in host memory while they are not needed.
///
/// Text form: a list of `params`, `optimizer` and `activations`, and `host=N` for a limit in bytes; or `none`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Offload {
    /// Parameters at rest.
    pub params: bool,
    /// Optimizer state.
    pub optimizer: bool,
    /// Activations between their last use in the forward and their first in the backward.
    pub activations: bool,
    /// The most host memory that all ranks of this process may take together, in bytes; without it, whatever is needed.
    /// Where units differ, the least counts.
    pub host_bytes_max: Option<u64>,
}

impl Offload {
    /// Returns whether anything is moved.
    pub fn is_on(&self) -> bool {
        self.params || self.optimizer || self.activations
    }
}

impl fmt::Display for Offload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        for (on, name) in [
            (self.params, "params"),
            (self.optimizer, "optimizer"),
            (self.activations, "activations"),
        ] {
            if on {
                parts.push(name.to_string());
            }
        }
        if let Some(bytes) = self.host_bytes_max {
            parts.push(format!("host={bytes}"));
        }
        match parts.is_empty() {
            true => f.write_str("none"),
            false => f.write_str(&parts.join(",")),
        }
    }
}

impl FromStr for Offload {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut offload = Self::default();
        if text == "none" {
            return Ok(offload);
        }
        for part in text.split(',') {
            match part.split_once('=') {
                None if part == "params" => offload.params = true,
                None if part == "optimizer" => offload.optimizer = true,
                None if part == "activations" => offload.activations = true,
                Some(("host", bytes)) if bytes.parse::<u64>().is_ok() => {
                    offload.host_bytes_max = bytes.parse().ok();
                }
                _ => {
                    return Err(TextError::new(
                        text,
                        "does not say what to offload: use none, or a list of params, optimizer and activations, with \
                     host=BYTES for a limit",
                    ));
                }
            }
        }
        Ok(offload)
    }
}
