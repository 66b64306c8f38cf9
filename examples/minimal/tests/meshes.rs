//! The program trains alike on every mesh, and says what is wrong with its input.

use std::process::{Command, Output};

fn run(program: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    // Nothing outside changes the layouts.
    command.args(arguments).env_remove("BURN_DIST_FUZZ_LAYOUTS");
    command.output().expect("the program starts")
}

const MINIMAL: &str = env!("CARGO_BIN_EXE_minimal");
const SINGLE: &str = env!("CARGO_BIN_EXE_single");

fn printed(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn losses(text: &str) -> Vec<f64> {
    let loss = |line: &str| {
        let (_, loss) = line.rsplit_once(' ').expect("a name and a value");
        loss.parse().expect("a number")
    };
    text.lines().map(loss).collect()
}

#[test]
fn losses_are_those_of_one_device() {
    let expected = losses(&printed(&run(MINIMAL, &[])));
    // Of 256 bytes each is as likely as another at first; later the rhyme is known. Flex draws other weights.
    for losses in [&expected, &losses(&printed(&run(SINGLE, &[])))] {
        assert_eq!(losses.len(), 60);
        assert!(losses[0] > 5.0 && losses[59] < 1.5, "{losses:?}");
    }
    // 8 rows over 3 ranks are 3, 3 and 2.
    for axes in ["tp=2", "fsdp=2", "fsdp=2,tp=2", "dp=3"] {
        let found = losses(&printed(&run(MINIMAL, &[axes])));
        assert_eq!(found.len(), expected.len(), "{axes}");
        for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let gap = (found - expected).abs();
            assert!(gap < 1e-4, "{axes}, step {step}: {found}, not {expected}");
        }
    }
}

#[test]
fn bad_input_is_named() {
    for (arguments, expected) in [
        (
            &["tp=two"][..],
            "error: cannot read the mesh `tp=two`: the size `two` of axis `tp` is not a whole number; write axes as \
             name=size, for example `fsdp=2,tp=4`\n",
        ),
        (
            &["tp=3"],
            "error: blocks.0.attention.query: 4 heads (`self.heads`) cannot be split over axis tp (size 3): \
             use tp = 1, 2 or 4, or mark it replicate / pass .replicate_indivisible()\n",
        ),
        (
            &["tp=2", "100"],
            "error: one argument at most, the axes of the mesh, and there are 2: minimal fsdp=2,tp=2\n",
        ),
    ] {
        let output = run(MINIMAL, arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), expected);
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

/// Lines that the program for one device loses and those that the program for a mesh gains, without the crate's text.
fn difference(single: &str, mesh: &str) -> (Vec<String>, Vec<String>) {
    let code = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.starts_with("//!"));
        lines.map(|line| line.trim().to_string()).collect()
    };
    let (single, mesh) = (code(single), code(mesh));
    let only = |of: &[String], other: &[String]| -> Vec<String> {
        let lines = of.iter().filter(|line| !other.contains(line));
        lines.cloned().collect()
    };
    (only(&single, &mesh), only(&mesh, &single))
}

#[test]
fn two_lines_of_the_program_change() {
    let (lost, gained) = difference(
        include_str!("../src/bin/single.rs"),
        include_str!("../src/main.rs"),
    );
    assert_eq!(
        lost,
        [
            "use burn::tensor::Device;",
            "let device = Device::flex().autodiff();",
            "let mut model = Decoder::new(&device);",
        ]
    );
    assert_eq!(
        gained,
        [
            "use burn_dist::{DeviceMesh, Parallelize};",
            "let mesh = DeviceMesh::parse(&minimal::axes()?)?;",
            "let device = mesh.device().autodiff();",
            "let mut model = Decoder::new(&device).parallelize(&mesh)?;",
        ]
    );
}
