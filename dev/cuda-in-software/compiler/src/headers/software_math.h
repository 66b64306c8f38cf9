// Functions of CUDA's mathematics that C++ has not, or has by another name. The fast ones are the precise ones.
#pragma once

#define BOTH(type) \
    static inline type max(type a, type b) { return a < b ? b : a; } \
    static inline type min(type a, type b) { return b < a ? b : a; }
BOTH(int) BOTH(unsigned) BOTH(long) BOTH(unsigned long) BOTH(long long) BOTH(unsigned long long)
#undef BOTH
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline float min(float a, float b) { return fminf(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline unsigned max(int a, unsigned b) { return max(unsigned(a), b); }
static inline unsigned max(unsigned a, int b) { return max(a, unsigned(b)); }
static inline unsigned min(int a, unsigned b) { return min(unsigned(a), b); }
static inline unsigned min(unsigned a, int b) { return min(a, unsigned(b)); }

static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline float rsqrt(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / ::sqrt(x); }
static inline float rhypotf(float x, float y) { return 1.0f / hypotf(x, y); }
static inline double rhypot(double x, double y) { return 1.0 / ::hypot(x, y); }
// By macros, where the C library has such names for itself.
#define __logf(x) logf(x)
#define __expf(x) expf(x)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanhf(x) tanhf(x)
#define __powf(x, y) powf(x, y)
static inline float __fdividef(float x, float y) { return x / y; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
static inline float __fadd_rn(float x, float y) { return x + y; }
static inline float __fsub_rn(float x, float y) { return x - y; }
static inline float __fmul_rn(float x, float y) { return x * y; }
static inline float __fdiv_rn(float x, float y) { return x / y; }

static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline unsigned __brev(unsigned x) {
    unsigned out = 0;
    for (int i = 0; i < 32; i++) out |= (x >> i & 1) << (31 - i);
    return out;
}
static inline unsigned long long __brevll(unsigned long long x) {
    return (unsigned long long)__brev(unsigned(x)) << 32 | __brev(unsigned(x >> 32));
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    unsigned long long bytes = (unsigned long long)y << 32 | x;
    unsigned out = 0;
    for (unsigned i = 0; i < 4; i++) out |= unsigned(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return out;
}
static inline int __mulhi(int x, int y) { return int((long long)x * y >> 32); }
static inline unsigned __umulhi(unsigned x, unsigned y) { return unsigned((unsigned long long)x * y >> 32); }
static inline long long __mul64hi(long long x, long long y) { return (long long)((__int128)x * y >> 64); }
static inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return (unsigned long long)((unsigned __int128)x * y >> 64);
}

template <class To, class From> static inline To software_bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    __builtin_memcpy(&to, &from, sizeof(to));
    return to;
}
static inline int __float_as_int(float x) { return software_bits<int>(x); }
static inline unsigned __float_as_uint(float x) { return software_bits<unsigned>(x); }
static inline float __int_as_float(int x) { return software_bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return software_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return software_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return software_bits<double>(x); }
template <class T> static inline T __ldg(const T* at) { return *at; }
