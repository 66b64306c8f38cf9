//! Starting processes: `burn-dist run`, and by hand with torchrun's variables. The tests start themselves again as the
//! programs marked *ignored* below.
//!
//! ```text
//! cargo test -p burn-dist --features cli,mpi --test launch
//! ```

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use burn::module::{Param, ParamId};
use burn::nn::Linear;
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::Tensor;
use burn_dist::checkpoint::{Checkpointer, State};
use burn_dist::launch::{self, restarts};
use burn_dist::{DeviceMesh, ParallelizeWith, Plan};

one_thread::one_thread!();

/// A program below, as arguments of this test.
fn program(name: &str) -> Vec<String> {
    let test = std::env::current_exe().expect("a test knows where it is");
    let test = test.to_str().expect("its path is text");
    [test, name, "--exact", "--ignored", "--nocapture", "--quiet"]
        .map(String::from)
        .into()
}

/// `burn-dist run` with options and a program.
fn burn_dist(options: &str, program: &[String]) -> Command {
    burn_dist_by(Command::new(LAUNCHER), options, program)
}

const LAUNCHER: &str = env!("CARGO_BIN_EXE_burn-dist");

/// The same, started by something else.
fn burn_dist_by(mut command: Command, options: &str, program: &[String]) -> Command {
    command
        .arg("run")
        .args(options.split_whitespace())
        .arg("--")
        .args(program);
    alone(&mut command);
    // Whoever runs the tests may ignore signals, and the launcher would too.
    // SAFETY: only functions that may be called between fork and exec.
    unsafe {
        command.pre_exec(|| {
            for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP] {
                libc::signal(signal, libc::SIG_DFL);
            }
            Ok(())
        })
    };
    command
}

/// Without what the surroundings of the tests may say.
fn alone(command: &mut Command) {
    for variable in [
        "RANK",
        "WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "BURN_DIST_TOKEN",
        "BURN_DIST_RENDEZVOUS",
        "BURN_DIST_RESTART",
    ] {
        command.env_remove(variable);
    }
    // On one thread, a test's name and the first line that it prints would be one line.
    command.env("RUST_TEST_THREADS", "2");
}

fn run(options: &str, program: &[String]) -> Output {
    burn_dist(options, program)
        .output()
        .expect("it was built with the tests")
}

/// A shell program; `$R` is its rank, however it was started.
fn shell(script: &str) -> Vec<String> {
    let script = format!("R=$OMPI_COMM_WORLD_RANK$RANK; {script}");
    ["sh", "-c", &script].map(String::from).into()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn said(output: &Output) -> String {
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("bound").port()
}

/// This test's program as rank `rank` of `size`, with torchrun's variables.
fn by_hand(name: &str, rank: usize, size: usize, port: u16) -> Command {
    let program = program(name);
    let mut command = Command::new(&program[0]);
    command
        .args(&program[1..])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    alone(&mut command);
    command
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", size.to_string());
    command
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port.to_string());
    command
}

fn results(text: &str) -> Vec<String> {
    let results = text.lines().filter_map(|line| line.split("RESULT ").nth(1));
    let mut results: Vec<String> = results.map(String::from).collect();
    results.sort();
    results
}

/// A folder for one test.
fn folder(name: &str) -> PathBuf {
    let folder =
        std::env::temp_dir().join(format!("burn-dist-launch-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

fn token_file(folder: &Path) -> PathBuf {
    let file = folder.join("token");
    std::fs::write(&file, "0123456789abcdef0123456789abcdef").expect("a file");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("own file");
    file
}

fn is_running(pid: &str) -> bool {
    // A zombie has ended, whoever should have waited for it.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !matches!(
        stat.rsplit(") ")
            .next()
            .and_then(|rest| rest.chars().next()),
        None | Some('Z' | 'X')
    )
}

/// The processes that a process has started.
fn children(pid: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").expect("Linux");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let pids = names.filter_map(|name| name.into_string().ok());
    let is_child = |child: &String| {
        // PID (NAME) STATE PARENT
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        let parent = stat
            .rsplit(") ")
            .next()
            .and_then(|rest| rest.split(' ').nth(1));
        parent == Some(pid)
    };
    pids.filter(|pid| pid.parse::<u32>().is_ok())
        .filter(is_child)
        .collect()
}

/// Waits until something is so.
fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

const SUM: &str = "program_sums";

/// One collective over all processes.
fn sum() -> f32 {
    let mesh = DeviceMesh::parse("dp=4").expect("a mesh");
    let x = Tensor::<1>::from_floats([1.0, 2.0, 3.0, 4.0], &mesh.device());
    x.sum().into_scalar()
}

#[test]
#[ignore = "a program that the tests start"]
fn program_sums() {
    let sum = sum();
    let world = launch::world()
        .expect("a world")
        .expect("several processes");
    println!("RESULT {}/{} {sum}", world.process(), world.num_processes());
}

#[test]
fn a_program_finds_the_others_under_both_transports() {
    for transport in ["mpi", "tcp"] {
        let start = Instant::now();
        let output = run(&format!("--nproc 4 --transport {transport}"), &program(SUM));
        let said = said(&output);
        assert!(output.status.success(), "{said}");
        assert_eq!(
            results(&said),
            ["0/4 10", "1/4 10", "2/4 10", "3/4 10"],
            "{said}"
        );
        println!("{transport}: {:?} from start to end", start.elapsed());
    }
}

#[test]
fn processes_need_no_mpi() {
    for transport in ["mpi", "tcp"] {
        let mut command = burn_dist(&format!("--nproc 4 --transport {transport}"), &program(SUM));
        let output = command.env("BURN_DIST_TRANSPORT", "tcp").output();
        let output = output.expect("it was built with the tests");
        let said = said(&output);
        assert!(output.status.success(), "{said}");
        assert_eq!(results(&said).len(), 4, "{said}");
    }
    let mut command = burn_dist("--nproc 4 --transport tcp", &program(SUM));
    let output = command.env("BURN_DIST_TRANSPORT", "pigeons").output();
    let said = text(&output.expect("it was built with the tests").stderr);
    assert!(
        said.contains("BURN_DIST_TRANSPORT=pigeons") && said.contains("mpi or tcp"),
        "{said}"
    );
}

#[test]
fn a_program_finds_the_others_by_torchruns_variables() {
    let port = free_port();
    // The first to come is the last.
    let children: Vec<Child> = [1, 0]
        .map(|rank| by_hand(SUM, rank, 2, port).spawn().expect("it starts"))
        .into();
    let mut all = String::new();
    for child in children {
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{}", said(&output));
        all.push_str(&text(&output.stdout));
    }
    assert_eq!(results(&all), ["0/2 10", "1/2 10"]);
}

#[test]
fn two_machines_meet_at_the_rendezvous() {
    let mut all = String::new();
    for output in on_two_machines(2, "", &program(SUM)) {
        assert!(output.status.success(), "{}", said(&output));
        all.push_str(&text(&output.stdout));
    }
    assert_eq!(results(&all), ["0/4 10", "1/4 10", "2/4 10", "3/4 10"]);
    assert!(all.lines().any(|line| line.starts_with("[3] ")), "{all}");
}

/// Runs a program in so many processes on each of two machines, which are both this one; returns what the launchers of
/// machines 0 and 1 said in the end.
fn on_two_machines(nproc: usize, options: &str, program: &[String]) -> [Output; 2] {
    let port = free_port();
    let folder = folder(&format!("machines-{port}"));
    let token = token_file(&folder);
    let nodes = [0, 1].map(|rank| {
        let options = format!(
            "--nproc {nproc} --nnodes 2 --node-rank {rank} --rendezvous 127.0.0.1:{port} --token-file {} {options}",
            token.display()
        );
        let mut command = burn_dist(&options, program);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("it starts")
    });
    let outputs = nodes.map(|node| node.wait_with_output().expect("it ends"));
    std::fs::remove_dir_all(&folder).expect("own folder");
    outputs
}

#[test]
fn what_fails_on_one_machine_ends_all_with_its_name() {
    let start = Instant::now();
    let program = shell("[ $R = 3 ] && { sleep 1; echo 'the cause' >&2; exit 7; }; exec sleep 60");
    for output in on_two_machines(2, "--grace 1", &program) {
        assert_eq!(output.status.code(), Some(7), "{}", said(&output));
        let words = text(&output.stderr);
        let last = words.rsplit("burn-dist: ").next().unwrap_or_default();
        assert!(last.starts_with("rank 3 of 4 ("), "{words}");
        assert!(last.contains("failed first, with exit code 7"), "{words}");
        assert!(last.contains("the cause"), "{words}");
    }
    assert!(start.elapsed() < Duration::from_secs(40));
}

#[test]
#[ignore = "a program that the tests start"]
fn program_that_is_stopped() {
    sum();
    let world = launch::world().expect("a world");
    if world.is_some_and(|world| world.process() == 1) {
        // SAFETY: a call of the system without memory.
        unsafe { libc::raise(libc::SIGSTOP) };
    }
    sum();
}

#[test]
fn what_stands_still_on_one_machine_ends_all() {
    let start = Instant::now();
    let mut stopped = program("program_that_is_stopped");
    let short = ["env", "BURN_DIST_SILENCE_SECONDS=3"].map(String::from);
    stopped.splice(0..0, short);
    for (machine, output) in on_two_machines(1, "--grace 1", &stopped).iter().enumerate() {
        let said = said(output);
        // That of the loss, or of a panic of the program that it ends.
        let is_named = matches!(output.status.code(), Some(75 | 101));
        assert!(is_named, "machine {machine}: {said}");
        let words = text(&output.stderr);
        let last = words.rsplit("burn-dist: ").next().unwrap_or_default();
        assert!(
            last.contains("nothing was heard of it for 3.0 s"),
            "{words}"
        );
    }
    assert!(start.elapsed() < Duration::from_secs(40));
}

#[test]
fn a_loss_that_comes_before_the_end_here_is_heard_of() {
    // Process 1 goes without a goodbye, and well; those of machine 0 do not wait for it.
    let program = program("program_that_leaves_without_a_word");
    for output in on_two_machines(1, "--grace 1", &program) {
        assert_eq!(output.status.code(), Some(75), "{}", said(&output));
        let words = text(&output.stderr);
        let last = words.rsplit("burn-dist: ").next().unwrap_or_default();
        assert!(
            last.contains("its connection ended without a goodbye"),
            "{words}"
        );
    }
}

#[test]
#[ignore = "a program that the tests start"]
fn program_that_leaves_without_a_word() {
    sum();
    let world = launch::world().expect("a world");
    if world.is_some_and(|world| world.process() == 1) {
        // SAFETY: nothing of this process is needed any more.
        unsafe { libc::_exit(0) };
    }
    // Ends after it, and well.
    std::thread::sleep(Duration::from_secs(2));
    // SAFETY: as above.
    unsafe { libc::_exit(0) };
}

#[test]
fn machines_start_anew_together_and_end_together() {
    // The first time, a process of machine 1 fails after those of machine 0 have ended well.
    let program = shell(
        "echo start $R.${BURN_DIST_RESTART:-0}; [ $R = 2 ] || exit 0; sleep 1; [ ${BURN_DIST_RESTART:-0} = 1 ]",
    );
    let outputs = on_two_machines(2, "--max-restarts 1", &program);
    for (machine, output) in outputs.iter().enumerate() {
        assert!(output.status.success(), "{}", said(output));
        let all = text(&output.stdout);
        for rank in [2 * machine, 2 * machine + 1] {
            for restart in [0, 1] {
                assert!(all.contains(&format!("start {rank}.{restart}")), "{all}");
            }
        }
        let words = text(&output.stderr);
        assert!(words.contains("starting all processes anew"), "{words}");
    }
}

#[test]
fn lines_have_the_rank_of_their_process() {
    for transport in ["mpi", "tcp"] {
        let program = shell("echo \"out $R\"; echo \"err $R\" >&2; cat");
        let output = run(&format!("--nproc 2 --transport {transport}"), &program);
        assert!(output.status.success(), "{}", said(&output));
        let mut lines: Vec<String> = text(&output.stdout).lines().map(String::from).collect();
        lines.sort();
        assert_eq!(lines, ["[0] out 0", "[1] out 1"]);
        let mut lines: Vec<String> = text(&output.stderr).lines().map(String::from).collect();
        lines.sort();
        assert_eq!(lines, ["[0] err 0", "[1] err 1"]);
        // Of process 0 as it is.
        let output = run(
            &format!("--nproc 2 --transport {transport} --quiet-prefix"),
            &program,
        );
        let lines = text(&output.stdout);
        assert!(
            lines.contains("[1] out 1\n") && lines.contains("out 0\n") && !lines.contains("[0]"),
            "{lines}"
        );
    }
}

#[test]
fn the_first_error_comes_last_and_its_code_is_that_of_the_run() {
    for transport in ["mpi", "tcp"] {
        let start = Instant::now();
        let output = run(
            &format!("--nproc 3 --transport {transport} --grace 1"),
            &shell(
                "echo up; [ $R = 1 ] || { sleep 0.5; echo 'a consequence' >&2; exec sleep 60; }; echo 'the cause' >&2; \
                 exit 7",
            ),
        );
        assert_eq!(output.status.code(), Some(7));
        let stderr = text(&output.stderr);
        let last: Vec<&str> = stderr.lines().rev().take(2).collect();
        assert_eq!(last[0], "  the cause", "{stderr}");
        assert!(
            last[1].starts_with("burn-dist: rank 1 of 3 (")
                && last[1].ends_with("failed first, with exit code 7; its last words on stderr:"),
            "{stderr}"
        );
        // The others were given the time to say what they know.
        assert_eq!(stderr.matches("a consequence").count(), 2, "{stderr}");
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "{:?}",
            start.elapsed()
        );
    }
}

#[test]
fn exit_codes_are_those_of_a_shell() {
    for transport in ["mpi", "tcp"] {
        for (script, code, expected) in [
            ("exit 0", 0, ""),
            (
                "kill -9 $$",
                137,
                "killed by signal 9 (SIGKILL); it wrote nothing to stderr",
            ),
            ("kill -SEGV $$", 139, "killed by signal 11 (SIGSEGV)"),
            ("exit 130", 130, "with exit code 130"),
        ] {
            let output = run(
                &format!("--nproc 2 --transport {transport}"),
                &shell(script),
            );
            assert_eq!(
                output.status.code(),
                Some(code),
                "{script}: {}",
                said(&output)
            );
            assert!(
                said(&output).contains(expected),
                "{script}: {}",
                said(&output)
            );
        }
        let output = run(
            &format!("--nproc 2 --transport {transport}"),
            &["no-such-program".into()],
        );
        assert_eq!(output.status.code(), Some(127));
        assert!(
            said(&output).contains("cannot run no-such-program: No such file"),
            "{}",
            said(&output)
        );
        let output = run(
            &format!("--nproc 1 --transport {transport}"),
            &["/dev/null".into()],
        );
        assert_eq!(output.status.code(), Some(126));
    }
}

#[test]
fn options_that_cannot_be_are_named() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = taken.local_addr().expect("bound");
    let program = shell("exit 0");
    for (options, code, expected) in [
        (
            "--nproc 0".to_string(),
            2,
            "--nproc 0 starts nothing: give at least 1",
        ),
        (
            "--nproc 300 --nnodes 300".into(),
            2,
            "--nproc 300 on each of --nnodes 300 machines is more than 65536 processes",
        ),
        (
            "--nproc 1 --grace 18446744073709551615".into(),
            2,
            "is more than a day: give at most 86400 seconds",
        ),
        (
            "--nproc 2 --nnodes 2".into(),
            2,
            "--nnodes 2 needs --rendezvous HOST:PORT",
        ),
        (
            "--nproc 2 --nnodes 2 --rendezvous 127.0.0.1:4000".into(),
            2,
            "--nnodes 2 needs a secret by which the machines know each other",
        ),
        (
            "--nproc 1 --token-file /nonexistent".into(),
            2,
            "cannot read the token from /nonexistent",
        ),
        (
            format!("--nproc 1 --rendezvous {taken}"),
            125,
            "another program listens at this port",
        ),
        (
            "--nproc 1 --rendezvous 192.0.2.1:4000".into(),
            125,
            "this is not an address of this machine",
        ),
    ] {
        let output = run(&options, &program);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{options}: {}",
            said(&output)
        );
        assert!(
            said(&output).contains(expected),
            "{options}: {}",
            said(&output)
        );
    }
    let output = run("--nproc 1", &[]);
    assert!(
        said(&output).contains("there is no program to start: write it after --"),
        "{}",
        said(&output)
    );
    let mut command = burn_dist("--nproc 1", &program);
    let output = command
        .env("PATH", "/nonexistent")
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(125));
    assert!(
        said(&output).contains("cannot start mpirun") && said(&output).contains("--transport tcp"),
        "{}",
        said(&output)
    );
}

#[test]
fn restarts_are_counted_and_end() {
    let folder = folder("restarts");
    for transport in ["mpi", "tcp"] {
        let script = "echo \"start $BURN_DIST_RESTART of $R\"; [ $R = 0 ] || [ $BURN_DIST_RESTART -ge 2 ] || exit 5";
        let options = format!("--nproc 2 --transport {transport} --max-restarts");
        let output = run(&format!("{options} 2"), &shell(script));
        assert!(output.status.success(), "{}", said(&output));
        let stdout = text(&output.stdout);
        for restart in 0..3 {
            assert!(
                stdout.contains(&format!("[1] start {restart} of 1")),
                "{stdout}"
            );
        }
        let stderr = text(&output.stderr);
        assert!(
            stderr.contains(
                "with exit code 5\nburn-dist: starting all processes anew in 1 s (1 of 2)\n"
            ) && stderr.contains("burn-dist: starting all processes anew in 2 s (2 of 2)\n"),
            "{stderr}"
        );
        let output = run(&format!("{options} 1"), &shell(script));
        assert_eq!(output.status.code(), Some(5), "{}", said(&output));
    }
    // A program that resumes: it fails in the middle of its first run, after the first collective.
    let mut command = burn_dist(
        "--nproc 2 --transport tcp --max-restarts 1",
        &program("program_resumes"),
    );
    let output = command
        .env("STATE", folder.join("state"))
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(
        results(&said(&output)),
        ["resumed at 10", "resumed at 10"],
        "{}",
        said(&output)
    );
    std::fs::remove_dir_all(&folder).expect("own folder");
}

#[test]
fn restarts_that_cannot_help_are_left_out() {
    let options = "--nproc 1 --transport tcp --max-restarts 9";
    let output = run(options, &shell("echo start; exit 2"));
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert_eq!(text(&output.stdout), "[0] start\n");
    // A signal between two starts.
    let mut command = burn_dist(options, &shell("exit 5"));
    let mut child = command
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut stderr = BufReader::new(child.stderr.take().expect("a pipe"));
    let mut line = String::new();
    while !line.contains("anew in") {
        line.clear();
        assert!(stderr.read_line(&mut line).expect("text") > 0, "it ended");
    }
    kill("-INT", &child.id().to_string());
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).expect("text");
    assert_eq!(child.wait().expect("own child").code(), Some(5), "{rest}");
    assert_eq!(rest, "burn-dist: not started anew: stopped by SIGINT\n");
}

#[test]
#[ignore = "a program that the tests start"]
fn program_resumes() {
    let state = PathBuf::from(std::env::var("STATE").expect("the test says where"));
    let sum = sum();
    if restarts().expect("a number") > 0 {
        println!(
            "RESULT resumed at {}",
            std::fs::read_to_string(&state).expect("a state")
        );
        return;
    }
    let world = launch::world()
        .expect("a world")
        .expect("several processes");
    if world.process() == 0 {
        std::fs::write(&state, format!("{sum}")).expect("a state");
        std::process::exit(1);
    }
    std::thread::sleep(Duration::from_secs(60));
}

/// A run whose processes are killed in its third step goes on from the checkpoint of the second.
#[test]
fn a_killed_run_goes_on_from_its_checkpoint() {
    let folder = folder("goes-on");
    for transport in ["mpi", "tcp"] {
        let state = folder.join(transport);
        let options = format!("--nproc 2 --transport {transport} --max-restarts 1");
        let output = burn_dist(&options, &program("program_trains"))
            .env("STATE", &state)
            .output()
            .expect("it runs");
        let said = said(&output);
        assert!(output.status.success(), "{said}");
        let ends = results(&said);
        assert_eq!(ends.len(), 2, "{said}");
        assert!(
            ends.iter().all(|end| end.starts_with("from step 2:")),
            "{said}"
        );
        assert_eq!(ends[0], ends[1]);
        // The same program in one process that nobody kills.
        let whole = folder.join(format!("{transport}-whole"));
        let test = program("program_trains");
        let output = Command::new(&test[0])
            .args(&test[1..])
            .env("STATE", &whole)
            .output();
        let said = self::said(&output.expect("it runs"));
        let expected = results(&said)[0].replace("from step 0:", "from step 2:");
        assert_eq!(ends[0], expected, "{said}");
    }
    std::fs::remove_dir_all(&folder).expect("own folder");
}

#[test]
#[ignore = "a program that the tests start"]
fn program_trains() {
    let state = PathBuf::from(std::env::var("STATE").expect("the test says where"));
    let world = launch::world().expect("a world");
    let mesh = DeviceMesh::parse("fsdp=2").expect("a mesh");
    let device = mesh.device().autodiff();
    let weight = Tensor::<2>::from_data([[1.0, 2.0], [3.0, 4.0]], &device);
    let linear = Linear {
        weight: Param::initialized(ParamId::new(), weight.require_grad()),
        bias: None,
    };
    let mut model = linear
        .parallelize_with(&mesh, &Plan::new())
        .expect("a plan");
    let mut optimizer = AdamConfig::new().init();
    let mut checkpoints = Checkpointer::at(&state, &device).expect("a folder");
    let mut first = 0;
    if let Some(saved) = checkpoints.latest().expect("readable") {
        model = saved.module("model", model).expect("the model");
        optimizer = saved
            .optimizer("optimizer", optimizer, &model)
            .expect("its state");
        first = saved.step();
    }
    for step in first..4 {
        let killed = step == 2 && restarts().expect("a number") == 0;
        if let Some(world) = world.as_ref().filter(|_| killed) {
            // One ends at once, in the midst of a save of all.
            match world.process() {
                1 => std::process::abort(),
                _ => std::thread::sleep(Duration::from_millis(200)),
            }
        }
        let x = Tensor::<2>::from_data([[1.0, -1.0], [0.5, 2.0]], &device);
        let loss = model.forward(x).powi_scalar(2).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(0.1, model, gradients);
        let saved = State::new().module("model", &model);
        let saved = saved.optimizer("optimizer", &optimizer, &model);
        checkpoints.save(step + 1, saved).expect("saved");
    }
    let weight = model
        .weight
        .val()
        .into_data()
        .try_into_vec::<f32>()
        .expect("floats");
    println!("RESULT from step {first}: {weight:?}");
}

/// Starts a program and waits until it has said so many lines, which it returns.
fn start(
    options: &str,
    program: &[String],
    lines: usize,
) -> (Child, Vec<String>, BufReader<ChildStdout>) {
    start_command(burn_dist(options, program), lines)
}

fn start_command(
    mut command: Command,
    lines: usize,
) -> (Child, Vec<String>, BufReader<ChildStdout>) {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut said = Vec::new();
    while said.len() < lines {
        let mut line = String::new();
        let read = stdout.read_line(&mut line).expect("text");
        assert!(read > 0, "it ended after {said:?}");
        said.push(line.trim().to_string());
    }
    (child, said, stdout)
}

/// Waits for the end of a program that was started so; returns its exit code, what else it said on stdout, and its
/// stderr.
fn finish(child: Child, mut stdout: BufReader<ChildStdout>) -> (Option<i32>, String, String) {
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).expect("text");
    let output = child.wait_with_output().expect("it ends");
    (output.status.code(), rest, text(&output.stderr))
}

fn kill(signal: &str, pid: &str) {
    let sent = Command::new("kill").args([signal, pid]).status();
    assert!(sent.expect("kill is installed").success());
}

#[test]
fn signals_are_passed_on_and_a_second_one_kills() {
    for transport in ["mpi", "tcp"] {
        let options = format!("--nproc 2 --transport {transport}");
        // A program that ends well on a signal, a while after it.
        let script = "ulimit -c 0; trap 'echo got $R; sleep 0.3; exit 0' INT; trap 'echo term $R; exit 9' TERM; trap \
            'echo quit $R; exit 0' QUIT; echo up; while :; do sleep 0.05; done";
        for (signal, code, expected) in [
            ("-INT", 0, "got"),
            ("-TERM", 9, "term"),
            ("-QUIT", 0, "quit"),
        ] {
            let (child, _, stdout) = start(&options, &shell(script), 2);
            kill(signal, &child.id().to_string());
            let (ended, rest, stderr) = finish(child, stdout);
            assert_eq!(ended, Some(code), "{rest}{stderr}");
            assert!(
                rest.contains(&format!("[0] {expected} 0"))
                    && rest.contains(&format!("[1] {expected} 1")),
                "{rest}"
            );
        }
        // One that does not want to.
        let (mut child, _, _stdout) = start(
            &options,
            &shell("trap '' INT; echo up; while :; do sleep 0.05; done"),
            2,
        );
        let launcher = child.id().to_string();
        // The second of these is too early to be another one.
        for pause in [100, 1100] {
            kill("-INT", &launcher);
            std::thread::sleep(Duration::from_millis(pause));
            assert!(
                child.try_wait().expect("own child").is_none(),
                "it waits for them"
            );
        }
        kill("-INT", &launcher);
        assert_eq!(child.wait().expect("own child").code(), Some(137));
    }
}

#[test]
fn after_a_signal_nobody_is_hurried() {
    for transport in ["mpi", "tcp"] {
        let options = format!("--nproc 2 --transport {transport} --grace 1");
        // Process 1 fails while process 0 saves.
        let script = "trap '[ $R = 1 ] && exit 3; sleep 2; echo saved; exit 0' INT; echo up; while :; do sleep 0.05; \
            done";
        let (child, _, stdout) = start(&options, &shell(script), 2);
        kill("-INT", &child.id().to_string());
        let (code, rest, stderr) = finish(child, stdout);
        assert_eq!(code, Some(3), "{rest}{stderr}");
        assert!(rest.contains("[0] saved\n"), "{rest}{stderr}");
        assert!(
            stderr.contains("burn-dist: stopped by SIGINT; after that rank 1 of 2 (")
                && stderr.contains(" ended, with exit code 3;"),
            "{stderr}"
        );
        // `timeout` sends its signal twice.
        let script =
            "trap 'sleep 0.5; echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done";
        let (child, _, stdout) = start(&options, &shell(script), 2);
        kill("-TERM", &child.id().to_string());
        kill("-TERM", &child.id().to_string());
        let (code, rest, stderr) = finish(child, stdout);
        assert_eq!(code, Some(0), "{rest}{stderr}");
        assert_eq!(rest.matches("saved").count(), 2, "{rest}{stderr}");
    }
}

#[test]
fn a_signal_is_no_failure_and_a_failure_before_it_is() {
    for transport in ["mpi", "tcp"] {
        let options = format!("--nproc 2 --transport {transport}");
        let (child, _, stdout) = start(&options, &shell("echo up; exec sleep 60"), 2);
        kill("-INT", &child.id().to_string());
        let (code, _, stderr) = finish(child, stdout);
        assert_eq!(code, Some(130), "{stderr}");
        assert!(
            stderr.ends_with("burn-dist: stopped by SIGINT\n") && !stderr.contains("failed"),
            "{stderr}"
        );
        let script =
            "[ $R = 1 ] && exit 5; trap 'exit 0' INT; echo up; while :; do sleep 0.05; done";
        let (child, _, stdout) = start(&options, &shell(script), 1);
        std::thread::sleep(Duration::from_millis(700));
        kill("-INT", &child.id().to_string());
        let (code, _, stderr) = finish(child, stdout);
        assert_eq!(code, Some(5), "{stderr}");
        assert!(
            stderr.contains("burn-dist: rank 1 of 2 (")
                && stderr.contains("failed first, with exit code 5"),
            "{stderr}"
        );
    }
}

#[test]
fn a_consequence_does_not_hide_the_first_failure() {
    for transport in ["mpi", "tcp"] {
        let options = format!("--nproc 2 --transport {transport}");
        for (signal, code, failed) in [("ABRT", 7, 1), ("SEGV", 139, 0)] {
            let script = format!("ulimit -c 0; [ $R = 1 ] && exit 7; sleep 0.5; kill -{signal} $$");
            let output = run(&options, &shell(&script));
            assert_eq!(output.status.code(), Some(code), "{}", said(&output));
            let expected = format!("burn-dist: rank {failed} of 2 (");
            assert!(said(&output).contains(&expected), "{}", said(&output));
        }
    }
}

#[test]
fn a_signal_ends_what_is_still_starting() {
    let folder = folder("starting");
    // An mpirun that starts nothing.
    let mpirun = folder.join("mpirun");
    let script = "#!/bin/sh\necho $$ > \"$0.pid\"\nexec sleep 60\n";
    std::fs::write(&mpirun, script).expect("a file");
    std::fs::set_permissions(&mpirun, PermissionsExt::from_mode(0o700)).expect("own file");
    let path = std::env::var("PATH").expect("programs are somewhere");
    let mut command = burn_dist("--nproc 2", &shell("exit 0"));
    let child = command
        .env("PATH", format!("{}:{path}", folder.display()))
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let pid = || {
        let pid = std::fs::read_to_string(folder.join("mpirun.pid")).unwrap_or_default();
        pid.trim().to_string()
    };
    eventually("mpirun is started", || !pid().is_empty());
    let start = Instant::now();
    kill("-INT", &child.id().to_string());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130), "{}", said(&output));
    assert_eq!(text(&output.stderr), "burn-dist: stopped by SIGINT\n");
    let elapsed = start.elapsed();
    assert!(elapsed < Duration::from_secs(8), "{elapsed:?}");
    assert!(!is_running(&pid()), "mpirun outlives its launcher");
    std::fs::remove_dir_all(&folder).expect("own folder");
}

#[test]
fn what_the_launcher_ignores_all_ignore() {
    for transport in ["mpi", "tcp"] {
        let mut nohup = Command::new("nohup");
        nohup.arg(LAUNCHER);
        let options = format!("--nproc 1 --transport {transport}");
        // mpirun has handlers of its own, which its processes do not inherit.
        let script = "echo up; [ -z \"$RANK\" ] || kill -HUP $$; sleep 1; echo survived";
        let (child, _, stdout) = start_command(burn_dist_by(nohup, &options, &shell(script)), 1);
        kill("-HUP", &child.id().to_string());
        let (code, rest, stderr) = finish(child, stdout);
        assert_eq!(code, Some(0), "{transport}: {rest}{stderr}");
        assert!(rest.contains("[0] survived\n"), "{rest}{stderr}");
    }
}

#[test]
fn signals_of_others_do_not_end_supervisors() {
    for transport in ["mpi", "tcp"] {
        let options = format!("--nproc 1 --transport {transport}");
        let script = "echo $PPID; sleep 1; echo done";
        let (child, lines, stdout) = start(&options, &shell(script), 1);
        let supervisor = lines[0].strip_prefix("[0] ").expect("its rank");
        for signal in ["-USR1", "-USR2", "-QUIT", "-HUP", "-WINCH"] {
            kill(signal, supervisor);
        }
        let (code, rest, stderr) = finish(child, stdout);
        assert_eq!(code, Some(0), "{rest}{stderr}");
        assert_eq!(rest, "[0] done\n");
    }
}

#[test]
fn output_is_whole_however_slowly_it_is_read() {
    for transport in ["mpi", "tcp"] {
        let options = format!("--nproc 1 --transport {transport}");
        let (child, _, stdout) = start(&options, &shell("seq 1 20000"), 1);
        std::thread::sleep(Duration::from_millis(2500));
        let (code, rest, stderr) = finish(child, stdout);
        assert_eq!(code, Some(0), "{stderr}");
        assert_eq!(rest.lines().count(), 19_999);
        assert!(rest.ends_with("[0] 20000\n"), "the last line is whole");
        // Something that has left the process group holds the pipe open, and says nothing.
        let start = Instant::now();
        let script = "setsid sleep 10 & sleep 0.5; echo done";
        let output = run(&options, &shell(script));
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert_eq!(text(&output.stdout), "[0] done\n");
        let elapsed = start.elapsed();
        assert!(elapsed < Duration::from_secs(8), "{elapsed:?}");
    }
}

#[test]
fn a_signal_ends_a_launcher_whose_output_nobody_reads() {
    let options = "--nproc 1 --transport tcp";
    let (mut child, _, stdout) = start(options, &shell("seq 1 1000000"), 1);
    let launcher = child.id().to_string();
    // Long enough for all pipes to be full.
    std::thread::sleep(Duration::from_millis(500));
    kill("-INT", &launcher);
    std::thread::sleep(Duration::from_millis(1500));
    assert!(is_running(&launcher), "what was written is not read yet");
    kill("-INT", &launcher);
    eventually("it waits for a reader", || !is_running(&launcher));
    assert_eq!(child.wait().expect("own child").code(), Some(130));
    drop(stdout);
}

#[test]
fn the_limit_of_open_files_is_raised_for_the_launcher_only() {
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -S -n 64; exec \"$0\" \"$@\"", LAUNCHER]);
    let options = "--nproc 16 --transport tcp";
    let output = burn_dist_by(limited, options, &shell("ulimit -S -n"))
        .output()
        .expect("sh is installed");
    assert!(output.status.success(), "{}", said(&output));
    let limits = text(&output.stdout);
    assert_eq!(limits.lines().count(), 16, "{limits}");
    assert!(
        limits.lines().all(|line| line.ends_with("] 64")),
        "{limits}"
    );
}

#[test]
fn terminals_are_for_process_0_alone() {
    use nix::fcntl::OFlag;
    use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let mut screen = posix_openpt(flags).expect("a terminal");
    grantpt(&screen).expect("own terminal");
    unlockpt(&screen).expect("own terminal");
    let name = ptsname_r(&screen).expect("it has a name");
    let end = || {
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NOCTTY);
        options.open(&name).expect("the other end")
    };
    let script = "[ -t 1 ] && echo terminal $R; for f in /proc/$$/fd/*; do case $(readlink $f) in \
        /dev/pts/*|/dev/ptmx|*ptmx) echo file ${f##*/} of $R;; esac; done";
    let mut command = burn_dist("--nproc 2 --transport tcp", &shell(script));
    let mut child = command
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .stdout(end())
        .stderr(end())
        .spawn()
        .expect("it starts");
    // It holds them too.
    drop(command);
    let (mut shown, mut bytes) = (Vec::new(), [0; 1024]);
    // A terminal ends with an error.
    while let Ok(read @ 1..) = screen.read(&mut bytes) {
        shown.extend(&bytes[..read]);
    }
    assert!(child.wait().expect("own child").success());
    let shown = text(&shown).replace('\r', "");
    let mut lines: Vec<&str> = shown.lines().collect();
    lines.sort();
    assert_eq!(lines, ["file 1 of 0", "file 2 of 0", "terminal 0"]);
}

#[test]
fn processes_do_not_outlive_their_mpirun() {
    let script = "sleep 300 & echo $$; echo $!; wait";
    let (child, lines, stdout) = start("--nproc 2 --transport mpi", &shell(script), 4);
    let pids: Vec<&str> = lines
        .iter()
        .filter_map(|line| line.split(' ').nth(1))
        .collect();
    assert_eq!(pids.len(), 4, "{lines:?}");
    let mpirun = children(&child.id().to_string());
    assert_eq!(mpirun.len(), 1, "{mpirun:?}");
    kill("-KILL", &mpirun[0]);
    let (code, rest, stderr) = finish(child, stdout);
    assert_eq!(code, Some(125), "{rest}{stderr}");
    assert!(
        stderr.contains("mpirun ended with signal 9 while it ran"),
        "{stderr}"
    );
    for pid in pids {
        eventually("a process outlives its mpirun", || !is_running(pid));
    }
}

#[test]
fn nothing_outlives_a_launcher_that_is_killed() {
    for transport in ["mpi", "tcp"] {
        // Each process has a child of its own.
        let script = "sleep 300 & echo $$; echo $!; wait";
        let (mut child, lines, _stdout) = start(
            &format!("--nproc 2 --transport {transport}"),
            &shell(script),
            4,
        );
        let pids: Vec<&str> = lines
            .iter()
            .filter_map(|line| line.split(' ').nth(1))
            .collect();
        assert_eq!(pids.len(), 4, "{lines:?}");
        assert!(pids.iter().all(|pid| is_running(pid)), "{lines:?}");
        // Where Open MPI has its messages.
        let name = format!("burn-dist-{}-", child.id());
        let memory = || {
            let entries = std::fs::read_dir("/dev/shm").into_iter().flatten();
            let names = entries.flatten().map(|entry| entry.file_name());
            names
                .filter(|found| found.to_string_lossy().starts_with(&name))
                .count()
        };
        let has_memory = memory() > 0;
        assert_eq!(has_memory, Path::new("/dev/shm").is_dir());
        child.kill().expect("own child");
        child.wait().expect("own child");
        for pid in pids {
            eventually("a process outlives its launcher", || !is_running(pid));
        }
        eventually("memory outlives the launcher", || memory() == 0);
    }
}

#[test]
#[ignore = "a program that the tests start"]
fn program_goes_on() {
    let mesh = DeviceMesh::builder()
        .axis("dp", 2)
        .timeout(Duration::from_secs(60))
        .build()
        .expect("a mesh");
    let process = launch::world()
        .expect("a world")
        .map_or(0, |world| world.process());
    println!("READY {process} {}", std::process::id());
    let mut x = Tensor::<1>::ones([4], &mesh.device());
    loop {
        x = x.clone() + x.clone().sum() * 1e-3;
        if let Err(error) = x.clone().try_into_data() {
            println!("RESULT {process} {}", error.to_string().replace('\n', " "));
            std::process::exit(1);
        }
    }
}

#[test]
fn a_process_that_is_killed_is_named_by_the_survivor() {
    for transport in ["mpi", "tcp"] {
        let (child, lines, mut stdout) = start(
            &format!("--nproc 2 --transport {transport}"),
            &program("program_goes_on"),
            3,
        );
        let mut lines = lines;
        while lines.iter().filter(|line| line.contains("READY ")).count() < 2 {
            let mut line = String::new();
            assert!(stdout.read_line(&mut line).expect("text") > 0, "{lines:?}");
            lines.push(line);
        }
        let second = lines
            .iter()
            .find_map(|line| line.split("READY 1 ").nth(1))
            .expect("process 1 is ready")
            .trim()
            .to_string();
        std::thread::sleep(Duration::from_millis(300));
        let sent = Instant::now();
        kill("-KILL", &second);
        let mut rest = String::new();
        stdout.read_to_string(&mut rest).expect("text");
        let elapsed = sent.elapsed();
        let output = child.wait_with_output().expect("it ends");
        let named = format!("rank 1 ({}, pid {second}) has vanished", gethostname());
        assert!(
            rest.contains("RESULT 0 ") && rest.contains(&named),
            "{transport}: {rest}{}",
            said(&output)
        );
        assert!(elapsed < Duration::from_secs(5), "{elapsed:?}");
        assert_eq!(output.status.code(), Some(137), "{}", said(&output));
        let stderr = text(&output.stderr);
        assert!(
            stderr.contains("burn-dist: rank 1 of 2 (") && stderr.contains("killed by signal 9"),
            "{stderr}"
        );
        println!("{transport}: {elapsed:?} from kill -9 to the end of the survivor");
    }
}

fn gethostname() -> String {
    burn_dist::launch::Peer::this().host
}

/// What the only process of two says that is started, or the second one.
fn fails(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    assert!(!output.status.success(), "{}", said(&output));
    said(&output)
}

#[test]
fn processes_that_do_not_come_are_named() {
    let said = fails(by_hand(SUM, 0, 2, free_port()).env("BURN_DIST_JOIN_SECONDS", "0.5"));
    assert!(said.contains("rank 1 has not said hello"), "{said}");
    let port = free_port();
    let said = fails(by_hand(SUM, 1, 2, port).env("BURN_DIST_JOIN_SECONDS", "0.5"));
    assert!(
        said.contains(&format!(
            "found no rendezvous at 127.0.0.1:{port} within 0.5 s"
        )),
        "{said}"
    );
}

#[test]
fn what_does_not_fit_together_is_named_by_both() {
    // (what the first process is given, the second, what the first says, what the second says)
    let token = |text: &str| vec![("BURN_DIST_TOKEN", format!("{text}-0123456789abcdef"))];
    let cases = [
        (
            token("one"),
            token("two"),
            "with another token",
            "has another token: give all processes the same BURN_DIST_TOKEN",
        ),
        (
            vec![],
            vec![("WORLD_SIZE", "3".to_string())],
            "was started as one of 3 processes, and the rendezvous is for 2",
            "was started as one of 3 processes",
        ),
        (
            vec![],
            vec![("RANK", "0".to_string())],
            "",
            "another program listens at this port",
        ),
    ];
    for (first, second, first_says, second_says) in cases {
        let port = free_port();
        let mut zero = by_hand(SUM, 0, 2, port);
        zero.envs(first).env("BURN_DIST_JOIN_SECONDS", "3");
        let mut zero = zero.spawn().expect("it starts");
        eventually("process 0 listens", || {
            std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        let said = fails(by_hand(SUM, 1, 2, port).envs(second));
        assert!(said.contains(second_says), "{said}");
        if first_says.is_empty() {
            zero.kill().expect("own child");
            zero.wait().expect("own child");
            continue;
        }
        let output = zero.wait_with_output().expect("it ends");
        assert!(!output.status.success());
        let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
        assert!(said.contains(first_says), "{said}");
    }
    // Two that both say they are rank 1, at a rendezvous for three.
    let port = free_port();
    let children: Vec<Child> = [0, 1, 1]
        .map(|rank| by_hand(SUM, rank, 3, port).spawn().expect("it starts"))
        .into();
    for child in children {
        let output = child.wait_with_output().expect("it ends");
        assert!(
            said(&output).contains("two processes are rank 1: "),
            "{}",
            said(&output)
        );
    }
}

#[test]
fn contradicting_variables_are_named() {
    for (variable, value, expected) in [
        ("RANK", "2", "RANK=2 is outside WORLD_SIZE=2"),
        ("WORLD_SIZE", "two", "WORLD_SIZE=two is not a number"),
        (
            "MASTER_PORT",
            "",
            "MASTER_ADDR=127.0.0.1, but MASTER_PORT is not set",
        ),
        (
            "MASTER_ADDR",
            "192.0.2.1",
            "set BURN_DIST_TOKEN to the same in all of them",
        ),
        (
            "BURN_DIST_TOKEN",
            "short",
            "BURN_DIST_TOKEN has a token of 5 bytes",
        ),
        (
            "BURN_DIST_TRANSPORT",
            "mpi",
            "torchrun's variables started no MPI: start the program with `mpirun`",
        ),
    ] {
        let said = fails(by_hand(SUM, 1, 2, free_port()).env(variable, value));
        assert!(said.contains(expected), "{variable}={value}: {said}");
    }
}
