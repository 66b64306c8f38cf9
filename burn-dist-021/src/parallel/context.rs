//! Context parallelism: the sequences of a batch split over a context axis (`cp`), parameters at rest over it too.
//!
//! | file | part |
//! | --- | --- |
//! | `burn-dist-layout/src/policy/context.rs` | what users choose: [`ContextParallel`](crate::ContextParallel), ring or gather |
//! | `burn-dist-layout/src/rows.rs` | batches in stripes, so that causal ranks have equal work |
//! | `burn-dist-021/src/nn/attention/mesh.rs` | attention as a custom operation: its rule, and the choice by cost |
//! | `burn-dist-021/src/nn/attention/ring.rs`, `blocks.rs` | keys and values from rank to rank, forward and backward |
//! | `burn-dist-kernels/src/attention/` | blocks by the log-sum-exp, joined in one order |
//! | `burn-dist-engine/src/custom.rs` | what passes between ranks: [`CustomSteps`](crate::custom::CustomSteps) |
//! | `tests/context.rs`, `tests-021/attention.rs` | what crosses the network, values within the derived tolerance |
