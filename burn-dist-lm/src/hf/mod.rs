//! Models in Hugging Face's form: a folder with `config.json`, `*.safetensors` (with an index if there are several) and
//! `tokenizer.json`.

mod config;
mod error;
mod folder;
mod load;
mod origin;
mod save;
mod tokens;

pub use config::read_config;
pub use error::HfError;
pub use folder::names;
pub use load::{load, load_reported};
pub use origin::Origin;
pub use save::save;
pub use tokens::read_tokens;

#[cfg(test)]
mod tests;
