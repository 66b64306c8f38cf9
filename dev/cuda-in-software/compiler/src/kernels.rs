//! The kernels of a text: what the compiler adds for each, and the arrays whose size a launch gives.

/// A kernel of a text.
#[derive(Debug, PartialEq)]
pub(crate) struct Kernel<'a> {
    pub(crate) name: &'a str,
    /// What `__launch_bounds__` says first.
    pub(crate) threads: Option<&'a str>,
}

/// Returns the kernels that a text defines.
pub(crate) fn kernels(text: &str) -> Vec<Kernel<'_>> {
    let mut found: Vec<Kernel> = Vec::new();
    for (at, word) in text.match_indices("__global__") {
        let mut rest = &text[at + word.len()..];
        let mut threads = None;
        let name = loop {
            rest = rest.trim_start();
            let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_'));
            let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
            if word.is_empty() {
                break None;
            }
            let after = after.trim_start();
            if word == "__launch_bounds__" || word == "__cluster_dims__" {
                let (inside, after) = parenthesised(after);
                if word == "__launch_bounds__" {
                    threads = inside.split(',').next().map(str::trim);
                }
                rest = after;
            } else if after.starts_with('(') {
                break Some(word);
            } else {
                rest = after;
            }
        };
        if let Some(name) = name
            && found.iter().all(|kernel| kernel.name != name)
        {
            found.push(Kernel { name, threads });
        }
    }
    found
}

/// Splits a text that starts with a parenthesis into what is in it and what follows.
fn parenthesised(text: &str) -> (&str, &str) {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return match at {
                0 => ("", text),
                at => (&text[1..at], &text[at + 1..]),
            };
        }
    }
    ("", "")
}

/// Makes pointers into the driver's memory of arrays `extern __shared__`, whose size the launch gives.
pub(crate) fn with_shared(text: &str) -> String {
    const WORDS: &str = "extern __shared__";
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(WORDS) {
        let (before, declared) = rest.split_at(at);
        let end = declared.find(';').unwrap_or(declared.len());
        let (declared, after) = declared.split_at(end);
        out += before;
        out += &pointer(&declared[WORDS.len()..]);
        rest = after;
    }
    out + rest
}

/// Returns the pointer for a declaration like `__align__(16) uint8 name[]`.
fn pointer(declared: &str) -> String {
    let mut declared = declared.trim();
    for word in ["__align__", "alignas"] {
        if let Some(after) = declared.strip_prefix(word) {
            declared = parenthesised(after.trim_start()).1.trim();
        }
    }
    let declared = declared
        .trim_end_matches(']')
        .trim_end()
        .trim_end_matches('[');
    let declared = declared.trim_end();
    let split = declared.rfind(|c: char| !(c.is_alphanumeric() || c == '_'));
    let (kind, name) = declared.split_at(split.map_or(0, |at| at + 1));
    format!("{kind}* {name} = static_cast<{kind}*>(software::shared())")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_found_with_their_bounds() {
        let text = "extern \"C\" __global__ void __launch_bounds__(16 * (1 + 1), 2)add (\n float* x) {}\n\
            extern \"C\" __global__ void\nzero(float* x);";
        let found = kernels(text);
        let add = Kernel {
            name: "add",
            threads: Some("16 * (1 + 1)"),
        };
        let zero = Kernel {
            name: "zero",
            threads: None,
        };
        assert_eq!(found, [add, zero]);
    }

    #[test]
    fn shared_arrays_become_pointers() {
        let text = "a; extern __shared__ __align__(16) unsigned char x[]; b";
        let made = "a; unsigned char * x = static_cast<unsigned char *>(software::shared()); b";
        assert_eq!(with_shared(text), made);
    }
}
