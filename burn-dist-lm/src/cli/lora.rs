//! The options of adapters.

use std::path::PathBuf;

use burn_dist::Float;
use burn_dist::trainer::args::numbers::{above_0, positive};
use clap::Args;

use crate::lora::Targets;

/// Low-rank adapters: trained in place of the weights, or beside those of a folder.
#[derive(Debug, Clone, Default, Args)]
pub struct LoraArgs {
    /// Train adapters of this rank alone (LoRA), and leave the weights as they are.
    #[arg(long, value_name = "N", value_parser = positive, conflicts_with = "adapters")]
    pub lora_rank: Option<usize>,
    /// The product of an adapter's factors counts ALPHA / rank times; twice the rank by default.
    #[arg(long, value_name = "ALPHA", value_parser = above_0::<f64>, requires = "lora_rank")]
    pub lora_alpha: Option<f64>,
    /// The share of their input that adapters do not see in training; that of --adapters, or 0, by default.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub lora_dropout: Option<f64>,
    /// The layers that get adapters, by their names in Hugging Face's library: all-linear, which is all but the output,
    /// or names and patterns such as q_proj,v_proj or layers.*.mlp.up_proj.
    #[arg(long, value_name = "LAYERS", requires = "lora_rank")]
    pub lora_targets: Option<Targets>,
    /// The type in which the matrices of the layers rest that are not trained, f32, bf16 or f16: bf16 is half the
    /// memory, and with --param-dtype bf16 no other is made.
    #[arg(long, value_name = "TYPE")]
    pub base_dtype: Option<Float>,
    /// A folder with adapter_model.safetensors and adapter_config.json, as PEFT lays it out, of adapters for the model
    /// of --model: training goes on with them.
    #[arg(long, value_name = "DIR")]
    pub adapters: Option<PathBuf>,
}

fn share(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok();
    let number = number.filter(|number| (0.0..1.0).contains(number));
    number.ok_or_else(|| "it is a number from 0 to below 1".to_string())
}
