//! The commands of guides, run as they stand there, and what the guides show of them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A block of the guide between fences.
struct Block {
    language: String,
    /// The line of its fence, from 1.
    line: usize,
    text: String,
}

fn blocks(guide: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (number, line) in guide.lines().enumerate() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(language), None) => {
                open = Some(Block {
                    language: language.to_string(),
                    line: number + 1,
                    text: String::new(),
                });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some(block)) => block.text += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block is not closed");
    blocks
}

/// Whether a line has the parts of what is shown, between which `...` stands for anything, in this order.
fn shows(line: &str, shown: &str) -> bool {
    let mut rest = line;
    shown
        .split("...")
        .all(|part| match rest.split_once(part.trim()) {
            Some((_, after)) => {
                rest = after;
                true
            }
            None => false,
        })
}

/// Runs the commands of a guide one after the other in a folder, in which it has written the files that the guide shows
/// (`txt NAME` behind the fence); returns how many blocks of commands there are.
fn run(guide: &str) -> usize {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs/guide")
        .join(guide);
    let text = std::fs::read_to_string(guide).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let programs = folder.path().join("bin");
    std::fs::create_dir(&programs).unwrap();
    let program = PathBuf::from(env!("CARGO_BIN_EXE_burn-dist-lm"));
    std::os::unix::fs::symlink(&program, programs.join("burn-dist-lm")).unwrap();
    install(&programs.join("cargo"));
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", programs.display());
    let (mut said, mut num_run) = (String::new(), 0);
    for block in blocks(&text) {
        match block
            .language
            .split_once(' ')
            .unwrap_or((&block.language, ""))
        {
            ("sh", "") => {
                let output = Command::new("sh")
                    .args(["-euc", &format!("exec 2>&1\n{}", block.text)])
                    .current_dir(folder.path())
                    .env("PATH", &path)
                    .output()
                    .expect("a shell");
                said = String::from_utf8_lossy(&output.stdout).into_owned();
                let ended = output.status;
                assert!(ended.success(), "line {}: {ended}\n{said}", block.line);
                num_run += 1;
            }
            ("text", "") => {
                for shown in block.text.lines() {
                    assert!(
                        said.lines().any(|line| shows(line, shown)),
                        "line {}: no {shown:?} in\n{said}",
                        block.line
                    );
                }
            }
            ("txt", name) => {
                let file = folder.path().join(name);
                std::fs::create_dir_all(file.parent().expect("a folder")).unwrap();
                std::fs::write(file, block.text).unwrap();
            }
            _ => panic!(
                "line {}: a block of {:?} is not run",
                block.line, block.language
            ),
        }
    }
    num_run
}

/// Stands for `cargo install` of the program, which this test was built with: it knows the package of the workspace.
fn install(cargo: &Path) {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = format!(
        "#!/bin/sh\n[ \"$1 $2\" = 'install --path' ] && grep -q '^name = \"burn-dist-lm\"' '{}/'\"$3\"/Cargo.toml\n",
        workspace.display()
    );
    std::fs::write(cargo, text).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(cargo, executable).unwrap();
}

#[test]
fn every_command_of_the_guide_runs_and_says_what_is_shown() {
    let num_run = run("train-a-model.md");
    assert!(num_run > 8, "{num_run} blocks");
}

/// From an installation to a model fine-tuned on own texts, and an answer: no more than this.
#[test]
fn a_first_model_takes_four_commands() {
    assert_eq!(run("first-model.md"), 4);
}

#[test]
fn what_is_not_shown_is_noticed() {
    assert!(shows("loss 6.93 to 1.20, 12 tokens/s", "loss ... to ..."));
    assert!(!shows("to 1.20, loss 6.93", "loss ... to 1.20"));
    assert!(!shows("loss 6.93", "losses"));
    let blocks = blocks("a\n```sh\nls\n```\n```text\nb\n```\n");
    let found: Vec<_> = blocks
        .iter()
        .map(|block| (&*block.language, block.line))
        .collect();
    assert_eq!(found, [("sh", 2), ("text", 5)]);
}
