//! What the communication library beside this driver calls: no names of NVIDIA's.

use super::{Handle, enqueue, within};
use crate::fault::Fault;
use crate::machine::machine;
use crate::meeting::{Body, Meeting, Ready};
use crate::queue::Work;
use crate::status::{INVALID_VALUE, Status};
use std::collections::HashMap;
use std::ffi::{CStr, c_char};
use std::sync::{Arc, Mutex};

/// Meetings by key; they stay, for they are small, and a key is of one.
static MEETINGS: Mutex<Option<HashMap<u64, Arc<Meeting>>>> = Mutex::new(None);

/// A member's part in a meeting.
#[repr(C)]
struct Part {
    key: u64,
    member: u32,
    members: u32,
    body: Option<Body>,
    ready: Option<Ready>,
    brought: usize,
}

/// Puts on a stream that it takes part in meetings: it goes on when all of them are over. The first member of a meeting
/// that calls this says what its body is given.
///
/// # Safety
/// There are as many parts, bodies take what is brought for them, and the name ends with a zero.
#[unsafe(no_mangle)]
unsafe extern "C" fn softwareMeet(
    stream: Handle,
    name: *const c_char,
    parts: *const Part,
    count: usize,
) -> Status {
    // SAFETY: the caller's promise.
    let (name, parts) = unsafe {
        (
            CStr::from_ptr(name),
            std::slice::from_raw_parts(parts, count),
        )
    };
    let name = name.to_string_lossy();
    within(&name, || {
        let mut all = MEETINGS.lock().expect("no panic among meetings");
        let all = all.get_or_insert_default();
        let mut taken = Vec::new();
        for part in parts {
            let body = part.body.ok_or_else(|| Fault::from(INVALID_VALUE))?;
            let new = || Meeting::new(part.members as usize, body, part.ready, part.brought);
            let new = || Arc::new(new());
            let meeting = all.entry(part.key).or_insert_with(new);
            taken.push((Arc::clone(meeting), part.member as usize));
        }
        enqueue(&name, stream, Work::Meet(taken))
    })
}

/// Lets a member's stream go on without meetings.
///
/// # Safety
/// There are as many keys.
#[unsafe(no_mangle)]
unsafe extern "C" fn softwareLeave(keys: *const u64, count: usize, member: u32) -> Status {
    within("softwareLeave", || {
        let all = MEETINGS.lock().expect("no panic among meetings");
        // SAFETY: the caller's promise.
        for key in unsafe { std::slice::from_raw_parts(keys, count) } {
            if let Some(meeting) = all.as_ref().and_then(|all| all.get(key)) {
                meeting.leaves(member as usize);
            }
        }
        drop(all);
        machine().begin(&mut machine().lock());
        Ok(())
    })
}
