//! Several processes under `mpirun`: the tests start themselves again as the programs marked *ignored* below.
//!
//! ```text
//! cargo test -p promises --features mpi --test over_mpi
//! ```

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::Tensor;
use burn_dist::launch;
use burn_dist::{DTensor, DeviceMesh, OnMesh, ParallelizeWith};

use promises::transformer::{Net, Training, sequence_parallel};
use promises::weights::deterministic;
#[path = "over_mpi/workspaces.rs"]
mod workspaces;

one_thread::one_thread!();

/// Starts `processes` processes of a program below; `mesh` is for it to read.
fn mpirun(processes: usize, program: &str, mesh: &str) -> Output {
    command(processes, program, mesh)
        .output()
        .expect("mpirun is installed")
}

fn command(processes: usize, program: &str, mesh: &str) -> Command {
    let mut command = mpirun_with(&[], processes, program);
    command.env("BURN_DIST_FLIGHT", "off").env("MESH", mesh);
    command
}

fn mpirun_with(options: &[&str], processes: usize, program: &str) -> Command {
    let mut command = Command::new("mpirun");
    command
        .env("RUST_TEST_THREADS", "2")
        .args(["--allow-run-as-root", "--oversubscribe"])
        .args(options)
        .args(["-n", &processes.to_string()])
        .arg(std::env::current_exe().expect("a test knows where it is"))
        .args([program, "--exact", "--ignored", "--nocapture"]);
    command
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn mesh() -> DeviceMesh {
    let axes = std::env::var("MESH").expect("the test says which");
    let builder = DeviceMesh::builder().axes(&axes.parse().expect("a mesh"));
    builder
        .scatter_bytes_min(0)
        .timeout(Duration::from_secs(5))
        .build()
        .expect("a mesh")
}

fn process() -> usize {
    let world = launch::world().expect("MPI");
    world.map_or(0, |world| world.process())
}

#[derive(Default)]
struct Sum(u64);

impl ModuleVisitor for Sum {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        for byte in param.val().into_data().as_bytes() {
            self.0 = self.0.rotate_left(5) ^ u64::from(*byte);
        }
    }
}

#[test]
#[ignore = "a program that the tests start"]
fn program_has_a_mesh_of_its_own() {
    let own = DeviceMesh::builder().axis("dp", 2).alone().build();
    let own = own.expect("a mesh in this process").device();
    let shared = mesh();
    // Each process computes something else on its own mesh, and the same on the mesh they share.
    let mine = process() as f32 + 1.0;
    let sum = |device| Tensor::<1>::ones([4], device).sum();
    assert_eq!((sum(&own) * mine).into_scalar::<f32>(), 4.0 * mine);
    println!("RESULT {}", sum(&shared.device()).into_scalar::<f32>());
}

#[test]
fn a_process_may_have_meshes_of_its_own() {
    let output = mpirun(2, "program_has_a_mesh_of_its_own", "dp=2");
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("RESULT 4").count(), 2, "{said}");
}

/// Twenty steps: the bits of the losses, and a hash of the weights.
fn train() -> String {
    let mesh = mesh();
    let device = mesh.device().autodiff();
    let plan = sequence_parallel().unit("blocks");
    let plan = plan
        .first("embedding")
        .stages("blocks")
        .last("norm")
        .last("output");
    let net = deterministic(Net::new(2, &device))
        .parallelize_with(&mesh, &plan)
        .expect("a plan");
    let mut training = Training { net, step: 0 };
    let mut optimizer = AdamWConfig::new().init();
    let mut text = String::new();
    for step in 0..20 {
        training.step = step;
        let loss = training.loss(&device);
        let gradients = GradientsParams::from_grads(loss.backward(), &training.net);
        training.net = optimizer.step(1e-2, training.net, gradients);
        let loss: f32 = loss.into_scalar::<f32>();
        text.push_str(&format!("{:08x} ", loss.to_bits()));
    }
    let mut sum = Sum::default();
    training.net.visit(&mut sum);
    format!("{text}{:016x}", sum.0)
}

#[test]
#[ignore = "a program that the tests start"]
fn program_trains() {
    let result = train();
    println!("RESULT {} {result}", process());
}

#[test]
fn processes_have_the_bits_of_one() {
    let results = |processes: usize, mesh: &str| -> Vec<String> {
        let output = mpirun(processes, "program_trains", mesh);
        let said = said(&output);
        assert!(output.status.success(), "{mesh} in {processes}: {said}");
        let results = said.lines().filter_map(|line| line.split("RESULT ").nth(1));
        let results = results.filter_map(|result| Some(result.split_once(' ')?.1.to_string()));
        results.collect()
    };
    for mesh in ["fsdp=4", "fsdp=2,tp=2", "pp=2,fsdp=2"] {
        let alone = results(1, mesh);
        assert_eq!(alone.len(), 1);
        for processes in [2, 4] {
            let found = results(processes, mesh);
            assert_eq!(found.len(), processes, "{found:?}");
            for result in found {
                assert_eq!(result, alone[0], "{mesh} in {processes} processes");
            }
        }
    }
}

#[test]
#[ignore = "a program that the tests start"]
fn program_diverges() {
    let mesh = mesh();
    let x = Tensor::<2>::ones([4, 6], &mesh.device().autodiff());
    let result = match process() {
        0 => x.sum().try_into_data(),
        _ => x.prod().try_into_data(),
    };
    println!("RESULT {}", result.expect_err("the programs differ"));
}

#[test]
fn programs_that_diverge_end_with_both_names() {
    let start = Instant::now();
    let said = said(&mpirun(2, "program_diverges", "dp=2"));
    let named: Vec<_> = said
        .lines()
        .filter(|line| line.contains("sum in process 0 and prod in process 1"))
        .collect();
    assert_eq!(named.len(), 2, "{said}");
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "nobody waited for a time-out twice"
    );
}

#[test]
fn too_few_ranks_are_an_error() {
    let output = mpirun(2, "program_trains", "dp=3");
    let said = said(&output);
    assert!(!output.status.success());
    assert!(
        said.contains("dp=3") && said.contains("2 processes"),
        "{said}"
    );
}

#[test]
#[ignore = "a program that the tests start"]
fn program_goes_on() {
    let mesh = mesh();
    println!("READY {} {}", process(), std::process::id());
    let mut x = Tensor::<1>::ones([4], &mesh.device().autodiff());
    loop {
        x = x.clone() + x.clone().sum() * 1e-3;
        if let Err(error) = x.clone().try_into_data() {
            let error = error.to_string().replace('\n', " ");
            let fault = mesh.device().fault();
            let exit_code = fault.expect("a read has failed").exit_code();
            println!("RESULT {} EXIT {exit_code} {error}", process());
            // As a program does that cannot go on.
            std::process::exit(exit_code.into());
        }
    }
}

/// A folder for flight records, which goes when the test ends well.
struct Records(std::path::PathBuf);

impl Records {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("burn-dist-mpi-{}-{name}", std::process::id())))
    }

    /// What the doctor says of all of them.
    fn diagnosis(&self) -> String {
        use burn_dist_launch::doctor::{diagnose, read};
        let files = std::fs::read_dir(&self.0).expect("records were written");
        let read = |file: std::io::Result<std::fs::DirEntry>| read(&file.expect("an entry").path());
        let records: Result<Vec<_>, _> = files.map(read).collect();
        diagnose(&records.expect("whole records"))
            .expect("records of one run")
            .to_string()
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// As [`command`]; what is left goes on when one process ends, as `burn-dist run` would have it.
fn surviving(processes: usize, program: &str, records: &Records) -> Command {
    let mut command = mpirun_with(&["--enable-recovery"], processes, program);
    command
        .env("MESH", format!("dp={processes}"))
        .env("BURN_DIST_FLIGHT", &records.0);
    command
}

/// Starts a program that goes on for ever, in three processes, sends a signal to the second, and returns what the others
/// said, and after how long they had.
fn with_signal(program: &str, signal: &str, records: &Records) -> (String, Duration) {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;
    let mut child = surviving(3, program, records)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("mpirun is installed");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut ready = Vec::new();
    while ready.len() < 3 {
        let line = lines
            .next()
            .expect("all say that they are ready")
            .expect("text");
        let words = line.split("READY ").nth(1).map(|words| words.to_string());
        ready.extend(words);
    }
    let second = ready.iter().find_map(|words| words.strip_prefix("1 "));
    let pid = second.expect("process 1 is ready").trim();
    // Some steps later.
    std::thread::sleep(Duration::from_millis(300));
    let sent = Instant::now();
    let kill = |signal: &str| Command::new("kill").args([signal, pid]).status();
    assert!(kill(signal).expect("kill is installed").success());
    let mut said = String::new();
    for line in lines {
        said.push_str(&line.expect("text"));
        said.push('\n');
        if said.matches("RESULT ").count() == 2 {
            break;
        }
    }
    let elapsed = sent.elapsed();
    let _ = kill("-KILL");
    child.wait().expect("mpirun ends");
    let is_named = |process: &str| said.contains(&format!("RESULT {process} "));
    assert!(is_named("0") && is_named("2"), "{said}");
    assert!(
        said.contains(&format!(
            "process 1 (ranks [1], host {}, pid {pid})",
            host()
        )),
        "{said}"
    );
    (said, elapsed)
}

fn host() -> String {
    let name = Command::new("hostname")
        .output()
        .expect("hostname is installed");
    String::from_utf8_lossy(&name.stdout).trim().to_string()
}

#[test]
fn a_process_that_is_killed_is_named_soon() {
    let records = Records::new("killed");
    let (said, elapsed) = with_signal("program_goes_on", "-KILL", &records);
    assert!(
        elapsed < Duration::from_secs(4),
        "before the time is over: {elapsed:?}"
    );
    assert!(said.contains("has ended without a word"), "{said}");
    assert!(said.contains("EXIT 75"), "{said}");
    assert_eq!(said.matches("; flight record: ").count(), 2, "{said}");
    let diagnosis = records.diagnosis();
    for part in [
        "Process 1, host",
        "ended without a word: it was killed, or crashed",
        "wrote no record",
        "A restart may help",
    ] {
        assert!(diagnosis.contains(part), "{diagnosis}");
    }
}

#[test]
fn a_process_that_is_stopped_is_named_when_the_time_is_over() {
    let records = Records::new("stopped");
    let (said, elapsed) = with_signal("program_goes_on", "-STOP", &records);
    // The programs wait 5 seconds for each other.
    assert!(elapsed < Duration::from_secs(9), "{elapsed:?}");
    let named = ["have not made this call", "has not run it"];
    assert!(named.iter().any(|text| said.contains(text)), "{said}");
    let diagnosis = records.diagnosis();
    for part in [
        "waited in vain",
        "No record of process 1, host",
        "Rank 1 (process 1, host",
    ] {
        assert!(diagnosis.contains(part), "{diagnosis}");
    }
}

/// Says what a read ends with when process 1 is gone, and after how many milliseconds.
fn misses_process_1(mesh: &DeviceMesh) {
    let start = Instant::now();
    let y = Tensor::<1>::ones([4], &mesh.device().autodiff()).sum();
    let error = y.try_into_data().expect_err("process 1 is gone");
    let error = error.to_string().replace('\n', " ");
    println!(
        "RESULT {} {} {error}",
        process(),
        start.elapsed().as_millis()
    );
}

#[test]
#[ignore = "a program that the tests start"]
fn program_panics_and_keeps_its_mesh() {
    static MESH: std::sync::OnceLock<DeviceMesh> = std::sync::OnceLock::new();
    let mesh = MESH.get_or_init(mesh);
    let x = Tensor::<1>::ones([4], &mesh.device().autodiff()).sum();
    assert_eq!(x.into_scalar::<f32>(), 4.0);
    if process() == 1 {
        // Ends as a panic of the main thread does: nothing is dropped.
        std::process::exit(101);
    }
    misses_process_1(mesh);
}

#[test]
#[ignore = "a program that the tests start"]
fn program_panics_and_tells() {
    let mesh = mesh();
    let x = Tensor::<1>::ones([4], &mesh.device().autodiff()).sum();
    assert_eq!(x.into_scalar::<f32>(), 4.0);
    assert_ne!(process(), 1, "this process panics");
    misses_process_1(&mesh);
}

#[test]
fn who_waits_for_a_program_that_ends_is_told_at_once() {
    for (program, text) in [
        ("program_panics_and_keeps_its_mesh", "has left"),
        ("program_panics_and_tells", "it panicked"),
    ] {
        let records = Records::new(program);
        let output = surviving(3, program, &records)
            .output()
            .expect("mpirun is installed");
        let said = said(&output);
        let results: Vec<&str> = said
            .lines()
            .filter_map(|line| line.split("RESULT ").nth(1))
            .collect();
        assert_eq!(results.len(), 2, "{said}");
        for result in results {
            let ms: u64 = result
                .split(' ')
                .nth(1)
                .expect("a time")
                .parse()
                .expect("milliseconds");
            assert!(ms < 3_000, "at once: {said}");
            assert!(
                result.contains(text) && result.contains("process 1 ("),
                "{said}"
            );
        }
    }
}

#[test]
#[ignore = "a program that the tests start"]
fn program_is_slow() {
    let mesh = mesh();
    let mut x = Tensor::<1>::ones([4], &mesh.device().autodiff());
    for _ in 0..4 {
        if process() == 1 {
            std::thread::sleep(Duration::from_millis(500));
        }
        x = x.clone() + x.clone().sum();
        let _ = x.clone().into_data();
    }
    println!("RESULT {}", x.sum().into_scalar::<f32>());
}

#[test]
fn a_slow_process_is_no_fault() {
    let records = Records::new("slow");
    let output = surviving(2, "program_is_slow", &records)
        .output()
        .expect("mpirun is installed");
    let said = said(&output);
    assert_eq!(said.matches("RESULT 2500").count(), 2, "{said}");
    assert!(!records.0.exists(), "nothing to tell");
}

#[test]
#[ignore = "a program that the tests start"]
fn program_divides_by_zero() {
    let mesh = mesh();
    let device = mesh.device().autodiff();
    // Only the last rank has the zero.
    let divisor = Tensor::<1, burn::tensor::Int>::from_ints([1, 1, 0], &device)
        .redistribute("[{dp}]")
        .expect("a layout");
    let quotient = Tensor::<1, burn::tensor::Int>::full([3], 7, &device) / divisor;
    let error = quotient
        .sum()
        .try_into_data()
        .expect_err("a division by zero")
        .to_string()
        .replace('\n', " ");
    let fault = device.fault().expect("a fault");
    println!("RESULT {} {} {error}", process(), fault.exit_code());
}

#[test]
fn an_operation_that_panics_is_named_everywhere() {
    let records = Records::new("operation");
    let output = surviving(3, "program_divides_by_zero", &records)
        .output()
        .expect("mpirun is installed");
    let said = said(&output);
    for process in 0..3 {
        assert!(said.contains(&format!("RESULT {process} 70 ")), "{said}");
    }
    assert_eq!(
        said.matches("failed in region(div over [1]").count(),
        3,
        "{said}"
    );
    assert_eq!(
        said.matches("process 2 (ranks [2], host").count(),
        3,
        "{said}"
    );
    assert!(
        records.diagnosis().contains("Rank 2 (process 2, host"),
        "{}",
        records.diagnosis()
    );
}
