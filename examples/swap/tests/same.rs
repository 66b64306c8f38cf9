//! All programs run, and the swap changes no loss, on any number of ranks.

use std::collections::BTreeMap;
use std::process::{Command, Output};
use std::sync::LazyLock;

/// Metrics by what precedes the value: `train 1/4 step 4 Loss`.
type Metrics = BTreeMap<String, f64>;

/// Runs a program, with elementwise work as is said, or by default.
fn run(program: &str, arguments: &[&str], regions: Option<&str>) -> Output {
    let mut command = Command::new(program);
    // The mesh is what the test says.
    command
        .args(arguments)
        .env_remove("BURN_DIST_MESH")
        .env_remove("BURN_DIST_FUZZ_LAYOUTS");
    if let Some(regions) = regions {
        command.env("BURN_DIST_REGIONS", regions);
    }
    command.output().expect("the program starts")
}

fn metrics(output: &Output) -> Metrics {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text
        .lines()
        .map(|line| line.rsplit_once(' ').expect("a name and a value"));
    lines
        .map(|(name, value)| (name.to_string(), value.parse().expect("a number")))
        .collect()
}

/// The program before the swap, which runs once for all tests.
static BEFORE: LazyLock<Metrics> =
    LazyLock::new(|| metrics(&run(env!("CARGO_BIN_EXE_before"), &[], None)));

fn after(mesh: &str, regions: Option<&str>) -> Metrics {
    metrics(&run(env!("CARGO_BIN_EXE_after"), &[mesh], regions))
}

fn by_hand(mesh: &str) -> Metrics {
    metrics(&run(env!("CARGO_BIN_EXE_by_hand"), &[mesh], None))
}

/// Same metrics at the same steps; losses within 1e-4, relative: sums of f32 in another order, and functions that are
/// off by two units in the last place, over 52 steps of Adam, of a network without kinks.
fn compare(mesh: &str, found: &Metrics, expected: &Metrics) {
    assert!(found.keys().eq(expected.keys()), "{mesh}: {found:?}");
    for (name, expected) in expected.iter().filter(|(name, _)| name.ends_with("Loss")) {
        let found = found[name];
        let gap = (found - expected).abs() / expected.abs();
        assert!(
            gap < 1e-4,
            "{mesh}: {name} is {found}, and {expected} on one device"
        );
    }
}

#[test]
fn one_device_learns() {
    let metrics = &*BEFORE;
    // 13 batches of training and 4 of validation, 4 epochs, two metrics each; the last batch of 640 and of 160 is
    // shorter.
    assert_eq!(metrics.len(), (13 + 4) * 4 * 2);
    let accuracies = metrics
        .iter()
        .filter(|(name, _)| name.starts_with("valid 4/4") && name.ends_with("Accuracy"));
    let mean = accuracies.map(|(_, percent)| percent).sum::<f64>() / 4.0;
    assert!(mean > 80.0, "only {mean} % of unseen digits are read");
}

#[test]
fn the_swap_changes_no_loss() {
    let expected = &*BEFORE;
    // The same kernels in the same order.
    assert_eq!(after("dp=1", Some("flex")), *expected);
    for mesh in ["fsdp=3", "fsdp=2,tp=2"] {
        compare(mesh, &after(mesh, None), expected);
    }
}

#[test]
fn a_loop_written_by_hand_has_its_batches_on_the_mesh() {
    let expected = by_hand("dp=1");
    // 13 batches and an accuracy, 3 epochs.
    assert_eq!(expected.len(), (13 + 1) * 3);
    assert!(expected["valid 3/3 Accuracy"] > 50.0, "{expected:?}");
    for mesh in ["fsdp=2", "dp=3"] {
        compare(mesh, &by_hand(mesh), &expected);
    }
}

#[test]
fn a_mesh_that_cannot_be_is_refused() {
    let output = run(env!("CARGO_BIN_EXE_after"), &["fsdp=0"], None);
    assert!(!output.status.success());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("fsdp"), "{errors}");
}
