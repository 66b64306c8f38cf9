// Barriers that threads arrive at and wait for apart (`cuda/barrier`), and copies that arrive as well. A copy is made
// when it is asked for, and the barrier hears of it then: that somebody reads before the wait is not found out.
#pragma once

namespace cuda {

enum thread_scope { thread_scope_system, thread_scope_device, thread_scope_block, thread_scope_thread };

// Of 8 bytes, as NVIDIA's: programs lay out shared memory by that. Counts have the ranges that the hardware's have.
template <thread_scope> struct barrier {
    using arrival_token = unsigned long;
    unsigned long expected : 20, pending : 20, phase : 3;
    // Announced and not yet copied; less than 0 where the copy came first.
    long bytes : 21;

    SOFTWARE void advance() {
        if (pending || bytes) return;
        pending = expected;
        phase++;
    }
    SOFTWARE arrival_token arrive(unsigned threads = 1, long announced = 0) {
        arrival_token token = phase;
        bytes += announced;
        pending -= threads;
        advance();
        return token;
    }
    SOFTWARE void announce(long more) { bytes += more; }
    SOFTWARE void copied(long less) {
        bytes -= less;
        advance();
    }
    SOFTWARE void wait(arrival_token token) {
        while (phase == token) software::again();
    }
    // Waits for the end of the phase of a parity.
    SOFTWARE void wait_parity(bool parity) {
        while ((phase & 1) == parity) software::again();
    }
    SOFTWARE void arrive_and_wait() { wait(arrive()); }
};
template <thread_scope Scope> SOFTWARE static inline void init(barrier<Scope>* of, unsigned expected) {
    of->expected = of->pending = expected;
    of->phase = of->bytes = 0;
}
static_assert(sizeof(barrier<thread_scope_block>) == 8);

template <thread_scope Scope>
SOFTWARE static inline void memcpy_async(void* to, const void* from, size_t bytes, barrier<Scope>&) {
    software::copy(to, from, bytes);
}
// All threads of the group ask for one copy.
template <class Group, thread_scope Scope>
SOFTWARE static inline void memcpy_async(
    const Group& group, void* to, const void* from, size_t bytes, barrier<Scope>&) {
    if (group.thread_rank() == 0) software::copy(to, from, bytes);
}

namespace device {

template <thread_scope Scope> SOFTWARE static inline unsigned long long* barrier_native_handle(barrier<Scope>& of) {
    return (unsigned long long*)&of;
}
template <thread_scope Scope>
SOFTWARE static inline unsigned long barrier_arrive_tx(barrier<Scope>& of, unsigned threads, long bytes) {
    return of.arrive(threads, bytes);
}
template <thread_scope Scope> SOFTWARE static inline void barrier_expect_tx(barrier<Scope>& of, long bytes) {
    of.announce(bytes);
}
template <thread_scope Scope>
SOFTWARE static inline void memcpy_async_tx(void* to, const void* from, size_t bytes, barrier<Scope>& of) {
    software::copy(to, from, bytes);
    of.copied(bytes);
}

}  // namespace device
}  // namespace cuda

namespace cooperative_groups {

struct thread_block {
    SOFTWARE static unsigned thread_rank() { return software::self().linear; }
    SOFTWARE static void sync() { software::meet(software::BLOCK); }
};
static inline thread_block this_thread_block() { return {}; }

}  // namespace cooperative_groups

namespace software {

// Addresses of shared memory have 32 bits: the place of the pointer in a list, long enough for what one instruction
// names.
static thread_local void* near[64];
static thread_local unsigned nears;

template <class T> SOFTWARE static inline T* far(unsigned of) { return (T*)near[of]; }

}  // namespace software

SOFTWARE static inline size_t __cvta_generic_to_shared(const void* at) {
    unsigned of = software::nears++ % 64;
    software::near[of] = (void*)at;
    return of;
}
