//! Errors of libraries and drivers of GPUs.

use burn_dist_comm::CommError;
use std::sync::Arc;

/// A library or a driver that is missing or of no use.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// NCCL is not there.
    #[error("{}", missing_text(tried, paths))]
    NcclMissing {
        /// The names that were tried, each with the answer of the system's loader.
        tried: Vec<(String, String)>,
        /// The variables that say where to look, with their values.
        paths: Vec<(&'static str, Option<String>)>,
    },
    /// NCCL is there, and not usable: too old, or without a function that is needed.
    #[error(
        "{library} is no NCCL that this program can use: {reason}; install NCCL {needed} or later (libnccl2), or let \
         the GPUs communicate through the host (`DeviceMeshBuilder::gpu_transport(GpuTransport::Host)`)"
    )]
    NcclUnusable {
        /// The name under which it was found.
        library: String,
        /// The reason why it is of no use.
        reason: String,
        /// The oldest version that would do.
        needed: &'static str,
    },
    /// A GPU that cannot be used beside CubeCL.
    #[error("NCCL cannot use GPU {device}: {reason}")]
    Cuda {
        /// Its number in this process.
        device: usize,
        /// The words of CUDA's driver.
        reason: String,
    },
}

burn_dist_mesh::debug_by_message!(GpuError);

impl From<GpuError> for CommError {
    fn from(error: GpuError) -> Self {
        Self::Library(Arc::new(error))
    }
}

fn missing_text(tried: &[(String, String)], paths: &[(&'static str, Option<String>)]) -> String {
    let names: Vec<String> = tried
        .iter()
        .map(|(name, reason)| format!("{name} ({reason})"))
        .collect();
    let paths: Vec<String> = paths
        .iter()
        .map(|(variable, value)| match value {
            Some(value) => format!("{variable}={value}"),
            None => format!("{variable} is not set"),
        })
        .collect();
    format!(
        "ranks on GPUs of their own communicate with NCCL, and it cannot be loaded; tried: {}; {}. Install it (Debian, \
         Ubuntu: libnccl2; pip: nvidia-nccl-cu12), name the file in BURN_DIST_NCCL or its folder in LD_LIBRARY_PATH, \
         or let the GPUs communicate through the host (`DeviceMeshBuilder::gpu_transport(GpuTransport::Host)`)",
        names.join(", "),
        paths.join(", ")
    )
}
