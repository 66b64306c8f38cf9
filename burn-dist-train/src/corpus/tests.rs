use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::rng::Rng;

/// Bytes as ids, after a mark, and another behind them.
fn bytes(document: &Document) -> Result<Encoded, EncodeError> {
    let (prompt, text) = match document {
        Document::Text(text) => ("", text),
        Document::Pair { prompt, response } => (prompt.as_str(), response),
        Document::Chat(messages) => ("", messages),
    };
    if text.contains('!') {
        return Err("it shouts".into());
    }
    let ids = prompt.bytes().chain(text.bytes()).map(u32::from).chain([0]);
    Ok(Encoded::new(ids.collect(), prompt.len()))
}

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn source(&self, name: &str, text: impl AsRef<[u8]>) -> Source {
        let path = self.write(name, text);
        Source::file(&path, Format::of(&path).unwrap())
    }

    /// An error's text, with file names alone.
    fn text(&self, error: &CorpusError) -> String {
        let folder = format!("{}/", self.0.path().display());
        error.to_string().replace(&folder, "")
    }
}

/// Texts of these lengths, as lines of JSON, as paragraphs, and as documents.
fn sources(files: &Files, lens: &[usize]) -> Vec<Source> {
    let text = |(number, len): (usize, &usize)| {
        let words = format!("{number} ").repeat(len / 2 + 1);
        words.trim().to_string()
    };
    let texts: Vec<String> = lens.iter().enumerate().map(text).collect();
    let json = |text: &String| format!("{{\"id\": 1, \"text\": \"{text}\"}}\n");
    let jsonl: String = texts.iter().map(json).collect();
    let paragraph = |text: &String| format!("{}\n\n", text.replacen(' ', "\n", 1));
    let paragraphs: String = texts.iter().map(paragraph).collect();
    let pair = |text: &String| Document::Pair {
        prompt: "ask ".into(),
        response: text.clone(),
    };
    vec![
        files.source("a.jsonl", jsonl),
        files.source("b.txt", paragraphs).weight(0.6),
        Source::memory("c", texts.iter().map(pair).collect::<Vec<_>>()).weight(0.3),
    ]
}

fn open(sources: &[Source], policy: &Policy) -> Arc<Corpus> {
    Arc::new(Corpus::open(sources.to_vec(), policy.clone(), bytes).unwrap())
}

/// Returns the position as if it had been written and read.
fn saved(position: &Position) -> Position {
    serde_json::from_str(&serde_json::to_string(position).unwrap()).unwrap()
}

/// Cuts a batch into as many parts as there are processes; some may be empty, some rows in several of them.
fn parts(batch: usize, processes: usize, overlap: bool) -> Vec<Part> {
    let border = |process: usize| batch * process / processes;
    let part = |process: usize| {
        let end = border(process + 1) + usize::from(overlap);
        let held: Range<usize> = border(process)..end.min(batch);
        Part {
            batch,
            held: vec![held],
        }
    };
    (0..processes).map(part).collect()
}

/// So many batches in several processes: the rows in order, and what the processes know together afterwards.
fn run(
    corpus: &Arc<Corpus>,
    from: Option<&Position>,
    parts: &[Part],
    batches: usize,
) -> (Vec<Row>, Position) {
    let batch = parts[0].batch;
    let mut rows: Vec<Option<Row>> = vec![None; batch * batches];
    let mut positions = Vec::new();
    for part in parts {
        let mut making = Batches::new(Arc::clone(corpus), part.clone(), 2);
        if let Some(position) = from {
            // Where it has been before does not matter.
            making.next_batch().unwrap();
            making.resume(position).unwrap();
        }
        // Nor does looking.
        while !making.ready_within(Duration::from_millis(10)).unwrap() {}
        for number in 0..batches {
            let held = part.held.iter().cloned().flatten();
            for (row, at) in making.next_batch().unwrap().into_iter().zip(held) {
                let place = &mut rows[number * batch + at];
                assert!(place.as_ref().is_none_or(|other| *other == row));
                *place = Some(row);
            }
        }
        positions.push(saved(&making.position()));
    }
    let rows = rows.into_iter().map(|row| row.expect("a process holds it"));
    (rows.collect(), Position::merge(positions).unwrap())
}

/// Lengths of texts, most of them longer than a row: where those are dropped, a source without any other is an error.
fn lens_one_of_which_fits() -> impl Strategy<Value = Vec<usize>> {
    let lens = prop::collection::vec(1usize..60, 12..40);
    (lens, any::<prop::sample::Index>()).prop_map(|(mut lens, fits)| {
        let at = fits.index(lens.len());
        lens[at] = 1;
        lens
    })
}

fn policy() -> impl Strategy<Value = Policy> {
    let packing = prop_oneof![
        Just(Packing::Pack),
        Just(Packing::Pad),
        Just(Packing::Stream)
    ];
    let longer = prop_oneof![Just(Longer::Split), Just(Longer::Drop)];
    (packing, longer, 60u64..3000, 0u32..4, any::<u64>()).prop_map(
        |(packing, longer, shuffle_bytes, lanes, seed)| Policy {
            packing,
            longer,
            shuffle_bytes,
            lanes: Some(1 << lanes),
            seed,
            ..Policy::new(24)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn rows_depend_neither_on_processes_nor_batches_nor_stops(
        lens in lens_one_of_which_fits(),
        num_sources in 1usize..4,
        policy in policy(),
        legs in prop::collection::vec((1usize..9, 1usize..4, any::<bool>(), 0usize..5), 1..4),
    ) {
        let files = Files::new();
        let corpus = open(&sources(&files, &lens)[..num_sources], &policy);
        let mut whole = Stream::new(Arc::clone(&corpus));
        let mut position: Option<Position> = None;
        for (batch, processes, overlap, batches) in legs {
            let parts = parts(batch, processes, overlap);
            let (rows, next) = run(&corpus, position.as_ref(), &parts, batches);
            for row in rows {
                prop_assert_eq!(Some(row), whole.next_row().unwrap());
            }
            prop_assert_eq!(&next, &whole.position());
            position = Some(next);
        }
    }

    #[test]
    fn lanes_share_documents_without_loss(
        lens in prop::collection::vec(0usize..30, 1..30),
        cuts in prop::collection::vec(0.0..1.0f64, 0..6),
        split in prop_oneof![Just(Split::Line), Just(Split::Paragraph), Just(Split::File)],
        gaps in prop::collection::vec(0usize..4, 30),
        (mark, before, ends) in (any::<bool>(), 0usize..4, any::<bool>()),
    ) {
        let files = Files::new();
        let mut text = if mark { "\u{FEFF}" } else { "" }.to_string() + &" \n".repeat(before);
        for (number, (len, gap)) in lens.iter().zip(&gaps).enumerate() {
            text += &format!("{number}{}\n", "x\n".repeat(*len / 10) + &"y".repeat(*len));
            text += &["\n", " \t\n", "\r\n"][..].concat().repeat(*gap);
        }
        if !ends {
            text.truncate(text.trim_end().len());
        }
        let source = files.source("a.txt", &text).split(split);
        let all: Vec<_> = source.documents(1000).unwrap().map(Result::unwrap).collect();
        let mut reader = read::open(&source, 1000).unwrap();
        let mut borders: Vec<u64> = cuts.iter().map(|cut| (cut * text.len() as f64) as u64).collect();
        borders.extend([0, text.len() as u64]);
        borders.sort_unstable();
        let mut found = Vec::new();
        for share in borders.windows(2) {
            reader.seek(share[0]).unwrap();
            while let Some((at, document)) = reader.next().unwrap().filter(|(at, _)| *at < share[1]) {
                found.push((DocumentPlace(at), document));
            }
        }
        prop_assert_eq!(&found, &all);
        // From any document on, it goes on as before.
        for (number, (place, _)) in all.iter().enumerate() {
            reader.seek(place.0).unwrap();
            for expected in &all[number..] {
                let (at, document) = reader.next().unwrap().unwrap();
                prop_assert_eq!(&(DocumentPlace(at), document), expected);
                let here = reader.at();
                reader.seek(0).unwrap();
                reader.seek(here).unwrap();
            }
        }
    }

    #[test]
    fn what_is_gone_through_once_is_all_there_is(
        lens in prop::collection::vec(1usize..60, 1..40),
        policy in policy(),
    ) {
        let files = Files::new();
        let all = sources(&files, &lens);
        let policy = Policy { longer: Longer::Split, ..policy };
        let once = Once::open(all.clone(), policy, bytes).unwrap();
        let mut pass = once.pass();
        let mut learnt = vec![0; 3];
        let mut rows = 0;
        while let Some(row) = pass.next_row().unwrap() {
            learnt[row.source] += row.num_learnt();
            rows += 1;
        }
        prop_assert_eq!(rows, once.num_rows());
        prop_assert_eq!(pass.next_row().unwrap(), None);
        for (source, learnt) in all.iter().zip(learnt) {
            let documents = source.documents(1000).unwrap().map(|document| document.unwrap().1);
            let expected: usize = documents.map(|document| match document {
                Document::Text(text) | Document::Chat(text) => text.len(),
                Document::Pair { response, .. } => response.len() + 1,
            }).sum();
            prop_assert_eq!(learnt, expected);
        }
        prop_assert_eq!(once.num_batches(rows as usize).unwrap(), 1);
        let error = once.num_batches(rows as usize + 1).unwrap_err().to_string();
        prop_assert!(error.contains("fewer than the") && error.contains("smaller batch"), "{}", error);
    }
}

#[test]
fn an_epoch_has_every_document_once() {
    let files = Files::new();
    let lines: String = (0..50).map(|n| format!("text {n}\n")).collect();
    let source = files.source("a.txt", lines).split(Split::Line);
    for shuffle_bytes in [10, 100, 1000] {
        let policy = Policy {
            shuffle_bytes,
            packing: Packing::Pad,
            ..Policy::new(10)
        };
        let mut stream = Stream::new(open(std::slice::from_ref(&source), &policy));
        let mut epochs = Vec::new();
        for _ in 0..3 {
            let rows = (0..50).map(|_| stream.next_row().unwrap().unwrap().ids);
            let rows: Vec<_> = rows.collect();
            let mut sorted = rows.clone();
            sorted.sort();
            sorted.dedup();
            assert_eq!(sorted.len(), 50, "{shuffle_bytes}");
            epochs.push(rows);
        }
        assert_ne!(epochs[0], epochs[1]);
        assert_ne!(epochs[1], epochs[2]);
    }
}

#[test]
fn a_row_says_what_its_tokens_are() {
    let pair = |prompt: &str, response: &str| Document::Pair {
        prompt: prompt.into(),
        response: response.into(),
    };
    let documents = [pair("ab", "c"), pair("d", "efg")];
    let once = Once::open(
        vec![Source::memory("two", documents)],
        Policy {
            pad: 9,
            ..Policy::new(10)
        },
        bytes,
    )
    .unwrap();
    let row = once.pass().next_row().unwrap().unwrap();
    let ids = b"abc\0defg\0".map(u32::from);
    assert_eq!(row.ids[..9], ids);
    assert_eq!(row.ids[9..], [9, 9]);
    assert_eq!(row.documents, [0, 0, 0, 0, 1, 1, 1, 1, 1, 2]);
    assert_eq!(row.positions, [0, 1, 2, 3, 0, 1, 2, 3, 4, 0]);
    // The token that follows: c, the end, e, f, g, the end.
    let learn = [0, 1, 1, 0, 1, 1, 1, 1, 0, 0].map(|learn| learn == 1);
    assert_eq!((row.learn.as_slice(), row.padding), (&learn[..], 1));
}

#[test]
fn longer_documents_are_split_dropped_or_refused() {
    let files = Files::new();
    let source = files.source("a.txt", "123456789\n\nabc\n\n");
    let with = |longer| {
        let policy = Policy {
            longer,
            ..Policy::new(4)
        };
        let once = Once::open(vec![source.clone()], policy, bytes)?;
        Ok::<_, CorpusError>((once.num_rows(), once.counts()))
    };
    // 12345, 56789, 9 and the end with abc and the end: 0..5, 4..9, 8..10 and 4 tokens.
    let (rows, counts) = with(Longer::Split).unwrap();
    assert_eq!((rows, counts.split, counts.dropped), (4, 1, 0));
    let (rows, counts) = with(Longer::Drop).unwrap();
    assert_eq!((rows, counts.split, counts.dropped), (1, 0, 1));
    let error = files.text(&with(Longer::Refuse).unwrap_err());
    assert_eq!(
        error,
        "a.txt:1: 10 tokens do not fit into 4 positions: raise the sequence length, or have longer documents split or \
         dropped"
    );
}

/// The last token of a row is predicted alone, and has no position.
#[test]
fn a_document_of_one_token_more_than_positions_is_a_row() {
    let files = Files::new();
    let source = files.source("a.txt", "abcd\n\nefgh\n\n");
    let policy = Policy {
        longer: Longer::Refuse,
        ..Policy::new(4)
    };
    let (rows, _) = run(&open(&[source], &policy), None, &parts(2, 1, false), 2);
    assert_eq!(rows.len(), 4);
    for row in rows {
        assert_eq!((row.ids.len(), row.padding), (5, 0), "{:?}", row.ids);
    }
}

#[test]
fn bad_input_is_named() {
    let files = Files::new();
    let error = |source: Source| {
        let policy = Policy {
            document_bytes_max: 100,
            longer: Longer::Drop,
            ..Policy::new(8)
        };
        let corpus = Corpus::open(vec![source], policy, bytes);
        let failed = corpus.and_then(|corpus| {
            let mut stream = Stream::new(Arc::new(corpus));
            (0..20).try_for_each(|_| stream.next_row().map(drop))
        });
        files.text(&failed.unwrap_err())
    };
    let good = "{\"text\": \"a\"}\n";
    let jsonl = |text: &str| files.source("a.jsonl", text);
    for (text, expected) in [
        ("", "a.jsonl: no documents"),
        ("\n \n", "a.jsonl: no documents"),
        (
            &format!("{good}\n[1]"),
            "a.jsonl:3: invalid type: sequence, expected an object",
        ),
        (
            &format!("{good}{{\"txt\": \"a\", \"n\": 1}}"),
            "a.jsonl:2: missing field `text` (it has `txt`, `n`); each line must be {\"text\": \"...\"} or \
             {\"prompt\": \"...\", \"response\": \"...\"} or {\"messages\": [{\"role\": \"...\", \"content\": \
             \"...\"}, ...]}; name fields that are called otherwise: text=NAME, or prompt=NAME,response=NAME, or \
             messages=NAME",
        ),
        (
            "{\"text\": 3}",
            "a.jsonl:1: invalid type: integer `3`, expected a string (column",
        ),
        (
            "{\"prompt\": \"a\"}",
            "a.jsonl:1: missing field `response` (it has `prompt`)",
        ),
        (
            "{\"prompt\": \"a\", \"response\": \" \"}",
            "a.jsonl:1: the response is empty",
        ),
        (
            &format!("{good}{{\"text\": \"no!\"}}"),
            "a.jsonl:2: cannot be tokenised: it shouts",
        ),
        (
            &format!("{good}{}", "x".repeat(200)),
            "a.jsonl: the document at byte 14 is longer than 100 bytes",
        ),
        (
            "{\"text\": \"aaaaaaaaaa\"}",
            "none of 1 documents fits into 8 positions (the shortest has 11 tokens)",
        ),
    ] {
        let found = error(jsonl(text));
        assert!(found.contains(expected), "{text}: {found}");
    }
    let found = error(files.source("a.jsonl", b"{\"text\": \"\xff\"}"));
    assert!(found.contains("a.jsonl:1: not UTF-8"), "{found}");
    let found = error(jsonl(good).fields(Fields::Text("body".into())));
    assert!(
        found.contains("missing field `body` (it has `text`)"),
        "{found}"
    );
    assert!(found.ends_with("otherwise: text=NAME"), "{found}");
    let found = error(jsonl(good).fields(Fields::Pair {
        prompt: "prompt".into(),
        response: "response".into(),
    }));
    assert!(
        found.ends_with("otherwise: prompt=NAME,response=NAME"),
        "{found}"
    );
    let found = error(Source::file(Path::new("/nonexistent.txt"), Format::Text));
    assert!(
        found.starts_with("cannot read /nonexistent.txt: No such file"),
        "{found}"
    );
    let found = error(Source::file(files.0.path(), Format::Text));
    assert!(found.contains("no regular file"), "{found}");
    assert!(
        Format::of(Path::new("a.csv"))
            .unwrap_err()
            .to_string()
            .contains("a.csv")
    );
    // Paragraphs that are not ended.
    let found = error(files.source("b.txt", "x\n".repeat(80)));
    assert!(
        found.contains("b.txt: the document at byte 0 is longer than 100"),
        "{found}"
    );
}

/// Every format of text, with the mark of every encoding before it.
#[test]
fn a_mark_of_the_byte_order_is_no_text() {
    let files = Files::new();
    let texts = [
        (
            "a.jsonl",
            Split::Line,
            "{\"text\": \"a\"}\n{\"text\": \"b\"}\n",
        ),
        ("a.txt", Split::Line, "a\nb\n"),
        ("a.txt", Split::Paragraph, "a\n\nb\n"),
        ("a.txt", Split::File, "a\n"),
    ];
    for (name, split, text) in texts {
        let read = |bytes: &[u8]| {
            let source = files.source(name, bytes).split(split);
            let documents: Result<Vec<_>, _> = source.documents(100)?.collect();
            let documents = documents?;
            for (place, document) in &documents {
                assert_eq!(source.document(*place, 100)?, *document, "{name} {split:?}");
            }
            Ok(documents
                .into_iter()
                .map(|(_, document)| document)
                .collect::<Vec<_>>())
        };
        let plain = read(text.as_bytes()).unwrap();
        let marked = read(format!("\u{FEFF}{text}").as_bytes()).unwrap();
        assert_eq!(marked, plain, "{name} {split:?}");
        let others: [(&[u8], &str); 4] = [
            (&[0xFF, 0xFE], "UTF-16"),
            (&[0xFE, 0xFF], "UTF-16"),
            (&[0xFF, 0xFE, 0, 0], "UTF-32"),
            (&[0, 0, 0xFE, 0xFF], "UTF-32"),
        ];
        for (mark, encoding) in others {
            let error: CorpusError = read(&[mark, text.as_bytes()].concat()).unwrap_err();
            let expected = format!(
                "{name} is in {encoding}, and texts are read in UTF-8: write it anew in that"
            );
            assert_eq!(files.text(&error), expected);
        }
    }
    // A mark alone is a file without documents.
    let marked = files.source("a.txt", "\u{FEFF}").split(Split::File);
    assert_eq!(marked.documents(100).unwrap().count(), 0);
}

#[test]
fn a_position_in_other_rows_is_refused() {
    let files = Files::new();
    let all = sources(&files, &[5; 30]);
    let policy = Policy::new(24);
    let position = Stream::new(open(&all, &policy)).position();
    let refused = |sources: &[Source], policy: Policy| {
        let resumed = Stream::resume(open(sources, &policy), &position);
        resumed.err().expect("an error").to_string()
    };
    let longer = Policy::new(25);
    let error = refused(&all, longer);
    assert!(
        error.contains("sequence length was 24, and is 25"),
        "{error}"
    );
    let error = refused(
        &all,
        Policy {
            seed: 1,
            ..policy.clone()
        },
    );
    assert!(error.contains("seed was 0, and is 1"), "{error}");
    let error = refused(&all[..2], policy.clone());
    assert!(
        error.contains("source 1 was") || error.contains("source 3 was"),
        "{error}"
    );
    let other = [
        all[0].clone().except([DocumentPlace(0)]),
        all[1].clone(),
        all[2].clone(),
    ];
    let error = refused(&other, policy.clone());
    assert!(error.contains("source 1 was"), "{error}");
    // All that differs is told at once, by the names that people use; of another source, that it is another.
    let documents = vec![Document::Text("d".into()); 9];
    let others = [
        all[0].clone().fields(Fields::Text("text".into())),
        all[1].clone().split(Split::Line),
        Source::memory("d", documents).weight(0.3),
    ];
    let seeded = Policy {
        seed: 7,
        ..policy.clone()
    };
    let error = refused(&others, seeded);
    for part in [
        ": fields of source 1 was text, or prompt and response, and is text=text; ",
        "; split of source 2 was paragraph, and is line; ",
        "; source 3 was c, and is d; ",
        "; seed was 0, and is 7",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let told = error.matches(", and is ").count();
    assert_eq!(told, 5, "the first document of source 2 too: {error}");
    let named = Corpus::open(all.clone(), policy, bytes).unwrap();
    let named = named.identify("tokenizer", "7");
    let error = Stream::resume(Arc::new(named), &position)
        .err()
        .expect("an error");
    assert!(
        error
            .to_string()
            .contains("tokenizer was nothing, and is 7"),
        "{error}"
    );
}

#[test]
fn what_is_left_out_is_left_out() {
    let files = Files::new();
    let source = files.source("a.txt", "a\nb\nc\nd\n").split(Split::Line);
    let places: Vec<DocumentPlace> = source
        .documents(10)
        .unwrap()
        .map(|found| found.unwrap().0)
        .collect();
    let second = source.document(places[1], 10).unwrap();
    assert_eq!(second, Document::Text("b".into()));
    let rest = source.except([places[1], places[3]]);
    let texts: Vec<Document> = rest
        .documents(10)
        .unwrap()
        .map(|found| found.unwrap().1)
        .collect();
    assert_eq!(texts, ["a", "c"].map(|text| Document::Text(text.into())));
    let once = Once::open(vec![rest], Policy::new(8), bytes).unwrap();
    let row = once.pass().next_row().unwrap().unwrap();
    assert_eq!(row.ids[..4], b"a\0c\0".map(u32::from));
}

#[test]
fn a_sample_is_of_all_parts_of_a_source() {
    let files = Files::new();
    let lines: String = (0..10_000).map(|n| format!("{n:06}\n")).collect();
    let source = files.source("a.txt", lines).split(Split::Line);
    let numbers = |bytes| -> Vec<usize> {
        let sample = source.sample(bytes, 1000).unwrap();
        let number = |document: &Document| match document {
            Document::Text(text) => text.parse().unwrap(),
            Document::Pair { .. } | Document::Chat(_) => unreachable!("it is text"),
        };
        sample.iter().map(number).collect()
    };
    assert_eq!(numbers(1 << 20).len(), 10_000);
    let sample = numbers(64 * 60);
    assert!(
        sample.is_sorted() && (64 * 8..64 * 12).contains(&sample.len()),
        "{}",
        sample.len()
    );
    assert!(sample[0] < 10 && *sample.last().unwrap() > 9800);
}

#[test]
fn a_panic_of_the_tokenizer_is_one_of_who_asks() {
    let source = Source::memory("one", [Document::Text("a".into())]);
    let panics = |_: &Document| -> Result<Encoded, EncodeError> { panic!("broken tokenizer") };
    let corpus = Corpus::open(vec![source], Policy::new(4), panics).unwrap();
    let mut batches = Batches::new(Arc::new(corpus), Part::all(1), 1);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        batches.next_batch().map(drop)
    }));
    assert_eq!(
        caught.unwrap_err().downcast_ref(),
        Some(&"broken tokenizer")
    );
}

#[test]
fn packing_wastes_little() {
    // Lengths in tokens as texts of the web have them: log-normal, half of them below 400, one in twenty above 3,000.
    let lens = |num: usize| -> Vec<Document> {
        let mut random = Rng::of_keys(&[7]);
        let unit = |random: &mut Rng| (random.below(1 << 30) as f64 + 0.5) / f64::from(1 << 30);
        let len = |_| {
            let (a, b) = (unit(&mut random), unit(&mut random));
            let normal = (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos();
            (400.0 * (1.23 * normal).exp()) as usize + 2
        };
        let texts = (0..num).map(len).map(|len| Document::Text("x".repeat(len)));
        texts.collect()
    };
    let waste = |seq: usize, shuffle_bytes: u64, packing: Packing, longer: Longer| {
        let policy = Policy {
            shuffle_bytes,
            packing,
            longer,
            ..Policy::new(seq)
        };
        let source = Source::memory("texts", lens(20_000));
        let mut stream = Stream::new(open(&[source], &policy));
        (0..4000).for_each(|_| drop(stream.next_row().unwrap()));
        let waste = stream.counts().waste();
        println!(
            "{packing}, {longer}, rows of {seq}, buffer of {shuffle_bytes} bytes: {:.3} %",
            100.0 * waste
        );
        waste
    };
    for seq in [256, 2048, 8192] {
        // A block of 64 rows, the smallest there is by default.
        let buffer = 64 * seq as u64;
        assert!(waste(seq, buffer, Packing::Pack, Longer::Split) < 0.02);
        assert!(waste(seq, buffer, Packing::Stream, Longer::Split) < 1e-3);
    }
    // Where most documents fit. Of 256 positions, those between a half and a whole row find nothing to go with.
    for seq in [2048, 8192] {
        assert!(waste(seq, 512 * seq as u64, Packing::Pack, Longer::Drop) < 0.02);
    }
    assert!(waste(2048, 1 << 20, Packing::Pad, Longer::Split) > 0.5);
}
