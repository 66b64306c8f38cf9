//! What carries messages between processes.

use crate::comm::Block;
use std::sync::mpsc::{Receiver, Sender, channel};

/// A message: a head, which the engine reads, and a block of a tensor, which may be empty.
#[derive(Clone, Debug)]
pub(crate) struct Parcel {
    /// The other process.
    pub process: u32,
    pub head: Vec<u8>,
    pub body: Block,
}

/// Carries messages between processes; used by one thread.
///
/// Messages of one process to another arrive in the order in which they were sent.
pub(crate) trait Carrier {
    /// Starts sending to `parcel.process`.
    fn send(&mut self, parcel: Parcel);

    /// Returns a message that has arrived, if there is one.
    ///
    /// # Errors
    /// Why nothing arrives any more.
    fn receive(&mut self) -> Result<Option<Parcel>, String>;

    /// Whether anything is still being sent.
    fn is_sending(&mut self) -> bool;

    /// How many processes share this machine.
    fn num_processes_here(&self) -> usize;
}

/// Channels between the engines of one process: several processes in one, for tests and simulation.
pub(super) struct Channels {
    process: u32,
    to: Vec<Sender<Parcel>>,
    arrived: Receiver<Parcel>,
}

impl Channels {
    /// Returns the carriers of `num_processes` processes, in order.
    pub(super) fn connect(num_processes: usize) -> Vec<Self> {
        let (to, arrived): (Vec<_>, Vec<_>) = (0..num_processes).map(|_| channel()).unzip();
        arrived
            .into_iter()
            .enumerate()
            .map(|(process, arrived)| Self {
                process: process as u32,
                to: to.clone(),
                arrived,
            })
            .collect()
    }
}

impl Carrier for Channels {
    fn send(&mut self, parcel: Parcel) {
        let parcel_to = parcel.process as usize;
        // A process that has ended needs nothing any more.
        let _ = self.to[parcel_to].send(Parcel {
            process: self.process,
            ..parcel
        });
    }

    fn receive(&mut self) -> Result<Option<Parcel>, String> {
        Ok(self.arrived.try_recv().ok())
    }

    fn is_sending(&mut self) -> bool {
        false
    }

    fn num_processes_here(&self) -> usize {
        self.to.len()
    }
}
