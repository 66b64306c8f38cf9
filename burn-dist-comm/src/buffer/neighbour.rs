//! Memory of another process of this machine.

use std::mem::MaybeUninit;

/// Copies bytes from `address` on in the memory of a process; returns how many, at least one unless none are asked for.
///
/// # Errors
/// The system's: it is no process of this user, or has no such memory, or the system has no such call.
#[cfg(target_os = "linux")]
pub(crate) fn copy_from(
    pid: u32,
    address: usize,
    into: &mut [MaybeUninit<u8>],
) -> std::io::Result<usize> {
    use std::io::{Error, ErrorKind};
    if into.is_empty() {
        return Ok(0);
    }
    let here = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    let there = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(address),
        iov_len: into.len(),
    };
    let pid = pid.try_into().map_err(|_| ErrorKind::InvalidInput)?;
    // SAFETY: the system writes to the bytes of `into` alone, which are ours, and checks the other address itself.
    let copied = unsafe { libc::process_vm_readv(pid, &here, 1, &there, 1, 0) };
    match usize::try_from(copied) {
        Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
        Ok(copied) => Ok(copied),
        Err(_) => Err(Error::last_os_error()),
    }
}

/// There is no such call.
#[cfg(not(target_os = "linux"))]
pub(crate) fn copy_from(_: u32, _: usize, _: &mut [MaybeUninit<u8>]) -> std::io::Result<usize> {
    Err(std::io::ErrorKind::Unsupported.into())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_copied_where_they_are_and_nowhere_else() {
        let bytes = [7_u8; 100];
        let mut into = [MaybeUninit::uninit(); 100];
        let address = bytes.as_ptr().expose_provenance();
        let copied = copy_from(std::process::id(), address, &mut into).expect("own memory");
        assert_eq!(copied, 100);
        // SAFETY: they were copied.
        assert!(into.iter().all(|byte| unsafe { byte.assume_init() } == 7));
        assert!(copy_from(std::process::id(), 8, &mut into).is_err());
        assert!(copy_from(u32::MAX, address, &mut into).is_err());
        assert_eq!(copy_from(1, 8, &mut []).expect("nothing"), 0);
    }
}
