//! The numbers that elements of a part have in the whole tensor.

use std::ops::Range;

/// How the elements of a part are numbered in the whole tensor, row-major, where numbers are evenly apart along each
/// dim: of a box it is so, and of most blocks of factored dims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbering {
    /// The number of the first element.
    pub first: usize,
    /// How far the numbers of neighbours along each dim of the part are apart; 0 along dims of size one.
    pub strides: Vec<usize>,
}

impl Numbering {
    /// Returns the numbering of a part of this shape, whose elements have the numbers of `runs`, in order. `None` if
    /// there is none, or no element.
    ///
    /// Takes time linear in the runs.
    ///
    /// ```
    /// use burn_dist_plan::region::Numbering;
    ///
    /// // The last two columns of [3, 4].
    /// let found = Numbering::new(&[3, 2], &[2..4, 6..8, 10..12]);
    /// assert_eq!(found, Some(Numbering { first: 2, strides: vec![4, 1] }));
    /// assert_eq!(found.unwrap().number(&[3, 2], 3), 7);
    /// assert_eq!(Numbering::new(&[3, 2], &[2..4, 6..8, 9..11]), None);
    /// ```
    pub fn new(shape: &[usize], runs: &[Range<usize>]) -> Option<Self> {
        let count: usize = shape.iter().product();
        let mut found = 0;
        let starts = runs.iter().map(|run| {
            found += run.len();
            found - run.len()
        });
        let starts: Vec<usize> = starts.collect();
        if count == 0 || found != count {
            return None;
        }
        // The last run that begins before, or with, an element is the one that has it: those behind are not empty.
        let number = |element: usize| {
            let run = starts.partition_point(|start| *start <= element) - 1;
            runs[run].start + element - starts[run]
        };
        let first = number(0);
        let mut strides = vec![0; shape.len()];
        let mut apart = 1;
        for (stride, size) in strides.iter_mut().zip(shape).rev() {
            if *size > 1 {
                *stride = number(apart).checked_sub(first)?;
            }
            apart *= size;
        }
        let numbering = Self { first, strides };
        numbering.is_of(shape, runs).then_some(numbering)
    }

    /// Returns the number of an element of a part of this shape.
    pub fn number(&self, shape: &[usize], element: usize) -> usize {
        let (mut number, mut rest) = (self.first, element);
        for (stride, size) in self.strides.iter().zip(shape).rev() {
            number += rest % size * stride;
            rest /= size;
        }
        number
    }

    /// Returns the largest number of a part of this shape.
    pub fn last(&self, shape: &[usize]) -> usize {
        let dims = self.strides.iter().zip(shape);
        let reach = dims.map(|(stride, size)| stride * size.saturating_sub(1));
        self.first + reach.sum::<usize>()
    }

    /// Returns whether elements have the numbers of `runs`, of which there are as many.
    fn is_of(&self, shape: &[usize], runs: &[Range<usize>]) -> bool {
        // The inner dims along which numbers follow each other.
        let (mut inner, mut len) = (shape.len(), 1);
        for (stride, size) in self.strides.iter().zip(shape).rev() {
            if *size > 1 && *stride != len {
                break;
            }
            (inner, len) = (inner - 1, len * size);
        }
        let mut runs = runs.iter().cloned();
        let mut run = 0..0;
        let blocks: usize = shape[..inner].iter().product();
        (0..blocks).all(|block| {
            let mut at = self.number(shape, block * len);
            let end = at + len;
            while at < end {
                while run.is_empty() {
                    let Some(next) = runs.next() else {
                        return false;
                    };
                    run = next;
                }
                if run.start != at {
                    return false;
                }
                at = end.min(run.end);
                run.start = at;
            }
            true
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Runs of numbers, as long as can be.
    fn runs_of(numbers: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for number in numbers {
            match runs.last_mut() {
                Some(run) if run.end == number => run.end += 1,
                _ => runs.push(number..number + 1),
            }
        }
        runs
    }

    /// The numbers of a part.
    fn numbers(numbering: &Numbering, shape: &[usize]) -> Vec<usize> {
        let elements = 0..shape.iter().product();
        elements
            .map(|element| numbering.number(shape, element))
            .collect()
    }

    proptest! {
        /// Whatever is found numbers elements as runs do, and boxes are found.
        #[test]
        fn boxes_are_numbered(
            dims in proptest::collection::vec((1usize..5, 1usize..5, 0usize..4), 1..4),
            moved in proptest::option::of(any::<(usize, bool)>()),
        ) {
            let shape: Vec<usize> = dims.iter().map(|(size, ..)| *size).collect();
            // A box of a tensor that is larger, before and behind.
            let whole: Vec<usize> = dims.iter().map(|(size, more, before)| size + more + before).collect();
            let mut strides = vec![1; shape.len()];
            for dim in (1..shape.len()).rev() {
                strides[dim - 1] = strides[dim] * whole[dim];
            }
            let first = strides.iter().zip(&dims).map(|(stride, (.., before))| stride * before).sum();
            let of_box = Numbering { first, strides };
            let mut expected = numbers(&of_box, &shape);
            // One of them elsewhere.
            let is_box = match moved {
                Some((at, is_far)) if expected.len() > 2 => {
                    let at = at % expected.len();
                    expected[at] += if is_far { 1000 } else { 1 };
                    false
                }
                _ => true,
            };
            let runs = runs_of(expected.iter().copied());
            let found = Numbering::new(&shape, &runs);
            prop_assert!(found.is_some() || !is_box);
            if let Some(found) = found {
                prop_assert_eq!(numbers(&found, &shape), &expected[..]);
                prop_assert_eq!(found.last(&shape), *expected.last().unwrap());
            }
            // In one dim too, where the numbers are.
            if let Some(flat) = Numbering::new(&[expected.len()], &runs) {
                prop_assert_eq!(numbers(&flat, &[expected.len()]), expected);
            }
        }
    }

    #[test]
    fn what_has_no_element_or_too_few_has_no_numbering() {
        assert_eq!(Numbering::new(&[0, 3], &[]), None);
        assert_eq!(Numbering::new(&[2, 3], std::slice::from_ref(&(0..5))), None);
        let one = Numbering::new(&[], std::slice::from_ref(&(7..8)));
        assert_eq!(one.map(|one| one.first), Some(7));
    }
}
