//! Packs the programs that test and measure on NVIDIA GPUs, with a script that runs them and writes a report: a machine
//! with a GPU need not build or download anything.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::workspace::{self, run};

/// Programs that are built together: arguments of Cargo, and the targets with their names in the pack.
struct Build {
    arguments: &'static str,
    programs: &'static [(&'static str, &'static str)],
}

/// Each set of features once, since it compiles Burn anew.
const BUILDS: [Build; 4] = [
    Build {
        arguments: "build -p promises -p llama --features promises/cuda,llama/cuda,llama/plain-cuda \
            --bin llama --test cuda --bench gpu",
        programs: &[("cuda", "cuda"), ("llama", "llama"), ("gpu", "llama_gpu")],
    },
    Build {
        arguments: "build -p promises-021 -p burn-dist-cubecl-021 \
            --features promises-021/cuda,burn-dist-cubecl-021/cuda --test cuda --test cuda_float8 --bench gpu_gemm",
        programs: &[
            ("cuda", "cuda-021"),
            ("cuda_float8", "cuda_float8"),
            ("gpu_gemm", "gpu_gemm"),
        ],
    },
    Build {
        arguments: "test --no-run -p burn-dist-engine-021 --features cuda --lib",
        programs: &[("burn_dist_engine", "engine-021")],
    },
    Build {
        arguments: "test --no-run -p burn-dist-gpu --features cuda --lib",
        programs: &[("burn_dist_gpu", "gpu")],
    },
];

/// Files that go with the programs.
const FILES: [(&str, &str); 2] = [
    ("run.sh", include_str!("gpu/run.sh")),
    ("llama.py", include_str!("gpu/llama.py")),
];

/// Builds the programs into a folder: `[FOLDER, --without-llvm]`.
///
/// # Errors
/// One cannot be built or written.
pub(crate) fn gpu(arguments: &[String]) -> Result<(), String> {
    let (flags, folders): (Vec<_>, Vec<_>) = arguments
        .iter()
        .partition(|argument| argument.starts_with('-'));
    let without_llvm = flags.iter().any(|flag| *flag == "--without-llvm");
    let unknown = flags.iter().find(|flag| **flag != "--without-llvm");
    let ([folder], None) = (&folders[..], unknown) else {
        return Err("into which folder? cargo xtask gpu FOLDER [--without-llvm]".into());
    };
    let folder = Path::new(folder);
    let in_folder = |error: std::io::Error| format!("{}: {error}", folder.display());
    fs::create_dir_all(folder).map_err(in_folder)?;
    let lock = workspace::root().join("Cargo.lock");
    let locked = fs::read(&lock).map_err(|error| format!("{}: {error}", lock.display()))?;
    let built = BUILDS
        .iter()
        .try_for_each(|build| pack(build, folder, without_llvm));
    if without_llvm {
        // Cargo writes the stand-in into it.
        fs::write(&lock, locked).map_err(|error| format!("{}: {error}", lock.display()))?;
    }
    built?;
    for (name, text) in FILES {
        fs::write(folder.join(name), text).map_err(in_folder)?;
    }
    println!(
        "{0} is packed. On the machine with the GPU: bash {0}/run.sh REPORT.md",
        folder.display()
    );
    Ok(())
}

/// Builds programs, and copies them without symbols.
fn pack(build: &Build, folder: &Path, without_llvm: bool) -> Result<(), String> {
    println!("   cargo {}", build.arguments);
    let mut cargo = workspace::cargo();
    cargo.args(build.arguments.split_whitespace());
    cargo.args(["--release", "--message-format", "json-render-diagnostics"]);
    if without_llvm {
        let stands_in = workspace::root().join("dev/cubecl-llvm");
        let patch = format!("patch.crates-io.cubecl-llvm.path={stands_in:?}");
        cargo.args(["--config", &patch]);
    }
    let output = cargo
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo cannot be run: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo ended with {}", output.status));
    }
    let built = executables(&String::from_utf8_lossy(&output.stdout));
    for (target, name) in build.programs {
        let from = built.get(*target);
        let from = from.ok_or_else(|| format!("cargo built no program `{target}`"))?;
        let to = folder.join(name);
        fs::copy(from, &to).map_err(|error| format!("{}: {error}", to.display()))?;
        run(Command::new("strip").arg(&to))?;
    }
    Ok(())
}

/// Returns the programs that Cargo names in its messages, by their targets.
fn executables(messages: &str) -> BTreeMap<String, PathBuf> {
    let messages = messages
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let program = |message: Value| {
        let executable = message["executable"].as_str()?;
        Some((
            message["target"]["name"].as_str()?.to_string(),
            executable.into(),
        ))
    };
    messages.filter_map(program).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_those_with_a_file() {
        let messages = "\
            {\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"half\"},\"executable\":null}\n\
            {\"reason\":\"compiler-artifact\",\"target\":{\"name\":\"cuda\"},\"executable\":\"/t/cuda-1\"}\n\
            {\"reason\":\"build-finished\",\"success\":true}\n";
        let found = executables(messages);
        assert_eq!(found, BTreeMap::from([("cuda".into(), "/t/cuda-1".into())]));
    }

    /// The script runs what is packed, and nothing else.
    #[test]
    fn the_script_names_every_program() {
        let (_, script) = FILES[0];
        for (_, name) in BUILDS.iter().flat_map(|build| build.programs) {
            assert!(script.contains(&format!("\"$here/{name}\"")), "{name}");
        }
        let named = script.matches("\"$here/").count();
        let programs = BUILDS
            .iter()
            .map(|build| build.programs.len())
            .sum::<usize>();
        assert!(named > programs, "{named} of {programs} and llama.py");
    }
}
