//! Distributed N-D parallelism for [Burn](https://burn.dev), as a backend decorator.

pub mod comm;
pub mod layout;
pub mod mesh;
pub mod parallel;
pub mod plan;
pub mod record;
pub mod rules;
pub mod run;
