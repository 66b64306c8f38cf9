//! One save, from its temporary directory to the rename that makes it visible.
//!
//! ```text
//! ROOT/.tmp-step-0000000100-SAVE_ID/        every process creates it if it is not there
//!   00000-of-00002.safetensors              written and synced by its writer
//!   00001-of-00002.safetensors
//!   manifest.json                           by the commit, when all of these are there; synced, and the directory
//! ROOT/step-0000000100                      the directory, renamed; then ROOT is synced
//! ```
//!
//! Interrupted anywhere, earlier checkpoints are whole, and this one is there in full or not at all.

use super::{FileWriter, Part, Progress, SavePlan, Share};
use crate::error::{CheckpointError, PartsProblem, io_error};
use crate::format::{Checksum, MANIFEST, Manifest, NonFinite, SaveId};
use crate::save::checkpoints::{Checkpoints, step_name, temporary_name};
use crate::save::find::StepState;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// One save. Every process has one; all of them write, one commits.
pub struct Save<'a> {
    checkpoints: &'a Checkpoints,
    save_id: SaveId,
    temporary: PathBuf,
    target: PathBuf,
}

impl Checkpoints {
    /// Begins the save of a step. Every process does so, with the same `save_id`.
    ///
    /// # Errors
    /// [`CheckpointError::Exists`] and [`CheckpointError::Io`].
    pub fn save(&self, step: u64, save_id: SaveId) -> Result<Save<'_>, CheckpointError> {
        Save::begin(self, step, save_id)
    }
}

impl<'a> Save<'a> {
    fn begin(
        checkpoints: &'a Checkpoints,
        step: u64,
        save_id: SaveId,
    ) -> Result<Self, CheckpointError> {
        let name = step_name(step);
        let (root, storage) = (checkpoints.root(), checkpoints.storage());
        let target = root.join(&name);
        if checkpoints.steps()?.contains(&step) {
            // Every process may find it so; one of them renames it.
            match checkpoints.state(step) {
                Ok(StepState::Torn(_)) => checkpoints.set_aside(step).map(drop)?,
                _ => return Err(CheckpointError::Exists { path: target }),
            }
        }
        let temporary = root.join(temporary_name(step, &save_id.to_string()));
        let created = storage.create_dir(&temporary);
        created.map_err(io_error("create the directory", &temporary))?;
        Ok(Self {
            checkpoints,
            save_id,
            temporary,
            target,
        })
    }

    /// Writes the file of one writer and syncs it. `source` gives every share by [`FileWriter::write`], at once or bit
    /// by bit; `progress` is called after at most 1 MiB.
    ///
    /// Writers of one process may run on threads of their own. Who gets an error gives the save up:
    /// [`Save::abandon`].
    ///
    /// # Errors
    /// [`CheckpointError::Io`], also of a full disk; [`CheckpointError::Bytes`] if a share gets more or less than
    /// it has; [`CheckpointError::Header`]; those of `source`.
    pub fn write(
        &self,
        plan: &SavePlan,
        writer: usize,
        mut source: impl FnMut(&Share, &mut FileWriter<'_>) -> Result<(), CheckpointError>,
        mut progress: impl FnMut(Progress),
    ) -> Result<Part, CheckpointError> {
        FileWriter::write_all(
            self.checkpoints.storage(),
            &self.temporary,
            plan,
            (self.save_id, writer),
            &mut source,
            &mut progress,
        )
    }

    /// Makes the checkpoint visible. One process calls it, with the parts of all writers.
    ///
    /// On an error, nothing of the save is left, as far as the file system allows.
    ///
    /// # Errors
    /// [`CheckpointError::Parts`] if a part is missing or is none of this save, [`CheckpointError::Io`],
    /// [`CheckpointError::Manifest`].
    pub fn commit(
        self,
        plan: &SavePlan,
        parts: Vec<Part>,
        metadata: Map<String, Value>,
    ) -> Result<PathBuf, CheckpointError> {
        let committed = self.try_commit(plan, parts, metadata);
        if committed.is_err() {
            self.abandon();
        }
        committed?;
        Ok(self.target)
    }

    /// Removes what was written so far, as far as the file system allows.
    pub fn abandon(&self) {
        if let Err(error) = self.checkpoints.storage().remove_dir(&self.temporary) {
            tracing::warn!(
                path = %self.temporary.display(), %error,
                "a save was given up, and its files cannot be removed"
            );
        }
    }

    fn try_commit(
        &self,
        plan: &SavePlan,
        parts: Vec<Part>,
        metadata: Map<String, Value>,
    ) -> Result<(), CheckpointError> {
        let storage = self.checkpoints.storage();
        let mut manifest = plan.manifest(self.save_id)?;
        manifest.metadata = metadata;
        let non_finite = NonFinite::sum(parts.iter().map(|part| part.non_finite.clone()));
        manifest.set_non_finite(non_finite.as_ref());
        let checksums = join(&manifest, parts).map_err(CheckpointError::Parts)?;
        fill_in(&mut manifest, plan, checksums).map_err(CheckpointError::Parts)?;
        let path = self.temporary.join(MANIFEST);
        let bytes = manifest.to_bytes().map_err(|source| {
            let (path, source) = (path.clone(), Box::new(source));
            CheckpointError::Manifest { path, source }
        })?;
        let write = || {
            let mut file = storage.create(&path)?;
            file.append(&bytes)?;
            file.sync()
        };
        write().map_err(io_error("write the manifest", &path))?;
        let sync = |path: &Path| {
            let synced = storage.sync_dir(path);
            synced.map_err(io_error("sync the directory", path))
        };
        sync(&self.temporary)?;
        let renamed = storage.rename(&self.temporary, &self.target);
        renamed.map_err(io_error("rename the directory", &self.temporary))?;
        if let Some(found) = non_finite {
            let path = self.target.display();
            tracing::warn!("{path} has {found}: the last checkpoint without such values stays");
        }
        sync(self.checkpoints.root())
    }
}

/// Returns the checksums of every writer, if each of them has handed over its part.
fn join(manifest: &Manifest, parts: Vec<Part>) -> Result<Vec<Vec<Checksum>>, PartsProblem> {
    let writers = manifest.files.len();
    let mut found: Vec<Option<Vec<Checksum>>> = vec![None; writers];
    for part in parts {
        let writer = part.writer;
        if part.save_id != manifest.save_id {
            return Err(PartsProblem::MixedUp {
                writer,
                expected: manifest.save_id,
                found: part.save_id,
            });
        }
        match (found.get_mut(writer), manifest.files.get(writer)) {
            (Some(place @ None), Some(file)) => {
                if part.header_checksum != file.header_checksum {
                    return Err(PartsProblem::Planned { writer });
                }
                *place = Some(part.checksums);
            }
            _ => return Err(PartsProblem::Unexpected { writer }),
        }
    }
    let each = found.into_iter().enumerate();
    each.map(|(writer, part)| part.ok_or(PartsProblem::Missing { writer, writers }))
        .collect()
}

/// Gives every piece the checksums of its blocks. Pieces of a writer follow each other in its file.
fn fill_in(
    manifest: &mut Manifest,
    plan: &SavePlan,
    checksums: Vec<Vec<Checksum>>,
) -> Result<(), PartsProblem> {
    let block_bytes = manifest.block_bytes;
    // The pieces of a tensor were listed in the order of the writers and of their shares: this is the same pass.
    let mut next = vec![0; manifest.tensors.len()];
    for (writer, checksums) in checksums.into_iter().enumerate() {
        let planned = PartsProblem::Planned { writer };
        let mut rest = checksums.as_slice();
        for share in plan.shares(writer) {
            let blocks = share.bytes.len().div_ceil(block_bytes);
            let (own, after) = rest.split_at_checked(blocks).ok_or(planned.clone())?;
            let tensor = share.tensor;
            manifest.tensors[tensor].pieces[next[tensor]].checksums = own.to_vec();
            next[tensor] += 1;
            rest = after;
        }
        if !rest.is_empty() {
            return Err(planned);
        }
    }
    Ok(())
}
