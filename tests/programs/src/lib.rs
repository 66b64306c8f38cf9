//! Training programs with the structure of Burn 0.22's own examples: the same kinds of models, batchers that make a
//! tensor per item, loaders with several workers, metrics and checkpoints. Their data is generated.
//!
//! No program knows which device trains: a run on a mesh differs by that alone.

mod data;
mod progress;

pub mod custom_training_loop;
pub mod mnist;
pub mod modern_lstm;
pub mod simple_regression;
pub mod text_classification;
pub mod wgan;

use std::path::PathBuf;

use burn::module::Module;
use burn::tensor::Device;

pub use progress::{Log, Numbers};

/// Which random numbers a program uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Randomness {
    /// The device's own, with dropout: what the examples do. Equal on every mesh; a plain device draws others.
    Device,
    /// Initial weights and noise made on the host, and no dropout: comparable between devices.
    Host,
}

/// The settings that a program is run with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Where it trains.
    pub device: Device,
    /// Threads per data loader. With more than one, batches arrive in an order that differs from run to run.
    pub workers: usize,
    /// For checkpoints, metrics and models.
    pub directory: PathBuf,
    /// Where random numbers come from.
    pub randomness: Randomness,
    /// How much there is to do.
    pub size: Size,
}

/// How much a program has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Narrow models and some ten steps: for tests.
    Test,
    /// Batches and models as wide as in Burn's examples, fewer steps: for measurements.
    Example,
}

impl Size {
    /// Returns the one or the other.
    fn pick<T>(self, test: T, example: T) -> T {
        match self {
            Self::Test => test,
            Self::Example => example,
        }
    }
}

impl Setup {
    /// Returns the probability of dropout in place of `own`.
    fn dropout(&self, own: f64) -> f64 {
        match self.randomness {
            Randomness::Device => own,
            Randomness::Host => 0.0,
        }
    }

    /// Returns a path in the directory.
    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

/// A training program.
pub trait Program {
    /// Its name.
    const NAME: &'static str;

    /// Trains, and returns the numbers that it reports, in order.
    fn run(setup: &Setup) -> Numbers;
}

/// Calls `$run::<Program>($arg, ..)` for each program.
#[macro_export]
macro_rules! each_program {
    ($run:ident ( $($arg:expr),* )) => {
        $run::<$crate::simple_regression::SimpleRegression>($($arg),*);
        $run::<$crate::mnist::Mnist>($($arg),*);
        $run::<$crate::text_classification::TextClassification>($($arg),*);
        $run::<$crate::custom_training_loop::CustomTrainingLoop>($($arg),*);
        $run::<$crate::wgan::Wgan>($($arg),*);
        $run::<$crate::modern_lstm::ModernLstm>($($arg),*);
    };
}

/// Gives `model` the weights of `made_on_host`, if the setup says so.
fn start<M: Module>(setup: &Setup, model: M, made_on_host: impl FnOnce(&Device) -> M) -> M {
    if setup.randomness == Randomness::Device {
        return model;
    }
    // Parameters are initialised when their record is made.
    let host = Device::flex();
    host.seed(7);
    model.load_record(made_on_host(&host).into_record())
}
