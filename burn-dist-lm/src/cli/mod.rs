//! The command line.

mod config;
mod convert;
mod data;

pub use config::SECTIONS;
pub use convert::ConvertArgs;
pub use data::{ByteSize, DataArgs};

use std::path::PathBuf;

use anyhow::Context;
use burn_dist::clock::Hardware;
use burn_dist::explanation::{AskedValue, PASSES};
use burn_dist::train::config::Resolved;
use burn_dist::train::files;
use burn_dist::trainer::args::numbers::{at_least_0, positive};
use burn_dist::trainer::args::{
    AxesArgs, CheckpointArgs, ForwardArgs, MeshArgs, OptimizerArgs, PipelineArgs, RunArgs,
    ScheduleArgs,
};
use clap::{ArgGroup, Args, Parser, Subcommand};

use crate::Program;
use crate::data::tokenizer::{PLACE, QUESTION};
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
    Pretrain(TrainArgs),
    /// Train on questions and answers, then answer questions the model has not seen.
    Finetune(FinetuneArgs),
    /// Go on with a text, or answer a question (--chat, --template), with a model from a folder.
    Generate(GenerateArgs),
    /// Show what a training step does on the mesh, without running it.
    Explain(ExplainArgs),
    /// Show how long a training step takes on modelled hardware, without running it.
    Simulate(SimulateArgs),
    /// Convert weights between a checkpoint and a folder as Hugging Face lays it out, without a mesh.
    Convert(ConvertArgs),
    /// Show the configuration file that options of a run make: with --config, a file with the command line's over it.
    Config(FinetuneArgs),
    /// Show the ranks along each axis of a mesh, and the links that the axes use; of a pipeline, which part of the
    /// model is on which ranks.
    Mesh(ShowMeshArgs),
}

/// A mesh to show.
#[derive(Debug, Args)]
pub struct ShowMeshArgs {
    /// The axes.
    #[command(flatten)]
    pub axes: AxesArgs,
    /// How a pipeline is scheduled.
    #[command(flatten)]
    pub pipeline: PipelineArgs,
    /// Shape of the model whose stages are shown.
    #[arg(long, value_enum, default_value = "tiny")]
    pub size: Size,
}

/// The model and the devices.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// The devices.
    #[command(flatten)]
    pub devices: MeshArgs,
    /// Shape of a model that is made here.
    #[arg(long, value_enum, default_value = "tiny", conflicts_with = "model")]
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
    /// Microbatches that the rows of a step are cut into, one forward and backward pass each: less memory, the same
    /// gradients to rounding. Ranks along pp work on different ones at a time.
    #[arg(long, visible_alias = "microbatches", value_name = "N", default_value_t = 1, value_parser = positive)]
    pub accumulate: usize,
    /// Let every rank compute all rows where a microbatch has fewer than there are ranks along dp and fsdp.
    #[arg(long)]
    pub repeat_rows: bool,
}

/// How to train and what to keep.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("kept").multiple(true))]
pub struct TrainArgs {
    /// The model and the devices.
    #[command(flatten)]
    pub model: ModelArgs,
    /// How long, and at which rates.
    #[command(flatten)]
    pub schedule: ScheduleArgs,
    /// The optimizer.
    #[command(flatten)]
    pub optimizer: OptimizerArgs,
    /// The data.
    #[command(flatten)]
    pub data: DataArgs,
    /// Write the run's figures here; by default, with --run, into its report.json.
    #[arg(long, value_name = "FILE.json")]
    pub json: Option<PathBuf>,
    /// Write what every rank did when here, for ui.perfetto.dev or chrome://tracing: as many of the first steps as
    /// 262,144 events a rank hold. Of several processes each writes its own ranks, process 1 to FILE-1.json, on its own
    /// machine, and counts time from when it made the mesh.
    #[arg(long, value_name = "FILE.json")]
    pub trace: Option<PathBuf>,
    /// On a mesh with stages, draw as SVG which microbatch each rank works on when: as the clock says for an H100, and
    /// as the last step did.
    #[arg(long, value_name = "FILE.svg", value_parser = svg)]
    pub chart: Option<PathBuf>,
    /// Draw the loss curve here, as PNG or SVG by the file's name; loss.png by default, in the folder of --run if there
    /// is one.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Draw no loss curve.
    #[arg(long, conflicts_with = "plot")]
    pub no_plot: bool,
    /// Show what the plan predicts of each rank's memory before the run, and draw here what the fullest rank holds over
    /// a step, as PNG or SVG by the file's name. Of several processes the one that runs this rank draws it.
    #[arg(long, value_name = "FILE")]
    pub memory: Option<PathBuf>,
    /// Write the trained model to this folder, in the form that --model reads: with the types and settings of the model
    /// that it came from.
    #[arg(long, value_name = "DIR")]
    pub save: Option<PathBuf>,
    /// Run even if the plan says that more memory is needed than is left.
    #[arg(long)]
    pub force: bool,
    /// The checkpoints.
    #[command(flatten)]
    pub checkpoints: CheckpointArgs,
    /// The folder of the run.
    #[command(flatten)]
    pub run: RunArgs,
    /// All of them, as a configuration file.
    #[arg(skip)]
    pub resolved: Resolved,
    /// The program that was started.
    #[arg(skip)]
    pub program: Program,
}

/// How to fine-tune.
#[derive(Debug, Args)]
pub struct FinetuneArgs {
    /// How to train and what to keep.
    #[command(flatten)]
    pub train: TrainArgs,
    /// Steps of the base model that is made first: 50, or 0 with --data or --model.
    #[arg(long)]
    pub base_steps: Option<usize>,
    /// Unseen questions to ask at the end.
    #[arg(long, default_value_t = 100)]
    pub questions: usize,
}

/// The options of `generate`.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// A folder with config.json, *.safetensors and tokenizer.json.
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,
    /// The text to go on with, or with --chat or --template, the question to answer; may be repeated.
    #[arg(long, required = true)]
    pub prompt: Vec<String>,
    /// Ask as a user, in the form in which the model was taught to answer: of Llama 3's instruction-tuned models, or of
    /// those that finetune has made from scratch.
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

/// The devices that ranks stand for.
#[derive(Debug, Clone, Default, Args)]
pub struct HardwareArgs {
    /// The devices: a100, h100, h100-hbm2e-500w or h200, eight to a node; simulate takes h100 by default.
    #[arg(long, value_name = "NAME", value_parser = Hardware::preset)]
    pub hardware: Option<Hardware>,
    /// A file that describes other devices, in the form of docs/simulator.md.
    #[arg(long, value_name = "FILE.toml", conflicts_with = "hardware")]
    pub hardware_file: Option<PathBuf>,
}

/// No description of devices is longer.
const HARDWARE_BYTES_MAX: u64 = 512 << 10;

impl HardwareArgs {
    /// Returns the devices, if the command line names some.
    ///
    /// # Errors
    /// If the file cannot be read, or describes none.
    pub fn read(&self) -> anyhow::Result<Option<Hardware>> {
        let Some(path) = &self.hardware_file else {
            return Ok(self.hardware.clone());
        };
        let text = files::read_text(path, HARDWARE_BYTES_MAX);
        let text = text.with_context(|| format!("cannot read {}", path.display()))?;
        let hardware = Hardware::from_toml(&text).with_context(|| path.display().to_string())?;
        Ok(Some(hardware))
    }
}

/// The options of `explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// The model and the devices.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Devices whose memory the step has to fit into; any by default.
    #[command(flatten)]
    pub hardware: HardwareArgs,
    /// Write the plan here.
    #[arg(long, value_name = "FILE.json")]
    pub json: Option<PathBuf>,
    /// Print what there is of a step after a pass of the planner: layers, precision, float8, propagate, checkpoint,
    /// redundancy, staging, schedule, hierarchy, async_tp, lower, offload or lifetimes.
    #[arg(long, value_name = "PASS", value_parser = pass)]
    pub after: Option<&'static str>,
    /// Print why the operation that makes a value is split as it is, and what other splits would cost: a value of a
    /// step as it is named with --after, as in %12 (float8) or s34 (propagate).
    #[arg(long, value_name = "VALUE")]
    pub why: Option<AskedValue>,
}

/// The options of `simulate`.
#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// The model and the devices.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Rows of a training step for each group of ranks that has its own rows: for each rank of dp x fsdp.
    #[arg(long, value_name = "N", value_parser = positive, conflicts_with = "batch")]
    pub batch_per_rank: Option<usize>,
    /// The devices; h100 by default.
    #[command(flatten)]
    pub hardware: HardwareArgs,
    /// Run chains of operations between products as one kernel, as a compiler makes it; burn-dist runs them one by one.
    #[arg(long)]
    pub compile: bool,
    /// Plan at most so many microbatches of a step: one that does what the one before it does stands for the others. By
    /// default 5, or all where none stands for others.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub plan_microbatches: Option<usize>,
    /// On a mesh with stages, draw as SVG which microbatch each rank works on when.
    #[arg(long, value_name = "FILE.svg", value_parser = svg)]
    pub chart: Option<PathBuf>,
    /// Print the figures as one line of JSON instead.
    #[arg(long)]
    pub json: bool,
}

fn svg(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension().is_some_and(|extension| extension == "svg") {
        true => Ok(path),
        false => Err("charts are drawn as .svg".to_string()),
    }
}

fn pass(text: &str) -> Result<&'static str, String> {
    let mut names = PASSES.iter().map(|(name, _)| *name);
    names.find(|name| *name == text).ok_or_else(|| {
        let names: Vec<String> = PASSES
            .iter()
            .map(|(name, what)| format!("  {name:<12} {what}"))
            .collect();
        format!(
            "there is no such pass; the passes are\n{}",
            names.join("\n")
        )
    })
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
