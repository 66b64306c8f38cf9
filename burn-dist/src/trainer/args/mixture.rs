//! The options of mixtures of experts.

use anyhow::ensure;
use clap::Args;

use super::numbers::check_sizes;
use crate::nn::mixture::{Capacity, MixtureConfig};

/// The experts of each block of a model.
#[derive(Debug, Clone, Args)]
pub struct MixtureArgs {
    /// Experts of each block.
    #[arg(long, default_value_t = 8)]
    pub experts: usize,
    /// Experts that each token goes to.
    #[arg(long, default_value_t = 2)]
    pub top_k: usize,
    /// Slots of an expert, as a multiple of what it would take if all were chosen alike; what does not fit is dropped.
    #[arg(long, default_value_t = 1.25, allow_negative_numbers = true)]
    pub capacity_factor: f64,
    /// Give every expert a slot for every token: nothing is dropped, and most slots are empty.
    #[arg(long, conflicts_with = "capacity_factor")]
    pub dropless: bool,
    /// Groups that the tokens of a sequence are dealt to, in turn: they compete for slots with their group alone.
    #[arg(long, default_value_t = 1)]
    pub groups: usize,
    /// Leave out the feed-forward layer that works on every token beside the experts.
    #[arg(long)]
    pub no_shared: bool,
    /// Width inside an expert.
    #[arg(long, default_value_t = 128)]
    pub hidden: usize,
}

impl MixtureArgs {
    /// Returns the sizes of a mixture in a model of this width, for sequences of `seq` tokens.
    ///
    /// # Errors
    /// With the sizes at fault.
    pub fn config(&self, width: usize, seq: usize) -> anyhow::Result<MixtureConfig> {
        let Self {
            experts,
            top_k,
            groups,
            hidden,
            ..
        } = *self;
        check_sizes(&[
            ("the width", width),
            ("the width inside an expert", hidden),
            ("the number of experts", experts),
            ("the number of experts of a token", top_k),
            ("the number of groups", groups),
            ("the length of a sequence", seq),
        ])?;
        ensure!(
            top_k <= experts,
            "a token cannot choose {top_k} of {experts} experts: use --top-k {experts} or less, or more experts"
        );
        let factor = self.capacity_factor;
        ensure!(
            self.dropless || (factor > 0.0 && factor.is_finite()),
            "capacity factor {factor} leaves an expert no slot: use a number above 0 (1.25 is usual), or --dropless"
        );
        ensure!(
            seq.is_multiple_of(groups),
            "a sequence of {seq} tokens cannot be cut into {groups} equal groups: choose --groups that divide it"
        );
        Ok(MixtureConfig {
            width,
            hidden,
            experts,
            top_k,
            capacity: match self.dropless {
                true => Capacity::Dropless,
                false => Capacity::Factor(factor),
            },
            groups,
            shared: !self.no_shared,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: MixtureArgs,
    }

    #[test]
    fn sizes_that_do_not_fit_are_named() {
        let config = |line: &[&str]| {
            let line = Line::parse_from([&["moe"], line].concat());
            let config = line.args.config(64, 32);
            config.map_err(|error| error.to_string())
        };
        assert_eq!(config(&[]).unwrap().slots(32), 10);
        assert_eq!(config(&["--dropless"]).unwrap().slots(32), 32);
        for (line, expected) in [
            (
                &["--top-k", "9"][..],
                "a token cannot choose 9 of 8 experts",
            ),
            (
                &["--capacity-factor", "0"],
                "capacity factor 0 leaves an expert no slot",
            ),
            (
                &["--capacity-factor", "-1"],
                "capacity factor -1 leaves an expert no slot",
            ),
            (
                &["--capacity-factor", "inf"],
                "capacity factor inf leaves an expert no slot",
            ),
            (
                &["--groups", "3"],
                "a sequence of 32 tokens cannot be cut into 3",
            ),
            (&["--experts", "0"], "the number of experts is 0"),
        ] {
            let error = config(line).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
