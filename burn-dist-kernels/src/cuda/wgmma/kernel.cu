// out[m, n] = sum over k of a[m, k] * b[n, k], in float8, divided by scales; plus bias. Both operands are K-major.
//
// Blocks of threads are persistent and take tiles in the order of `place`. One thread of the last warpgroup loads tiles
// of both operands into a ring of stages by TMA; each other warpgroup multiplies ROWS_OF_GROUP rows of the tile, WAVE
// rows at a time. Tensor cores add up in fewer bits than f32 has: after each BLOCK_K of K the sum is added to one in
// f32 registers.
//
// Before this text come the constants, the types Out and Info with `value` and `pack`, and the device: `device.cu` and
// `mma`, or an emulation of them.

struct Place { u32 m; u32 n; };

__device__ __forceinline__ u64 descriptor(u32 address) {
    return DESCRIPTOR | ((address & 0x3ffff) >> 4);
}

// Neighbouring tiles share operands: GROUP tiles of rows go together through all columns.
__device__ __forceinline__ Place place(u32 tile, u32 tiles_m, u32 tiles_n) {
    u32 first = tile / (GROUP * tiles_n) * GROUP;
    u32 within = tile % (GROUP * tiles_n);
    u32 rows = min(u32(GROUP), tiles_m - first);
    return {first + within % rows, within / rows};
}

// 1 / x, correctly rounded where neither is subnormal, which no scale is: one step of Newton's after 23 bits. Of zero,
// which is the scale of what has infinities, NaN: as its product with the zeros and NaNs that it scales is.
__device__ __forceinline__ float inverse(float x) {
    float y = reciprocal_approximate(x);
    return fmaf(fmaf(-x, y, 1.0f), y, y);
}

#if OUT_BYTES == 2
// Lane l of four has words for columns of chunks 0 to 3; then it has all four words of chunk l.
__device__ __forceinline__ void quad_transpose(u32 (&w)[4], u32 lane) {
    bool odd = lane & 1, high = lane & 2;
#pragma unroll
    for (u32 i = 0; i < 4; i += 2) {
        u32 other = __shfl_xor_sync(0xffffffff, odd ? w[i] : w[i + 1], 1);
        if (odd) w[i] = other; else w[i + 1] = other;
    }
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        u32 other = __shfl_xor_sync(0xffffffff, high ? w[i] : w[i + 2], 2);
        if (high) w[i] = other; else w[i + 2] = other;
    }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 1) NAME(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
    const u8*, const u8*, // what the maps are of
    const float* __restrict__ a_scale, const float* __restrict__ b_scale,
#if BIAS
    const Out* __restrict__ bias,
#endif
    Out* __restrict__ out, const __grid_constant__ Info info)
{
    extern __shared__ u8 shared[];
    const u32 base = (shared_address(shared) + ALIGN - 1) / ALIGN * ALIGN;
    const u32 full = base + BARRIERS, empty = full + 8 * STAGES;
    const u32 m = info.m, n = info.n;
    const u32 tiles_m = (m + TILE_M - 1) / TILE_M, tiles_n = (n + TILE_N - 1) / TILE_N;
    const u32 blocks = (u32(info.k) + BLOCK_K - 1) / BLOCK_K;
    const u32 group = threadIdx.x / 128;

    if (threadIdx.x == 0) {
        for (u32 i = 0; i < STAGES; i++) {
            barrier_init(full + 8 * i, 1);
            barrier_init(empty + 8 * i, CONSUMERS * 4);
        }
        barriers_made();
    }
    __syncthreads();

    if (group == CONSUMERS) {
        registers_of_producer();
        if (threadIdx.x != CONSUMERS * 128) return;
        u32 step = 0;
        for (u32 tile = blockIdx.x; tile < tiles_m * tiles_n; tile += gridDim.x) {
            Place at = place(tile, tiles_m, tiles_n);
            for (u32 block = 0; block < blocks; block++, step++) {
                u32 stage = step % STAGES;
                // The first time round nobody has to empty it: the phase before the first counts as ended.
                barrier_wait(empty + 8 * stage, (step / STAGES & 1) ^ 1);
                barrier_expect(full + 8 * stage, A_BYTES + B_BYTES);
                load(base + stage * A_BYTES, &a_map, full + 8 * stage, block * BLOCK_K, at.m * TILE_M);
                load(base + B_STAGES + stage * B_BYTES, &b_map, full + 8 * stage, block * BLOCK_K, at.n * TILE_N);
            }
        }
        return;
    }

    registers_of_consumer();
    const u32 lane = threadIdx.x % 32;
    // The row of this thread's first element within a wave, and its first column.
    const u32 row_in_wave = threadIdx.x % 128 / 32 * 16 + lane / 4, column = lane % 4 * 2;
    const u64 a_start = descriptor(base + group * ROWS_OF_GROUP * BLOCK_K);
    const u64 b_start = descriptor(base + B_STAGES);
    u32 step = 0;

    for (u32 tile = blockIdx.x; tile < tiles_m * tiles_n; tile += gridDim.x) {
        const Place at = place(tile, tiles_m, tiles_n);
        const u32 row_first = at.m * TILE_M + group * ROWS_OF_GROUP + row_in_wave;
        const u32 column_first = at.n * TILE_N + column;
        float sum[WAVES][PART];
#pragma unroll
        for (u32 wave = 0; wave < WAVES; wave++)
#pragma unroll
            for (u32 i = 0; i < PART; i++) sum[wave][i] = 0.0f;

        for (u32 block = 0; block < blocks; block++, step++) {
            const u32 stage = step % STAGES;
#if SCALES_OF_BLOCKS
            float a_inverse[WAVES][2];
#pragma unroll
            for (u32 wave = 0; wave < WAVES; wave++)
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    u32 row = min(row_first + wave * WAVE + half * 8, m - 1);
                    a_inverse[wave][half] = inverse(a_scale[row * info.a_row + block * info.a_block]);
                }
#if !B_SCALES_OF_ROWS
            const float b_inverse = inverse(b_scale[at.n * info.b_row + block * info.b_block]);
#endif
#endif
            barrier_wait(full + 8 * stage, step / STAGES & 1);
            const u64 a = a_start + stage * (A_BYTES >> 4), b = b_start + stage * (B_BYTES >> 4);
#pragma unroll
            for (u32 wave = 0; wave < WAVES; wave++) {
                float part[PART];
                mma_begin(part);
#pragma unroll
                for (u32 k = 0; k < BLOCK_K; k += MMA_K)
                    mma(part, a + ((wave * WAVE * BLOCK_K + k) >> 4), b + (k >> 4), k != 0);
                mma_end(part);
                if (wave == WAVES - 1) {
                    __syncwarp();
                    if (lane == 0) barrier_arrive(empty + 8 * stage);
                }
#pragma unroll
                for (u32 chunk = 0; chunk < TILE_N / 8; chunk++) {
#if B_SCALES_OF_ROWS
                    // Neighbouring columns have neighbouring scales.
                    float2 scales = {1.0f, 1.0f};
                    if (column_first + chunk * 8 < n)
                        scales = *(const float2*)(b_scale + block * info.b_block + column_first + chunk * 8);
                    const float b_inverses[2] = {inverse(scales.x), inverse(scales.y)};
#endif
#pragma unroll
                    for (u32 i = 0; i < 4; i++) {
                        float &of = sum[wave][chunk * 4 + i], more = part[chunk * 4 + i];
#if !SCALES_OF_BLOCKS
                        of += more;
#elif B_SCALES_OF_ROWS
                        of += more * (a_inverse[wave][i / 2] * b_inverses[i % 2]);
#else
                        of += more * (a_inverse[wave][i / 2] * b_inverse);
#endif
                    }
                }
            }
        }

#if !SCALES_OF_BLOCKS
        float a_inverse[WAVES][2];
#pragma unroll
        for (u32 wave = 0; wave < WAVES; wave++)
#pragma unroll
            for (u32 half = 0; half < 2; half++)
                a_inverse[wave][half] = inverse(a_scale[min(row_first + wave * WAVE + half * 8, m - 1) * info.a_row]);
#endif
        // Four chunks of eight columns at a time; a thread has two columns of each.
#pragma unroll
        for (u32 chunk = 0; chunk < TILE_N / 8; chunk += 4) {
#if !SCALES_OF_BLOCKS
            float b_inverse[4][2];
#endif
#if BIAS
            float more[4][2];
#endif
#pragma unroll
            for (u32 c = 0; c < 4; c++)
#pragma unroll
                for (u32 i = 0; i < 2; i++) {
                    const u32 of = min(column_first + (chunk + c) * 8 + i, n - 1);
#if !SCALES_OF_BLOCKS
                    b_inverse[c][i] = inverse(b_scale[of * info.b_row]);
#endif
#if BIAS
                    more[c][i] = value(bias[of]);
#endif
                }
#pragma unroll
            for (u32 wave = 0; wave < WAVES; wave++)
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    const u32 row = row_first + wave * WAVE + half * 8;
                    float values[4][2];
#pragma unroll
                    for (u32 c = 0; c < 4; c++)
#pragma unroll
                        for (u32 i = 0; i < 2; i++) {
                            values[c][i] = sum[wave][(chunk + c) * 4 + half * 2 + i];
#if !SCALES_OF_BLOCKS
                            values[c][i] *= a_inverse[wave][half] * b_inverse[c][i];
#endif
#if BIAS
                            values[c][i] += more[c][i];
#endif
                        }
                    Out* const to = out + u64(row) * n;
#if OUT_BYTES == 2
                    u32 words[4];
#pragma unroll
                    for (u32 c = 0; c < 4; c++) words[c] = pack(values[c][0], values[c][1]);
                    quad_transpose(words, lane % 4);
                    const u32 at_n = at.n * TILE_N + (chunk + lane % 4) * 8;
                    if (row < m && at_n < n) *(uint4*)(to + at_n) = {words[0], words[1], words[2], words[3]};
#else
#pragma unroll
                    for (u32 c = 0; c < 4; c++) {
                        const u32 at_n = column_first + (chunk + c) * 8;
                        if (row < m && at_n < n) *(float2*)(to + at_n) = {values[c][0], values[c][1]};
                    }
#endif
                }
        }
    }
}
