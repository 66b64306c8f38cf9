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
