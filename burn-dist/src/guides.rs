#![doc = burn_dist_macros::guide!("README.md")]
#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "they are texts of Markdown, in which brackets are brackets"
)]

use burn_dist_macros::guide;

#[doc = guide!("guide/async-tp.md")]
pub mod async_tp {}
#[doc = guide!("guide/attention.md")]
pub mod attention {}
#[doc = guide!("guide/backends.md")]
pub mod backends {}
#[doc = guide!("guide/burn-021.md")]
pub mod burn_021 {}
#[doc = guide!("checkpoint-format.md")]
pub mod checkpoint_format {}
#[doc = guide!("guide/checkpoints.md")]
pub mod checkpoints {}
#[doc = guide!("guide/clusters.md")]
pub mod clusters {}
#[doc = guide!("guide/context.md")]
pub mod context {}
#[doc = guide!("guide/custom-operations.md")]
pub mod custom_operations {}
#[doc = guide!("guide/data.md")]
pub mod data {}
#[doc = guide!("guide/experts.md")]
pub mod experts {}
#[doc = guide!("guide/explain.md")]
pub mod explain {}
#[doc = guide!("guide/faults.md")]
pub mod faults {}
#[doc = guide!("figures.md")]
pub mod figures {}
#[doc = guide!("guide/first-model.md")]
pub mod first_model {}
#[doc = guide!("float8.md")]
pub mod float8 {}
#[doc = guide!("gpu-results.md")]
pub mod gpu_results {}
#[doc = guide!("limits.md")]
pub mod limits {}
#[doc = guide!("guide/llama.md")]
pub mod llama {}
#[doc = guide!("guide/memory.md")]
pub mod memory {}
#[doc = guide!("guide/metrics.md")]
pub mod metrics {}
#[doc = guide!("guide/models.md")]
pub mod models {}
#[doc = guide!("guide/own-model.md")]
pub mod own_model {}
#[doc = guide!("guide/pipeline.md")]
pub mod pipeline {}
#[doc = guide!("guide/processes.md")]
pub mod processes {}
#[doc = guide!("guide/schedules.md")]
pub mod schedules {}
#[doc = guide!("simulator.md")]
pub mod simulator {}
#[doc = guide!("support.md")]
pub mod support {}
#[doc = guide!("guide/texts.md")]
pub mod texts {}
#[doc = guide!("guide/train-a-model.md")]
pub mod train_a_model {}
#[doc = guide!("upstream.md")]
pub mod upstream {}
