//! Shares of a program's tests, and the processes that run them.

use std::io::{Write, stdout};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

/// Shares of each process: so many that a long one at the end holds up little, and so few that starting them takes no
/// time.
const SHARES_PER_PROCESS: usize = 16;

/// Cuts the tests into shares, in their order, for so many processes.
pub(crate) fn of(names: &[String], processes: usize) -> Vec<&[String]> {
    let tests = names.len().div_ceil(processes * SHARES_PER_PROCESS);
    names.chunks(tests.max(1)).collect()
}

/// Runs the shares, so many at a time, and prints what each has printed when it has ended; whether any has failed.
pub(crate) fn run(shares: &[&[String]], processes: usize, options: &[String]) -> bool {
    let (next, has_failed, printing) =
        (AtomicUsize::new(0), AtomicBool::new(false), Mutex::new(()));
    let work = || {
        while let Some(share) = shares.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (printed, success) = outcome(share, options);
            if !success {
                has_failed.store(true, Ordering::Relaxed);
            }
            let printing = printing.lock();
            // Nobody reads what cannot be written.
            let _ = stdout().write_all(&printed).and_then(|()| stdout().flush());
            drop(printing);
        }
    };
    thread::scope(|scope| {
        for _ in 0..processes.min(shares.len()) {
            scope.spawn(work);
        }
    });
    has_failed.load(Ordering::Relaxed)
}

/// Runs the tests of a share in a process; returns what it prints, and whether it succeeds.
fn outcome(share: &[String], options: &[String]) -> (Vec<u8>, bool) {
    let output = std::env::current_exe().and_then(|program| {
        let mut process = Command::new(program);
        process.args(options).arg("--exact").args(share);
        process.output()
    });
    match output {
        Ok(output) => {
            let mut printed = [output.stdout, output.stderr].concat();
            if !output.status.success() {
                let ended = format!("process with {}: {}\n", share.join(", "), output.status);
                printed.extend_from_slice(ended.as_bytes());
            }
            (printed, output.status.success())
        }
        Err(error) => (
            format!("this program cannot be run once more: {error}\n").into_bytes(),
            false,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_test_has_one_share_in_order() {
        for num in [0, 1, 2, 31, 32, 33, 400] {
            let names: Vec<String> = (0..num).map(|number| number.to_string()).collect();
            for processes in [1, 2, 7] {
                let shares = of(&names, processes);
                assert_eq!(shares.concat(), names);
                assert!(shares.len() <= processes * SHARES_PER_PROCESS);
                assert_eq!(shares.is_empty(), names.is_empty());
            }
        }
    }
}
