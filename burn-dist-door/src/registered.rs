//! A recorder that is known only when the program runs.

use std::sync::OnceLock;

use crate::{Elements, Inner, MeshDevice, Recorder};

/// Makes the recorder of a mesh.
type Open = fn(&MeshDevice) -> Box<dyn Recorder>;

static OPEN: OnceLock<Open> = OnceLock::new();

/// Registers what makes the recorders of meshes for [`Registered`]. The first one that is registered stays.
pub fn register(open: fn(&MeshDevice) -> Box<dyn Recorder>) {
    // One engine is linked into a program, and it registers itself each time that it makes a mesh.
    let _ = OPEN.set(open);
}

/// The ranks of a program whose tensors name no backend: their recorders are [registered](register) when the program
/// runs, and which backend they compute on is a matter of the mesh.
#[derive(Clone, Copy, Debug)]
pub struct Registered;

impl Elements for Registered {
    type FloatElem = f32;
    type IntElem = i64;
    type BoolElem = bool;
}

impl Inner for Registered {
    type Recorder = Box<dyn Recorder>;

    /// # Panics
    /// If nothing is registered: Burn's functions return tensors, so an error cannot be returned.
    fn open(device: &MeshDevice) -> Box<dyn Recorder> {
        match OPEN.get() {
            Some(open) => open(device),
            None => panic!(
                "{device:?} has no ranks: the program was built with a door into burn-dist and has made no mesh with \
                 it; make one (`DeviceMesh`), and tensors on its device"
            ),
        }
    }

    fn has_ctc_loss_backward() -> bool {
        false
    }
}
