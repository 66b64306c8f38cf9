//! Paths near to one that does not exist.

pub(super) use burn_dist_plan::pattern::Pattern;

/// Sorts `paths` by edit distance to `word`, keeping their order among equals.
pub(super) fn closest_first(word: &str, paths: &mut [String]) {
    paths.sort_by_cached_key(|path| distance(word, path));
}

/// Levenshtein distance in bytes.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let above = row[j + 1];
            row[j + 1] = (diagonal + usize::from(x != y)).min(1 + above.min(row[j]));
            diagonal = above;
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closest_is_first() {
        let mut paths: Vec<String> = ["norm", "layers.*.attention.wk", "layers.*.attention.wq"]
            .map(Into::into)
            .to_vec();
        closest_first("layers.*.attn.wq", &mut paths);
        assert_eq!(paths[0], "layers.*.attention.wq");
        assert_eq!(paths[2], "norm");
    }
}
