// Atomic functions: on words that streams may share as well.
#pragma once

namespace software {

template <class T, class F> SOFTWARE static inline T change(T* at, F next) {
    access(at, sizeof(T), ATOMIC);
    T old, now;
    __atomic_load(at, &old, __ATOMIC_RELAXED);
    do now = next(old);
    while (!__atomic_compare_exchange(at, &old, &now, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}
// A word that others write, the host among them: wherever it is.
SOFTWARE static inline unsigned acquire(unsigned long long word) {
    driver->access(word, sizeof(unsigned), ATOMIC);
    return __atomic_load_n((const unsigned*)word, __ATOMIC_ACQUIRE);
}
static inline int saturated(long long x) { return x > INT32_MAX ? INT32_MAX : x < INT32_MIN ? INT32_MIN : int(x); }
// A float in 8 bits, in one of the two formats that `cvt` has: to nearest, even of two, and no further than the largest
// finite value.
static inline unsigned char float8(const char* format, float x) {
    const bool is_e5m2 = __builtin_strcmp(format, "e5m2") == 0;
    const int mantissa = is_e5m2 ? 2 : 3, bias = is_e5m2 ? 15 : 7;
    const float largest = is_e5m2 ? 57344 : 448, size = __builtin_fabsf(x);
    if (size != size) return 0x7f;
    const unsigned sign = __builtin_signbit(x) ? 0x80 : 0;
    if (size >= largest) return sign | (is_e5m2 ? 0x7b : 0x7e);
    const int exponent = size == 0 ? 1 - bias : std::max(__builtin_ilogbf(size), 1 - bias);
    const unsigned steps = __builtin_nearbyintf(__builtin_ldexpf(size, mantissa - exponent));
    return sign | (((exponent + bias - 1) << mantissa) + steps);
}
static inline float of_half(unsigned short bits) { return float(__builtin_bit_cast(_Float16, bits)); }
template <class T> using As = std::type_identity_t<T>;

}  // namespace software

#define CHANGES(name, to) \
    template <class T> SOFTWARE static inline T name(T* at, software::As<T> value) { \
        return software::change(at, [=](T old) SOFTWARE -> T { return to; }); \
    }
CHANGES(atomicAdd, old + value)
CHANGES(atomicSub, old - value)
CHANGES(atomicMin, value < old ? value : old)
CHANGES(atomicMax, old < value ? value : old)
CHANGES(atomicAnd, old & value)
CHANGES(atomicOr, old | value)
CHANGES(atomicXor, old ^ value)
CHANGES(atomicExch, value)
#undef CHANGES
template <class T> SOFTWARE static inline T atomicCAS(T* at, software::As<T> expected, software::As<T> value) {
    return software::change(at, [=](T old) SOFTWARE -> T { return old == expected ? value : old; });
}
SOFTWARE static inline void __nanosleep(unsigned nanoseconds) {
    timespec pause = {0, long(nanoseconds)};
    nanosleep(&pause, nullptr);
}
