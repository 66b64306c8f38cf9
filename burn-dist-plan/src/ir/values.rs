//! The values of a window while it is planned, and the versions of them that exist on the ranks.

use std::sync::Arc;

use crate::mesh::DType;

use crate::ir::{Origin, Owner, ParamSpec, Slot, ValueIndex};
use crate::layout::Layout;

/// Position of an operation in its window.
pub(crate) type OpIndex = u32;

/// Where the content of a value comes from when no version of it exists yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// It has versions.
    Versions,
    /// The host holds all of it: any part is free.
    Host,
    /// An operation whose inputs are free too: computed where, and in the parts in which, it is used.
    Deferred {
        op: OpIndex,
        /// Length of the chain of deferred operations behind it.
        depth: u32,
    },
}

/// One materialised layout of a value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Version {
    pub layout: Arc<Layout>,
    pub slot: Slot,
    /// Operation after which it is given up (a gathered parameter whose next use is far away).
    pub until: Option<OpIndex>,
}

impl Version {
    /// Returns whether it still exists at `now`.
    pub(crate) fn exists_at(&self, now: OpIndex) -> bool {
        self.until.is_none_or(|until| until >= now)
    }
}

/// A value of the window.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Value {
    pub shape: Vec<usize>,
    pub dtype: DType,
    pub source: Source,
    pub versions: Vec<Version>,
    /// The layout it takes if nothing else decides (free values).
    pub preferred: Arc<Layout>,
    /// What it is made of, if nothing placed was among its sources: its layout is not decided, even where it has one.
    pub origin: Option<Origin>,
    /// The rows of data that has fewer of them than there are parts: a view of it is no batch.
    pub few_rows: Option<usize>,
    /// True if an operation used it together with something whose layout is decided.
    pub met: bool,
    pub tag: Option<Arc<ParamSpec>>,
    /// Where it rests, if it belongs to the update of a parameter that rests in pieces: as that parameter.
    pub home: Option<Arc<Layout>>,
    /// What it belongs to.
    pub owner: Owner,
    /// Operations that use it, ascending.
    pub uses: Vec<OpIndex>,
    /// True if it lives on after the window or is read by the host.
    pub survives: bool,
}

impl Value {
    /// Returns the versions that still exist at `now`.
    pub(crate) fn versions_at(&self, now: OpIndex) -> impl Iterator<Item = &Version> {
        let versions = self.versions.iter();
        versions.filter(move |version| version.exists_at(now))
    }

    /// Forgets the versions that were given up before `now`.
    pub(crate) fn forget(&mut self, now: OpIndex) {
        self.versions.retain(|version| version.exists_at(now));
    }

    /// Returns whether any part of it can be had without communication.
    pub(crate) fn is_free(&self) -> bool {
        matches!(self.source, Source::Host | Source::Deferred { .. })
    }

    /// Returns whether other operands have to follow it.
    pub(crate) fn decides(&self) -> bool {
        self.origin.is_none() && !self.is_free()
    }

    /// Returns the first use after `now`.
    pub(crate) fn next_use(&self, now: OpIndex) -> Option<OpIndex> {
        let index = self.uses.partition_point(|&use_| use_ <= now);
        self.uses.get(index).copied()
    }

    /// Returns whether the operation at hand is the only one that ever needs it.
    pub(crate) fn single_use(&self) -> bool {
        !self.survives && self.uses.len() == 1
    }
}

/// A local tensor of the plan, by its global description.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SlotInfo {
    pub layout: Arc<Layout>,
    pub dtype: DType,
    /// The value it is a version of.
    pub value: ValueIndex,
}
