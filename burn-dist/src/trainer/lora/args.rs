//! The options of adapters, and what they ask for.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;

use super::adapters::{Adapters, Base};
use super::folder::{cannot_take, read};
use super::layers::Layers;
use super::targets::Targets;
use crate::trainer::args::numbers::{above_0, positive};
use crate::trainer::folder::InFolders;

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
    /// The type in which the matrices of the layers rest that are not trained, f32, bf16, f16 or int8: bf16 is half the
    /// memory, and with --param-dtype bf16 no other is made; int8 is a quarter, with a scale for each 32 values.
    #[arg(long, value_name = "TYPE")]
    pub base_dtype: Option<Base>,
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

/// An alpha without `--lora-alpha`, in ranks.
const ALPHA_PER_RANK: f64 = 2.0;

impl LoraArgs {
    /// Returns adapters of a folder, for commands that train none.
    pub fn of_folder(adapters: Option<&Path>) -> Self {
        Self {
            adapters: adapters.map(Path::to_path_buf),
            ..Self::default()
        }
    }

    /// Returns the adapters that are asked for, for a model of these sizes.
    ///
    /// # Errors
    /// If there is no such layer, the folder has none of this model, or an option is for adapters and there are none.
    pub fn asked<M: InFolders>(&self, config: &M::Config) -> anyhow::Result<Option<Adapters>> {
        let adapters = match (&self.adapters, self.lora_rank) {
            (Some(dir), _) => read::<M>(dir, config).with_context(|| cannot_take(dir))?,
            (None, Some(rank)) => {
                let all = Targets::default();
                let targets = self.lora_targets.as_ref().unwrap_or(&all);
                let matrices = targets.matrices(&Layers::of::<M>(config));
                Adapters {
                    rank,
                    alpha: self.lora_alpha.unwrap_or(ALPHA_PER_RANK * rank as f64),
                    is_rank_stabilized: false,
                    dropout: 0.0,
                    base: Base::F32,
                    matrices: matrices.context("--lora-targets")?,
                }
            }
            (None, None) => match (self.lora_dropout, self.base_dtype) {
                (None, None) => return Ok(None),
                (Some(_), _) => {
                    bail!("--lora-dropout is for adapters: give --lora-rank, or --adapters")
                }
                (None, Some(_)) => bail!(
                    "--base-dtype is for weights that are not trained, which adapters leave as they are: give \
                     --lora-rank, or --adapters"
                ),
            },
        };
        Ok(Some(Adapters {
            base: self.base_dtype.unwrap_or(adapters.base),
            dropout: self.lora_dropout.unwrap_or(adapters.dropout),
            ..adapters
        }))
    }
}
