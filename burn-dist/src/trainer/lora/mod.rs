//! LoRA's adapters of a model: which layers get some, how the command line names them, and their folders as PEFT lays
//! them out.
//!
//! | file | idea |
//! | --- | --- |
//! | `adapters` | which matrices have factors, of which rank, and the type in which the others rest |
//! | `layers` | the linear layers of a model, by the names of Hugging Face |
//! | `targets` | names and patterns of such layers |
//! | `settings` | `adapter_config.json` |
//! | `folder` | adapters from a folder, and to one |
//! | `args` | the options of a command line, and what they ask for |
//!
//! A model takes part by having [`Adapters`] among its sizes, which it attaches when it is built, and by
//! [`adapted_linear`](crate::nn::adapted_linear) in its layers.

mod adapters;
mod args;
mod error;
mod folder;
mod layers;
mod settings;
mod targets;

pub use adapters::{Adapters, Base};
pub use args::LoraArgs;
pub use error::AdapterError;
pub use folder::{load, merge, read, save, weights};
pub use layers::{Layer, Layers};
pub use targets::Targets;
