//! Inverses of scales, for a library that multiplies by scales instead of dividing.

/// Threads of a block.
pub const THREADS: usize = 256;
/// The name of the kernel in its source.
pub const NAME: &str = "float8_invert";
/// Its source in CUDA. Inverses are correctly rounded.
pub const SOURCE: &str = "\
struct Info { unsigned count, unused; };

extern \"C\" __global__ void float8_invert(
    const float* __restrict__ in, float* __restrict__ out, const __grid_constant__ Info info)
{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < info.count) out[i] = __frcp_rn(in[i]);
}
";
