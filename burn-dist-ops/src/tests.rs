//! Laws of all operations, each over a sample of every one.

pub(super) mod execute;
mod flops;
mod formulas;
mod oracle;
mod rules;
mod text;
#[cfg(not(burn_021))]
mod variants;
