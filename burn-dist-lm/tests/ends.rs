//! How runs end: by a signal, on a full disk, with nobody who reads what they say.

use std::path::Path;
use std::process::Command;

one_thread::one_thread_per_process!();

fn text(path: &Path) -> &str {
    path.to_str().expect("a temporary folder's name is UTF-8")
}

#[cfg(unix)]
#[test]
fn a_signal_ends_training_after_a_step_with_everything_written() {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    for (signal, code, others_too) in [
        ("-INT", 130, false),
        ("-TERM", 143, false),
        ("-TERM", 143, true),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("run");
        let json = dir.path().join("run.json");
        let mut child = Command::new(env!("CARGO_BIN_EXE_burn-dist-lm"))
            .args([
                "pretrain", "--steps", "1000000", "--batch", "2", "--seq", "8",
            ])
            .args(["--every", "1000000", "--run", text(&folder)])
            .args(["--mesh", "fsdp=2,tp=2", "--no-plot", "--json", text(&json)])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Kept open until the program ends: it has more to say.
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("tiny") {
            line.clear();
            assert!(stdout.read_line(&mut line).unwrap() > 0, "it has ended");
        }
        // A launcher passes on what the system has sent to all: together they are one.
        for _ in 0..=u8::from(others_too) {
            let kill = Command::new("kill")
                .args([signal, &child.id().to_string()])
                .status();
            assert!(kill.unwrap().success());
        }

        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        let report: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        assert_eq!(report["interrupted"], true);
        let done = report["losses"].as_array().unwrap().len();
        let place = format!("pretrain interrupted after step {done} of 1000000");
        assert!(said.contains(&place), "{place}: {said}");
        let saved = folder.join("checkpoints");
        let mut saved = std::fs::read_dir(&saved).unwrap();
        assert!(saved.any(|step| step.unwrap().path().join("manifest.json").exists()));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn every_file_that_does_not_fit_has_one_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let full = |name: &str| {
        let path = dir.path().join(name);
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        text(&path).to_string()
    };
    let [json, plot, memory] = ["report.json", "loss.svg", "memory.svg"].map(full);
    let [trace, chart] = ["trace.json", "chart.svg"].map(full);
    for (option, file, mesh) in [
        ("--json", &json, "1"),
        ("--plot", &plot, "1"),
        ("--memory", &memory, "1"),
        ("--trace", &trace, "1"),
        ("--chart", &chart, "pp=2"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_burn-dist-lm"));
        command
            .args(["pretrain", "--steps", "1", "--batch", "2", "--seq", "8"])
            .args([option, file, "--mesh", mesh]);
        if option != "--plot" {
            command.arg("--no-plot");
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(74), "{option}: {said}");
        for part in ["cannot write", file, "No space left"] {
            assert!(said.contains(part), "{option} must say {part:?}: {said}");
        }
    }
}

/// Nobody reads what a program says: it ends as it would, and does not panic.
#[test]
fn a_closed_pipe_is_no_panic() {
    use std::io::Read;

    for args in [
        &["config"][..],
        &["mesh", "--mesh", "fsdp=2"],
        &[
            "pretrain",
            "--steps",
            "2",
            "--batch",
            "2",
            "--seq",
            "8",
            "--no-plot",
        ],
        &["pretrain", "--mesh", "zz=2"],
    ] {
        for closed in ["stdout", "stderr"] {
            // Kept open to its end, to see what the program said of itself.
            let (mut other, other_end) = std::io::pipe().unwrap();
            let (gone, gone_end) = std::io::pipe().unwrap();
            drop(gone);
            let mut command = Command::new(env!("CARGO_BIN_EXE_burn-dist-lm"));
            command.args(args);
            match closed {
                "stdout" => command.stdout(gone_end).stderr(other_end),
                _ => command.stderr(gone_end).stdout(other_end),
            };
            let mut child = command.spawn().unwrap();
            drop(command);
            let mut said = String::new();
            other.read_to_string(&mut said).unwrap();
            let code = child.wait().unwrap().code();
            assert_ne!(code, Some(101), "{args:?}, {closed}: {said}");
            assert!(!said.contains("panicked"), "{args:?}, {closed}: {said}");
        }
    }
}
