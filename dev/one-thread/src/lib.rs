//! Test programs that run one test after the other.
//!
//! Burn 0.21.0 loses gradients where several threads run a backward at once (tracel-ai/burn#5573; `tests/threads.rs`
//! shows it), and tests of one program are such threads. Programs that train say [`one_thread!`](crate::one_thread); all
//! others use as many threads as there are cores. Ranks use all cores everywhere.

#[doc(hidden)]
pub use ctor;

/// Has the tests of this program run one after the other, unless `RUST_TEST_THREADS` says otherwise.
#[macro_export]
macro_rules! one_thread {
    () => {
        #[$crate::ctor::ctor(unsafe, crate_path = $crate::ctor)]
        fn one_thread() {
            $crate::set();
        }
    };
}

#[doc(hidden)]
pub fn set() {
    const THREADS: &str = "RUST_TEST_THREADS";
    if std::env::var_os(THREADS).is_none() {
        // SAFETY: called before `main`, when the program has one thread.
        unsafe { std::env::set_var(THREADS, "1") };
    }
}
