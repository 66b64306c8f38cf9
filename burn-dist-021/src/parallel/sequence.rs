//! Sequence parallelism: between tensor-parallel layers, each rank of the model axis has a part of the sequence.
//!
//! | file | part |
//! | --- | --- |
//! | `burn-dist-front/src/parallel/plan.rs` | [`Plan::sequence`](crate::Plan::sequence), and layouts of activations: [`Plan::input`](crate::Plan::input), [`Plan::output`](crate::Plan::output) |
//! | `burn-dist-plan/src/passes/propagate/module.rs` | the layouts that a module asks for |
//! | `burn-dist-plan/src/passes/propagate/versions.rs` | partial sums scattered along the split dim of the residual stream |
//! | `burn-dist-layout/src/redistribute/` | all-gather and reduce-scatter in place of an all-reduce |
//! | `tests/layouts.rs`, `tests/async_tp.rs` | traffic, and values of one device |
//!
//! Sequences that are split over an axis of their own, whatever else is: [context parallelism](super::context).
