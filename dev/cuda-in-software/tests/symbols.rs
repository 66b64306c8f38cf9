//! Which functions are called, by cudarc as CubeCL 0.10 uses it and by burn-dist, and which of them are here.

use std::process::Command;

/// By library: what is called.
const CALLED: &str = include_str!("called.txt");

/// Returns the libraries, and the functions of each.
fn called() -> Vec<(&'static str, Vec<&'static str>)> {
    let mut all: Vec<(&str, Vec<&str>)> = Vec::new();
    let lines = CALLED
        .lines()
        .filter(|line| !line.is_empty() && !line.trim_start().starts_with('#'));
    for line in lines {
        match (line.strip_prefix("    "), all.last_mut()) {
            (Some(name), Some((_, names))) => names.push(name),
            (Some(name), None) => panic!("{name}: of which library?"),
            (None, _) => all.push((line, Vec::new())),
        }
    }
    all
}

/// Called from compute capability 10.0 on, for maps that no kernel of CubeCL 0.10 uses.
const NOT_HERE: &[&str] = &["cuTensorMapEncodeIm2colWide"];

#[test]
fn what_is_called_is_here() {
    let folder = std::env::var("LD_LIBRARY_PATH").expect("`cargo xtask cuda` sets it");
    let mut count = [0, 0];
    let mut missing = Vec::new();
    for (library, names) in called() {
        let path = folder
            .split(':')
            .map(|folder| format!("{folder}/{library}"));
        let path = path
            .into_iter()
            .find(|path| std::path::Path::new(path).exists());
        let path = path.unwrap_or_else(|| panic!("{library} in {folder}"));
        let listed = Command::new("nm")
            .args(["-D", "--defined-only", &path])
            .output()
            .expect("nm");
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let here: Vec<&str> = listed
            .lines()
            .filter_map(|line| line.split(' ').nth(2))
            .collect();
        for name in names {
            count[1] += 1;
            match here.contains(&name) {
                true => count[0] += 1,
                false => missing.push(name),
            }
        }
    }
    println!("{} of {} functions that are called", count[0], count[1]);
    assert_eq!(missing, NOT_HERE);
}
