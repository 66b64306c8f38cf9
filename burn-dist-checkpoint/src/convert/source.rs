//! Sources of conversions: parameters in Burn's order, whatever they are kept in.

use super::{ConvertError, Kind, detect};
use crate::error::CheckpointError;
use crate::format::TensorEntry;
use crate::hf::{Folder, Form, Names, Wanted};
use crate::load::{Checkpoint, Job, Match, Reader, Request, Scratch};
use crate::records::{Record, open_bpk, open_mpk};
use crate::region::Region;
use crate::save::Checkpoints;
use crate::storage::Storage;
use crate::stored::Tensors;
use burn_dist_mesh::DType;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// A parameter that is there.
pub(super) struct Entry {
    pub key: String,
    /// The text before the key in a checkpoint.
    pub prefix: String,
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub id: Option<u64>,
}

impl Entry {
    fn new(key: String, dtype: DType, shape: Vec<usize>) -> Self {
        Self {
            key,
            prefix: String::new(),
            dtype,
            shape,
            id: None,
        }
    }

    pub(super) fn numel(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Parameters that are there, sorted by key.
pub(super) struct Source {
    pub kind: Kind,
    pub entries: Vec<Entry>,
    /// The metadata of a checkpoint, and its step.
    pub metadata: Map<String, Value>,
    pub step: u64,
    content: Content,
}

enum Content {
    Checkpoint(Checkpoint),
    /// The tensor of each parameter, and how it holds it.
    Tensors(Tensors, Vec<(String, Form)>),
}

impl Source {
    pub(super) fn open(
        storage: &Arc<dyn Storage>,
        path: &Path,
        names: Option<&Names>,
    ) -> Result<Self, ConvertError> {
        match detect::of_source(storage, path)? {
            Kind::Checkpoint => checkpoint(storage, path),
            Kind::Hf => folder(Folder::open_on(&**storage, path)?, names),
            Kind::Mpk => Ok(record(Kind::Mpk, open_mpk(&**storage, path)?)),
            Kind::Bpk => Ok(record(Kind::Bpk, open_bpk(&**storage, path)?)),
        }
    }

    /// Leaves out what is not of a module of a checkpoint, and the metadata, which are of all of it.
    pub(super) fn only(&mut self, module: &str) -> Result<(), ConvertError> {
        let Content::Checkpoint(_) = &self.content else {
            return Err(ConvertError::NoModules { found: self.kind });
        };
        let prefix = format!("{module}.");
        self.entries
            .retain_mut(|entry| match entry.key.strip_prefix(&prefix) {
                Some(key) => {
                    (entry.key, entry.prefix) = (key.to_owned(), prefix.clone());
                    true
                }
                None => false,
            });
        self.metadata.clear();
        match self.entries.is_empty() {
            true => Err(ConvertError::NoModule {
                module: module.to_owned(),
            }),
            false => Ok(()),
        }
    }

    /// Gives the elements of some regions of a parameter to `each`, one after the other.
    pub(super) fn read<E: From<CheckpointError>>(
        &self,
        index: usize,
        regions: impl Iterator<Item = Region>,
        mut each: impl FnMut(&Region, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let entry = &self.entries[index];
        let mut buffer = Vec::new();
        let mut scratch = Scratch::default();
        let reader = match &self.content {
            Content::Checkpoint(checkpoint) => Some(Reader::new(checkpoint, true)),
            Content::Tensors(..) => None,
        };
        for region in regions {
            buffer.resize(region.numel() * entry.dtype.size(), 0);
            match (&self.content, &reader) {
                (Content::Checkpoint(checkpoint), Some(reader)) => {
                    let key = format!("{}{}", entry.prefix, entry.key);
                    if let Some(tensor) = checkpoint.manifest().tensor(&key) {
                        let mut jobs = [job(tensor, &region, &mut buffer)];
                        reader.read(&mut jobs, &mut scratch)?;
                    }
                }
                (Content::Tensors(tensors, rows), _) => {
                    let (name, form) = &rows[index];
                    let (dtype, region) = (entry.dtype, region.clone());
                    let mut request = Request::new(name, dtype, &entry.shape, region, &mut buffer);
                    tensors.read(*form, &mut request)?;
                }
                (Content::Checkpoint(_), None) => unreachable!("a checkpoint has a reader"),
            }
            each(&region, &buffer)?;
        }
        Ok(())
    }
}

/// All of a region at once.
fn job<'a>(tensor: &'a TensorEntry, region: &'a Region, target: &'a mut [u8]) -> Job<'a> {
    // Manifests with other types are refused when they are read.
    let size = tensor.dtype().map_or(1, |dtype| dtype.size());
    Job {
        tensor,
        region,
        within: 0..region.numel(),
        target,
        convert: None,
        source_size: size,
        target_size: size,
    }
}

/// Opens a checkpoint, or the last one of a run.
fn checkpoint(storage: &Arc<dyn Storage>, path: &Path) -> Result<Source, ConvertError> {
    let (step, checkpoint) = match Checkpoints::on(storage.clone(), path).open_latest()? {
        Some(latest) => latest,
        None => {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let step = name.rsplit('-').next().and_then(|step| step.parse().ok());
            (
                step.unwrap_or(0),
                Checkpoint::open_on(storage.clone(), path)?,
            )
        }
    };
    let entry = |tensor: &TensorEntry| {
        let dtype = tensor.dtype().ok_or_else(|| ConvertError::DType {
            name: tensor.key.clone(),
            found: tensor.dtype.clone(),
        })?;
        Ok(Entry::new(tensor.key.clone(), dtype, tensor.shape.clone()))
    };
    let entries = checkpoint.manifest().tensors.iter().map(entry);
    Ok(Source {
        kind: Kind::Checkpoint,
        entries: entries.collect::<Result<_, ConvertError>>()?,
        metadata: checkpoint.manifest().metadata.clone(),
        step,
        content: Content::Checkpoint(checkpoint),
    })
}

fn folder(folder: Folder, names: Option<&Names>) -> Result<Source, ConvertError> {
    let (mut found, mut unknown) = (Vec::new(), Vec::new());
    // How many tensors each parameter is stacked of, and what the first of them is like.
    let mut stacks = BTreeMap::new();
    for (name, dtype, shape) in folder.tensors() {
        let row = match names {
            None => Some((name.to_owned(), Form::Same)),
            Some(names) if names.is_ignored(name) => continue,
            Some(names) => names.parameter(name),
        };
        let Some((key, form)) = row else {
            unknown.push(name.to_owned());
            continue;
        };
        let dtype = dtype.ok_or_else(|| ConvertError::DType {
            name: name.to_owned(),
            found: folder.dtype_name(name).to_owned(),
        })?;
        if form == Form::Stacked {
            let (num, ..) = stacks.entry(key).or_insert((0, dtype, shape));
            *num += 1;
            continue;
        }
        // Turning a shape twice gives it back.
        let entry = Entry::new(key, dtype, form.stored_shape(shape));
        found.push((entry, (name.to_owned(), form)));
    }
    for (key, (num, dtype, each)) in stacks {
        let each = each.iter().rev();
        let shape: Vec<usize> = [num].iter().chain(each).copied().collect();
        let row = names.and_then(|names| names.tensor(&key));
        let (name, form) = row.unwrap_or_else(|| unreachable!("a row has named its tensors"));
        if !form.fits(&shape) {
            return Err(CheckpointError::Form { key, form, shape }.into());
        }
        let members = form.members(&name, &shape);
        let wanted = members.iter().map(|(name, form, shape)| Wanted {
            name,
            form: *form,
            dtype: Some(dtype),
            shape,
        });
        folder.check(wanted, Match::Subset)?;
        found.push((Entry::new(key, dtype, shape), (name, form)));
    }
    if !unknown.is_empty() {
        return Err(ConvertError::NoRow { names: unknown });
    }
    found.sort_by(|(a, _), (b, _)| a.key.cmp(&b.key));
    let (entries, rows) = found.into_iter().unzip();
    Ok(Source {
        kind: Kind::Hf,
        entries,
        metadata: Map::new(),
        step: 0,
        content: Content::Tensors(folder.into_tensors(), rows),
    })
}

fn record(kind: Kind, record: Record) -> Source {
    let Record { tensors, ids } = record;
    let entries = tensors.tensors.iter().filter_map(|(key, stored)| {
        // Records with other types are refused when they are read.
        let entry = Entry {
            id: ids.get(key).copied(),
            ..Entry::new(key.clone(), stored.dtype?, stored.shape.clone())
        };
        Some((entry, (key.clone(), Form::Same)))
    });
    let (entries, rows) = entries.unzip();
    Source {
        kind,
        entries,
        metadata: Map::new(),
        step: 0,
        content: Content::Tensors(tensors, rows),
    }
}
