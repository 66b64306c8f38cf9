//! Vectors of the machine at hand.

use pulp::NullaryFnOnce;

#[cfg(target_arch = "x86_64")]
use super::functions::WithAvx;
use super::functions::{Instructions, Portable};

/// A loop that knows [what it is compiled with](Instructions).
pub(crate) trait Loop {
    type Output;
    fn call<I: Instructions>(self) -> Self::Output;
}

/// Such a loop, compiled for processors that have AVX2, and fused multiply-add with it.
#[cfg(target_arch = "x86_64")]
struct Wide<L>(L);

#[cfg(target_arch = "x86_64")]
impl<L: Loop> NullaryFnOnce for Wide<L> {
    type Output = L::Output;
    #[inline(always)]
    fn call(self) -> L::Output {
        self.0.call::<WithAvx>()
    }
}

/// A loop of another crate, which is compiled for the instructions of a [level](Level::vectorize) with all functions
/// that are inlined into it.
pub trait Vectorized {
    /// Runs it. To be `#[inline(always)]`, as what it calls.
    fn call(self);
}

struct Foreign<V>(V);

impl<V: Vectorized> NullaryFnOnce for Foreign<V> {
    type Output = ();
    #[inline(always)]
    fn call(self) {
        self.0.call();
    }
}

/// Instructions that loops are compiled for. Results are the same at every level: nothing is contracted to a fused
/// multiply-add, and where a function says so, all levels have it.
#[derive(Clone, Copy, Debug)]
pub struct Level(Of);

#[derive(Clone, Copy, Debug)]
enum Of {
    /// Instructions that every processor of the target has: NEON on AArch64.
    Portable,
    /// AVX2.
    #[cfg(target_arch = "x86_64")]
    V3(pulp::x86::V3),
    /// AVX-512.
    #[cfg(target_arch = "x86_64")]
    V4(pulp::x86::V4),
}

impl Level {
    /// Returns the widest level of this machine.
    pub fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(simd) = pulp::x86::V4::try_new() {
                return Self(Of::V4(simd));
            }
            if let Some(simd) = pulp::x86::V3::try_new() {
                return Self(Of::V3(simd));
            }
        }
        Self(Of::Portable)
    }

    /// Returns every level of this machine, the widest last.
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self(Of::Portable)];
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(pulp::x86::V3::try_new().map(|simd| Self(Of::V3(simd))));
            all.extend(pulp::x86::V4::try_new().map(|simd| Self(Of::V4(simd))));
        }
        all
    }

    /// Runs a loop of another crate.
    #[inline]
    pub fn vectorize(self, of: impl Vectorized) {
        self.run(Foreign(of));
    }

    /// Runs a loop.
    #[inline(always)]
    pub(crate) fn run<Op: NullaryFnOnce>(self, op: Op) -> Op::Output {
        match self.0 {
            Of::Portable => op.call(),
            #[cfg(target_arch = "x86_64")]
            Of::V3(simd) => pulp::Simd::vectorize(simd, op),
            #[cfg(target_arch = "x86_64")]
            Of::V4(simd) => pulp::Simd::vectorize(simd, op),
        }
    }

    /// Runs a loop that knows what it is compiled with.
    #[inline(always)]
    pub(crate) fn run_fused<L: Loop>(self, of: L) -> L::Output {
        match self.0 {
            Of::Portable => of.call::<Portable>(),
            #[cfg(target_arch = "x86_64")]
            Of::V3(simd) => pulp::Simd::vectorize(simd, Wide(of)),
            #[cfg(target_arch = "x86_64")]
            Of::V4(simd) => pulp::Simd::vectorize(simd, Wide(of)),
        }
    }

    /// Runs a loop that is rarely hot, compiled for fewer levels.
    #[inline(always)]
    pub(super) fn run_narrow<Op: NullaryFnOnce>(self, op: Op) -> Op::Output {
        match self.0 {
            Of::Portable => op.call(),
            #[cfg(target_arch = "x86_64")]
            Of::V3(simd) => pulp::Simd::vectorize(simd, op),
            #[cfg(target_arch = "x86_64")]
            Of::V4(simd) => pulp::Simd::vectorize(*simd, op),
        }
    }
}
