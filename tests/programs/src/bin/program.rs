//! Runs one program, and prints the numbers that it reports.
//!
//! `program NAME (flex | AXES) [workers] [device | host] [test | example]`: on plain Flex, or on the mesh of these axes;
//! with so many threads per data loader; with random numbers of the device or of the host; at one size or the other.

use std::process::exit;
use std::time::Instant;

use burn::tensor::Device;
use burn_dist::{DeviceMesh, OnMesh};
use programs::{Numbers, Program, Randomness, Setup, Size, each_program};

struct Arguments {
    name: String,
    /// `None` is plain Flex.
    mesh: Option<DeviceMesh>,
    workers: usize,
    randomness: Randomness,
    size: Size,
}

fn arguments() -> Option<Arguments> {
    let mut words = std::env::args().skip(1);
    let arguments = Arguments {
        name: words.next()?,
        mesh: match words.next()?.as_str() {
            "flex" => None,
            axes => Some(DeviceMesh::parse(axes).ok()?),
        },
        workers: words.next().unwrap_or("2".into()).parse().ok()?,
        randomness: match words.next().as_deref() {
            None | Some("device") => Randomness::Device,
            Some("host") => Randomness::Host,
            _ => return None,
        },
        size: match words.next().as_deref() {
            None | Some("test") => Size::Test,
            Some("example") => Size::Example,
            _ => return None,
        },
    };
    Some(arguments)
}

fn run<P: Program>(arguments: &Arguments) -> Numbers {
    let directory = std::env::temp_dir().join(format!("programs-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let setup = Setup {
        device: match &arguments.mesh {
            Some(mesh) => mesh.device(),
            None => Device::flex(),
        },
        workers: arguments.workers,
        directory: directory.clone(),
        randomness: arguments.randomness,
        size: arguments.size,
    };
    let numbers = P::run(&setup);
    std::fs::remove_dir_all(&directory).expect("it is there");
    numbers
}

fn run_if_named<P: Program>(arguments: &Arguments, found: &mut bool) {
    if P::NAME != arguments.name {
        return;
    }
    *found = true;
    let start = Instant::now();
    let numbers = run::<P>(arguments);
    let took = start.elapsed();
    for (name, value) in &numbers.0 {
        println!("number {name} {value}");
    }
    println!("seconds {:.3}", took.as_secs_f64());
    if let Some(mesh) = &arguments.mesh {
        let report = mesh.device().report();
        let (cache, plan_time) = (report.cache, report.plan_time.as_secs_f64());
        println!("windows {} {} {plan_time:.3}", cache.windows, cache.misses);
        let redundancy = report.redundancy;
        println!("work {} {}", redundancy.flops, redundancy.share("dp"));
        if let Some(fault) = mesh.device().fault() {
            eprintln!("{fault}");
            exit(1);
        }
    }
}

fn main() {
    let Some(arguments) = arguments() else {
        eprintln!("usage: program NAME (flex | AXES) [workers] [device | host] [test | example]");
        exit(2);
    };
    let mut found = false;
    each_program!(run_if_named(&arguments, &mut found));
    if !found {
        eprintln!("there is no program {}", arguments.name);
        exit(2);
    }
}
