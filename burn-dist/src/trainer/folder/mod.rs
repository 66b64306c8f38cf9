//! Models that come from folders as Hugging Face lays them out: `config.json`, `*.safetensors` (with an index if there
//! are several) and what belongs to a tokenizer.

mod error;
mod limits;
mod load;
mod model;
mod origin;
mod save;

pub use error::FolderError;
pub use limits::CONFIG_BYTES_MAX;
pub(super) use limits::SHARD_BYTES;
pub use load::{load, load_reported, weights};
pub use model::{InFolders, Tied};
pub use origin::Origin;
pub use save::save;
