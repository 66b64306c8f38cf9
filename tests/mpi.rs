//! Several processes under `mpirun`: the tests start themselves again as the programs marked *ignored* below.
//!
//! ```text
//! cargo test -p burn-dist --features mpi --test mpi
//! ```

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use burn::backend::{Autodiff, Flex};
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn::tensor::backend::Backend;
use burn::tensor::{ElementConversion, Tensor};
use burn_dist::comm::World;
use burn_dist::{DeviceMesh, Dist, ParallelizeWith};

mod transformer;
use transformer::{Net, Training, sequence_parallel};
mod weights;
use weights::deterministic;

type B = Autodiff<Dist<Flex>>;

/// Starts `processes` processes of a program below; `mesh` is for it to read.
fn mpirun(processes: usize, program: &str, mesh: &str) -> Output {
    command(processes, program, mesh)
        .output()
        .expect("mpirun is installed")
}

fn command(processes: usize, program: &str, mesh: &str) -> Command {
    let mut command = Command::new("mpirun");
    command
        .args([
            "--allow-run-as-root",
            "--oversubscribe",
            "-n",
            &processes.to_string(),
        ])
        .arg(std::env::current_exe().expect("a test knows where it is"))
        .args([program, "--exact", "--ignored", "--nocapture"])
        .env("MESH", mesh);
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
    let world = World::of_launcher().expect("MPI");
    world.map_or(0, |world| world.process())
}

#[derive(Default)]
struct Sum(u64);

impl<B: Backend> ModuleVisitor<B> for Sum {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
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
    // Each process computes something else on its own mesh and on the default one, and the same on the mesh they share.
    let mine = process() as f32 + 1.0;
    let sum = |device| Tensor::<Dist<Flex>, 1>::ones([4], device).sum();
    let default = Default::default();
    let (own, alone) = (sum(&own) * mine, sum(&default) * mine);
    assert_eq!(own.into_scalar() + alone.into_scalar(), 8.0 * mine);
    println!("RESULT {}", sum(&shared.device()).into_scalar());
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
    let device = mesh.device();
    let net = deterministic(Net::<B>::new(2, &device))
        .parallelize_with(&mesh, &sequence_parallel().unit("blocks"))
        .expect("a plan");
    let mut training = Training { net, step: 0 };
    let mut optimizer = AdamWConfig::new().init();
    let mut text = String::new();
    for step in 0..20 {
        training.step = step;
        let loss = training.loss(&device);
        let gradients = GradientsParams::from_grads(loss.backward(), &training.net);
        training.net = optimizer.step(1e-2, training.net, gradients);
        let loss: f32 = loss.into_scalar().elem();
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
    for mesh in ["fsdp=4", "fsdp=2,tp=2"] {
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
    let x = Tensor::<Dist<Flex>, 2>::ones([4, 6], &mesh.device());
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
#[ignore = "a program that the tests start"]
fn program_panics() {
    let mesh = mesh();
    let device = mesh.device();
    let x = Tensor::<Dist<Flex>, 1>::ones([4], &device).sum();
    assert_eq!(x.into_scalar(), 4.0);
    assert_ne!(process(), 1, "this process panics");
    let y = Tensor::<Dist<Flex>, 1>::ones([4], &device).sum();
    println!(
        "RESULT {}",
        y.try_into_data().expect_err("process 1 is gone")
    );
}

#[test]
fn a_process_that_panics_ends_the_others() {
    let start = Instant::now();
    let output = mpirun(2, "program_panics", "dp=2");
    let said = said(&output);
    assert!(!output.status.success());
    assert!(said.contains("this process panics"), "{said}");
    assert!(start.elapsed() < Duration::from_secs(20), "{said}");
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
    let mut x = Tensor::<Dist<Flex>, 1>::ones([4], &mesh.device());
    loop {
        x = x.clone() + x.clone().sum() * 1e-3;
        if let Err(error) = x.clone().try_into_data() {
            let error = error.to_string().replace('\n', " ");
            println!("RESULT {} {error}", process());
            // As a program does that cannot go on.
            std::process::exit(1);
        }
    }
}

/// Starts a program that goes on for ever in two processes, sends a signal to the second, and returns what was said until all have ended, and after how long.
fn with_signal(signal: &str) -> (String, Duration) {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;
    let mut child = command(2, "program_goes_on", "dp=2")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("mpirun is installed");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut ready = Vec::new();
    while ready.len() < 2 {
        let line = lines
            .next()
            .expect("both say that they are ready")
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
        if said.contains("RESULT ") {
            break;
        }
    }
    let elapsed = sent.elapsed();
    let _ = kill("-KILL");
    let output = child.wait_with_output().expect("mpirun ends");
    assert!(!output.status.success());
    said.push_str(&String::from_utf8_lossy(&output.stderr));
    (said, elapsed)
}

#[test]
fn a_process_that_is_killed_ends_the_others() {
    let (said, elapsed) = with_signal("-KILL");
    assert!(elapsed < Duration::from_secs(10), "{elapsed:?}");
    assert!(
        said.contains("signal 9") || said.contains("RESULT 0"),
        "{said}"
    );
}

#[test]
fn a_process_that_is_stopped_is_named_when_the_time_is_over() {
    let (said, elapsed) = with_signal("-STOP");
    // The programs wait 5 seconds for each other.
    assert!(elapsed < Duration::from_secs(12), "{elapsed:?}");
    assert!(said.contains("RESULT 0"), "{said}");
    let named = ["ranks [1] have not", "other processes have not run it"];
    assert!(named.iter().any(|text| said.contains(text)), "{said}");
}
