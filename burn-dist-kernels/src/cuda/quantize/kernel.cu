// 8 bits of in * scale, from one read: as the matrix lies, the other way round, or both. Sizes are multiples of 16.
// What shares a scale begins with a tile of this kernel, or is smaller than one.
extern "C" __global__ void __launch_bounds__(THREADS) NAME(
    const In* __restrict__ in, const float* __restrict__ scales,
#if AS_IS
    u8* __restrict__ out,
#endif
#if TRANSPOSED
    u8* __restrict__ out_transposed,
#endif
    const __grid_constant__ Info info)
{
#if TRANSPOSED
    alignas(16) __shared__ u32 words[TILE * TILE / 4];
#endif
    const u32 tiles = (info.columns + TILE - 1) / TILE;
    const u32 row_first = blockIdx.x / tiles * TILE, column_first = blockIdx.x % tiles * TILE;

    const u32 chunk = threadIdx.x % 8, four = threadIdx.x / 8;
    const u32 row = row_first + four * 4, column = column_first + chunk * 16;
    if (row < info.rows && column < info.columns) {
        u32 w[4][4];
#if SCALE_OF_COLUMN
        float scale[16];
#pragma unroll
        for (u32 i = 0; i < 16; i++)
            scale[i] = scales[row / ROWS_OF_SCALE * info.row_stride + (column + i) * info.column_stride];
#endif
#pragma unroll
        for (u32 r = 0; r < 4; r++) {
#if !SCALE_OF_COLUMN
            const u32 of_row = (row + r) / ROWS_OF_SCALE * info.row_stride;
            const float scale = scales[of_row + column / TILE * info.column_stride];
#endif
            const uint4* const from = (const uint4*)(in + u64(row + r) * info.columns + column);
            float values[16];
#pragma unroll
            for (u32 i = 0; i < sizeof(In); i++) {
                const uint4 read = from[i];
                const u32 parts[4] = {read.x, read.y, read.z, read.w};
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
#if IN_BYTES == 4
                    values[i * 4 + j] = __uint_as_float(parts[j]);
#else
                    values[i * 8 + j * 2] = widen(u16(parts[j]));
                    values[i * 8 + j * 2 + 1] = widen(u16(parts[j] >> 16));
#endif
                }
            }
#pragma unroll
            for (u32 i = 0; i < 16; i++)
#if SCALE_OF_COLUMN
                values[i] *= scale[i];
#else
                values[i] *= scale;
#endif
#pragma unroll
            for (u32 i = 0; i < 4; i++)
                w[r][i] = cast(values[i * 4], values[i * 4 + 1], values[i * 4 + 2], values[i * 4 + 3]);
#if AS_IS
            *(uint4*)(out + u64(row + r) * info.columns + column) = {w[r][0], w[r][1], w[r][2], w[r][3]};
#endif
        }
#if TRANSPOSED
        put(words, w, four, chunk);
#endif
    }
#if TRANSPOSED
    __syncthreads();
    store_columns(words, out_transposed, info.rows, info.columns, row_first, column_first);
#endif
}
