// Casts of the device.
__device__ __forceinline__ float widen(u16 bits) {
    float y;
    if (IN_BF16) y = __uint_as_float(u32(bits) << 16);
    else asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(bits));
    return y;
}

// Four values in 8 bits, the first one lowest: to nearest, even of two, and no further than the largest finite value.
__device__ __forceinline__ u32 cast(float a, float b, float c, float d) {
    u16 low, high;
    asm("cvt.rn.satfinite." FORMAT "x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
    asm("cvt.rn.satfinite." FORMAT "x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
    return u32(high) << 16 | low;
}

