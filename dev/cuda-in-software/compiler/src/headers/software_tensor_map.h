// Copies of boxes of tensors, as a tensor map describes them. Each is made when it is asked for.
#pragma once

namespace software {

// As in tensor_map.rs of the driver. Dim 0 is the one whose elements lie side by side.
struct TensorMap {
    unsigned long address, strides[4];
    unsigned sizes[5];
    short lower[3], upper[3];
    unsigned short bounds[5];
    unsigned char dims, element_bytes, by_pixels;
};
static_assert(sizeof(TensorMap) <= 128);

// Which element.
struct Place {
    int at[5];
};

// Where an element lies, or null if it is in no tensor.
SOFTWARE static inline unsigned char* find(const TensorMap& map, const Place& place) {
    unsigned long address = map.address;
    for (int dim = 0; dim < map.dims; dim++) {
        if (place.at[dim] < 0 || unsigned(place.at[dim]) >= map.sizes[dim]) return nullptr;
        address += place.at[dim] * (dim ? map.strides[dim - 1] : map.element_bytes);
    }
    return (unsigned char*)address;
}
// What is outside of the tensor is read as zeros.
SOFTWARE static inline void fetch(unsigned char* to, const unsigned char* from, unsigned bytes) {
    if (from) copy(to, from, bytes);
    else __builtin_memset(to, 0, bytes);
}
// Goes through a box, and returns its bytes.
template <class F> SOFTWARE static inline long boxes(const TensorMap& map, const Place& first, F each) {
    unsigned long count = 1;
    for (int dim = 0; dim < map.dims; dim++) count *= map.bounds[dim];
    for (unsigned long i = 0; i < count; i++) {
        Place place = first;
        unsigned long rest = i;
        for (int dim = 0; dim < map.dims; dim++) {
            place.at[dim] += rest % map.bounds[dim];
            rest /= map.bounds[dim];
        }
        each(find(map, place), i * map.element_bytes);
    }
    return count * map.element_bytes;
}
// A column of pixels: one after the other in the box that the corners leave of each dim, then in the next image. Of
// each, the channels from the first on, at a distance from the pixel.
SOFTWARE static inline long pixels(void* to, const TensorMap& map, const Place& first, const unsigned short* distance) {
    auto out = (unsigned char*)to;
    int spatial = map.dims - 2;
    Place place = first;
    for (unsigned pixel = 0; pixel < map.bounds[1]; pixel++) {
        for (unsigned channel = 0; channel < map.bounds[0]; channel++) {
            Place at = place;
            at.at[0] += channel;
            for (int dim = 0; dim < spatial; dim++) at.at[1 + dim] += distance[dim];
            fetch(out, find(map, at), map.element_bytes);
            out += map.element_bytes;
        }
        int dim = 0;
        while (dim < spatial && ++place.at[1 + dim] >= int(map.sizes[1 + dim]) + map.upper[dim]) {
            place.at[1 + dim] = map.lower[dim];
            dim++;
        }
        if (dim == spatial) place.at[1 + spatial]++;
    }
    return out - (unsigned char*)to;
}

// What `cp.async.bulk.tensor` with `im2col` does: places, and then distances, in the order of the dims.
template <int DIMS, class... Numbers>
SOFTWARE static inline void load_pixels(unsigned to, unsigned long map, unsigned barrier, Numbers... numbers) {
    const int all[] = {int(numbers)...};
    Place place = {};
    unsigned short distance[3] = {};
    for (int dim = 0; dim < DIMS; dim++) place.at[dim] = all[dim];
    for (int dim = 0; dim < DIMS - 2; dim++) distance[dim] = all[DIMS + dim];
    long bytes = pixels(far<void>(to), *(const TensorMap*)map, place, distance);
    far<cuda::barrier<cuda::thread_scope_block>>(barrier)->copied(bytes);
}

SOFTWARE static inline void load_box(
    void* to, const void* map, const Place& place, cuda::barrier<cuda::thread_scope_block>& barrier) {
    auto& of = *(const TensorMap*)map;
    barrier.copied(boxes(of, place, [=, &of](const unsigned char* from, unsigned long at) SOFTWARE {
        fetch((unsigned char*)to + at, from, of.element_bytes);
    }));
}
SOFTWARE static inline void store_box(const void* map, const Place& place, const void* from) {
    auto& of = *(const TensorMap*)map;
    boxes(of, place, [=, &of](unsigned char* to, unsigned long at) SOFTWARE {
        if (to) copy(to, (const unsigned char*)from + at, of.element_bytes);
    });
}

}  // namespace software

namespace cuda::device::experimental {

#define TENSORS(dims, names, ...) \
    SOFTWARE static inline void cp_async_bulk_tensor_##dims##d_global_to_shared( \
        void* to, const void* map, __VA_ARGS__, cuda::barrier<cuda::thread_scope_block>& barrier) { \
        software::load_box(to, map, {names}, barrier); \
    } \
    SOFTWARE static inline void cp_async_bulk_tensor_##dims##d_shared_to_global( \
        const void* map, __VA_ARGS__, const void* from) { \
        software::store_box(map, {names}, from); \
    }
#define AND ,
TENSORS(1, a, int a)
TENSORS(2, a AND b, int a, int b)
TENSORS(3, a AND b AND c, int a, int b, int c)
TENSORS(4, a AND b AND c AND d, int a, int b, int c, int d)
TENSORS(5, a AND b AND c AND d AND e, int a, int b, int c, int d, int e)
#undef TENSORS
#undef AND
static inline void fence_proxy_async_shared_cta() {}
static inline void cp_async_bulk_commit_group() {}
template <int> static inline void cp_async_bulk_wait_group() {}
template <int> static inline void cp_async_bulk_wait_group_read() {}

}  // namespace cuda::device::experimental
