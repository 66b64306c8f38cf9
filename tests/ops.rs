//! Every operation of Burn's tensor API gives the same values and gradients on every mesh as on one device.
//!
//! Each case is run on Flex and on meshes: with random layouts of all its inputs on 1 to 8 ranks, and without on a mesh
//! with data and model axes, where values wait for their use and batches are split.
//!
//! ```text
//! BURN_DIST_TEST_SEEDS=20        random layouts per mesh (1 without it)
//! BURN_DIST_TEST_CASE=matmul_3d  only that case
//! BURN_DIST_TEST_MESH=tp=3       only that mesh
//! BURN_DIST_TEST_SEED=7          only that seed
//! BURN_DIST_TEST_REPEATS=1000    each so many times: for what depends on time
//! BURN_DIST_TEST_EXPLAIN=1       prints the plans
//! ```

#[path = "ops/coverage.rs"]
mod coverage;
#[path = "ops/harness.rs"]
mod harness;
#[path = "ops/index.rs"]
mod index;
#[path = "ops/linalg.rs"]
mod linalg;
#[path = "ops/module.rs"]
mod module;
#[path = "ops/nn.rs"]
mod nn;
#[path = "ops/pointwise.rs"]
mod pointwise;
#[path = "ops/programs.rs"]
mod programs;
#[path = "ops/quantized.rs"]
mod quantized;
#[path = "ops/reduce.rs"]
mod reduce;
#[path = "ops/view.rs"]
mod view;

macro_rules! families {
    ($($family:ident)*) => {
        $(
            #[test]
            fn $family() {
                harness::run($family::table());
            }
        )*
    };
}

/// Empty tensors, and dims with fewer elements than ranks, so that some of them hold nothing.
macro_rules! small {
    ($($family:ident)*) => {
        $(
            #[test]
            fn $family() {
                for to in [0, 1] {
                    let (computed, refused) = harness::run_small($family::table(), to);
                    println!("{} of size {to}: {computed} computed", stringify!($family));
                    for refused in &refused {
                        println!("  Flex refuses {refused}");
                    }
                    assert!(computed > refused.len() / 2, "{computed}: {refused:?}");
                }
            }
        )*
    };
}

mod small {
    use super::*;

    small! { index linalg module nn pointwise reduce view }
}

mod families {
    use super::*;

    families! { index linalg module nn pointwise quantized reduce view }
}
