//! The commands of docs/guide/train-a-model.md, run as they stand there, and what the guide shows of them.

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

#[test]
fn every_command_of_the_guide_runs_and_says_what_is_shown() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide/train-a-model.md");
    let text = std::fs::read_to_string(guide).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let program = PathBuf::from(env!("CARGO_BIN_EXE_burn-dist-lm"));
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", program.parent().unwrap().display());
    let (mut said, mut num_run) = (String::new(), 0);
    for block in blocks(&text) {
        match &*block.language {
            "sh" => {
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
            "text" => {
                for shown in block.text.lines() {
                    assert!(
                        said.lines().any(|line| shows(line, shown)),
                        "line {}: no {shown:?} in\n{said}",
                        block.line
                    );
                }
            }
            other => panic!("line {}: a block of {other:?} is not run", block.line),
        }
    }
    assert!(num_run > 8, "{num_run} blocks");
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
