//! Schedulers of learning rates: Burn's own, and those of parts of a model.

use burn_optim::LearningRate;
use burn_optim::lr_scheduler::composed::ComposedLrScheduler;
use burn_optim::lr_scheduler::constant::ConstantLr;
use burn_optim::lr_scheduler::cosine::CosineAnnealingLrScheduler;
use burn_optim::lr_scheduler::exponential::ExponentialLrScheduler;
use burn_optim::lr_scheduler::linear::LinearLrScheduler;
use burn_optim::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn_optim::lr_scheduler::noam::NoamLrScheduler;
use burn_optim::lr_scheduler::sequential::SequentialLrScheduler;
use burn_optim::lr_scheduler::step::StepLrScheduler;
use burn_optim::lr_scheduler::{LrScheduler, LrSchedulerRecord};

/// A scheduler of learning rates that a checkpoint takes: one of Burn's, or a `ModuleLrScheduler` of any others.
pub trait Scheduler: Sized {
    /// Returns its state.
    #[doc(hidden)]
    fn record(&self) -> LrSchedulerRecord;

    /// Returns it with another state.
    #[doc(hidden)]
    fn with_record(self, record: LrSchedulerRecord) -> Self;
}

macro_rules! schedulers {
    ($($scheduler:ty;)+) => {$(
        impl Scheduler for $scheduler {
            fn record(&self) -> LrSchedulerRecord {
                LrScheduler::to_record(self)
            }

            fn with_record(mut self, record: LrSchedulerRecord) -> Self {
                LrScheduler::load_record(&mut self, record);
                self
            }
        }
    )+};
}

schedulers! {
    ComposedLrScheduler;
    ConstantLr;
    CosineAnnealingLrScheduler;
    ExponentialLrScheduler;
    LearningRate;
    LinearLrScheduler;
    NoamLrScheduler;
    SequentialLrScheduler;
    StepLrScheduler;
}

impl Scheduler for ModuleLrScheduler {
    fn record(&self) -> LrSchedulerRecord {
        self.to_record()
    }

    fn with_record(self, record: LrSchedulerRecord) -> Self {
        self.load_record(record)
    }
}
