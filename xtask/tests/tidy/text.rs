//! Source text: without comments and the insides of texts, and as words.

pub(crate) fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c| !is_word(c))
}

pub(crate) fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

/// Whether what has `#[cfg(condition)]` is compiled for tests only.
pub(crate) fn is_for_tests(condition: &str) -> bool {
    condition == "test" || condition.starts_with("all(test,")
}

/// Returns the code without comments, the insides of texts, and what follows `#[cfg(test)] mod ... {` (the end of a
/// file, here).
pub(crate) fn plain(source: &str) -> String {
    let code = without_text(source);
    let inline_tests = code.match_indices("#[cfg(test)]").find(|(at, mark)| {
        let item = code[at + mark.len()..].trim_start();
        item.starts_with("mod ")
            && item.find('{') < item.find(';').or(Some(usize::MAX))
            && item.contains('{')
    });
    match inline_tests {
        Some((at, _)) => code[..at].to_string(),
        None => code,
    }
}

/// Returns the code without comments and the insides of texts.
pub(crate) fn without_text(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(c) = rest.chars().next() {
        if rest.starts_with("//") {
            rest = rest.find('\n').map_or("", |at| &rest[at..]);
        } else if rest.starts_with("/*") {
            rest = after_block_comment(rest);
        } else if let Some((hashes, inside)) = raw_start(rest, code.chars().next_back()) {
            let end = format!("\"{hashes}");
            rest = inside.find(&end).map_or("", |at| &inside[at + end.len()..]);
            code.push_str("\"\"");
        } else if c == '"' {
            rest = after_escaped(&rest[1..], '"');
            code.push_str("\"\"");
        } else if c == '\'' && is_char_literal(rest) {
            rest = after_escaped(&rest[1..], '\'');
            code.push_str("' '");
        } else {
            code.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    code
}

fn after_block_comment(comment: &str) -> &str {
    let (mut open, mut at) = (0, 0);
    while at < comment.len() {
        let rest = &comment.as_bytes()[at..];
        (open, at) = match rest {
            [b'/', b'*', ..] => (open + 1, at + 2),
            [b'*', b'/', ..] => (open - 1, at + 2),
            _ => (open, at + 1),
        };
        if open == 0 {
            return &comment[at..];
        }
    }
    ""
}

/// Returns the hashes and what follows, if `rest` starts a raw text.
fn raw_start(rest: &str, before: Option<char>) -> Option<(&str, &str)> {
    if before.is_some_and(|c| is_word(c) && c != 'b') {
        return None;
    }
    let rest = rest.strip_prefix('r')?;
    let hashes = rest.len() - rest.trim_start_matches('#').len();
    Some((&rest[..hashes], rest[hashes..].strip_prefix('"')?))
}

fn after_escaped(inside: &str, end: char) -> &str {
    let mut escaped = false;
    for (at, c) in inside.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == end => return &inside[at + c.len_utf8()..],
            _ => {}
        }
    }
    ""
}

/// `'a'` and `'\n'`, but not the lifetime `'a`.
fn is_char_literal(rest: &str) -> bool {
    let mut chars = rest.chars().skip(1);
    match (chars.next(), chars.next()) {
        (Some('\\'), _) => true,
        (_, second) => second == Some('\''),
    }
}
