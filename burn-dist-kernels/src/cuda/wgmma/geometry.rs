//! Where everything is: the computations of `kernel.cu` once more, with the definitions of the PTX ISA that they rest
//! on.
//!
//! PTX ISA 9.0, chapters "Asynchronous Warpgroup Level Matrix Instructions" (matrix descriptor, canonical layouts,
//! fragment of the accumulator) and "Tensor" (swizzling modes of bulk copies).

use super::super::product::BLOCK;

/// Rows of the result that a block of threads computes.
pub const TILE_M: usize = 256;
/// Columns of the result that a block of threads computes, and of one instruction.
pub const TILE_N: usize = 128;
/// Elements of K that are loaded at once: as many as bytes in a swizzled row.
pub const BLOCK_K: usize = BLOCK;
/// Elements of K of one instruction: 32 bytes.
pub const MMA_K: usize = 32;
/// Rows of one instruction.
pub const WAVE: usize = 64;
/// Warpgroups that multiply.
pub const CONSUMERS: usize = 2;
/// Rows of each of them.
pub const ROWS_OF_GROUP: usize = TILE_M / CONSUMERS;
/// Instructions for rows, one after the other, of each of them.
pub const WAVES: usize = ROWS_OF_GROUP / WAVE;
/// Threads of a block: the warpgroups that multiply and the one that loads.
pub const THREADS: usize = 128 * (CONSUMERS + 1);
/// Sums of one instruction in registers of a thread.
pub const PART: usize = WAVE * TILE_N / 128;
/// Tiles that are loaded ahead.
pub const STAGES: usize = 4;
/// Tiles of rows that go together through all columns.
pub const GROUP: usize = 8;
/// The bytes after which the swizzle repeats: eight rows.
pub const ALIGN: usize = 1024;
/// Bytes of a stage of each operand.
pub const A_BYTES: usize = TILE_M * BLOCK_K;
/// Bytes of a stage of each operand.
pub const B_BYTES: usize = TILE_N * BLOCK_K;
/// Where stages of `b` begin in shared memory.
pub const B_STAGES: usize = STAGES * A_BYTES;
/// Where barriers begin: those of full stages, then those of empty ones.
pub const BARRIERS: usize = STAGES * (A_BYTES + B_BYTES);
/// Bytes of shared memory, with what aligning its start may take.
pub const SHARED: usize = BARRIERS + 16 * STAGES + ALIGN;
/// Registers of a thread that loads.
pub const PRODUCER_REGISTERS: usize = 24;
/// Registers of a thread that multiplies.
pub const CONSUMER_REGISTERS: usize = 240;

/// The constant bits of a matrix descriptor: rows of 128 bytes, swizzled over 128 bytes (mode 1 in bits 62 and 63); the
/// next eight rows lie 1,024 bytes on (bits 32 to 45, in units of 16); the leading offset (bits 16 to 29) is not used.
pub const DESCRIPTOR: u64 = 1 << 62 | ((ALIGN as u64) >> 4) << 32 | 1 << 16;

/// Returns the descriptor of a matrix at an address of shared memory.
pub const fn descriptor(address: u32) -> u64 {
    DESCRIPTOR | ((address & 0x3ffff) >> 4) as u64
}

/// Returns where TMA's swizzle over 128 bytes puts what would be at an address: bits 4 to 6, the chunk of 16 bytes, are
/// flipped by bits 7 to 9, the row of eight.
pub const fn swizzle(address: u32) -> u32 {
    address ^ ((address >> 3) & 0x70)
}

/// Returns row and column in the result of one instruction of element `register` of a thread of the warpgroup.
pub const fn fragment(thread: usize, register: usize) -> (usize, usize) {
    let (warp, lane) = (thread / 32, thread % 32);
    let row = warp * 16 + lane / 4 + register / 2 % 2 * 8;
    let column = register / 4 * 8 + lane % 4 * 2 + register % 2;
    (row, column)
}

/// Returns row and column of a tile.
pub const fn place(tile: usize, tiles_m: usize, tiles_n: usize) -> (usize, usize) {
    let first = tile / (GROUP * tiles_n) * GROUP;
    let within = tile % (GROUP * tiles_n);
    let rows = if tiles_m - first < GROUP {
        tiles_m - first
    } else {
        GROUP
    };
    (first + within % rows, within / rows)
}

/// Returns stage and parity of a consumer's step; the producer waits for the other parity.
pub const fn stage(step: usize) -> (usize, usize) {
    (step % STAGES, (step / STAGES) & 1)
}

/// Swaps words among four lanes: lane `l` has word `l` of each lane afterwards. Two rounds, with neighbours and with
/// those two lanes away, as shuffles do it.
pub fn quad_transpose(words: [[u32; 4]; 4]) -> [[u32; 4]; 4] {
    let mut now = words;
    for (distance, step) in [(1, 2), (2, 1)] {
        let before = now;
        for lane in 0..4 {
            let other = before[lane ^ distance];
            for word in (0..4).step_by(step).take(2) {
                match lane & distance == 0 {
                    true => now[lane][word + distance] = other[word],
                    false => now[lane][word] = other[word + distance],
                }
            }
        }
    }
    now
}

#[cfg(test)]
mod tests;
