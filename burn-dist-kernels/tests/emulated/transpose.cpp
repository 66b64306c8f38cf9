// Reads a matrix of bytes from a file, and appends its transpose. After the kernel.
int main(int, char** arguments) {
    std::FILE* file = std::fopen(arguments[1], "r+b");
    CHECK(file);
    auto header = read<u32>(file, 3);
    Info info = {header[1], header[2]};
    auto in = read<u8>(file, u64(info.rows) * info.columns);
    std::vector<u8> out(in.size(), 0xff);
    launch(header[0], THREADS, [&] { NAME(in.data(), out.data(), info); });
    std::fseek(file, 0, SEEK_END);
    CHECK(std::fwrite(out.data(), 1, out.size(), file) == out.size());
    std::fclose(file);
}
