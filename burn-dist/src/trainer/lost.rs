//! Advice on a loss that is no number.

/// A loss that is no number, and what is known of how it came to be.
#[derive(Debug, Clone, Default)]
pub struct Lost {
    /// The step, counted from 1.
    pub step: usize,
    /// Its loss.
    pub loss: f32,
    /// The highest learning rate.
    pub peak: f64,
    /// True if no step before it has changed a weight since the program began.
    pub is_first: bool,
    /// The report on values that were loaded and are not finite.
    pub loaded: Option<String>,
    /// The step of the last checkpoint with finite values.
    pub good: Option<u64>,
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            step, loss, peak, ..
        } = self;
        write!(f, "the loss of step {step} is {loss}: ")?;
        let way_back = self.good.map(|good| {
            format!("; the checkpoint of step {good} has finite values: --resume {good} goes on from there")
        });
        let way_back = way_back.unwrap_or_default();
        match (&self.loaded, self.is_first, self.good) {
            (Some(loaded), _, _) => write!(f, "{loaded}, and no learning rate mends that{way_back}"),
            (None, true, None) => f.write_str(
                "no step has changed a weight yet, so --lr is not the cause: look at the data, and whether the numbers \
                 of --param-dtype or --float8 reach far enough",
            ),
            // What was done before the checkpoint may have led here.
            (None, true, Some(good)) => write!(
                f,
                "it is the first one after the checkpoint of step {good}, whose values are finite: go on from an \
                 earlier one (--resume STEP) with a lower --lr (now {peak}), or look at the data"
            ),
            (None, false, _) => write!(f, "lower --lr (now {peak}){way_back}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lower_rate_is_advised_where_a_rate_can_be_the_cause() {
        let lost = Lost {
            step: 61,
            loss: f32::NAN,
            peak: 0.5,
            ..Lost::default()
        };
        assert_eq!(
            lost.to_string(),
            "the loss of step 61 is NaN: lower --lr (now 0.5)"
        );
        let good = Lost {
            good: Some(50),
            ..lost.clone()
        };
        let text = good.to_string();
        assert!(
            text.contains("lower --lr (now 0.5); the checkpoint of step 50 has finite values"),
            "{text}"
        );
        assert!(text.contains("--resume 50"), "{text}");
        let first = Lost {
            is_first: true,
            step: 1,
            ..lost.clone()
        };
        let text = first.to_string();
        assert!(
            text.contains("the loss of step 1 is NaN") && text.contains("--lr is not the cause"),
            "{text}"
        );
        let resumed = Lost {
            is_first: true,
            ..good
        };
        let text = resumed.to_string();
        assert!(
            text.contains("an earlier one (--resume STEP) with a lower --lr"),
            "{text}"
        );
        for is_first in [true, false] {
            let loaded = Lost {
                is_first,
                loaded: Some("the weights of m have 2 NaN or infinite values".to_string()),
                ..lost.clone()
            };
            let text = loaded.to_string();
            assert!(
                text.contains("m have 2 NaN") && !text.contains("lower"),
                "{text}"
            );
        }
    }
}
