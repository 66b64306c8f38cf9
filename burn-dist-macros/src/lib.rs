//! `#[derive(Parallelize)]` for burn-dist.
//!
//! The derive is documented where users meet it, on its re-export `burn_dist::Parallelize`. In here it goes through
//! four steps, one file each: `attr` (the grammar of `#[parallel(...)]`), `check` (what the attributes mean, every
//! mistake collected) into `model` (what the user meant, no tokens left to interpret), and `expand` (with texts as
//! constants, `constant`), or `fallback` when there were mistakes. Burn's lines differ in `expand` alone.

#![forbid(unsafe_code)]

mod attr;
mod check;
mod constant;
mod expand;
mod fallback;
mod guide;
mod model;
mod nearest;
#[cfg(test)]
mod tests;
mod value;

use expand::Line;
use proc_macro::TokenStream;

/// Derives `burn_dist::Parallelize`; see the documentation there.
#[proc_macro_derive(Parallelize, attributes(parallel))]
pub fn derive_parallelize(input: TokenStream) -> TokenStream {
    derived(input, Line::Current)
}

/// Derives `burn_dist::Parallelize` of the package for Burn 0.21, whose modules name their backend `B`.
#[proc_macro_derive(Parallelize021, attributes(parallel))]
pub fn derive_parallelize_021(input: TokenStream) -> TokenStream {
    derived(input, Line::Burn021)
}

/// Returns the text of a guide of the folder `docs` as a literal, its links as those between modules of documentation.
#[doc(hidden)]
#[proc_macro]
pub fn guide(input: TokenStream) -> TokenStream {
    match syn::parse::<syn::LitStr>(input) {
        Ok(file) => guide::guide(&file).into(),
        Err(error) => error.to_compile_error().into(),
    }
}

fn derived(input: TokenStream, line: Line) -> TokenStream {
    match syn::parse::<syn::DeriveInput>(input) {
        Ok(input) => derive(&input, line).into(),
        Err(error) => error.to_compile_error().into(),
    }
}

/// The whole derive on `proc_macro2`, so that tests can run it.
fn derive(input: &syn::DeriveInput, line: Line) -> proc_macro2::TokenStream {
    match check::check(input) {
        Ok(model) => expand::expand(&model, line),
        Err(error) => fallback::expand(input, &error),
    }
}
