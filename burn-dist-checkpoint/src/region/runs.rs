//! Boxes as runs of elements, and what two of them have in common.

use super::Region;
use std::ops::Range;

/// The elements of a region as runs of equal length, ascending.
#[derive(Clone, Debug)]
pub(crate) struct Runs {
    /// Extent and distance in elements of the dims that separate runs, inner first.
    outer: Vec<(usize, usize)>,
    base: usize,
    /// Elements of a run.
    pub len: usize,
    /// How many runs there are.
    pub count: usize,
}

impl Region {
    /// Returns the elements as runs.
    pub(crate) fn runs(&self) -> Runs {
        Runs::new(self)
    }
}

impl Runs {
    fn new(region: &Region) -> Self {
        if region.numel() == 0 {
            return Self {
                outer: Vec::new(),
                base: 0,
                len: 0,
                count: 0,
            };
        }
        let (mut outer, mut base, mut stride, mut len) = (Vec::new(), 0, 1, 1);
        for dim in (0..region.grid.len()).rev() {
            let (size, extent) = (region.grid[dim], region.extent[dim]);
            base += region.start[dim] * stride;
            if outer.is_empty() && len == stride {
                len *= extent;
            } else if extent > 1 {
                outer.push((extent, stride));
            }
            stride *= size;
        }
        Self {
            count: outer.iter().map(|&(extent, _)| extent).product(),
            outer,
            base,
            len,
        }
    }

    /// Returns the elements of a run.
    pub(crate) fn get(&self, index: usize) -> Range<usize> {
        let (mut start, mut rest) = (self.base, index);
        for &(extent, stride) in &self.outer {
            start += rest % extent * stride;
            rest /= extent;
        }
        start..start + self.len
    }

    /// Returns the first run from `from` on that ends after `element`; `count` if there is none.
    fn seek(&self, from: usize, element: usize) -> usize {
        let ends_before = |index: usize| self.get(index).end <= element;
        let (mut low, mut step) = (from, 1);
        // The next one, mostly: look ahead in growing steps before halving.
        while low + step <= self.count && ends_before(low + step - 1) {
            low += step;
            step *= 2;
        }
        let mut high = (low + step).min(self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            match ends_before(middle) {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low
    }
}

/// Elements that two regions share and that follow each other in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copy {
    /// Position of the first within the source region.
    pub source: usize,
    /// Position of the first within the target region.
    pub target: usize,
    /// How many.
    pub len: usize,
}

/// Returns what `source` has of the elements `within` of `target`, ascending in both.
pub(crate) fn overlap<'a>(
    source: &'a Runs,
    target: &'a Runs,
    within: Range<usize>,
) -> impl Iterator<Item = Copy> + 'a {
    let (mut s, mut t) = (0, within.start.checked_div(target.len).unwrap_or(0));
    let first = match t < target.count {
        true => target.get(t).start,
        false => 0,
    };
    s = source.seek(s, first);
    std::iter::from_fn(move || {
        while s < source.count && t < target.count && t * target.len < within.end {
            let (from, mut to) = (source.get(s), target.get(t));
            let begin = to.start;
            // The first and the last run may be cut by `within`.
            to.end = to.end.min(begin + (within.end - t * target.len));
            to.start += within.start.saturating_sub(t * target.len);
            let (low, high) = (from.start.max(to.start), from.end.min(to.end));
            let (source_run, target_run) = (s, t);
            if low >= high {
                match from.end <= to.start {
                    true => s = source.seek(s, to.start),
                    false => t = target.seek(t + 1, from.start),
                }
                continue;
            }
            if from.end <= high {
                s += 1;
            }
            if to.end <= high {
                t += 1;
            }
            return Some(Copy {
                source: source_run * source.len + (low - from.start),
                target: target_run * target.len + (low - begin),
                len: high - low,
            });
        }
        None
    })
}
