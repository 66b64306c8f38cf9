//! The program trains alike on every mesh, and says what is wrong with its input.

use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_minimal-021"));
    // Nothing outside changes the layouts.
    command.args(arguments).env_remove("BURN_DIST_FUZZ_LAYOUTS");
    command.output().expect("the program starts")
}

fn losses(axes: &str) -> Vec<f64> {
    let output = run(&[axes]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{axes}: {errors}");
    let text = String::from_utf8_lossy(&output.stdout);
    let loss = |line: &str| {
        let (_, loss) = line.rsplit_once(' ').expect("a name and a value");
        loss.parse().expect("a number")
    };
    text.lines().map(loss).collect()
}

#[test]
fn losses_are_those_of_one_device() {
    let expected = losses("");
    assert_eq!(expected.len(), 60);
    // Of 256 bytes each is as likely as another at first; later the rhyme is known.
    let (first, last) = (expected[0], expected[59]);
    assert!(first > 5.0 && last < 1.5, "{expected:?}");
    // 8 rows over 3 ranks are 3, 3 and 2.
    for axes in ["tp=2", "fsdp=2", "fsdp=2,tp=2", "dp=3"] {
        let found = losses(axes);
        assert_eq!(found.len(), expected.len(), "{axes}");
        for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let gap = (found - expected).abs();
            assert!(gap < 1e-4, "{axes}, step {step}: {found}, not {expected}");
        }
    }
}

#[test]
fn bad_input_is_named() {
    for (arguments, expected) in [
        (
            &["tp=two"][..],
            "error: cannot read the mesh `tp=two`: the size `two` of axis `tp` is not a whole number; write axes as \
             name=size, for example `fsdp=2,tp=4`\n",
        ),
        (
            &["tp=3"],
            "error: the model does not fit the mesh: blocks.0.attention.query: 4 heads (`self.heads`) cannot be split over axis tp \
             (size 3): use tp = 1, 2 or 4, or mark it replicate / pass .replicate_indivisible()\n",
        ),
        (
            &["tp=2", "100"],
            "error: one argument at most, the axes of the mesh, and there are 2: minimal fsdp=2,tp=2\n",
        ),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), expected);
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}
