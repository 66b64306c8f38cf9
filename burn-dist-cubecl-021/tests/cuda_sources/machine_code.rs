//! Kernels in CubeCL's language, as CubeCL hands them to CUDA's compiler: their machine code.

use burn_dist_cubecl::source;
use burn_dist_kernels::cuda::product::{Out, Product, Scales};
use burn_dist_plan::policy::Fp8::{E4M3, E5M2};

use super::toolkit::{Toolkit, check_clean, count};

/// Products by `mma`: tensor cores of Ada and of Blackwell's GPUs for graphics multiply 8 bits, others unpack them to
/// f16 first. Nothing is spilled by either.
#[test]
#[ignore = "needs CUDA's compiler: cargo xtask kernels"]
fn mma() {
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
            let source = source::mma(&product);
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
#[test]
#[ignore = "needs CUDA's compiler: cargo xtask kernels"]
fn kernels_in_cubecls_language() {
    let toolkit = Toolkit::new();
    let mut wrong = Vec::new();
    for source in source::sources() {
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
