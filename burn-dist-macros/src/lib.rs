//! `#[derive(Parallelize)]`.
