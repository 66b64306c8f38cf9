//! Machine code of a text in CUDA, as instructions.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, ptr};

use libloading::{Library, Symbol};

/// CUDA's compiler and disassembler.
pub(crate) struct Toolkit {
    folder: PathBuf,
    nvrtc: Library,
    _builtins: Library,
}

type Program = *mut c_void;

impl Toolkit {
    pub(crate) fn new() -> Self {
        let folder = env::var_os("CUDA_PATH").expect("CUDA_PATH: run `cargo xtask kernels`");
        let folder = PathBuf::from(folder);
        let open = |name: &str| {
            let path = folder.join("lib").join(name);
            // SAFETY: NVIDIA's libraries, whose initialisers need nothing of us.
            unsafe { Library::new(&path) }
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        // The compiler looks for it by name, and finds what is loaded.
        let builtins = open("libnvrtc-builtins.so.13.0");
        let nvrtc = open("libnvrtc.so.13");
        Self {
            folder,
            nvrtc,
            _builtins: builtins,
        }
    }

    /// Returns the machine code of a source, or what the compiler says of it.
    pub(crate) fn compile(&self, source: &str, arch: &str) -> Result<Vec<u8>, String> {
        // SAFETY: the signatures are those of nvrtc.h (CUDA 13.0); texts end with zero and outlive the calls; a program
        // is destroyed once; buffers have the sizes that the library asks for.
        unsafe {
            let create: Symbol<
                unsafe extern "C" fn(
                    *mut Program,
                    *const c_char,
                    *const c_char,
                    c_int,
                    *const *const c_char,
                    *const *const c_char,
                ) -> c_int,
            > = self.nvrtc.get(b"nvrtcCreateProgram").unwrap();
            let compile: Symbol<
                unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
            > = self.nvrtc.get(b"nvrtcCompileProgram").unwrap();
            let destroy: Symbol<unsafe extern "C" fn(*mut Program) -> c_int> =
                self.nvrtc.get(b"nvrtcDestroyProgram").unwrap();
            let output = |program, what: &str| {
                let size: Symbol<unsafe extern "C" fn(Program, *mut usize) -> c_int> = self
                    .nvrtc
                    .get(format!("nvrtcGet{what}Size").as_bytes())
                    .unwrap();
                let get: Symbol<unsafe extern "C" fn(Program, *mut c_char) -> c_int> = self
                    .nvrtc
                    .get(format!("nvrtcGet{what}").as_bytes())
                    .unwrap();
                let mut bytes = 0;
                assert_eq!(size(program, &mut bytes), 0);
                let mut buffer = vec![0u8; bytes];
                assert_eq!(get(program, buffer.as_mut_ptr().cast()), 0);
                buffer
            };
            let source = CString::new(source).unwrap();
            let mut program = ptr::null_mut();
            assert_eq!(
                create(
                    &mut program,
                    source.as_ptr(),
                    ptr::null(),
                    0,
                    ptr::null(),
                    ptr::null()
                ),
                0
            );
            let include = self.folder.join("include");
            let options = [
                format!("--gpu-architecture={arch}"),
                format!("--include-path={}", include.display()),
                format!("--include-path={}", include.join("cccl").display()),
                "-lineinfo".into(),
            ];
            let options = options.map(|option| CString::new(option).unwrap());
            let pointers = options.each_ref().map(|option| option.as_ptr());
            let code = compile(program, pointers.len() as c_int, pointers.as_ptr());
            let log = String::from_utf8_lossy(&output(program, "ProgramLog")).into_owned();
            let made = match code {
                0 => Ok(output(program, "CUBIN")),
                _ => Err(log),
            };
            destroy(&mut program);
            made
        }
    }

    /// Returns the instructions of a kernel: operations with what qualifies them, as `QGMMA.64x128x32.F32.E4M3.E4M3`.
    pub(crate) fn instructions(&self, name: &str, source: &str, arch: &str) -> Vec<String> {
        let code = self
            .compile(source, arch)
            .unwrap_or_else(|log| panic!("{name} for {arch}:\n{log}"));
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{arch}.cubin"));
        fs::write(&file, code).unwrap();
        let done = Command::new(self.folder.join("bin/nvdisasm"))
            .arg("-c")
            .arg(&file)
            .output()
            .unwrap();
        assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
        let text = String::from_utf8(done.stdout).unwrap();
        // `/*0e00*/  @P0 QGMMA.64x128x32.F32.E4M3.E5M2 R24, gdesc[UR16], RZ, !UPT ;`
        let lines = text
            .lines()
            .filter_map(|line| line.trim_start().strip_prefix("/*"));
        let code = lines
            .filter_map(|line| line.split_once("*/"))
            .map(|(_, code)| code.trim_start());
        let words =
            code.filter_map(|code| code.split_whitespace().find(|word| !word.starts_with('@')));
        let found: Vec<String> = words
            .map(|word| word.trim_end_matches(';').to_string())
            .collect();
        assert!(
            found.len() > 20,
            "{name} for {arch} has {} instructions",
            found.len()
        );
        found
    }
}

/// Returns how many instructions are of an operation.
pub(crate) fn count(instructions: &[String], operation: &str) -> usize {
    instructions
        .iter()
        .filter(|instruction| instruction.starts_with(operation))
        .count()
}

/// Nothing is computed in f64, and no register is spilled: an array that is indexed by a value that the compiler does
/// not know lies in local memory as well.
pub(crate) fn check_clean(name: &str, instructions: &[String]) {
    for wrong in ["DADD", "DMUL", "DFMA", "DSETP", "STL", "LDL"] {
        assert_eq!(count(instructions, wrong), 0, "{name}: {wrong}");
    }
    let doubles = instructions
        .iter()
        .filter(|instruction| instruction.contains(".F64"));
    assert_eq!(doubles.collect::<Vec<_>>(), Vec::<&String>::new(), "{name}");
}
