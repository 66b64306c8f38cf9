//! A wait for a word: what comes after it on its stream runs when another stream, or the host, has set the word.

/// Threads of a block, of which there is one.
pub const THREADS: usize = 1;
/// The name of the kernel in its source.
pub const NAME: &str = "flag_wait";
/// Its source in CUDA. A word is read past all caches, and what was written before it is seen after it.
pub const SOURCE: &str = "\
struct Info { unsigned long long word, poison, value; };

__device__ __forceinline__ unsigned acquire(unsigned long long word)
{
    unsigned found;
    asm volatile(\"ld.acquire.sys.global.u32 %0, [%1];\" : \"=r\"(found) : \"l\"(word) : \"memory\");
    return found;
}

extern \"C\" __global__ void flag_wait(const __grid_constant__ Info info)
{
    // Numbers wrap around: what is less than 2^31 behind the word has come.
    while (static_cast<int>(acquire(info.word) - static_cast<unsigned>(info.value)) < 0) {
        if (acquire(info.poison) != 0) return;
        __nanosleep(100);
    }
}
";

/// A wait that ends when the word is at a value or past it, or when `poison` is not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The address of the word, which is mapped for the device.
    pub word: u64,
    /// The address of the word that ends all waits.
    pub poison: u64,
    /// The value that the word has to come to.
    pub value: u32,
}

impl Wait {
    /// Returns what the kernel gets, by value.
    pub fn info(self) -> Vec<u64> {
        vec![self.word, self.poison, self.value.into()]
    }
}
