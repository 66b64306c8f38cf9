//! What the environment says of the calls of all the libraries: which one is to fail, and where they are noted.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

/// A call that fails.
#[derive(Debug, PartialEq, Eq)]
struct Failing {
    call: String,
    /// From 1 on.
    number: u64,
    status: u32,
}

impl Failing {
    fn read(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let failing = Failing {
            call: parts.next()?.into(),
            number: parts.next()?.parse().ok()?,
            status: parts.next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(failing)
    }
}

struct Environment {
    /// `CUDA_IN_SOFTWARE_FAIL`: a call that fails, like `cuLaunchKernel:3:700`.
    fails: Option<Failing>,
    /// `CUDA_IN_SOFTWARE_CALLED`: a folder in which there is a file by the name of each function that was called.
    called: Option<PathBuf>,
}

fn environment() -> &'static Environment {
    static ENVIRONMENT: OnceLock<Environment> = OnceLock::new();
    ENVIRONMENT.get_or_init(|| {
        const FAIL: &str = "CUDA_IN_SOFTWARE_FAIL";
        let fails = env::var(FAIL).ok().map(|text| {
            Failing::read(&text).unwrap_or_else(|| panic!("{FAIL}={text}: see the README"))
        });
        let called = env::var_os("CUDA_IN_SOFTWARE_CALLED").map(PathBuf::from);
        Environment { fails, called }
    })
}

/// Notes that a function is called, and returns the status with which this call is to fail, if it is.
pub fn enter(name: &'static str) -> Option<u32> {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    note(name);
    let to_fail = environment()
        .fails
        .as_ref()
        .filter(|to_fail| to_fail.call == name)?;
    let is_it = CALLS.fetch_add(1, Ordering::Relaxed) + 1 == to_fail.number;
    is_it.then(|| {
        eprintln!("CUDA in software: {name}: it is to fail");
        to_fail.status
    })
}

/// Notes that a function is called that cannot fail.
pub fn note(name: &'static str) {
    static NOTED: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    let Some(folder) = &environment().called else {
        return;
    };
    let mut noted = NOTED.lock().expect("no panic while a call is noted");
    if noted.insert(name) {
        let made = fs::create_dir_all(folder).and_then(|()| fs::write(folder.join(name), ""));
        made.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    }
}

#[cfg(test)]
mod tests {
    use super::Failing;

    #[test]
    fn a_failing_call_has_a_name_a_number_and_a_status() {
        let read = Failing::read("cuLaunchKernel:3:700").expect("three parts");
        assert_eq!(
            (read.call.as_str(), read.number, read.status),
            ("cuLaunchKernel", 3, 700)
        );
        assert_eq!(Failing::read("cuLaunchKernel:3"), None);
        assert_eq!(Failing::read("cuLaunchKernel:3:700:1"), None);
    }
}
