//! Stands for `cubecl-llvm`, whose build script downloads LLVM, where that cannot be had: the types that `cubecl-cuda`
//! names, and no compiler behind them.
//!
//! ```text
//! cargo build --features cuda --config 'patch.crates-io.cubecl-llvm.path="dev/cubecl-llvm"'
//! ```
//!
//! burn-dist's feature `cuda` compiles kernels through CUDA C++ and NVRTC (CubeCL's `cuda-cpp`), so that nothing of
//! this is called; what is called all the same is an error that says so.

use std::ffi::c_char;

use cubecl_core::ir::nvidia::SmArch;
use cubecl_core::prelude::KernelDefinition;
use cubecl_runtime::compiler::CompilationError;
use cubecl_runtime::kernel::BufferIOAttr;

/// What PTX is made for.
pub mod nvptx {
    /// A version of PTX.
    pub mod ptx_version {
        use std::fmt;

        /// The version of PTX that a driver takes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct PtxVersion(());

        impl PtxVersion {
            /// Returns none: no PTX is made here.
            pub fn for_driver(_driver: i32) -> Option<Self> {
                None
            }
        }

        impl fmt::Display for PtxVersion {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("ptx")
            }
        }
    }
}

/// What a device offers to kernels.
pub mod shared {
    /// What of it this compiler takes.
    pub mod lowered_features {
        use cubecl_core::ir::DeviceProperties;

        /// A kind of GPU.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum GpuTarget {
            /// NVIDIA's.
            Nvptx,
        }

        /// Leaves all that the device has: kernels are compiled through CUDA C++.
        pub fn restrict_features(_properties: &mut DeviceProperties, _target: GpuTarget) {}
    }
}

/// What code is made for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LlvmTarget {
    /// A processor.
    #[default]
    Cpu,
    /// NVIDIA's GPUs.
    Nvptx,
}

/// The compiler, which compiles nothing.
#[derive(Clone, Debug, Default)]
pub struct PlironCompiler {
    /// What for.
    pub target: LlvmTarget,
}

/// Options of the compiler.
#[derive(Clone, Debug, Default)]
pub struct PlironOptions {
    /// An architecture of AMD's.
    pub arch: Option<()>,
    /// An architecture of NVIDIA's.
    pub sm_arch: Option<SmArch>,
    /// A version of PTX.
    pub ptx_version: Option<nvptx::ptx_version::PtxVersion>,
    /// Whether parameters are passed by value.
    pub grid_constants: bool,
    /// Of processors.
    pub cpu_buffer_alignment: Option<u32>,
}

/// A kernel in PTX.
#[derive(Clone, Debug)]
pub struct NvptxModule {
    /// The text, with a zero at its end.
    pub ptx: Vec<c_char>,
    /// The text before it was PTX.
    pub ir: String,
    /// Bytes of shared memory.
    pub shared_memory_size: usize,
    /// How buffers are used.
    pub io: Vec<BufferIOAttr>,
}

/// What a compiler makes.
#[derive(Clone, Debug)]
pub enum PlironArtifact {
    /// For a processor.
    Jit,
    /// For an NVIDIA GPU.
    NvptxCode(NvptxModule),
}

impl PlironCompiler {
    /// Compiles nothing.
    ///
    /// # Errors
    /// Always: LLVM is not there.
    pub fn compile(
        &mut self,
        _kernel: KernelDefinition,
        _options: &PlironOptions,
    ) -> Result<PlironArtifact, CompilationError> {
        Err(CompilationError::Generic {
            reason: "built without LLVM (dev/cubecl-llvm): turn on CubeCL's feature `cuda-cpp`".into(),
            backtrace: cubecl_environment::backtrace::BackTrace::capture(),
        })
    }

    /// The extension of files with such code.
    pub fn extension(&self) -> &'static str {
        "ll"
    }

    /// The language of such code.
    pub fn lang_tag(&self) -> &'static str {
        "llvm"
    }
}
