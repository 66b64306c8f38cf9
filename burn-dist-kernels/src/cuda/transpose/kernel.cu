// out[c, r] = in[r, c], of bytes; both sizes are multiples of 16.
extern "C" __global__ void __launch_bounds__(THREADS) NAME(
    const u8* __restrict__ in, u8* __restrict__ out, const __grid_constant__ Info info)
{
    alignas(16) __shared__ u32 words[TILE * TILE / 4];
    const u32 tiles = (info.columns + TILE - 1) / TILE;
    const u32 row_first = blockIdx.x / tiles * TILE, column_first = blockIdx.x % tiles * TILE;

    const u32 chunk = threadIdx.x % 8, four = threadIdx.x / 8;
    const u32 row = row_first + four * 4, column = column_first + chunk * 16;
    if (row < info.rows && column < info.columns) {
        u32 w[4][4];
#pragma unroll
        for (u32 r = 0; r < 4; r++) {
            const uint4 read = *(const uint4*)(in + u64(row + r) * info.columns + column);
            w[r][0] = read.x, w[r][1] = read.y, w[r][2] = read.z, w[r][3] = read.w;
        }
        put(words, w, four, chunk);
    }
    __syncthreads();
    store_columns(words, out, info.rows, info.columns, row_first, column_first);
}
