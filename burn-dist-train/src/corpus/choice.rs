//! Choices that have names.

/// A word that names none of the choices.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is none of {choices}")]
pub struct UnknownChoice {
    found: String,
    choices: &'static str,
}

burn_dist_mesh::debug_by_message!(UnknownChoice);

impl UnknownChoice {
    pub(super) fn new(found: &str, choices: &'static str) -> Self {
        Self {
            found: found.to_string(),
            choices,
        }
    }
}

/// The text form of a choice, written and read by its table `NAMES`.
macro_rules! named {
    ($choice:ident, $choices:literal) => {
        impl ::std::fmt::Display for $choice {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                let named = Self::NAMES.iter().find(|(_, choice)| choice == self);
                f.pad(named.map_or("", |(name, _)| name))
            }
        }

        impl ::std::str::FromStr for $choice {
            type Err = $crate::corpus::UnknownChoice;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let named = Self::NAMES.iter().find(|(name, _)| *name == text);
                let unknown = || $crate::corpus::UnknownChoice::new(text, $choices);
                named.map(|(_, choice)| *choice).ok_or_else(unknown)
            }
        }
    };
}
pub(super) use named;
