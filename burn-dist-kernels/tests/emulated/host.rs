//! A text of CUDA as a program of the host: compiled with a sanitizer, and run on a file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Threads of a block, barriers and types of CUDA, for the host.
pub(crate) const DEVICE: &str = include_str!("device.cpp");

/// Compiles a program with a sanitizer.
pub(crate) fn compile(name: &str, source: &str, sanitizer: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (text, program) = (folder.join(format!("{name}.cpp")), folder.join(name));
    fs::write(&text, source).unwrap();
    let compiled = Command::new("c++")
        .args([
            "-std=c++17",
            "-O1",
            "-g",
            "-w",
            "-pthread",
            &format!("-fsanitize={sanitizer}"),
        ])
        .args(["-fno-sanitize-recover=all", "-o"])
        .args([&program, &text])
        .output()
        .expect("a C++ compiler");
    assert!(
        compiled.status.success(),
        "{name}: {}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    program
}

/// Runs a program on a file and returns what it has appended to it.
pub(crate) fn run(program: &Path, input: &[u8]) -> Vec<u8> {
    let file = program.with_extension("data");
    fs::write(&file, input).unwrap();
    let done = Command::new(program)
        .env("TSAN_OPTIONS", "halt_on_error=1")
        .arg(&file)
        .output()
        .unwrap();
    assert!(
        done.status.success(),
        "{}: {}",
        program.display(),
        String::from_utf8_lossy(&done.stderr)
    );
    fs::read(&file).unwrap().split_off(input.len())
}

/// Returns numbers as words of 32 bits.
pub(crate) fn words(values: impl IntoIterator<Item = usize>) -> Vec<u8> {
    values
        .into_iter()
        .flat_map(|value| (value as u32).to_le_bytes())
        .collect()
}
