//! Kernels in CUDA, compiled and emulated on machines without a GPU: their machine code is looked at, and what they
//! compute on the host is compared. The compiler and the disassembler come from PyPI, at the versions below, into the
//! target folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace::{self, run};

/// The packages to install: the compiler, headers, and what reads machine code (its first version on PyPI).
const WHEELS: &[&str] = &[
    "nvidia-cuda-nvrtc==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-cccl==13.0.85",
    "nvidia-cuda-nvdisasm==13.2.51",
];

/// Runs the tests of kernels; `arguments` go to them.
pub(crate) fn kernels(arguments: &[String]) -> Result<(), String> {
    let toolkit = toolkit(&workspace::target().join("cuda-wheels"))?;
    let test = |which: &[&str]| {
        let mut test = workspace::cargo();
        test.args([
            "test",
            "--config",
            &workspace::cuda_path_of_programs(&toolkit),
        ]);
        run(test.args(which).args(arguments))
    };
    // Texts in CUDA; of the whole workspace, whose tests have the same dependencies.
    let programs = ["--test", "machine_code", "--test", "emulated"];
    let all = ["--", "--include-ignored"];
    test(&[&["--workspace"], &programs[..], &all].concat())?;
    // What CubeCL makes of its language, and what launches kernels: on Burn 0.21, whose CubeCL hands CUDA's compiler
    // texts as well.
    let cubecl = ["-p", "burn-dist-cubecl-021", "--features", "cuda"];
    test(&[&cubecl[..], &["--lib", "--"]].concat())?;
    test(&[&cubecl[..], &["--test", "cuda_sources"], &all].concat())
}

/// Installs what is not there and returns the folder of the toolkit.
fn toolkit(folder: &Path) -> Result<PathBuf, String> {
    let mark = folder.join("installed");
    let wanted = WHEELS.join("\n");
    if fs::read_to_string(&mark).ok().as_ref() != Some(&wanted) {
        if folder.exists() {
            fs::remove_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        let mut pip = Command::new("python3");
        pip.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ])
        .args(["--only-binary=:all:", "--target"])
        .arg(folder)
        .args(WHEELS);
        run(&mut pip)?;
        fs::write(&mark, &wanted).map_err(|error| format!("{}: {error}", mark.display()))?;
    }
    Ok(folder.join("nvidia/cu13"))
}
