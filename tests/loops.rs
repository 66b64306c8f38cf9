//! What training loops do besides a forward, a backward and a step gives on every mesh what it gives on one device.

#[path = "loops/accumulate.rs"]
mod accumulate;
#[path = "loops/finite.rs"]
mod finite;
#[path = "loops/lora.rs"]
mod lora;
#[path = "loops/meshes.rs"]
mod meshes;
#[path = "loops/random.rs"]
mod random;
#[path = "loops/zoo.rs"]
mod zoo;
