//! Programs in the manner of Burn's examples run unchanged but for the device, on 1, 2 and 3 ranks.
//!
//! Every program runs once per mesh; `BURN_DIST_PROGRAM_RUNS=20` runs each of them so often, as before a release.

use std::process::Command;

/// One program, in a process of its own.
struct Run {
    name: &'static str,
    /// `None` is plain Flex.
    mesh: Option<&'static str>,
    /// Threads per data loader.
    workers: usize,
    randomness: &'static str,
    /// How elementwise work runs; `None`: as it does by default, or as `BURN_DIST_REGIONS` says.
    regions: Option<&'static str>,
}

/// What a program reports.
struct Report {
    numbers: Vec<(String, f64)>,
    /// Windows, and those that were planned.
    windows: Option<(u64, u64)>,
    /// Flops of all ranks, and the share of them that is done more than once along dp.
    work: Option<(f64, f64)>,
}

impl Report {
    /// Returns the losses, in order, with their names.
    fn losses(&self) -> Vec<(&str, f64)> {
        let losses = self
            .numbers
            .iter()
            .filter(|(name, _)| name.contains("Loss"));
        losses.map(|(name, loss)| (name.as_str(), *loss)).collect()
    }
}

impl Run {
    fn run(&self) -> Report {
        let mut command = Command::new(env!("CARGO_BIN_EXE_program"));
        command
            .args([
                self.name,
                self.mesh.unwrap_or("flex"),
                &self.workers.to_string(),
                self.randomness,
            ])
            .env_remove("BURN_DIST_FUZZ_LAYOUTS");
        if let Some(regions) = self.regions {
            command.env("BURN_DIST_REGIONS", regions);
        }
        let output = command.output().expect("the program starts");
        let what = format!("{} on {}", self.name, self.mesh.unwrap_or("Flex"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{what}: {}\n{errors}",
            output.status
        );
        let text = String::from_utf8(output.stdout).expect("text");
        let mut report = Report {
            numbers: Vec::new(),
            windows: None,
            work: None,
        };
        fn two<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> Option<(T, T)> {
            let mut words = text.split(' ').map(|word| word.parse().expect("a number"));
            words.next().zip(words.next())
        }
        for line in text.lines() {
            if let Some(number) = line.strip_prefix("number ") {
                let (name, value) = number.rsplit_once(' ').expect("a name and a value");
                let value: f64 = value.parse().expect("a number");
                assert!(value.is_finite(), "{what}: {name} is {value}");
                report.numbers.push((name.to_string(), value));
            } else if let Some(windows) = line.strip_prefix("windows ") {
                // The third is a time.
                let (counts, _) = windows.rsplit_once(' ').expect("three numbers");
                report.windows = two(counts);
            } else if let Some(work) = line.strip_prefix("work ") {
                report.work = two(work);
            }
        }
        assert!(!report.losses().is_empty(), "{what}: no losses");
        report
    }
}

/// One rounding of an f32. TODO(rounding): some losses of the LSTM and of the classification of texts differ by that on
/// one rank; 0 once it is known which operation rounds otherwise.
const ROUNDING: f64 = f32::EPSILON as f64;
/// Losses of some twenty steps on several ranks, or in regions: a sum of n terms in another order is off by sqrt(n)
/// roundings, n about 1000 here, and a step carries on what the last one was off by.
const SEVERAL: f64 = 20.0 * 32.0 * f32::EPSILON as f64;

const MESHES: [&str; 3] = ["dp=1", "dp=2", "dp=3"];

/// The runs whose losses are compared with those of Flex. Its own kernels alone have its bits, on one rank.
const COMPARED: [(&str, Option<&str>); 4] = [
    ("dp=1", Some("flex")),
    ("dp=1", None),
    ("dp=2", None),
    ("dp=3", None),
];

/// Returns how often each program runs.
fn runs() -> usize {
    match std::env::var("BURN_DIST_PROGRAM_RUNS") {
        Ok(text) => text.parse().expect("BURN_DIST_PROGRAM_RUNS is a number"),
        Err(_) => 1,
    }
}

/// Compares losses of the same weights, data and order of batches, one by one, relative to the largest. On one rank
/// with its kernels these are those of Flex, in the same order; in regions and on several ranks, sums of f32 are taken
/// in another order, and functions in regions are off by two units in the last place, as those of Flex are by one.
fn losses_are_those_of_flex(name: &'static str, one_rank: f64, tolerance: f64) {
    // One worker: the order of batches is that of the data.
    let run = |mesh, regions| Run {
        name,
        mesh,
        workers: 1,
        randomness: "host",
        regions,
    };
    let flex = run(None, None).run();
    let expected = flex.losses();
    let scale = expected
        .iter()
        .fold(0.0f64, |max, (_, loss)| max.max(loss.abs()));
    let mut on_one_rank = None;
    for (mesh, regions) in COMPARED {
        let tolerance = match regions {
            Some(_) => one_rank,
            None => tolerance,
        };
        let report = run(Some(mesh), regions).run();
        let mesh = format!("{mesh}, regions {}", regions.unwrap_or("as they are"));
        let (flops, redundant) = report.work.expect("a program on a mesh tells its work");
        let once = *on_one_rank.get_or_insert(flops);
        println!(
            "{name} on {mesh}: {redundant:.4} of {flops} flops are redundant; {once} on one rank"
        );
        assert!(
            redundant < 0.1,
            "{name} on {mesh}: {redundant} of the work is redundant"
        );
        // Work that the report leaves out counts here.
        assert!(
            flops < 1.1 * once,
            "{name} on {mesh}: {flops} flops, {once} on one rank"
        );
        let found = report.losses();
        assert_eq!(
            expected.len(),
            found.len(),
            "{name} on {mesh}: numbers of losses"
        );
        let mut worst = 0.0f64;
        for (at, (expected, found)) in expected.iter().zip(&found).enumerate() {
            assert_eq!(expected.0, found.0, "{name} on {mesh}");
            let gap = (found.1 - expected.1).abs() / scale;
            worst = worst.max(gap);
            assert!(
                gap <= tolerance,
                "{name} on {mesh}: {} {at} is {}, and {} on Flex ({gap:.1e})",
                found.0,
                found.1,
                expected.1
            );
        }
        println!("{name} on {mesh}: losses within {worst:.1e}");
    }
}

/// Loaders, the training loop, metrics and checkpoints use the mesh from threads of their own.
fn nothing_fails_with_many_threads(name: &'static str) {
    for mesh in MESHES {
        for _ in 0..runs() {
            let run = Run {
                name,
                mesh: Some(mesh),
                workers: 3,
                randomness: "device",
                regions: None,
            };
            println!(
                "{name} on {mesh}: windows and planned ones {:?}",
                run.run().windows
            );
        }
    }
}

macro_rules! programs {
    ($( $module:ident: $name:literal, $one_rank:expr, $tolerance:expr; )*) => {$(
        mod $module {
            use super::*;

            #[test]
            fn losses_are_those_of_flex() {
                super::losses_are_those_of_flex($name, $one_rank, $tolerance);
            }

            #[test]
            fn nothing_fails_with_many_threads() {
                super::nothing_fails_with_many_threads($name);
            }
        }
    )*};
}

programs! {
    simple_regression: "simple-regression", 0.0, SEVERAL;
    mnist: "mnist", 0.0, SEVERAL;
    text_classification: "text-classification", ROUNDING, SEVERAL;
    custom_training_loop: "custom-training-loop", 0.0, SEVERAL;
    wgan: "wgan", 0.0, SEVERAL;
    modern_lstm: "modern-lstm", ROUNDING, SEVERAL;
}
