// What CubeCL's sources in CUDA use of a GPU besides: types, and `mma`; after the formats of its operands, before the
// kernel.
#define __shared__
#define __align__(bytes) __attribute__((aligned(bytes)))

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef u8 __nv_fp8_storage_t;
typedef u16 __nv_fp8x2_storage_t;

// No more than a kernel asks for.
alignas(16) u8 dynamic_shared_mem[SHARED];

struct __nv_bfloat16 {
    u16 bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float x) {
        u32 wide;
        std::memcpy(&wide, &x, 4);
        bits = (wide + 0x7fff + (wide >> 16 & 1)) >> 16;
    }
    operator float() const {
        u32 wide = u32(bits) << 16;
        float x;
        std::memcpy(&x, &wide, 4);
        return x;
    }
};
typedef _Float16 __half;

static float decode(u8 bits, bool is_e5m2) {
    int mantissa_bits = is_e5m2 ? 2 : 3, bias = is_e5m2 ? 15 : 7;
    int exponent = (bits & 0x7f) >> mantissa_bits, mantissa = bits & ((1 << mantissa_bits) - 1);
    float units = exponent ? mantissa + (1 << mantissa_bits) : mantissa;
    float value = std::ldexp(units, (exponent ? exponent : 1) - bias - mantissa_bits);
    return bits & 0x80 ? -value : value;
}

static u32 a_registers[32][32][4], b_registers[32][32][2];

// mma m16n8k32 of 8 bits, the part of one thread; fragments as in the PTX ISA (9.7.14.5.10).
static void mma(const u32 (&a)[4], const u32 (&b)[2], const float (&c)[4], float* const (&d)[4]) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    std::memcpy(a_registers[warp][lane], a, sizeof(a));
    std::memcpy(b_registers[warp][lane], b, sizeof(b));
    __syncwarp();
    float sums[4];
    for (u32 i = 0; i < 4; i++) {
        u32 row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        float sum = 0.0f;
        for (u32 k = 0; k < 32; k++) {
            // Who has row and k of A, k and column of B, and in which register and byte.
            u32 a_lane = row % 8 * 4 + k % 16 / 4, b_lane = column * 4 + k % 16 / 4;
            u32 a_word = a_registers[warp][a_lane][row / 8 + k / 16 * 2], b_word = b_registers[warp][b_lane][k / 16];
            sum += decode(a_word >> k % 4 * 8, A_E5M2) * decode(b_word >> k % 4 * 8, B_E5M2);
        }
        sums[i] = c[i] + sum;
    }
    __syncwarp();
    for (u32 i = 0; i < 4; i++) *d[i] = sums[i];
}
