//! The options in sections, as a configuration file has them.

use burn_dist::train::config::{Key, Section};
use burn_dist::trainer::args::TrainArgs;
use burn_dist::trainer::command_line::CommandLine;
use burn_dist::trainer::sections::{
    CHECKPOINT, CONVERT, EVALUATE, EXPLAIN, LORA, MESH, METRICS, OPTIMIZER, OUTPUT, PIPELINE,
    POLICY, RUN, SCHEDULE, SEARCH, SIMULATE, TEXT_VALIDATION, TEXTS,
};

use super::{Cli, Command};

/// Where each option stands in a file.
pub const SECTIONS: &[Section] = &[
    RUN,
    Section::new(
        "model",
        "The model",
        &[
            Key::of("size"),
            Key::named("folder", "model"),
            Key::of("save"),
            Key::of("save-merged"),
            Key::of("adapters"),
        ],
    ),
    LORA,
    MESH,
    POLICY,
    PIPELINE,
    TEXTS,
    OPTIMIZER,
    SCHEDULE,
    Section::new(
        "finetune",
        "Fine-tuning",
        &[Key::of("base-steps"), Key::of("questions")],
    ),
    CHECKPOINT,
    METRICS,
    TEXT_VALIDATION,
    OUTPUT,
    Section::new(
        "generate",
        "Answers",
        &[
            Key::of("prompt"),
            Key::of("chat"),
            Key::of("template"),
            Key::of("temperature"),
            Key::of("max-new-tokens"),
        ],
    )
    .of_command("generate"),
    CONVERT,
    // The rest of what `convert` is about.
    Section::new("convert", "What is converted", &[Key::of("merge")]).of_command("convert"),
    EVALUATE,
    // The rest of what `evaluate` is about.
    Section::new(
        "evaluate",
        "What is evaluated, and shown",
        &[Key::of("responses")],
    )
    .of_command("evaluate"),
    EXPLAIN,
    SIMULATE,
    SEARCH,
];

/// Options of the trainer whose defaults are those of a command here.
const HELP: &[(&str, &str)] = &[
    (
        "mesh",
        "Axes of the device mesh, outermost first, of pp, dp, fsdp, cp and tp: fsdp=2,tp=2; 1 for one device. By default \
         finetune takes fsdp=2,tp=2, every other command one device",
    ),
    (
        "steps",
        "Training steps: 20 for pretrain, 750 for finetune by default",
    ),
    (
        "lr",
        "The highest learning rate: 2e-3 for tiny, 3e-4 for the others, 2e-5 for a model from a folder, 2e-4 for \
         adapters",
    ),
];

impl CommandLine for Cli {
    const HELP: &'static [(&'static str, &'static str)] = HELP;

    fn sections() -> &'static [Section] {
        SECTIONS
    }

    fn trains(&mut self) -> Option<&mut TrainArgs> {
        match &mut self.command {
            Command::Pretrain(args) => Some(&mut args.train),
            Command::Finetune(args) | Command::Config(args) => Some(&mut args.training.train),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use burn_dist::train::config::{ConfigError, Resolved};
    use clap::{Arg, ArgAction};
    use proptest::prelude::*;

    use super::*;
    use crate::PROGRAM;

    #[test]
    fn every_option_stands_in_a_section() {
        assert_eq!(Cli::config(PROGRAM).faults(), Vec::<String>::new());
        Cli::config(PROGRAM).command().clone().debug_assert();
    }

    /// Values that an option takes.
    fn samples(arg: &Arg) -> Vec<&'static str> {
        let known: &[&str] = match arg.get_long().unwrap() {
            "mesh" => &["1", "fsdp=2,tp=2", "pp=2,dp=3"],
            "ranks-per-node" => &["4", "4+2"],
            "backend" => &["flex"],
            "gpu-transport" => &["workspace", "host"],
            "link" => &[
                "latency_us=20,gbps=10",
                "tp:latency_us=5,gbps=100;fsdp:latency_us=20,gbps=10",
            ],
            "float8" => &["tensorwise", "rowwise,gather=off", "blockwise128"],
            "schedule" => &["1f1b", "zb-v", "auto", "auto=1000000"],
            "param-dtype" | "reduce-dtype" => &["f32", "bf16", "f16"],
            "base-dtype" => &["f32", "bf16", "f16", "int8"],
            "context" => &["ring", "gather", "auto"],
            "async-tp" => &["on", "off"],
            "regions" => &["on", "off", "flex"],
            "offload" => &["params,optimizer", "optimizer,host=1024"],
            "activation-checkpoint" => &["full", "every=2", "selective", "bytes=1000"],
            "reshard" => &["always", "every=3", "never"],
            "accumulate-reduce" => &["step", "microbatch", "window"],
            "chart" => &["a b.svg"],
            "hardware" => &["a100", "h100", "h200"],
            "lora-targets" => &["all-linear", "q_proj,v_proj", "layers.*.mlp.*"],
            "template" => &["{prompt} = \"?\"\n\tA: "],
            "after" => &["lower", "propagate"],
            "why" => &["%12", "s34"],
            "data" | "validate" => &[
                "a.jsonl",
                "b c.parquet,weight=2,text=body",
                "d.txt,split=line",
            ],
            "packing" => &["pack", "pad", "stream"],
            "longer" => &["split", "drop", "refuse"],
            "resume" => &["auto", "60"],
            "shuffle-buffer" => &["64KiB", "1GiB"],
            _ => &[],
        };
        // Otherwise what the type takes.
        let any = [
            "0",
            "7",
            "007",
            "18446744073709551615",
            "0.25",
            "1e-3",
            ".5",
            "it's a \"file\" \\ with ü.json",
            "two\nlines",
        ];
        let values = arg.get_possible_values();
        let names = values
            .iter()
            .map(|value| &*value.get_name().to_string().leak());
        let taken = |text: &&str| {
            let alone = arg.clone().required(false);
            let reset = clap::builder::Resettable::<clap::Id>::Reset;
            let alone = alone.requires(reset.clone()).conflicts_with(reset);
            let command = clap::Command::new("one").no_binary_name(true).arg(alone);
            let argument = argument(arg, text);
            command.try_get_matches_from([argument]).is_ok()
        };
        let some = names.chain(known.iter().copied()).chain(any);
        some.filter(taken).collect()
    }

    fn argument(arg: &Arg, text: &str) -> String {
        match arg.get_action() {
            ArgAction::SetTrue => format!("--{}", arg.get_long().unwrap()),
            _ => format!("--{}={text}", arg.get_long().unwrap()),
        }
    }

    /// A command line of `name`: options as they are drawn, unless another one excludes them or they need one.
    fn line(name: &str, draws: &[(bool, usize)]) -> Vec<String> {
        let config = Cli::config(PROGRAM);
        let command = config.command().find_subcommand(name).unwrap();
        let mut line = vec!["llama".to_string(), name.to_string()];
        let required = |arg: &&Arg| arg.is_required_set();
        let options = command
            .get_arguments()
            .filter(|arg| !["config", "unset", "help"].contains(&arg.get_long().unwrap()));
        let (first, later): (Vec<&Arg>, Vec<&Arg>) = options.partition(required);
        line.extend(first.iter().map(|arg| argument(arg, "two\nlines = ü")));
        // Twice, as some need what comes later.
        for _ in 0..2 {
            let given = later
                .iter()
                .zip(draws)
                .filter(|(_, (is_given, _))| *is_given);
            for (arg, (_, draw)) in given {
                let samples = samples(arg);
                assert!(!samples.is_empty(), "no sample of {arg}");
                let option = argument(arg, samples[draw % samples.len()]);
                if line.contains(&option) {
                    continue;
                }
                let mut more = line.clone();
                more.push(option);
                if Cli::try_read(PROGRAM, &more).is_ok() {
                    line = more;
                }
            }
        }
        line
    }

    /// Returns the arguments of a command, without the file that says the same.
    fn arguments(args: &[&str]) -> Result<String, ConfigError> {
        let mut cli = Cli::try_read(PROGRAM, args)?;
        if let Some(args) = cli.trains() {
            args.resolved = Resolved::default();
        }
        Ok(format!("{:?}", cli.command))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn a_resolved_file_gives_the_same_arguments(
            draws in proptest::collection::vec((proptest::bool::weighted(0.4), any::<usize>()), 90),
            name in prop_oneof![
                Just("pretrain"), Just("finetune"), Just("generate"), Just("evaluate"), Just("explain"), Just("simulate"),
                Just("mesh"),
            ],
        ) {
            let line = line(name, &draws);
            let read = Cli::config(PROGRAM).try_read(&line).unwrap();
            let text = read.resolved.to_toml("llama").unwrap();
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("run.toml");
            std::fs::write(&file, &text).unwrap();
            let line: Vec<&str> = line.iter().map(String::as_str).collect();
            let again = arguments(&["llama", name, "--config", file.to_str().unwrap()]);
            let again = again.map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
            prop_assert_eq!(again, arguments(&line).unwrap(), "{}", text);
        }
    }

    fn ready(name: &str) -> String {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs");
        folder.join(name).to_str().unwrap().to_string()
    }

    #[test]
    fn ready_files_are_what_their_names_say() {
        for (name, size, ranks, tokens) in [
            ("s.toml", crate::model::Size::S, 4, 8 * 256),
            ("8b.toml", crate::model::Size::B8, 8, 8 * 8192),
            ("70b.toml", crate::model::Size::B70, 64, 64 * 8192),
            ("405b.toml", crate::model::Size::B405, 128, 32 * 8192),
        ] {
            let cli = Cli::try_read(PROGRAM, ["llama", "pretrain", "--config", &ready(name)]);
            let Command::Pretrain(args) = cli.unwrap_or_else(|error| panic!("{error}")).command
            else {
                unreachable!("it was asked for");
            };
            let model = &args.model;
            let step = &model.step;
            let mesh = step.devices.forward.axes.mesh.as_ref().unwrap();
            assert_eq!((model.size, mesh.num_ranks()), (size, ranks), "{name}");
            let (batch, seq) = (step.batch.unwrap(), model.seq.unwrap());
            assert_eq!(batch * seq, tokens, "{name}");
            let schedule = &args.train.schedule;
            assert!(schedule.lr_warmup.unwrap() < schedule.steps.unwrap());
            // It serves the others too.
            for command in ["explain", "simulate", "mesh", "config", "finetune"] {
                Cli::try_read(PROGRAM, ["llama", command, "--config", &ready(name)])
                    .unwrap_or_else(|error| panic!("{command}: {error}"));
            }
        }
    }
}
