//! The program trains alike on every mesh, and says what is wrong with its input.

use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_clip"));
    // Nothing outside changes the layouts.
    command.args(arguments).env_remove("BURN_DIST_FUZZ_LAYOUTS");
    command.output().expect("the program starts")
}

/// The lines that the program prints: a loss for each step, and how many images found their text.
fn lines(arguments: &[&str]) -> Vec<String> {
    let output = run(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(str::to_string).collect()
}

fn losses(lines: &[String]) -> Vec<f64> {
    let losses = lines.iter().filter_map(|line| line.split_once("loss "));
    losses
        .map(|(_, loss)| loss.parse().expect("a number"))
        .collect()
}

#[test]
fn losses_are_those_of_one_device() {
    let alone = lines(&[""]);
    let expected = losses(&alone);
    assert_eq!(expected.len(), 60);
    // Of 8 texts each is as likely as another at first.
    let (first, last) = (expected[0], expected[59]);
    assert!((1.8..3.0).contains(&first) && last < 1.0, "{expected:?}");
    let right = alone[60].split(' ').next().and_then(|n| n.parse().ok());
    assert!(right >= Some(16), "{}", alone[60]);
    for axes in ["dp=2", "fsdp=2", "fsdp=2,tp=2"] {
        let found = losses(&lines(&[axes, "4"]));
        for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let gap = (found - expected).abs();
            assert!(gap < 1e-3, "{axes}, step {step}: {found}, not {expected}");
        }
    }
}

#[test]
fn stages_change_nothing() {
    for (without, with) in [("", "pp=2"), ("", "pp=4"), ("dp=2", "pp=2,dp=2")] {
        assert_eq!(lines(&[with, "4"]), lines(&[without, "4"]), "{with}");
    }
    // Four stages on two ranks, there and back.
    assert_eq!(lines(&["pp=2", "4", "zb-v"]), lines(&["", "4"]));
}

#[test]
fn bad_input_is_named() {
    for (arguments, expected) in [
        (
            &["pp=3"][..],
            "error: this example says what is on 1, 2 or 4 stages, not on 3\n",
        ),
        (
            &["dp=2", "64"],
            "error: a batch of 32 row(s) cannot be cut into 64 microbatches: use at most 32, or a larger batch\n",
        ),
        (
            &["dp=2", "4", "1f2b"],
            "error: `1f2b` is not a schedule: use gpipe, 1f1b, ",
        ),
        (
            &["dp=2", "four"],
            "error: `four` is no number of microbatches: invalid digit found in string\n",
        ),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.starts_with(expected), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}
