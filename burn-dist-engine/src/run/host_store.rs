//! Host memory of a rank: what was offloaded, beside the device's memory and counted apart from it.

use std::sync::Arc;

use crate::burn::data::*;
use crate::plan::task::Slot;

/// Tensors that a rank has on the host.
#[derive(Default)]
pub(super) struct HostStore {
    slots: Vec<Option<Entry>>,
    bytes: u64,
    peak_bytes: u64,
}

struct Entry {
    data: Arc<TensorData>,
    /// Not a look at what is kept anyway.
    owned: bool,
}

fn size(data: &TensorData) -> u64 {
    data.bytes().len() as u64
}

impl HostStore {
    /// Starts a window.
    pub(super) fn begin(&mut self, num_slots: usize) {
        for slot in 0..self.slots.len() {
            self.drop_slot(slot as Slot);
        }
        self.slots.clear();
        self.slots.resize_with(num_slots, || None);
    }

    /// Bytes that are held now.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The most that was held.
    pub(super) fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    /// Takes a slot; `owned` unless it is kept between windows too.
    pub(super) fn put(&mut self, slot: Slot, data: Arc<TensorData>, owned: bool) {
        if owned {
            self.keep(&data);
        }
        self.slots[slot as usize] = Some(Entry { data, owned });
    }

    /// Hands a slot out, if it is here, and gives it up if `last`.
    pub(super) fn take(&mut self, slot: Slot, last: bool) -> Option<Arc<TensorData>> {
        if !last {
            return self.slots[slot as usize]
                .as_ref()
                .map(|entry| entry.data.clone());
        }
        let entry = self.slots[slot as usize].take()?;
        if entry.owned {
            self.forget(&entry.data);
        }
        Some(entry.data)
    }

    /// Gives a slot up.
    pub(super) fn drop_slot(&mut self, slot: Slot) {
        drop(self.take(slot, true));
    }

    /// Counts what is kept between windows.
    pub(super) fn keep(&mut self, data: &TensorData) {
        self.bytes += size(data);
        self.peak_bytes = self.peak_bytes.max(self.bytes);
    }

    /// Drops a tensor that was kept.
    pub(super) fn forget(&mut self, data: &TensorData) {
        self.bytes -= size(data);
    }
}
