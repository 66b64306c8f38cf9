// Half-precision numbers: computed in float, and rounded once to the nearest, ties to even.
#pragma once

struct __half {
    _Float16 value;
    __half() = default;
    template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>> __half(T from) : value(_Float16(from)) {}
    template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>> operator T() const { return T(float(value)); }
};
struct __nv_bfloat16 {
    unsigned short bits;
    __nv_bfloat16() = default;
    static unsigned short rounded(float from) {
        unsigned word = __float_as_uint(from);
        if (isnan(from)) return 0x7fff;
        return (word + 0x7fff + (word >> 16 & 1)) >> 16;
    }
    // Through a float that is rounded to odd, so that the second rounding is the only one.
    static float odd(double from) {
        float near = float(from);
        if (isnan(from) || double(near) == from) return near;
        unsigned word = __float_as_uint(near);
        bool is_over = fabs(double(near)) > fabs(from);
        return word & 1 ? near : __uint_as_float(is_over ? word - 1 : word + 1);
    }
    template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
    __nv_bfloat16(T from) : bits(rounded(std::is_same_v<T, float> ? float(from) : odd(double(from)))) {}
    template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>> operator T() const {
        return T(__uint_as_float(unsigned(bits) << 16));
    }
};

#define PAIR(small, pair) \
    struct alignas(4) pair { small x, y; pair() = default; pair(small x, small y) : x(x), y(y) {} };
PAIR(__half, __half2)
PAIR(__nv_bfloat16, __nv_bfloat162)
#undef PAIR

#define OPERATOR(small, pair, op) \
    static inline small operator op(small a, small b) { return small(float(a) op float(b)); } \
    static inline small& operator op##=(small& a, small b) { return a = a op b; } \
    static inline pair operator op(pair a, pair b) { return {a.x op b.x, a.y op b.y}; } \
    static inline pair& operator op##=(pair& a, pair b) { return a = a op b; }
#define COMPARE(small, op) \
    static inline bool operator op(small a, small b) { return float(a) op float(b); }
#define UNARY(small, pair, name, name2, to) \
    static inline small name(small a) { float x = a; return small(to); } \
    static inline pair name2(pair a) { return {name(a.x), name(a.y)}; }
#define SMALL(small, pair) \
    OPERATOR(small, pair, +) OPERATOR(small, pair, -) OPERATOR(small, pair, *) OPERATOR(small, pair, /) \
    COMPARE(small, ==) COMPARE(small, !=) COMPARE(small, <) COMPARE(small, <=) COMPARE(small, >) COMPARE(small, >=) \
    static inline small operator-(small a) { return small(-float(a)); } \
    static inline pair operator-(pair a) { return {-a.x, -a.y}; } \
    static inline small __hmax(small a, small b) { return small(fmaxf(a, b)); } \
    static inline small __hmin(small a, small b) { return small(fminf(a, b)); } \
    static inline pair __hmax2(pair a, pair b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; } \
    static inline pair __hmin2(pair a, pair b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; } \
    static inline small __hfma(small a, small b, small c) { return small(double(float(a)) * float(b) + float(c)); } \
    static inline pair __hfma2(pair a, pair b, pair c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; } \
    static inline bool __hisnan(small a) { return isnan(float(a)); } \
    static inline bool __hisinf(small a) { return isinf(float(a)); } \
    UNARY(small, pair, hexp, h2exp, expf(x)) UNARY(small, pair, hlog, h2log, logf(x)) \
    UNARY(small, pair, hsin, h2sin, sinf(x)) UNARY(small, pair, hcos, h2cos, cosf(x)) \
    UNARY(small, pair, htanh, h2tanh, tanhf(x)) UNARY(small, pair, hrcp, h2rcp, 1.0f / x) \
    UNARY(small, pair, hsqrt, h2sqrt, sqrtf(x)) UNARY(small, pair, hrsqrt, h2rsqrt, 1.0f / sqrtf(x)) \
    UNARY(small, pair, hceil, h2ceil, ceilf(x)) UNARY(small, pair, hfloor, h2floor, floorf(x)) \
    UNARY(small, pair, htrunc, h2trunc, truncf(x)) UNARY(small, pair, hrint, h2rint, rintf(x)) \
    UNARY(small, pair, __habs, __habs2, fabsf(x))
SMALL(__half, __half2)
SMALL(__nv_bfloat16, __nv_bfloat162)
#undef OPERATOR
#undef COMPARE
#undef UNARY
#undef SMALL

static inline __half __float2half(float x) { return __half(x); }
static inline __half __float2half_rn(float x) { return __half(x); }
static inline float __half2float(__half x) { return float(x); }
static inline __nv_bfloat16 __float2bfloat16(float x) { return __nv_bfloat16(x); }
static inline float __bfloat162float(__nv_bfloat16 x) { return float(x); }
