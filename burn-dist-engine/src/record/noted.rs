//! Layouts that are noted instead of being asked for.

use std::cell::RefCell;

use burn_dist_plan::ParamSpec;

thread_local! {
    static NOTED: RefCell<Option<Vec<ParamSpec>>> = const { RefCell::new(None) };
}

/// Ends the noting also if what is called panics.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        NOTED.set(None);
    }
}

/// Calls `f`, and returns what it pins on this thread instead of pinning it.
pub fn noting(f: impl FnOnce()) -> Vec<ParamSpec> {
    NOTED.set(Some(Vec::new()));
    let end = End;
    f();
    let noted = NOTED.take().unwrap_or_default();
    drop(end);
    noted
}

/// Notes what a parameter asks for, if this thread only notes it.
pub(super) fn notes(spec: &ParamSpec) -> bool {
    NOTED.with_borrow_mut(|noted| match noted {
        Some(specs) => {
            specs.push(spec.clone());
            true
        }
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_the_noting() {
        let panicked = std::panic::catch_unwind(|| noting(|| panic!("on the way")));
        assert!(panicked.is_err());
        assert!(NOTED.with_borrow(Option::is_none));
    }
}
