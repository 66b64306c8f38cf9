//! Collectives between processes, over MPI and over TCP, against plain MPI doing the same.
//!
//! ```text
//! cargo bench -p burn-dist-comm --features mpi,tcp --bench processes
//! ```
//!
//! Starts itself under `mpirun`, in turn as ours over MPI; as ours over TCP, as inside a machine, where bodies are read
//! from the memory of their sender; as ours over TCP alone, as between machines without a seal; as plain MPI
//! (`MPI_Allgather`, `MPI_Reduce_scatter_block`, `MPI_Allreduce`, in their own order of summation), which on one
//! machine goes through shared memory; and as plain MPI that has to use TCP (`--mca btl tcp,self`). One rank per
//! process, calls back to back. Prints the best time per call of each and ratios (plain MPI / ours: above 1 is faster
//! than plain MPI), and at the end all ratios as one line of JSON, with the system's congestion control. The physical
//! limit on one machine is copying memory: every byte received is written once.
//!
//! TCP takes what its congestion control allows: BBR paces what it sends by a rate that it estimates, also inside a
//! machine, where that takes up to twice the time of CUBIC and differs from run to run. Ours takes CUBIC where the
//! system is set to BBR; plain MPI takes what the system is set to.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::time::{Duration, Instant};

use burn_dist_comm::{
    Call, Communicator, Connection, Group, LocalOptions, Mpi, Strided, Tcp, World,
};
use burn_dist_mesh::DType;
use burn_dist_mesh::ReduceOp;
use bytemuck::{Pod, Zeroable};
use mpi::collective::SystemOperation;
use mpi::traits::{Communicator as _, CommunicatorCollectives as _};

const KINDS: [&str; 3] = ["all_gather", "reduce_scatter", "all_reduce"];

/// Bytes of the whole tensor.
const SIZES: [usize; 5] = [256, 64 << 10, 1 << 20, 8 << 20, 64 << 20];

const ROUNDS: usize = 3;

/// Longer than the end of the others takes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Repetitions of one size within a round.
fn repetitions(bytes: usize) -> usize {
    ((64 << 20) / bytes).clamp(5, 1000)
}

/// Times calls back to back, after one that does not count: each needs all processes, so that none runs ahead.
fn per_call(bytes: usize, mut once: impl FnMut()) -> f64 {
    once();
    let start = Instant::now();
    let count = repetitions(bytes);
    for _ in 0..count {
        once();
    }
    start.elapsed().as_secs_f64() / count as f64
}

/// Elements as ranks have them, in memory that begins with a cache line: copies between places that lie differently in
/// their lines take up to a fifth longer.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

// SAFETY: all bits that are 0 are zeros.
unsafe impl Zeroable for Line {}
// SAFETY: floats, with no bytes between or behind them.
unsafe impl Pod for Line {}

/// So many elements; all are 1.
fn ones(elements: usize) -> Vec<Line> {
    vec![Line([1.0; 16]); elements / 16]
}

fn report(kind: &str, bytes: usize, seconds: f64) {
    println!("TIME {kind} {bytes} {seconds:e}");
}

fn ours(world: &World) {
    let num = world.num_processes();
    let comm = world
        .connect(num, LocalOptions::default())
        .expect("a rank per process")
        .remove(0);
    let group = Group::world(num).expect("some ranks");
    for kind in KINDS {
        for bytes in SIZES {
            let elements = bytes / 4;
            let whole = burn_dist_comm::elements(ones(elements));
            let part = burn_dist_comm::elements(ones(elements / num));
            let parts = Strided::flat(vec![bytes / num; num]);
            let together = Call::all_reduce(&group, DType::F32, ReduceOp::Sum, vec![0.0_f32]);
            let once = || {
                let call = match kind {
                    "all_gather" => {
                        Call::all_gather(&group, DType::F32, parts.clone(), part.clone())
                    }
                    "reduce_scatter" => Call::reduce_scatter(
                        &group,
                        DType::F32,
                        ReduceOp::Sum,
                        parts.clone(),
                        whole.clone(),
                    ),
                    _ => Call::all_reduce(&group, DType::F32, ReduceOp::Sum, whole.clone()),
                };
                let _ = comm.run(call).expect("all call it");
            };
            let _ = comm.run(together.clone()).expect("all are there");
            let seconds = per_call(bytes, once);
            if world.process() == 0 {
                report(kind, bytes, seconds);
            }
        }
    }
}

/// The ports of all processes, for those over TCP.
const PORTS: &str = "BENCH_PORTS";

/// Connects the processes that `mpirun` has started, without MPI.
fn connected(lends: bool) -> Tcp {
    let rank = std::env::var("OMPI_COMM_WORLD_RANK").expect("Open MPI's mpirun");
    let rank: usize = rank.parse().expect("a number");
    let ports = std::env::var(PORTS).expect("the bench sets them");
    let ports = ports.split(',').map(|port| port.parse().expect("a number"));
    let ports: Vec<u16> = ports.collect();
    let listener = TcpListener::bind(("127.0.0.1", ports[rank])).expect("a free port");
    Connection::prepare(&listener);
    let connection = |stream, process| {
        let name = format!("process {process}");
        let connection = match lends {
            true => Connection::within_machine(stream, name),
            false => Connection::plain(stream, name),
        };
        Some(connection.expect("a socket"))
    };
    let mut ends: Vec<Option<Connection>> = ports.iter().map(|_| None).collect();
    for (other, port) in ports.iter().enumerate().take(rank) {
        let mut stream = loop {
            let address = SocketAddr::from(([127, 0, 0, 1], *port));
            match Connection::stream_to(address, PATIENCE) {
                Ok(stream) => break stream,
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        stream.write_all(&[rank as u8]).expect("it listens");
        ends[other] = connection(stream, other);
    }
    for _ in rank + 1..ports.len() {
        let (mut stream, _) = listener.accept().expect("a call");
        let mut caller = [0];
        stream.read_exact(&mut caller).expect("its rank");
        let caller = usize::from(caller[0]);
        ends[caller] = connection(stream, caller);
    }
    Tcp::new(rank as u32, ends, || None)
}

/// Ports that were free a moment ago.
fn free_ports(num: usize) -> String {
    let bind = |_| TcpListener::bind("127.0.0.1:0").expect("a free port");
    let listeners: Vec<TcpListener> = (0..num).map(bind).collect();
    let port = |listener: &TcpListener| listener.local_addr().expect("bound").port().to_string();
    listeners.iter().map(port).collect::<Vec<_>>().join(",")
}

fn plain() {
    let universe = mpi::initialize().expect("MPI");
    let world = universe.world();
    let num = world.size() as usize;
    for kind in KINDS {
        for bytes in SIZES {
            let elements = bytes / 4;
            let (whole, part) = (ones(elements), ones(elements / num));
            let (mut to_whole, mut to_part) = (whole.clone(), part.clone());
            let whole: &[f32] = bytemuck::cast_slice(&whole);
            let part: &[f32] = bytemuck::cast_slice(&part);
            let to_whole: &mut [f32] = bytemuck::cast_slice_mut(&mut to_whole);
            let to_part: &mut [f32] = bytemuck::cast_slice_mut(&mut to_part);
            let once = || match kind {
                "all_gather" => world.all_gather_into(part, to_whole),
                "reduce_scatter" => {
                    world.reduce_scatter_block_into(whole, to_part, SystemOperation::sum())
                }
                _ => world.all_reduce_into(whole, to_whole, SystemOperation::sum()),
            };
            world.barrier();
            let seconds = per_call(bytes, once);
            if world.rank() == 0 {
                report(kind, bytes, seconds);
            }
        }
    }
}

/// Best times by kind and size.
type Times = BTreeMap<(String, usize), f64>;

/// Who runs: the name, the program below, and what `mpirun` is told besides.
const RUNS: [(&str, &str, &[&str]); 5] = [
    ("ours, MPI", "ours", &[]),
    ("TCP, 1 machine", "lent", &[]),
    ("TCP alone", "tcp", &[]),
    ("plain MPI", "plain", &[]),
    (
        "plain MPI, TCP",
        "plain",
        &["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"],
    ),
];

fn run(processes: usize, who: &str, options: &[&str], times: &mut Times) {
    let output = Command::new("mpirun")
        .env(PORTS, free_ports(processes))
        .args(options)
        .args([
            "--allow-run-as-root",
            "--oversubscribe",
            "-n",
            &processes.to_string(),
        ])
        .arg(std::env::current_exe().expect("a program knows where it is"))
        .arg(who)
        .output()
        .expect("mpirun is installed");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Some(line) = line.strip_prefix("TIME ") else {
            continue;
        };
        let words: Vec<&str> = line.split(' ').collect();
        let key = (words[0].to_string(), words[1].parse().expect("bytes"));
        let seconds: f64 = words[2].parse().expect("seconds");
        let best = times.entry(key).or_insert(f64::INFINITY);
        *best = best.min(seconds);
    }
}

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("ours") => {
            let world = World::over(|| Mpi::init(|| None)).expect("MPI");
            ours(&world);
            return world.finish(PATIENCE).expect("all end");
        }
        Some(how @ ("tcp" | "lent")) => {
            let lends = how == "lent";
            let world = World::over(move || Ok(connected(lends))).expect("all are there");
            ours(&world);
            return world.finish(PATIENCE).expect("all end");
        }
        Some("plain") => return plain(),
        _ => {}
    }
    let congestion = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    let congestion = congestion.as_deref().map_or("unknown", str::trim);
    println!("TCP's congestion control: {congestion}");
    let mut figures = serde_json::Map::new();
    figures.insert("congestion_control".into(), congestion.into());
    for processes in [2, 4] {
        let mut times: [Times; RUNS.len()] = Default::default();
        for _ in 0..ROUNDS {
            for ((_, program, options), times) in RUNS.iter().zip(&mut times) {
                run(processes, program, options, times);
            }
        }
        let [over_mpi, lent, over_tcp, plain, plain_tcp] = &times;
        let names = RUNS.map(|(name, ..)| format!("{name:>14}")).join(" ");
        println!("{processes} processes, us       bytes {names}   MPI/MPI  1 m./MPI   TCP/TCP");
        for (key, ours) in over_mpi {
            let (kind, bytes) = key;
            let [lent, tcp, plain, plain_tcp] =
                [lent, over_tcp, plain, plain_tcp].map(|times| times[key]);
            let us = [*ours, lent, tcp, plain, plain_tcp];
            let us = us.map(|seconds| format!("{:>14.1}", seconds * 1e6));
            let found = [
                ("mpi", plain / ours),
                ("machine", plain / lent),
                ("tcp_tcp", plain_tcp / tcp),
            ];
            let shown = found.map(|(_, ratio)| format!("{ratio:>9.2}")).join(" ");
            println!("  {kind:<15} {bytes:>10} {} {shown}", us.join(" "));
            for (by, ratio) in found {
                figures.insert(format!("{kind}_{bytes}_{processes}_{by}"), ratio.into());
            }
        }
    }
    println!("{}", serde_json::Value::Object(figures));
}
