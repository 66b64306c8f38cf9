//! A product in float8 on Hopper's tensor cores: `wgmma`, fed by TMA.
//!
//! CubeCL 0.10 has no `wgmma`, and its `mma` for float8 becomes instructions for f16 on Hopper.

use burn_dist_plan::policy::Fp8;

use super::product::{Out, Product, Scales};

pub mod geometry;

/// The variant of the kernel for a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// Formats of the operands.
    pub formats: [Fp8; 2],
    /// How scales of `b` change along what is added up, if scales do; otherwise strides say what shares one.
    pub blocks: Option<Scales>,
    /// The type of the result, and of the bias.
    pub out: Out,
    /// True if there is a bias.
    pub bias: bool,
}

/// The name of the kernel in its source.
pub const NAME: &str = "float8_wgmma";

impl Kernel {
    /// Returns the variant for a product, or why there is none.
    pub fn of(product: &Product) -> Result<Self, &'static str> {
        let Product {
            m,
            n,
            k,
            formats,
            scales,
            out,
            bias,
        } = *product;
        if m == 0 || n == 0 || k == 0 {
            return Err("nothing to multiply");
        }
        if n % 16 != 0 || k % 16 != 0 {
            return Err("N and K are not multiples of 16");
        }
        if [m, n, k].iter().any(|size| *size > i32::MAX as usize) {
            return Err("a size is beyond 31 bits");
        }
        let blocks = match scales {
            [a, b] if !a.is_of_blocks() && !b.is_of_blocks() => None,
            // Strides say how the scales of blocks lie.
            [
                Scales::Tile | Scales::TileOfColumn,
                Scales::Block | Scales::BlockOfColumn,
            ] => Some(Scales::Block),
            [
                Scales::Tile | Scales::TileOfColumn,
                b @ Scales::TileOfColumn,
            ] => Some(b),
            _ => return Err("these scales do not go together"),
        };
        Ok(Self {
            formats,
            blocks,
            out,
            bias,
        })
    }

    /// Returns the constants and types of its source.
    pub fn constants(&self) -> String {
        use geometry::*;
        let mut source = String::from(
            "typedef unsigned char u8;\ntypedef unsigned short u16;\ntypedef unsigned int u32;\n\
             typedef unsigned long long u64;\n",
        );
        let mut define = |name: &str, value: String| source += &format!("#define {name} {value}\n");
        for (name, value) in [
            ("TILE_M", TILE_M),
            ("TILE_N", TILE_N),
            ("BLOCK_K", BLOCK_K),
            ("MMA_K", MMA_K),
            ("WAVE", WAVE),
            ("WAVES", WAVES),
            ("CONSUMERS", CONSUMERS),
            ("ROWS_OF_GROUP", ROWS_OF_GROUP),
            ("THREADS", THREADS),
            ("PART", PART),
            ("STAGES", STAGES),
            ("GROUP", GROUP),
            ("ALIGN", ALIGN),
            ("A_BYTES", A_BYTES),
            ("B_BYTES", B_BYTES),
            ("B_STAGES", B_STAGES),
            ("BARRIERS", BARRIERS),
            ("SHARED", SHARED),
            ("OUT_BYTES", self.out.bytes()),
            ("OUT_BF16", (self.out == Out::BF16).into()),
            ("A_E5M2", (self.formats[0] == Fp8::E5M2).into()),
            ("B_E5M2", (self.formats[1] == Fp8::E5M2).into()),
            ("BIAS", self.bias.into()),
            ("SCALES_OF_BLOCKS", self.blocks.is_some().into()),
            (
                "B_SCALES_OF_ROWS",
                (self.blocks == Some(Scales::TileOfColumn)).into(),
            ),
        ] {
            define(name, value.to_string());
        }
        define("PRODUCER_REGISTERS", format!("\"{PRODUCER_REGISTERS}\""));
        define("CONSUMER_REGISTERS", format!("\"{CONSUMER_REGISTERS}\""));
        define("DESCRIPTOR", format!("{DESCRIPTOR:#x}ull"));
        define("NAME", NAME.into());
        source += match self.out {
            Out::F32 => "typedef float Out;\n",
            Out::F16 | Out::BF16 => "typedef u16 Out;\n",
        };
        source += "struct Info { u32 m, n, k, a_row, a_block, b_row, b_block, unused; };\n";
        source
    }

    /// Returns the device that the kernel is written for, in PTX.
    fn device(&self) -> String {
        use geometry::{MMA_K, PART, TILE_N};
        let [a, b] = self.formats;
        let mut source = String::from(Self::DEVICE);
        // Operands 0 to PART - 1 are sums; then come both descriptors, and whether sums are added to.
        let sums: Vec<String> = (0..PART).map(|i| format!("%{i}")).collect();
        let bound: Vec<String> = (0..PART).map(|i| format!("\"+f\"(d[{i}])")).collect();
        source += &format!(
            "__device__ __forceinline__ void mma(float (&d)[PART], u64 a, u64 b, bool add) {{\n    \
                 asm volatile(\n        \
                     \"{{\\n.reg .pred add;\\nsetp.ne.b32 add, %{}, 0;\\n\"\n        \
                     \"wgmma.mma_async.sync.aligned.m64n{TILE_N}k{MMA_K}.f32.{a}.{b} \"\n        \
                     \"{{{}}}, %{}, %{}, add, 1, 1;\\n}}\\n\"\n        \
                     : {}\n        : \"l\"(a), \"l\"(b), \"r\"(int(add)));\n}}\n\n",
            PART + 2,
            sums.join(", "),
            PART,
            PART + 1,
            bound.join(", "),
        );
        source
    }

    /// Returns its source in CUDA.
    pub fn source(&self) -> String {
        self.constants() + &self.device() + Self::BODY
    }

    /// The part of the device that is not generated.
    pub const DEVICE: &str = include_str!("device.cu");

    /// Its work, in terms of its constants and its device.
    pub const BODY: &str = include_str!("kernel.cu");

    /// Returns what the kernel has to know of a product, in the order of `Info` in its source.
    pub fn info(product: &Product) -> Vec<u64> {
        let [a, b] = product.scales;
        let (a, b) = (
            a.strides(product.m, product.k),
            b.strides(product.n, product.k),
        );
        let values = [product.m, product.n, product.k, a[0], a[1], b[0], b[1], 0];
        values
            .chunks(2)
            .map(|pair| pair[0] as u64 | (pair[1] as u64) << 32)
            .collect()
    }

    /// Returns how many blocks of threads to launch on a device of so many multiprocessors.
    pub fn blocks(product: &Product, multiprocessors: usize) -> usize {
        let tiles = product.m.div_ceil(geometry::TILE_M) * product.n.div_ceil(geometry::TILE_N);
        tiles.min(multiprocessors)
    }
}

/// An operand as TMA reads it: a matrix of bytes whose rows lie one after the other, read in boxes of whole rows of
/// 128 bytes, swizzled over 128 bytes. Beyond its bounds there are zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// Rows, and bytes of a row.
    pub shape: [usize; 2],
    /// Rows, and bytes of a row, of what is loaded at once.
    pub tile: [usize; 2],
}

impl TensorMap {
    /// Returns the maps of both operands.
    pub fn of(product: &Product) -> [Self; 2] {
        let map = |rows, tile| Self {
            shape: [rows, product.k],
            tile: [tile, geometry::BLOCK_K],
        };
        [
            map(product.m, geometry::TILE_M),
            map(product.n, geometry::TILE_N),
        ]
    }
}

#[cfg(test)]
mod tests;
