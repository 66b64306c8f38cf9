//! A recorder that is known only when the program runs.

use std::sync::OnceLock;

use burn_backend::backend::DeviceSettings;

use crate::{Inner, MeshDevice, Recorder};

/// An engine, as far as a program knows it whose tensors name no backend.
#[derive(Clone, Copy, Debug)]
pub struct Engine {
    /// Makes the recorder of a mesh.
    pub open: fn(&MeshDevice) -> Box<dyn Recorder>,
    /// Returns what tensors on a mesh are made of where a program does not say.
    pub settings: fn(&MeshDevice) -> DeviceSettings,
}

static ENGINE: OnceLock<Engine> = OnceLock::new();

/// Registers the engine of [`Registered`]. The first one that is registered stays.
pub fn register(engine: Engine) {
    // One engine is linked into a program, and it registers itself each time that it makes a mesh.
    let _ = ENGINE.set(engine);
}

/// Returns the engine of the program.
///
/// # Panics
/// If none is registered: Burn's functions return tensors, so an error cannot be returned.
pub(crate) fn engine(device: &MeshDevice) -> &'static Engine {
    match ENGINE.get() {
        Some(engine) => engine,
        None => panic!(
            "{device:?} has no ranks: the program was built with a door into burn-dist and has made no mesh with it; \
             make one (`DeviceMesh`), and tensors on its device"
        ),
    }
}

/// The ranks of a program whose tensors name no backend: their recorders are [registered](register) when the program
/// runs, and which backend they compute on is a matter of the mesh.
#[derive(Clone, Copy, Debug)]
pub struct Registered;

#[cfg(burn_021)]
impl crate::Elements for Registered {
    type FloatElem = f32;
    type IntElem = i64;
    type BoolElem = bool;
}

impl Inner for Registered {
    type Recorder = Box<dyn Recorder>;

    fn open(device: &MeshDevice) -> Box<dyn Recorder> {
        (engine(device).open)(device)
    }

    fn has_ctc_loss_backward() -> bool {
        false
    }
}
