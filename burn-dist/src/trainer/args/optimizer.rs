//! The optimizer, and its learning rates.

use clap::Args;

use super::numbers::{above_0, at_least_0, below_1, positive, share};
use crate::trainer::optimizer::OptimizerConfig;
use crate::trainer::schedule::{Decay, Schedule};

/// How long a run is, and at which rates it learns.
#[derive(Debug, Clone, Args)]
pub struct ScheduleArgs {
    /// Training steps.
    #[arg(long)]
    pub steps: Option<usize>,
    /// Times through the data instead: as many steps as all rows of it make, so often. The data is read once to count
    /// them.
    #[arg(long, value_name = "N", value_parser = positive, conflicts_with = "steps")]
    pub epochs: Option<usize>,
    /// The highest learning rate.
    #[arg(long, value_parser = above_0::<f64>)]
    pub lr: Option<f64>,
    /// Steps over which the learning rate rises to it: a twentieth of --steps by default.
    #[arg(long, value_name = "STEPS")]
    pub lr_warmup: Option<usize>,
    /// How the learning rate falls after that, up to the last step.
    #[arg(long, value_enum, default_value_t)]
    pub lr_decay: Decay,
    /// The share of the highest learning rate that it falls to.
    #[arg(long, value_name = "SHARE", default_value_t = Schedule::FLOOR, value_parser = share)]
    pub lr_floor: f64,
    /// With wsd, the share of all steps, at the end, over which the learning rate falls.
    #[arg(long, value_name = "SHARE", default_value_t = Schedule::LAST, value_parser = share)]
    pub lr_last: f64,
}

impl ScheduleArgs {
    /// The rates of a phase of `steps`, the highest of which is `peak` unless the command line says otherwise.
    pub fn of(&self, peak: f64, steps: usize) -> Schedule {
        let schedule = Schedule::new(self.lr.unwrap_or(peak), steps);
        Schedule {
            warm_up: self.lr_warmup.unwrap_or(schedule.warm_up),
            decay: self.lr_decay,
            floor: self.lr_floor,
            last: self.lr_last,
            ..schedule
        }
    }
}

/// The optimizer of a step: AdamW.
#[derive(Debug, Clone, Args)]
pub struct OptimizerArgs {
    /// How slowly AdamW's mean of gradients forgets: what is left of one after a step.
    #[arg(long, value_name = "SHARE", default_value_t = OptimizerConfig::default().beta1, value_parser = below_1)]
    pub beta1: f32,
    /// How slowly its mean of their squares forgets.
    #[arg(long, value_name = "SHARE", default_value_t = OptimizerConfig::default().beta2, value_parser = below_1)]
    pub beta2: f32,
    /// Number added to the root of the latter, which divides the former.
    #[arg(long, value_name = "NUMBER", default_value_t = OptimizerConfig::default().eps, value_parser = above_0::<f32>)]
    pub eps: f32,
    /// Share of a weight that a step takes away of it, times the learning rate.
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = OptimizerConfig::default().weight_decay,
        value_parser = at_least_0::<f32>
    )]
    pub weight_decay: f32,
    /// Scale the gradients of a step so that their common norm is at most this.
    #[arg(long, value_name = "NORM", value_parser = above_0::<f64>)]
    pub clip: Option<f64>,
}

impl OptimizerArgs {
    /// The settings of AdamW.
    pub fn config(&self) -> OptimizerConfig {
        let Self {
            beta1,
            beta2,
            eps,
            weight_decay,
            ..
        } = *self;
        OptimizerConfig {
            beta1,
            beta2,
            eps,
            weight_decay,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Both {
        #[command(flatten)]
        schedule: ScheduleArgs,
        #[command(flatten)]
        optimizer: OptimizerArgs,
    }

    #[test]
    fn without_options_nothing_is_other_than_a_library_user_gets() {
        let both = Both::parse_from(["llama"]);
        assert_eq!(both.optimizer.config(), OptimizerConfig::default());
        assert_eq!(both.schedule.of(1e-3, 50), Schedule::new(1e-3, 50));
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        let refused = |option: &str, expected: &str| {
            let error = Both::try_parse_from(["llama", option])
                .unwrap_err()
                .to_string();
            assert!(error.contains(expected), "{error}");
        };
        refused("--beta1=1", "at least 0 and below 1");
        refused("--beta2=-0.1", "at least 0 and below 1");
        refused("--eps=0", "above 0");
        refused("--weight-decay=inf", "at least 0");
        refused("--lr-floor=1.5", "from 0 to 1");
        refused("--lr=NaN", "above 0");
        refused("--clip=-1", "above 0");
        refused("--lr-decay=cosin", "cosine");
    }
}
