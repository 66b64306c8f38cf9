//! What went wrong, in words that name the call.

use crate::status::Status;
use std::ffi::CString;
use std::sync::Mutex;

/// Something that a program must not do; or a call that fails as calls do, without a text.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) status: Status,
    pub(crate) text: String,
}

impl Fault {
    pub(crate) fn new(status: Status, text: impl Into<String>) -> Self {
        Fault {
            status,
            text: text.into(),
        }
    }

    /// Says in which call.
    pub(crate) fn within(mut self, call: &str) -> Self {
        self.text = format!("{call}: {}", self.text);
        self
    }
}

impl From<Status> for Fault {
    fn from(status: Status) -> Self {
        Fault::new(status, "")
    }
}

/// The last fault of each status, for `cuGetErrorString`, which has no other way to say more than a number.
static LAST: Mutex<Vec<(Status, CString)>> = Mutex::new(Vec::new());

/// Keeps a fault's text, and prints it: the process may end before anybody asks.
pub(crate) fn note(fault: &Fault) {
    eprintln!("CUDA in software: {}", fault.text);
    let text = CString::new(fault.text.replace('\0', " ")).unwrap_or_default();
    let mut last = LAST.lock().expect("no panic while a text is kept");
    last.retain(|(status, _)| *status != fault.status);
    last.push((fault.status, text));
}

/// Returns the text of the last fault of a status. It is never released: a program may hold it as long as it likes.
pub(crate) fn last(status: Status) -> Option<*const std::ffi::c_char> {
    let last = LAST.lock().expect("no panic while a text is kept");
    let (_, text) = last.iter().find(|(of, _)| *of == status)?;
    Some(text.clone().into_raw())
}
