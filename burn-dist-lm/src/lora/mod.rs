//! LoRA's adapters of a decoder: which layers get some, and their folders as PEFT lays them out.
//!
//! | file | idea |
//! | --- | --- |
//! | `layers` | the linear layers of a model, by the names of Hugging Face |
//! | `targets` | names and patterns of such layers |
//! | `config` | `adapter_config.json` |
//! | `folder` | adapters from a folder, and to one |
//!
//! The factors themselves are parameters of the model: [`Adapters`](crate::model::Adapters).

mod config;
mod error;
mod folder;
mod layers;
mod targets;
#[cfg(test)]
mod tests;

pub use error::AdapterError;
pub use folder::{load, read, save};
pub use layers::Layers;
pub use targets::Targets;
