//! Test programs that run one test after the other in a process, and use the machine's cores by several processes.
//!
//! Burn loses gradients where several threads run a backward at once (tracel-ai/burn#5573; `tests-021/threads.rs` shows
//! it), and tests of one program are such threads. Programs that train say
//! [`one_thread_per_process!`](crate::one_thread_per_process), and start themselves again with a few of their tests
//! each time, as many at a time as there are cores, until all have run. Programs whose tests are not to be disturbed
//! say [`one_thread!`](crate::one_thread). All others use as many threads as there are cores. Ranks use all cores
//! everywhere.

mod arguments;
mod shares;

#[doc(hidden)]
pub use ctor;

use std::process::Command;

/// Has the tests of this program run one after the other, unless `RUST_TEST_THREADS` says otherwise: for tests that
/// need the whole machine, or use what it has once.
#[macro_export]
macro_rules! one_thread {
    () => {
        #[$crate::ctor::ctor(unsafe, crate_path = $crate::ctor)]
        fn one_thread() {
            $crate::set();
        }
    };
}

/// Has the tests of this program run one after the other in each of as many processes as there are cores, unless
/// `RUST_TEST_THREADS` or `--test-threads` says otherwise.
#[macro_export]
macro_rules! one_thread_per_process {
    () => {
        #[$crate::ctor::ctor(unsafe, crate_path = $crate::ctor)]
        fn one_thread() {
            $crate::set_and_share();
        }
    };
}

const THREADS: &str = "RUST_TEST_THREADS";

#[doc(hidden)]
pub fn set() {
    if std::env::var_os(THREADS).is_none() {
        // SAFETY: called before `main`, when the program has one thread.
        unsafe { std::env::set_var(THREADS, "1") };
    }
}

#[doc(hidden)]
pub fn set_and_share() {
    // Set in the processes that this one starts.
    if std::env::var_os(THREADS).is_some() {
        return;
    }
    set();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let processes = std::thread::available_parallelism().map_or(1, usize::from);
    let Some(options) = arguments::options(&arguments).filter(|_| processes > 1) else {
        return;
    };
    let names = names(&arguments).unwrap_or_default();
    let shares = shares::of(&names, processes);
    if shares.len() > 1 {
        let has_failed = shares::run(&shares, processes, &options);
        // As the harness ends.
        std::process::exit(if has_failed { 101 } else { 0 });
    }
}

/// The tests that the arguments ask for; `None` if the program does not list them.
fn names(arguments: &[String]) -> Option<Vec<String>> {
    let program = std::env::current_exe().ok()?;
    let mut list = Command::new(program);
    list.args(arguments).args(["--list", "--format", "terse"]);
    let output = list
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let listed = String::from_utf8(output.stdout).ok()?;
    let name = |line: &str| line.strip_suffix(": test").map(str::to_owned);
    Some(listed.lines().filter_map(name).collect())
}
