//! Batches of token ids on the host, and as tensors.

use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor, TensorData};
use burn_dist::data::{Position, ResumeError, Stream};
use burn_dist::layout::Rows;
use burn_dist::parallel::DTensorError;
use burn_dist::{MeshBackend, ProcessLocal};
use thiserror::Error;

use super::documents::{Documents, Extent};
use super::rng::{Rng, hash_text};

/// One step's data: `batch` rows of `seq` positions, of which this process has some, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// Number of rows, here and in other processes.
    pub batch: usize,
    /// Which of them are here.
    pub held: Rows,
    /// Positions of a row.
    pub seq: usize,
    /// The ids given to the model.
    pub tokens: Vec<i32>,
    /// The id that follows each of them.
    pub targets: Vec<i32>,
    /// How much each position counts; sums to 1. `None`: all alike.
    pub weights: Option<Vec<f32>>,
}

/// A batch on a device.
#[derive(Debug, Clone)]
pub struct BatchTensors<B: Backend> {
    /// `[batch, seq]`: the ids given to the model.
    pub tokens: Tensor<B, 2, Int>,
    /// `[batch, seq]`: the ids to predict.
    pub targets: Tensor<B, 2, Int>,
    /// `[batch, seq]`: how much each position counts.
    pub weights: Option<Tensor<B, 2>>,
}

impl Batch {
    /// The batch on a device, all of whose rows are here.
    pub fn tensors<B: Backend>(&self, device: &B::Device) -> BatchTensors<B> {
        BatchTensors {
            tokens: self.tokens(device),
            targets: self.targets(device),
            weights: self.weights(device),
        }
    }

    /// The batch on a mesh; `by_process` if every process gives its rows, which all of them know, whichever these are.
    ///
    /// # Errors
    /// If the rows here are not those that the mesh expects.
    pub fn enter<B: MeshBackend>(
        &self,
        device: &B::Device,
        by_process: bool,
    ) -> Result<BatchTensors<B>, DTensorError> {
        if !by_process {
            return Ok(self.tensors(device));
        }
        let rows = self.batch;
        let shape = [self.held.len(), self.seq];
        let ints = |ids: &[i32]| {
            let data = TensorData::new(ids.to_vec(), shape);
            Tensor::from_process_local(data, rows, device)
        };
        let weights = self.weights.as_ref().map(|weights| {
            let data = TensorData::new(weights.clone(), shape);
            Tensor::from_process_local(data, rows, device)
        });
        Ok(BatchTensors {
            tokens: ints(&self.tokens)?,
            targets: ints(&self.targets)?,
            weights: weights.transpose()?,
        })
    }

    /// `[batch, seq]`: the ids given to the model.
    pub fn tokens<B: Backend>(&self, device: &B::Device) -> Tensor<B, 2, Int> {
        Tensor::from_data(
            TensorData::new(self.tokens.clone(), [self.batch, self.seq]),
            device,
        )
    }

    /// `[batch, seq]`: the ids to predict.
    pub fn targets<B: Backend>(&self, device: &B::Device) -> Tensor<B, 2, Int> {
        Tensor::from_data(
            TensorData::new(self.targets.clone(), [self.batch, self.seq]),
            device,
        )
    }

    /// `[batch, seq]`: how much each position counts.
    pub fn weights<B: Backend>(&self, device: &B::Device) -> Option<Tensor<B, 2>> {
        let weights = self.weights.clone()?;
        Some(Tensor::from_data(
            TensorData::new(weights, [self.batch, self.seq]),
            device,
        ))
    }
}

impl Batch {
    /// Cuts the rows into `parts` batches of as many rows each. Weights stay as they are, so that those of all parts
    /// sum to 1.
    ///
    /// # Panics
    /// If `parts` does not divide the number of rows.
    pub fn split(&self, parts: usize) -> Vec<Batch> {
        assert!(
            self.batch.is_multiple_of(parts),
            "{parts} microbatches do not divide {} rows",
            self.batch
        );
        let batch = self.batch / parts;
        let mut start = 0;
        let part = |index: usize| {
            let (first, end) = (index * batch, (index + 1) * batch);
            let within = self.held.ranges().iter().map(|rows| {
                rows.start.clamp(first, end) - first..rows.end.clamp(first, end) - first
            });
            let held = Rows::new(batch, within);
            let range = start..start + held.len() * self.seq;
            start = range.end;
            Batch {
                batch,
                held,
                seq: self.seq,
                tokens: self.tokens[range.clone()].to_vec(),
                targets: self.targets[range.clone()].to_vec(),
                weights: self.weights.as_ref().map(|all| all[range].to_vec()),
            }
        };
        (0..parts).map(part).collect()
    }
}

/// Where batches come from.
pub trait BatchSource {
    /// The next step's batch.
    ///
    /// # Errors
    /// If documents can no longer be read or encoded.
    fn next_batch(&mut self) -> anyhow::Result<Batch>;

    /// Where the next batch begins. It does not depend on how many rows a batch has, nor on which of them are here.
    fn position(&self) -> Position;

    /// Goes on at a position, which may be one of another run.
    ///
    /// # Errors
    /// If that read other data, in another order, or in rows of other lengths.
    fn resume(&mut self, position: &Position) -> Result<(), ResumeError>;
}

/// Uniformly random tokens: the data of measurements.
#[derive(Debug, Clone)]
pub struct RandomTokens {
    /// Number of rows.
    pub batch: usize,
    /// Positions of a row.
    pub seq: usize,
    /// Ids lie below this.
    pub vocab: usize,
    /// Where the ids come from, of which none was drawn.
    pub rng: Rng,
    /// The rows of a batch that are kept.
    pub held: Rows,
}

impl RandomTokens {
    /// Rows without end, that is, until the generator repeats itself.
    fn stream(&self) -> Stream {
        let (seq, vocab, origin) = (self.seq, self.vocab, self.rng.origin());
        Stream {
            samples: usize::MAX / (seq + 1),
            seed: None,
            fingerprint: Some(format!(
                "random tokens below {vocab} from {origin:016x}, rows of {seq}"
            )),
        }
    }
}

impl BatchSource for RandomTokens {
    fn next_batch(&mut self) -> anyhow::Result<Batch> {
        let mut tokens = Vec::with_capacity(self.held.len() * self.seq);
        let mut targets = Vec::with_capacity(self.held.len() * self.seq);
        for row in 0..self.batch {
            // Rows are the same on all meshes, whoever draws them.
            if !self.held.contains(row) {
                self.rng.skip(self.seq + 1);
                continue;
            }
            let ids: Vec<i32> = (0..=self.seq)
                .map(|_| self.rng.below(self.vocab) as i32)
                .collect();
            tokens.extend(&ids[..self.seq]);
            targets.extend(&ids[1..]);
        }
        Ok(Batch {
            batch: self.batch,
            held: self.held.clone(),
            seq: self.seq,
            tokens,
            targets,
            weights: None,
        })
    }

    fn position(&self) -> Position {
        Position {
            epoch: 0,
            sample: self.rng.drawn() as usize / (self.seq + 1),
            stream: self.stream(),
        }
    }

    fn resume(&mut self, position: &Position) -> Result<(), ResumeError> {
        position.check(&self.stream())?;
        self.rng.seek((position.sample * (self.seq + 1)) as u64);
        Ok(())
    }
}

/// Documents of which no batch can be made.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PackError {
    /// No document fits.
    #[error(
        "none of {count} examples fits into {seq} positions (the shortest has {shortest} tokens): raise --seq"
    )]
    AllTooLong {
        /// How many documents there are.
        count: usize,
        /// Positions of a row.
        seq: usize,
        /// Tokens of the shortest.
        shortest: usize,
    },
}

/// Whole documents packed into rows, in a new random order each time through.
///
/// Every process packs all rows by the extents of the documents, and looks at the ids of those in its own rows.
///
/// A sample of its positions is a document.
pub struct Packed<'a> {
    documents: Documents<'a>,
    /// The documents that fit into a row, and the generator, before the first time through.
    start: (Vec<usize>, Rng),
    stream: Stream,
    /// How often the documents have been gone through.
    epoch: u64,
    order: Vec<usize>,
    next: usize,
    batch: usize,
    held: Rows,
    seq: usize,
    pad: i32,
    rng: Rng,
}

impl<'a> Packed<'a> {
    /// Takes those of `order`, from which the first random order is made, that fit into a row; the second value is the
    /// number of those that do not.
    ///
    /// # Errors
    /// [`PackError::AllTooLong`].
    pub fn new(
        documents: Documents<'a>,
        order: impl IntoIterator<Item = usize>,
        (batch, seq): (usize, usize),
        pad: u32,
        rng: Rng,
    ) -> Result<(Self, usize), PackError> {
        let mut order: Vec<usize> = order.into_iter().collect();
        let len = |document: &usize| documents.extent(*document).len;
        let (count, shortest) = (order.len(), order.iter().map(len).min().unwrap_or(0));
        // The last token is only predicted: a row of `seq` positions holds `seq + 1` tokens.
        order.retain(|document| len(document) <= seq + 1);
        if order.is_empty() {
            return Err(PackError::AllTooLong {
                count,
                seq,
                shortest,
            });
        }
        let left_out = count - order.len();
        let mut packed = Self {
            stream: stream(&documents, &order, seq, pad, &rng),
            documents,
            start: (order, rng.clone()),
            epoch: 0,
            order: Vec::new(),
            next: 0,
            batch,
            held: Rows::all(batch),
            seq,
            pad: pad as i32,
            rng,
        };
        packed.go_to(0, 0);
        Ok((packed, left_out))
    }

    /// Makes only these rows of a batch; of the others it just counts what they hold.
    pub fn only(mut self, held: Rows) -> Self {
        self.held = held;
        self
    }

    /// Begins at a document of an epoch. Each has the order of the one before, shuffled.
    fn go_to(&mut self, epoch: u64, next: usize) {
        (self.order, self.rng) = self.start.clone();
        for _ in 0..=epoch {
            self.rng.shuffle(&mut self.order);
        }
        (self.epoch, self.next) = (epoch, next);
    }

    fn turn_over(&mut self) {
        if self.next == self.order.len() {
            self.rng.shuffle(&mut self.order);
            (self.epoch, self.next) = (self.epoch + 1, 0);
        }
    }

    /// Goes through the documents of one row, and returns how many positions are to be learnt. Filled if asked for:
    /// ids, and for each whether it is to be learnt.
    fn row(&mut self, mut fill: Option<(&mut Vec<i32>, &mut Vec<bool>)>) -> anyhow::Result<usize> {
        let (mut len, mut learnt) = (0, 0);
        loop {
            let index = self.order[self.next];
            let Extent {
                len: count,
                answer_from,
            } = self.documents.extent(index);
            if len + count > self.seq + 1 {
                break;
            }
            // The first position of a row is not predicted.
            learnt += count.saturating_sub(answer_from.max(usize::from(len == 0)));
            if let Some((ids, learn)) = &mut fill {
                let document = self.documents.get(index)?;
                ids.extend(document.ids.iter().map(|id| *id as i32));
                learn.extend((0..count).map(|at| at >= answer_from));
            }
            len += count;
            self.next += 1;
            self.turn_over();
        }
        if let Some((ids, learn)) = fill {
            ids.resize(self.seq + 1, self.pad);
            learn.resize(self.seq + 1, false);
        }
        Ok(learnt)
    }
}

impl BatchSource for Packed<'_> {
    fn next_batch(&mut self) -> anyhow::Result<Batch> {
        let mut tokens = Vec::with_capacity(self.held.len() * self.seq);
        let mut targets = Vec::with_capacity(self.held.len() * self.seq);
        let mut weights = Vec::with_capacity(self.held.len() * self.seq);
        let mut total = 0;
        for row in 0..self.batch {
            if !self.held.contains(row) {
                total += self.row(None)?;
                continue;
            }
            let (mut ids, mut learn) = (Vec::new(), Vec::new());
            total += self.row(Some((&mut ids, &mut learn)))?;
            tokens.extend(&ids[..self.seq]);
            targets.extend(&ids[1..]);
            weights.extend(learn[1..].iter().map(|learn| f32::from(u8::from(*learn))));
        }
        let total = total as f32;
        weights.iter_mut().for_each(|weight| *weight /= total);
        Ok(Batch {
            batch: self.batch,
            held: self.held.clone(),
            seq: self.seq,
            tokens,
            targets,
            weights: Some(weights),
        })
    }

    fn position(&self) -> Position {
        Position {
            epoch: self.epoch,
            sample: self.next,
            stream: self.stream.clone(),
        }
    }

    fn resume(&mut self, position: &Position) -> Result<(), ResumeError> {
        position.check(&self.stream)?;
        self.go_to(position.epoch, position.sample);
        Ok(())
    }
}

/// What tells these documents, packed into rows of `seq`, from others: their lengths, which all processes know. Others
/// of the same lengths are not noticed.
fn stream(documents: &Documents<'_>, order: &[usize], seq: usize, pad: u32, rng: &Rng) -> Stream {
    let lengths = order.iter().map(|index| {
        let Extent { len, answer_from } = documents.extent(*index);
        format!("{index} {len} {answer_from}")
    });
    let hash = lengths.fold(u64::from(pad), |hash, text| hash_text(&text, hash));
    let origin = rng.origin();
    Stream {
        samples: order.len(),
        seed: None,
        fingerprint: Some(format!(
            "documents {hash:016x} shuffled from {origin:016x}, rows of {seq}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::tokenizer::Encoded;
    use crate::processes::Processes;
    use crate::processes::tests::in_processes;
    use burn::backend::flex::Flex;
    use burn_dist::comm::World;
    use burn_dist::{DeviceMesh, Dist};

    fn document(ids: &[u32], answer_from: usize) -> Encoded {
        Encoded {
            ids: ids.to_vec(),
            answer_from,
        }
    }

    /// Rows of all of these documents, in a process that packs for `processes` together.
    fn pack(
        processes: &Processes,
        documents: &[Encoded],
        (batch, seq): (usize, usize),
        rng: Rng,
    ) -> Result<(Packed<'static>, usize), PackError> {
        let (num, all) = (documents.len(), documents.to_vec());
        let encode = move |index: usize| Ok(all[index].clone());
        let documents = Documents::share(processes.share(num), processes, encode).unwrap();
        Packed::new(documents, 0..num, (batch, seq), 0, rng)
    }

    #[test]
    fn rows_hold_whole_documents_and_only_answers_count() {
        let documents = [document(&[1, 2, 3], 2), document(&[4, 5, 6, 7], 2)];
        let packed = pack(&Processes::default(), &documents, (2, 7), Rng::new(0, 0));
        let (mut packed, left_out) = packed.ok().unwrap();
        assert_eq!(left_out, 0);
        let batch = packed.next_batch().unwrap();
        let weights = batch.weights.as_ref().unwrap();
        assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        for (target, weight) in batch.targets.iter().zip(weights) {
            assert_eq!([3, 6, 7].contains(target), *weight > 0.0, "target {target}");
        }
        for row in 0..2 {
            assert_eq!(
                batch.tokens[row * 7 + 1..(row + 1) * 7],
                batch.targets[row * 7..(row + 1) * 7 - 1]
            );
        }
    }

    #[test]
    fn documents_that_do_not_fit_are_counted_or_refused() {
        let (long, short) = (document(&[1; 9], 0), document(&[1; 8], 0));
        let pack = |documents: &[Encoded]| {
            let packed = pack(&Processes::default(), documents, (1, 7), Rng::new(0, 0));
            packed.map(|(_, left_out)| left_out)
        };
        assert_eq!(pack(&[long.clone(), short]), Ok(1));
        let error = PackError::AllTooLong {
            count: 1,
            seq: 7,
            shortest: 9,
        };
        assert_eq!(pack(&[long]), Err(error));
    }

    #[test]
    fn rows_of_a_process_are_those_of_the_whole_batch() {
        let documents: Vec<_> = (1..40)
            .map(|i| document(&vec![i; 1 + i as usize % 6], i as usize % 3))
            .collect();
        let random = |held| RandomTokens {
            batch: 6,
            seq: 7,
            vocab: 50,
            rng: Rng::new(5, 0),
            held,
        };
        // Of three microbatches the first or the second row each: what two processes hold.
        let held = [
            Rows::new(6, [0..1, 2..3, 4..5]),
            Rows::new(6, [1..2, 3..4, 5..6]),
        ];
        in_processes(2, |processes| {
            let process = processes.process();
            let held = held[process].clone();
            let packed = |processes: &Processes| {
                let packed = pack(processes, &documents, (6, 7), Rng::new(5, 0));
                packed.ok().unwrap().0
            };
            let sources: [(Box<dyn BatchSource>, Box<dyn BatchSource>); 2] = [
                (
                    Box::new(packed(&Processes::default())),
                    Box::new(packed(&processes).only(held.clone())),
                ),
                (Box::new(random(Rows::all(6))), Box::new(random(held))),
            ];
            let row = process * 7..(process + 1) * 7;
            for (mut whole, mut here) in sources {
                // More than once through the documents.
                for _ in 0..6 {
                    let (whole, here) = (whole.next_batch().unwrap(), here.next_batch().unwrap());
                    for (whole, here) in whole.split(3).iter().zip(&here.split(3)) {
                        assert_eq!(
                            here.held,
                            Rows::new(2, std::iter::once(process..process + 1))
                        );
                        assert_eq!(whole.tokens[row.clone()], here.tokens);
                        assert_eq!(whole.targets[row.clone()], here.targets);
                        let weights = whole.weights.as_ref();
                        let weights = weights.map(|weights| weights[row.clone()].to_vec());
                        assert_eq!(weights, here.weights);
                    }
                }
            }
        });
    }

    /// Rows of a source that packs, and of one that draws, in batches of `batch` rows.
    fn sources(batch: usize, seq: usize, seed: u64, held: Rows) -> [Box<dyn BatchSource>; 2] {
        let documents: Vec<_> = (1..30)
            .map(|i| document(&vec![i; 1 + i as usize % 6], i as usize % 3))
            .collect();
        let rng = Rng::new(seed, 0);
        let packed = pack(&Processes::default(), &documents, (batch, seq), rng.clone());
        let random = RandomTokens {
            batch,
            seq,
            vocab: 50,
            rng,
            held: held.clone(),
        };
        let packed = packed.ok().unwrap().0.only(held);
        [Box::new(packed), Box::new(random)]
    }

    /// As if the position had been written and read.
    fn saved(source: &dyn BatchSource) -> Position {
        let json = serde_json::to_string(&source.position()).unwrap();
        let read = serde_json::from_str(&json).unwrap();
        assert_eq!(source.position(), read);
        read
    }

    #[test]
    fn sources_go_on_where_another_run_was_left() {
        let seq = 7;
        let rows_of = |source: &mut dyn BatchSource, batches: usize| -> Vec<(Vec<i32>, Vec<i32>)> {
            let mut rows = Vec::new();
            for _ in 0..batches {
                let batch = source.next_batch().unwrap();
                let (tokens, targets) = (batch.tokens.chunks(seq), batch.targets.chunks(seq));
                rows.extend(tokens.zip(targets).map(|(a, b)| (a.to_vec(), b.to_vec())));
            }
            rows
        };
        let mut whole = sources(4, seq, 5, Rows::all(4));
        let whole = whole.each_mut().map(|source| rows_of(source.as_mut(), 12));
        for taken in 0..8 {
            for batch in [1, 2, 3, 4, 8] {
                // A process that holds every other row, and one that holds all of them.
                let odd = Rows::new(batch, (0..batch / 2).map(|row| 2 * row + 1..2 * row + 2));
                for held in [Rows::all(batch), odd] {
                    let before = sources(4, seq, 5, Rows::new(4, [0..1, 2..3]));
                    let after = sources(batch, seq, 5, held.clone());
                    for ((mut before, mut after), whole) in
                        before.into_iter().zip(after).zip(&whole)
                    {
                        rows_of(before.as_mut(), taken);
                        // Where it has been before does not matter.
                        after.next_batch().unwrap();
                        after.resume(&saved(before.as_ref())).unwrap();
                        let first = 4 * taken;
                        let found = rows_of(after.as_mut(), 2);
                        let expected = (0..2 * batch).filter(|row| held.contains(row % batch));
                        let expected = expected.map(|row| whole[first + row].clone());
                        assert_eq!(found, expected.collect::<Vec<_>>(), "{taken} {batch}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_batch_after_a_pause_is_that_without_one() {
        let [mut whole, _] = sources(4, 7, 5, Rows::all(4));
        let [mut after, _] = sources(4, 7, 5, Rows::all(4));
        for _ in 0..20 {
            let position = saved(whole.as_ref());
            let batch = whole.next_batch().unwrap();
            after.resume(&position).unwrap();
            let resumed = after.next_batch().unwrap();
            assert_eq!((&resumed, resumed.split(2)), (&batch, batch.split(2)));
        }
        assert!(whole.position().epoch > 2);
    }

    #[test]
    fn positions_in_other_data_are_refused() {
        let all = Rows::all(4);
        let [packed, random] = sources(4, 7, 5, all.clone());
        let positions = [saved(packed.as_ref()), saved(random.as_ref())];
        let [packed, random] = &positions;
        for (seq, seed) in [(8, 5), (7, 6)] {
            for (mut other, position) in sources(4, seq, seed, all.clone())
                .into_iter()
                .zip(&positions)
            {
                let error = other.resume(position).unwrap_err().to_string();
                assert!(error.contains("rows of 7") && error.contains(&format!("rows of {seq}")));
            }
        }
        let [mut other_packed, mut other_random] = sources(4, 7, 5, all);
        assert!(other_packed.resume(random).is_err() && other_random.resume(packed).is_err());
    }

    #[test]
    fn a_process_that_holds_all_rows_gives_them_as_the_others_do() {
        // Ranks 2 and 3, of the second process, are of both parts of the batch.
        let mut source = RandomTokens {
            batch: 6,
            seq: 2,
            vocab: 50,
            rng: Rng::new(1, 0),
            held: Rows::all(6),
        };
        let whole = source.next_batch().unwrap();
        let rows = std::thread::scope(|scope| {
            let threads: Vec<_> = World::simulated(3)
                .into_iter()
                .map(|world| {
                    let whole = &whole;
                    scope.spawn(move || {
                        let mesh = DeviceMesh::builder()
                            .axis("fsdp", 2)
                            .axis("tp", 3)
                            .world(world)
                            .build()
                            .unwrap();
                        let held = mesh.local_rows(6);
                        let num_rows = held.len();
                        let of = |ids: &[i32]| -> Vec<i32> {
                            let rows = held.iter().flat_map(|row| [2 * row, 2 * row + 1]);
                            rows.map(|at| ids[at]).collect()
                        };
                        let batch = Batch {
                            tokens: of(&whole.tokens),
                            targets: of(&whole.targets),
                            held: held.clone(),
                            ..whole.clone()
                        };
                        let found = batch.enter::<Dist<Flex>>(&mesh.device(), true).unwrap();
                        let found = found.tokens + found.targets;
                        let found = found.into_data().iter::<i32>().collect::<Vec<_>>();
                        let sums = whole.tokens.iter().zip(&whole.targets);
                        assert_eq!(found, sums.map(|(a, b)| a + b).collect::<Vec<_>>());
                        num_rows
                    })
                })
                .collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, usize>| thread.join().unwrap();
            threads.into_iter().map(join).collect::<Vec<_>>()
        });
        assert_eq!(rows, [3, 6, 3]);
    }

    #[test]
    fn random_tokens_are_shifted_by_one_and_depend_on_the_seed() {
        let next = |seed| {
            let mut source = RandomTokens {
                batch: 2,
                seq: 5,
                vocab: 50,
                rng: Rng::new(seed, 0),
                held: Rows::all(2),
            };
            source.next_batch().unwrap()
        };
        let batch = next(1);
        assert_eq!(batch.tokens[1..5], batch.targets[..4]);
        assert_eq!(batch, next(1));
        assert_ne!(batch, next(2));
    }
}
