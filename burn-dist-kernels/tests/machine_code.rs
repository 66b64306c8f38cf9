//! Kernels compiled to machine code, which is then looked at. No GPU is needed:
//!
//! ```text
//! cargo xtask kernels
//! ```
//!
//! It is what CubeCL's runtime does with a kernel on a GPU, up to the driver: NVRTC with the same options.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, ptr};

use burn_dist_kernels::cuda::flag_wait;
use burn_dist_kernels::cuda::product::{Out, Scales};
use burn_dist_kernels::cuda::quantize::{self, Shared};
use burn_dist_kernels::cuda::transpose;
use burn_dist_kernels::cuda::wgmma::{Kernel, geometry};
use burn_dist_plan::policy::Fp8::{self, E4M3, E5M2};
use libloading::{Library, Symbol};

/// CUDA's compiler and disassembler.
struct Toolkit {
    folder: PathBuf,
    nvrtc: Library,
    _builtins: Library,
}

type Program = *mut c_void;

impl Toolkit {
    fn new() -> Self {
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
    fn compile(&self, source: &str, arch: &str) -> Result<Vec<u8>, String> {
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
    fn instructions(&self, name: &str, source: &str, arch: &str) -> Vec<String> {
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

fn count(instructions: &[String], operation: &str) -> usize {
    instructions
        .iter()
        .filter(|instruction| instruction.starts_with(operation))
        .count()
}

/// Nothing is computed in f64, and no register is spilled: an array that is indexed by a value that the compiler does
/// not know lies in local memory as well.
fn check_clean(name: &str, instructions: &[String]) {
    for wrong in ["DADD", "DMUL", "DFMA", "DSETP", "STL", "LDL"] {
        assert_eq!(count(instructions, wrong), 0, "{name}: {wrong}");
    }
    let doubles = instructions
        .iter()
        .filter(|instruction| instruction.contains(".F64"));
    assert_eq!(doubles.collect::<Vec<_>>(), Vec::<&String>::new(), "{name}");
}

#[test]
#[ignore = "needs CUDA's compiler: cargo xtask kernels"]
fn wgmma() {
    let toolkit = Toolkit::new();
    let plain = Kernel {
        formats: [E4M3; 2],
        blocks: None,
        out: Out::BF16,
        bias: false,
    };
    let mut kernels = Vec::new();
    for formats in [[E4M3, E5M2], [E5M2, E4M3], [E5M2, E5M2]] {
        kernels.push(Kernel { formats, ..plain });
    }
    for blocks in [None, Some(Scales::Block), Some(Scales::TileOfColumn)] {
        for out in [Out::BF16, Out::F16, Out::F32] {
            for bias in [false, true] {
                kernels.push(Kernel {
                    blocks,
                    out,
                    bias,
                    ..plain
                });
            }
        }
    }
    for kernel in kernels {
        let name = format!("{kernel:?}");
        let found = toolkit.instructions("wgmma", &kernel.source(), "sm_90a");
        check_clean(&name, &found);
        let [a, b] = kernel
            .formats
            .map(|format| format.to_string().to_uppercase());
        let (n, k) = (geometry::TILE_N, geometry::MMA_K);
        let product = format!("QGMMA.64x{n}x{k}.F32.{a}.{b}");
        let products = geometry::WAVES * geometry::BLOCK_K / geometry::MMA_K;
        assert_eq!(count(&found, &product), products, "{name}: {product}");
        assert_eq!(count(&found, "QGMMA"), products, "{name}");
        for other in ["HMMA", "HGMMA", "WARPSYNC.COLLECTIVE"] {
            assert_eq!(count(&found, other), 0, "{name}: {other}");
        }
        // One wait for each wave: were the compiler to serialise products, there would be one for each.
        assert_eq!(count(&found, "WARPGROUP.DEPBAR"), geometry::WAVES, "{name}");
        assert_eq!(
            count(&found, "USETMAXREG"),
            2,
            "{name}: registers move from who loads to who multiplies"
        );
        assert!(count(&found, "UTMALDG.2D") >= 2, "{name}: loads by TMA");
        // Results leave as widely as they can.
        let (store, stores) = match kernel.out {
            Out::F32 => ("STG.E.64", geometry::WAVES * geometry::PART / 2),
            _ => ("STG.E.128", geometry::WAVES * geometry::PART / 8),
        };
        assert_eq!(count(&found, store), stores, "{name}: {store}");
        assert_eq!(count(&found, "STG"), stores, "{name}");
    }
}

#[test]
#[ignore = "needs CUDA's compiler: cargo xtask kernels"]
fn wgmma_is_hoppers_alone() {
    let kernel = Kernel {
        formats: [E4M3; 2],
        blocks: None,
        out: Out::BF16,
        bias: false,
    };
    let toolkit = Toolkit::new();
    for arch in ["sm_89", "sm_100a"] {
        assert!(toolkit.compile(&kernel.source(), arch).is_err(), "{arch}");
    }
}

#[test]
#[ignore = "needs CUDA's compiler: cargo xtask kernels"]
fn transposition() {
    let toolkit = Toolkit::new();
    for arch in ["sm_89", "sm_90a", "sm_100a"] {
        let found = toolkit.instructions("transpose", &transpose::source(), arch);
        check_clean(&format!("transpose for {arch}"), &found);
        assert_eq!(
            count(&found, "LDG.E.128"),
            4,
            "{arch}: a thread reads four rows of 16 bytes"
        );
        assert_eq!(count(&found, "LDG"), 4, "{arch}");
        assert_eq!(count(&found, "STG"), count(&found, "STG.E.128"), "{arch}");
        assert!(
            count(&found, "LDS.128") > 0,
            "{arch}: 16 bytes of a column at once"
        );
        assert!(
            count(&found, "PRMT") >= 32,
            "{arch}: bytes are sorted in registers"
        );
    }
}

#[test]
#[ignore = "needs CUDA's compiler: cargo xtask kernels"]
fn waits() {
    let toolkit = Toolkit::new();
    for arch in ["sm_80", "sm_90a", "sm_100a"] {
        let found = toolkit.instructions(flag_wait::NAME, flag_wait::SOURCE, arch);
        check_clean(&format!("flag_wait for {arch}"), &found);
        // Both words, as the whole system sees them, and nothing else.
        let reads = found.iter().filter(|load| load.starts_with("LDG"));
        let reads: Vec<_> = reads.collect();
        assert!(reads.len() >= 2, "{arch}: {reads:?}");
        let is_strong = |load: &&String| load.contains(".STRONG.SYS");
        assert!(reads.iter().all(is_strong), "{arch}: {reads:?}");
        assert!(
            count(&found, "NANOSLEEP") > 0,
            "{arch}: the multiprocessor is left to others"
        );
        assert_eq!(count(&found, "STG"), 0, "{arch}");
    }
}

const FORMATS: [Fp8; 2] = [E4M3, E5M2];

#[test]
#[ignore = "needs CUDA's compiler: cargo xtask kernels"]
fn casts() {
    let toolkit = Toolkit::new();
    let of = |from, format, shared, transposed| quantize::Kernel {
        from,
        format,
        shared,
        as_is: true,
        transposed,
    };
    let mut kernels = Vec::new();
    for format in FORMATS {
        kernels.push(of(Out::BF16, format, Shared::Rows(Scales::Tensor), true));
        kernels.push(of(Out::F16, format, Shared::Rows(Scales::Block), false));
        kernels.push(of(Out::F32, format, Shared::Columns(Scales::Tile), true));
    }
    for kernel in kernels {
        for arch in ["sm_89", "sm_90a", "sm_100a"] {
            let name = format!("{kernel:?} for {arch}");
            let found = toolkit.instructions("quantize", &kernel.source(), arch);
            check_clean(&name, &found);
            // 64 values of a thread, two at once, by the device's own instruction.
            let cast = format!(
                "F2FP.SATFINITE.{}.F32",
                kernel.format.to_string().to_uppercase()
            );
            assert_eq!(count(&found, &cast), 32, "{name}: {cast}");
            assert_eq!(count(&found, "FMUL"), 64, "{name}");
            let reads = 4 * kernel.from.bytes();
            assert_eq!(
                count(&found, "LDG.E.128"),
                reads,
                "{name}: as widely as there is"
            );
            assert_eq!(count(&found, "STG"), count(&found, "STG.E.128"), "{name}");
        }
    }
}

/// Products by `mma`: tensor cores of Ada and of Blackwell's GPUs for graphics multiply 8 bits, others unpack them to
/// f16 first. Nothing is spilled by either.
#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs CUDA's compiler: cargo xtask kernels"]
fn mma() {
    use burn_dist_kernels::cuda::product::Product;

    let toolkit = Toolkit::new();
    let plain = Product {
        m: 16,
        n: 16,
        k: 16,
        formats: [E4M3; 2],
        scales: [Scales::Tensor; 2],
        out: Out::BF16,
        bias: true,
    };
    let mut products = Vec::new();
    for formats in [[E4M3, E5M2], [E5M2, E4M3], [E5M2, E5M2]] {
        products.push(Product { formats, ..plain });
    }
    for (scales, out) in [
        ([Scales::Tensor; 2], Out::F16),
        ([Scales::Tile, Scales::Block], Out::BF16),
        ([Scales::TileOfColumn; 2], Out::F32),
    ] {
        products.push(Product {
            scales,
            out,
            ..plain
        });
    }
    for product in products {
        for (arch, is_native) in [
            ("sm_89", true),
            ("sm_90a", false),
            ("sm_100a", false),
            ("sm_120a", true),
        ] {
            let source = burn_dist_kernels::source::mma(&product);
            let name = format!("{product} for {arch}");
            let found = toolkit.instructions(&source.name, &source.code, arch);
            check_clean(&name, &found);
            let [a, b] = product
                .formats
                .map(|format| format.to_string().to_uppercase());
            let native = format!("QMMA.16832.F32.{a}.{b}");
            // 128 are four times 32, of two squares below each other and four beside each other.
            let expected = if is_native { (32, 0) } else { (0, 64) };
            let counted = (count(&found, &native), count(&found, "HMMA.16816.F32"));
            assert_eq!(counted, expected, "{name}");
            let all = count(&found, "QMMA") + count(&found, "HMMA");
            assert_eq!(all, counted.0 + counted.1, "{name}");
            // Words of two instructions at once: of four rows of each operand, two times.
            assert_eq!(count(&found, "LDS.128"), 16, "{name}");
            assert_eq!(count(&found, "STS.128"), 6, "{name}");
        }
    }
}

/// Kernels in CubeCL's language, as CubeCL hands them to the compiler.
#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs CUDA's compiler: cargo xtask kernels"]
fn kernels_in_cubecls_language() {
    let toolkit = Toolkit::new();
    let mut wrong = Vec::new();
    for source in burn_dist_kernels::source::sources() {
        for arch in ["sm_89", "sm_90a", "sm_100a"] {
            let found = toolkit.instructions(&source.name, &source.code, arch);
            let of = |what: &str| count(&found, what);
            println!("{} for {arch}: {} instructions", source.name, found.len());
            let doubles = found
                .iter()
                .filter(|instruction| instruction.contains(".F64"))
                .count();
            let local = of("STL") + of("LDL");
            // The product of every device is made for none: it spills a few registers.
            let allowed = if source.name.starts_with("products") {
                5
            } else {
                0
            };
            let doubles = doubles
                + ["DADD", "DMUL", "DFMA", "DSETP"]
                    .map(of)
                    .iter()
                    .sum::<usize>();
            if doubles > 0 || local > allowed {
                wrong.push(format!(
                    "{} for {arch}: {doubles} with f64, {local} with local memory",
                    source.name
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
