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

/// What a report says that depends neither on time nor on how many processes there are: losses, and the memory of every rank. (Processes that each give a part of the batch gather
/// some of it once more.)
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

#[test]
fn processes_train_and_save_as_one_does() {
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().join("data.jsonl");
    std::fs::write(
        &data,
        r#"{"prompt": "what is two and two?", "response": "four"}"#,
    )
    .expect("a file");
    let mut expected = None;
    for processes in [1, 2, 4] {
        let json = dir.path().join(format!("{processes}.json"));
        let model = dir.path().join(format!("model{processes}"));
        let text = |path: &Path| path.to_str().expect("UTF-8").to_string();
        let (json_text, model_text, data_text) = (text(&json), text(&model), text(&data));
        let output = llama(
            processes,
            &[
                "pretrain",
                "--steps",
                "3",
                "--batch",
                "4",
                "--seq",
                "8",
                "--no-plot",
                "--mesh",
                "fsdp=2,tp=2",
                "--data",
                &data_text,
                "--json",
                &json_text,
                "--save",
                &model_text,
            ],
        );
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{processes} processes: {said}");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert_eq!(printed.matches("report: ").count(), 1, "{printed}");
        let found = (
            facts(&json),
            std::fs::read(model.join("model.safetensors")).expect("weights"),
        );
        assert_eq!(found.0[0].as_array().map(Vec::len), Some(3));
        assert_eq!(found.0[1].as_array().map(Vec::len), Some(4));
        let expected = expected.get_or_insert_with(|| found.clone());
        assert_eq!(found.0, expected.0, "report of {processes} processes");
        assert!(found.1 == expected.1, "weights of {processes} processes");
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
