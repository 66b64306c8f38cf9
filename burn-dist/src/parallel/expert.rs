//! Expert parallelism: stacked experts split over an expert axis (`ep`), tokens sent to them and back.
//!
//! | file | part |
//! | --- | --- |
//! | `burn-dist-front/src/parallel/plan.rs`, `fit.rs` | [`Plan::experts`](crate::Plan::experts): dim 0 of stacked weights and biases |
//! | `burn-dist-mesh/src/axis.rs`, `shape.rs` | the role of the axis: rows of a batch are split over it too |
//! | `burn-dist-ops/src/matmul.rs` | batched products whose batch is the experts |
//! | `burn-dist-layout/src/redistribute/` | the all-to-all of tokens to experts and back |
//! | `burn-dist-plan/src/passes/propagate/options.rs` | tokens stay split over `fsdp` where experts need `ep` |
//! | `examples/moe/` | routing, capacity, the auxiliary loss |
//! | `tests/experts.rs` | one all-to-all each direction, and experts that stay |
