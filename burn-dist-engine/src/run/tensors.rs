//! The tensors of one rank: in the slots of the window that runs, and kept between windows; on the device or the host.

use std::sync::Arc;
use std::time::Instant;

use burn_backend::{Scalar, TensorData};
use burn_ir::{BackendIr, ScalarIr, TensorId, TensorIr, TensorStatus};
use rustc_hash::FxHashMap;

use super::Fault;
use super::host_store::HostStore;
use super::job::RunArgs;
use super::observe::Observers;
use super::observer::TaskPart;
use crate::comm::CallInfo;
use crate::mesh::DType;
use crate::ops::execute::{Env, from_data};
use crate::plan::memory::MemoryClass;
use crate::plan::task::{CollectiveTask, RankPlan, Slot, Task, TransferTask};

/// Where a tensor that lives between windows is.
enum Location<H> {
    Device { handle: H, bytes: u64 },
    Host(Arc<TensorData>),
}

/// The tensors of one rank, and the observers of what happens to them.
pub(super) struct Tensors<B: BackendIr> {
    pub device: B::Device,
    pub observers: Observers,
    slots: Vec<Option<B::Handle>>,
    kept: FxHashMap<TensorId, Location<B::Handle>>,
    /// Bytes of the kept ones on the device.
    kept_bytes: u64,
    host: HostStore,
}

impl<B: BackendIr> Tensors<B> {
    pub(super) fn new(device: B::Device, observers: Observers) -> Self {
        Self {
            device,
            observers,
            slots: Vec::new(),
            kept: FxHashMap::default(),
            kept_bytes: 0,
            host: HostStore::default(),
        }
    }

    /// Starts a window, in which no slot holds a tensor yet.
    pub(super) fn begin(&mut self, num_slots: usize) {
        self.slots.clear();
        self.slots.resize(num_slots, None);
        self.host.begin(num_slots);
    }

    /// Gives everything back.
    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.kept.clear();
        self.kept_bytes = 0;
        self.host = HostStore::default();
    }

    /// Returns the bytes of what is kept on the device.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }

    /// Returns what is on the host.
    pub(super) fn host(&self) -> &HostStore {
        &self.host
    }

    /// Returns the bytes of the tensors kept on the device that no task of a window loads.
    pub(super) fn bytes_beside(&self, plan: &RankPlan, args: &RunArgs) -> u64 {
        let loaded = plan.tasks.iter().filter_map(|task| match task {
            Task::Load { value, bytes, .. } => {
                let kept = self.kept.get(&args.ids[*value as usize]);
                matches!(kept, Some(Location::Device { .. })).then_some(*bytes)
            }
            _ => None,
        });
        self.kept_bytes.saturating_sub(loaded.sum())
    }

    /// Returns what a slot holds, if it holds something.
    pub(super) fn peek(&self, slot: Slot) -> Option<B::Handle> {
        self.slots[slot as usize].clone()
    }

    /// Hands a slot out; `take` if no later task needs it.
    pub(super) fn take(&mut self, slot: Slot, take: bool) -> Result<B::Handle, Fault> {
        self.handle(slot, take)
            .ok_or_else(|| Fault::bug("a slot was read before it was written"))
    }

    #[inline]
    fn handle(&mut self, slot: Slot, take: bool) -> Option<B::Handle> {
        let entry = &mut self.slots[slot as usize];
        match take {
            true => {
                self.observers.taken(slot);
                entry.take()
            }
            false => entry.clone(),
        }
    }

    /// Takes a slot from the host as [`Self::take`] does from the device, if it is there.
    pub(super) fn take_from_host(&mut self, slot: Slot, take: bool) -> Option<Arc<TensorData>> {
        self.host.take(slot, take)
    }

    /// Puts the result of a collective, waited for in that time, in its slot.
    pub(super) fn put_received(
        &mut self,
        part: TaskPart,
        task: &CollectiveTask,
        output: B::Handle,
        info: &CallInfo,
        (began, ended): (Instant, Instant),
    ) {
        self.observers
            .collective_finished::<B>(part, task, &output, info, began, ended);
        self.slots[task.to as usize] = Some(output);
    }

    /// Puts what the rank of another stage has sent, waited for in that time, in its slot.
    pub(super) fn put_sent(
        &mut self,
        part: TaskPart,
        task: &TransferTask,
        output: B::Handle,
        info: &CallInfo,
        (began, ended): (Instant, Instant),
    ) {
        self.observers
            .received::<B>(part, task, &output, info, began, ended);
        self.slots[task.slot as usize] = Some(output);
    }

    /// Puts what an operation has made in its slot.
    pub(super) fn put(&mut self, slot: Slot, shape: &[usize], dtype: DType, handle: B::Handle) {
        self.observers
            .written::<B>(slot, &handle, shape, dtype.size());
        self.slots[slot as usize] = Some(handle);
    }

    /// Puts host data in a slot.
    pub(super) fn put_data(&mut self, slot: Slot, data: TensorData, shape: &[usize], dtype: DType) {
        let handle = from_data::<B>(data, &self.device);
        self.observers
            .written::<B>(slot, &handle, shape, dtype.size());
        self.slots[slot as usize] = Some(handle);
    }

    /// Puts host data in a slot that stays on the host.
    pub(super) fn put_on_host(&mut self, slot: Slot, data: Arc<TensorData>) {
        self.host.put(slot, data, true);
    }

    /// Brings a slot back from the host, if it is there.
    pub(super) fn bring_back(&mut self, slot: Slot, shape: &[usize], dtype: DType) {
        if let Some(data) = self.host.take(slot, true) {
            self.put_data(slot, Arc::unwrap_or_clone(data), shape, dtype);
        }
    }

    /// Gives up a slot.
    pub(super) fn free(&mut self, slot: Slot) {
        self.observers.taken(slot);
        self.slots[slot as usize] = None;
        self.host.drop_slot(slot);
    }

    /// Puts a kept tensor in a slot, where it is; `take` if it is kept no longer.
    pub(super) fn load(&mut self, id: TensorId, slot: Slot, take: bool) -> Result<(), Fault> {
        let kept = self.kept.get(&id);
        match kept.ok_or_else(|| Fault::unknown_tensor(id))? {
            Location::Device { handle, .. } => {
                self.observers.loaded(slot, id);
                self.slots[slot as usize] = Some(handle.clone());
                if take {
                    self.remove(id);
                }
            }
            Location::Host(data) => {
                let data = data.clone();
                if take {
                    self.remove(id);
                }
                self.host.put(slot, data, take);
            }
        }
        Ok(())
    }

    /// Returns a copy of a kept tensor on the device.
    pub(super) fn local(&self, id: TensorId) -> Result<B::Handle, Fault> {
        match self.kept.get(&id) {
            Some(Location::Device { handle, .. }) => Ok(handle.clone()),
            Some(Location::Host(data)) => Ok(from_data::<B>(data.as_ref().clone(), &self.device)),
            None => Err(Fault::unknown_tensor(id)),
        }
    }

    /// Keeps a tensor, of a slot if it is part of a window.
    pub(super) fn keep(
        &mut self,
        id: TensorId,
        handle: B::Handle,
        bytes: u64,
        class: MemoryClass,
        slot: Option<Slot>,
    ) {
        self.kept_bytes += bytes;
        self.observers.kept::<B>(id, &handle, bytes, class, slot);
        match self.kept.insert(id, Location::Device { handle, bytes }) {
            Some(Location::Device { bytes, .. }) => self.kept_bytes -= bytes,
            Some(Location::Host(data)) => self.host.forget(&data),
            None => {}
        }
    }

    /// Keeps host data.
    pub(super) fn keep_on_host(&mut self, id: TensorId, data: Arc<TensorData>) {
        self.host.keep(&data);
        let old = self.kept.insert(id, Location::Host(data));
        self.released(id, old);
    }

    /// Gives up a kept tensor.
    pub(super) fn remove(&mut self, id: TensorId) {
        let old = self.kept.remove(&id);
        self.released(id, old);
    }

    fn released(&mut self, id: TensorId, old: Option<Location<B::Handle>>) {
        match old {
            Some(Location::Device { bytes, .. }) => {
                self.kept_bytes -= bytes;
                self.observers.released(id);
            }
            Some(Location::Host(data)) => self.host.forget(&data),
            None => {}
        }
    }
}

/// The slots of a rank, as the executor sees them.
pub(super) struct SlotEnv<'a, B: BackendIr> {
    pub tensors: &'a mut Tensors<B>,
    pub scalars: &'a [Scalar],
}

impl<B: BackendIr> Env<B> for SlotEnv<'_, B> {
    #[inline]
    fn take(&mut self, tensor: &TensorIr) -> B::Handle {
        let slot = tensor.id.value() as Slot;
        let take = tensor.status == TensorStatus::ReadWrite;
        let handle = self.tensors.handle(slot, take);
        handle.expect("plans write a slot before they read it")
    }

    #[inline]
    fn put(&mut self, tensor: &TensorIr, handle: B::Handle) {
        let slot = tensor.id.value() as Slot;
        let shape = tensor.shape.as_slice();
        let observers = &mut self.tensors.observers;
        observers.written::<B>(slot, &handle, shape, tensor.dtype.size());
        self.tensors.slots[slot as usize] = Some(handle);
    }

    #[inline]
    fn scalar(&self, scalar: &ScalarIr) -> Scalar {
        match scalar {
            // The planner keeps `UInt` for scalar slots.
            ScalarIr::UInt(slot) => self.scalars[*slot as usize],
            literal => (*literal).into(),
        }
    }

    #[inline]
    fn device(&self) -> &B::Device {
        &self.tensors.device
    }
}
