//! Nothing: a package that is built beside this one has its dependencies with the same features, whatever its own are,
//! so that Burn is not compiled again for them. Its `Cargo.toml` lists what would differ: of the crates below Burn and
//! below its macros, what `cargo tree --format "{p} {f}"` shows otherwise with one feature of burn-dist and with
//! another one, backends for GPUs among them.
