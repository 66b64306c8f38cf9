//! Laws of all operations, each over a sample of every one.

mod execute;
mod flops;
mod oracle;
mod rules;
