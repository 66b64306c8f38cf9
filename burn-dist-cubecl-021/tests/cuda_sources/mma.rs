//! CubeCL's source of a product by `mma`, on the host. Its instruction in PTX is what is emulated.
use burn_dist_cubecl::source::{self, Source};
use burn_dist_kernels::cuda::product::{Out, Product, Scales};
use burn_dist_kernels::cuda::reference::{Operands, Sums};
use burn_dist_plan::policy::Fp8::{self, E4M3, E5M2};

use super::host::{DEVICE, compile, run, words};

/// Returns a source for the host.
fn on_host(product: &Product) -> String {
    let Source { name, code } = source::mma(product);
    let [a, b] = product.formats;
    let (before, asm) = code.split_once("asm volatile(").expect("an instruction");
    let (instruction, after) = asm.split_once(");").expect("its end");
    let expected = format!("mma.sync.aligned.m16n8k32.row.col.f32.{a}.{b}.f32");
    assert!(instruction.contains(&expected), "{instruction}");
    assert!(!after.contains("asm"), "{after}");
    let registers = |of: &str, count: usize, by: &str| {
        let all = (0..count).map(|i| format!("{by}reg_{of}_{i}"));
        format!("{{{}}}", all.collect::<Vec<_>>().join(", "))
    };
    let call = [
        registers("a", 4, ""),
        registers("b", 2, ""),
        registers("c", 4, ""),
        registers("d", 4, "&"),
    ];
    let kernel = format!("{before}mma({});{after}", call.join(", "));
    let kernel: Vec<&str> = kernel
        .lines()
        .filter(|line| !line.starts_with("#include"))
        .collect();
    let out = match product.out {
        Out::F32 => "float",
        Out::F16 => "__half",
        Out::BF16 => "__nv_bfloat16",
    };
    let is_e5m2 = [a, b].map(|format| u8::from(format == E5M2));
    [
        DEVICE,
        &format!(
            "#define A_E5M2 {}\n#define B_E5M2 {}",
            is_e5m2[0], is_e5m2[1]
        ),
        &format!("#define SHARED {}", source::MMA_SHARED),
        include_str!("cubecl.cpp"),
        &kernel.join("\n"),
        &format!("typedef {out} Out;\ntypedef {out}_2 Pair;\n#define NAME {name}"),
        &format!("#define BIAS {}", u8::from(product.bias)),
        include_str!("mma.cpp"),
    ]
    .join("\n")
}

/// Tiles of all shapes: `(m, n, k)`.
const SHAPES: [(usize, usize, usize); 4] =
    [(64, 128, 128), (1, 16, 16), (70, 144, 272), (130, 16, 144)];

fn products(formats: [Fp8; 2], scales: [Scales; 2], out: Out, bias: bool, sanitizer: &str) {
    let of = |m, n, k| Product {
        m,
        n,
        k,
        formats,
        scales,
        out,
        bias,
    };
    let name = format!("mma-{:?}-{}-{sanitizer}", scales[1], out.name());
    let program = compile(&name, &on_host(&of(16, 16, 16)), sanitizer);
    for (m, n, k) in SHAPES {
        let operands = Operands::pseudo_random(of(m, n, k));
        let counts = operands.scales.each_ref().map(Vec::len);
        let [down, across] = source::mma_cubes(&of(m, n, k));
        let mut input = words([across, down].into_iter().chain(counts));
        let strides = [scales[0].strides(m, k), scales[1].strides(n, k)];
        input.extend(words(strides.into_iter().flatten()));
        input.extend(words([m, n, k / 16]));
        input.extend(operands.values.iter().flatten());
        let of_scales = operands.scales.iter().flatten();
        input.extend(of_scales.flat_map(|scale| scale.to_le_bytes()));
        input.extend(operands.bias_bytes());
        operands.check(&run(&program, &input), Sums::F32).unwrap();
    }
}

#[test]
#[ignore = "needs a C++ compiler: cargo xtask kernels"]
fn with_scales_of_tensors() {
    let scales = [Scales::Tensor; 2];
    products([E4M3, E5M2], scales, Out::BF16, true, "address,undefined");
}

#[test]
#[ignore = "needs a C++ compiler: cargo xtask kernels"]
fn with_scales_of_rows() {
    let scales = [Scales::Row; 2];
    products([E5M2, E4M3], scales, Out::F32, false, "address,undefined");
}

#[test]
#[ignore = "needs a C++ compiler: cargo xtask kernels"]
fn with_scales_of_blocks() {
    let scales = [Scales::Tile, Scales::Block];
    products([E4M3, E4M3], scales, Out::F16, true, "address,undefined");
}

#[test]
#[ignore = "needs a C++ compiler: cargo xtask kernels"]
fn with_scales_of_columns() {
    let scales = [Scales::TileOfColumn; 2];
    products([E4M3, E4M3], scales, Out::BF16, false, "address,undefined");
}

#[test]
#[ignore = "needs a C++ compiler: cargo xtask kernels"]
fn with_scales_of_blocks_of_columns() {
    let scales = [Scales::Tile, Scales::BlockOfColumn];
    products([E4M3, E4M3], scales, Out::F32, true, "address,undefined");
}

#[test]
#[ignore = "needs a C++ compiler: cargo xtask kernels"]
fn has_no_data_race() {
    let scales = [Scales::Tile, Scales::Row];
    products([E4M3, E4M3], scales, Out::BF16, false, "thread");
}
