//! The loss on rows that training never sees.

use std::time::{Duration, Instant};

use anyhow::Context;
use burn_core::tensor::Tensor;

use super::batch::{Batch, BatchSource, Position};
use super::mesh::Mesh;
use super::model::Model;

/// The rows that are held out, and when the model is asked for their loss.
pub struct Validation<'a, B> {
    source: Box<dyn BatchSource<Batch = B> + 'a>,
    /// Where the first of them is.
    start: Position,
    batches: usize,
    every: Option<usize>,
}

/// The loss on what is held out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// The mean over all positions that are learnt.
    pub loss: f32,
    /// How many these are.
    pub positions: u64,
    /// How long it took.
    pub time: Duration,
}

impl<'a, B: Batch> Validation<'a, B> {
    /// Takes the next `batches` batches of `source`: every `every` steps, and after the last one.
    ///
    /// # Errors
    /// If `source` cannot say where it is.
    pub fn new(
        source: Box<dyn BatchSource<Batch = B> + 'a>,
        batches: usize,
        every: Option<usize>,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            start: source.position()?,
            source,
            batches,
            every,
        })
    }

    /// Returns whether it is time, after so many steps of which the last `is_last`.
    pub fn is_due(&self, done: usize, is_last: bool) -> bool {
        is_last || self.every.is_some_and(|every| done.is_multiple_of(every))
    }

    /// Returns the mean loss over all positions that are learnt. Batches are cut into `microbatches`, as those of a
    /// step are. Neither the model nor random numbers change.
    ///
    /// # Communication
    /// A forward pass of each batch under the model's layouts, without gradients; two numbers are read.
    /// # Errors
    /// If a batch cannot be read, or the mesh has stopped.
    pub fn loss<M: Model<Batch = B>>(
        &mut self,
        model: &M,
        microbatches: usize,
        mesh: &Mesh,
    ) -> anyhow::Result<Measured> {
        let begin = Instant::now();
        let device = mesh.inference_device();
        self.source
            .resume(&self.start)
            .context("cannot go back to the first row that is held out")?;
        let (mut sum, mut positions) = (0.0, 0.0);
        for _ in 0..self.batches {
            let batch = self.source.next_batch()?;
            let hold = mesh.hold();
            let parts = batch.split(microbatches).into_iter().map(|part| {
                let part = part.enter(&device, mesh.gives_rows())?;
                Ok(model.held_out(part))
            });
            let parts: Vec<[Tensor<1>; 2]> = parts.collect::<anyhow::Result<_>>()?;
            drop(hold);
            let parts = parts.into_iter().reduce(|[a, b], [c, d]| [a + c, b + d]);
            let both = parts.expect("a batch has a part");
            let both = Tensor::cat(both.into(), 0).try_into_data();
            let both = both.context("validation failed")?;
            let mut both = both.iter::<f32>();
            sum += both.next().map_or(0.0, f64::from);
            positions += both.next().map_or(0.0, f64::from);
        }
        Ok(Measured {
            loss: (sum / positions) as f32,
            positions: positions as u64,
            time: begin.elapsed(),
        })
    }
}
