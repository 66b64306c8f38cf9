//! Guides as documentation of modules: links between their files become links between pages.

use std::fs;
use std::path::Path;

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Error, LitStr};

/// Returns the text of a guide, as a literal.
///
/// `file` is its path in the folder `docs` of the package that is compiled.
pub(crate) fn guide(file: &LitStr) -> TokenStream {
    let folder = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default();
    let path = Path::new(&folder).join("docs").join(file.value());
    match fs::read_to_string(&path) {
        Ok(text) => {
            let text = linked(&text, &file.value());
            quote!(#text)
        }
        Err(error) => {
            let error = format!("{}: {error}", path.display());
            Error::new(file.span(), error).to_compile_error()
        }
    }
}

/// Returns the text of the guide at `file` with links to pages of other guides. What lies outside of their folder has
/// no page, so that only the words of such a link stay.
fn linked(text: &str, file: &str) -> String {
    let mut linked = String::with_capacity(text.len());
    let mut is_code = false;
    for line in text.lines() {
        is_code ^= line.trim_start().starts_with("```");
        match is_code {
            true => linked += line,
            false => linked += &linked_line(line, file),
        }
        linked.push('\n');
    }
    linked
}

fn linked_line(line: &str, file: &str) -> String {
    let mut linked = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("](") {
        let Some((target, after)) = after.split_once(')') else {
            break;
        };
        rest = after;
        if target.contains("://") || target.starts_with('#') {
            linked += &format!("{before}]({target})");
        } else if let Some(page) = page(target, file) {
            linked += &format!("{before}]({page})");
        } else {
            let (around, words) = before.rsplit_once('[').unwrap_or((before, ""));
            linked += &format!("{around}{words}");
        }
    }
    linked + rest
}

/// The guide of guides, whose page is above the others.
const FIRST: &str = "README.md";

/// Returns the page that `target` is in the documentation, seen from the guide at `file`; none if it is no guide.
fn page(target: &str, file: &str) -> Option<String> {
    let (path, anchor) = match target.split_once('#') {
        Some((path, anchor)) => (path, format!("#{anchor}")),
        None => (target, String::new()),
    };
    let mut parts: Vec<&str> = file.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()?),
            "." => {}
            part => parts.push(part),
        }
    }
    let above = if file == FIRST { "" } else { "../" };
    let stem = parts.last()?.strip_suffix(".md")?;
    Some(match parts.join("/") == FIRST {
        true => format!("{above}index.html{anchor}"),
        false => format!("{above}{}/index.html{anchor}", stem.replace('-', "_")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_between_guides_lead_to_their_pages() {
        let cases = [
            ("[a](b-c.md)", "guide/d.md", "[a](../b_c/index.html)"),
            (
                "x [a](../e.md#f), y",
                "guide/d.md",
                "x [a](../e/index.html#f), y",
            ),
            ("[a](guide/b.md)", "e.md", "[a](../b/index.html)"),
            (
                "[a](guide/b.md) [c](e.md)",
                "README.md",
                "[a](b/index.html) [c](e/index.html)",
            ),
            ("[a](../README.md)", "guide/d.md", "[a](../index.html)"),
            ("[a](https://b.c/d.md)", "e.md", "[a](https://b.c/d.md)"),
            ("[a](#b)", "e.md", "[a](#b)"),
            (
                "the [words `of`](../../src) it",
                "guide/d.md",
                "the words `of` it",
            ),
            ("[a](../README.md)", "e.md", "a"),
            ("an open [a](b", "e.md", "an open [a](b"),
        ];
        for (line, file, expected) in cases {
            assert_eq!(linked_line(line, file), expected, "{line} in {file}");
        }
    }

    #[test]
    fn code_stays_as_it_is() {
        let text = "[a](b.md)\n```rust\nx[0](b.md)\n```\n[a](b.md)\n";
        let found = linked(text, "e.md");
        let lines: Vec<&str> = found.lines().collect();
        assert_eq!(lines[2], "x[0](b.md)");
        assert_eq!([lines[0], lines[4]], ["[a](../b/index.html)"; 2]);
    }
}
