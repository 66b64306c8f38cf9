//! Batches of documents: rows of a corpus, of which every process makes its own.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{anyhow, bail};
use burn_dist::layout::Rows;
use burn_dist::train::corpus::{self, Batches, Corpus, CorpusError, Counts, Part, Row};

use super::batch::{Batch, BatchSource, PackedIds, Position};
use crate::processes::Processes;

/// Batches that are made before they are asked for.
const AHEAD: usize = 4;

/// Which rows there are, and which of them are here.
#[derive(Debug, Clone)]
pub struct Shape {
    /// The rows of a batch that this process holds, of all.
    pub held: Rows,
    /// Positions of a row.
    pub seq: usize,
    /// Whether documents do not see each other.
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

    /// What was read and made in this process.
    pub fn counts(&self) -> Counts {
        self.batches.counts()
    }

    /// How long the loop has waited for batches of this process.
    pub fn waited(&self) -> Duration {
        self.batches.waited()
    }
}

/// What all processes have; the first error of any, in all.
fn agreed<T>(processes: &Processes, here: Result<T, CorpusError>) -> anyhow::Result<T> {
    let errors = processes.gather(here.as_ref().err().map(CorpusError::to_string))?;
    match (errors.into_iter().flatten().next(), here) {
        (None, here) => Ok(here?),
        (Some(_), Err(error)) if !processes.are_several() => Err(error.into()),
        (Some(error), _) => Err(anyhow!(error)),
    }
}

impl BatchSource for Texts<'_> {
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
            Position::Rows(position) => Ok(self.batches.resume(position)?),
            Position::Samples(position) => {
                bail!(
                    "the position is one in {}, and this is documents",
                    position.stream
                )
            }
        }
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
