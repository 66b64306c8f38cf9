//! Links between texts of Markdown: each leads to a file that is there, and to a heading that it has.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::workspace::{read, workspace};

/// Folders that are not texts of this repository.
const NOT_READ: [&str; 2] = ["target", ".git"];

/// Adds the texts in a folder.
fn texts(folder: &Path, found: &mut Vec<PathBuf>) {
    let entries =
        fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for entry in entries {
        let path = entry.expect("a readable folder").path();
        // A linked file is read where it lies.
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            if !NOT_READ.iter().any(|name| path.ends_with(name)) {
                texts(&path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

/// Returns the lines of a text that are no code, each with its number from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    let lines = text.lines().enumerate();
    lines.filter_map(move |(number, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (!is_code && !is_fence).then_some((number + 1, line))
    })
}

/// Returns the names by which links find the headings of a text.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for (_, line) in prose(text) {
        let Some(heading) = line.trim_start_matches('#').strip_prefix(' ') else {
            continue;
        };
        if !line.starts_with('#') {
            continue;
        }
        // The words of a link, not where it leads.
        let heading = links(heading).fold(heading.to_string(), |heading, target| {
            heading.replace(&format!("]({target})"), "")
        });
        let name = heading.trim().to_lowercase();
        let name = name.chars().filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
            _ => None,
        });
        anchors.insert(name.collect());
    }
    anchors
}

/// Returns where the links of a line lead.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let pieces = line.split("](").skip(1);
    pieces.filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
}

/// Returns what is wrong with the links of the text at `path`.
fn wrong(path: &Path, text: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for (number, line) in prose(text) {
        for target in links(line) {
            // Elsewhere, an item of a crate, or code.
            if target.contains("::") || target.contains("://") || target.contains(' ') {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = match file {
                "" => path.to_path_buf(),
                file => path.with_file_name("").join(file),
            };
            let is_there = match anchor {
                "" => file.exists(),
                anchor if file == path => anchors(text).contains(anchor),
                anchor => file.exists() && anchors(&read(&file)).contains(anchor),
            };
            if !is_there {
                wrong.push(format!("{}:{number}: {target}", path.display()));
            }
        }
    }
    wrong
}

#[test]
fn links_lead_somewhere() {
    let mut files = Vec::new();
    texts(&workspace(), &mut files);
    assert!(files.len() > 40, "{} texts", files.len());
    let wrong: Vec<String> = files
        .iter()
        .flat_map(|path| wrong(path, &read(path)))
        .collect();
    assert!(wrong.is_empty(), "links to nothing:\n{}", wrong.join("\n"));
}

#[test]
fn planted_links_to_nothing_are_found() {
    let text = "# A `b` c\n[a](#a-b-c) [b](#b)\n```\n[c](nothing.md)\n```\n[d](nothing.md#e) [f](https://g.h/i)\n";
    let path = workspace().join("planted.md");
    let found = wrong(&path, text);
    let found: Vec<&str> = found
        .iter()
        .map(|line| line.rsplit_once("planted.md:").expect("a path").1)
        .collect();
    assert_eq!(found, ["2: #b", "6: nothing.md#e"]);
    let heading = "## [Words](of-a-link.md), and more (1.0)\n";
    assert!(
        anchors(heading).contains("words-and-more-10"),
        "{:?}",
        anchors(heading)
    );
}

/// Guides are found where people look: in the book, in the table of guides, in the documentation of the front.
#[test]
fn every_guide_is_listed() {
    let docs = workspace().join("docs");
    let mut files = Vec::new();
    texts(&docs, &mut files);
    let (summary, index) = (
        read(&docs.join("SUMMARY.md")),
        read(&docs.join("README.md")),
    );
    let modules = read(&workspace().join("burn-dist/src/guides.rs"));
    let mut wrong = Vec::new();
    for path in files {
        let name = path.strip_prefix(&docs).expect("a file of the folder");
        let name = name.to_str().expect("UTF-8").replace('\\', "/");
        if ["README.md", "SUMMARY.md"].contains(&&*name) {
            continue;
        }
        let link = format!("]({name})");
        for (list, place, entry) in [
            (&summary, "docs/SUMMARY.md", &link),
            (&index, "docs/README.md", &link),
            (
                &modules,
                "burn-dist/src/guides.rs",
                &format!("guide!(\"{name}\")"),
            ),
        ] {
            if !list.contains(entry) {
                wrong.push(format!("{place} lacks {entry}"));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
