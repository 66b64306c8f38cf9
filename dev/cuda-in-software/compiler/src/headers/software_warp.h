// What threads of a warp tell each other. A lane that is not there is read as the reader's own value.
#pragma once

namespace software {

SOFTWARE static inline unsigned lane() { return self().linear % 32; }

// Hands a value to the warp, and takes that of a lane.
template <class T> SOFTWARE static inline T take(T mine, unsigned from) {
    static_assert(sizeof(T) <= 16);
    unsigned long(*there)[2] = self().block->exchange + (self().linear - lane());
    __builtin_memcpy(there[lane()], &mine, sizeof(T));
    unsigned met = meet(WARP);
    T theirs = mine;
    if (met >> from & 1) __builtin_memcpy(&theirs, there[from], sizeof(T));
    meet(WARP);
    return theirs;
}

// The lanes that are there and say so.
SOFTWARE static inline unsigned ballot(bool says) {
    unsigned long(*there)[2] = self().block->exchange + (self().linear - lane());
    there[lane()][0] = says;
    unsigned met = meet(WARP), all = 0;
    for (unsigned other = 0; other < 32; other++)
        if (met >> other & 1 && there[other][0]) all |= 1u << other;
    meet(WARP);
    return all;
}

}  // namespace software

template <class T> SOFTWARE static inline T __shfl_sync(unsigned, T value, int from, int width = 32) {
    unsigned lane = software::lane();
    return software::take(value, (lane & ~(width - 1)) | (from & (width - 1)));
}
template <class T> SOFTWARE static inline T __shfl_xor_sync(unsigned, T value, int distance, int width = 32) {
    unsigned lane = software::lane(), from = lane ^ distance;
    return software::take(value, from / width <= lane / width ? from : lane);
}
template <class T> SOFTWARE static inline T __shfl_up_sync(unsigned, T value, unsigned distance, int width = 32) {
    unsigned lane = software::lane(), in = lane & (width - 1);
    return software::take(value, in >= distance ? lane - distance : lane);
}
template <class T> SOFTWARE static inline T __shfl_down_sync(unsigned, T value, unsigned distance, int width = 32) {
    unsigned lane = software::lane(), in = lane & (width - 1);
    return software::take(value, in + distance < unsigned(width) ? lane + distance : lane);
}
SOFTWARE static inline unsigned __ballot_sync(unsigned, bool says) { return software::ballot(says); }
SOFTWARE static inline int __any_sync(unsigned, bool says) { return software::ballot(says) != 0; }
SOFTWARE static inline int __all_sync(unsigned, bool says) { return software::ballot(!says) == 0; }
SOFTWARE static inline unsigned __activemask() { return software::meet(software::WARP); }
