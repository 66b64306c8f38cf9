//! The program under `mpirun`: the losses of one process, written once.
//!
//! ```text
//! cargo test -p llama --features mpi --test processes
//! ```

use std::path::Path;
use std::process::{Command, Output};

fn llama(processes: usize, args: &[&str]) -> Output {
    Command::new("mpirun")
        .args([
            "--allow-run-as-root",
            "--oversubscribe",
            "-n",
            &processes.to_string(),
        ])
        .arg(env!("CARGO_BIN_EXE_llama"))
        .args(args)
        .output()
        .expect("mpirun is installed")
}

/// What a report says that depends neither on time nor on how many processes there are: losses, and the memory of every
/// rank. (Processes that each give a part of the batch gather some of it once more.)
fn facts(json: &Path) -> serde_json::Value {
    let text = std::fs::read_to_string(json).expect("a report");
    let mut report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let ranks = report["ranks"].as_array_mut().expect("ranks");
    for rank in &mut *ranks {
        let rank = rank.as_object_mut().expect("a rank");
        rank.retain(|key, _| !key.ends_with("_ms"));
    }
    let ranks = report["ranks"].take();
    serde_json::json!([report["losses"], ranks])
}

/// Forty examples of different lengths: other rows, or the same in another order, have other losses.
fn examples() -> String {
    let line = |n: usize| {
        let words = [
            "red", "kite", "blue", "drum", "green", "lamp", "old", "boat",
        ];
        let words: Vec<&str> = (0..1 + n % 7)
            .map(|at| words[(n * 3 + at * 5) % 8])
            .collect();
        let prompt = words.join(" ");
        format!("{{\"prompt\": \"{prompt}?\", \"response\": \"{n}\"}}\n")
    };
    (0..40).map(line).collect()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Runs a training command on one, two and four processes: what each saves and reports is that of one.
fn trains_alike(command: &[&str], losses: usize) {
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().join("data.jsonl");
    std::fs::write(&data, examples()).expect("a file");
    let mut expected = None;
    for processes in [1, 2, 4] {
        let json = dir.path().join(format!("{processes}.json"));
        let model = dir.path().join(format!("model{processes}"));
        let more = [
            ["--mesh", "fsdp=2,tp=2"],
            ["--data", text(&data)],
            ["--json", text(&json)],
            ["--save", text(&model)],
        ];
        let output = llama(
            processes,
            &[command, &["--no-plot"], more.as_flattened()].concat(),
        );
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{processes} processes: {said}");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert_eq!(printed.matches("report: ").count(), 1, "{printed}");
        let found = (
            facts(&json),
            std::fs::read(model.join("model.safetensors")).expect("weights"),
        );
        let steps = found.0[0].as_array().expect("losses");
        assert_eq!(steps.len(), losses);
        assert!(steps.iter().any(|loss| *loss != steps[0]), "{steps:?}");
        assert_eq!(found.0[1].as_array().map(Vec::len), Some(4));
        let expected = expected.get_or_insert_with(|| found.clone());
        assert_eq!(found.0, expected.0, "report of {processes} processes");
        assert!(found.1 == expected.1, "weights of {processes} processes");
    }
}

/// Rows of four short texts or so, in two microbatches.
const ROWS: [&str; 6] = ["--batch", "4", "--seq", "24", "--accumulate", "2"];

#[test]
fn processes_pretrain_as_one_does() {
    trains_alike(&[&["pretrain", "--steps", "3"], &ROWS[..]].concat(), 3);
}

#[test]
fn processes_finetune_as_one_does() {
    let command = ["finetune", "--steps", "2", "--questions", "2"];
    trains_alike(&[&command, &ROWS[..]].concat(), 2);
}

#[test]
fn memory_and_traces_are_of_the_ranks_of_all_processes() {
    let dir = tempfile::tempdir().expect("a folder");
    let (memory, trace) = (dir.path().join("memory.svg"), dir.path().join("trace.json"));
    let command = ["pretrain", "--steps", "1", "--batch", "2", "--seq", "8"];
    let more = [
        ["--mesh", "fsdp=2"],
        ["--memory", text(&memory)],
        ["--trace", text(&trace)],
    ];
    let output = llama(
        2,
        &[&command, &["--no-plot"][..], more.as_flattened()].concat(),
    );
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let printed = String::from_utf8_lossy(&output.stdout);
    for (part, count) in [("as planned", 1), ("memory: ", 1), ("trace: ", 2)] {
        assert_eq!(printed.matches(part).count(), count, "{part}: {printed}");
    }
    assert!(memory.exists());
    for (rank, file) in ["trace.json", "trace-1.json"].into_iter().enumerate() {
        let trace = std::fs::read_to_string(dir.path().join(file)).expect("a trace");
        let trace: serde_json::Value = serde_json::from_str(&trace).expect("JSON");
        let events = trace["traceEvents"].as_array().expect("events");
        let slices = events.iter().filter(|event| event["ph"] == "X");
        let ranks: Vec<_> = slices.map(|event| event["pid"].as_u64()).collect();
        assert!(!ranks.is_empty(), "{file}");
        assert!(ranks.iter().all(|of| *of == Some(rank as u64)), "{file}");
    }
}

#[test]
fn a_mesh_that_processes_cannot_share_is_explained() {
    let output = llama(
        2,
        &["pretrain", "--steps", "1", "--no-plot", "--mesh", "fsdp=3"],
    );
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("fsdp=3") && said.contains("3 ranks") && said.contains("2 processes"),
        "{said}"
    );
}
