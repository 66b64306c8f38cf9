// Casts of the device, from the definition of the formats; after the constants of the kernel, before the kernel.
#define __shared__ static

static float __uint_as_float(u32 bits) {
    float y;
    std::memcpy(&y, &bits, 4);
    return y;
}

static float widen(u16 bits) {
    if (IN_BF16) return __uint_as_float(u32(bits) << 16);
    _Float16 half;
    std::memcpy(&half, &bits, 2);
    return float(half);
}

// The nearest of all finite values, of two the one whose bits are even.
static u32 cast_one(float x) {
    u32 sign = std::signbit(x) ? 0x80 : 0;
    if (std::isnan(x)) return sign | 0x7f;
    int mantissa_bits = E5M2 ? 2 : 3, bias = E5M2 ? 15 : 7;
    double best = INFINITY, magnitude = std::fmin(std::fabs((double)x), E5M2 ? 57344.0 : 448.0);
    u32 found = 0;
    for (u32 bits = 0; bits < (E5M2 ? 0x7c : 0x7f); bits++) {
        int exponent = bits >> mantissa_bits, mantissa = bits & ((1 << mantissa_bits) - 1);
        double units = exponent ? mantissa + (1 << mantissa_bits) : mantissa;
        double away = std::fabs(std::ldexp(units, (exponent ? exponent : 1) - bias - mantissa_bits) - magnitude);
        if (away < best || (away == best && bits % 2 == 0)) best = away, found = bits;
    }
    return sign | found;
}

static u32 cast(float a, float b, float c, float d) {
    return cast_one(a) | cast_one(b) << 8 | cast_one(c) << 16 | cast_one(d) << 24;
}
