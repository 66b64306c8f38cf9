use std::collections::BTreeSet;

use super::*;

#[test]
fn every_element_of_a_wave_is_in_one_register() {
    let places =
        (0..128).flat_map(|thread| (0..PART).map(move |register| fragment(thread, register)));
    let places: BTreeSet<(usize, usize)> = places.collect();
    assert_eq!(places.len(), WAVE * TILE_N);
    assert_eq!(places.last(), Some(&(WAVE - 1, TILE_N - 1)));
    // From the figure of the PTX ISA: T1 has columns 2, 3 of row 0 and row 8; T4 begins row 1; T32 row 16.
    assert_eq!(
        [0, 1, 2, 4].map(|i| fragment(1, i)),
        [(0, 2), (0, 3), (8, 2), (0, 10)]
    );
    assert_eq!((fragment(4, 0), fragment(32, 0)), ((1, 0), (16, 0)));
}

#[test]
fn the_swizzle_permutes_chunks_within_rows() {
    for row in 0..16 {
        for chunk in 0..8 {
            let at = swizzle(row * 128 + chunk * 16 + 5);
            assert_eq!(at, row * 128 + (chunk ^ (row % 8)) * 16 + 5);
            assert_eq!(swizzle(at), row * 128 + chunk * 16 + 5);
        }
    }
}

/// The content of descriptors, by the table "Matrix descriptor" of the PTX ISA.
#[test]
fn descriptors() {
    let field = |descriptor: u64, low: u32, bits: u32| descriptor >> low & ((1 << bits) - 1);
    for address in (0..SHARED as u32).step_by(ALIGN) {
        let descriptor = descriptor(address);
        assert_eq!(field(descriptor, 0, 14) << 4, u64::from(address));
        assert_eq!(field(descriptor, 32, 14) << 4, 8 * 128, "eight rows");
        assert_eq!(field(descriptor, 49, 3), 0, "stages are aligned");
        assert_eq!(field(descriptor, 62, 2), 1, "128 bytes");
        // A step along K stays inside the field of the address, and inside the row that is swizzled.
        let last = descriptor + ((BLOCK_K - MMA_K) as u64 >> 4);
        assert_eq!(field(last, 0, 14) << 4, u64::from(address) + 96);
        assert_eq!(last >> 14, descriptor >> 14);
    }
    // The sums that the kernel makes of descriptors stay inside as well: the last wave of the last stage.
    let a = descriptor(0) + ((B_STAGES - WAVE * BLOCK_K) as u64 >> 4);
    assert_eq!(a >> 14, descriptor(0) >> 14);
}

#[test]
fn shared_memory_and_registers_suffice() {
    const HOPPER_SHARED: usize = 227 * 1024;
    const HOPPER_REGISTERS: usize = 64 * 1024;
    const { assert!(SHARED <= HOPPER_SHARED) };
    const { assert!(128 * (PRODUCER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS) <= HOPPER_REGISTERS) };
    // Sums in f32, those of one instruction, and 40 for all else.
    const { assert!(WAVES * PART + PART + 40 <= CONSUMER_REGISTERS) };
    for registers in [PRODUCER_REGISTERS, CONSUMER_REGISTERS] {
        assert!(registers.is_multiple_of(8) && (24..=256).contains(&registers));
    }
    // At its start a thread has an equal part. What all have then is what is shared out.
    let at_start = HOPPER_REGISTERS / THREADS / 8 * 8 * THREADS;
    assert!(128 * (PRODUCER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS) <= at_start);
    for bytes in [A_BYTES, B_BYTES, BARRIERS] {
        assert!(bytes.is_multiple_of(ALIGN));
    }
    // What a barrier can count.
    const { assert!(A_BYTES + B_BYTES < 1 << 20) };
}

#[test]
fn every_tile_has_one_place() {
    for tiles_m in [1, 2, 7, 8, 9, 16, 33] {
        for tiles_n in [1, 2, 5, 112] {
            let places: BTreeSet<(usize, usize)> = (0..tiles_m * tiles_n)
                .map(|tile| place(tile, tiles_m, tiles_n))
                .collect();
            assert_eq!(places.len(), tiles_m * tiles_n);
            assert_eq!(places.last(), Some(&(tiles_m - 1, tiles_n - 1)));
        }
    }
    // Rows of a group first.
    assert_eq!(
        [0, 1, 8, 9].map(|tile| place(tile, 16, 4)),
        [(0, 0), (1, 0), (0, 1), (1, 1)]
    );
}

/// The operands of neighbouring tiles fit in the second-level cache of a Hopper: those of 132 tiles, whole in K = 14,336.
#[test]
fn tiles_at_work_share_operands() {
    let places: Vec<_> = (0..132).map(|tile| place(tile, 32, 64)).collect();
    let rows: BTreeSet<usize> = places.iter().map(|place| place.0).collect();
    let columns: BTreeSet<usize> = places.iter().map(|place| place.1).collect();
    let bytes = (rows.len() * TILE_M + columns.len() * TILE_N) * BLOCK_K;
    // 132 tiles that shared nothing would load ten times as much.
    assert!(bytes * 10 <= 132 * (A_BYTES + B_BYTES), "{bytes}");
}

#[test]
fn stages_follow_each_other() {
    assert_eq!(
        [0, 3, 4, 7, 8].map(stage),
        [(0, 0), (3, 0), (0, 1), (3, 1), (0, 0)]
    );
}

#[test]
fn four_lanes_swap_words() {
    let words: [[u32; 4]; 4] =
        std::array::from_fn(|lane| std::array::from_fn(|word| (lane * 10 + word) as u32));
    let swapped = quad_transpose(words);
    for lane in 0..4 {
        for word in 0..4 {
            assert_eq!(swapped[lane][word], words[word][lane]);
        }
    }
}
