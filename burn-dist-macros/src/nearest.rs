//! The known word nearest to a mistyped one.

/// Returns the candidate with the smallest edit distance to `word`, if it is near enough to be what was meant.
pub(crate) fn nearest<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let (distance, candidate) = candidates
        .iter()
        .map(|candidate| (distance(word, candidate), *candidate))
        .min_by_key(|(distance, _)| *distance)?;
    // A third of the word mistyped is still a typo; more is another word.
    (distance <= 1 + word.chars().count() / 3).then_some(candidate)
}

/// Levenshtein distance in characters.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let above = row[j + 1];
            row[j + 1] = (diagonal + usize::from(x != *y)).min(1 + above.min(row[j]));
            diagonal = above;
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        assert_eq!(distance("colwise", "colwise"), 0);
        assert_eq!(distance("colwize", "colwise"), 1);
        assert_eq!(distance("", "unit"), 4);
        assert_eq!(distance("uint", "unit"), 2);
    }

    #[test]
    fn only_near_words_are_suggested() {
        let keys = ["colwise", "rowwise", "unit"];
        assert_eq!(nearest("colwize", &keys), Some("colwise"));
        assert_eq!(nearest("uint", &keys), Some("unit"));
        assert_eq!(nearest("shard_everything", &keys), None);
    }
}
