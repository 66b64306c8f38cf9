// Reads a matrix and scales from a file, and appends its 8 bits, one way round or both. After the kernel.
int main(int, char** arguments) {
    std::FILE* file = std::fopen(arguments[1], "r+b");
    CHECK(file);
    auto header = read<u32>(file, 6);
    Info info;
    std::memcpy(&info, &header[2], sizeof(info));
    auto in = read<In>(file, u64(info.rows) * info.columns);
    auto scales = read<float>(file, header[1]);
    std::vector<u8> out(in.size(), 0xff), out_transposed(in.size(), 0xff);
    launch(header[0], THREADS, [&] {
        NAME(in.data(), scales.data(),
#if AS_IS
             out.data(),
#endif
#if TRANSPOSED
             out_transposed.data(),
#endif
             info);
    });
    std::fseek(file, 0, SEEK_END);
    if (AS_IS) CHECK(std::fwrite(out.data(), 1, out.size(), file) == out.size());
    if (TRANSPOSED) CHECK(std::fwrite(out_transposed.data(), 1, out.size(), file) == out.size());
    std::fclose(file);
}
