//! How long it takes until every survivor of a fault knows it by name.
//!
//! ```text
//! cargo bench -p burn-dist-021 --features mpi --bench detection
//! ```
//!
//! Starts itself under `mpirun` as four processes that train on, injects a fault into one of them, and takes the time
//! from there to the error of every other process: a panic of the program, an operation that panics on a rank, a
//! collective that differs, `kill -9`, and `SIGSTOP` (programs wait 5 seconds for each other). Clocks are those of one
//! machine. The limit is the time-out for a process that is stopped, and the time messages take for everything else.
//! The last line is all of it as JSON.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use burn::backend::Flex;
use burn::tensor::{Int, Tensor};
use burn_dist::mesh::DType;
use burn_dist::mesh::ReduceOp;
use burn_dist::{DTensor, DeviceMesh, Dist, MeshBackend};
use burn_dist_comm::{Block, Call, Communicator, Group, LocalOptions, World};

type B = Dist<Flex>;

const PROCESSES: usize = 4;
const ROUNDS: usize = 3;
const TIMEOUT: Duration = Duration::from_secs(5);

/// Faults, and how many seconds they may take.
const FAULTS: [(&str, f64); 5] = [
    ("panic", 1.0),
    ("operation", 1.0),
    ("mismatch", 1.0),
    ("kill", 5.0),
    ("stop", 7.0),
];

/// The process in which it goes wrong.
const VICTIM: usize = 2;

fn now_us() -> u128 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("a clock after 1970").as_micros()
}

fn say(text: &str) {
    // One write: lines of several processes do not mix.
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{text}\n").as_bytes())
        .expect("mpirun reads");
    out.flush().expect("mpirun reads");
}

/// Tells of a fault, and ends.
fn end(error: &str, exit_code: u8) -> ! {
    say(&format!("NAMED {} {}", now_us(), error.replace('\n', " ")));
    std::process::exit(exit_code.into())
}

/// A program that goes on until something goes wrong, by its own doing in the victim if it is told to.
fn program(fault: &str) {
    let world = burn_dist::launch::world()
        .expect("MPI")
        .expect("started by mpirun");
    let is_victim = world.process() == VICTIM;
    say(&format!("READY {} {}", world.process(), std::process::id()));
    if fault == "mismatch" {
        return collectives(&world, is_victim);
    }
    let mesh = DeviceMesh::builder()
        .axis("dp", PROCESSES)
        .timeout(TIMEOUT)
        .build()
        .expect("a mesh");
    let device = mesh.device();
    let mut x = Tensor::<B, 1>::ones([8], &device);
    for step in 0.. {
        let is_time = is_victim && step == 200;
        if is_time && fault == "panic" {
            say(&format!("NOW {}", now_us()));
            panic!("this program panics");
        }
        x = x.clone() + x.clone().sum() * 1e-6;
        if step == 200 && fault == "operation" {
            if is_victim {
                say(&format!("NOW {}", now_us()));
            }
            // Only the rank of the victim divides by zero.
            let values: Vec<i32> = (0..PROCESSES)
                .map(|part| i32::from(part != VICTIM))
                .collect();
            let divisor = Tensor::<B, 1, Int>::from_ints(values.as_slice(), &device)
                .redistribute("[{dp}]")
                .expect("a layout");
            let quotient = Tensor::<B, 1, Int>::full([PROCESSES], 7, &device) / divisor;
            x = x + quotient.float().sum();
        }
        if let Err(error) = x.clone().try_into_data() {
            let fault = B::fault(&device).expect("reads fail because of a fault");
            end(&error.to_string(), fault.exit_code());
        }
    }
}

/// Calls of the transport itself: programs that differ never get that far.
fn collectives(world: &World, is_victim: bool) {
    let options = LocalOptions {
        timeout: TIMEOUT,
        ..LocalOptions::default()
    };
    let comm = world
        .connect(PROCESSES, options)
        .expect("a rank per process")
        .remove(0);
    let group = Group::world(PROCESSES).expect("some ranks");
    for step in 0.. {
        let mut num = 8;
        if is_victim && step == 200 {
            num = 9;
            say(&format!("NOW {}", now_us()));
        }
        let block = Block::from(vec![1.0_f32; num]);
        let call =
            Call::all_reduce(&group, DType::F32, ReduceOp::Sum, block).labelled("layers.3.wo");
        if let Err(error) = comm.run(call) {
            end(&error.to_string(), error.exit_code());
        }
    }
}

fn start(fault: &str) -> Child {
    Command::new("mpirun")
        .args([
            "--allow-run-as-root",
            "--oversubscribe",
            "--enable-recovery",
            "-n",
            &PROCESSES.to_string(),
        ])
        .arg(std::env::current_exe().expect("a program knows where it is"))
        .arg(fault)
        .env(
            "BURN_DIST_FLIGHT",
            std::env::temp_dir().join(format!("burn-dist-detection-{}", std::process::id())),
        )
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("mpirun is installed")
}

/// Seconds from the fault to the error of each survivor, and one of the errors.
fn measure(fault: &str) -> (Vec<f64>, String) {
    let mut child = start(fault);
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let (mut ready, mut since, mut named) = (0, None, Vec::new());
    let mut victim = String::new();
    let mut text = String::new();
    for line in lines.map_while(Result::ok) {
        let words: Vec<&str> = line.splitn(3, ' ').collect();
        match words[..] {
            ["READY", process, pid] => {
                ready += 1;
                if process == VICTIM.to_string() {
                    victim = pid.trim().to_string();
                }
                let signal = match fault {
                    "kill" => "-KILL",
                    "stop" => "-STOP",
                    _ => continue,
                };
                if ready == PROCESSES {
                    std::thread::sleep(Duration::from_millis(700));
                    since = Some(now_us());
                    let sent = Command::new("kill").args([signal, &victim]).status();
                    assert!(sent.expect("kill is installed").success());
                }
            }
            ["NOW", at] => since = Some(at.parse::<u128>().expect("a time")),
            ["NAMED", at, error] => {
                named.push(at.parse::<u128>().expect("a time"));
                text = error.to_string();
            }
            _ => {}
        }
        if named.len() >= PROCESSES - 1 && since.is_some() {
            break;
        }
    }
    let _ = Command::new("kill")
        .args(["-KILL", &victim])
        .stderr(Stdio::null())
        .status();
    let ended = Instant::now();
    let _ = child.wait();
    assert!(
        ended.elapsed() < Duration::from_secs(30),
        "processes end after their error"
    );
    let since = since.expect("the fault was injected");
    assert!(
        named.len() >= PROCESSES - 1,
        "{fault}: only {} of {} told",
        named.len(),
        PROCESSES - 1
    );
    let seconds = named.iter().map(|at| at.saturating_sub(since) as f64 / 1e6);
    (seconds.collect(), text)
}

fn main() {
    let argument = std::env::args()
        .nth(1)
        .filter(|argument| !argument.starts_with("--"));
    if let Some(fault) = argument {
        return program(&fault);
    }
    let mut figures = serde_json::Map::new();
    println!("{:<10} {:>12} {:>8}", "fault", "seconds", "at most");
    for (fault, limit) in FAULTS {
        let mut worst: f64 = 0.0;
        let mut said = String::new();
        for _ in 0..ROUNDS {
            let (seconds, text) = measure(fault);
            worst = seconds.into_iter().fold(worst, f64::max);
            said = text;
        }
        println!("{fault:<10} {worst:>12.3} {limit:>8.1}   {said}");
        figures.insert(format!("{fault}_s"), worst.into());
    }
    println!("{}", serde_json::Value::Object(figures));
}
