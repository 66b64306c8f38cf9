//! Training programs with the structure of Burn 0.21's own examples: the same kinds of models, batchers that make a
//! tensor per item, loaders with several workers, metrics and checkpoints. Their data is generated.
//!
//! No program knows which backend trains: a run on a mesh differs by the type `B` and the device alone.

mod data;
mod progress;

pub mod custom_training_loop;
pub mod mnist;
pub mod modern_lstm;
pub mod simple_regression;
pub mod text_classification;
pub mod wgan;

use std::path::PathBuf;

use burn::backend::Flex;
use burn::module::Module;
use burn::record::{BinBytesRecorder, FullPrecisionSettings, Recorder};
use burn::tensor::backend::{AutodiffBackend, Backend};

pub use progress::{Log, Numbers};

/// Which random numbers a program uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Randomness {
    /// The backend's own, with dropout: what the examples do. Equal on every mesh; a plain backend draws others.
    Backend,
    /// Initial weights and noise made on the host, and no dropout: comparable between backends.
    Host,
}

/// What a program is run with.
#[derive(Clone, Debug)]
pub struct Setup<D> {
    /// Where it trains.
    pub device: D,
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

impl<D> Setup<D> {
    /// Returns the probability of dropout in place of `own`.
    fn dropout(&self, own: f64) -> f64 {
        match self.randomness {
            Randomness::Backend => own,
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
    fn run<B: AutodiffBackend>(setup: &Setup<B::Device>) -> Numbers;
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
fn start<B: Backend, M: Module<B>, H: Module<Flex>>(
    setup: &Setup<B::Device>,
    model: M,
    made_on_host: impl FnOnce() -> H,
) -> M {
    if setup.randomness == Randomness::Backend {
        return model;
    }
    // Parameters are initialised when their record is made.
    Flex::seed(&Default::default(), 7);
    let recorder = BinBytesRecorder::<FullPrecisionSettings>::default();
    let host = made_on_host().into_record();
    let bytes = Recorder::<Flex>::record(&recorder, host, ()).expect("records go into memory");
    let record = Recorder::<B>::load(&recorder, bytes, &setup.device).expect("the same module");
    model.load_record(record)
}
