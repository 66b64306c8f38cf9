//! The options of `convert`.

use std::path::PathBuf;

use clap::Args;

use crate::mesh::DType;

/// A conversion.
#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// A folder with config.json and *.safetensors, which becomes a checkpoint; or the folder of a run or of its
    /// checkpoints, of which the last becomes such a folder.
    #[arg(value_name = "FROM")]
    pub from: PathBuf,
    /// Where it is written. Nothing is replaced.
    #[arg(value_name = "TO")]
    pub to: PathBuf,
    /// A folder whose config.json and tokenizer belong to the weights of a checkpoint; by default that which the run
    /// was begun with.
    #[arg(long, value_name = "DIR")]
    pub like: Option<PathBuf>,
    /// The step whose checkpoint is converted; the last one by default.
    #[arg(long, value_name = "STEP")]
    pub step: Option<u64>,
    /// The type of the weights: f64, f32, f16 or bf16; by default that which they have.
    #[arg(long, value_name = "TYPE", value_parser = float)]
    pub dtype: Option<DType>,
}

const FLOATS: [(&str, DType); 4] = [
    ("f64", DType::F64),
    ("f32", DType::F32),
    ("f16", DType::F16),
    ("bf16", DType::BF16),
];

fn float(text: &str) -> Result<DType, String> {
    let found = FLOATS.iter().find(|(name, _)| *name == text);
    let names = || FLOATS.map(|(name, _)| name).join(", ");
    found.map_or_else(
        || Err(format!("weights are {}", names())),
        |(_, dtype)| Ok(*dtype),
    )
}
