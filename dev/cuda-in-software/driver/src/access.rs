//! What one operation reads and writes, checked byte by byte as it does.

use crate::clock::{Epoch, Moment};
use crate::fault::Fault;
use crate::memory::{self, Allocation, Place};
use crate::setup::setup;
use crate::shadow::{GRANULE, Race};
use crate::status::{ILLEGAL_ADDRESS, LAUNCH_FAILED};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// How memory is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Read,
    /// Moves bytes on, which nothing need have written.
    Move,
    Write,
    /// Both at once, in one step that other streams may take as well.
    Atomic,
}

impl How {
    fn verb(self) -> &'static str {
        match self {
            How::Read => "reads",
            How::Move => "copies",
            How::Write => "writes",
            How::Atomic => "changes",
        }
    }
}

/// What an operation uses of an allocation: a bit for each granule.
pub(crate) struct Use {
    pub(crate) allocation: Arc<Allocation>,
    reads: Box<[AtomicU64]>,
    writes: Box<[AtomicU64]>,
    /// The first word of these that is in use, and one past the last.
    first: AtomicUsize,
    end: AtomicUsize,
}

/// What an operation uses.
pub(crate) struct Accesses {
    device: usize,
    /// Several devices do this together.
    reaches_all: bool,
    /// Words that streams may agree by.
    words: Mutex<BTreeSet<u64>>,
    uses: Mutex<Vec<Arc<Use>>>,
    checks_bounds: bool,
    checks_unwritten: bool,
    checks_order: bool,
}

/// The bits of a range that lie in one word.
fn mask(from: u64, to: u64) -> u64 {
    let bits = to - from;
    (u64::MAX >> (64 - bits)) << (from % 64)
}

impl Use {
    pub(crate) fn covers(&self, address: u64) -> bool {
        (self.allocation.start..self.allocation.end()).contains(&address)
    }

    fn set(&self, bits: &[AtomicU64], granule: usize) {
        let (word, bit) = (&bits[granule / 64], 1 << (granule % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
            self.first.fetch_min(granule / 64, Ordering::Relaxed);
            self.end.fetch_max(granule / 64 + 1, Ordering::Relaxed);
        }
    }
}

impl Accesses {
    pub(crate) fn new(device: usize, reaches_all: bool) -> Self {
        let setup = setup();
        Accesses {
            device,
            reaches_all,
            words: Mutex::default(),
            uses: Mutex::default(),
            checks_bounds: setup.checks("bounds"),
            checks_unwritten: setup.checks("unwritten"),
            checks_order: setup.checks("order"),
        }
    }

    /// Returns the use of what an address is of.
    pub(crate) fn of(&self, address: u64, bytes: u64, how: How) -> Result<Arc<Use>, Fault> {
        let illegal = |what: String| {
            let text = format!("{} {bytes} bytes at {what}", how.verb());
            Fault::new(ILLEGAL_ADDRESS, text)
        };
        let allocation = memory::find(address).map_err(illegal)?;
        // A copy that a device may not make by itself goes through the host, unless the memory is of a pool.
        let is_copied = how == How::Move && !allocation.is_pooled;
        if !self.reaches_all && !is_copied && !memory::may_use(self.device, &allocation) {
            let text = format!(
                "{}, of {:?}, which device {} may not reach",
                allocation.text(),
                allocation.place,
                self.device
            );
            return Err(illegal(text));
        }
        let mut uses = self.uses.lock().expect("no panic in a list of uses");
        if let Some(found) = uses.iter().find(|found| found.covers(address)) {
            return Ok(Arc::clone(found));
        }
        let words = (allocation.bytes.div_ceil(GRANULE) as usize).div_ceil(64);
        let found = Arc::new(Use {
            allocation,
            reads: memory::zeros(words),
            writes: memory::zeros(words),
            first: AtomicUsize::new(words),
            end: AtomicUsize::new(0),
        });
        uses.push(Arc::clone(&found));
        Ok(found)
    }

    /// Checks a use of some bytes, and counts it.
    pub(crate) fn touch(&self, of: &Use, address: u64, bytes: u64, how: How) -> Result<(), Fault> {
        let allocation = &*of.allocation;
        if allocation.is_freed() {
            return Err(self.of(address, bytes, how).err().unwrap_or_else(|| {
                Fault::new(ILLEGAL_ADDRESS, format!("{} freed memory", how.verb()))
            }));
        }
        let range = address - allocation.start..address - allocation.start + bytes;
        if range.end > allocation.bytes && self.checks_bounds {
            let text = format!(
                "{} bytes {} to {} of {}",
                how.verb(),
                range.start,
                range.end - 1,
                allocation.text()
            );
            return Err(Fault::new(ILLEGAL_ADDRESS, text));
        }
        if how == How::Atomic {
            self.words
                .lock()
                .expect("no panic in a list of words")
                .insert(address);
        }
        // What the host writes, and when, nobody sees.
        if allocation.place == Place::Host {
            return Ok(());
        }
        if matches!(how, How::Read | How::Atomic) && self.checks_unwritten {
            self.check_written(allocation, &range, how)?;
        }
        if matches!(how, How::Write | How::Atomic) {
            written(allocation, &range, true);
        }
        let granules = range.start / GRANULE..range.end.div_ceil(GRANULE);
        for granule in granules {
            match how {
                How::Read | How::Move => of.set(&of.reads, granule as usize),
                How::Write => of.set(&of.writes, granule as usize),
                // Streams may agree by such words.
                How::Atomic => {}
            }
        }
        Ok(())
    }

    /// The words that streams may agree by.
    pub(crate) fn words(&self) -> BTreeSet<u64> {
        self.words
            .lock()
            .expect("no panic in a list of words")
            .clone()
    }

    /// As [`Accesses::touch`], of what an address is of.
    pub(crate) fn at(&self, address: u64, bytes: u64, how: How) -> Result<Arc<Use>, Fault> {
        let of = self.of(address, bytes, how)?;
        self.touch(&of, address, bytes, how)?;
        Ok(of)
    }

    fn check_written(
        &self,
        allocation: &Allocation,
        range: &Range<u64>,
        how: How,
    ) -> Result<(), Fault> {
        for (word, bits) in words(range) {
            let missing = bits & !allocation.written[word].load(Ordering::Relaxed);
            if missing != 0 {
                let first = word as u64 * 64 + u64::from(missing.trailing_zeros());
                let text = format!(
                    "{} bytes {} to {} of {}, of which nothing has written byte {first}",
                    how.verb(),
                    range.start,
                    range.end - 1,
                    allocation.text()
                );
                return Err(Fault::new(LAUNCH_FAILED, text));
            }
        }
        Ok(())
    }

    /// Checks, when the operation is over, that what other streams did to the same bytes happened before.
    pub(crate) fn in_order(
        &self,
        now: &Moment,
        name: &dyn Fn(&Race) -> String,
    ) -> Result<(), Fault> {
        self.in_order_by(now, &|_| now.epoch, name)
    }

    /// The same, where `by` says which operation uses an allocation.
    pub(crate) fn in_order_by(
        &self,
        now: &Moment,
        by: &dyn Fn(&Allocation) -> Epoch,
        name: &dyn Fn(&Race) -> String,
    ) -> Result<(), Fault> {
        if !self.checks_order {
            return Ok(());
        }
        let uses = self.uses.lock().expect("no panic in a list of uses");
        for of in uses.iter() {
            let allocation = &*of.allocation;
            let now = &Moment {
                epoch: by(allocation),
                clock: Arc::clone(&now.clock),
            };
            let mut shadow = allocation.shadow.lock().expect("no panic in a shadow");
            let granules = allocation.bytes.div_ceil(GRANULE) as usize;
            let born = shadow.check_born(now);
            born.map_err(|race| out_of_order(allocation, &race, "uses", name))?;
            let words = of.first.load(Ordering::Relaxed)..of.end.load(Ordering::Relaxed);
            for (bits, writes, verb) in [(&of.reads, false, "reads"), (&of.writes, true, "writes")]
            {
                for at in words.clone() {
                    let mut word = bits[at].load(Ordering::Relaxed);
                    while word != 0 {
                        let granule = at * 64 + word.trailing_zeros() as usize;
                        word &= word - 1;
                        let used = shadow.use_of(granule, granules, now, writes);
                        used.map_err(|race| out_of_order(allocation, &race, verb, name))?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Checks that all uses of memory that is taken back happened before.
pub(crate) fn all_over(
    allocation: &Allocation,
    now: &Moment,
    name: &dyn Fn(&Race) -> String,
) -> Result<(), Fault> {
    if !setup().checks("order") {
        return Ok(());
    }
    let shadow = allocation.shadow.lock().expect("no panic in a shadow");
    let over = shadow.check_born(now).and_then(|()| shadow.check_all(now));
    over.map_err(|race| out_of_order(allocation, &race, "takes back", name))
}

fn out_of_order(
    allocation: &Allocation,
    race: &Race,
    verb: &str,
    name: &dyn Fn(&Race) -> String,
) -> Fault {
    let at = race.granule as u64 * GRANULE;
    let text = format!(
        "{verb} bytes from {at} on of {}, which {} {}, and nothing says which comes first",
        allocation.text(),
        name(race),
        race.how,
    );
    Fault::new(LAUNCH_FAILED, text)
}

/// The words of `written` that a range touches, each with its bits.
fn words(range: &Range<u64>) -> impl Iterator<Item = (usize, u64)> {
    let (start, end) = (range.start, range.end);
    (start / 64..end.div_ceil(64)).map(move |word| {
        let (from, to) = (start.max(word * 64), end.min(word * 64 + 64));
        (word as usize, mask(from, to))
    })
}

/// Says of bytes whether something has written them.
pub(crate) fn written(allocation: &Allocation, range: &Range<u64>, are: bool) {
    if allocation.place == Place::Host {
        return;
    }
    for (word, bits) in words(range) {
        let word = &allocation.written[word];
        match are {
            true if word.load(Ordering::Relaxed) & bits == bits => {}
            true => drop(word.fetch_or(bits, Ordering::Relaxed)),
            false => drop(word.fetch_and(!bits, Ordering::Relaxed)),
        }
    }
}

/// Says of bytes what others' say of theirs: a copy of what nothing has written is no error.
pub(crate) fn written_like(to: (&Allocation, u64), from: (&Allocation, u64), bytes: u64) {
    let ((to, to_start), (from, from_start)) = (to, from);
    if [to, from].iter().any(|of| of.place == Place::Host) {
        // Of that side nobody knows.
        return;
    }
    let mut at = 0;
    while at < bytes {
        // Up to the next border of a word on either side.
        let (here, there) = (from_start + at, to_start + at);
        let step = (64 - here % 64).min(64 - there % 64).min(bytes - at);
        let bits = from.written[(here / 64) as usize].load(Ordering::Relaxed) >> (here % 64);
        let bits = bits & mask(0, step);
        let word = &to.written[(there / 64) as usize];
        word.fetch_and(!(mask(0, step) << (there % 64)), Ordering::Relaxed);
        word.fetch_or(bits << (there % 64), Ordering::Relaxed);
        at += step;
    }
}
