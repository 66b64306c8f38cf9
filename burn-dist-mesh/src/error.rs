//! Errors of a mesh, and the form of errors of all crates.

use std::error::Error;
use std::fmt;

use super::role::AxisRole;

/// Writes an error as people read it: its message, and those of its sources that it does not say itself. A program
/// whose `main` returns an error prints its [`Debug`](fmt::Debug).
#[doc(hidden)]
pub fn debug_by_message(error: &dyn Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut said = error.to_string();
    f.write_str(&said)?;
    let mut source = error.source();
    while let Some(error) = source {
        let message = error.to_string();
        if !said.contains(&message) {
            write!(f, "\n  because: {message}")?;
            said.push_str(&message);
        }
        source = error.source();
    }
    Ok(())
}

/// Implements [`Debug`](fmt::Debug) of an error by what it says and its sources say: its fields are for programs.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_by_message {
    ($error:ty) => {
        impl ::std::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                $crate::debug_by_message(self, f)
            }
        }
    };
}

/// The reason why a mesh, or a part of one, cannot be had.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MeshError {
    /// An axis name that the text forms could not carry.
    #[error(
        "`{name}` cannot name a mesh axis: start with a letter or `_`, go on with letters, digits, `_` or `-`, for \
         example `tp`"
    )]
    BadName {
        /// The name asked for.
        name: String,
    },
    /// An axis of size 0.
    #[error(
        "axis `{name}` has size 0: an axis spans at least 1 rank; leave the axis out if it is not used"
    )]
    EmptyAxis {
        /// The axis.
        name: String,
    },
    /// An axis whose name does not say what it is for.
    #[error(
        "the axis `{name}` has a name that says nothing of what it is for{} Known names are {}, and their long forms; for \
         another one say what it is for, as in `{name}:model={size}`: {}",
        .meant.map_or(".".into(), |meant| format!(": did you mean `{meant}={size}`?")), AxisRole::all_axes(),
        AxisRole::all()
    )]
    UnknownRole {
        /// The name.
        name: String,
        /// Ranks along the axis.
        size: usize,
        /// A known name that is like it.
        meant: Option<&'static str>,
    },
    /// Two axes of one name.
    #[error("axis `{name}` appears twice: give every axis its own name")]
    DuplicateAxis {
        /// The name.
        name: String,
    },
    /// More axes than an [`AxisIndex`](super::AxisIndex) can number.
    #[error("the mesh has {found} axes: at most {max} are supported")]
    TooManyAxes {
        /// Number of axes asked for.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// More ranks than a [`Rank`](super::Rank) can number.
    #[error("the mesh `{mesh}` has more than {max} ranks: make an axis smaller")]
    TooManyRanks {
        /// The mesh in text form.
        mesh: String,
        /// The limit.
        max: u32,
    },
    /// An axis, or a group of axes, that the mesh does not have.
    #[error("the mesh has no axis `{name}`: it has {}", list(.known))]
    UnknownAxis {
        /// The name asked for.
        name: String,
        /// The names of the mesh's axes.
        known: Vec<String>,
    },
    /// A mesh with links, and an axis whose name in links stands for groups by nodes.
    #[error(
        "a mesh with links cannot have an axis `{name}`, which in links stands for groups {name} nodes: give the axis \
         another name"
    )]
    LinkName {
        /// The name.
        name: String,
    },
    /// Two axes that cut a model into stages.
    #[error(
        "axes `{first}` and `{second}` of the mesh `{mesh}` both cut the model into stages: use one, of the product of \
         their sizes"
    )]
    TwoPipelines {
        /// Name of one of them.
        first: String,
        /// Name of the other.
        second: String,
        /// The mesh in text form.
        mesh: String,
    },
    /// A text that is not a mesh.
    #[error(
        "cannot read the mesh `{text}`: {problem}; write axes as name=size, for example `fsdp=2,tp=4`"
    )]
    Parse {
        /// The whole text.
        text: String,
        /// Why it cannot be read.
        problem: String,
    },
    /// Parallel degrees that do not multiply to the number of ranks.
    #[error("{degrees} needs {needed} ranks, but there are {world_size}: {hint}")]
    WorldSize {
        /// The degrees asked for, in text form.
        degrees: String,
        /// Product of the degrees.
        needed: usize,
        /// Number of ranks there are.
        world_size: usize,
        /// Degrees or nodes that would fit.
        hint: String,
    },
    /// Not one device per rank.
    #[error(
        "mesh `{mesh}` has {ranks} ranks, but {devices} devices were given: give one per rank, or axes whose sizes \
         multiply to {devices}"
    )]
    DeviceCount {
        /// The mesh in text form.
        mesh: String,
        /// Product of its sizes.
        ranks: usize,
        /// Devices passed.
        devices: usize,
    },
    /// Devices of another backend than the one that the ranks compute on.
    #[error(
        "the ranks compute on {backend}, whose devices are {expected}, but devices of type {devices} were given: choose \
         their backend too (`DeviceMeshBuilder::backend`), or leave the devices out"
    )]
    OtherDevices {
        /// The type of the devices.
        devices: String,
        /// The backend.
        backend: String,
        /// The type of its devices.
        expected: String,
    },
    /// More ranks than a process can run.
    #[error(
        "the mesh {mesh} has {ranks} ranks, and one process runs at most {ranks_max}, a thread each: plan it without \
         running it (`dry_run`), or use fewer"
    )]
    TooManyThreads {
        /// The mesh.
        mesh: String,
        /// Its ranks.
        ranks: usize,
        /// The limit.
        ranks_max: usize,
    },
    /// Nodes that do not hold the ranks.
    #[error("nodes of {nodes} ranks do not hold the {ranks} of the mesh: {hint}")]
    Nodes {
        /// Ranks of the mesh.
        ranks: usize,
        /// Text form of the nodes.
        nodes: String,
        /// Degrees or nodes that would fit.
        hint: String,
    },
    /// Processes that cannot share the ranks out, or cannot reach each other.
    #[error("the mesh {mesh}: {reason}")]
    Processes {
        /// The mesh.
        mesh: String,
        /// The reason, and what to do.
        reason: String,
        /// The exit code for a scheduler: see `CommError::exit_code` of `burn_dist::launch`.
        exit_code: u8,
    },
    /// More meshes in one process than Burn can number.
    #[error("this process has made more than 65,535 meshes: make one and share it")]
    TooManyMeshes,
    /// A seed of fuzz layouts that is not a number.
    #[error("BURN_DIST_FUZZ_LAYOUTS is `{text}`: give a whole number, for example 1")]
    FuzzSeed {
        /// The text.
        text: String,
    },
    /// A mode of elementwise work that does not exist.
    #[error("BURN_DIST_REGIONS is `{text}`: give on, off or flex")]
    Regions {
        /// The text.
        text: String,
    },
    /// A device that a rank of this process is to compute on, and that is not there.
    #[error("a rank of the mesh {mesh} cannot compute on {device}: {reason}")]
    NoDevice {
        /// The mesh.
        mesh: String,
        /// The device.
        device: String,
        /// The reason, and what to do.
        reason: String,
    },
    /// More than one degree left to be inferred.
    #[error(
        "{} are all to be inferred, which has no single answer: give all but one, for example {}={example}",
        .names.join(" and "), .names[0]
    )]
    InferTwice {
        /// The degrees left open.
        names: Vec<String>,
        /// A value that would fit the first of them.
        example: usize,
    },
}

crate::debug_by_message!(MeshError);

fn list(names: &[String]) -> String {
    if names.is_empty() {
        "no axes at all (a single rank)".to_owned()
    } else {
        names.join(", ")
    }
}

/// A text that says nothing of what a setting can be.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` {reason}")]
pub struct TextError {
    /// The text.
    pub text: String,
    /// Why not, and what it may say.
    pub reason: &'static str,
}

crate::debug_by_message!(TextError);

impl TextError {
    /// Returns that `text` is wrong for a `reason`, which goes on after it: "is not a ...: use ...".
    pub fn new(text: &str, reason: &'static str) -> Self {
        Self {
            text: text.to_owned(),
            reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(thiserror::Error)]
    enum Outer {
        #[error("the run cannot start")]
        Silent(#[source] MeshError),
        #[error("the run cannot start: {0}")]
        Saying(#[source] MeshError),
        #[error(transparent)]
        Transparent(MeshError),
    }

    crate::debug_by_message!(Outer);

    #[test]
    fn debug_says_what_the_error_and_its_sources_say_once() {
        let inner = || MeshError::DuplicateAxis { name: "tp".into() };
        let said = "axis `tp` appears twice: give every axis its own name";
        let debug = |error: Outer| format!("{:?}", Box::<dyn Error>::from(error));
        assert_eq!(format!("{:?}", inner()), said);
        assert_eq!(
            debug(Outer::Silent(inner())),
            format!("the run cannot start\n  because: {said}")
        );
        assert_eq!(
            debug(Outer::Saying(inner())),
            format!("the run cannot start: {said}")
        );
        assert_eq!(debug(Outer::Transparent(inner())), said);
    }
}
