// Reads a product from a file, and appends its result. After the kernel.
int main(int, char** arguments) {
    std::FILE* file = std::fopen(arguments[1], "r+b");
    CHECK(file);
    auto header = read<u32>(file, 11);
    u32 across = header[0], down = header[1], a_scales = header[2], b_scales = header[3];
    u32 m = header[8], n = header[9], chunks = header[10];
    auto a = read<u8>(file, u64(m) * chunks * 16), b = read<u8>(file, u64(n) * chunks * 16);
    auto a_scale = read<float>(file, a_scales), b_scale = read<float>(file, b_scales);
    auto bias = read<Out>(file, BIAS ? n : 0);
    std::vector<Out> out(u64(m) * n);
    std::memset((void*)out.data(), 0xff, out.size() * sizeof(Out));
    std::memset(dynamic_shared_mem, 0x7f, sizeof(dynamic_shared_mem));
    info_st info;
    std::memset(&info, 0, sizeof(info));
    // Strides of scales and sizes, and how much every buffer holds.
    std::memcpy(info.scalars_uint32, &header[4], 7 * sizeof(u32));
    u64 counts[6] = {a.size() / 16, b.size() / 16, a_scales, b_scales, bias.size() / 2, out.size() / 2};
    for (u32 i = 0; i < 12; i++) info.static_meta[i] = u32(counts[i % 6]);
    launch(across, down, 256, [&] {
        NAME((uint32_4*)a.data(), (uint32_4*)b.data(), a_scale.data(), b_scale.data(), (Pair*)bias.data(),
             (Pair*)out.data(), info);
    });
    std::fseek(file, 0, SEEK_END);
    CHECK(std::fwrite(out.data(), sizeof(Out), out.size(), file) == out.size());
    std::fclose(file);
}
