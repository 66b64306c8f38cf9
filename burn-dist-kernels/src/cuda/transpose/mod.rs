//! Bytes transposed: tensor cores take operands whose rows are what is added up, and three products of a linear layer
//! need each operand as it lies and transposed.

/// Rows and columns of bytes that a block of threads moves.
pub const TILE: usize = 128;
/// Threads of a block: each reads four rows of 16 bytes.
pub const THREADS: usize = TILE / 4 * (TILE / 16);
/// The name of the kernel in its source.
pub const NAME: &str = "float8_transpose";

/// Returns the types and constants of the source.
pub fn constants() -> String {
    format!(
        "typedef unsigned char u8;\ntypedef unsigned int u32;\ntypedef unsigned long long u64;\n\
         #define TILE {TILE}\n#define THREADS {THREADS}\n#define NAME {NAME}\n\
         struct Info {{ u32 rows, columns; }};\n\n"
    )
}

/// Tiles of bytes that pass through shared memory.
pub(super) const TILES: &str = include_str!("tile.cu");

/// The work of the kernel, in terms of its constants.
pub const BODY: &str = concat!(include_str!("tile.cu"), include_str!("kernel.cu"));

/// Returns its source in CUDA.
pub fn source() -> String {
    constants() + BODY
}

/// Returns what the kernel has to know of a matrix of bytes, and how many blocks of threads to launch; `None` if a size
/// is not a multiple of 16.
pub fn launch(rows: usize, columns: usize) -> Option<(u64, usize)> {
    let fits = |size: usize| size.is_multiple_of(16) && u32::try_from(size).is_ok();
    let info = (rows as u64) | (columns as u64) << 32;
    (fits(rows) && fits(columns)).then(|| (info, rows.div_ceil(TILE) * columns.div_ceil(TILE)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(launch(16, 144), Some((16 | 144 << 32, 2)));
        assert_eq!(launch(256, 256).map(|(_, blocks)| blocks), Some(4));
        assert_eq!(launch(8, 16), None);
        assert_eq!(THREADS, 256);
    }
}
