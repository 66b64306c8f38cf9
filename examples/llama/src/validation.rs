//! The loss on rows that training never sees.

use std::time::{Duration, Instant};

use anyhow::Context;
use burn::tensor::Tensor;
use burn_dist::MeshBackend;
use burn_dist::data::Position;
use burn_dist::nn::AttentionBackend;

use crate::data::batch::{BatchSource, BatchTensors};
use crate::mesh::Mesh;
use crate::model::Llama;
use crate::train::cross_entropy;

/// The rows that are held out, and when the model is asked for their loss.
pub struct Validation<'a> {
    source: Box<dyn BatchSource + 'a>,
    /// Where the first of them is.
    start: Position,
    batches: usize,
    every: Option<usize>,
}

impl<'a> Validation<'a> {
    /// Takes the next `batches` batches of `source`: every `every` steps, and after the last one.
    pub fn new(source: Box<dyn BatchSource + 'a>, batches: usize, every: Option<usize>) -> Self {
        Self {
            start: source.position(),
            source,
            batches,
            every,
        }
    }

    /// Whether it is time, after so many steps of which the last `is_last`.
    pub fn is_due(&self, done: usize, is_last: bool) -> bool {
        is_last || self.every.is_some_and(|every| done.is_multiple_of(every))
    }

    /// Returns the mean loss over all positions that are learnt, and how long it took. Batches are cut into
    /// `microbatches`, as those of a step are. Neither the model nor random numbers change.
    ///
    /// # Communication
    /// A forward pass of each batch under the model's layouts, without gradients; two numbers are read.
    /// # Errors
    /// If a batch cannot be read, or the mesh has stopped.
    pub fn loss<B: MeshBackend + AttentionBackend>(
        &mut self,
        model: &Llama<B>,
        microbatches: usize,
        device: &B::Device,
        mesh: &Mesh,
    ) -> anyhow::Result<(f32, Duration)> {
        let begin = Instant::now();
        self.source
            .resume(&self.start)
            .context("cannot go back to the first row that is held out")?;
        let (mut sum, mut positions) = (0.0, 0.0);
        for _ in 0..self.batches {
            let batch = self.source.next_batch()?;
            let hold = B::hold(device);
            let parts = batch.split(microbatches).into_iter().map(|part| {
                let part = part.enter::<B>(device, mesh.gives_rows())?;
                Ok(losses(model, part))
            });
            let parts: Vec<[Tensor<B, 1>; 2]> = parts.collect::<anyhow::Result<_>>()?;
            drop(hold);
            let parts = parts.into_iter().reduce(|[a, b], [c, d]| [a + c, b + d]);
            let both = parts.expect("a batch has a part");
            let both = Tensor::cat(both.into(), 0).try_into_data();
            let both = both.context("validation failed")?;
            let mut both = both.iter::<f32>();
            sum += both.next().map_or(0.0, f64::from);
            positions += both.next().map_or(0.0, f64::from);
        }
        Ok(((sum / positions) as f32, begin.elapsed()))
    }
}

/// The sum of the losses of the positions that are learnt, and how many these are.
fn losses<B: AttentionBackend>(model: &Llama<B>, batch: BatchTensors<B>) -> [Tensor<B, 1>; 2] {
    let [rows, seq] = batch.tokens.dims();
    let device = batch.tokens.device();
    let logits = model.forward(batch.tokens);
    let learnt = match batch.weights {
        Some(weights) => weights.greater_elem(0.0).float(),
        None => Tensor::ones([rows, seq], &device),
    };
    let num = learnt.clone().sum();
    [cross_entropy(logits, batch.targets, Some(learnt)), num]
}
