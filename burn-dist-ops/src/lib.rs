//! The operations of a program that [burn-dist](https://docs.rs/burn-dist) records: Burn's, custom ones, and what a
//! program says of its values; and the planner, compiled for them ([`plan`]).
//!
//! Each family of Burn's operations is a file: its operations with their kernels, what of them may be split over ranks,
//! the local operations of a rank where they differ, which memory results take, what products cost. Rules and lowerings
//! know no backend; kernels are called by the rows of a family alone.
//!
//! | file | idea |
//! | --- | --- |
//! | `table` | every operation of burn-ir: its operands, its name, its family |
//! | `family` | what a family says of its operations |
//! | `view`, `join`, `index`, `mask`, `convert`, `create` | families on tensors of any kind |
//! | `arithmetic`, `compare`, `reduce`, `scan`, `function`, `bits`, `logic` | families on numbers, or on bools |
//! | `matmul`, `linear`, `embedding`, `conv`, `pool`, `attention`, `ctc` | products and whole modules |
//! | `quantized`, `activation` | quantized tensors; activations |
//! | `normal`, `pad`, `signed`, `sort`, `space`, `sums`, `transposed`, `truth` | what Burn 0.21 does not have as one operation |
//! | `spectral`, `activation_021` | what Burn 0.21 alone has, or has otherwise |
//! | [`custom`] | operations of other crates |
//! | `float8` | what the planner puts in the place of linear layers in 8 bits |
//! | [`int8`], `on_bytes`, `packing` | matrices that rest in 8 bits: operations, what becomes one, how it runs |
//! | [`recorded`] | one recorded operation, as the planner sees it |
//! | [`visit`] | walks over the tensors and scalars of an operation |
//! | [`rules`] | what rules share |
//! | `lower`, `emit` | from a global operation to the local ones of a rank |
//! | `pointwise` | what functions of single elements share |
//! | `formula`, `curves` | what an operation computes of each element, for regions; activations |
//! | [`moved`] | which operations fill a tensor, or move elements and no more |
//! | [`product`] | which operations are products of f32 matrices |
//! | [`starts`] | slices whose starts are slots of a plan |
//! | `places` | which results are in the memory of an operand |
//! | [`execute`] | runs one operation: where its tensors come from, and errors |
//! | `nothing` | operations on tensors without elements, which need no kernel |
//! | `text` | operations as text that can be read again, for tests |
//! | `kinds` | floats, ints and bools, with the kernels that each has |
//! | `dtype`, `scheme` | element types in Burn's terms and in ours; quantization schemes |
//! | `burn` | names of Burn that differ by its line |

// Which feature an item needs, where docs.rs builds the documentation.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg_attr(burn_021, path = "activation_021.rs")]
mod activation;
mod arithmetic;
mod attention;
mod bits;
pub mod burn;
mod compare;
mod conv;
mod convert;
mod create;
mod ctc;
mod curves;
pub mod custom;
pub mod dtype;
mod embedding;
mod emit;
pub mod execute;
mod family;
pub mod float8;
pub mod formula;
mod function;
pub mod index;
pub mod int8;
mod join;
mod kinds;
mod linear;
mod logic;
mod lower;
mod mask;
mod matmul;
pub mod moved;
#[cfg(not(burn_021))]
mod normal;
mod nothing;
pub mod on_bytes;
mod packing;
#[cfg(not(burn_021))]
mod pad;
#[cfg_attr(burn_021, path = "places_021.rs")]
mod places;
pub mod plan;
mod pointwise;
mod pool;
pub mod product;
mod quantized;
mod recorded;
mod reduce;
pub mod rules;
#[cfg(test)]
mod samples;
mod scan;
#[cfg_attr(burn_021, path = "scheme_021.rs")]
mod scheme;
#[cfg(not(burn_021))]
mod signed;
#[cfg(not(burn_021))]
mod sort;
#[cfg(not(burn_021))]
mod space;
#[cfg(burn_021)]
mod spectral;
pub mod starts;
#[cfg(not(burn_021))]
mod sums;
mod table;
#[cfg(test)]
mod tests;
#[cfg(any(test, feature = "text-form"))]
mod text;
#[cfg(not(burn_021))]
mod transposed;
#[cfg(not(burn_021))]
mod truth;
mod view;
pub mod visit;

pub use recorded::{Marked, Recorded, check_known, name};
pub use visit::{OpReader, OpVisitor, visit_mut, visit_ref};
