//! Packed files: unpacked once, into a file without a name that goes with the source, and read from any place there.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::format::Bytes;
use super::packing::Packing;

/// A packed file. What it holds is unpacked when it is first opened; all that open it share the result.
pub(super) struct Archive {
    path: PathBuf,
    packing: Packing,
    unpacked: Mutex<Option<Arc<File>>>,
}

impl Archive {
    pub(super) fn new(path: PathBuf, packing: Packing) -> Self {
        Self {
            path,
            packing,
            unpacked: Mutex::new(None),
        }
    }

    /// Opens what it holds.
    ///
    /// # Errors
    /// It cannot be read, is broken, or there is no room for what it holds.
    pub(super) fn open(&self) -> io::Result<Box<dyn Bytes>> {
        let mut unpacked = self.unpacked.lock().unwrap_or_else(PoisonError::into_inner);
        let file = match &*unpacked {
            Some(file) => Arc::clone(file),
            None => Arc::clone(unpacked.insert(Arc::new(self.unpack()?))),
        };
        let len = file.metadata()?.len();
        Ok(Box::new(Unpacked { file, at: 0, len }))
    }

    fn unpack(&self) -> io::Result<File> {
        let from = BufReader::with_capacity(64 << 10, regular(&self.path)?);
        let folder = std::env::temp_dir();
        let mut to = tempfile::tempfile_in(&folder).map_err(|error| no_room(&folder, &error))?;
        let outcome = match self.packing {
            Packing::Gzip => unpack_gzip(from, &mut to),
            Packing::Zstd => unpack_zstd(from, &mut to),
        };
        match outcome {
            Ok(()) => Ok(to),
            Err(Failure::Read(error)) => Err(error),
            Err(Failure::Broken(reason)) => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "it cannot be unpacked ({reason}): is it whole, and is it packed by {}, as its name says?",
                    self.packing.name()
                ),
            )),
            Err(Failure::Window) => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "it was packed with a window of more than 32 MiB (--long, or --ultra): unpack it, or pack it without",
            )),
            Err(Failure::Write(error)) => Err(no_room(&folder, &error)),
        }
    }
}

/// Opens a file of which any place can be read.
pub(super) fn regular(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other(
            "it is no regular file, and documents are read from their places in one",
        )),
    }
}

fn no_room(folder: &Path, error: &io::Error) -> io::Error {
    io::Error::new(
        error.kind(),
        format!(
            "it cannot be unpacked into {} ({error}): TMPDIR names another folder, or give the file unpacked",
            folder.display()
        ),
    )
}

/// Why a file was not unpacked.
enum Failure {
    /// The packed file cannot be read.
    Read(io::Error),
    /// Its bytes are none of what packs such files.
    Broken(String),
    /// It looks further back than it may.
    Window,
    /// The unpacked file cannot be written.
    Write(io::Error),
}

/// How far back a frame of zstd may look: as far as level 20 does, without `--long`. A reader has so many bytes in
/// memory.
const WINDOW_BYTES_MAX: u64 = 32 << 20;

/// Bytes that are unpacked at once.
const BLOCK_BYTES: usize = 64 << 10;

fn unpack_gzip(from: BufReader<File>, to: &mut File) -> Result<(), Failure> {
    let mut decoder = MultiGzDecoder::new(from);
    let mut block = vec![0; BLOCK_BYTES];
    loop {
        let read = match decoder.read(&mut block) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // What the system says of a file has a code; what the decoder says has none.
            Err(error) if error.raw_os_error().is_some() => return Err(Failure::Read(error)),
            Err(error) => return Err(Failure::Broken(error.to_string())),
        };
        to.write_all(&block[..read]).map_err(Failure::Write)?;
    }
}

fn unpack_zstd(mut from: BufReader<File>, to: &mut File) -> Result<(), Failure> {
    let broken = |error: FrameDecoderError| Failure::Broken(error.to_string());
    let mut is_first = true;
    loop {
        let is_end = from.fill_buf().map_err(Failure::Read)?.is_empty();
        if is_end && is_first {
            return Err(Failure::Broken("it is empty".into()));
        }
        if is_end {
            return Ok(());
        }
        is_first = false;
        // A new one takes memory as bytes come, and one that is used again all that the frame asks for.
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(WINDOW_BYTES_MAX);
        match decoder.reset(&mut from) {
            Ok(()) => {}
            // A frame for other programs.
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                length,
                ..
            })) => {
                let length = u64::from(length);
                let skipped = io::copy(&mut (&mut from).take(length), &mut io::sink());
                if skipped.map_err(Failure::Read)? < length {
                    return Err(Failure::Broken("a frame that is skipped ends early".into()));
                }
                continue;
            }
            Err(FrameDecoderError::WindowSizeTooBig { .. }) => return Err(Failure::Window),
            Err(error) => return Err(broken(error)),
        }
        while !decoder.is_finished() {
            let one = BlockDecodingStrategy::UptoBlocks(1);
            decoder.decode_blocks(&mut from, one).map_err(broken)?;
            decoder
                .collect_to_writer(&mut *to)
                .map_err(Failure::Write)?;
        }
        let computed = decoder.get_calculated_checksum();
        if decoder
            .get_checksum_from_data()
            .is_some_and(|it| Some(it) != computed)
        {
            return Err(Failure::Broken("a checksum is another one".into()));
        }
    }
}

/// A file that others read too: each has a place of its own.
struct Unpacked {
    file: Arc<File>,
    at: u64,
    len: u64,
}

impl Read for Unpacked {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = read_at(&self.file, bytes, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

#[cfg(unix)]
fn read_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, bytes, at)
}

#[cfg(windows)]
fn read_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, bytes, at)
}

impl Seek for Unpacked {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.len.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        let before =
            || io::Error::new(io::ErrorKind::InvalidInput, "a place before the first byte");
        self.at = at.ok_or_else(before)?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use crate::corpus::{DOCUMENT_BYTES_MAX, Document, Format, Source};

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        std::io::Write::write_all(&mut encoder, text).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(text: &[u8]) -> Vec<u8> {
        compress_to_vec(text, CompressionLevel::Fastest)
    }

    type Pack = fn(&[u8]) -> Vec<u8>;
    const PACKED: [(&str, Pack); 2] = [("gz", gzip), ("zst", zstd)];

    fn lines(from: usize, to: usize) -> Vec<u8> {
        let line = |number| format!("{{\"text\": \"text number {number}\"}}\n");
        (from..to).map(line).collect::<String>().into_bytes()
    }

    fn documents(source: &Source) -> Result<Vec<(String, Document)>, String> {
        let documents = source.documents(DOCUMENT_BYTES_MAX);
        let documents = documents.map_err(|error| error.to_string())?;
        let document = |found: Result<_, _>| {
            let (place, document): (crate::corpus::DocumentPlace, Document) = found?;
            Ok((format!("{place:?}"), document))
        };
        let all: Result<_, crate::corpus::CorpusError> = documents.map(document).collect();
        all.map_err(|error| error.to_string())
    }

    #[test]
    fn a_packed_file_has_the_documents_and_places_of_the_plain_one() {
        let folder = tempfile::tempdir().unwrap();
        let plain = folder.path().join("texts.jsonl");
        fs::write(&plain, lines(0, 5000)).unwrap();
        let expected = Source::file(&plain, Format::Jsonl);
        for (end, pack) in PACKED {
            // In two members or frames, as programs that pack on several threads write them.
            let path = folder.path().join(format!("texts.jsonl.{end}"));
            fs::write(
                &path,
                [pack(&lines(0, 1000)), pack(&lines(1000, 5000))].concat(),
            )
            .unwrap();
            assert_eq!(Format::of(&path).unwrap(), Format::Jsonl);
            let source = Source::file(&path, Format::Jsonl);
            assert_eq!(source.size().unwrap(), expected.size().unwrap());
            assert_eq!(documents(&source).unwrap(), documents(&expected).unwrap());
            // Two that read at once do so each from its own place.
            let mut both = [0, 1].map(|_| source.documents(DOCUMENT_BYTES_MAX).unwrap());
            for _ in 0..3 {
                let [one, other] = both.each_mut().map(|it| it.next().unwrap().unwrap());
                assert_eq!(one, other);
            }
            let sample = source.sample(1 << 10, DOCUMENT_BYTES_MAX).unwrap();
            assert_eq!(
                sample,
                expected.sample(1 << 10, DOCUMENT_BYTES_MAX).unwrap()
            );
            // It was unpacked once: what becomes of the file is of no matter.
            fs::remove_file(&path).unwrap();
            assert_eq!(
                documents(&source.clone()).unwrap(),
                documents(&expected).unwrap()
            );
        }
    }

    #[test]
    fn frames_that_are_for_other_programs_are_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt.zst");
        let skipped = [
            &0x184D_2A51_u32.to_le_bytes()[..],
            &3_u32.to_le_bytes(),
            b"abc",
        ]
        .concat();
        fs::write(&path, [&skipped[..], &zstd(b"a text\n"), &skipped].concat()).unwrap();
        let found = documents(&Source::file(&path, Format::Text)).unwrap();
        assert_eq!(found[0].1, Document::Text("a text".into()));
        fs::write(&path, [&zstd(b"a text\n"), &skipped[..9]].concat()).unwrap();
        let error = documents(&Source::file(&path, Format::Text)).unwrap_err();
        assert!(
            error.contains("a frame that is skipped ends early"),
            "{error}"
        );
    }

    #[test]
    fn a_broken_archive_is_named() {
        let folder = tempfile::tempdir().unwrap();
        for (end, pack) in PACKED {
            let path = folder.path().join(format!("texts.txt.{end}"));
            let whole = pack(&lines(0, 3000));
            let middle = whole.len() / 2;
            let mut changed = whole.clone();
            changed[middle] ^= 0x10;
            let cases = [
                ("cut", whole[..middle].to_vec()),
                ("without its last byte", whole[..whole.len() - 1].to_vec()),
                ("changed", changed),
                ("with more behind it", [&whole[..], b"more"].concat()),
                ("plain", lines(0, 10)),
                ("empty", Vec::new()),
            ];
            for (what, bytes) in cases {
                fs::write(&path, bytes).unwrap();
                let source = Source::file(&path, Format::Text);
                let error = documents(&source).expect_err(what);
                for part in [
                    "cannot read",
                    &path.display().to_string(),
                    "it cannot be unpacked",
                    "is it whole",
                ] {
                    assert!(error.contains(part), "{what}: {part:?} in {error}");
                }
                // It stays so, and says so again.
                assert_eq!(documents(&source).unwrap_err(), error);
            }
            fs::write(&path, pack(b"")).unwrap();
            let found = documents(&Source::file(&path, Format::Text)).unwrap();
            assert_eq!(found, []);
        }
    }

    #[test]
    fn a_window_that_takes_much_memory_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt.zst");
        // A frame of an empty last block, whose window is 2^25 bytes, and 2^26.
        let frame = |log: u8| {
            [
                &0xFD2F_B528_u32.to_le_bytes()[..],
                &[0, (log - 10) << 3, 1, 0, 0],
            ]
            .concat()
        };
        fs::write(&path, frame(25)).unwrap();
        assert_eq!(documents(&Source::file(&path, Format::Text)).unwrap(), []);
        fs::write(&path, frame(26)).unwrap();
        let error = documents(&Source::file(&path, Format::Text)).unwrap_err();
        assert!(error.contains("a window of more than 32 MiB"), "{error}");
    }

    #[test]
    fn the_name_before_the_packing_tells_the_format() {
        let of = |name: &str| Format::of(name.as_ref()).map_err(|error| error.to_string());
        assert_eq!(of("a/b.md.gz").unwrap(), Format::Text);
        assert_eq!(of("b.parquet.zst").unwrap(), Format::Parquet);
        for name in ["a.gz", "a.tar.gz", "a.jsonl.bz2", "a.zst"] {
            let error = of(name).unwrap_err();
            assert!(
                error.contains(name) && error.contains(".gz or .zst"),
                "{error}"
            );
        }
    }
}
