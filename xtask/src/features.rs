//! Each optional feature of each published crate, checked alone.

use serde_json::Value;

use crate::workspace::{self, run};

/// Features with which CubeCL is built with an LLVM that its build script downloads.
const BUILT_WITH_LLVM: [&str; 2] = ["burn-dist/cuda", "burn-dist-lm/cuda"];

/// The packages with features that are made of Burn.
const ON_BURN: [&str; 7] = [
    "burn-dist",
    "burn-dist-021",
    "burn-dist-engine",
    "burn-dist-engine-021",
    "burn-dist-lm",
    "burn-dist-ops",
    "burn-dist-ops-021",
];

/// The features that bring CubeCL, which takes longest to check.
const OF_GPUS: [&str; 2] = ["cuda", "wgpu"];

/// Checks all published crates without features, and each feature with the crate that has it; those of GPUs also with
/// a crate that turns on nothing else of that one.
///
/// All share a target folder. Of the crates with features only fronts, engines, operations and burn-dist-lm are made of
/// Burn. They are checked beside `dev/unified`, so that Burn is compiled again for those features of a package that turn
/// on features of Burn: Wgpu's and CUDA's.
///
/// # Errors
/// The workspace cannot be read, or a crate does not build with a feature that is named.
pub(crate) fn each_alone() -> Result<(), String> {
    let metadata = metadata()?;
    let published = published(&metadata)?;
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
    check(
        "no feature",
        &packages.chain(["-p", "unified"]).collect::<Vec<_>>(),
    )?;
    for (package, features) in &published {
        for feature in features {
            let what = format!("{package}/{feature}");
            if OF_GPUS.contains(&feature.as_str()) && is_alone_elsewhere(&what, &metadata) {
                continue;
            }
            let beside: &[&str] = match ON_BURN.contains(&package.as_str()) {
                true => &["-p", "unified"],
                false => &[],
            };
            check(
                &what,
                &[&["-p", package, "--features", &what], beside].concat(),
            )?;
        }
    }
    Ok(())
}

/// Returns whether the feature of another crate, `package/feature`, turns this one on, and no other of its package.
fn is_alone_elsewhere(what: &str, metadata: &Value) -> bool {
    let of_package = |turned_on: &&str| turned_on.split('/').next() == what.split('/').next();
    let turns_on = |package: &Value| {
        let asks = |dependency: &Value| {
            let is_it = dependency["name"].as_str() == what.split('/').next();
            is_it && dependency["kind"].is_null() && dependency["features"] != Value::Array(vec![])
        };
        let mut dependencies = package["dependencies"].as_array().into_iter().flatten();
        let mut features = package["features"].as_object().into_iter().flatten();
        features.any(|(_, turned_on)| {
            let turned_on = turned_on.as_array().into_iter().flatten();
            let turned_on = turned_on.filter_map(Value::as_str).filter(of_package);
            turned_on.eq([what])
        }) && !dependencies.any(asks)
    };
    let mut packages = metadata["packages"].as_array().into_iter().flatten();
    packages.any(|package| package["publish"].is_null() && turns_on(package))
}

/// Returns what Cargo says of the workspace.
fn metadata() -> Result<Value, String> {
    let output = workspace::cargo()
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .map_err(|error| format!("cargo metadata cannot be run: {error}"))?;
    serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cargo metadata printed no JSON: {error}"))
}

/// Returns the crates of the workspace that are published, each with its features.
fn published(metadata: &Value) -> Result<Vec<(String, Vec<String>)>, String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_is_alone_where_a_crate_asks_for_nothing_else() {
        let metadata: Value = serde_json::from_str(
            r#"{"packages": [
                {"publish": null, "features": {"gpu": ["inner/gpu", "other/more"]}, "dependencies": [
                    {"name": "inner", "kind": null, "features": []}]},
                {"publish": null, "features": {"gpu": ["front/gpu"]}, "dependencies": [
                    {"name": "front", "kind": null, "features": ["train"]}]},
                {"publish": null, "features": {"gpu": ["both/gpu", "both/more"]}, "dependencies": [
                    {"name": "both", "kind": null, "features": []}]},
                {"publish": [], "features": {"gpu": ["own/gpu"]}, "dependencies": [
                    {"name": "own", "kind": null, "features": []}]}]}"#,
        )
        .expect("JSON");
        assert!(is_alone_elsewhere("inner/gpu", &metadata));
        for other in ["front/gpu", "both/gpu", "own/gpu", "nobody/gpu"] {
            assert!(!is_alone_elsewhere(other, &metadata), "{other}");
        }
    }
}
