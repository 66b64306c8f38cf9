//! The splits of an operation over ranks, and what they leave.
//!
//! A rule names the *factors* of an operation (as in Shardy): `matmul` is `b i k, b k j -> b i j` with `k` reduced. The
//! planner picks, per factor, how it is split over mesh axes (an [`Assignment`]); everything else (layouts of operands
//! and results, which results are partial, what each rank computes) follows from the rule.
//!
//! ```
//! use burn_dist_mesh::{MeshShape, ReduceOp};
//! use burn_dist_plan::layout::Layout;
//! use burn_dist_plan::rule::{FactorKind, FactorRule, Held, Lowering, Operand, PartialRule, Rule};
//! let operand = |dims: [u8; 2], shape: [usize; 2]| Operand {
//!     dims: dims.map(Some).into(),
//!     shape: shape.into(),
//!     ..Operand::default()
//! };
//! let factor = |size, kind| FactorRule { size, kind, block: 1, held: Held::Any, along: None };
//! // `i k, k j -> i j`
//! let matmul = Rule {
//!     factors: vec![
//!         factor(4, FactorKind::Map),
//!         factor(6, FactorKind::Reduce(ReduceOp::Sum)),
//!         factor(8, FactorKind::Map),
//!     ],
//!     inputs: vec![operand([0, 1], [4, 6]), operand([1, 2], [6, 8])],
//!     outputs: vec![operand([0, 2], [4, 8])],
//!     partial: PartialRule::Resolve,
//!     lowering: Lowering::Same,
//!     elementwise: false,
//! };
//! let mesh = MeshShape::parse("tp=2")?;
//! let mut split = matmul.unsplit();
//! split.factors[1].factors[0].axes = vec![mesh.axis("tp")?];
//! let text = |layout: Layout| layout.display(&mesh).to_string();
//! assert_eq!(text(matmul.input_layout(&matmul.inputs[0], &split)), "[-, {tp}]");
//! assert_eq!(text(matmul.input_layout(&matmul.inputs[1], &split)), "[{tp}, -]");
//! assert_eq!(text(matmul.output_layout(&matmul.outputs[0], &split)), "[-, -] + sum{tp}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod builder;
pub mod oracle;
mod splits;
mod types;

pub use builder::{Name, RuleBuilder, Shapes, dims, dims_but};
pub use types::{
    Assignment, FactorKind, FactorRule, Held, Lowering, OpRule, Operand, PartialRule, Rule,
    nowhere_empty,
};
