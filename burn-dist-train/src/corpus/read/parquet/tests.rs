use std::io::Cursor;
use std::sync::Arc;

use parquet::data_type::Int32Type;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::*;
use crate::corpus::format::Format;
use crate::corpus::{DocumentPlace, Encoded, Once, Policy};

/// A file with a nullable text, a prompt, a response and a number in each row; groups of so many rows.
fn file(groups: &[usize], codec: Compression) -> Vec<u8> {
    let schema = "message rows {
        OPTIONAL BYTE_ARRAY text (UTF8);
        REQUIRED BYTE_ARRAY prompt (UTF8);
        OPTIONAL BYTE_ARRAY response (UTF8);
        REQUIRED INT32 number;
    }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let properties = WriterProperties::builder()
        .set_compression(codec)
        .set_data_page_row_count_limit(7)
        .set_write_batch_size(7)
        .build();
    let mut written = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut written, schema, properties.into()).unwrap();
    let mut first = 0;
    for rows in groups {
        let numbers: Vec<usize> = (first..first + rows).collect();
        first += rows;
        let mut group = writer.next_row_group().unwrap();
        for column in 0..4 {
            let mut to = group.next_column().unwrap().expect("a column");
            if column == 3 {
                let numbers: Vec<i32> = numbers.iter().map(|number| *number as i32).collect();
                to.typed::<Int32Type>()
                    .write_batch(&numbers, None, None)
                    .unwrap();
                to.close().unwrap();
                continue;
            }
            let is_there = |number: &usize| column == 1 || has(column, *number);
            let texts = numbers.iter().filter(|number| is_there(number));
            let texts: Vec<ByteArray> = texts
                .map(|number| ByteArray::from(format!("{column} of {number}").as_str()))
                .collect();
            let levels: Vec<i16> = numbers
                .iter()
                .map(|number| is_there(number).into())
                .collect();
            let levels = (column != 1).then_some(&levels[..]);
            to.typed::<ByteArrayType>()
                .write_batch(&texts, levels, None)
                .unwrap();
            to.close().unwrap();
        }
        group.close().unwrap();
    }
    writer.close().unwrap();
    written
}

/// Every fifth text is null; no response is but that of row 60.
fn has(column: usize, number: usize) -> bool {
    match column {
        0 => !number.is_multiple_of(5),
        _ => number != 60,
    }
}

fn source(bytes: Vec<u8>) -> Source {
    Source::bytes("a.parquet", Format::Parquet, move || {
        Ok(Box::new(Cursor::new(bytes.clone())))
    })
}

fn expected(rows: std::ops::Range<usize>) -> Vec<(u64, Document)> {
    let rows = rows.filter(|number| has(0, *number));
    let text = |number| Document::Text(format!("0 of {number}"));
    rows.map(|number| (number as u64, text(number))).collect()
}

#[test]
fn rows_are_read_from_any_place_with_any_codec() {
    let groups = [30, 1, 70, 40];
    for codec in [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(Default::default()),
        Compression::LZ4_RAW,
    ] {
        let mut reader = super::super::open(&source(file(&groups, codec)), 100).unwrap();
        assert_eq!(reader.end(), 141);
        for start in (0..=141).chain([30, 29, 31, 0, 140, 100, 101]) {
            reader.seek(start).unwrap();
            let mut found = Vec::new();
            while let Some(document) = reader.next().unwrap() {
                found.push(document);
                let here = reader.at();
                if here.is_multiple_of(13) {
                    reader.seek(0).unwrap();
                    reader.seek(here).unwrap();
                }
            }
            assert_eq!(found, expected(start as usize..141), "{codec}, {start}");
        }
    }
}

#[test]
fn prompts_and_responses_are_pairs() {
    let source = source(file(&[10, 60], Compression::SNAPPY)).fields(Fields::Dialogue);
    let mut documents = source.documents(100).unwrap();
    let (place, document) = documents.nth(12).unwrap().unwrap();
    let pair = Document::Pair {
        prompt: "1 of 12".into(),
        response: "2 of 12".into(),
    };
    assert_eq!((place, document), (DocumentPlace(12), pair));
    let error = documents
        .find_map(Result::err)
        .expect("row 60 has no response");
    assert_eq!(error.to_string(), "a.parquet, row 61: `response` is empty");
}

#[test]
fn what_cannot_be_read_is_named() {
    let good = file(&[10], Compression::SNAPPY);
    let error = |source: Source| {
        let encode = |_: &Document| Ok(Encoded::new(vec![0; 9], 0));
        let once = Once::open(
            vec![source],
            Policy {
                document_bytes_max: 5,
                ..Policy::new(8)
            },
            encode,
        );
        once.err().expect("an error").to_string()
    };
    let found = error(source(good.clone()).fields(Fields::Text("body".into())));
    assert_eq!(
        found,
        "a.parquet has no column `body`; its columns are text, prompt, response, number: name those that are \
         meant, text=NAME"
    );
    let found = error(source(good.clone()).fields(Fields::Text("number".into())));
    assert!(
        found.contains("column `number` of a.parquet holds INT32"),
        "{found}"
    );
    let found = error(source(good.clone()));
    assert!(
        found.contains("a.parquet, row 2: its text of 6 bytes is longer than 5"),
        "{found}"
    );
    let found = error(source(good[..good.len() / 2].to_vec()));
    assert!(found.starts_with("cannot read a.parquet: "), "{found}");

    // One byte of the footer is the codec of the first column: 1 is snappy, 6 is zstd, and numbers are written twofold.
    let footer = u32::from_le_bytes(good[good.len() - 8..good.len() - 4].try_into().unwrap());
    let footer = good.len() - 8 - footer as usize..good.len() - 8;
    let changed = footer.filter(|at| good[*at] == 2).map(|at| {
        let mut changed = good.clone();
        changed[at] = 12;
        error(source(changed))
    });
    let expected = "column `text` of a.parquet is compressed by zstd";
    assert!(changed.into_iter().any(|found| found.starts_with(expected)));
}
