//! Checkpoints: tensors saved from any mesh and loaded onto any mesh.
//!
//! | folder, file | idea |
//! | --- | --- |
//! | `region.rs` | parts of tensors: boxes, the runs that they are made of, what two have in common |
//! | `format/` | what the files say: manifest, safetensors headers, keys, checksums |
//! | `save/` | who writes what, the files, the commit; which checkpoints are found and kept, and the program's lock |
//! | `load/` | which bytes are needed for the elements that are asked for, and reading just these |
//! | `stored/` | tensors that lie whole in files of others: their form, and reading regions of parameters |
//! | `hf/` | folders in the form of Hugging Face, read and written; which parameter is which tensor |
//! | `records/` | records of Burn's modules: named MessagePack and burnpack |
//! | `convert/` | parameters from one of these forms to another |
//! | `storage/` | the few operations on files that both need: on disk, and in memory with faults for tests |
//! | `tools/` | what people do with a checkpoint: look, verify, compare, consolidate, reshard |
//! | `cli.rs` | these as commands (feature `cli`) |
//!
//! A checkpoint is a directory of safetensors files and a manifest. Every element is written once, by one of those
//! that hold it ([`SavePlan`]). A rename makes the checkpoint visible when all of it is synced ([`Save`]). A load asks
//! for [`Region`]s of tensors, whatever pieces they were saved in ([`Checkpoint::load`]).
//!
//! ```
//! use burn_dist_checkpoint::{Checkpoints, Options, Region, Request, SaveId, SavePlan, Tensor};
//! use burn_dist_mesh::{DType, MeshShape, Rank};
//! use burn_dist_layout::Layout;
//!
//! // Two ranks hold two rows each of a tensor of u8.
//! let mesh: MeshShape = "fsdp=2".parse()?;
//! let layout = Layout::parse("[{fsdp}, -]", &mesh, Some(&[4, 3]))?;
//! let blocks = [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]];
//!
//! // Every process plans, begins and writes; here, one is both writers.
//! let tensors = vec![Tensor::new("layers.0.weight", DType::U8, layout)];
//! let plan = SavePlan::new(&mesh, tensors, &[0, 1])?;
//! let directory = tempfile::tempdir()?;
//! let checkpoints = Checkpoints::at(directory.path());
//! let save = checkpoints.save(100, SaveId::random()?)?;
//! let mut parts = Vec::new();
//! for writer in 0..plan.num_writers() {
//!     let block = |rank: Rank| &blocks[rank.0 as usize];
//!     parts.push(save.write(
//!         &plan,
//!         writer,
//!         |share, file| file.write(&block(share.rank)[share.bytes.clone()]),
//!         |_progress| {},
//!     )?);
//! }
//! // One commits.
//! save.commit(&plan, parts, serde_json::Map::new())?;
//!
//! // Loaded by columns, on any mesh.
//! let (step, checkpoint) = checkpoints.open_latest()?.expect("it was saved");
//! let columns = Region::new(vec![4, 3], vec![0, 1], vec![4, 2])?;
//! let mut bytes = [0; 8];
//! let mut requests = [Request::new("layers.0.weight", DType::U8, &[4, 3], columns, &mut bytes)];
//! checkpoint.load(&mut requests, Options::default())?;
//! assert_eq!((step, bytes), (100, [1, 2, 4, 5, 7, 8, 10, 11]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Not here: Burn's records and modules, and the names of optimizer state. Whoever saves gives keys, layouts and bytes.

// Which feature an item needs, where docs.rs builds the documentation.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

#[cfg(feature = "cli")]
pub mod cli;
pub mod convert;
mod error;
mod format;
pub mod hf;
mod load;
mod records;
mod region;
mod save;
pub mod storage;
mod stored;
#[cfg(test)]
mod tests;
pub mod tools;

pub use error::{CheckpointError, FileProblem, PartsProblem};
pub use format::{
    BLOCK_BYTES_MAX, Checksum, FileEntry, HeaderError, MANIFEST, Manifest, ManifestError,
    NonFinite, PieceEntry, SaveId, TensorEntry, VERSION,
};
pub use load::{Checkpoint, Convert, KeyReport, Loaded, Match, Mismatch, Options, Request};
pub use records::RecordProblem;
pub use region::{Region, RegionError};
pub use save::{
    Busy, Checkpoints, FileWriter, Keep, Meter, Newest, Part, PassedOver, Progress, Save, SavePlan,
    Saver, Saving, Share, Tensor,
};
