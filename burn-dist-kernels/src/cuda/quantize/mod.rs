//! Casts to 8 bits by the device's own instruction, as they lie and transposed from one read.
//!
//! A layer needs each operand as it lies and transposed: this reads it once and writes it twice. CubeCL 0.10's own cast
//! does not saturate, and goes through f64.

use burn_dist_plan::policy::Fp8;

use super::product::{BLOCK, Out, Scales};
use super::transpose::{THREADS, TILE, TILES};

/// Which elements of a matrix share a scale, as it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shared {
    /// The scales of an operand whose rows are what is added up.
    Rows(Scales),
    /// The scales of an operand whose columns are: what its transpose has.
    Columns(Scales),
}

/// The variant of the kernel for a cast.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// The type of what is cast.
    pub from: Out,
    /// The format.
    pub format: Fp8,
    /// Which elements share a scale.
    pub shared: Shared,
    /// True if it is written as it lies.
    pub as_is: bool,
    /// True if it is written transposed.
    pub transposed: bool,
}

/// The name of the kernel in its source.
pub const NAME: &str = "float8_quantize";

const _: () = assert!(TILE == BLOCK, "a block has one scale in a tile");

impl Kernel {
    /// Rows that share a scale, or one.
    fn rows_of_scale(&self) -> usize {
        match self.shared {
            Shared::Rows(Scales::Block | Scales::BlockOfColumn) => BLOCK,
            Shared::Columns(scales) if scales.is_of_blocks() => BLOCK,
            _ => 1,
        }
    }

    /// Returns whether neighbouring columns have scales of their own.
    fn is_of_column(&self) -> bool {
        matches!(
            self.shared,
            Shared::Columns(Scales::Row | Scales::Tile | Scales::TileOfColumn)
        )
    }

    /// How far apart scales are, of neighbouring rows (or blocks of them) and columns (or blocks of them).
    fn strides(&self, rows: usize, columns: usize) -> [usize; 2] {
        match self.shared {
            Shared::Rows(scales) => scales.strides(rows, columns),
            Shared::Columns(scales) => {
                let [of_column, of_block] = scales.strides(columns, rows);
                [of_block, of_column]
            }
        }
    }

    /// Returns the types and constants of its source.
    pub fn constants(&self) -> String {
        let mut source = String::from(
            "typedef unsigned char u8;\ntypedef unsigned short u16;\ntypedef unsigned int u32;\n\
             typedef unsigned long long u64;\n",
        );
        for (name, value) in [
            ("TILE", TILE),
            ("THREADS", THREADS),
            ("IN_BYTES", self.from.bytes()),
            ("IN_BF16", (self.from == Out::BF16).into()),
            ("E5M2", (self.format == Fp8::E5M2).into()),
            ("ROWS_OF_SCALE", self.rows_of_scale()),
            ("SCALE_OF_COLUMN", self.is_of_column().into()),
            ("AS_IS", self.as_is.into()),
            ("TRANSPOSED", self.transposed.into()),
        ] {
            source += &format!("#define {name} {value}\n");
        }
        let word = if self.from == Out::F32 {
            "float"
        } else {
            "u16"
        };
        source
            + &format!(
                "#define FORMAT \"{}\"\n#define NAME {NAME}\ntypedef {word} In;\n\
                 struct Info {{ u32 rows, columns, row_stride, column_stride; }};\n\n",
                self.format
            )
    }

    /// Its work, in terms of its constants and its device.
    pub const BODY: &str = include_str!("kernel.cu");

    /// Its device, in PTX.
    pub const DEVICE: &str = include_str!("device.cu");

    /// Returns its source in CUDA.
    pub fn source(&self) -> String {
        self.constants() + Self::DEVICE + &self.body()
    }

    /// Returns what comes after its device.
    pub fn body(&self) -> String {
        String::from(if self.transposed { TILES } else { "" }) + Self::BODY
    }

    /// Returns what the kernel has to know of a matrix, and how many blocks of threads to launch; `None` if a size is no
    /// multiple of 16.
    pub fn launch(&self, rows: usize, columns: usize) -> Option<(Vec<u64>, usize)> {
        let (sizes, blocks) = super::transpose::launch(rows, columns)?;
        let [row, column] = self.strides(rows, columns).map(|stride| stride as u64);
        Some((vec![sizes, row | column << 32], blocks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_as_they_lie_and_transposed() {
        let of = |shared| {
            let kernel = Kernel {
                from: Out::BF16,
                format: Fp8::E4M3,
                shared,
                as_is: true,
                transposed: true,
            };
            (
                kernel.strides(256, 384),
                kernel.rows_of_scale(),
                kernel.is_of_column(),
            )
        };
        assert_eq!(of(Shared::Rows(Scales::Tensor)), ([0, 0], 1, false));
        assert_eq!(of(Shared::Rows(Scales::Row)), ([1, 0], 1, false));
        assert_eq!(of(Shared::Columns(Scales::Row)), ([0, 1], 1, true));
        // [256, 3], [3, 256], [2, 3]
        assert_eq!(of(Shared::Rows(Scales::Tile)), ([3, 1], 1, false));
        assert_eq!(of(Shared::Rows(Scales::TileOfColumn)), ([1, 256], 1, false));
        assert_eq!(of(Shared::Rows(Scales::Block)), ([3, 1], 128, false));
        // Of the transpose: [384, 2], [2, 384], [3, 2]
        assert_eq!(of(Shared::Columns(Scales::Tile)), ([1, 2], 128, true));
        assert_eq!(
            of(Shared::Columns(Scales::TileOfColumn)),
            ([384, 1], 128, true)
        );
        assert_eq!(of(Shared::Columns(Scales::Block)), ([1, 2], 128, false));
    }
}
