//! Memory, traffic and time of one rank.

use std::collections::BTreeMap;
use std::time::Duration;

use super::AccountedMemory;
use super::times::RankTimes;
use crate::plan::memory::ClassBytes;

/// Memory and traffic of one rank, in bytes of tensor contents, and its time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankStats {
    /// Which.
    pub rank: u32,
    /// Tensors that live between windows.
    pub resident_bytes: u64,
    /// The most that was alive at once: by the buffers themselves if the mesh
    /// [accounts](crate::DeviceMeshBuilder::account_memory) for them, else by the plans.
    pub peak_bytes: u64,
    /// The most that was alive at once, as the plans predicted.
    pub predicted_peak_bytes: u64,
    /// Host memory that offloaded tensors take; no part of the others.
    pub host_bytes: u64,
    /// The most host memory that offloaded tensors took.
    pub host_peak_bytes: u64,
    /// The buffers, by what they are used for, if the mesh accounts for them.
    pub accounted: Option<AccountedMemory>,
    /// Parameters and optimizer state that rest in pieces, and everything else that lives between windows.
    pub at_rest_bytes: u64,
    /// Bytes received from other ranks, by kind of collective, as the communicator counted them.
    pub received: Vec<(&'static str, u64, u64)>,
    /// Time spent in tasks.
    pub busy: Duration,
    /// How that time was spent.
    pub times: RankTimes,
}

impl RankStats {
    /// Returns what it held when it held most, by class; empty unless the mesh accounts for buffers.
    pub fn peak_by_class(&self) -> BTreeMap<String, u64> {
        self.by_class(|memory| memory.peak)
    }

    /// Returns the most that it has held of each class, not all at the same time; empty unless the mesh accounts for
    /// buffers.
    pub fn most_by_class(&self) -> BTreeMap<String, u64> {
        self.by_class(|memory| memory.class_peaks)
    }

    fn by_class(&self, of: impl Fn(&AccountedMemory) -> ClassBytes) -> BTreeMap<String, u64> {
        let bytes = self.accounted.as_ref().map(of);
        let classes = bytes.iter().flat_map(ClassBytes::iter);
        classes
            .map(|(class, bytes)| (class.name().to_string(), bytes))
            .collect()
    }
}
