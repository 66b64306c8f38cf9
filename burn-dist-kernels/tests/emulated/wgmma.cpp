// Reads a product from a file, and appends its result. After the kernel.
int main(int, char** arguments) {
    std::FILE* file = std::fopen(arguments[1], "r+b");
    CHECK(file);
    auto header = read<u32>(file, 11);
    u32 blocks = header[0], a_scales = header[1], b_scales = header[2];
    Info info;
    static_assert(sizeof(info) == 32, "eight words");
    std::memcpy(&info, &header[3], sizeof(info));
    auto a = read<u8>(file, u64(info.m) * info.k), b = read<u8>(file, u64(info.n) * info.k);
    auto a_scale = read<float>(file, a_scales), b_scale = read<float>(file, b_scales);
#if BIAS
    auto bias = read<Out>(file, info.n);
#endif
    std::vector<Out> out(u64(info.m) * info.n);
    std::memset(out.data(), 0xff, out.size() * sizeof(Out));
    std::memset(shared, 0x7f, sizeof(shared));
    TensorMap a_map{}, b_map{};
    u64 a_fields[] = {(u64)a.data(), info.m, info.k, TILE_M, BLOCK_K};
    u64 b_fields[] = {(u64)b.data(), info.n, info.k, TILE_N, BLOCK_K};
    std::memcpy(a_map.opaque, a_fields, sizeof(a_fields));
    std::memcpy(b_map.opaque, b_fields, sizeof(b_fields));
    launch(blocks, THREADS, [&] {
        NAME(a_map, b_map, a.data(), b.data(), a_scale.data(), b_scale.data(),
#if BIAS
             bias.data(),
#endif
             out.data(), info);
    });
    for (auto& thread : loads) thread.join();
    // Every load was waited for, and every stage is empty.
    for (auto& [at, barrier] : barriers) CHECK(barrier.bytes == 0 && barrier.pending == barrier.arrivals);
    std::fseek(file, 0, SEEK_END);
    CHECK(std::fwrite(out.data(), sizeof(Out), out.size(), file) == out.size());
    std::fclose(file);
}
