//! The schedules of the literature, by name.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use burn_dist_mesh::{TextError, any_of};

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

/// All that is known of a schedule beside its actions.
struct Row {
    kind: ScheduleKind,
    name: &'static str,
    /// How many stages of a rank it has, if it exists for one number only.
    chunks: Option<u32>,
    is_v: bool,
}

const fn row(kind: ScheduleKind, name: &'static str, chunks: Option<u32>, is_v: bool) -> Row {
    Row {
        kind,
        name,
        chunks,
        is_v,
    }
}

/// A row for each schedule, in the order in which they are declared.
const KINDS: [Row; 8] = [
    row(ScheduleKind::GPipe, "gpipe", Some(1), false),
    row(ScheduleKind::OneFOneB, "1f1b", Some(1), false),
    row(ScheduleKind::Interleaved, "interleaved", None, false),
    row(ScheduleKind::LoopedBfs, "looped-bfs", None, false),
    row(ScheduleKind::ZbH1, "zb-h1", Some(1), false),
    row(ScheduleKind::ZbH2, "zb-h2", Some(1), false),
    row(ScheduleKind::ZbV, "zb-v", Some(2), true),
    row(ScheduleKind::DualPipeV, "dualpipe-v", Some(2), true),
];

impl ScheduleKind {
    /// All of them.
    pub const ALL: [Self; KINDS.len()] = {
        let mut all = [Self::GPipe; KINDS.len()];
        let mut index = 0;
        while index < all.len() {
            all[index] = KINDS[index].kind;
            assert!(all[index] as usize == index);
            index += 1;
        }
        all
    };

    const fn row(self) -> &'static Row {
        &KINDS[self as usize]
    }

    const fn name(self) -> &'static str {
        self.row().name
    }

    /// Returns how many stages of a rank the schedule has, if it exists for one number only.
    pub const fn chunks(self) -> Option<u32> {
        self.row().chunks
    }

    /// Returns whether the stages of a rank are placed as a V.
    pub const fn is_v(self) -> bool {
        self.row().is_v
    }

    /// Returns whether ranks may have several stages.
    pub const fn is_looped(self) -> bool {
        !matches!(self.chunks(), Some(1))
    }
}

impl fmt::Display for ScheduleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ScheduleKind {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        static REASON: LazyLock<String> = LazyLock::new(|| {
            let names = KINDS.iter().map(|row| row.name);
            format!("is not a schedule: use {}", any_of(names))
        });
        let found = Self::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| TextError::new(text, &REASON))
    }
}
