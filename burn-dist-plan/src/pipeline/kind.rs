//! The schedules of the literature, by name.

/// A schedule of the literature. Each exists for any number of ranks and microbatches.
///
/// Bubbles are idle times of the fullest rank between its first action and its last, for p ranks and F, B and W of one
/// rank and microbatch (all its stages), W <= min(F, B), transfers not counted.
///
/// Text form: `gpipe`, `1f1b`, `interleaved`, `looped-bfs`, `zb-h1`, `zb-h2`, `zb-v`, `dualpipe-v`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ScheduleKind {
    /// GPipe (arXiv:1811.06965, section 2): all forwards, then all backwards. Bubble (p - 1) (F + B + W).
    ///
    /// Differs: backwards go from the first microbatch on, so that gradients of all schedules fold in one order.
    GPipe,
    /// 1F1B, or PipeDream-Flush (arXiv:2006.09503, section 3.2): forwards and backwards in turns as soon as there is a
    /// backward, so that a rank keeps at most p microbatches. Bubble as GPipe.
    #[default]
    OneFOneB,
    /// Interleaved 1F1B (arXiv:2104.04473, section 2.2): 1F1B over several stages per rank, p microbatches of one stage
    /// after another. Bubble (p - 1) (F + B + W) / stages per rank, if p divides m.
    ///
    /// Differs: p need not divide m. What is left over is added to the last group of p microbatches.
    Interleaved,
    /// Looped breadth-first (arXiv:2211.05953, section 4): a rank's stages one after the other, each with all
    /// microbatches, so that a stage's parameters are gathered and its gradients reduced once. Bubble as interleaved, if
    /// m >= p.
    LoopedBfs,
    /// ZB-H1 (arXiv:2401.10241, section 2.1): 1F1B with weight gradients delayed by a microbatch per rank, within the
    /// memory of 1F1B. Bubble (p - 1) (F + B - W), if m >= p.
    ZbH1,
    /// ZB-H2 (arXiv:2401.10241, section 2.2): more forwards first, weight gradients delayed by two microbatches per rank,
    /// within almost twice the memory of 1F1B. Bubble (p - 1) (F + B - 2 W), if m >= 2 p - 1.
    ZbH2,
    /// ZB-V (arXiv:2401.10241 and arXiv:2405.15362, on V-shaped schedules): two stages per rank, placed as a V, within
    /// the memory of 1F1B. No bubble if F = B = W and m >= 2 p - 1.
    ZbV,
    /// DualPipe (arXiv:2412.19437, section 3.2.1) cut in half to one direction, two stages per rank placed as a V (Sea AI
    /// Lab, "DualPipe could be better without the Dual"). Backwards are whole in its steady part, and next to a forward
    /// of another microbatch, which a rank may overlap with it. No bubble if F = B = W and m >= 2 p.
    ///
    /// Differs: backwards are split from the last forward of the first stage on, not from the middle of the end on. With
    /// whole ones other ranks would wait, here for up to p - 1 units of time.
    DualPipeV,
}

impl ScheduleKind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::GPipe,
        Self::OneFOneB,
        Self::Interleaved,
        Self::LoopedBfs,
        Self::ZbH1,
        Self::ZbH2,
        Self::ZbV,
        Self::DualPipeV,
    ];

    /// Returns how many stages of a rank the schedule has, if it exists for one number only.
    pub const fn chunks(self) -> Option<u32> {
        match self {
            Self::GPipe | Self::OneFOneB | Self::ZbH1 | Self::ZbH2 => Some(1),
            Self::Interleaved | Self::LoopedBfs => None,
            Self::ZbV | Self::DualPipeV => Some(2),
        }
    }

    /// Returns whether the stages of a rank are placed as a V.
    pub const fn is_v(self) -> bool {
        matches!(self, Self::ZbV | Self::DualPipeV)
    }

    /// Returns whether ranks may have several stages.
    pub const fn is_looped(self) -> bool {
        !matches!(self.chunks(), Some(1))
    }
}

texts!(
    ScheduleKind,
    "is not a schedule: use gpipe, 1f1b, interleaved, looped-bfs, zb-h1, zb-h2, zb-v or dualpipe-v",
    GPipe = "gpipe",
    OneFOneB = "1f1b",
    Interleaved = "interleaved",
    LoopedBfs = "looped-bfs",
    ZbH1 = "zb-h1",
    ZbH2 = "zb-h2",
    ZbV = "zb-v",
    DualPipeV = "dualpipe-v",
);
