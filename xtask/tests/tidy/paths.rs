//! The paths that code names, groups in braces taken apart.

use crate::text::is_word;

/// Returns every path below `root` that `code` names, groups in braces taken apart.
pub(crate) fn paths(code: &str, root: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices(&format!("{root}::")) {
        let before = code[..at].chars().next_back();
        if before.is_none_or(|c| !is_word(c) && c != '$') {
            expand("", &code[at + root.len() + 2..], &mut found);
        }
    }
    found
}

/// Reads one path at the start of `code` into `found`; returns what is left.
fn expand<'a>(prefix: &str, code: &'a str, found: &mut Vec<String>) -> &'a str {
    let code = code.trim_start();
    if let Some(mut rest) = code.strip_prefix('{') {
        loop {
            rest = rest.trim_start().trim_start_matches(',').trim_start();
            if rest.is_empty() {
                return rest;
            }
            if let Some(rest) = rest.strip_prefix('}') {
                return rest;
            }
            let left = expand(prefix, rest, found);
            // `as name`, or something that is no path: on to the next item.
            rest = left.find([',', '}']).map_or("", |at| &left[at..]);
        }
    }
    let end = code.find(|c| !is_word(c) && c != '*').unwrap_or(code.len());
    let path = format!("{prefix}{}", &code[..end]);
    match code[end..].trim_start().strip_prefix("::") {
        Some(rest)
            if rest
                .trim_start()
                .starts_with(|c| is_word(c) || c == '{' || c == '*') =>
        {
            expand(&format!("{path}::"), rest, found)
        }
        _ => {
            found.push(path);
            &code[end..]
        }
    }
}
