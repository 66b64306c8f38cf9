//! Groups of ranks that are checked: errors name groups, and so this is above both.

use super::Group;
use crate::CommError;
use burn_dist_mesh::Rank;

impl Group {
    /// Returns the group of `ranks`, in this order.
    ///
    /// # Errors
    /// [`CommError::EmptyGroup`] and [`CommError::DuplicateRank`].
    pub fn new(ranks: Vec<Rank>) -> Result<Self, CommError> {
        if ranks.is_empty() {
            return Err(CommError::EmptyGroup);
        }
        let mut sorted = ranks.clone();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(CommError::DuplicateRank {
                rank: pair[0],
                ranks,
            });
        }
        Ok(Self::of_distinct(ranks))
    }

    /// Returns the group of ranks `0..num_ranks`.
    ///
    /// # Errors
    /// [`CommError::EmptyGroup`] if `num_ranks` is 0.
    pub fn world(num_ranks: usize) -> Result<Self, CommError> {
        Self::new((0..num_ranks as u32).map(Rank).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_keeps_its_order_and_refuses_duplicates() {
        let group = Group::new(vec![Rank(3), Rank(0)]).unwrap();
        assert_eq!(group.to_string(), "[3, 0]");
        assert_eq!(group.member(Rank(0)), Some(1));
        assert_eq!(group.member(Rank(1)), None);
        assert_ne!(group, Group::new(vec![Rank(0), Rank(3)]).unwrap());
        assert_eq!(group, Group::new(vec![Rank(3), Rank(0)]).unwrap());
        assert!(matches!(Group::new(vec![]), Err(CommError::EmptyGroup)));
        let error = Group::new(vec![Rank(2), Rank(1), Rank(2)]).unwrap_err();
        assert!(error.to_string().contains("rank 2"), "{error}");
    }
}
