//! Batches of token ids on the host, and as tensors.

use burn_core::tensor::{Bool, Device, Int, Tensor, TensorData};

use crate::ProcessLocal;
use crate::data::Stream;
use crate::layout::Rows;
use crate::parallel::DTensorError;
use crate::train::rng::Rng;
use crate::trainer::batch::{self, BatchSource, Position, in_samples};

/// One step's data: `batch` rows of `seq` positions, of which this process has some, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// Number of rows, here and in other processes.
    pub batch: usize,
    /// Which of them are here.
    pub held: Rows,
    /// Positions of a row.
    pub seq: usize,
    /// The ids that go into the model.
    pub tokens: Vec<i32>,
    /// The id that follows each of them.
    pub targets: Vec<i32>,
    /// How much each position counts; sums to 1. `None`: all alike.
    pub weights: Option<Vec<f32>>,
    /// Where documents are, if they do not see each other.
    pub packed: Option<PackedIds>,
}

/// Where the documents of a batch's rows are.
#[derive(Debug, Clone, PartialEq)]
pub struct PackedIds {
    /// The number of its document, of each position.
    pub documents: Vec<i32>,
    /// The place in its document, of each position.
    pub positions: Vec<i32>,
}

/// A batch on a device.
#[derive(Debug, Clone)]
pub struct BatchTensors {
    /// `[batch, seq]`: the ids that go into the model.
    pub tokens: Tensor<2, Int>,
    /// `[batch, seq]`: the ids to predict.
    pub targets: Tensor<2, Int>,
    /// `[batch, seq]`: how much each position counts.
    pub weights: Option<Tensor<2>>,
    /// Where documents are, if they do not see each other.
    pub packed: Option<Packed>,
}

/// Documents that share rows and do not see each other.
#[derive(Debug, Clone)]
pub struct Packed {
    /// `[b, s]`: the number of each token's document, within its row.
    pub documents: Tensor<2, Int>,
    /// `[b, s]`: the place of each token in its document.
    pub positions: Tensor<2, Int>,
}

impl Packed {
    /// Returns what is hidden: keys of other documents than the query's. On a mesh each rank makes the part that it
    /// uses.
    ///
    /// # Shapes
    /// Output: `[b, 1, s, s]`.
    pub fn mask(&self) -> Tensor<4, Bool> {
        let [b, s] = self.documents.dims();
        let of_queries = self.documents.clone().reshape([b, 1, s, 1]);
        let of_keys = self.documents.clone().reshape([b, 1, 1, s]);
        let whole = [b, 1, s, s];
        of_queries.expand(whole).not_equal(of_keys.expand(whole))
    }
}

impl Batch {
    /// The batch on a device, all of whose rows are here.
    pub fn tensors(&self, device: &Device) -> BatchTensors {
        let shape = [self.batch, self.seq];
        let ints = |ids: &[i32]| Tensor::from_data(TensorData::new(ids.to_vec(), shape), device);
        let weights = self
            .weights
            .as_ref()
            .map(|weights| Tensor::from_data(TensorData::new(weights.clone(), shape), device));
        BatchTensors {
            tokens: ints(&self.tokens),
            targets: ints(&self.targets),
            weights,
            packed: self.packed.as_ref().map(|packed| Packed {
                documents: ints(&packed.documents),
                positions: ints(&packed.positions),
            }),
        }
    }
}

impl batch::Batch for Batch {
    type Tensors = BatchTensors;

    /// Weights stay as they are, so that those of all parts sum to 1.
    fn split(&self, parts: usize) -> Vec<Batch> {
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
                packed: self.packed.as_ref().map(|all| PackedIds {
                    documents: all.documents[range.clone()].to_vec(),
                    positions: all.positions[range.clone()].to_vec(),
                }),
                weights: self.weights.as_ref().map(|all| all[range].to_vec()),
            }
        };
        (0..parts).map(part).collect()
    }

    fn enter(&self, device: &Device, by_process: bool) -> Result<BatchTensors, DTensorError> {
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
        let packed = self.packed.as_ref().map(|packed| {
            Ok::<_, DTensorError>(Packed {
                documents: ints(&packed.documents)?,
                positions: ints(&packed.positions)?,
            })
        });
        Ok(BatchTensors {
            tokens: ints(&self.tokens)?,
            targets: ints(&self.targets)?,
            weights: weights.transpose()?,
            packed: packed.transpose()?,
        })
    }

    fn count(&self) -> usize {
        self.batch * self.seq
    }
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
    type Batch = Batch;

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
            packed: None,
        })
    }

    fn position(&self) -> anyhow::Result<Position> {
        Ok(Position::Samples(crate::data::Position {
            epoch: 0,
            sample: self.rng.drawn() as usize / (self.seq + 1),
            stream: self.stream(),
        }))
    }

    fn resume(&mut self, position: &Position) -> anyhow::Result<()> {
        let position = in_samples(position, &self.stream())?;
        self.rng.seek((position.sample * (self.seq + 1)) as u64);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceMesh;
    use crate::launch::World;
    use crate::trainer::batch::Batch as _;

    fn random(batch: usize, seed: u64, held: Rows) -> RandomTokens {
        RandomTokens {
            batch,
            seq: 7,
            vocab: 50,
            rng: Rng::new(seed, 0),
            held,
        }
    }

    #[test]
    fn rows_of_a_process_are_those_of_the_whole_batch() {
        // Of three microbatches the first or the second row each: what two processes hold.
        let held = [
            Rows::new(6, [0..1, 2..3, 4..5]),
            Rows::new(6, [1..2, 3..4, 5..6]),
        ];
        for (process, held) in held.into_iter().enumerate() {
            let (mut whole, mut here) = (random(6, 5, Rows::all(6)), random(6, 5, held));
            let row = process * 7..(process + 1) * 7;
            for _ in 0..6 {
                let (whole, here) = (whole.next_batch().unwrap(), here.next_batch().unwrap());
                for (whole, here) in whole.split(3).iter().zip(&here.split(3)) {
                    let one = std::iter::once(process..process + 1);
                    assert_eq!(here.held, Rows::new(2, one));
                    assert_eq!(whole.tokens[row.clone()], here.tokens);
                    assert_eq!(whole.targets[row.clone()], here.targets);
                }
            }
        }
    }

    #[test]
    fn random_tokens_go_on_where_another_run_was_left() {
        let rows = |source: &mut RandomTokens, batches: usize| -> Vec<Vec<i32>> {
            let batches = (0..batches).map(|_| source.next_batch().unwrap());
            batches
                .flat_map(|batch| {
                    batch
                        .tokens
                        .chunks(7)
                        .map(<[i32]>::to_vec)
                        .collect::<Vec<_>>()
                })
                .collect()
        };
        let whole = rows(&mut random(4, 5, Rows::all(4)), 12);
        for taken in 0..8 {
            for batch in [1, 2, 3, 4, 8] {
                let mut before = random(4, 5, Rows::new(4, [0..1, 2..3]));
                rows(&mut before, taken);
                let json = serde_json::to_string(&before.position().unwrap()).unwrap();
                let mut after = random(batch, 5, Rows::all(batch));
                // Where it has been before does not matter.
                after.next_batch().unwrap();
                after.resume(&serde_json::from_str(&json).unwrap()).unwrap();
                let first = 4 * taken;
                assert_eq!(rows(&mut after, 2), whole[first..first + 2 * batch]);
            }
        }
        let position = random(4, 5, Rows::all(4)).position().unwrap();
        let error = random(4, 6, Rows::all(4))
            .resume(&position)
            .unwrap_err()
            .to_string();
        assert!(error.contains("rows of 7"), "{error}");
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
                        let found = batch.enter(&mesh.device(), true).unwrap();
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
