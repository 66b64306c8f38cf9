//! Kernels compiled to machine code, which is then looked at. No GPU is needed:
//!
//! ```text
//! cargo xtask kernels
//! ```
//!
//! It is what CubeCL's runtime does with a kernel on a GPU, up to the driver: NVRTC with the same options.

use burn_dist_kernels::cuda::flag_wait;
use burn_dist_kernels::cuda::product::{Out, Scales};
use burn_dist_kernels::cuda::quantize::{self, Shared};
use burn_dist_kernels::cuda::transpose;
use burn_dist_kernels::cuda::wgmma::{Kernel, geometry};
use burn_dist_plan::policy::Fp8::{self, E4M3, E5M2};
use toolkit::{Toolkit, check_clean, count};

#[path = "machine_code/toolkit.rs"]
mod toolkit;

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
