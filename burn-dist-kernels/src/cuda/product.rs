//! Products in float8, as engines see them.

use burn_dist_plan::policy::Fp8;

/// The size of blocks that share a scale, and of what tensor cores add up before it is added up in f32.
pub const BLOCK: usize = 128;

/// Which elements of an operand share a scale. Operands are matrices whose last dim is added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scales {
    /// All: one scale.
    Tensor,
    /// Elements of a row.
    Row,
    /// 128 of a row: scales are `[rows, blocks]`.
    Tile,
    /// 128 of a row: scales are `[blocks, rows]`, as those of columns are after a transposition of the values alone.
    TileOfColumn,
    /// 128 of each of 128 rows: scales are `[blocks of rows, blocks]`.
    Block,
    /// 128 of each of 128 rows: scales are `[blocks, blocks of rows]`.
    BlockOfColumn,
}

impl Scales {
    /// Returns whether scales change along what is added up.
    pub const fn is_of_blocks(self) -> bool {
        !matches!(self, Self::Tensor | Self::Row)
    }

    /// Returns how many scales an operand of this shape has.
    pub const fn count(self, rows: usize, depth: usize) -> usize {
        match self {
            Self::Tensor => 1,
            Self::Row => rows,
            Self::Tile | Self::TileOfColumn => rows * depth.div_ceil(BLOCK),
            Self::Block | Self::BlockOfColumn => rows.div_ceil(BLOCK) * depth.div_ceil(BLOCK),
        }
    }

    /// Returns how far apart scales are: those of neighbouring rows (blocks of rows, if these share one), and those of
    /// neighbouring blocks of what is added up.
    pub const fn strides(self, rows: usize, depth: usize) -> [usize; 2] {
        match self {
            Self::Tensor => [0, 0],
            Self::Row => [1, 0],
            Self::TileOfColumn => [1, rows],
            Self::BlockOfColumn => [1, rows.div_ceil(BLOCK)],
            Self::Tile | Self::Block => [depth.div_ceil(BLOCK), 1],
        }
    }
}

/// The type of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Out {
    /// 32 bits.
    F32,
    /// 16 bits, 5 of exponent.
    F16,
    /// 16 bits, 8 of exponent.
    BF16,
}

impl Out {
    /// Returns the bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }

    /// Returns its name in Rust.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
        }
    }
}

/// `out[m, n] = sum over k of a[m, k] * b[n, k]`, added up in f32, divided by the scales, plus a bias for each `n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Product {
    /// Rows of `a` and of the result.
    pub m: usize,
    /// Rows of `b`: columns of the result.
    pub n: usize,
    /// The number of terms of a sum.
    pub k: usize,
    /// Formats of `a` and `b`.
    pub formats: [Fp8; 2],
    /// Which elements of `a` and `b` share a scale.
    pub scales: [Scales; 2],
    /// The type of the result, and of the bias.
    pub out: Out,
    /// True if there is a bias.
    pub bias: bool,
}

impl Product {
    /// Returns how many operations it is: a multiplication and an addition each.
    pub fn flops(&self) -> f64 {
        2.0 * self.m as f64 * self.n as f64 * self.k as f64
    }
}

impl std::fmt::Display for Product {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b] = self.formats;
        let (m, n, k, out) = (self.m, self.n, self.k, self.out.name());
        write!(
            f,
            "{m} x {n} x {k}, {a} x {b} to {out}, scales {:?} and {:?}",
            self.scales[0], self.scales[1]
        )?;
        f.write_str(if self.bias { ", bias" } else { "" })
    }
}
