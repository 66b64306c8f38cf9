//! Programs: texts, and what the compiler says of them. What was compiled once is kept, by a hash of all that went into
//! it.

use crate::headers::{FIRST, HEADERS, included};
use crate::kernels::{kernels, with_shared};
use crate::ptx::translated;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{env, fs, io, process};

/// What an image starts with, as in `module.rs` of the driver.
const MARK: &str = "// CUDA in software: ";

/// How kernels are compiled: accesses call the driver, and what a program computes is what it says.
const FLAGS: &[&str] = &[
    "-std=c++20",
    "-O1",
    "-g0",
    "-w",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-strict-aliasing",
    "-fno-finite-loops",
    "-ffp-contract=off",
    "-fsanitize=kernel-address",
    "--param=asan-instrumentation-with-call-threshold=0",
    "--param=asan-stack=0",
    "--param=asan-globals=0",
    "-D__CUDACC_RTC__",
];

/// Options that change nothing here.
const NO_MATTER: &[&str] = &[
    "--include-path=",
    "-I",
    "--std=",
    "-std=",
    "-lineinfo",
    "--generate-line-info",
    "--use_fast_math",
    "-use_fast_math",
    "-default-device",
    "--device-as-default-execution-space",
    "--fmad=",
];

/// A program.
pub(crate) struct Program {
    pub(crate) text: String,
    pub(crate) log: String,
    /// With the zero at its end.
    pub(crate) image: Option<Vec<u8>>,
}

/// Why a program was not compiled.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    Option,
    Text,
    System,
}

impl Program {
    pub(crate) fn compile(&mut self, options: &[String]) -> Result<(), Failure> {
        let mut defined = Vec::new();
        for option in options {
            let after = |words: [&str; 2]| words.iter().find_map(|word| option.strip_prefix(word));
            if let Some(text) = after(["-D", "--define-macro="]) {
                defined.push(format!("-D{text}"));
            } else if let Some(text) = after(["--gpu-architecture=", "-arch="]) {
                let Some(arch) = architecture(text) else {
                    self.log = format!("unknown architecture {text}");
                    return Err(Failure::Option);
                };
                defined.push(format!("-D__CUDA_ARCH__={arch}0"));
            } else if !NO_MATTER.iter().any(|known| option.starts_with(known)) {
                self.log = format!("unknown option {option}");
                return Err(Failure::Option);
            }
        }
        let mut text = translated(&with_shared(&self.text));
        for kernel in kernels(&self.text) {
            let threads = kernel.threads.unwrap_or("0");
            text += &format!("\nSOFTWARE_KERNEL({}, {threads})", kernel.name);
        }
        text.push('\n');
        match object(&text, &defined) {
            Ok(Ok(path)) => {
                self.log.clear();
                self.image = Some(format!("{MARK}{}\n\0", path.display()).into_bytes());
                Ok(())
            }
            Ok(Err(log)) => {
                self.log = log;
                Err(Failure::Text)
            }
            Err(error) => {
                self.log = format!("the host's C++ compiler: {error}");
                Err(Failure::System)
            }
        }
    }
}

/// Returns the number in `sm_70`, `compute_90a` and their like.
fn architecture(text: &str) -> Option<u32> {
    let number = text.strip_prefix("sm_").or(text.strip_prefix("compute_"))?;
    number.trim_end_matches(['a', 'f']).parse().ok()
}

fn compiler() -> String {
    env::var("CUDA_IN_SOFTWARE_CXX").unwrap_or_else(|_| "g++".into())
}

/// Returns where what was compiled is kept.
fn folder() -> PathBuf {
    match env::var_os("CUDA_IN_SOFTWARE_CACHE") {
        Some(folder) => folder.into(),
        None => env::temp_dir().join("cuda-in-software"),
    }
}

/// A hash of 128 bits.
fn hash(of: impl Hash) -> String {
    let half = |start: u64| {
        let mut hasher = DefaultHasher::new();
        start.hash(&mut hasher);
        of.hash(&mut hasher);
        hasher.finish()
    };
    format!("{:016x}{:016x}", half(0), half(1))
}

/// Names all that goes into an object: of the headers, those that its text includes.
fn named(text: &str, defined: &[String]) -> String {
    hash((text, defined, compiler(), FLAGS, included(text)))
}

/// Returns the headers' folder, which holds them.
fn headers() -> io::Result<&'static Path> {
    static WRITTEN: OnceLock<PathBuf> = OnceLock::new();
    if let Some(written) = WRITTEN.get() {
        return Ok(written);
    }
    let include = folder().join(format!("include-{}", hash((HEADERS, compiler(), FLAGS))));
    if !include.exists() {
        let made = unique(&folder(), "include");
        fs::create_dir_all(&made)?;
        for (name, text) in HEADERS {
            let path = made.join(name);
            fs::create_dir_all(path.parent().unwrap_or(&made))?;
            fs::write(path, text)?;
        }
        // Half of a kernel's compilation is that of the first header. Without what is made of it here it takes longer.
        let first = made.join(FIRST);
        let mut precompiled = Command::new(compiler());
        precompiled.args(FLAGS).args(["-x", "c++-header", "-o"]);
        precompiled.arg(first.with_extension("h.gch")).arg(&first);
        precompiled.output()?;
        // Whoever comes second finds the folder, and that is as good.
        if fs::rename(&made, &include).is_err() {
            fs::remove_dir_all(&made)?;
        }
    }
    Ok(WRITTEN.get_or_init(|| include))
}

/// A name that nobody else has.
fn unique(folder: &Path, name: &str) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    folder.join(format!("{name}-{}-{number}", process::id()))
}

/// Compiles a text, and returns the object's path, or what the compiler says.
fn object(text: &str, defined: &[String]) -> io::Result<Result<PathBuf, String>> {
    let folder = folder();
    let include = headers()?;
    let path = folder.join(format!("{}.so", named(text, defined)));
    if path.exists() {
        return Ok(Ok(path));
    }
    // Of two that compile one text at a time, each has files of its own until it is done.
    let made = unique(&folder, "object");
    let source = made.with_extension("cpp");
    fs::write(&source, text)?;
    let done = Command::new(compiler())
        .args(FLAGS)
        .args(defined)
        .arg("-I")
        .arg(include)
        .args(["-include", FIRST, "-o"])
        .args([&made, &source])
        .output()?;
    if !done.status.success() {
        fs::remove_file(&source)?;
        return Ok(Err(String::from_utf8_lossy(&done.stderr).into_owned()));
    }
    fs::rename(&source, path.with_extension("cpp"))?;
    fs::rename(&made, &path)?;
    Ok(Ok(path))
}

#[cfg(test)]
mod tests {
    use super::architecture;

    #[test]
    fn architectures_are_numbers() {
        let of = ["sm_70", "compute_90a", "sm_", "70"].map(architecture);
        assert_eq!(of, [Some(70), Some(90), None, None]);
    }
}
