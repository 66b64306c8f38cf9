//! Memory: addresses that are reserved once and never given twice, and what lives there.

use crate::fault::Fault;
use crate::setup::setup;
use crate::shadow::Shadow;
use crate::status::{INVALID_VALUE, OUT_OF_MEMORY, Status};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};

/// Bytes of addresses: what was freed stays out of reach.
pub(crate) const ARENA_BYTES: u64 = 32 << 40;

/// Bytes of a page; some that cannot be touched follow each allocation.
const PAGE: u64 = 4096;

/// Bytes of addresses before the first that is given: an index that is less than zero is one of them.
const BEFORE: u64 = 1 << 30;

/// Bytes past the end of memory that may have been meant for it.
const NEAR: u64 = 1 << 30;

/// Where memory may start: where a page of a device may.
const ALIGNMENT: u64 = 2 << 20;

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Device(usize),
    /// The host's, locked to its pages.
    Host,
}

/// Memory that a call has given.
pub(crate) struct Allocation {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) place: Place,
    /// The call.
    pub(crate) by: &'static str,
    /// From a pool, whose access other devices get by pool.
    pub(crate) is_pooled: bool,
    /// A bit for each byte that something has written.
    pub(crate) written: Box<[AtomicU64]>,
    pub(crate) shadow: Mutex<Shadow>,
    freed: AtomicBool,
}

impl Allocation {
    pub(crate) fn end(&self) -> u64 {
        self.start + self.bytes
    }

    /// Whether a call has taken the memory back.
    pub(crate) fn is_freed(&self) -> bool {
        self.freed.load(Ordering::Acquire)
    }

    /// Like `4,096 bytes of cuMemAlloc_v2`.
    pub(crate) fn text(&self) -> String {
        format!("the {} bytes that {} gave", self.bytes, self.by)
    }
}

/// What lies at an address, or lay there.
enum Entry {
    Live(Arc<Allocation>),
    Freed {
        bytes: u64,
        by: &'static str,
        taken_by: &'static str,
    },
}

#[derive(Default)]
struct Table {
    entries: BTreeMap<u64, Entry>,
    /// Bytes of addresses that have been given.
    next: u64,
    /// Bytes that are given, by device.
    used: BTreeMap<usize, usize>,
    /// Who may reach whose memory: (accessor, owner, whether of pools).
    access: BTreeSet<(usize, usize, bool)>,
}

static TABLE: RwLock<Option<Table>> = RwLock::new(None);

/// Returns where the addresses start.
pub(crate) fn arena() -> u64 {
    static START: OnceLock<u64> = OnceLock::new();
    *START.get_or_init(|| {
        // SAFETY: a new mapping, which nobody can touch.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                ARENA_BYTES as usize,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        assert!(
            start != libc::MAP_FAILED,
            "no {ARENA_BYTES} bytes of addresses"
        );
        start as u64
    })
}

fn table<T>(then: impl FnOnce(&mut Table) -> T) -> T {
    let mut table = TABLE.write().expect("no panic in the table");
    then(table.get_or_insert_default())
}

impl Table {
    /// Takes addresses that nobody has been given, with one page after them that nobody will be.
    fn addresses(&mut self, bytes: u64) -> u64 {
        let start = arena() + BEFORE + self.next;
        self.next += bytes.next_multiple_of(ALIGNMENT) + ALIGNMENT;
        assert!(
            BEFORE + self.next < ARENA_BYTES,
            "all addresses have been given"
        );
        start
    }
}

/// Reserves addresses for memory that is mapped there later.
pub(crate) fn reserve(bytes: u64) -> u64 {
    table(|table| table.addresses(bytes))
}

/// Says that memory has been mapped at reserved addresses; who writes it, in which process, nobody sees.
pub(crate) fn mapped(start: u64, bytes: u64, by: &'static str) {
    let allocation = Arc::new(Allocation {
        start,
        bytes,
        place: Place::Host,
        by,
        is_pooled: false,
        written: Box::default(),
        shadow: Mutex::default(),
        freed: AtomicBool::new(false),
    });
    table(|table| table.entries.insert(start, Entry::Live(allocation)));
}

/// Says that memory of the program, which [`mapped`] has named, is no device's any more.
pub(crate) fn forget(start: u64) {
    table(|table| table.entries.remove(&start));
}

/// Gives memory.
pub(crate) fn allocate(
    bytes: usize,
    place: Place,
    by: &'static str,
    is_pooled: bool,
) -> Result<Arc<Allocation>, Status> {
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    table(|table| {
        if let Place::Device(device) = place {
            let used = table.used.entry(device).or_default();
            if bytes > setup().memory - *used {
                return Err(OUT_OF_MEMORY);
            }
            *used += bytes;
        }
        let pages = (bytes as u64).div_ceil(PAGE) * PAGE;
        let start = table.addresses(pages);
        // SAFETY: pages of the arena that nobody has been given.
        let opened = unsafe {
            libc::mprotect(
                start as *mut _,
                pages as usize,
                libc::PROT_READ | libc::PROT_WRITE,
            )
        };
        if opened != 0 {
            return Err(OUT_OF_MEMORY);
        }
        let allocation = Arc::new(Allocation {
            start,
            bytes: bytes as u64,
            place,
            by,
            is_pooled,
            written: zeros(bytes.div_ceil(64)),
            shadow: Mutex::default(),
            freed: AtomicBool::new(false),
        });
        let entry = Entry::Live(Arc::clone(&allocation));
        table.entries.insert(start, entry);
        Ok(allocation)
    })
}

/// Words of zeros, which take no memory until they are written.
pub(crate) fn zeros(count: usize) -> Box<[AtomicU64]> {
    let words = vec![0_u64; count].into_boxed_slice();
    // SAFETY: an atomic word has the layout of a word, and nobody else has the box.
    unsafe { Box::from_raw(Box::into_raw(words) as *mut [AtomicU64]) }
}

/// Takes memory back that starts at an address.
pub(crate) fn free(start: u64, taken_by: &'static str) -> Result<(), Fault> {
    table(|table| {
        let entry = table.entries.get_mut(&start);
        let allocation = match entry {
            Some(Entry::Live(allocation)) => Arc::clone(allocation),
            Some(Entry::Freed { taken_by, .. }) => {
                let text = format!("{start:#x}, which {taken_by} has freed");
                return Err(Fault::new(INVALID_VALUE, text));
            }
            None => {
                let text = format!("{start:#x}, where no memory starts");
                return Err(Fault::new(INVALID_VALUE, text));
            }
        };
        allocation.freed.store(true, Ordering::Release);
        if let Place::Device(device) = allocation.place {
            *table.used.entry(device).or_default() -= allocation.bytes as usize;
        }
        let pages = allocation.bytes.div_ceil(PAGE) * PAGE;
        // SAFETY: a mapping in place of pages that were given, and are taken back.
        let closed = unsafe {
            libc::mmap(
                start as *mut _,
                pages as usize,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        assert!(closed != libc::MAP_FAILED, "pages are taken back");
        let entry = Entry::Freed {
            bytes: allocation.bytes,
            by: allocation.by,
            taken_by,
        };
        table.entries.insert(start, entry);
        Ok(())
    })
}

/// Returns the memory that an address is of, or why there is none.
pub(crate) fn find(address: u64) -> Result<Arc<Allocation>, String> {
    let table = TABLE.read().expect("no panic in the table");
    let before = table
        .as_ref()
        .and_then(|table| table.entries.range(..=address).next_back());
    match before {
        Some((_, Entry::Live(allocation))) if address < allocation.end() => {
            Ok(Arc::clone(allocation))
        }
        Some((_, Entry::Live(allocation))) if address - allocation.end() < NEAR => Err(format!(
            "{} bytes past the end of {}",
            address - allocation.end(),
            allocation.text()
        )),
        Some((
            start,
            Entry::Freed {
                bytes,
                by,
                taken_by,
            },
        )) if address < start + bytes => Err(format!(
            "byte {} of the {bytes} that {by} gave and {taken_by} has freed",
            address - start
        )),
        _ => Err(format!("{address:#x}, which is no address of a device")),
    }
}

/// Lets a device reach another's memory.
pub(crate) fn let_in(accessor: usize, owner: usize, of_pools: bool) -> bool {
    table(|table| table.access.insert((accessor, owner, of_pools)))
}

/// Whether work of a device may use memory.
pub(crate) fn may_use(device: usize, allocation: &Allocation) -> bool {
    match allocation.place {
        Place::Device(owner) if owner != device => {
            let table = TABLE.read().expect("no panic in the table");
            let access = table.as_ref().map(|table| &table.access);
            access.is_some_and(|access| access.contains(&(device, owner, allocation.is_pooled)))
        }
        _ => true,
    }
}

/// Returns how many bytes a device has given.
pub(crate) fn used(device: usize) -> usize {
    table(|table| table.used.get(&device).copied().unwrap_or_default())
}

/// Whether an address is one of those that this driver gives.
pub(crate) fn is_address(address: u64) -> bool {
    address.wrapping_sub(arena()) < ARENA_BYTES
}
