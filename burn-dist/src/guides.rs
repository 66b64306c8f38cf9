#![doc = burn_dist_macros::guide!("README.md")]
#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "they are texts of Markdown, in which brackets are brackets"
)]

#[doc = burn_dist_macros::guide!("guide/async-tp.md")]
pub mod async_tp {}
#[doc = burn_dist_macros::guide!("guide/attention.md")]
pub mod attention {}
#[doc = burn_dist_macros::guide!("guide/backends.md")]
pub mod backends {}
#[doc = burn_dist_macros::guide!("guide/burn-021.md")]
pub mod burn_021 {}
#[doc = burn_dist_macros::guide!("checkpoint-format.md")]
pub mod checkpoint_format {}
#[doc = burn_dist_macros::guide!("guide/chats.md")]
pub mod chats {}
#[doc = burn_dist_macros::guide!("guide/checkpoints.md")]
pub mod checkpoints {}
#[doc = burn_dist_macros::guide!("guide/clusters.md")]
pub mod clusters {}
#[doc = burn_dist_macros::guide!("guide/context.md")]
pub mod context {}
#[doc = burn_dist_macros::guide!("guide/custom-operations.md")]
pub mod custom_operations {}
#[doc = burn_dist_macros::guide!("guide/data.md")]
pub mod data {}
#[doc = burn_dist_macros::guide!("guide/experts.md")]
pub mod experts {}
#[doc = burn_dist_macros::guide!("guide/explain.md")]
pub mod explain {}
#[doc = burn_dist_macros::guide!("guide/faults.md")]
pub mod faults {}
#[doc = burn_dist_macros::guide!("figures.md")]
pub mod figures {}
#[doc = burn_dist_macros::guide!("guide/first-model.md")]
pub mod first_model {}
#[doc = burn_dist_macros::guide!("float8.md")]
pub mod float8 {}
#[doc = burn_dist_macros::guide!("gpu-results.md")]
pub mod gpu_results {}
#[doc = burn_dist_macros::guide!("limits.md")]
pub mod limits {}
#[doc = burn_dist_macros::guide!("guide/llama.md")]
pub mod llama {}
#[doc = burn_dist_macros::guide!("guide/lora.md")]
pub mod lora {}
#[doc = burn_dist_macros::guide!("guide/memory.md")]
pub mod memory {}
#[doc = burn_dist_macros::guide!("guide/metrics.md")]
pub mod metrics {}
#[doc = burn_dist_macros::guide!("guide/models.md")]
pub mod models {}
#[doc = burn_dist_macros::guide!("guide/own-model.md")]
pub mod own_model {}
#[doc = burn_dist_macros::guide!("guide/pipeline.md")]
pub mod pipeline {}
#[doc = burn_dist_macros::guide!("guide/processes.md")]
pub mod processes {}
#[doc = burn_dist_macros::guide!("guide/regions.md")]
pub mod regions {}
#[doc = burn_dist_macros::guide!("guide/schedules.md")]
pub mod schedules {}
#[doc = burn_dist_macros::guide!("simulator.md")]
pub mod simulator {}
#[doc = burn_dist_macros::guide!("support.md")]
pub mod support {}
#[doc = burn_dist_macros::guide!("guide/texts.md")]
pub mod texts {}
#[doc = burn_dist_macros::guide!("guide/train-a-model.md")]
pub mod train_a_model {}
#[doc = burn_dist_macros::guide!("upstream.md")]
pub mod upstream {}
