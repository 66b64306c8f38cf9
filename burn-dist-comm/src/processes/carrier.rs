//! What carries messages between processes.

use super::landing::Slot;
use crate::{Block, Chaos};
use burn_dist_mesh::Rank;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// A message: a head, which the engine reads, and a block of a tensor, which may be empty.
#[derive(Clone, Debug)]
pub struct Parcel {
    /// The other process.
    pub process: u32,
    /// What is said of the body; at most a few kilobytes.
    pub head: Vec<u8>,
    /// A block of a tensor. Empty, too, if it has been received straight into its slot.
    pub body: Block,
}

/// Where the body of a message is to go.
pub enum Destination {
    /// Straight to where it is needed.
    Slot(Slot),
    /// Anywhere.
    Buffer,
    /// There may be a slot soon.
    Later,
}

/// Says where the body of a message, of so many bytes, is to go.
pub type Placing<'a> = &'a mut dyn FnMut(&[u8], usize) -> Destination;

/// Carries messages between processes; used by one thread at a time.
///
/// Messages of one process to another arrive in the order in which they were sent.
pub trait Carrier: Send {
    /// Whether that may be any thread, or has to be the one that set it up.
    fn is_for_all_threads(&self) -> bool;

    /// Starts sending to `parcel.process`.
    fn send(&mut self, parcel: Parcel);

    /// Returns a message that has arrived, if there is one; its body may go where `placing` says.
    ///
    /// # Errors
    /// Why nothing arrives any more.
    fn receive(&mut self, placing: Placing) -> Result<Option<Parcel>, String>;

    /// Whether anything is still being sent.
    fn is_sending(&mut self) -> bool;

    /// Whether a message has arrived in part.
    fn is_receiving(&self) -> bool;

    /// The number of this process.
    fn process(&self) -> u32;

    /// How many processes there are.
    fn num_processes(&self) -> usize;
}

/// Channels between the engines of one process: several processes in one, for tests and simulation.
pub(super) struct Channels {
    process: u32,
    to: Vec<Sender<Parcel>>,
    arrived: Receiver<Parcel>,
    delays: Option<Delays>,
}

/// What has arrived, but is held back for a while: messages of one sender keep their order, those of different senders
/// do not. A body comes some time after its head.
struct Delays {
    chaos: Chaos,
    /// By sender.
    held: Vec<VecDeque<Held>>,
    /// Messages so far.
    num: u64,
}

struct Held {
    parcel: Parcel,
    /// From when on the head is there.
    due: Instant,
    /// How long the body takes.
    moves_for: Duration,
    /// Once the body moves: until when, and where to.
    moving: Option<(Instant, Option<Slot>)>,
}

/// How long a body waits for its call.
const LATER_MAX: Duration = Duration::from_micros(300);

impl Held {
    /// Whether all of it is there.
    fn has_arrived(&mut self, now: Instant, placing: Placing) -> bool {
        if now < self.due {
            return false;
        }
        if self.moving.is_none() {
            let slot = match placing(&self.parcel.head, self.parcel.body.len()) {
                Destination::Slot(slot) => Some(slot),
                Destination::Later if now < self.due + LATER_MAX => return false,
                Destination::Buffer | Destination::Later => None,
            };
            self.moving = Some((now + self.moves_for, slot));
        }
        self.moving.as_ref().is_some_and(|(until, _)| *until <= now)
    }

    fn into_parcel(self) -> Parcel {
        let mut parcel = self.parcel;
        if let Some((_, Some(mut slot))) = self.moving {
            slot.fill(parcel.body.as_slice());
            parcel.body = Block::empty();
        }
        parcel
    }
}

impl Delays {
    fn hold(&mut self, receiver: u32, parcel: Parcel) {
        let max_ns = self.chaos.delay_max.as_nanos() as u64;
        let delay = |of: u64| {
            let event = u64::from(parcel.process) + of;
            let drawn = self.chaos.draw(Rank(receiver), self.num, event);
            match drawn % 3 {
                0 if max_ns > 0 => Duration::from_nanos((drawn >> 8) % max_ns),
                _ => Duration::ZERO,
            }
        };
        let (due, moves_for) = (Instant::now() + delay(16), delay(1 << 32));
        self.num += 1;
        self.held[parcel.process as usize].push_back(Held {
            parcel,
            due,
            moves_for,
            moving: None,
        });
    }

    fn take(&mut self, receiver: u32, placing: Placing) -> Option<Parcel> {
        let (now, num) = (Instant::now(), self.held.len() as u64);
        let first = self.chaos.draw(Rank(receiver), self.num, 15) % num;
        for offset in 0..num {
            let of_sender = &mut self.held[((first + offset) % num) as usize];
            if let Some(held) = of_sender.front_mut()
                && held.has_arrived(now, placing)
            {
                return of_sender.pop_front().map(Held::into_parcel);
            }
        }
        None
    }

    /// Whether a body is on its way.
    fn is_moving(&self) -> bool {
        let mut fronts = self.held.iter().filter_map(VecDeque::front);
        fronts.any(|held| held.moving.is_some())
    }
}

impl Channels {
    /// Returns the carriers of `num_processes` processes, in order.
    ///
    /// With `chaos`, messages are held back as it says.
    pub(super) fn connect(num_processes: usize, chaos: Option<&Chaos>) -> Vec<Self> {
        let (to, arrived): (Vec<_>, Vec<_>) = (0..num_processes).map(|_| channel()).unzip();
        arrived
            .into_iter()
            .enumerate()
            .map(|(process, arrived)| Self {
                process: process as u32,
                to: to.clone(),
                arrived,
                delays: chaos.map(|chaos| Delays {
                    chaos: chaos.clone(),
                    held: (0..num_processes).map(|_| VecDeque::new()).collect(),
                    num: 0,
                }),
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

    fn receive(&mut self, placing: Placing) -> Result<Option<Parcel>, String> {
        if let Some(delays) = &mut self.delays {
            while let Ok(parcel) = self.arrived.try_recv() {
                delays.hold(self.process, parcel);
            }
            return Ok(delays.take(self.process, placing));
        }
        Ok(self.arrived.try_recv().ok().map(|mut parcel| {
            if let Destination::Slot(mut slot) = placing(&parcel.head, parcel.body.len()) {
                slot.fill(parcel.body.as_slice());
                parcel.body = Block::empty();
            }
            parcel
        }))
    }

    fn is_sending(&mut self) -> bool {
        false
    }

    fn is_receiving(&self) -> bool {
        self.delays.as_ref().is_some_and(Delays::is_moving)
    }

    fn is_for_all_threads(&self) -> bool {
        true
    }

    fn process(&self) -> u32 {
        self.process
    }

    fn num_processes(&self) -> usize {
        self.to.len()
    }
}
