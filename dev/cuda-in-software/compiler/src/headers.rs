//! The headers that kernels include.

/// Their names and texts.
pub(crate) const HEADERS: &[(&str, &str)] = &[
    ("software.h", include_str!("headers/software.h")),
    ("software_math.h", include_str!("headers/software_math.h")),
    ("software_warp.h", include_str!("headers/software_warp.h")),
    (
        "software_atomic.h",
        include_str!("headers/software_atomic.h"),
    ),
    ("software_half.h", include_str!("headers/software_half.h")),
    ("software_mma.h", include_str!("headers/software_mma.h")),
    (
        "software_barrier.h",
        include_str!("headers/software_barrier.h"),
    ),
    (
        "software_tensor_map.h",
        include_str!("headers/software_tensor_map.h"),
    ),
    ("cuda_runtime.h", "#pragma once\n"),
    ("mma.h", "#pragma once\n#include \"software_mma.h\"\n"),
    (
        "cuda_fp16.h",
        "#pragma once\n#include \"software_half.h\"\n",
    ),
    (
        "cuda/barrier",
        "#pragma once\n#include \"software_barrier.h\"\n#include \"software_tensor_map.h\"\n",
    ),
    // What CubeCL includes beside the one before, which has all of it.
    ("cooperative_groups.h", "#pragma once\n"),
    ("cooperative_groups/memcpy_async.h", "#pragma once\n"),
    ("cuda/ptx", "#pragma once\n"),
    (
        "cuda_bf16.h",
        "#pragma once\n#include \"software_half.h\"\n",
    ),
];
