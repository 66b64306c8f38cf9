//! Batches of documents: rows of a corpus, of which every process makes its own.

use std::sync::Arc;
use std::time::Duration;

use crate::layout::Rows;
use crate::train::corpus::{self, Batches, Corpus, CorpusError, Counts, Difference, Part, Row};
use crate::trainer::batch::{BatchSource, Position, stream_text};
use crate::trainer::processes::Processes;
use crate::trainer::report::count_text;
use anyhow::{anyhow, bail};

use super::batch::{Batch, PackedIds};

/// Batches that are made before they are asked for.
const AHEAD: usize = 4;

/// Which rows there are, and which of them are here.
#[derive(Debug, Clone)]
pub struct Shape {
    /// The rows of a batch that this process holds, of all.
    pub held: Rows,
    /// Positions of a row.
    pub seq: usize,
    /// True if documents do not see each other.
    pub document_mask: bool,
}

/// Rows of a corpus, batch by batch.
pub struct Texts<'a> {
    batches: Batches,
    shape: Shape,
    processes: &'a Processes,
}

impl<'a> Texts<'a> {
    /// Begins with the first row, and waits until the first batch is there: what is wrong with the data is known before
    /// anything is computed with it.
    ///
    /// # Communication
    /// Processes compare what they have.
    /// # Errors
    /// If documents of any process cannot be read or encoded, or processes have other data; in all of them.
    pub fn open(corpus: Corpus, shape: Shape, processes: &'a Processes) -> anyhow::Result<Self> {
        let all = processes.gather(corpus.identity().to_vec())?;
        for (process, identity) in all.iter().enumerate() {
            let differs = all[0]
                .iter()
                .zip(identity)
                .find(|(one, other)| one != other);
            if let Some(((what, expected), (_, found))) = differs {
                bail!(
                    "{what} is {expected} in process 0 and {found} in process {process}: give all processes the same \
                     data and the same tokenizer"
                );
            }
        }
        let part = Part {
            batch: shape.held.total(),
            held: shape.held.ranges().to_vec(),
        };
        let mut batches = Batches::new(Arc::new(corpus), part, AHEAD);
        let waiting = std::iter::from_fn(|| match batches.ready_within(Duration::from_secs(1)) {
            Ok(true) => None,
            Ok(false) => Some(Ok(())),
            Err(error) => Some(Err(error)),
        });
        let ready = processes.in_turns(waiting)?;
        agreed(processes, ready)?;
        Ok(Self {
            batches,
            shape,
            processes,
        })
    }

    /// Returns how much was read and made in this process.
    pub fn counts(&self) -> Counts {
        self.batches.counts()
    }

    /// How long the loop has waited for batches of this process.
    pub fn waited(&self) -> Duration {
        self.batches.waited()
    }
}

/// The options that distinguish data from other data, by the names that the corpus has for it.
const OPTIONS: [(&str, &str); 7] = [
    ("source", "--data"),
    ("sequence length", "--seq"),
    ("packing", "--packing"),
    ("treatment of longer documents", "--longer"),
    ("shuffle buffer", "--shuffle-buffer"),
    ("seed", "--seed"),
    ("tokenizer", "--model or --data"),
];

/// Names what differs by the options that set it.
fn in_options(error: CorpusError) -> anyhow::Error {
    let CorpusError::OtherRows { differences } = error else {
        return error.into();
    };
    let differences = differences.into_iter().map(
        |Difference {
             what,
             expected,
             found,
         }| {
            let option = OPTIONS.iter().find(|(name, _)| what.contains(name));
            let option = option.map_or_else(String::new, |(_, option)| format!(" ({option})"));
            format!("\n  {what}{option} was {expected}, and is {found}")
        },
    );
    anyhow!(
        "it was begun with other data:{}",
        differences.collect::<String>()
    )
}

/// Returns what all processes have; the first error of any, in all.
fn agreed<T>(processes: &Processes, here: Result<T, CorpusError>) -> anyhow::Result<T> {
    let errors = processes.gather(here.as_ref().err().map(CorpusError::to_string))?;
    match (errors.into_iter().flatten().next(), here) {
        (None, here) => Ok(here?),
        (Some(_), Err(error)) if !processes.are_several() => Err(error.into()),
        (Some(error), _) => Err(anyhow!(error)),
    }
}

impl BatchSource for Texts<'_> {
    type Batch = Batch;

    fn next_batch(&mut self) -> anyhow::Result<Batch> {
        let rows = self.batches.next_batch();
        batch(rows, &self.shape, self.processes)
    }

    fn position(&self) -> anyhow::Result<Position> {
        let all = self.processes.gather(self.batches.position())?;
        Ok(Position::Rows(corpus::Position::merge(all)?))
    }

    fn resume(&mut self, position: &Position) -> anyhow::Result<()> {
        match position {
            Position::Rows(position) => self.batches.resume(position).map_err(in_options),
            Position::Samples(position) => bail!(
                "it was begun with {}, and goes on with texts (--data)",
                stream_text(&position.stream)
            ),
        }
    }

    fn summary(&self) -> Option<String> {
        let counts = self.counts();
        let mut text = format!("{} documents read", count_text(counts.documents));
        for (count, what) in [(counts.split, "split"), (counts.dropped, "left out")] {
            if count > 0 {
                text += &format!(
                    ", {} longer than {} tokens {what}",
                    count_text(count),
                    self.shape.seq + 1
                );
            }
        }
        Some(format!(
            "{text}; {:.1} % of positions are padding; {} ms of waiting for batches",
            counts.waste() * 100.0,
            self.waited().as_millis()
        ))
    }
}

/// A batch of the rows that are here. What a position counts depends on how many there are to learn in all processes.
pub(super) fn batch(
    rows: Result<Vec<Row>, CorpusError>,
    shape: &Shape,
    processes: &Processes,
) -> anyhow::Result<Batch> {
    let Shape {
        held,
        seq,
        document_mask,
    } = shape;
    let learnt = match &rows {
        Ok(rows) => Ok(held.iter().zip(rows.iter().map(Row::num_learnt)).collect()),
        Err(error) => Err(error.to_string()),
    };
    // Ranks of several processes may hold the same row.
    let mut of_rows = vec![0; held.total()];
    for learnt in processes.gather(learnt)? {
        let learnt: Vec<(usize, usize)> = learnt.map_err(|error: String| anyhow!(error))?;
        for (row, count) in learnt {
            of_rows[row] = count;
        }
    }
    let rows = rows?;
    // Nothing to learn is a loss of 0.
    let total = of_rows.iter().sum::<usize>().max(1) as f32;
    let ints = |of: fn(&Row) -> &[u32]| -> Vec<i32> {
        let all = rows.iter().flat_map(of);
        all.map(|id| *id as i32).collect()
    };
    let learn = rows.iter().flat_map(|row| &row.learn);
    Ok(Batch {
        batch: held.total(),
        held: held.clone(),
        seq: *seq,
        tokens: ints(|row| &row.ids[..row.ids.len() - 1]),
        targets: ints(|row| &row.ids[1..]),
        weights: Some(
            learn
                .map(|learn| f32::from(u8::from(*learn)) / total)
                .collect(),
        ),
        packed: document_mask.then(|| PackedIds {
            documents: ints(|row| &row.documents),
            positions: ints(|row| &row.positions),
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::corpus::{Document, EncodeError, Encoded, Once, Policy, Source};
    use crate::trainer::processes::tests::in_processes;
    use crate::trainer::tokens::HeldOut;

    const SEQ: usize = 12;

    fn encode(document: &Document) -> Result<Encoded, EncodeError> {
        let Document::Pair { prompt, response } = document else {
            return Err("it is no pair".into());
        };
        let ids = prompt.bytes().chain(response.bytes()).map(u32::from);
        Ok(Encoded::new(ids.collect(), prompt.len()))
    }

    fn documents(count: usize) -> Vec<Document> {
        let pair = |number: usize| Document::Pair {
            prompt: "ab".repeat(1 + number % 3),
            response: format!("{number}"),
        };
        (0..count).map(pair).collect()
    }

    fn source() -> Source {
        Source::memory("pairs", documents(100))
    }

    fn policy() -> Policy {
        Policy {
            lanes: Some(4),
            shuffle_bytes: 300,
            ..Policy::new(SEQ)
        }
    }

    fn shape(held: Rows) -> Shape {
        Shape {
            held,
            seq: SEQ,
            document_mask: true,
        }
    }

    fn open(held: Rows, processes: &Processes) -> Texts<'_> {
        let corpus = Corpus::open(vec![source()], policy(), encode).unwrap();
        Texts::open(corpus, shape(held), processes).unwrap()
    }

    fn held_out(held: Rows, processes: &Processes) -> HeldOut<'_> {
        let once = Once::open(vec![source()], policy(), encode).unwrap();
        HeldOut::new(once, 0, shape(held), processes).unwrap()
    }

    /// The rows of a batch that are `held`, as the whole batch has them.
    fn part(whole: &Batch, held: &Rows) -> Batch {
        fn rows<T: Copy>(all: &[T], held: &Rows) -> Vec<T> {
            let rows = held.iter().flat_map(|row| row * SEQ..(row + 1) * SEQ);
            rows.map(|at| all[at]).collect()
        }
        Batch {
            held: held.clone(),
            tokens: rows(&whole.tokens, held),
            targets: rows(&whole.targets, held),
            weights: whole.weights.as_ref().map(|all| rows(all, held)),
            packed: whole.packed.as_ref().map(|all| PackedIds {
                documents: rows(&all.documents, held),
                positions: rows(&all.positions, held),
            }),
            ..whole.clone()
        }
    }

    #[test]
    fn rows_of_processes_are_those_of_the_whole_batch() {
        // The third row is in both.
        let held = [0..3, 2..6].map(|rows| Rows::new(6, std::iter::once(rows)));
        in_processes(2, |processes| {
            let held = held[processes.process()].clone();
            let alone = Processes::default();
            let all = Rows::all(6);
            type Source<'a> = Box<dyn BatchSource<Batch = Batch> + 'a>;
            let sources: [(Source<'_>, Source<'_>); 2] = [
                (
                    Box::new(open(all.clone(), &alone)),
                    Box::new(open(held.clone(), &processes)),
                ),
                (
                    Box::new(held_out(all, &alone)),
                    Box::new(held_out(held.clone(), &processes)),
                ),
            ];
            for (mut whole, mut here) in sources {
                for _ in 0..10 {
                    let batch = whole.next_batch().unwrap();
                    let sum: f32 = batch.weights.iter().flatten().sum();
                    assert!((sum - 1.0).abs() < 1e-5, "{sum}");
                    assert_eq!(here.next_batch().unwrap(), part(&batch, &held));
                    assert_eq!(here.position().unwrap(), whole.position().unwrap());
                }
            }
        });
    }

    #[test]
    fn sources_go_on_where_another_run_was_left() {
        let alone = Processes::default();
        type Make = fn(Rows, &Processes) -> Box<dyn BatchSource<Batch = Batch> + '_>;
        let make: [Make; 2] = [
            |held, processes| Box::new(open(held, processes)),
            |held, processes| Box::new(held_out(held, processes)),
        ];
        for make in make {
            let mut whole = make(Rows::all(2), &alone);
            let mut positions = Vec::new();
            let batches: Vec<Batch> = (0..30)
                .map(|_| {
                    positions.push(serde_json::to_string(&whole.position().unwrap()).unwrap());
                    whole.next_batch().unwrap()
                })
                .collect();
            for (position, batch) in positions.iter().zip(&batches) {
                let position: Position = serde_json::from_str(position).unwrap();
                let mut after = make(Rows::all(2), &alone);
                after.next_batch().unwrap();
                after.resume(&position).unwrap();
                assert_eq!(after.next_batch().unwrap(), *batch);
            }
        }
        let mut texts = open(Rows::all(2), &alone);
        let mut held_out = held_out(Rows::all(2), &alone);
        let error = texts.resume(&held_out.position().unwrap()).unwrap_err();
        assert!(
            error.to_string().contains("goes on with texts (--data)"),
            "{error}"
        );
        let error = held_out.resume(&texts.position().unwrap()).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("begun with texts (--data), and goes on with held-out"),
            "{error}"
        );
    }

    /// Every name that a corpus has for what tells it from others has an option, but for those that follow from others.
    #[test]
    fn what_differs_is_named_by_its_option() {
        let alone = Processes::default();
        let open = |policy: Policy, source: Source| {
            let corpus = Corpus::open(vec![source], policy, encode).unwrap();
            let corpus = corpus.identify("tokenizer", "7");
            for (name, _) in corpus.identity() {
                let has_option = OPTIONS.iter().any(|(option, _)| name.contains(option));
                let follows = ["id of padding", "number of lanes"].contains(&name.as_str());
                assert!(has_option != follows, "{name}");
            }
            Texts::open(corpus, shape(Rows::all(2)), &alone).unwrap()
        };
        let position = open(policy(), source()).position().unwrap();
        let other = Policy {
            seed: 3,
            ..policy()
        };
        let others = Source::memory("others", documents(50));
        let error = open(other, others)
            .resume(&position)
            .unwrap_err()
            .to_string();
        let expected = "begun with other data:\n  source 1 (--data) was pairs, and is others\n  ";
        assert!(error.contains(expected), "{error}");
        assert!(
            error.ends_with("\n  seed (--seed) was 0, and is 3"),
            "{error}"
        );
    }

    #[test]
    fn an_error_in_one_process_is_one_in_all() {
        let errors = in_processes(3, |processes| {
            let process = processes.process();
            let encode = move |document: &Document| match process {
                1 => Err("broken".into()),
                _ => encode(document),
            };
            let corpus = Corpus::open(vec![source()], policy(), encode).unwrap();
            let opened = Texts::open(corpus, shape(Rows::all(3)), &processes);
            opened.err().expect("an error").to_string()
        });
        for error in errors {
            assert!(error.contains("cannot be tokenised: broken"), "{error}");
        }
    }

    #[test]
    fn processes_with_other_data_are_named() {
        let errors = in_processes(2, |processes| {
            let policy = Policy {
                seed: processes.process() as u64,
                ..policy()
            };
            let corpus = Corpus::open(vec![source()], policy, encode).unwrap();
            let opened = Texts::open(corpus, shape(Rows::all(3)), &processes);
            opened.err().expect("an error").to_string()
        });
        for error in errors {
            assert!(
                error.contains("seed is 0 in process 0 and 1 in process 1"),
                "{error}"
            );
        }
    }
}
