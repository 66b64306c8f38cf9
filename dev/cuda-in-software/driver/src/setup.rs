//! What the environment says of the machine to be.

use std::env;
use std::sync::OnceLock;

/// The machine to be.
pub(crate) struct Setup {
    /// `CUDA_IN_SOFTWARE_DEVICES`: how many GPUs there are (1).
    /// `CUDA_VISIBLE_DEVICES`: which of them this process sees (all).
    pub(crate) visible: Vec<usize>,
    /// How many GPUs this process sees.
    pub(crate) devices: usize,
    /// `CUDA_IN_SOFTWARE_MEMORY`: bytes of each GPU (4 GiB).
    pub(crate) memory: usize,
    /// `CUDA_IN_SOFTWARE_CAPABILITY`: the compute capability, major and minor (7.0).
    pub(crate) capability: (u32, u32),
    /// `CUDA_IN_SOFTWARE_SEED`: which order of work (0).
    pub(crate) seed: u64,
    /// `CUDA_IN_SOFTWARE_UNCHECKED`: of `bounds`, `unwritten` and `order`, what not to check (nothing).
    unchecked: String,
    /// `CUDA_IN_SOFTWARE_HANG`: a device that stops, like `1:200`: after as many operations.
    pub(crate) hangs: Option<(usize, u64)>,
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
    SETUP.get_or_init(read)
}

fn read() -> Setup {
    let visible = visible(
        number("CUDA_IN_SOFTWARE_DEVICES", 1) as usize,
        env::var("CUDA_VISIBLE_DEVICES").ok().as_deref(),
    );
    Setup {
        devices: visible.len(),
        visible,
        memory: number("CUDA_IN_SOFTWARE_MEMORY", 4 << 30) as usize,
        capability: parsed("CUDA_IN_SOFTWARE_CAPABILITY", |text| {
            let (major, minor) = text.split_once('.')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        })
        .unwrap_or((7, 0)),
        seed: number("CUDA_IN_SOFTWARE_SEED", 0),
        unchecked: env::var("CUDA_IN_SOFTWARE_UNCHECKED").unwrap_or_default(),
        hangs: parsed("CUDA_IN_SOFTWARE_HANG", |text| {
            let (device, after) = text.split_once(':')?;
            Some((device.parse().ok()?, after.parse().ok()?))
        }),
        says_all: env::var_os("CUDA_IN_SOFTWARE_SAY").is_some(),
    }
}

/// The GPUs that a list names, up to the first name that is of none, as NVIDIA's driver reads it.
fn visible(devices: usize, list: Option<&str>) -> Vec<usize> {
    let Some(list) = list else {
        return (0..devices).collect();
    };
    let named = list.split(',').map(|name| name.trim().parse().ok());
    let there = named.map_while(|number: Option<usize>| number.filter(|at| *at < devices));
    there.collect()
}

fn number(variable: &str, otherwise: u64) -> u64 {
    match env::var(variable) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{variable}={text}: not a number")),
        Err(_) => otherwise,
    }
}

/// Reads a variable that says more than a number.
fn parsed<T>(variable: &str, read: impl Fn(&str) -> Option<T>) -> Option<T> {
    let text = env::var(variable).ok()?;
    let found = read(&text);
    Some(found.unwrap_or_else(|| panic!("{variable}={text}: see the README")))
}

#[cfg(test)]
mod tests {
    use super::visible;

    #[test]
    fn a_list_names_gpus_up_to_one_that_is_not_there() {
        assert_eq!(visible(2, None), [0, 1]);
        assert_eq!(visible(4, Some("3, 1")), [3, 1]);
        assert_eq!(visible(2, Some("1,7,0")), [1]);
        assert!(visible(2, Some("")).is_empty());
    }
}
