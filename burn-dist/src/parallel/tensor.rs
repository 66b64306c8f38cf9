//! Tensor parallelism: weights split over a model axis (`tp`), activations as they follow from that.
//!
//! | file | part |
//! | --- | --- |
//! | `burn-dist-front/src/parallel/plan.rs`, `describe.rs`, `derive.md` | what users write: styles such as [`Plan::colwise`](crate::Plan::colwise) and [`Plan::rowwise`](crate::Plan::rowwise) |
//! | `burn-dist-front/src/parallel/fit.rs`, `resolve.rs` | the dim that a style splits, and the layout of each parameter |
//! | `burn-dist-plan/src/rule.rs`, `burn-dist-ops/src/` | which splits an operation allows, and what they leave |
//! | `burn-dist-plan/src/passes/propagate/options.rs`, `choice.rs` | the cheapest split of each operation |
//! | `burn-dist-plan/src/passes/async_tp/` | products in chunks beside the transfers they wait for: [`AsyncTp`](crate::AsyncTp) |
//! | `tests/layouts.rs`, `tests/training.rs`, `tests/async_tp.rs` | bytes of the papers, values of one device |
