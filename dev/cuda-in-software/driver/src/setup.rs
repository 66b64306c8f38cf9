//! What the environment says of the machine to be.

use std::env;
use std::sync::OnceLock;

/// The machine to be.
pub(crate) struct Setup {
    /// `CUDA_IN_SOFTWARE_DEVICES`: how many GPUs (1).
    pub(crate) devices: usize,
    /// `CUDA_IN_SOFTWARE_MEMORY`: bytes of each GPU (4 GiB).
    pub(crate) memory: usize,
    /// `CUDA_IN_SOFTWARE_SEED`: which order of work (0).
    pub(crate) seed: u64,
    /// `CUDA_IN_SOFTWARE_UNCHECKED`: of `bounds`, `unwritten` and `order`, what not to check (nothing).
    unchecked: String,
    /// `CUDA_IN_SOFTWARE_SAY`: whether calls that fail without a text are printed (if it is set).
    pub(crate) says_all: bool,
}

impl Setup {
    pub(crate) fn checks(&self, what: &str) -> bool {
        !self.unchecked.split(',').any(|name| name == what)
    }
}

/// Returns what the environment says.
pub(crate) fn setup() -> &'static Setup {
    static SETUP: OnceLock<Setup> = OnceLock::new();
    SETUP.get_or_init(|| Setup {
        devices: number("CUDA_IN_SOFTWARE_DEVICES", 1) as usize,
        memory: number("CUDA_IN_SOFTWARE_MEMORY", 4 << 30) as usize,
        seed: number("CUDA_IN_SOFTWARE_SEED", 0),
        unchecked: env::var("CUDA_IN_SOFTWARE_UNCHECKED").unwrap_or_default(),
        says_all: env::var_os("CUDA_IN_SOFTWARE_SAY").is_some(),
    })
}

fn number(variable: &str, otherwise: u64) -> u64 {
    match env::var(variable) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{variable}={text}: not a number")),
        Err(_) => otherwise,
    }
}
