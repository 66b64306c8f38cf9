//! Inputs of an attention: sizes, queries, keys and values, and which of them see each other.

use super::block::Real;
use super::dropout::Dropout;
use super::view::View;

/// Sizes of an attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sizes {
    /// Batch elements.
    pub batch: usize,
    /// Heads of keys and values.
    pub heads: usize,
    /// Query heads that share one of these.
    pub group: usize,
    /// Queries.
    pub queries: usize,
    /// Keys, and values.
    pub keys: usize,
    /// Elements of a query and of a key.
    pub width: usize,
    /// Elements of a value.
    pub value_width: usize,
}

/// Which keys a query sees, by position.
///
/// The position of query `i` is `i * step + offset`, that of key `j` is `j`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Visible {
    /// True if a query sees no key behind its own position.
    pub causal: bool,
    /// How many keys a query sees at most, up to its own position: those before are hidden.
    pub window: Option<usize>,
    /// The position of the first query.
    pub offset: isize,
    /// How many positions lie between a query and the next.
    pub step: usize,
}

impl Default for Visible {
    fn default() -> Self {
        Self {
            causal: false,
            window: None,
            offset: 0,
            step: 1,
        }
    }
}

impl Visible {
    /// Returns the keys that query `i` may see, out of `keys`.
    pub(super) fn of(&self, query: usize, keys: usize) -> std::ops::Range<usize> {
        let position = (query * self.step) as isize + self.offset;
        let end = match self.causal {
            true => (position + 1).clamp(0, keys as isize) as usize,
            false => keys,
        };
        let start = match self.window {
            Some(window) => (position + 1 - window as isize).clamp(0, end as isize) as usize,
            None => 0,
        };
        start..end
    }

    /// Returns how many pairs of a query and a key that it may see there are.
    ///
    /// ```
    /// use burn_dist_kernels::attention::Visible;
    /// let causal = Visible { causal: true, ..Visible::default() };
    /// assert_eq!(causal.pairs(4, 4), 1 + 2 + 3 + 4);
    /// assert_eq!(Visible { offset: 2, ..causal }.pairs(2, 4), 3 + 4);
    /// assert_eq!(Visible { offset: 1, step: 2, ..causal }.pairs(2, 4), 2 + 4);
    /// ```
    pub fn pairs(&self, queries: usize, keys: usize) -> u128 {
        // The sum over queries of their position and `further` more, at least 0 and at most all keys.
        let ends = |further: i128| {
            let first = self.offset as i128 + further;
            let (queries, keys, step) = (queries as i128, keys as i128, self.step as i128);
            // The first query at or behind a position.
            let behind = |position: i128| {
                let steps = (position - first + step - 1).div_euclid(step);
                steps.clamp(0, queries)
            };
            let (start, end) = (behind(0), behind(keys));
            let rising = (end - start) * (2 * first + step * (start + end - 1)) / 2;
            rising + (queries - end) * keys
        };
        let up_to = match self.causal {
            true => ends(1),
            false => queries as i128 * keys as i128,
        };
        let before = self.window.map_or(0, |window| ends(1 - window as i128));
        (up_to - before) as u128
    }

    /// Returns the keys that at least one of these queries may see.
    pub(super) fn of_any(
        &self,
        queries: std::ops::Range<usize>,
        keys: usize,
    ) -> std::ops::Range<usize> {
        match queries.is_empty() {
            true => 0..0,
            false => self.of(queries.start, keys).start..self.of(queries.end - 1, keys).end,
        }
    }
}

/// Queries, keys and values, and which of them see each other.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a, T> {
    /// Sizes.
    pub sizes: Sizes,
    /// Queries, `[batch, heads, group, queries, width]`.
    pub q: View<'a, T, 5>,
    /// Keys, `[batch, heads, keys, width]`.
    pub k: View<'a, T, 4>,
    /// Values, `[batch, heads, keys, value_width]`.
    pub v: View<'a, T, 4>,
    /// Nonzero where a score is hidden, `[batch, heads, group, queries, keys]`.
    pub mask: Option<View<'a, u8, 5>>,
    /// Terms that are added to scores, `[batch, heads, group, queries, keys]`.
    pub bias: Option<View<'a, T, 5>>,
    /// The factor of products.
    pub scale: T,
    /// The keys that are visible by position.
    pub visible: Visible,
    /// Which weights are dropped.
    pub dropout: Option<Dropout>,
}

impl<T: Real> Inputs<'_, T> {
    /// # Panics
    /// If a shape is not that of the sizes.
    pub(super) fn check(&self) {
        let Sizes {
            batch,
            heads,
            group,
            queries,
            keys,
            width,
            value_width,
        } = self.sizes;
        let pairs = [batch, heads, group, queries, keys];
        assert_eq!(
            self.q.shape(),
            [batch, heads, group, queries, width],
            "queries"
        );
        assert_eq!(self.k.shape(), [batch, heads, keys, width], "keys");
        assert_eq!(self.v.shape(), [batch, heads, keys, value_width], "values");
        assert!(self.mask.is_none_or(|mask| mask.shape() == pairs), "mask");
        assert!(self.bias.is_none_or(|bias| bias.shape() == pairs), "bias");
    }
}
