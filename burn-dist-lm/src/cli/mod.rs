//! The command line.

mod config;

pub use config::SECTIONS;

use std::path::PathBuf;

use burn_dist::train::tokenizer::{PLACE, QUESTION};
use burn_dist::trainer::args::numbers::{at_least_0, positive};
use burn_dist::trainer::args::{
    ConvertArgs, EvaluateArgs, ExplainArgs, ForwardArgs, SearchArgs, ShowMeshArgs, SimulateArgs,
    StepArgs, TextArgs, TrainArgs,
};
use burn_dist::trainer::lora::LoraArgs;
use clap::{Args, Parser, Subcommand};

use crate::model::Size;

/// Language models on a mesh of devices.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train from scratch, on random tokens or on the texts of a file; a speed measurement without one.
    #[command(visible_alias = "train")]
    Pretrain(TrainingArgs),
    /// Train on questions and answers, then answer questions the model has not seen.
    Finetune(FinetuneArgs),
    /// Ask for the loss of a model, of a checkpoint or of a folder, on texts that it has not seen; nothing is trained.
    Evaluate(EvaluationArgs),
    /// Go on with a text, or answer a question (--chat, --template), with a model from a folder.
    Generate(GenerateArgs),
    /// Show what a training step does on the mesh, without running it.
    Explain {
        /// The model and the devices.
        #[command(flatten)]
        model: ModelArgs,
        /// Options of what is shown.
        #[command(flatten)]
        args: ExplainArgs,
    },
    /// Show how long a training step takes on modelled hardware, without running it.
    Simulate {
        /// The model and the devices.
        #[command(flatten)]
        model: ModelArgs,
        /// The modelled hardware, and what is shown.
        #[command(flatten)]
        args: SimulateArgs,
    },
    /// Find the mesh that trains a model fastest on modelled hardware, without running it.
    Plan {
        /// The model, and all that is not searched.
        #[command(flatten)]
        model: ModelArgs,
        /// The devices, and what is shown.
        #[command(flatten)]
        args: SearchArgs,
    },
    /// Convert weights between a checkpoint and a folder as Hugging Face lays it out, or merge adapters into those of a
    /// folder, without a mesh.
    Convert(ConvertModelArgs),
    /// Show the configuration file that options of a run make: with --config, a file with the command line's over it.
    Config(FinetuneArgs),
    /// Show the ranks along each axis of a mesh, and the links that the axes use; of a pipeline, which part of the
    /// model is on which ranks.
    Mesh {
        /// The axes, and how a pipeline is scheduled.
        #[command(flatten)]
        args: ShowMeshArgs,
        /// Shape of the model whose stages are shown.
        #[arg(long, value_enum, default_value = "tiny")]
        size: Size,
    },
}

/// The model and the devices.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// The devices, and the rows of a step.
    #[command(flatten)]
    pub step: StepArgs,
    /// Shape of a model that is made here.
    #[arg(long, value_enum, default_value = "tiny", conflicts_with = "model")]
    pub size: Size,
    /// A folder with config.json, *.safetensors and tokenizer.json, as Hugging Face lays it out; sets the shape.
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// Tokens of a row; the size's own by default.
    #[arg(long, value_parser = positive)]
    pub seq: Option<usize>,
    /// Adapters beside the weights.
    #[command(flatten)]
    pub lora: LoraArgs,
}

/// The options of `convert`.
#[derive(Debug, Args)]
pub struct ConvertModelArgs {
    /// A conversion.
    #[command(flatten)]
    pub convert: ConvertArgs,
    /// A folder of adapters, as PEFT lays it out, which are merged into the weights of the folder FROM: TO becomes a
    /// folder of a model without adapters.
    #[arg(long, value_name = "DIR")]
    pub merge: Option<PathBuf>,
}

/// How to train and what to keep.
#[derive(Debug, Args)]
pub struct TrainingArgs {
    /// The model and the devices.
    #[command(flatten)]
    pub model: ModelArgs,
    /// The data.
    #[command(flatten)]
    pub data: TextArgs,
    /// How to train, and what else to keep.
    #[command(flatten)]
    pub train: TrainArgs,
    /// Write the trained model to this folder, in the form that --model reads: with the types and settings of the model
    /// that it came from.
    #[arg(long, value_name = "DIR")]
    pub save: Option<PathBuf>,
    /// Write adapters merged into the weights, as a model, instead of by themselves in the form that --adapters reads.
    #[arg(long, requires = "save")]
    pub save_merged: bool,
}

/// How to fine-tune.
#[derive(Debug, Args)]
pub struct FinetuneArgs {
    /// How to train and what to keep.
    #[command(flatten)]
    pub training: TrainingArgs,
    /// Steps of the base model that is made first: 50, or 0 with --data or --model.
    #[arg(long)]
    pub base_steps: Option<usize>,
    /// Unseen questions to ask at the end.
    #[arg(long, default_value_t = 100)]
    pub questions: usize,
}

/// The options of `evaluate`: the files of --validate are evaluated, those of --data without it.
#[derive(Debug, Args)]
pub struct EvaluationArgs {
    /// The model and the devices.
    #[command(flatten)]
    pub model: ModelArgs,
    /// The data.
    #[command(flatten)]
    pub data: TextArgs,
    /// Count responses alone, as finetune learns them; so it is for a checkpoint of finetune.
    #[arg(long)]
    pub responses: bool,
    /// The weights, and what is shown.
    #[command(flatten)]
    pub args: EvaluateArgs,
}

/// The options of `generate`.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// A folder with config.json, *.safetensors and tokenizer.json.
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// A folder with adapters for that model, as PEFT lays it out.
    #[arg(long, value_name = "DIR")]
    pub adapters: Option<PathBuf>,
    /// The text to go on with, or with --chat or --template, the question to answer; may be repeated.
    #[arg(long)]
    pub prompt: Vec<String>,
    /// Ask as a user, in the form of the model's chat template; without one, of Llama 3's instruction-tuned models, or
    /// of those that finetune has made from scratch. Without a prompt, each line of standard input is a message.
    #[arg(long)]
    pub chat: bool,
    /// Put the prompt into this text, in place of {prompt}; without a text, into "Question: {prompt}\nAnswer:", by
    /// which finetune teaches base models.
    #[arg(
        long,
        value_name = "TEXT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = QUESTION,
        value_parser = template,
        conflicts_with = "chat"
    )]
    pub template: Option<String>,
    /// The devices.
    #[command(flatten)]
    pub devices: ForwardArgs,
    /// 0 takes the likeliest token; higher values draw more freely.
    #[arg(long, default_value_t = 0.0, value_parser = at_least_0::<f64>)]
    pub temperature: f64,
    /// The longest answer, in tokens.
    #[arg(long, default_value_t = 64, value_parser = positive)]
    pub max_new_tokens: usize,
    /// Run even if the plan says that more memory is needed than is left.
    #[arg(long)]
    pub force: bool,
    /// Seed of the draws.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

/// A template has a place for the prompt.
fn template(text: &str) -> Result<String, String> {
    match text.contains(PLACE) {
        true => Ok(text.to_string()),
        false => Err(format!(
            "there is no {PLACE} in it, where the prompt belongs"
        )),
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
    fn help_lists_what_applies() {
        let command = Cli::command();
        let options = |name: &str| -> Vec<String> {
            let command = command.find_subcommand(name).expect("a command");
            let options = command.get_arguments().filter_map(|arg| arg.get_long());
            options.map(str::to_string).collect()
        };
        let shown = [
            "mesh",
            "ranks-per-node",
            "schedule",
            "stages-per-rank",
            "stages-by",
            "size",
        ];
        assert_eq!(options("mesh"), shown);
        let generate = options("generate");
        for option in ["mesh", "strategy", "chat", "template", "force"] {
            assert!(generate.iter().any(|found| found == option), "{generate:?}");
        }
        // Nothing that only training has.
        let training = [
            "activation-checkpoint",
            "reshard",
            "reduce-dtype",
            "accumulate",
            "accumulate-reduce",
            "schedule",
            "batch",
        ];
        for option in training {
            assert!(
                !generate.iter().any(|found| found == option),
                "{generate:?}"
            );
            assert!(options("explain").iter().any(|found| found == option));
        }
    }

    #[test]
    fn a_bad_value_names_its_option() {
        let error = |args: &[&str]| Cli::try_parse_from(args).unwrap_err().to_string();
        assert!(error(&["llama", "pretrain", "--mesh", "tp=0"]).contains("axis `tp` has size 0"));
        assert!(error(&["llama", "pretrain", "--mesh", ""]).contains("there are no axes in it"));
        let both = ["llama", "pretrain", "--size", "tiny", "--model", "folder"];
        assert!(error(&both).contains("'--size <SIZE>' cannot be used with '--model <DIR>'"));
        assert!(Cli::try_parse_from(["llama", "pretrain", "--model", "folder"]).is_ok());
        assert!(error(&["llama", "pretrain", "--batch", "0"]).contains("--batch"));
        assert!(error(&["llama", "pretrain", "--size", "9b"]).contains("405b"));
        assert!(error(&["llama", "explain", "--link", "gbps=1"]).contains("latency_us is missing"));
        assert!(error(&["llama", "mesh", "--ranks-per-node", "0"]).contains("how many ranks"));
        let policy = ["llama", "pretrain", "--activation-checkpoint", "every=0"];
        assert!(error(&policy).contains("every=N with N of at least 1"));
        assert!(error(&["llama", "generate", "--prompt", "a"]).contains("--model"));
        let generate = ["llama", "generate", "--model", "m", "--prompt", "a"];
        let with = |more: &[&str]| error(&[&generate[..], more].concat());
        assert!(with(&["--template=Q:"]).contains("no {prompt} in it"));
        assert!(with(&["--template", "--chat"]).contains("cannot be used with"));
    }
}
