// What kernels use of a GPU, for a CPU: each thread of a block is one of the host's. Definitions are those of the CUDA
// programming guide (threads, shuffles, `__byte_perm`) and of the PTX ISA (barriers, TMA, `wgmma`), not of our kernels.
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)

struct Index { unsigned x, y, z; };
struct uint4 { unsigned x, y, z, w; };
struct float2 { float x, y; };
static thread_local Index threadIdx, blockIdx;
static Index gridDim, blockDim;

static void check(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "not so: %s\n", what);
    std::abort();
}
#define CHECK(what) check(bool(what), #what)

template <class T> T min(T a, T b) { return a < b ? a : b; }

// All of `count` threads meet, again and again.
struct Meeting {
    std::mutex mutex;
    std::condition_variable changed;
    unsigned count = 0, there = 0, round = 0;
    void meet() {
        std::unique_lock<std::mutex> lock(mutex);
        unsigned now = round;
        if (++there == count) { there = 0; round++; changed.notify_all(); }
        else changed.wait(lock, [&] { return round != now; });
    }
};

static Meeting block_meeting, warp_meetings[32];
static unsigned shuffled[32][32];

static void __syncthreads() { block_meeting.meet(); }
static void __syncwarp() { warp_meetings[threadIdx.x / 32].meet(); }

static unsigned __shfl_xor_sync(unsigned, unsigned value, unsigned distance) {
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    shuffled[warp][lane] = value;
    __syncwarp();
    unsigned other = shuffled[warp][lane ^ distance];
    __syncwarp();
    return other;
}

static unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    unsigned long long bytes = (unsigned long long)y << 32 | x;
    unsigned out = 0;
    for (unsigned i = 0; i < 4; i++) out |= unsigned(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return out;
}

// Runs a kernel block by block.
template <class F> static void launch(unsigned across, unsigned down, unsigned threads, F kernel) {
    gridDim = {across, down, 1};
    blockDim = {threads, 1, 1};
    block_meeting.count = threads;
    for (auto& meeting : warp_meetings) meeting.count = 32;
    for (unsigned block = 0; block < across * down; block++) {
        std::vector<std::thread> running;
        for (unsigned thread = 0; thread < threads; thread++)
            running.emplace_back([=] {
                threadIdx = {thread, 0, 0};
                blockIdx = {block % across, block / across, 0};
                kernel();
            });
        for (auto& thread : running) thread.join();
    }
}

template <class F> static void launch(unsigned blocks, unsigned threads, F kernel) {
    launch(blocks, 1, threads, kernel);
}

template <class T> static std::vector<T> read(std::FILE* file, size_t count) {
    std::vector<T> values(count);
    CHECK(std::fread(values.data(), sizeof(T), count, file) == count);
    return values;
}
