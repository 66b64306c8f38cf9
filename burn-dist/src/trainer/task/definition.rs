//! The trait of a program: its model, and its rows.

use std::ops::Range;

use burn_core::tensor::Device;
use clap::Args;

use crate::mesh::MeshShape;
use crate::trainer::args::StepArgs;
use crate::trainer::batch::Numbered;
use crate::trainer::job::Job;
use crate::trainer::model::Model;
use crate::trainer::progress::Text;

/// A model by the options of a program, with its rows: all that the commands of a program need.
pub trait Task: Args + std::fmt::Debug {
    /// The model.
    type Model: Model;

    /// The devices without `--mesh`; one without it.
    const MESH: Option<&'static str> = None;
    /// Steps without `--steps`.
    const STEPS: usize;
    /// Rows of a step without `--batch`.
    const BATCH: usize;
    /// The highest learning rate without `--lr`.
    const PEAK: f64;
    /// Batches that are held out.
    const HELD_OUT: usize = 4;
    /// Steps from one line of [`Self::line`] to the next without `--log-every`.
    const LOG_EVERY: usize = 1;
    /// Options of the trainer whose help says what the program's own defaults are.
    const HELP: &'static [(&'static str, &'static str)] = &[];

    /// Returns the sizes of the model.
    ///
    /// # Errors
    /// If they do not fit each other.
    fn config(&self, step: &StepArgs) -> anyhow::Result<<Self::Model as Model>::Config>;

    /// The name of the model's size.
    fn name(&self) -> String;

    /// Returns how much of what a speed counts a row has, and its name.
    fn each(&self) -> (usize, &'static str) {
        (1, "rows")
    }

    /// The rows of this seed.
    fn rows(&self, seed: u64) -> Rows<<Self::Model as Model>::Batch>;

    /// Returns a text about the model that stands before its training, if there is one.
    fn introduction(&self, _job: &Job<Self::Model>) -> Option<String> {
        None
    }

    /// Returns what stands above the plan of a step: the introduction, or the name of the model.
    ///
    /// # Errors
    /// If the model does not fit the mesh.
    fn about(&self, job: &Job<Self::Model>, _mesh: &MeshShape) -> anyhow::Result<String> {
        Ok(self.introduction(job).unwrap_or_else(|| job.name.clone()))
    }

    /// Returns what makes the line of a step on standard output, in place of the usual display.
    fn line(&self, _job: &Job<Self::Model>) -> Option<Text> {
        None
    }

    /// Does something with the trained model.
    ///
    /// # Errors
    /// Why it could not be done; what the run leaves is written all the same.
    fn end(&self, _model: &Self::Model, _device: &Device) -> anyhow::Result<()> {
        Ok(())
    }
}

/// Rows that are made from their numbers, without an end.
pub struct Rows<B> {
    name: String,
    pub(super) make: Box<dyn Fn(Range<usize>) -> B>,
}

impl<B> Rows<B> {
    /// Rows of this name, by which a run that goes on knows them.
    pub fn new(name: &str, make: impl Fn(Range<usize>) -> B + 'static) -> Self {
        Self {
            name: name.to_string(),
            make: Box::new(make),
        }
    }

    /// Batches of them, from the first one.
    pub(super) fn batches(self, rows: usize) -> Numbered<Box<dyn Fn(Range<usize>) -> B>> {
        Numbered::new(&self.name, rows, self.make)
    }
}

/// The number of the first row that is held out: training does not reach it.
pub const UNSEEN: usize = 1 << 40;
