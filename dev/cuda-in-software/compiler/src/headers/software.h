// The words of CUDA C++, for the host: each thread of a block is a coroutine of the driver, and each core of the host
// runs one block at a time. Included before every kernel. Definitions are those of the CUDA C++ programming guide.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <math.h>
#include <time.h>
#include <type_traits>
#include <utility>

#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
// Words that may stand where standard attributes may not: behind `__shared__`.
#define alignas(bytes) __attribute__((aligned(bytes)))
#define __align__(bytes) alignas(bytes)
#define __grid_constant__
#define __global__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __restrict__ __restrict
// One block at a time on a core. Arrays whose size the launch gives are of the driver, see kernels.rs.
#define __shared__ static thread_local

// What is not to be looked at: the accesses below are those of this header, and not of a kernel.
#define SOFTWARE __attribute__((no_sanitize_address))

// What a kernel prints is said at once.
extern "C" int printf(const char* format, ...);

struct dim3 { unsigned x, y, z; };
#define VECTORS(name, type) \
    struct name##2 { type x, y; }; struct name##3 { type x, y, z; }; struct name##4 { type x, y, z, w; }; \
    static inline name##2 make_##name##2(type x, type y) { return {x, y}; } \
    static inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; } \
    static inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
VECTORS(char, signed char) VECTORS(uchar, unsigned char) VECTORS(short, short) VECTORS(ushort, unsigned short)
VECTORS(int, int) VECTORS(uint, unsigned) VECTORS(longlong, long long) VECTORS(ulonglong, unsigned long long)
VECTORS(float, float) VECTORS(double, double)
#undef VECTORS

namespace software {

// As in run.rs of the driver.
struct Block {
    uint3 index;
    dim3 dim, grid;
    unsigned char* shared;
    unsigned long (*exchange)[2];
};
struct Thread {
    uint3 index;
    unsigned linear;
    const Block* block;
};
struct Driver {
    unsigned long arena, arena_bytes;
    void (*access)(unsigned long address, unsigned long bytes, unsigned how);
    unsigned (*meet)(unsigned where);
};
enum How : unsigned { READ, WRITE, ATOMIC };

static const Driver* driver;
static thread_local const Thread* thread;

SOFTWARE static inline void access(const volatile void* at, unsigned long bytes, How how) {
    unsigned long address = (unsigned long)at;
    if (__builtin_expect(address - driver->arena < driver->arena_bytes, 0)) driver->access(address, bytes, how);
}
SOFTWARE static inline const Thread& self() { return *thread; }
// Where threads stop, as in run.rs of the driver.
enum Stop : unsigned { WARP, BLOCK, AGAIN };
SOFTWARE static inline unsigned meet(unsigned where) { return driver->meet(where); }
// Lets other threads run, before what they change is looked at again.
SOFTWARE static inline void again() { driver->meet(AGAIN); }
// Copies bytes of a kernel's.
SOFTWARE static inline void copy(void* to, const void* from, unsigned long bytes) {
    if (!bytes) return;
    access(from, bytes, READ);
    access(to, bytes, WRITE);
    __builtin_memcpy(to, from, bytes);
}
SOFTWARE static inline void* shared() { return thread->block->shared; }

// A kernel's parameters, and how it is run.
template <class> struct Kernel;
template <class... Parameters> struct Kernel<void (*)(Parameters...)> {
    struct Sizes { unsigned count, bytes[sizeof...(Parameters) + 1]; };
    static constexpr Sizes sizes = {sizeof...(Parameters), {unsigned(sizeof(Parameters))..., 0}};
    template <size_t... At>
    SOFTWARE static void run(void (*kernel)(Parameters...), void* const* with, std::index_sequence<At...>) {
        kernel(*static_cast<std::remove_reference_t<Parameters>*>(with[At])...);
    }
    SOFTWARE static void run(void (*kernel)(Parameters...), void* const* with) {
        run(kernel, with, std::index_sequence_for<Parameters...>());
    }
};

}  // namespace software

extern "C" {

__attribute__((visibility("default"))) SOFTWARE void software_attach(const software::Driver* driver) {
    software::driver = driver;
}
__attribute__((visibility("default"))) SOFTWARE void software_enter(const software::Thread* thread) {
    software::thread = thread;
}

// What the compiler calls before each access (`-fsanitize=kernel-address` without its checks).
#define ACCESSES(bytes) \
    SOFTWARE void __asan_load##bytes##_noabort(void* at) { software::access(at, bytes, software::READ); } \
    SOFTWARE void __asan_store##bytes##_noabort(void* at) { software::access(at, bytes, software::WRITE); }
ACCESSES(1) ACCESSES(2) ACCESSES(4) ACCESSES(8) ACCESSES(16)
#undef ACCESSES
SOFTWARE void __asan_loadN_noabort(void* at, size_t bytes) { software::access(at, bytes, software::READ); }
SOFTWARE void __asan_storeN_noabort(void* at, size_t bytes) { software::access(at, bytes, software::WRITE); }
SOFTWARE void __asan_handle_no_return() {}

}  // extern "C"

// A kernel's name may be a macro: it is expanded before it becomes part of others.
#define SOFTWARE_KERNEL(name, threads) SOFTWARE_KERNEL_NAMED(name, threads)
#define SOFTWARE_KERNEL_NAMED(name, threads) \
    extern "C" { \
    extern __attribute__((visibility("default"), used)) const unsigned software_threads_##name = (threads); \
    extern __attribute__((visibility("default"), used)) const software::Kernel<decltype(&name)>::Sizes \
        software_sizes_##name = software::Kernel<decltype(&name)>::sizes; \
    __attribute__((visibility("default"), used)) SOFTWARE void software_run_##name(void* const* with) { \
        software::Kernel<decltype(&name)>::run(&name, with); \
    } \
    }

#define threadIdx (software::self().index)
#define blockIdx (software::self().block->index)
#define blockDim (software::self().block->dim)
#define gridDim (software::self().block->grid)
constexpr int warpSize = 32;

SOFTWARE static inline void __syncthreads() { software::meet(software::BLOCK); }
SOFTWARE static inline void __syncwarp(unsigned = 0xffffffff) { software::meet(software::WARP); }
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

#include "software_math.h"
#include "software_warp.h"
#include "software_atomic.h"
