//! Where to close the windows of a program that does not read.
//!
//! A window is as long as a step: planned in pieces, a step would lose its checkpointing and the accumulation of its
//! gradients. A program that reads every step says where they end. One that never reads is cut where it repeats, at the
//! place in its loop where the least is alive (between two steps, where activations are gone), so that its windows are
//! equal and their plans are known. What each pass leaves and the program keeps (losses, outputs of an evaluation)
//! counts for nothing there: memory grows by that alone.

use std::hash::{BuildHasher, Hash, Hasher};

use burn_ir::{OperationIr, TensorId, TensorIr, TensorStatus};
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet, FxHasher};

use burn_dist_plan::op::Op;
use burn_dist_plan::rule::OpRule;

use crate::ops::{OpReader, Recorded, visit_ref};

/// A log is looked at for repetitions from this many operations on, and whenever it has doubled.
const OPS_MIN: usize = 4096;
/// The same for the bytes of data that have entered since the last window.
const BYTES_MIN: u64 = 64 << 20;
/// From this many operations on, a loop is cut that might be part of a longer one.
const OPS_SURE: usize = 1 << 16;
/// The same for bytes of data.
const BYTES_SURE: u64 = 1 << 30;
/// Places in a loop that are looked at, of those where the least is alive.
const ENDS_MAX: usize = 16;
/// Short loops are run several times per window, up to so many operations ...
const WINDOW_OPS: usize = 256;
/// ... and so many bytes of data.
const WINDOW_BYTES: u64 = 16 << 20;

/// Finds out where a program repeats.
pub(super) struct Repeats {
    ops_next: usize,
    bytes_next: u64,
    /// The longest window that a read has closed: a step may be as long.
    longest: usize,
    /// Digests of the operations of a window, once they are known.
    window: Option<Vec<u64>>,
}

impl Default for Repeats {
    fn default() -> Self {
        Self {
            ops_next: OPS_MIN,
            bytes_next: BYTES_MIN,
            longest: 0,
            window: None,
        }
    }
}

impl Repeats {
    /// Returns whether [`Self::cut`] should look at a log of `ops` operations, for which `bytes` of data have entered.
    #[inline]
    pub(super) fn is_due(&self, ops: usize, bytes: u64) -> bool {
        ops >= self.ops_next || bytes >= self.bytes_next
    }

    /// Returns after how many operations to close the window, if it should be closed. `is_host` tells what is on the
    /// host, `may_end` after how many operations a window may end.
    pub(super) fn cut(
        &mut self,
        ops: &[Recorded],
        dropped: &[TensorId],
        bytes: u64,
        is_host: impl Fn(TensorId) -> bool,
        may_end: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let digests: Vec<u64> = ops.iter().map(digest).collect();
        if let Some(window) = &self.window {
            if let Some(start) = phase(window, &digests).filter(|start| may_end(*start)) {
                return Some(start);
            }
            // The program does something else now.
            self.window = None;
        }
        let found = repetition(&digests).and_then(|period| {
            let lives = Lives::new(ops, dropped, is_host);
            let is_long = ops.len() >= OPS_SURE;
            let end = |period| {
                let sure = is_long || bytes >= BYTES_SURE;
                let end = lives.boundary(ops, period, sure, &may_end);
                // Layers leave activations behind. They take no data in, which a loop does that fills a log with it.
                let sure = is_long || bytes >= BYTES_SURE && lives.takes_data(ops.len() - period);
                let end =
                    end.or_else(|| lives.boundary_beside_kept(ops, period, sure, &may_end))?;
                Some((period, end))
            };
            // A pass that does the same in each of its layers, and nothing else, repeats with every layer.
            end(period).or_else(|| end(lives.period(&digests).filter(|pass| *pass > period)?))
        });
        let Some((period, end)) = found else {
            self.ops_next = (2 * ops.len()).max(self.ops_next);
            self.bytes_next = (2 * bytes).max(self.bytes_next);
            return None;
        };
        let bytes_of_period = (bytes * period as u64 / ops.len() as u64).max(1);
        let times = (WINDOW_OPS / period).min((WINDOW_BYTES / bytes_of_period) as usize);
        let window = digests[end - period..end].repeat(times.max(1));
        self.ops_next = window.len();
        self.bytes_next = u64::MAX;
        self.window = Some(window);
        Some(end)
    }

    /// Notes that a window of `ops` operations was closed for another reason.
    pub(super) fn closed(&mut self, ops: usize) {
        self.longest = self.longest.max(ops);
        if self.window.is_none() {
            self.ops_next = OPS_MIN.max(2 * self.longest);
            self.bytes_next = BYTES_MIN;
        }
    }
}

/// Hashes what an operation does, but for the ids of its tensors and its scalars.
fn digest(op: &Recorded) -> u64 {
    struct Shapes(FxHasher);
    impl OpReader<'_> for Shapes {
        fn input(&mut self, tensor: &TensorIr) {
            self.output(tensor);
        }
        fn output(&mut self, tensor: &TensorIr) {
            tensor.shape.hash(&mut self.0);
            tensor.dtype.hash(&mut self.0);
        }
    }
    let mut shapes = Shapes(FxHasher::default());
    op.name().hash(&mut shapes.0);
    match op {
        Recorded::Burn(OperationIr::Custom(custom)) => custom.id.hash(&mut shapes.0),
        Recorded::Burn(_) => {}
        Recorded::Mark(marked) => marked.mark.hash(&mut shapes.0),
        Recorded::Custom(custom) => custom.hash_definition(&mut shapes.0),
        Recorded::Float8(float8) => float8.op.hash(&mut shapes.0),
        Recorded::Int8(int8) => int8.op.hash(&mut shapes.0),
    }
    visit_ref(op, &mut shapes);
    shapes.0.finish()
}

/// Returns where the next `window` begins in a log of its length: at its end if the log is a window, earlier if it
/// began in the middle of one, and nowhere if it is something else.
fn phase(window: &[u64], log: &[u64]) -> Option<usize> {
    if window.len() != log.len() {
        return None;
    }
    if window == log {
        return Some(log.len());
    }
    // How much of the log from each place on begins the window, and of the window, the log.
    let begins_window = prefix_matches(&[window, log].concat());
    let begins_log = prefix_matches(&[log, window].concat());
    let size = log.len();
    (1..size).find(|start| {
        begins_window[size + start] >= size - start && begins_log[2 * size - start] >= *start
    })
}

/// Returns the period with which the end of `digests` repeats three times at least, over as much of it as possible:
/// half of it, or a few equal operations in a row would do.
pub(super) fn repetition(digests: &[u64]) -> Option<usize> {
    let reversed: Vec<u64> = digests.iter().rev().copied().collect();
    let matches = prefix_matches(&reversed);
    let covered = |period: usize| period + matches[period];
    (1..digests.len() / 2)
        .filter(|period| matches[*period] >= 2 * period && 2 * covered(*period) >= digests.len())
        .max_by_key(|period| (covered(*period), std::cmp::Reverse(*period)))
}

/// Returns for each position how many elements from there on equal those from the start on (the Z function).
fn prefix_matches(text: &[u64]) -> Vec<usize> {
    let mut matches = vec![0; text.len()];
    let (mut left, mut right) = (0, 0);
    for at in 1..text.len() {
        let mut length = match at < right {
            true => matches[at - left].min(right - at),
            false => 0,
        };
        while at + length < text.len() && text[length] == text[at + length] {
            length += 1;
        }
        matches[at] = length;
        if at + length > right {
            (left, right) = (at, at + length);
        }
    }
    matches
}

/// From where to where in a log a tensor lives.
struct Life {
    born: usize,
    last: usize,
    dead: bool,
    is_host: bool,
    bytes: u64,
}

/// The tensors of a log.
struct Lives {
    of: FxHashMap<TensorId, Life>,
    /// Bytes alive before each operation, and at the end.
    bytes: Vec<u64>,
    /// The same without what outlives the log.
    passing: Vec<u64>,
}

impl Lives {
    fn new(ops: &[Recorded], dropped: &[TensorId], is_host: impl Fn(TensorId) -> bool) -> Self {
        struct Reader<'a, F> {
            at: usize,
            lives: &'a mut FxHashMap<TensorId, Life>,
            dropped: &'a FxHashSet<TensorId>,
            is_host: F,
        }
        impl<F: Fn(TensorId) -> bool> Reader<'_, F> {
            fn see(&mut self, tensor: &TensorIr, born: usize, is_host: bool) {
                let life = self.lives.entry(tensor.id).or_insert_with(|| Life {
                    born,
                    last: born,
                    dead: self.dropped.contains(&tensor.id),
                    is_host,
                    bytes: (tensor.shape.num_elements() * tensor.dtype.size()) as u64,
                });
                life.last = self.at;
                life.dead |= tensor.status == TensorStatus::ReadWrite;
            }
        }
        impl<F: Fn(TensorId) -> bool> OpReader<'_> for Reader<'_, F> {
            fn input(&mut self, tensor: &TensorIr) {
                // Data waits on the host until it is used.
                let is_host = (self.is_host)(tensor.id);
                let born = match is_host {
                    true => self.at + 1,
                    false => 0,
                };
                self.see(tensor, born, is_host);
            }
            fn output(&mut self, tensor: &TensorIr) {
                self.see(tensor, self.at + 1, false);
            }
        }
        let dropped: FxHashSet<TensorId> = dropped.iter().copied().collect();
        let mut of = FxHashMap::default();
        for (at, op) in ops.iter().enumerate() {
            let mut reader = Reader {
                at,
                lives: &mut of,
                dropped: &dropped,
                is_host: &is_host,
            };
            visit_ref(op, &mut reader);
        }
        let alive = |is_counted: fn(&Life) -> bool| {
            let mut steps = vec![0i64; ops.len() + 2];
            for life in of.values().filter(|life| is_counted(life)) {
                steps[life.born] += life.bytes as i64;
                if life.dead {
                    steps[(life.last + 1).max(life.born)] -= life.bytes as i64;
                }
            }
            let bytes = steps[..=ops.len()].iter().scan(0, |alive, step| {
                *alive += step;
                Some(*alive as u64)
            });
            bytes.collect()
        };
        let (bytes, passing) = (alive(|_| true), alive(|life| life.dead));
        Self { of, bytes, passing }
    }

    /// Returns the period with which not only operations repeat but also what passes from each to the next.
    fn period(&self, digests: &[u64]) -> Option<usize> {
        // Of what was made last, the log does not tell yet that it dies.
        let told = digests.len() / 4 * 3;
        let both = digests[..told].iter().zip(&self.passing[1..]);
        let both = both.map(|both| FxBuildHasher.hash_one(both));
        repetition(&both.collect::<Vec<_>>())
    }

    /// Returns where the last pass of a loop of `period` operations ends: where the least is alive, and as much as a
    /// pass and two passes before (a loop over layers leaves activations behind, or takes them up).
    ///
    /// A loop over microbatches leaves the same as well: sums of gradients, which it only adds to. So a pass must have
    /// used up something more than that, as a step does with the parameters; unless `sure` says that no step is so
    /// long.
    fn boundary(
        &self,
        ops: &[Recorded],
        period: usize,
        sure: bool,
        may_end: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let alive = |at: usize| self.bytes.get(at).copied();
        self.end_of_pass(ops, period, sure, may_end, alive)
    }

    /// Returns the same as [`Self::boundary`] for a loop whose passes leave something that the program keeps. What is
    /// kept outlives the log; what passes from one step to the next does not, but for that of the last one: so it is
    /// asked of the place a pass before how much is alive there. A loop that takes up in reverse what another one has
    /// left has less of it with every pass.
    fn boundary_beside_kept(
        &self,
        ops: &[Recorded],
        period: usize,
        sure: bool,
        may_end: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let alive = |at: usize| self.passing.get(at.checked_sub(period)?).copied();
        self.end_of_pass(ops, period, sure, may_end, alive)
    }

    /// Returns the end of a pass, with `alive` bytes at each place.
    fn end_of_pass(
        &self,
        ops: &[Recorded],
        period: usize,
        sure: bool,
        may_end: impl Fn(usize) -> bool,
        alive: impl Fn(usize) -> Option<u64>,
    ) -> Option<usize> {
        let range = ops.len() + 1 - period..=ops.len();
        let range = range.filter(|at| may_end(*at));
        let least = range.clone().filter_map(&alive).min()?;
        let is_least = |at: Option<usize>| at.and_then(&alive) == Some(least);
        let is_steady = |end: &usize| {
            let before = [end.checked_sub(period), end.checked_sub(2 * period)];
            is_least(Some(*end)) && before.into_iter().all(is_least)
        };
        let mut ends = range.rev().filter(is_steady).take(ENDS_MAX);
        ends.find(|end| sure || self.uses_up(&ops[..*end], *end - period))
    }

    /// Returns whether data enters from an operation on.
    fn takes_data(&self, start: usize) -> bool {
        let mut lives = self.of.values();
        lives.any(|life| life.is_host && life.born > start)
    }

    /// Returns whether an operation from `start` on that is more than elementwise uses up something which was there
    /// before.
    fn uses_up(&self, ops: &[Recorded], start: usize) -> bool {
        let used_up = |id: TensorId| {
            let life = &self.of[&id];
            life.dead && life.born <= start && (start..ops.len()).contains(&life.last)
        };
        let mut pass = ops[start..].iter();
        pass.any(|op| !is_elementwise(op) && op.reads().any(|input| used_up(input.id)))
    }
}

fn is_elementwise(op: &Recorded) -> bool {
    matches!(op.rule(), OpRule::Factors(rule) if rule.elementwise)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_repetition_is_found() {
        // Two layers forward and backward and an update, three times, after a beginning of its own.
        let step = [1, 2, 1, 2, 3, 4, 5, 4, 5, 6];
        let mut program = vec![9, 8, 7];
        for _ in 0..4 {
            program.extend(step);
        }
        assert_eq!(repetition(&program), Some(10));
        program.extend([1, 2, 1]);
        assert_eq!(repetition(&program), Some(10));
        assert_eq!(repetition(&[1, 2, 3, 4, 5, 6]), None);
        assert_eq!(repetition(&[7, 7, 7, 7]), Some(1));
        assert_eq!(repetition(&[1, 2, 3, 4, 5, 6, 7, 8, 7, 7, 7]), None);
    }

    #[test]
    fn prefix_matches_are_those_of_a_plain_search() {
        let text: Vec<u64> = (0..200u64).map(|n| (n * n / 7) % 3).collect();
        let plain: Vec<usize> = (0..text.len())
            .map(|at| match at {
                0 => 0,
                at => text[at..]
                    .iter()
                    .zip(&text)
                    .take_while(|(a, b)| a == b)
                    .count(),
            })
            .collect();
        assert_eq!(prefix_matches(&text), plain);
    }

    #[test]
    fn a_log_that_began_within_a_window_is_cut_where_the_next_one_begins() {
        let window = [1, 2, 3, 4];
        assert_eq!(phase(&window, &[1, 2, 3, 4]), Some(4));
        assert_eq!(phase(&window, &[3, 4, 1, 2]), Some(2));
        assert_eq!(phase(&window, &[3, 4, 1, 3]), None);
        assert_eq!(phase(&window, &[1, 2, 3]), None);
    }
}
