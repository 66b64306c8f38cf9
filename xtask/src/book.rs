//! The guides as a book: a folder of pages that a browser opens. `mdbook` is installed into the target folder, so that
//! no build of the workspace has it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace::{self, run};

/// The version that is installed.
const MDBOOK: &str = "0.5.4";

/// The settings of the book; the table of its pages is `docs/SUMMARY.md`.
const SETTINGS: &str = "\
[book]
title = \"burn-dist\"
description = \"Guides to distributed training with burn-dist\"
language = \"en\"
src = \"src\"

[output.html]
smart-punctuation = false
fold.enable = true
";

/// Makes the book in the target folder and prints where it begins.
///
/// # Errors
/// An argument, a link that leads to nothing, or `mdbook` cannot be installed or run.
pub(crate) fn book(arguments: &[String]) -> Result<(), String> {
    if let Some(argument) = arguments.first() {
        return Err(format!("`book` takes no arguments, but got {argument}"));
    }
    let folder = workspace::target().join("book");
    let _ = fs::remove_dir_all(&folder);
    copy(&workspace::root().join("docs"), &folder.join("src"), "")?;
    write(&folder.join("book.toml"), SETTINGS)?;
    run(Command::new(mdbook()?).arg("build").arg(&folder))?;
    let pages = folder.join("book");
    check(&pages, &pages)?;
    println!("{}", pages.join("index.html").display());
    Ok(())
}

/// Installs `mdbook` if it is not there, and returns the program.
fn mdbook() -> Result<PathBuf, String> {
    let folder = workspace::target().join("tools").join(MDBOOK);
    let program = folder
        .join("bin")
        .join(format!("mdbook{}", std::env::consts::EXE_SUFFIX));
    if !program.is_file() {
        println!("   installing mdbook {MDBOOK}");
        let mut install = workspace::cargo();
        install.args([
            "install",
            "--quiet",
            "--locked",
            "mdbook",
            "--version",
            MDBOOK,
        ]);
        install.args(["--no-default-features", "--features", "search", "--root"]);
        run(install.arg(&folder))?;
    }
    Ok(program)
}

/// Copies the texts of a folder; links that leave `docs` become words, for a book has no page of them.
fn copy(from: &Path, to: &Path, inside: &str) -> Result<(), String> {
    fs::create_dir_all(to).map_err(|error| format!("{}: {error}", to.display()))?;
    for path in entries(from)? {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if path.is_dir() {
            copy(&path, &to.join(&name), &format!("{inside}{name}/"))?;
        } else {
            let text = read(&path)?;
            write(&to.join(&name), &inward(&text, inside.matches('/').count()))?;
        }
    }
    Ok(())
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let entries = fs::read_dir(folder).map_err(failed)?;
    let paths: Result<Vec<_>, _> = entries.map(|entry| Ok(entry?.path())).collect();
    let mut paths = paths.map_err(failed)?;
    paths.sort();
    Ok(paths)
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Returns a text of a folder `depth` below the book's, without its links out of the book.
fn inward(text: &str, depth: usize) -> String {
    let out = "../".repeat(depth + 1);
    let mut inward = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        let Some((target, after)) = after.split_once(')') else {
            break;
        };
        if target.starts_with(&out) {
            let (around, words) = before.rsplit_once('[').unwrap_or((before, ""));
            inward += &format!("{around}{words}");
        } else {
            inward += &format!("{before}]({target})");
        }
        rest = after;
    }
    inward + rest
}

/// Says which links between pages lead to nothing.
fn check(pages: &Path, folder: &Path) -> Result<(), String> {
    let mut wrong = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for path in entries(&folder)? {
            if path.is_dir() {
                folders.push(path);
            } else if path
                .extension()
                .is_some_and(|extension| extension == "html")
            {
                let text = read(&path)?;
                let name = path
                    .strip_prefix(pages)
                    .unwrap_or(&path)
                    .display()
                    .to_string();
                let targets = text.split("<a href=\"").skip(1);
                let targets = targets.filter_map(|rest| rest.split('"').next());
                for target in targets.filter(|target| !target.contains("://")) {
                    let file = target.split('#').next().unwrap_or_default();
                    if !file.is_empty() && !folder.join(file).exists() {
                        wrong.push(format!("{name}: {target}"));
                    }
                }
            }
        }
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(format!("links to nothing:\n{}", wrong.join("\n"))),
    }
}
