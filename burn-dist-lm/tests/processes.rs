//! The program in several processes: the losses of one process, written once.
//!
//! ```text
//! cargo test -p burn-dist-lm --features mpi --test processes
//! ```
//!
//! With the feature `tcp` in place of `mpi`, over TCP alone.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

one_thread::one_thread!();

/// What carries messages between processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    /// Under `mpirun`.
    Mpi,
    /// By hand, with torchrun's variables.
    Tcp,
}

use Transport::{Mpi, Tcp};

const TRANSPORTS: &[Transport] = match cfg!(feature = "mpi") {
    true => &[Mpi, Tcp],
    false => &[Tcp],
};

fn llama(transport: Transport, processes: usize, args: &[&str]) -> Output {
    match transport {
        Mpi => Command::new("mpirun")
            .args([
                "--allow-run-as-root",
                "--oversubscribe",
                "-n",
                &processes.to_string(),
            ])
            .arg(env!("CARGO_BIN_EXE_burn-dist-lm"))
            .args(args)
            .output()
            .expect("mpirun is installed"),
        Tcp => over_tcp(processes, args),
    }
}

/// Returns the output of all processes, one after the other, and the status of the first that failed.
fn over_tcp(processes: usize, args: &[&str]) -> Output {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    drop(listener);
    let start = |rank: usize| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_burn-dist-lm"));
        let variables = [
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", processes.to_string()),
            ("MASTER_ADDR", "127.0.0.1".into()),
            ("MASTER_PORT", port.to_string()),
        ];
        command.args(args).envs(variables);
        let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        piped.spawn().expect("it was built with the tests")
    };
    // Nobody's pipe is full while it is not read: each has a thread.
    let started: Vec<_> = (0..processes).map(start).collect();
    let outputs: Vec<Output> = std::thread::scope(|scope| {
        let read = |child: std::process::Child| scope.spawn(|| child.wait_with_output());
        let threads: Vec<_> = started.into_iter().map(read).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, std::io::Result<Output>>| {
            thread.join().expect("no panic").expect("it ends")
        };
        threads.into_iter().map(join).collect()
    });
    let failed = outputs.iter().find(|output| !output.status.success());
    let joined = |part: fn(&Output) -> &Vec<u8>| outputs.iter().flat_map(part).copied().collect();
    Output {
        status: failed.unwrap_or(&outputs[0]).status,
        stdout: joined(|output| &output.stdout),
        stderr: joined(|output| &output.stderr),
    }
}

/// One process, and several over each transport.
fn all_over(numbers: &[usize]) -> impl Iterator<Item = (Transport, usize)> {
    let several = TRANSPORTS
        .iter()
        .flat_map(|transport| numbers.iter().map(|number| (*transport, *number)));
    std::iter::once((TRANSPORTS[0], 1)).chain(several)
}

/// What a report says that depends neither on time nor on how many processes there are: losses, and the memory of every
/// rank but for what is no part of the model. The second is what is the same for several processes alone, which each
/// give their rows where one gives the whole batch: their windows begin with other inputs, some of which are alive at
/// the peak. (And they gather some of it once more.)
fn facts(json: &Path) -> [serde_json::Value; 2] {
    let text = std::fs::read_to_string(json).expect("a report");
    let mut report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let ranks = report["ranks"].as_array_mut().expect("ranks");
    let mut several = Vec::new();
    for rank in &mut *ranks {
        let rank = rank.as_object_mut().expect("a rank");
        rank.retain(|key, _| !key.ends_with("_ms"));
        let most = rank.remove("most_bytes_by_class").expect("classes");
        let classes = rank["peak_bytes_by_class"].as_object_mut();
        let inputs = classes.expect("classes").remove("other");
        let inputs = inputs.map_or(0, |bytes| bytes.as_u64().expect("bytes"));
        for key in ["peak_bytes", "predicted_peak_bytes"] {
            let bytes = rank[key].as_u64().expect("bytes");
            rank[key] = (bytes - inputs).into();
        }
        several.push(serde_json::json!([most, inputs]));
    }
    let ranks = report["ranks"].take();
    [serde_json::json!([report["losses"], ranks]), several.into()]
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

/// Runs a training command on one, two and four processes, over each transport: what each saves and reports is that of
/// one.
fn trains_alike(command: &[&str], losses: usize) {
    let dir = tempfile::tempdir().expect("a folder");
    let data = dir.path().join("data.jsonl");
    std::fs::write(&data, examples()).expect("a file");
    let (mut expected, mut expected_several) = (None, None);
    for (transport, processes) in all_over(&[2, 4]) {
        let json = dir.path().join(format!("{processes}.json"));
        let model = dir.path().join(format!("model{transport:?}{processes}"));
        let more = [
            ["--mesh", "fsdp=2,tp=2"],
            ["--data", text(&data)],
            ["--json", text(&json)],
            ["--save", text(&model)],
        ];
        let output = llama(
            transport,
            processes,
            &[command, &["--no-plot"], more.as_flattened()].concat(),
        );
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.success(),
            "{processes} processes, {transport:?}: {said}"
        );
        let printed = String::from_utf8_lossy(&output.stdout);
        assert_eq!(printed.matches("report: ").count(), 1, "{printed}");
        let [facts, several] = facts(&json);
        let found = (
            facts,
            std::fs::read(model.join("model.safetensors")).expect("weights"),
        );
        let steps = found.0[0].as_array().expect("losses");
        assert_eq!(steps.len(), losses);
        assert!(steps.iter().any(|loss| *loss != steps[0]), "{steps:?}");
        assert_eq!(found.0[1].as_array().map(Vec::len), Some(4));
        let expected = expected.get_or_insert_with(|| found.clone());
        assert_eq!(found.0, expected.0, "{processes} processes, {transport:?}");
        assert!(
            found.1 == expected.1,
            "weights of {processes} processes, {transport:?}"
        );
        if processes > 1 {
            let expected = expected_several.get_or_insert_with(|| several.clone());
            assert_eq!(
                several, *expected,
                "bytes in {processes} processes, {transport:?}"
            );
        }
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
        TRANSPORTS[0],
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
        TRANSPORTS[0],
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

/// What of a run's figures depends neither on time nor on how many processes there are.
fn exact(folder: &Path) -> Vec<serde_json::Value> {
    let names = [
        "step",
        "train/loss",
        "validation/loss",
        "train/gradient_norm",
        "train/learning_rate",
    ];
    let lines = std::fs::read_to_string(folder.join("metrics.jsonl")).expect("figures");
    let lines = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    let rows = lines.filter(|line: &serde_json::Value| line.get("event").is_none());
    let exact = rows.map(|row| names.map(|name| row.get(name).cloned()));
    exact.map(|row| serde_json::json!(row)).collect()
}

/// The smallest model on two ranks, for as many steps.
fn run<'a>(steps: &'a str, folder: &'a Path) -> Vec<&'a str> {
    let all = ["pretrain", "--batch", "2", "--seq", "8", "--no-plot"];
    let more = [
        ["--mesh", "fsdp=2"],
        ["--every", "5"],
        ["--validate-every", "4"],
        ["--clip", "1"],
        ["--run", text(folder)],
        ["--steps", steps],
    ];
    [&all, more.as_flattened()].concat()
}

#[test]
fn one_process_writes_the_figures_of_all() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut expected = None;
    for (transport, processes) in all_over(&[2]) {
        let folder = dir.path().join(format!("{transport:?}{processes}"));
        let output = llama(transport, processes, &run("12", &folder));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{transport:?}: {said}");
        let found = exact(&folder);
        assert_eq!(found.len(), 12);
        assert_eq!(found, *expected.get_or_insert_with(|| found.clone()));
        // All processes are told what the first one found.
        let refused = llama(transport, 2, &run("12", &folder));
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(78), "{transport:?}: {said}");
        let told = "process 0 could not take the folder of the run";
        assert!(
            said.contains(told) && said.contains("is of an earlier run"),
            "{transport:?}: {said}"
        );
    }
}

#[cfg(all(target_os = "linux", feature = "mpi"))]
#[test]
fn a_lost_process_leaves_figures_and_a_run_that_goes_on() {
    let dir = tempfile::tempdir().expect("a folder");
    let (whole, folder) = (dir.path().join("whole"), dir.path().join("run"));
    let output = llama(TRANSPORTS[0], 1, &run("100", &whole));
    assert!(output.status.success());
    let expected = exact(&whole);

    let child = Command::new("mpirun")
        .args(["--allow-run-as-root", "--oversubscribe"])
        .args(["--enable-recovery", "-n", "2"])
        // With recovery mpirun ends well whatever becomes of its processes: each says itself how it ended.
        .args(["sh", "-c", r#""$0" "$@"; echo "ended with $?" >&2"#])
        .arg(env!("CARGO_BIN_EXE_burn-dist-lm"))
        .args(run("100", &folder))
        .stderr(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("mpirun is installed");
    let figures = || std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap_or_default();
    while !figures().contains("{\"step\":7,") {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    // The other one than that which writes.
    let lock = std::fs::read_to_string(folder.join("run.lock")).expect("a lock");
    let writer = lock.split_whitespace().nth(1).expect("a process");
    let children = |of: &str, name: &str| {
        let mut pgrep = Command::new("pgrep");
        let found = pgrep.args(["-d,", "-P", of, "-x", name]).output();
        let found = found.expect("pgrep").stdout;
        String::from_utf8(found)
            .expect("numbers")
            .trim()
            .to_string()
    };
    let shells = children(&child.id().to_string(), "sh");
    let others = children(&shells, "burn-dist-lm");
    let other = others.split(',').find(|pid| *pid != writer);
    let other = other.unwrap_or_else(|| panic!("one besides {writer}: {others}"));
    let kill = Command::new("kill").args(["-KILL", other]).status();
    assert!(kill.expect("kill").success());
    let output = child.wait_with_output().expect("an end");
    let said = String::from_utf8_lossy(&output.stderr);
    let ends = said
        .lines()
        .filter_map(|line| line.strip_prefix("ended with "));
    let mut ends: Vec<u8> = ends.map(|code| code.parse().expect("a code")).collect();
    ends.sort_unstable();
    // As `docs/guide/faults.md` numbers a lost process, and as shells number SIGKILL.
    assert_eq!(ends, [75, 137], "{said}");

    // The process that is left has said why, and written what it had.
    let lines = figures();
    assert!(
        lines.contains("{\"event\":\"error\",") && lines.contains(other),
        "{lines}"
    );
    let found = exact(&folder);
    assert!((7..100).contains(&found.len()), "{}", found.len());
    assert_eq!(found, expected[..found.len()]);
    // With fewer processes, from the last checkpoint.
    let output = llama(
        TRANSPORTS[0],
        1,
        &[&run("100", &folder)[..], &["--resume", "auto"]].concat(),
    );
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(exact(&folder), expected);
}
