//! Which signals to catch, and their names.

use nix::sys::signal::Signal;
use std::mem::MaybeUninit;

/// Returns those of `signals` that this process was not started to ignore, as `nohup` does with SIGHUP; what it starts
/// ignores them too.
pub(super) fn not_ignored<const N: usize>(signals: [i32; N]) -> Vec<i32> {
    let caught = signals.into_iter().filter(|signal| !is_ignored(*signal));
    caught.collect()
}

fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<nix::libc::sigaction>::uninit();
    // SAFETY: a system call that changes nothing, and writes to a place of its type.
    let answer = unsafe { nix::libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: it has been written if the answer is 0.
    answer == 0 && unsafe { action.assume_init() }.sa_sigaction == nix::libc::SIG_IGN
}

/// Returns the name of a signal, as SIGINT.
pub(super) fn name(signal: i32) -> String {
    match Signal::try_from(signal) {
        Ok(named) => named.as_str().into(),
        Err(_) => format!("signal {signal}"),
    }
}
