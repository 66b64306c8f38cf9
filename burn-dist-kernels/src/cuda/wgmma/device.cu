// What kernels use of the device, in PTX: barriers, copies by TMA, and what surrounds `wgmma`.

struct alignas(64) TensorMap { u64 opaque[16]; };

__device__ __forceinline__ u32 shared_address(const void* at) { return u32(__cvta_generic_to_shared(at)); }

__device__ __forceinline__ void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Waits for the end of a phase; each one flips the parity.
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra end;\n"
        "bra again;\n"
        "end:\n"
        "}\n" ::"r"(barrier), "r"(parity) : "memory");
}

// Barriers are seen by TMA.
__device__ __forceinline__ void barriers_made() {
    asm volatile("fence.mbarrier_init.release.cluster;\n fence.proxy.async.shared::cta;" ::: "memory");
}

// Beyond the bounds of the tensor come zeros, which count as bytes.
__device__ __forceinline__ void load(u32 to, const TensorMap* map, u32 barrier, u32 k, u32 row) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
        ::"r"(to), "l"(map), "r"(barrier), "r"(k), "r"(row) : "memory");
}

// For all warps of a warpgroup.
__device__ __forceinline__ void registers_of_producer() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 " PRODUCER_REGISTERS ";");
}

__device__ __forceinline__ void registers_of_consumer() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 " CONSUMER_REGISTERS ";");
}

// Registers that the tensor cores use must not be touched between the fences.
__device__ __forceinline__ void pin(float (&part)[PART]) {
#pragma unroll
    for (u32 i = 0; i < PART; i++) asm volatile("" : "+f"(part[i])::"memory");
}

// Before and after what the tensor cores do to `part`.
__device__ __forceinline__ void mma_begin(float (&part)[PART]) {
    pin(part);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void mma_end(float (&part)[PART]) {
    asm volatile("wgmma.commit_group.sync.aligned;\n wgmma.wait_group.sync.aligned 0;" ::: "memory");
    pin(part);
}

__device__ __forceinline__ float reciprocal_approximate(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#if OUT_BYTES == 4
__device__ __forceinline__ float value(Out x) { return x; }
#else
__device__ __forceinline__ float value(Out x) {
    float y;
    if (OUT_BF16) y = __uint_as_float(u32(x) << 16);
    else asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}

// Two values as neighbours in memory: to nearest, even of two.
__device__ __forceinline__ u32 pack(float first, float second) {
    u32 y;
    if (OUT_BF16) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(second), "f"(first));
    else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(second), "f"(first));
    return y;
}
#endif

