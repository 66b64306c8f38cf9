//! What the rows of a file take does not depend on the size of the file: 10 GiB that are made as they are read.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn_dist_train::corpus::{
    Corpus, Document, EncodeError, Encoded, Format, Policy, Source, Stream,
};

/// Counts the bytes that are held.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls go to the system's allocator as they come; counting them touches no memory that is handed out.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(held, Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Lines of 256 bytes, of which every byte is a function of its place.
struct Lines {
    bytes: u64,
    at: u64,
}

impl Read for Lines {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let len = to.len().min((self.bytes - self.at) as usize);
        for byte in &mut to[..len] {
            let (line, column) = (self.at / 256, self.at % 256);
            *byte = match column {
                255 => b'\n',
                _ => b'a' + ((line ^ (line >> 7)).wrapping_mul(column + 1) % 26) as u8,
            };
            self.at += 1;
        }
        Ok(len)
    }
}

impl Seek for Lines {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.at = match to {
            SeekFrom::Start(at) => at,
            SeekFrom::End(by) => self.bytes.wrapping_add_signed(by),
            SeekFrom::Current(by) => self.at.wrapping_add_signed(by),
        };
        Ok(self.at)
    }
}

/// The most bytes that are held while so many rows of a file are made, which are more than the lanes' first blocks.
fn peak(file_bytes: u64, shuffle_bytes: u64, rows: usize) -> usize {
    let source = Source::bytes("lines.txt", Format::Text, move || {
        Ok(Box::new(Lines {
            bytes: file_bytes,
            at: 0,
        }))
    });
    let source = source.split(burn_dist_train::corpus::Split::Line);
    let encode = |document: &Document| -> Result<Encoded, EncodeError> {
        let Document::Text(text) = document else {
            unreachable!("it is plain text");
        };
        // As many bytes to a token as tokenizers have.
        let ids = text.as_bytes().chunks(4).map(|bytes| u32::from(bytes[0]));
        Ok(Encoded::new(ids.collect(), 0))
    };
    let policy = Policy {
        shuffle_bytes,
        lanes: Some(16),
        ..Policy::new(256)
    };
    let before = HELD.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let corpus = Corpus::open(vec![source], policy, encode).unwrap();
    let mut stream = Stream::new(Arc::new(corpus));
    for _ in 0..rows {
        stream.next_row().unwrap().expect("there is no end");
    }
    PEAK.load(Ordering::Relaxed) - before
}

#[test]
fn memory_is_that_of_the_buffer() {
    let buffer = 2 << 20;
    // 256 positions are 1 KiB of text: 4 MiB, twice the buffer, and four times.
    let small = peak(64 << 20, buffer, 4 << 10);
    let large = peak(10 << 30, buffer, 4 << 10);
    let longer = peak(10 << 30, buffer, 8 << 10);
    println!("{small} bytes for 64 MiB, {large} and {longer} for 10 GiB");
    assert!(large < small + small / 20, "{small} and {large}");
    assert!(longer < large + large / 20, "{large} and {longer}");
    // Ids take as much as text, a document and a piece of a row some more; a block is replaced by the next.
    assert!(large < 5 * buffer as usize / 2, "{large} for {buffer}");
}
