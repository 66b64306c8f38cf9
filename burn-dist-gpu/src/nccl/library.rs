//! The places where NCCL is looked for, and the error when it is not there.

use crate::GpuError;

/// Variables that say where libraries are: ours, which names the file, and the system loader's.
pub const VARIABLES: [&str; 2] = ["BURN_DIST_NCCL", "LD_LIBRARY_PATH"];

/// The name that libnccl2 installs, and the one of its development package. The number is that of the interface, which
/// has been 2 since 2017.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// The oldest version that is used, as NCCL counts: the first whose configuration has the layout that is handed over
/// here, and non-blocking communicators that can be aborted.
pub const NEEDED: Version = Version(2, 18, 0);

/// Major, minor, patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub i32, pub i32, pub i32);

impl Version {
    /// Reads the number of `ncclGetVersion`: 2708 is 2.7.8, 21805 is 2.18.5.
    pub fn of_code(code: i32) -> Self {
        match code {
            ..10_000 => Self(code / 1000, code / 100 % 10, code % 100),
            _ => Self(code / 10_000, code / 100 % 100, code % 100),
        }
    }

    /// The number of `ncclGetVersion`, for versions from 2.9 on.
    pub const fn code(self) -> u32 {
        (self.0 * 10_000 + self.1 * 100 + self.2) as u32
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// Opens the first library there is, and returns the name under which it was found.
///
/// # Errors
/// [`GpuError::NcclMissing`] with everything that was tried.
pub fn find<L>(
    variable: impl Fn(&str) -> Option<String>,
    mut open: impl FnMut(&str) -> Result<L, String>,
) -> Result<(String, L), GpuError> {
    let named = variable(VARIABLES[0]).filter(|name| !name.is_empty());
    let names: Vec<String> = match named {
        // Whoever names a file means that one.
        Some(name) => vec![name],
        None => NAMES.map(String::from).into(),
    };
    let mut tried = Vec::new();
    for name in names {
        match open(&name) {
            Ok(library) => return Ok((name, library)),
            Err(reason) => tried.push((name, reason)),
        }
    }
    Err(GpuError::NcclMissing {
        tried,
        paths: VARIABLES.map(|name| (name, variable(name))).into(),
    })
}

/// Refuses a variable of NCCL's that no mesh can be run with.
///
/// # Errors
/// [`GpuError::NcclUnusable`].
pub fn check_variables(
    library: &str,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<(), GpuError> {
    let Some(address) = variable("NCCL_COMM_ID") else {
        return Ok(());
    };
    let library = format!("{library} with NCCL_COMM_ID={address} in the environment");
    let reason = "all communicators would meet at that address, and each group of ranks has one of its own: unset \
        NCCL_COMM_ID \
        (NCCL_SOCKET_IFNAME says which network to meet on)";
    Err(unusable(&library, reason.to_string()))
}

/// Refuses a version that is too old.
///
/// # Errors
/// [`GpuError::NcclUnusable`].
pub fn check(library: &str, code: i32) -> Result<(), GpuError> {
    let version = Version::of_code(code);
    match version >= NEEDED {
        true => Ok(()),
        false => Err(unusable(library, format!("it is version {version}"))),
    }
}

/// Returns the error of a library that is there, and not usable.
pub fn unusable(library: &str, reason: String) -> GpuError {
    GpuError::NcclUnusable {
        library: library.to_string(),
        reason,
        needed: "2.18",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_says_what_was_tried_and_where() {
        let variable = |name: &str| (name == "LD_LIBRARY_PATH").then(|| "/opt/lib".to_string());
        let error = find(variable, |name| {
            Err::<(), _>(format!("{name}: cannot open"))
        })
        .expect_err("nothing is there");
        let text = error.to_string();
        for part in [
            "libnccl.so.2 (libnccl.so.2: cannot open)",
            "libnccl.so (libnccl.so: cannot open)",
            "LD_LIBRARY_PATH=/opt/lib",
            "BURN_DIST_NCCL is not set",
            "libnccl2",
            "GpuTransport::Host",
        ] {
            assert!(text.contains(part), "{text}: {part}");
        }
    }

    #[test]
    fn the_first_that_opens_is_taken_and_a_named_one_is_the_only_one() {
        let none = |_: &str| None;
        let open = |name: &str| match name {
            "libnccl.so" => Ok(7),
            other => Err(format!("no {other}")),
        };
        assert_eq!(find(none, open).ok(), Some(("libnccl.so".to_string(), 7)));
        let named = |name: &str| (name == "BURN_DIST_NCCL").then(|| "/x/libnccl.so.2".to_string());
        let error = find(named, open).expect_err("the named one is not there");
        let text = error.to_string();
        assert!(
            text.contains("/x/libnccl.so.2 (no /x/libnccl.so.2)"),
            "{text}"
        );
        assert!(!text.contains("tried: libnccl"), "{text}");
    }

    #[test]
    fn an_address_for_all_communicators_is_refused_by_name() {
        assert!(check_variables("libnccl.so.2", |_| None).is_ok());
        let set = |name: &str| (name == "NCCL_COMM_ID").then(|| "10.0.0.1:4000".to_string());
        let error = check_variables("libnccl.so.2", set).expect_err("one address for all");
        let text = error.to_string();
        for part in [
            "libnccl.so.2 with NCCL_COMM_ID=10.0.0.1:4000",
            "unset NCCL_COMM_ID (NCCL_SOCKET_IFNAME",
            "GpuTransport::Host",
        ] {
            assert!(text.contains(part), "{text}: {part}");
        }
    }

    #[test]
    fn old_versions_are_refused_by_name() {
        for (code, text) in [
            (2708, "2.7.8"),
            (2804, "2.8.4"),
            (21003, "2.10.3"),
            (21701, "2.17.1"),
        ] {
            let error = check("libnccl.so.2", code).expect_err("too old");
            let error = error.to_string();
            assert!(error.contains(&format!("it is version {text}")), "{error}");
            assert!(error.contains("libnccl.so.2 is no NCCL"), "{error}");
            assert!(error.contains("NCCL 2.18 or later"), "{error}");
        }
        for code in [21801, 22203, 23004, 30000] {
            assert!(check("libnccl.so.2", code).is_ok(), "{code}");
        }
        assert_eq!(Version::of_code(NEEDED.code() as i32), NEEDED);
    }
}
