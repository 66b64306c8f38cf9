//! The program trains alike on every mesh, and says what is wrong with its input.

use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_clip"));
    // Nothing outside changes the layouts.
    command.args(arguments).env_remove("BURN_DIST_FUZZ_LAYOUTS");
    command.output().expect("the program starts")
}

/// The lines that the program prints on a mesh: a loss for each step, and how many images found their text.
fn lines(mesh: &str, more: &[&str]) -> Vec<String> {
    let arguments = [
        &["train", "--no-plot", "--microbatches", "4", "--mesh", mesh][..],
        more,
    ]
    .concat();
    let output = run(&arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    let text = String::from_utf8_lossy(&output.stdout);
    let is_told = |line: &&str| line.starts_with("step ") || line.ends_with("found their text");
    text.lines().filter(is_told).map(str::to_string).collect()
}

fn losses(lines: &[String]) -> Vec<f64> {
    let losses = lines.iter().filter_map(|line| line.split_once("loss "));
    losses
        .map(|(_, loss)| loss.parse().expect("a number"))
        .collect()
}

#[test]
fn losses_are_those_of_one_device() {
    let alone = lines("1", &[]);
    let expected = losses(&alone);
    assert_eq!(expected.len(), 60);
    // Of 8 texts each is as likely as another at first.
    let (first, last) = (expected[0], expected[59]);
    assert!((1.8..3.0).contains(&first) && last < 1.0, "{expected:?}");
    let right = alone[60].split(' ').next().and_then(|n| n.parse().ok());
    assert!(right >= Some(16), "{}", alone[60]);
    // The schedule of a shorter run is another one.
    let steps = ["--steps", "20"];
    let expected = losses(&lines("1", &steps));
    assert_eq!(expected.len(), 20);
    for axes in ["dp=2", "fsdp=2", "fsdp=2,tp=2"] {
        let found = losses(&lines(axes, &steps));
        assert_eq!(found.len(), 20);
        for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let gap = (found - expected).abs();
            assert!(gap < 1e-3, "{axes}, step {step}: {found}, not {expected}");
        }
    }
}

#[test]
fn stages_change_nothing() {
    // The bits of a step are those of all before it.
    let steps = ["--steps", "12"];
    let [alone, two] = ["1", "dp=2"].map(|mesh| lines(mesh, &steps));
    assert_eq!(losses(&alone).len(), 12);
    for (without, with) in [(&alone, "pp=2"), (&alone, "pp=4"), (&two, "pp=2,dp=2")] {
        assert_eq!(&lines(with, &steps), without, "{with}");
    }
    // Four stages on two ranks, there and back.
    let there_and_back = [&steps[..], &["--schedule", "zb-v"]].concat();
    assert_eq!(lines("pp=2", &there_and_back), alone);
}

#[test]
fn bad_input_is_named() {
    for (arguments, code, expected) in [
        (
            &["train", "--mesh", "pp=3"][..],
            1,
            "error: this example says what is on 1, 2 or 4 stages, not on 3\n",
        ),
        (
            &["train", "--mesh", "dp=2", "--microbatches", "64"],
            1,
            "error: --accumulate 64 does not divide the 32 rows of a step: give a --batch that is a multiple of it\n",
        ),
        (
            &["train", "--schedule", "1f2b"],
            2,
            "error: invalid value '1f2b' for '--schedule <NAME|FILE>': `1f2b` is not a schedule: use gpipe, 1f1b, ",
        ),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn the_formula_of_its_flops_is_near_what_is_counted() {
    for arguments in [
        &["explain"][..],
        &["explain", "--mesh", "pp=2", "--microbatches", "4"],
    ] {
        let output = run(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.is_empty(), "{errors}");
    }
}

#[test]
fn a_checkpoint_is_evaluated_on_unseen_pairs() {
    let folder = std::env::temp_dir().join(format!("clip-evaluated-{}", std::process::id()));
    let path = folder.display().to_string();
    let train = [
        "train",
        "--steps",
        "2",
        "--validate-every",
        "2",
        "--run",
        &path,
    ];
    let output = run(&train);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let figures = std::fs::read_to_string(folder.join("metrics.jsonl")).expect("figures");
    let output = run(&["evaluate", "--mesh", "dp=2", "--run", &path, "--json"]);
    std::fs::remove_dir_all(&folder).expect("it is there");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let number = |text: &str, name: &str| -> f64 {
        let (_, rest) = text.rsplit_once(name).expect("it is there");
        let end = rest.find([',', '}']).expect("more follows");
        rest[..end].parse().expect("a number")
    };
    let (validated, evaluated) = (
        number(&figures, "\"validation/loss\":"),
        number(&text, "\"loss\":"),
    );
    assert!((validated - evaluated).abs() < 1e-4, "{validated}, {text}");
    assert!(text.contains("\"positions\":32,"), "{text}");
}
