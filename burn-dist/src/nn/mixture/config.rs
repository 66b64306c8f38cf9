//! The sizes of a mixture, and what follows from them.

/// How many slots an expert has in a group of tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Capacity {
    /// This many times what it would take if all experts were chosen alike; what does not fit is dropped.
    Factor(f64),
    /// One for each token of the group: the worst case, so that nothing is dropped.
    Dropless,
}

/// The sizes of a mixture of experts.
#[derive(Debug, Clone, PartialEq)]
pub struct MixtureConfig {
    /// Width of tokens.
    pub width: usize,
    /// Width inside an expert.
    pub hidden: usize,
    /// Experts.
    pub experts: usize,
    /// Experts of a token, at most as many as there are.
    pub top_k: usize,
    /// Slots of an expert.
    pub capacity: Capacity,
    /// Groups of tokens in a sequence, which are dealt to them in turn: a divisor of its length. Tokens compete for
    /// slots with those of their group alone.
    pub groups: usize,
    /// True if a feed-forward layer works on every token beside the experts.
    pub shared: bool,
}

impl MixtureConfig {
    /// Returns the slots of an expert in a group of `tokens`: at least 1, and not more than there are tokens, as no
    /// token chooses an expert twice.
    pub fn slots(&self, tokens: usize) -> usize {
        match self.capacity {
            Capacity::Factor(factor) => {
                let even = (self.top_k * tokens) as f64 / self.experts as f64;
                ((factor * even).ceil() as usize).clamp(1, tokens)
            }
            Capacity::Dropless => tokens,
        }
    }

    /// Returns the slots of all experts for `batch` sequences of `seq` tokens.
    pub fn all_slots(&self, batch: usize, seq: usize) -> usize {
        self.experts * self.slots(seq / self.groups) * self.groups * batch
    }

    /// Returns the bytes that cross between ranks, in one direction of one pass, summed over all ranks: dispatch or
    /// combine, forward or backward. `parts` ranks share the experts.
    ///
    /// `experts x slots x groups x width x bytes x (parts - 1) / parts`: groups are the model's, so that it does not
    /// depend on the mesh but by `parts`.
    pub fn exchanged_bytes(
        &self,
        (batch, seq): (usize, usize),
        parts: usize,
        elem_bytes: usize,
    ) -> u64 {
        let all = (self.all_slots(batch, seq) * self.width * elem_bytes) as u64;
        all * (parts as u64 - 1) / parts as u64
    }

    /// Returns what experts compute with every slot filled, over what the chosen pairs take: what padding costs.
    pub fn padding(&self, seq: usize) -> f64 {
        let tokens = seq / self.groups;
        (self.experts * self.slots(tokens)) as f64 / (self.top_k * tokens) as f64
    }

    /// Returns the flops of products in a training step on `batch` sequences of `seq` tokens: those of the router and
    /// of the shared layer for each token, those of the experts for each slot.
    pub fn flops(&self, batch: usize, seq: usize) -> f64 {
        let expert = 3 * self.width * self.hidden;
        let shared = if self.shared { expert } else { 0 };
        let tokens = batch * seq * (self.width * self.experts + shared);
        6.0 * (tokens + self.all_slots(batch, seq) * expert) as f64
    }

    /// Returns all that tells it from others, as names and values.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        vec![
            ("width", self.width.to_string()),
            ("width inside an expert", self.hidden.to_string()),
            ("experts", self.experts.to_string()),
            ("experts of a token", self.top_k.to_string()),
            ("capacity", format!("{:?}", self.capacity)),
            ("groups", self.groups.to_string()),
            ("shared layer", self.shared.to_string()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_follow_the_factor_up_to_one_for_each_token() {
        let config = |capacity| MixtureConfig {
            width: 64,
            hidden: 128,
            experts: 8,
            top_k: 2,
            capacity,
            groups: 1,
            shared: true,
        };
        let slots = |factor| config(Capacity::Factor(factor)).slots(32);
        // 2 x 32 pairs over 8 experts are 8 each.
        assert_eq!(slots(1.0), 8);
        assert_eq!(slots(1.25), 10);
        assert_eq!(slots(1e-9), 1);
        assert_eq!(slots(100.0), 32);
        let dropless = config(Capacity::Dropless);
        assert_eq!(dropless.slots(32), 32);
        // 8 experts for the 2 of a token.
        assert_eq!(dropless.padding(32), 4.0);
    }
}
