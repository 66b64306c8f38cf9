//! FSDP, ZeRO, HSDP and DDP: parameters, gradients and optimizer state at rest in pieces (axes `fsdp`, `dp`).
//!
//! | file | part |
//! | --- | --- |
//! | `burn-dist-layout/src/policy/strategy.rs`, `reshard.rs`, `accumulation.rs` | what users choose: [`ShardStrategy`](crate::ShardStrategy), [`Reshard`](crate::Reshard), [`Accumulation`](crate::Accumulation) |
//! | `burn-dist-layout/src/rest.rs` | where a tensor rests: a function of shape, layout, mesh and policy |
//! | `burn-dist-plan/src/passes/propagate/module.rs`, `versions.rs` | gathers before use, reductions of gradients to where the parameter rests |
//! | `burn-dist-plan/src/facts/visits.rs`, `burn-dist-plan/src/passes/schedule.rs` | gathers of a unit together and ahead, reductions behind the next unit |
//! | `burn-dist-front/src/parallel/resolve.rs` | the spec of each parameter; [`Plan::unit`](crate::Plan::unit) |
//! | `tests/sharding.rs`, `tests/training.rs`, `tests/rows.rs` | bitwise DDP under every strategy, memory and bytes as promised |
