//! Each optional feature of each published crate, checked alone.

use serde_json::Value;

use crate::workspace::{self, run};

/// Features with which CubeCL is built with an LLVM that its build script downloads.
const BUILT_WITH_LLVM: [&str; 4] = [
    "burn-dist/cuda",
    "burn-dist-cubecl/cuda",
    "burn-dist-engine/cuda",
    "burn-dist-lm/cuda",
];

/// Checks all published crates without features, and each feature with the crate that has it.
///
/// All share a target folder. Of the crates with features only the fronts and engines are made of Burn, so that each line
/// of Burn is compiled once for each set of its own features that ours turn on: none, Wgpu's and CUDA's.
///
/// # Errors
/// The workspace cannot be read, or a crate does not build with a feature that is named.
pub(crate) fn each_alone() -> Result<(), String> {
    let published = published()?;
    let check = |what: &str, arguments: &[&str]| {
        println!("   {what}");
        let mut check = workspace::cargo();
        check.args(["check", "--quiet"]).args(arguments);
        if BUILT_WITH_LLVM.contains(&what) {
            // What is only checked needs no LLVM: CubeCL's build scripts fetch none for a documentation build.
            check.env("DOCS_RS", "1");
        }
        run(&mut check).map_err(|error| format!("{what}: {error}"))
    };
    let packages = published.iter().flat_map(|(package, _)| ["-p", package]);
    check("no feature", &packages.collect::<Vec<_>>())?;
    for (package, features) in &published {
        for feature in features {
            let what = format!("{package}/{feature}");
            check(&what, &["-p", package, "--features", &what])?;
        }
    }
    Ok(())
}

/// Returns the crates of the workspace that are published, each with its features.
fn published() -> Result<Vec<(String, Vec<String>)>, String> {
    let output = workspace::cargo()
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .map_err(|error| format!("cargo metadata cannot be run: {error}"))?;
    let metadata: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cargo metadata printed no JSON: {error}"))?;
    let packages = metadata["packages"].as_array();
    let packages = packages.ok_or("cargo metadata lists no packages")?;
    // `publish = false` is an empty list of registries.
    let published = packages
        .iter()
        .filter(|package| package["publish"].is_null());
    let features = |package: &Value| {
        let features = package["features"].as_object();
        features.map_or_else(Vec::new, |features| features.keys().cloned().collect())
    };
    Ok(published
        .filter_map(|package| Some((package["name"].as_str()?.to_string(), features(package))))
        .collect())
}
