// Hopper's barriers, TMA and tensor cores; after the constants of a kernel, before the kernel.
#define __shared__

// Its address is a multiple of 16, and of no more.
extern "C" { u8 shared[SHARED]; }
const u32 SHARED_START = 16;
static u8& memory(u32 address) {
    CHECK(address >= SHARED_START && address - SHARED_START < SHARED);
    return shared[address - SHARED_START];
}

struct alignas(64) TensorMap { u64 opaque[16]; };

static u32 shared_address(const void* at) { return u32((const u8*)at - shared) + SHARED_START; }

struct Barrier { u32 arrivals, pending, phase; long bytes; };
static std::map<u32, Barrier> barriers;
static std::mutex barriers_mutex;
static std::condition_variable barriers_changed;

static void settle(Barrier& barrier) {
    if (barrier.pending == 0 && barrier.bytes == 0) {
        barrier.phase++;
        barrier.pending = barrier.arrivals;
        barriers_changed.notify_all();
    }
}

static Barrier& barrier_at(u32 at) {
    CHECK(at % 8 == 0 && barriers.count(at));
    return barriers[at];
}

static void barrier_init(u32 at, u32 arrivals) {
    std::lock_guard<std::mutex> lock(barriers_mutex);
    barriers[at] = {arrivals, arrivals, 0, 0};
}

static void barriers_made() {}

static void barrier_arrive(u32 at) {
    std::lock_guard<std::mutex> lock(barriers_mutex);
    Barrier& barrier = barrier_at(at);
    CHECK(barrier.pending > 0);
    barrier.pending--;
    settle(barrier);
}

static void barrier_expect(u32 at, u32 bytes) {
    {
        std::lock_guard<std::mutex> lock(barriers_mutex);
        barrier_at(at).bytes += bytes;
    }
    barrier_arrive(at);
}

// The phase of this parity has ended: the one that goes on has the other. Before the first one there was an odd one.
static void barrier_wait(u32 at, u32 parity) {
    std::unique_lock<std::mutex> lock(barriers_mutex);
    Barrier& barrier = barrier_at(at);
    barriers_changed.wait(lock, [&] { return (barrier.phase & 1) != parity; });
}

static std::mutex loads_mutex;
static std::vector<std::thread> loads;

// opaque: pointer, rows, bytes of a row, rows of the box, bytes of a row of the box. The swizzle over 128 bytes: chunk
// j of row r of the box lies at chunk j ^ (r % 8).
static void load(u32 to, const TensorMap* map, u32 barrier, u32 k, u32 row) {
    CHECK(to % 1024 == 0 && map->opaque[4] == 128);
    // A parameter of the kernel: on a GPU it outlives the threads.
    auto copy = [=, map = *map] {
        std::this_thread::sleep_for(std::chrono::microseconds(std::rand() % 300));
        const u8* from = (const u8*)map.opaque[0];
        u64 rows = map.opaque[1], width = map.opaque[2], box = map.opaque[3];
        for (u32 r = 0; r < box; r++)
            for (u32 i = 0; i < 128; i++) {
                bool is_inside = row + r < rows && k + i < width;
                u32 chunk = (i / 16) ^ (r % 8);
                memory(to + r * 128 + chunk * 16 + i % 16) = is_inside ? from[(row + r) * width + k + i] : 0;
            }
        std::lock_guard<std::mutex> lock(barriers_mutex);
        barrier_at(barrier).bytes -= long(box) * 128;
        settle(barrier_at(barrier));
    };
    std::lock_guard<std::mutex> lock(loads_mutex);
    loads.emplace_back(copy);
}

static void registers_of_producer() {}
static void registers_of_consumer() {}

static void mma_begin(float (&part)[PART]) {}
static void mma_end(float (&part)[PART]) {}

// Powers of two exactly, others with two bits less than there are, as a device may.
static float reciprocal_approximate(float x) {
    float y = 1.0f / x;
    u32 bits;
    std::memcpy(&bits, &y, 4);
    bits &= ~3u;
    std::memcpy(&y, &bits, 4);
    return y;
}

static float decode(u8 bits, bool is_e5m2) {
    int mantissa_bits = is_e5m2 ? 2 : 3, bias = is_e5m2 ? 15 : 7;
    int exponent = (bits & 0x7f) >> mantissa_bits, mantissa = bits & ((1 << mantissa_bits) - 1);
    float units = exponent ? mantissa + (1 << mantissa_bits) : mantissa;
    float value = std::ldexp(units, (exponent ? exponent : 1) - bias - mantissa_bits);
    return bits & 0x80 ? -value : value;
}

// One byte of a matrix that a descriptor describes: rows of 128 bytes, eight of them swizzled together.
static u8 byte_at(u64 descriptor, u32 row, u32 k) {
    CHECK(descriptor >> 62 == 1 && (descriptor >> 49 & 7) == 0);
    u32 start = u32(descriptor & 0x3fff) << 4, eight_rows = u32(descriptor >> 32 & 0x3fff) << 4;
    u32 at = start + row / 8 * eight_rows + row % 8 * 128 + k;
    at ^= at >> 3 & 0x70;
    return memory(at);
}

// wgmma m64nNk32, the part of one thread; the accumulator's fragment as in the PTX ISA.
static void mma(float (&d)[PART], u64 a, u64 b, bool add) {
    u32 warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    float rows[2][32];
    for (u32 half = 0; half < 2; half++)
        for (u32 k = 0; k < 32; k++) rows[half][k] = decode(byte_at(a, warp * 16 + lane / 4 + half * 8, k), A_E5M2);
    for (u32 chunk = 0; chunk < PART / 4; chunk++)
        for (u32 i = 0; i < 2; i++) {
            float sums[2] = {0.0f, 0.0f};
            for (u32 k = 0; k < 32; k++) {
                float other = decode(byte_at(b, chunk * 8 + lane % 4 * 2 + i, k), B_E5M2);
                for (u32 half = 0; half < 2; half++) sums[half] += rows[half][k] * other;
            }
            for (u32 half = 0; half < 2; half++) {
                float& of = d[chunk * 4 + half * 2 + i];
                of = add ? of + sums[half] : sums[half];
            }
        }
}

#if OUT_BYTES == 4
static float value(Out x) { return x; }
#else
static float value(Out x) {
    u32 bits = u32(x) << 16;
    float y;
    if (OUT_BF16) std::memcpy(&y, &bits, 4);
    else {
        _Float16 half;
        std::memcpy(&half, &x, 2);
        y = float(half);
    }
    return y;
}

static u32 narrow(float x) {
    if (!OUT_BF16) {
        _Float16 half = _Float16(x);
        u16 bits;
        std::memcpy(&bits, &half, 2);
        return bits;
    }
    u32 bits;
    std::memcpy(&bits, &x, 4);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static u32 pack(float first, float second) { return narrow(second) << 16 | narrow(first); }
#endif
