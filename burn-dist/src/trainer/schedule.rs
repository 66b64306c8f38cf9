//! Learning rates, step by step.

use std::f64::consts::PI;

/// A learning rate that rises linearly to its peak, then falls to a share of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// The highest rate.
    pub peak: f64,
    /// Steps of the rise.
    pub warm_up: usize,
    /// Steps in all.
    pub steps: usize,
    /// How it falls.
    pub decay: Decay,
    /// The share of the peak that it falls to, from 0 to 1.
    pub floor: f64,
    /// The share of all steps, at the end, over which [`Decay::Wsd`] falls.
    pub last: f64,
}

/// How a learning rate falls after its rise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Decay {
    /// Along half a cosine.
    #[default]
    Cosine,
    /// By the same amount each step.
    Linear,
    /// It stays at its peak.
    Constant,
    /// It stays at its peak, and falls by the same amount each step over the last ones: warmup, stable, decay (MiniCPM,
    /// arXiv:2404.06395). A run can go on from before the fall with more steps.
    Wsd,
}

impl Schedule {
    /// A share of the peak that is nearly nothing.
    pub const FLOOR: f64 = 0.01;
    /// The share of steps over which [`Decay::Wsd`] falls, unless another one is set.
    pub const LAST: f64 = 0.2;

    /// A rise over the first twentieth of `steps`, then half a cosine down to a hundredth.
    pub fn new(peak: f64, steps: usize) -> Self {
        Self {
            peak,
            warm_up: steps.div_ceil(20),
            steps,
            decay: Decay::Cosine,
            floor: Self::FLOOR,
            last: Self::LAST,
        }
    }

    /// The rate of a step, counted from 0.
    pub fn at(&self, step: usize) -> f64 {
        if step < self.warm_up {
            return self.peak * (step + 1) as f64 / self.warm_up as f64;
        }
        let falling = self.steps.saturating_sub(self.warm_up).max(1) as f64;
        let progress = ((step - self.warm_up) as f64 / falling).min(1.0);
        let left = match self.decay {
            Decay::Cosine => 0.5 * (1.0 + (PI * progress).cos()),
            Decay::Linear => 1.0 - progress,
            Decay::Constant => return self.peak,
            Decay::Wsd => {
                let falling = (self.last * self.steps as f64).clamp(1.0, falling);
                let left = self.steps as f64 - step as f64;
                (left / falling).clamp(0.0, 1.0)
            }
        };
        self.peak * (self.floor + (1.0 - self.floor) * left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_rises_then_falls_to_a_hundredth() {
        let schedule = Schedule {
            warm_up: 4,
            ..Schedule::new(1.0, 20)
        };
        assert_eq!(schedule.at(0), 0.25);
        assert_eq!(schedule.at(3), 1.0);
        assert!((4..19).all(|step| schedule.at(step + 1) < schedule.at(step)));
        assert!((schedule.at(20) - 0.01).abs() < 1e-9);
        assert!(Schedule::new(1.0, 1).at(0) > 0.0);
    }

    #[test]
    fn every_shape_rises_to_the_peak_and_ends_at_its_floor() {
        for decay in [Decay::Cosine, Decay::Linear, Decay::Constant, Decay::Wsd] {
            let schedule = Schedule {
                warm_up: 4,
                decay,
                floor: 0.25,
                ..Schedule::new(2.0, 12)
            };
            let rates: Vec<f64> = (0..=12).map(|step| schedule.at(step)).collect();
            assert_eq!(rates[..5], [0.5, 1.0, 1.5, 2.0, 2.0], "{decay:?}");
            assert!(rates[4..].is_sorted_by(|a, b| a >= b), "{rates:?}");
            let (half, last) = match decay {
                Decay::Cosine | Decay::Linear => (1.25, 0.5),
                Decay::Constant => (2.0, 2.0),
                Decay::Wsd => (2.0, 0.5),
            };
            assert!((rates[8] - half).abs() < 1e-12 && (rates[12] - last).abs() < 1e-12);
        }
    }

    #[test]
    fn wsd_stays_at_its_peak_until_the_last_steps() {
        let schedule = Schedule {
            warm_up: 2,
            decay: Decay::Wsd,
            floor: 0.5,
            last: 0.4,
            ..Schedule::new(1.0, 10)
        };
        let rates: Vec<f64> = (0..=10).map(|step| schedule.at(step)).collect();
        assert_eq!(rates[..7], [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
        let falling = [0.875, 0.75, 0.625, 0.5];
        assert!(
            rates[7..]
                .iter()
                .zip(falling)
                .all(|(a, b)| (a - b).abs() < 1e-12),
            "{rates:?}"
        );
        // However short the run is, and however long the rise.
        for steps in 1..4 {
            let short = Schedule {
                warm_up: 9,
                ..Schedule { steps, ..schedule }
            };
            assert!((0..12).all(|step| short.at(step) > 0.0 && short.at(step) <= 1.0));
        }
    }

    #[test]
    fn a_rise_longer_than_the_run_is_cut_off() {
        let schedule = Schedule {
            warm_up: 10,
            ..Schedule::new(1.0, 5)
        };
        assert_eq!(schedule.at(4), 0.5);
        assert_eq!(schedule.at(10), 1.0);
    }
}
