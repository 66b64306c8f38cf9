//! Channels between threads of one process, which stand for processes.

use super::{Destination, Matcher, Message, Transport};
use crate::buffer::Region;
use crate::{Block, Chaos};
use burn_dist_mesh::Rank;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

/// Messages that a channel holds; what its receiver has no room for waits at the sender.
const MESSAGES_MAX: usize = 64;

/// Channels between the engines of one process: several processes in one, for tests and simulation.
pub struct Channels {
    process: u32,
    /// To each process, and what it has no room for yet.
    to: Vec<(SyncSender<Message>, VecDeque<Message>)>,
    arrived: Receiver<Message>,
    delays: Option<Delays>,
}

/// Messages that have arrived and are held back for a while: messages of one sender keep their order, those of
/// different senders do not. A body comes some time after its head.
struct Delays {
    chaos: Chaos,
    /// By sender.
    held: Vec<VecDeque<Held>>,
    /// Messages so far.
    num: u64,
}

struct Held {
    message: Message,
    /// From when on the head is there.
    due: Instant,
    /// How long the body takes.
    moves_for: Duration,
    /// Once the body moves: until when, and where to.
    moving: Option<(Instant, Option<Region>)>,
}

/// How long a body waits for its call.
const LATER_MAX: Duration = Duration::from_micros(300);

impl Held {
    /// Returns whether all of it is there.
    fn has_arrived(&mut self, now: Instant, matcher: Matcher) -> bool {
        if now < self.due {
            return false;
        }
        if self.moving.is_none() {
            let region = match matcher(&self.message.head, self.message.body.len()) {
                Destination::Region(region) => Some(region),
                Destination::Later if now < self.due + LATER_MAX => return false,
                Destination::Buffer | Destination::Later => None,
            };
            self.moving = Some((now + self.moves_for, region));
        }
        self.moving.as_ref().is_some_and(|(until, _)| *until <= now)
    }

    fn into_message(self) -> Message {
        let mut message = self.message;
        if let Some((_, Some(mut region))) = self.moving {
            region.fill(message.body.as_slice());
            message.body = Block::empty();
        }
        message
    }
}

impl Delays {
    fn has_room(&self) -> bool {
        self.held.iter().map(VecDeque::len).sum::<usize>() < MESSAGES_MAX
    }

    fn hold(&mut self, receiver: u32, message: Message) {
        let max_ns = self.chaos.delay_max.as_nanos() as u64;
        let delay = |of: u64| {
            let event = u64::from(message.process) + of;
            let drawn = self.chaos.draw(Rank(receiver), self.num, event);
            match drawn % 3 {
                0 if max_ns > 0 => Duration::from_nanos((drawn >> 8) % max_ns),
                _ => Duration::ZERO,
            }
        };
        let (due, moves_for) = (Instant::now() + delay(16), delay(1 << 32));
        self.num += 1;
        self.held[message.process as usize].push_back(Held {
            message,
            due,
            moves_for,
            moving: None,
        });
    }

    fn take(&mut self, receiver: u32, matcher: Matcher) -> Option<Message> {
        let (now, num) = (Instant::now(), self.held.len() as u64);
        let first = self.chaos.draw(Rank(receiver), self.num, 15) % num;
        for offset in 0..num {
            let of_sender = &mut self.held[((first + offset) % num) as usize];
            if let Some(held) = of_sender.front_mut()
                && held.has_arrived(now, matcher)
            {
                return of_sender.pop_front().map(Held::into_message);
            }
        }
        None
    }

    /// Returns whether a body is in flight.
    fn is_moving(&self) -> bool {
        let mut fronts = self.held.iter().filter_map(VecDeque::front);
        fronts.any(|held| held.moving.is_some())
    }
}

impl Channels {
    /// Returns the transports of `num_processes` processes, in order.
    ///
    /// With `chaos`, messages are held back as it says.
    pub fn connect(num_processes: usize, chaos: Option<&Chaos>) -> Vec<Self> {
        let (to, arrived): (Vec<_>, Vec<_>) = (0..num_processes)
            .map(|_| sync_channel(MESSAGES_MAX))
            .unzip();
        arrived
            .into_iter()
            .enumerate()
            .map(|(process, arrived)| Self {
                process: process as u32,
                to: to.iter().map(|to| (to.clone(), VecDeque::new())).collect(),
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

/// Hands over what there is room for, in order.
fn flush((to, waiting): &mut (SyncSender<Message>, VecDeque<Message>)) {
    while let Some(message) = waiting.pop_front() {
        match to.try_send(message) {
            Ok(()) => {}
            Err(TrySendError::Full(message)) => return waiting.push_front(message),
            // A process that has ended needs nothing any more.
            Err(TrySendError::Disconnected(_)) => waiting.clear(),
        }
    }
}

impl Transport for Channels {
    fn send(&mut self, message: Message) {
        let to = &mut self.to[message.process as usize];
        to.1.push_back(Message {
            process: self.process,
            ..message
        });
        flush(to);
    }

    fn receive(&mut self, matcher: Matcher) -> Result<Option<Message>, String> {
        if let Some(delays) = &mut self.delays {
            while delays.has_room()
                && let Ok(message) = self.arrived.try_recv()
            {
                delays.hold(self.process, message);
            }
            return Ok(delays.take(self.process, matcher));
        }
        Ok(self.arrived.try_recv().ok().map(|mut message| {
            if let Destination::Region(mut region) = matcher(&message.head, message.body.len()) {
                region.fill(message.body.as_slice());
                message.body = Block::empty();
            }
            message
        }))
    }

    fn unsent_bytes(&mut self) -> usize {
        self.to.iter_mut().for_each(flush);
        let waiting = self.to.iter().flat_map(|(_, waiting)| waiting);
        waiting
            .map(|message| message.head.len() + message.body.len())
            .sum()
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
