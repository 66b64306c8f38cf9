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
    let text = printed("train --mesh ep=2 --steps 60 --log-every 20 --seq 16 --batch 8 --no-plot");
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("step "))
        .collect();
    assert_eq!(lines.len(), 4, "{text}");
    let entropy = |line: &str| -> f64 {
        let (_, rest) = line.split_once("cross entropy ").expect("it is told");
        let (value, _) = rest.split_once(' ').expect("more follows");
        value.parse().expect("a number")
    };
    assert!(entropy(lines[0]) > 4.0 && entropy(lines[3]) < 2.0, "{text}");
    assert!(
        lines[3].contains("dropped ") && lines[3].contains("tokens/s"),
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
    let formula = run("explain --mesh fsdp=2,ep=2 --groups 2 --no-shared");
    // A formula of flops that is far from what is counted would be warned of.
    assert!(formula.status.success() && formula.stderr.is_empty());
    let pass = printed("explain --layers 1 --after propagate");
    assert!(pass.contains("all_to_all over ep("), "{pass}");
}

#[test]
fn bad_input_is_named() {
    for (arguments, expected) in [
        (
            "train --mesh ep=3",
            "error: the model does not fit the mesh ep=3: blocks.0.mixture.experts.gate: 8 experts cannot be split over axis ep (size 3): use ep = 1, 2, 4 or 8, \
             or mark it replicate / pass .replicate_indivisible(); here: --replicate-indivisible\n",
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
            "error: the model does not fit the mesh fsdp=2: experts(\"blocks.*.mixture.experts\"): no axis ep in the mesh; its axes are fsdp=2\n",
        ),
        (
            "explain --mesh pp=2 --experts-over pp",
            "error: the model does not fit the mesh pp=2: experts(\"blocks.*.mixture.experts\"): no tensor is split over pp, which splits the model into stages: \
             leave it out\n",
        ),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments}");
        assert_eq!(
            String::from_utf8_lossy(&output.stderr),
            expected,
            "{arguments}"
        );
        assert!(output.stdout.is_empty(), "{arguments}");
    }
}

#[test]
fn a_run_goes_on_on_another_mesh() {
    let folder = std::env::temp_dir().join(format!("moe-goes-on-{}", std::process::id()));
    let run = |mesh: &str, steps: usize, more: &str| {
        let folder = folder.display();
        printed(&format!(
            "train --mesh {mesh} --steps {steps} --seq 16 --batch 8 --layers 1 --validate-every 2 --run {folder}{more}"
        ))
    };
    run("ep=2", 2, "");
    let text = run("fsdp=2", 4, " --experts-over fsdp --resume auto");
    assert!(text.contains("after step 2 of train"), "{text}");
    let figures = std::fs::read_to_string(folder.join("metrics.jsonl")).expect("there are figures");
    let report = std::fs::read_to_string(folder.join("report.json")).expect("there is a report");
    assert!(report.contains("\"step_flops\": "), "{report}");
    assert!(!report.contains("\"step_flops\": null"), "{report}");
    let evaluate = format!(
        "evaluate --seq 16 --batch 8 --layers 1 --mesh 1 --run {}",
        folder.display()
    );
    let evaluated = printed(&evaluate);
    std::fs::remove_dir_all(&folder).expect("it is there");
    let parts = [
        "8 experts after step 4: loss ",
        "over 512 positions in 4 batches",
    ];
    assert!(
        parts.iter().all(|part| evaluated.contains(part)),
        "{evaluated}"
    );
    for part in ["\"step\":4,", "model/load/7", "validation/loss"] {
        assert!(figures.contains(part), "{part}: {figures}");
    }
}
