// Products of tiles by a warp (`mma.h`). Element `i` of a tile, counted by rows, is item `i / 32` of lane `i % 32`: on
// NVIDIA's, which lane has what is nobody's promise. Sums are in float or int, one after the other.
#pragma once

namespace nvcuda::wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };
namespace precision { struct tf32; }

template <class T> struct Stored { using Type = T; };
template <> struct Stored<precision::tf32> { using Type = float; };
template <class Use, int M, int N, int K> struct Shape;
template <int M, int N, int K> struct Shape<matrix_a, M, N, K> { static constexpr int rows = M, columns = K; };
template <int M, int N, int K> struct Shape<matrix_b, M, N, K> { static constexpr int rows = K, columns = N; };
template <int M, int N, int K> struct Shape<accumulator, M, N, K> { static constexpr int rows = M, columns = N; };

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment : Shape<Use, M, N, K> {
    using Type = typename Stored<T>::Type;
    static constexpr int num_elements = Shape<Use, M, N, K>::rows * Shape<Use, M, N, K>::columns / 32;
    Type x[num_elements];
};

// Where element `i` of a tile lies in memory whose rows, or columns, are `stride` apart.
template <class F> SOFTWARE static inline size_t place(unsigned i, unsigned stride, bool by_rows) {
    unsigned row = i / F::columns, column = i % F::columns;
    return by_rows ? size_t(row) * stride + column : size_t(column) * stride + row;
}
template <class F, class T> static inline void load(F& to, const T* from, unsigned stride, bool by_rows) {
    for (int t = 0; t < F::num_elements; t++)
        to.x[t] = from[place<F>(t * 32 + software::lane(), stride, by_rows)];
    __syncwarp();
}
template <class Use, int M, int N, int K, class T, class Layout, class From>
static inline void load_matrix_sync(fragment<Use, M, N, K, T, Layout>& to, const From* from, unsigned stride) {
    load(to, from, stride, std::is_same_v<Layout, row_major>);
}
template <int M, int N, int K, class T, class From>
static inline void load_matrix_sync(
    fragment<accumulator, M, N, K, T>& to, const From* from, unsigned stride, layout_t layout) {
    load(to, from, stride, layout == mem_row_major);
}
template <int M, int N, int K, class T, class To>
static inline void store_matrix_sync(
    To* to, const fragment<accumulator, M, N, K, T>& from, unsigned stride, layout_t layout) {
    using F = fragment<accumulator, M, N, K, T>;
    for (int t = 0; t < F::num_elements; t++)
        to[place<F>(t * 32 + software::lane(), stride, layout == mem_row_major)] = from.x[t];
    __syncwarp();
}
template <class Use, int M, int N, int K, class T, class Layout, class Value>
static inline void fill_fragment(fragment<Use, M, N, K, T, Layout>& to, Value value) {
    for (auto& x : to.x) x = typename fragment<Use, M, N, K, T, Layout>::Type(value);
}

// The lanes of a warp are coroutines of one thread: each shows the others where its items are.
template <int M, int N, int K, class D, class A, class LayoutA, class B, class LayoutB, class C>
SOFTWARE static inline void mma_sync(
    fragment<accumulator, M, N, K, D>& to, const fragment<matrix_a, M, N, K, A, LayoutA>& a,
    const fragment<matrix_b, M, N, K, B, LayoutB>& b, const fragment<accumulator, M, N, K, C>& more) {
    using Sum = std::conditional_t<std::is_integral_v<typename fragment<accumulator, M, N, K, C>::Type>, int, float>;
    using AnyA = fragment<matrix_a, M, N, K, A, LayoutA>;
    using AnyB = fragment<matrix_b, M, N, K, B, LayoutB>;
    unsigned long(*there)[2] = software::self().block->exchange + (software::self().linear - software::lane());
    there[software::lane()][0] = (unsigned long)&a;
    there[software::lane()][1] = (unsigned long)&b;
    software::meet(software::WARP);
    for (int t = 0; t < to.num_elements; t++) {
        unsigned i = t * 32 + software::lane(), row = i / N, column = i % N;
        Sum sum = Sum(more.x[t]);
        for (unsigned k = 0; k < K; k++) {
            unsigned of_a = row * K + k, of_b = k * N + column;
            Sum x = Sum(((const AnyA*)there[of_a % 32][0])->x[of_a / 32]);
            sum += x * Sum(((const AnyB*)there[of_b % 32][1])->x[of_b / 32]);
        }
        to.x[t] = sum;
    }
    software::meet(software::WARP);
}

}  // namespace nvcuda::wmma

// Ten bits of the fraction, ties away from zero.
static inline float __float_to_tf32(float x) {
    return isfinite(x) ? __uint_as_float((__float_as_uint(x) + 0x1000) & 0xffffe000) : x;
}
