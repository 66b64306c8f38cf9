//! The headers that kernels include.

/// The one that every kernel includes.
pub(crate) const FIRST: &str = "software.h";

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

/// Returns the headers that a text includes, each with its text, and those that they include.
pub(crate) fn included(text: &str) -> Vec<(&'static str, &'static str)> {
    let mut found: Vec<(&str, &str)> = Vec::new();
    let first = HEADERS.iter().filter(|(name, _)| *name == FIRST);
    let mut new: Vec<_> = first.copied().chain(of(text)).collect();
    while let Some(header) = new.pop() {
        if !found.contains(&header) {
            found.push(header);
            new.extend(of(header.1));
        }
    }
    found.sort_unstable();
    found
}

/// Returns the headers that the lines of a text name.
fn of(text: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    text.lines().filter_map(|line| {
        let named = line.trim_start().strip_prefix('#')?.trim_start();
        let named = named.strip_prefix("include")?.trim_start();
        let named = named.strip_prefix(['<', '"'])?;
        let (named, _) = named.split_once(['>', '"'])?;
        HEADERS.iter().find(|(name, _)| *name == named).copied()
    })
}

#[cfg(test)]
mod tests {
    use super::included;

    fn names(text: &str) -> Vec<&'static str> {
        included(text).into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn headers_of_headers_are_included() {
        let always = [
            "software.h",
            "software_atomic.h",
            "software_math.h",
            "software_warp.h",
        ];
        assert_eq!(names("a;\n#include <of the host's>"), always);
        let mut barrier = always.to_vec();
        barrier.extend([
            "cuda/barrier",
            "software_barrier.h",
            "software_tensor_map.h",
        ]);
        barrier.sort_unstable();
        assert_eq!(
            names(" # include <cuda/barrier> // twice\n#include \"cuda/barrier\"\n"),
            barrier
        );
    }
}
