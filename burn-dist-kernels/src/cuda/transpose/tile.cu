// A tile of TILE by TILE bytes on its way through shared memory, as words of four bytes of a column. Words lie so that
// neither their writes nor the reads of 16 bytes meet in a bank: bits 2 to 4 of the word's index are flipped by the
// chunk of 16 columns.

// Of a thread, four rows of sixteen columns: `w[row][word]`.
__device__ __forceinline__ void put(u32* words, const u32 (&w)[4][4], u32 four, u32 chunk) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        // Bytes 0 and 1 of two rows, then bytes 2 and 3.
        const u32 low01 = __byte_perm(w[0][i], w[1][i], 0x5140), low23 = __byte_perm(w[2][i], w[3][i], 0x5140);
        const u32 high01 = __byte_perm(w[0][i], w[1][i], 0x7362), high23 = __byte_perm(w[2][i], w[3][i], 0x7362);
        u32* const to = words + (chunk * 16 + i * 4) * (TILE / 4) + (four ^ chunk * 4);
        to[0] = __byte_perm(low01, low23, 0x5410);
        to[TILE / 4] = __byte_perm(low01, low23, 0x7632);
        to[TILE / 4 * 2] = __byte_perm(high01, high23, 0x5410);
        to[TILE / 4 * 3] = __byte_perm(high01, high23, 0x7632);
    }
}

// The tile at this row and column to where its transpose is, of a matrix of `rows` by `columns`.
__device__ __forceinline__ void store_columns(
    const u32* words, u8* out, u32 rows, u32 columns, u32 row_first, u32 column_first)
{
#pragma unroll
    for (u32 i = threadIdx.x; i < TILE * 8; i += THREADS) {
        const u32 line = i / 8, part = i % 8;
        if (column_first + line < columns && row_first + part * 16 < rows)
            *(uint4*)(out + u64(column_first + line) * rows + row_first + part * 16) =
                *(const uint4*)(words + line * (TILE / 4) + (part ^ line / 16) * 4);
    }
}

