//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::model::Size;
use burn_dist::Checkpoint;
use burn_dist::mesh::MeshShape;

/// Trains a Llama-3-style model on a mesh of devices.
#[derive(Debug, Parser)]
#[command(version, about)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train from scratch, on random tokens or on the texts of a file; a speed measurement without one.
    Pretrain(TrainArgs),
    /// Train on questions and answers, then answer questions the model has not seen.
    Finetune(FinetuneArgs),
    /// Answer a prompt with a model from a folder.
    Generate(GenerateArgs),
    /// Show what a training step does on the mesh, without running it.
    Explain(ExplainArgs),
}

/// The model and the devices.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// Axes of the device mesh, outermost first: fsdp=2,tp=2. One device without it.
    #[arg(long, value_name = "AXES")]
    pub mesh: Option<MeshShape>,
    /// Shape of a model that is made here.
    #[arg(long, value_enum, default_value = "tiny")]
    pub size: Size,
    /// A folder with config.json, *.safetensors and tokenizer.json, as Hugging Face lays it out; sets the shape.
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// Seed of parameters and data.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Rows of a training step over all ranks; the size's own by default.
    #[arg(long, value_parser = positive)]
    pub batch: Option<usize>,
    /// Tokens of a row; the size's own by default.
    #[arg(long, value_parser = positive)]
    pub seq: Option<usize>,
    /// Which activations the backward makes again instead of keeping them: none, full, every=N, selective, or bytes=N (kept per rank beside the borders).
    #[arg(long, value_name = "POLICY", default_value_t = Checkpoint::None)]
    pub activation_checkpoint: Checkpoint,
}

/// How to train and what to keep.
#[derive(Debug, Args)]
pub struct TrainArgs {
    /// The model and the devices.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Training steps: 20 for pretrain, 1200 for finetune by default.
    #[arg(long)]
    pub steps: Option<usize>,
    /// The highest learning rate: 1.5e-3 for tiny, 3e-4 for the others, 2e-5 for a model from a folder.
    #[arg(long, value_parser = rate)]
    pub lr: Option<f64>,
    /// A file with one {"prompt": "...", "response": "..."} per line.
    #[arg(long, value_name = "FILE.jsonl")]
    pub data: Option<PathBuf>,
    /// Write the run's figures here.
    #[arg(long, value_name = "FILE.json")]
    pub json: Option<PathBuf>,
    /// Draw the loss curve here.
    #[arg(long, value_name = "FILE.svg", default_value = "loss.svg")]
    pub plot: PathBuf,
    /// Draw no loss curve.
    #[arg(long, conflicts_with = "plot")]
    pub no_plot: bool,
    /// Write the trained model to this folder, in the form that --model reads.
    #[arg(long, value_name = "DIR")]
    pub save: Option<PathBuf>,
}

/// How to fine-tune.
#[derive(Debug, Args)]
pub struct FinetuneArgs {
    /// How to train and what to keep.
    #[command(flatten)]
    pub train: TrainArgs,
    /// Steps of the base model that is made first: 100, or 0 with --data or --model.
    #[arg(long)]
    pub base_steps: Option<usize>,
    /// Unseen questions to ask at the end.
    #[arg(long, default_value_t = 100)]
    pub questions: usize,
}

/// What to generate.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// A folder with config.json, *.safetensors and tokenizer.json.
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// What to answer; may be given several times.
    #[arg(long, required = true)]
    pub prompt: Vec<String>,
    /// Axes of the device mesh, outermost first: fsdp=2,tp=2. One device without it.
    #[arg(long, value_name = "AXES")]
    pub mesh: Option<MeshShape>,
    /// 0 takes the likeliest token; higher values draw more freely.
    #[arg(long, default_value_t = 0.0, value_parser = temperature)]
    pub temperature: f64,
    /// The longest answer, in tokens.
    #[arg(long, default_value_t = 64, value_parser = positive)]
    pub max_new_tokens: usize,
    /// Seed of the draws.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

/// What to explain.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// The model and the devices.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Write the plan here.
    #[arg(long, value_name = "FILE.json")]
    pub json: Option<PathBuf>,
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_string()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("{error}")),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        Ok(_) => Err("must be above 0".to_string()),
        Err(error) => Err(format!("{error}")),
    }
}

fn temperature(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(temperature) if temperature.is_finite() && temperature >= 0.0 => Ok(temperature),
        Ok(_) => Err("must be at least 0".to_string()),
        Err(error) => Err(format!("{error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_bad_value_names_its_option() {
        let error = |args: &[&str]| Cli::try_parse_from(args).unwrap_err().to_string();
        assert!(error(&["llama", "pretrain", "--mesh", "tp=0"]).contains("axis `tp` has size 0"));
        assert!(error(&["llama", "pretrain", "--batch", "0"]).contains("--batch"));
        assert!(error(&["llama", "pretrain", "--size", "9b"]).contains("405b"));
        let policy = ["llama", "pretrain", "--activation-checkpoint", "every=0"];
        assert!(error(&policy).contains("every=N with N of at least 1"));
        assert!(error(&["llama", "generate", "--prompt", "a"]).contains("--model"));
    }
}
