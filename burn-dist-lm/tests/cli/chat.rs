//! Conversations in the terminal.

use std::io::Write;
use std::process::{Command, Stdio};

use super::fails;

/// Fails unless a model talks: its answer to the first question is `alone`, and again in another conversation.
pub(super) fn talks(model: &str, alone: &str) {
    fails(
        &["generate", "--model", model],
        1,
        &["give a --prompt, or --chat to talk"],
    );
    // In the terminal, as it is made: the second message with the first in mind, the third without.
    let mut child = Command::new(env!("CARGO_BIN_EXE_burn-dist-lm"))
        .args([
            "generate",
            "--model",
            model,
            "--chat",
            "--max-new-tokens",
            "4",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let question = "What follows 7?\n";
    write!(stdin, "{question}And 8?\n\n{question}").unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).unwrap();
    let said: Vec<&str> = said.lines().map(str::trim).collect();
    assert_eq!(said.len(), 3, "{said:?}");
    assert_eq!([said[0], said[2]], [alone; 2], "{said:?}");
}
