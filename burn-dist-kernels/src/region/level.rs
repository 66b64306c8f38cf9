//! Vectors of the machine at hand.

use pulp::NullaryFnOnce;

use super::functions::{Fused, Own, Portable};

/// A loop of functions that [round once](Fused).
pub(super) trait Loop {
    type Output;
    fn call<F: Fused>(self) -> Self::Output;
}

/// Such a loop, compiled for processors that have the instruction.
struct WithOwn<L>(L);

impl<L: Loop> NullaryFnOnce for WithOwn<L> {
    type Output = L::Output;
    #[inline(always)]
    fn call(self) -> L::Output {
        self.0.call::<Own>()
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

    /// Runs a loop.
    #[inline(always)]
    pub(super) fn run<Op: NullaryFnOnce>(self, op: Op) -> Op::Output {
        match self.0 {
            Of::Portable => op.call(),
            #[cfg(target_arch = "x86_64")]
            Of::V3(simd) => pulp::Simd::vectorize(simd, op),
            #[cfg(target_arch = "x86_64")]
            Of::V4(simd) => pulp::Simd::vectorize(simd, op),
        }
    }

    /// Runs a loop of functions that round once.
    #[inline(always)]
    pub(super) fn run_fused<L: Loop>(self, of: L) -> L::Output {
        match self.0 {
            Of::Portable => of.call::<Portable>(),
            // These levels have the instruction.
            #[cfg(target_arch = "x86_64")]
            Of::V3(simd) => pulp::Simd::vectorize(simd, WithOwn(of)),
            #[cfg(target_arch = "x86_64")]
            Of::V4(simd) => pulp::Simd::vectorize(simd, WithOwn(of)),
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
