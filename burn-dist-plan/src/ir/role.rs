//! Roles of values and phases of operations in training.

use std::sync::Arc;

use super::param::ParamSpec;

/// What a value is to training.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// A parameter, a cast of one, or what replaces it.
    Parameter(Arc<ParamSpec>),
    /// A gradient of a parameter, if it is known of which.
    Gradient(Option<Arc<ParamSpec>>),
    /// What an optimizer keeps for a parameter, and what its update makes of that alone.
    State(Arc<ParamSpec>),
    /// Made on the way, forward or backward.
    Activation,
    /// Data of the host.
    Input,
    /// Made of nothing but constants.
    Constant,
    /// From outside, and nothing is known of it.
    #[default]
    Unknown,
}

impl Role {
    /// Returns what is known of it as a parameter.
    pub fn parameter(&self) -> Option<&Arc<ParamSpec>> {
        match self {
            Self::Parameter(spec) => Some(spec),
            _ => None,
        }
    }

    /// Returns the parameter that it is, or is to update.
    pub fn belongs_to(&self) -> Option<&Arc<ParamSpec>> {
        match self {
            Self::Parameter(spec) | Self::State(spec) | Self::Gradient(Some(spec)) => Some(spec),
            _ => None,
        }
    }

    /// Returns whether what comes from outside as such may turn out to be what an optimizer keeps.
    pub(crate) fn may_be_state(&self) -> bool {
        matches!(
            self,
            Self::Unknown | Self::Constant | Self::Activation | Self::Gradient(None)
        )
    }

    /// Returns its name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Parameter(_) => "parameter",
            Self::Gradient(_) => "gradient",
            Self::State(_) => "state",
            Self::Activation => "activation",
            Self::Input => "input",
            Self::Constant => "constant",
            Self::Unknown => "unknown",
        }
    }
}

/// Which part of a step an operation belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// From data and parameters.
    Forward,
    /// From gradients.
    Backward,
    /// From gradients to what replaces a parameter or a state.
    Update,
}
