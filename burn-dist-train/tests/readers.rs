//! Hostile files: no reader takes memory out of proportion, panics, or goes on without end.

#[path = "../../dev/hostile.rs"]
mod hostile;
#[path = "../../dev/quarters.rs"]
mod quarters;
#[path = "readers/tokenizer.rs"]
mod tokenizer;

use std::path::Path;

use burn_dist_train::config::{Config, Key, Section};
use burn_dist_train::corpus::{DOCUMENT_BYTES_MAX, Format, Source, Split};
use burn_dist_train::files;
use burn_dist_train::metrics::Jsonl;
use burn_dist_train::run::{Begin, RunFolder};
use clap::{Arg, ArgAction, Command, value_parser};
use hostile::Content::{Bytes, Link, Sparse};
use hostile::{Content, Reader, USUAL};

const SECTIONS: &[Section] = &[Section::new(
    "run",
    "The run",
    &[Key::of("steps"), Key::of("data")],
)];

fn config(folder: &Path) -> Result<(), String> {
    let command = Command::new("train")
        .arg(
            Arg::new("steps")
                .long("steps")
                .value_parser(value_parser!(usize)),
        )
        .arg(Arg::new("data").long("data").action(ArgAction::Append));
    let file = folder.join("run.toml");
    let read = Config::new(command, SECTIONS).try_read([
        "train".as_ref(),
        "--config".as_ref(),
        file.as_os_str(),
    ]);
    read.map(drop).map_err(|error| error.to_string())
}

fn corpus(source: Source) -> Result<(), String> {
    let text = |error: burn_dist_train::corpus::CorpusError| error.to_string();
    // From places all over it, and all of it as far as it can be read.
    source.sample(1 << 16, DOCUMENT_BYTES_MAX).map_err(text)?;
    for document in source.documents(DOCUMENT_BYTES_MAX).map_err(text)? {
        document.map_err(text)?;
    }
    Ok(())
}

fn texts() -> Vec<(&'static str, Content)> {
    let blanks = |blank: &str| {
        let many = blank.repeat(300_000);
        format!("a\n{many}b\n{many}c\n").into_bytes()
    };
    vec![
        ("hole", Sparse(b"hello\n\n".to_vec(), 1 << 36)),
        ("blank lines", Bytes(blanks("\n"))),
        ("spaces", Bytes(blanks(" "))),
        ("blank lines of spaces", Bytes(blanks("  \n"))),
        ("carriage returns", Bytes(blanks("\r\n"))),
        ("no file", Link("/dev/zero")),
    ]
}

fn lines() -> Vec<(&'static str, Content)> {
    let many = (0..200_000)
        .map(|name| format!("\"n{name}\":0"))
        .collect::<Vec<_>>();
    let deep = format!(
        "{{\"text\":\"a\",\"x\":{}{}}}\n",
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    let long = format!("{{\"{}\":0}}\n", "x".repeat(8 << 20));
    vec![
        (
            "many fields",
            Bytes(format!("{{{}}}\n", many.join(",")).into_bytes()),
        ),
        ("long name", Bytes(long.into_bytes())),
        ("deep", Bytes(deep.into_bytes())),
        ("hole", Sparse(b"{\"text\":\"a\"}\n".to_vec(), 1 << 40)),
        ("half a pair", Bytes(b"{\"text\":\"\\ud800\"}\n".to_vec())),
        ("no file", Link("/dev/zero")),
    ]
}

fn settings() -> Vec<(&'static str, Content)> {
    let sections: String = (0..50_000).map(|name| format!("[s{name}]\n")).collect();
    let keys: String = (0..40_000).map(|name| format!("k{name} = 1\n")).collect();
    let values =
        |value: &str| format!("[run]\ndata = [{}]\n", [value; 100_000].join(",")).into_bytes();
    vec![
        ("device", Link("/dev/zero")),
        ("hole", Sparse(b"[run]\n".to_vec(), 1 << 40)),
        ("sections", Bytes(sections.into_bytes())),
        ("keys", Bytes(format!("[run]\n{keys}").into_bytes())),
        ("keys in no section", Bytes(keys.into_bytes())),
        ("values", Bytes(values("\"a\""))),
        ("values of another type", Bytes(values("1"))),
        (
            "long name",
            Bytes(format!("[run]\n{} = 1\n", "x".repeat(500_000)).into_bytes()),
        ),
        (
            "long value",
            Bytes(format!("[run]\nsteps = \"{}\"\n", "x".repeat(500_000)).into_bytes()),
        ),
        (
            "deep",
            Bytes(format!("a = {}", "[".repeat(500_000)).into_bytes()),
        ),
    ]
}

fn figures() -> Vec<(&'static str, Content)> {
    vec![
        ("hole", Sparse(b"{\"step\":1}\n".to_vec(), 1 << 40)),
        ("device", Link("/dev/zero")),
        (
            "deep",
            Bytes(format!("{{\"x\":{}\n", "[".repeat(100_000)).into_bytes()),
        ),
    ]
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    std::io::Write::write_all(&mut encoder, text).unwrap();
    encoder.finish().unwrap()
}

/// Texts packed by gzip, of which little is much.
fn packed_by_gzip() -> Vec<(&'static str, Content)> {
    vec![
        ("zeros", Bytes(gzip(&vec![0; 64 << 20]))),
        ("lines", Bytes(gzip(&b"a\n\n".repeat(1 << 20)))),
        ("many members", Bytes(gzip(b"a\n").repeat(10_000))),
        ("hole", Sparse(gzip(b"a\n"), 1 << 40)),
        ("no file", Link("/dev/zero")),
    ]
}

/// A frame of zstd with a window of `2^log` bytes, and `blocks` blocks of 128 KiB of the same byte, four bytes each.
fn zstd_frame(log: u8, blocks: usize) -> Vec<u8> {
    let mut frame = [&0xFD2F_B528_u32.to_le_bytes()[..], &[0, (log - 10) << 3]].concat();
    for block in 0..blocks {
        let header = (128_u32 << 10) << 3 | 1 << 1 | u32::from(block + 1 == blocks);
        frame.extend(&header.to_le_bytes()[..3]);
        frame.push(b'a');
    }
    frame
}

fn packed_by_zstd() -> Vec<(&'static str, Content)> {
    let skipped = [&0x184D_2A50_u32.to_le_bytes()[..], &u32::MAX.to_le_bytes()].concat();
    vec![
        ("as far back as may be", Bytes(zstd_frame(25, 2000))),
        ("further", Bytes(zstd_frame(41, 2000))),
        ("many frames", Bytes(zstd_frame(25, 1).repeat(500))),
        ("skipped", Bytes(skipped)),
        ("hole", Sparse(zstd_frame(20, 1), 1 << 40)),
        ("no file", Link("/dev/zero")),
    ]
}

#[cfg(feature = "parquet")]
mod parquet_files {
    use super::*;
    use parquet::basic::Compression;
    use parquet::data_type::{ByteArray, ByteArrayType};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;
    use std::sync::Arc;

    fn file(codec: Compression, texts: &[ByteArray], dictionary: bool) -> Vec<u8> {
        let schema = "message rows { OPTIONAL BYTE_ARRAY text (UTF8); }";
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let properties = WriterProperties::builder()
            .set_compression(codec)
            .set_dictionary_enabled(dictionary)
            .set_dictionary_page_size_limit(1 << 30)
            .set_data_page_size_limit(1 << 30)
            .set_data_page_row_count_limit(1 << 30)
            .set_write_batch_size(1 << 20)
            .build();
        let mut written = Vec::new();
        let mut writer =
            SerializedFileWriter::new(&mut written, schema, properties.into()).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().expect("a column");
        let levels = vec![1; texts.len()];
        let typed = column.typed::<ByteArrayType>();
        typed.write_batch(texts, Some(&levels), None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
        writer.close().unwrap();
        written
    }

    pub(super) fn good() -> Vec<u8> {
        let texts = (0..200).map(|number| ByteArray::from(format!("text {number}").as_str()));
        file(Compression::SNAPPY, &texts.collect::<Vec<_>>(), true)
    }

    /// What a page claims is in its first bytes: here 5 for 120 MiB.
    fn that_lies(codec: Compression) -> Vec<u8> {
        let text = ByteArray::from(vec![b'a'; 120 << 20]);
        let mut bytes = file(codec, &[text], false);
        // Behind the magic number: the type of the page, then its size in five bytes, of which the last is the top.
        assert_eq!(
            (&bytes[4..7], bytes[11] & 0xf0),
            (&[0x15, 0, 0x15][..], 0x10)
        );
        bytes[7..11].copy_from_slice(&[0x8a, 0x80, 0x80, 0x00]);
        bytes
    }

    pub(super) fn hostile() -> Vec<(&'static str, Content)> {
        let page = |codec| {
            let text = ByteArray::from(vec![b'a'; 1 << 20]);
            Bytes(file(codec, &vec![text; 200], false))
        };
        let entries: Vec<ByteArray> = (0..100)
            .map(|number| ByteArray::from(format!("{number}{}", "a".repeat(2 << 20)).as_str()))
            .collect();
        let gzip = Compression::GZIP(Default::default());
        let mut long_footer = good();
        let at = long_footer.len() - 8;
        long_footer[at..at + 4].copy_from_slice(&(1u32 << 31).to_le_bytes());
        vec![
            ("gzip", page(gzip)),
            ("snappy", page(Compression::SNAPPY)),
            ("lz4", page(Compression::LZ4_RAW)),
            ("dictionary", Bytes(file(gzip, &entries, true))),
            (
                "empty texts",
                Bytes(file(gzip, &vec![ByteArray::from(""); 3_000_000], true)),
            ),
            ("gzip that lies", Bytes(that_lies(gzip))),
            ("footer", Bytes(long_footer)),
            ("no file", Link("/dev/zero")),
        ]
    }
}

const READERS: &[Reader] = &[
    Reader {
        name: "configuration",
        sources: &["config/read.rs", "files.rs"],
        file: "run.toml",
        good: || b"[run]\nsteps = 5\ndata = [\"a.txt\"]\n".to_vec(),
        hostile: settings,
        read: config,
        factor: USUAL,
    },
    Reader {
        name: "text in UTF-8",
        sources: &[],
        file: "table.txt",
        good: || b"0F0 0B0".to_vec(),
        hostile: || {
            vec![
                ("device", Link("/dev/zero")),
                ("hole", Sparse(Vec::new(), 1 << 40)),
            ]
        },
        read: |folder| {
            let read = files::read_text(&folder.join("table.txt"), 1 << 20);
            read.map(drop).map_err(|error| error.to_string())
        },
        factor: USUAL,
    },
    Reader {
        name: "plain text",
        sources: &["corpus/read/lines.rs"],
        file: "a.txt",
        good: || b"one\nline\n\nand another\n".to_vec(),
        hostile: texts,
        read: |folder| {
            let of = |split| Source::file(&folder.join("a.txt"), Format::Text).split(split);
            let all = [Split::Paragraph, Split::Line, Split::File].map(|split| corpus(of(split)));
            all.into_iter().collect()
        },
        factor: USUAL,
    },
    Reader {
        name: "JSONL",
        sources: &[],
        file: "a.jsonl",
        good: || b"{\"text\":\"one\"}\n{\"prompt\":\"a\",\"response\":\"b\"}\n".to_vec(),
        hostile: lines,
        read: |folder| corpus(Source::file(&folder.join("a.jsonl"), Format::Jsonl)),
        factor: USUAL,
    },
    Reader {
        name: "texts packed by gzip",
        sources: &["corpus/archive.rs"],
        file: "a.txt.gz",
        good: || gzip(b"one\nline\n\nand another\n"),
        hostile: packed_by_gzip,
        read: |folder| corpus(Source::file(&folder.join("a.txt.gz"), Format::Text)),
        factor: USUAL,
    },
    Reader {
        name: "texts packed by zstd",
        sources: &[],
        file: "a.txt.zst",
        good: || zstd_frame(20, 2),
        hostile: packed_by_zstd,
        read: |folder| corpus(Source::file(&folder.join("a.txt.zst"), Format::Text)),
        factor: USUAL,
    },
    #[cfg(feature = "parquet")]
    Reader {
        name: "Parquet",
        sources: &[],
        file: "a.parquet",
        good: parquet_files::good,
        hostile: parquet_files::hostile,
        read: |folder| corpus(Source::file(&folder.join("a.parquet"), Format::Parquet)),
        factor: USUAL,
    },
    Reader {
        name: "figures of a run",
        sources: &["run/past.rs", "metrics/jsonl.rs"],
        file: "metrics.jsonl",
        good: || b"{\"event\":\"begin\",\"step\":0}\n{\"step\":1,\"train/loss\":3.5}\n".to_vec(),
        hostile: figures,
        read: |folder| {
            let run = RunFolder::at(folder);
            run.check_goes_on(Some(0))
                .map_err(|error| error.to_string())?;
            let kept = Jsonl::open(folder.join("metrics.jsonl"), 5);
            kept.map(drop).map_err(|error| error.to_string())
        },
        factor: USUAL,
    },
    Reader {
        name: "lock of a run",
        sources: &["run/lock.rs"],
        file: "run.lock",
        good: || b"process 1 on a\n".to_vec(),
        hostile: || vec![("hole", Sparse(b"process ".to_vec(), 1 << 40))],
        read: |folder| {
            let run = RunFolder::at(folder);
            let first = run.lock(Begin::OrGoOn);
            // Who is refused reads who has it.
            let file = std::fs::File::options()
                .write(true)
                .open(folder.join("run.lock"));
            file.and_then(|file| file.set_len(1 << 40)).unwrap();
            let second = run.lock(Begin::OrGoOn).map(drop).unwrap_err().to_string();
            assert!(second.len() < 2000, "{second}");
            first.map(drop).map_err(|error| error.to_string())
        },
        factor: USUAL,
    },
];

quarters::hostile_files_take_no_memory_out_of_proportion!(
    READERS.iter().chain(&tokenizer::READERS)
);

#[test]
fn every_place_that_reads_a_file_belongs_to_a_reader() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    // Parquet's bytes come from a source.
    // What a process has left of a file is opened to be locked, and not read. Tokenizers have readers of their own.
    hostile::check_sources(
        &src,
        READERS,
        &[
            "files/whole.rs",
            "tokenizer/declared.rs",
            "tokenizer/mod.rs",
        ],
    );
}

/// The way back over what is blank is read in blocks.
#[test]
fn blank_lines_of_any_number_separate_paragraphs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    for blank in ["\n", "\r\n", "  \n"] {
        let many = blank.repeat(9_000);
        std::fs::write(&path, format!("a\n{many}b\n{many}c\n")).unwrap();
        let source = Source::file(&path, Format::Text);
        let documents = source.documents(DOCUMENT_BYTES_MAX).unwrap();
        let found: Vec<_> = documents.map(|document| document.unwrap()).collect();
        assert_eq!(found.len(), 3, "{blank:?}");
        for (place, document) in found {
            let again = source.document(place, DOCUMENT_BYTES_MAX).unwrap();
            assert_eq!(again, document, "{blank:?}");
        }
    }
}
