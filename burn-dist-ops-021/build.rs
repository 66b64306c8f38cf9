//! The sources are those of the current line; what differs says `cfg(burn_021)`.

fn main() {
    println!("cargo::rustc-cfg=burn_021");
    println!("cargo::rerun-if-changed=build.rs");
}
