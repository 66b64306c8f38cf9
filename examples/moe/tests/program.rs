//! The program trains and explains, and says what is wrong with its input.

use std::process::{Command, Output};

fn run(arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_moe"));
    // Nothing outside changes the layouts.
    command.env_remove("BURN_DIST_FUZZ_LAYOUTS");
    command
        .args(arguments.split(' '))
        .output()
        .expect("the program starts")
}

fn printed(arguments: &str) -> String {
    let output = run(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn it_learns_the_ciphers() {
    let text = printed("train --mesh ep=2 --steps 60 --every 20 --seq 16 --batch 8");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 5, "{text}");
    let entropy = |line: &str| -> f64 {
        let (_, rest) = line.split_once("cross entropy ").expect("it is told");
        let (value, _) = rest.split_once(' ').expect("more follows");
        value.parse().expect("a number")
    };
    assert!(entropy(lines[1]) > 4.0 && entropy(lines[4]) < 2.0, "{text}");
    assert!(
        lines[4].contains("dropped ") && lines[4].contains("tokens/s"),
        "{text}"
    );
}

#[test]
fn explain_tells_what_crosses() {
    let text = printed("explain --mesh ep=4 --layers 1");
    // 8 experts x 10 slots x 16 groups x 64 x 4 bytes x 3/4.
    assert!(text.contains("tokens on their way: 245760 bytes"), "{text}");
    assert!(text.contains("all_to_all: 4 call(s)"), "{text}");
    let padded = printed("explain --mesh ep=4 --layers 1 --dropless");
    assert!(
        padded.contains("4.00 times the work of the chosen pairs"),
        "{padded}"
    );
    let pass = printed("explain --layers 1 --after propagate");
    assert!(pass.contains("all_to_all over ep("), "{pass}");
}

#[test]
fn bad_input_is_named() {
    for (arguments, expected) in [
        (
            "train --mesh ep=3",
            "error: blocks.0.mixture.experts.gate: 8 experts cannot be split over axis ep (size 3): use ep = 1, 2, 4 or 8, \
             or mark it replicate / pass .replicate_indivisible()\n",
        ),
        (
            "train --top-k 9",
            "error: a token cannot choose 9 of 8 experts: use --top-k 8 or less, or more experts\n",
        ),
        (
            "train --capacity-factor 0",
            "error: capacity factor 0 leaves an expert no slot: use a number above 0 (1.25 is usual), or --dropless\n",
        ),
        (
            "train --groups 3",
            "error: a sequence of 32 tokens cannot be cut into 3 equal groups: choose --groups that divide it\n",
        ),
        (
            "train --mesh fsdp=2 --experts-over ep",
            "error: experts(\"blocks.*.mixture.experts\"): no axis ep in the mesh; its axes are fsdp=2\n",
        ),
        (
            "explain --mesh pp=2 --experts-over pp",
            "error: experts(\"blocks.*.mixture.experts\"): no tensor is split over pp, which splits the model into stages: \
             leave it out\n",
        ),
        (
            "train --batch 0",
            "error: a batch of 0 sequences: use --batch 1 or more\n",
        ),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        assert_eq!(
            String::from_utf8_lossy(&output.stderr),
            expected,
            "{arguments}"
        );
        assert!(output.stdout.is_empty(), "{arguments}");
    }
}
