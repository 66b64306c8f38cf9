//! Files and command lines of a small program.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use proptest::prelude::*;

use super::*;

const SECTIONS: &[Section] = &[
    Section::new(
        "model",
        "The model",
        &[Key::of("size"), Key::named("folder", "model")],
    ),
    Section::new(
        "optimizer",
        "The optimizer",
        &[Key::of("lr"), Key::of("clip"), Key::of("steps")],
    ),
    Section::new(
        "data",
        "The data",
        &[
            Key::named("files", "data"),
            Key::of("shuffle"),
            Key::of("seed"),
        ],
    ),
    Section::new(
        "checkpoint",
        "Checkpoints",
        &[Key::named("folder", "checkpoint"), Key::of("every")],
    ),
    Section::new("output", "What is written", &[Key::of("json")]),
    Section::new(
        "show",
        "What is shown",
        &[Key::of("json"), Key::of("after")],
    )
    .of_command("show"),
];

fn shares(command: Command) -> Command {
    command
        .arg(
            Arg::new("size")
                .long("size")
                .default_value("small")
                .value_parser(["small", "large"])
                .conflicts_with("model"),
        )
        .arg(
            Arg::new("model")
                .long("model")
                .value_parser(value_parser!(PathBuf)),
        )
}

fn config() -> Config {
    let number = |name| Arg::new(name).long(name).value_parser(value_parser!(f64));
    let train = shares(Command::new("train"))
        .arg(number("lr").required(true).help("The rate"))
        .arg(number("clip"))
        .arg(
            Arg::new("steps")
                .long("steps")
                .default_value("20")
                .value_parser(value_parser!(u32).range(1..)),
        )
        .arg(Arg::new("data").long("data").action(ArgAction::Append))
        .arg(
            Arg::new("shuffle")
                .long("shuffle")
                .action(ArgAction::SetTrue),
        )
        .arg(
            Arg::new("seed")
                .long("seed")
                .default_value("0")
                .value_parser(value_parser!(u64)),
        )
        .arg(
            Arg::new("checkpoint")
                .long("checkpoint")
                .value_parser(value_parser!(PathBuf)),
        )
        .arg(
            Arg::new("every")
                .long("every")
                .default_value("100")
                .requires("checkpoint")
                .value_parser(value_parser!(usize)),
        )
        .arg(
            Arg::new("json")
                .long("json")
                .value_parser(value_parser!(PathBuf)),
        );
    let show = shares(Command::new("show"))
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue))
        .arg(Arg::new("after").long("after").value_parser(passes));
    Config::new(
        Command::new("program")
            .subcommand_required(true)
            .subcommand(train)
            .subcommand(show),
        SECTIONS,
    )
}

/// Its name, or its number.
#[derive(Debug, Clone, PartialEq)]
struct Pass(usize);

fn passes(text: &str) -> Result<Pass, String> {
    let unknown = |_| "there is no such pass".to_string();
    match text {
        "precision" => Ok(Pass(0)),
        _ => text.parse().map(Pass).map_err(unknown),
    }
}

/// Reads a command line with a file of this text; problems without the name of the file.
fn try_read(args: &[&str], text: &str) -> Result<Read, String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.toml");
    std::fs::write(&file, text).unwrap();
    let args = ["program"].iter().chain(args).map(|arg| arg.to_string());
    let args = args.chain(["--config".to_string(), file.display().to_string()]);
    config().try_read(args).map_err(|error| {
        let folder = format!("{}/", folder.path().display());
        error.to_string().replace(&folder, "")
    })
}

fn train(args: &[&str], text: &str) -> ArgMatches {
    let args = [&["train"], args].concat();
    let read = try_read(&args, text).unwrap_or_else(|error| panic!("{error}"));
    read.matches.subcommand().unwrap().1.clone()
}

fn refused(args: &[&str], text: &str) -> String {
    try_read(args, text).map(|_| ()).unwrap_err()
}

/// Every option of a command that was passed or has a default, with its texts.
fn all(matches: &ArgMatches) -> Vec<(String, Vec<String>)> {
    let (_, matches) = matches.subcommand().unwrap();
    let ids = matches.ids().map(|id| id.as_str());
    let ids = ids.filter(|id| !["config", "unset"].contains(id));
    let texts = |id| {
        let raw = matches.get_raw(id).into_iter().flatten();
        raw.map(|text| text.to_str().unwrap().to_string()).collect()
    };
    let mut all: Vec<_> = ids.map(|id| (id.to_string(), texts(id))).collect();
    all.sort();
    all
}

#[test]
fn all_options_have_a_place_and_what_has_none_is_named() {
    config().command().clone().debug_assert();
    assert_eq!(config().faults(), Vec::<String>::new());
    const FEW: &[Section] = &[
        Section::new("model", "The model", &[Key::of("size"), Key::of("sise")]),
        Section::new("model", "The model", &[Key::of("size"), Key::of("after")]),
    ];
    let faults = Config::new(config().command().clone(), FEW).faults();
    assert!(
        faults.contains(&"no command has an option for model.sise".to_string()),
        "{faults:?}"
    );
    assert!(faults.contains(&"model.size stands twice".to_string()));
    assert!(faults.contains(&"train --lr stands in no section".to_string()));
    assert!(
        !faults
            .iter()
            .any(|fault| fault.contains("after") || fault.contains("--config"))
    );
}

#[test]
fn the_command_line_goes_over_the_file_and_the_file_over_defaults() {
    let file = "[optimizer]\nlr = 1e-3\nsteps = 0x10\n[data]\nfiles = ['a', 'b']\nshuffle = true\nseed = 1_8446_744_073_709_551_615";
    let file = file.replace("1_8446_", "18_446_");
    let read = train(&["--lr", "2"], &file);
    assert_eq!(read.get_one("lr"), Some(&2.0));
    assert_eq!(read.get_one("steps"), Some(&16_u32));
    assert_eq!(read.get_one("seed"), Some(&u64::MAX));
    assert_eq!(read.get_one::<String>("size").unwrap(), "small");
    assert!(read.get_flag("shuffle"));
    let files = |read: &ArgMatches| -> Vec<String> {
        read.get_many("data")
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    };
    assert_eq!(files(&read), ["a", "b"]);
    // All values of an option, not one more.
    assert_eq!(files(&train(&["--data", "c"], &file)), ["c"]);
    let without = ["--unset", "data.files", "--unset", "data.shuffle"];
    let read = train(&without, &file);
    assert_eq!(files(&read), [""; 0]);
    assert!(!read.get_flag("shuffle"));
    // A number is enough where a number with a fraction may stand.
    assert_eq!(train(&[], "optimizer.lr = 1").get_one("lr"), Some(&1.0));
}

#[test]
fn what_the_command_line_excludes_in_the_file_yields() {
    let rate = "[optimizer]\nlr = 1\n";
    let read = train(&["--model", "m"], &format!("{rate}[model]\nsize = 'large'"));
    assert!(
        read.contains_id("model")
            && read
                .value_source("size")
                .is_none_or(|source| { source == clap::parser::ValueSource::DefaultValue })
    );
    let read = train(
        &["--size", "large"],
        &format!("{rate}[model]\nfolder = 'm'"),
    );
    assert!(!read.contains_id("model"));
    // On the command line itself it is an error, as ever.
    let error = refused(&["train", "--size", "large", "--model", "m"], rate);
    assert!(error.contains("cannot be used with"), "{error}");
}

#[test]
fn problems_have_their_places_and_what_was_meant() {
    let told = |text: &str, expected: &str| {
        assert_eq!(refused(&["train"], text), expected, "{text}");
    };
    told(
        "[model]\nsize = 'large\n",
        "run.toml:2:14: invalid literal string, expected `'`",
    );
    told(
        "[modle]\n",
        "run.toml:1:2: there is no section [modle]; did you mean `model`?",
    );
    told(
        "[optimizer]\n# rate\n  lrr = 1",
        "run.toml:3:3: there is no key `lrr` in [optimizer]; did you mean `lr`?",
    );
    told(
        "[data]\nlr = 1",
        "run.toml:2:1: there is no key `lr` in [data]; did you mean `optimizer.lr`?",
    );
    told(
        "[data]\ndata = ['a']",
        "run.toml:2:1: there is no key `data` in [data]; did you mean `files`?",
    );
    told(
        "[output]\nxyz = 1",
        "run.toml:2:1: there is no key `xyz` in [output]; there are json",
    );
    told(
        "lr = 1",
        "run.toml:1:1: `lr` stands in no section; did you mean `optimizer.lr`?",
    );
    told(
        "[optimizer]\nlr = '1'",
        "run.toml:2:6: `optimizer.lr` takes a number, and this is a string",
    );
    told(
        "[optimizer]\nsteps = 1.0",
        "run.toml:2:9: `optimizer.steps` takes a whole number, and this is a number with a fraction",
    );
    told(
        "[data]\nshuffle = 1",
        "run.toml:2:11: `data.shuffle` takes true or false, and this is a whole number",
    );
    told(
        "[data]\nfiles = 'a'",
        "run.toml:2:9: `data.files` takes an array of strings, and this is a string",
    );
    told(
        "[data]\nfiles = ['a', 2]",
        "run.toml:2:15: `data.files` takes an array of strings, and this is a whole number",
    );
    told(
        "[model]\nsize = 'larg'",
        "run.toml:2:8: `model.size` cannot be \"larg\": it is one of small, large; did you mean large?",
    );
    told(
        "[optimizer]\nsteps = 0",
        "run.toml:2:9: `optimizer.steps` cannot be \"0\": 0 is not in 1..=4294967295",
    );
    told(
        "[show]\nafter = 'precison'",
        "run.toml:2:9: `show.after` cannot be \"precison\": there is no such pass",
    );
    // All at once, from top to bottom.
    told(
        "[optimizer]\nsteps = 0\nlr = ''\n[data]\nfile = ''",
        "run.toml:2:9: `optimizer.steps` cannot be \"0\": 0 is not in 1..=4294967295\n       \
         run.toml:3:6: `optimizer.lr` takes a number, and this is a string\n       \
         run.toml:5:1: there is no key `file` in [data]; did you mean `files`?",
    );
    told(
        "[model]\nsize = 'large'\nfolder = 'm'",
        "run.toml:3:1: `model.folder` cannot be given with `model.size` (line 2): leave out one of them",
    );
    told(
        "[optimizer]\nlr = 1\n[checkpoint]\nevery = 3",
        "run.toml:4:1: `checkpoint.every` needs `checkpoint.folder` (--checkpoint <checkpoint>): give it, or leave out `checkpoint.every`",
    );
    let error = refused(
        &["train", "--unset", "optimizer.clp"],
        "[optimizer]\nlr = 1",
    );
    assert!(
        error.contains("no key `optimizer.clp`") && error.contains("`optimizer.clip`?"),
        "{error}"
    );
    let error = config()
        .try_read(["program", "train", "--config", "/nonexistent.toml"])
        .unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("cannot read the configuration /nonexistent.toml: ")
    );
    // Of the command line, clap says it.
    let error = refused(&["train"], "");
    assert!(error.contains("--lr <lr>"), "{error}");
    let error = refused(&["train", "--stepz", "1"], "");
    assert!(error.contains("--steps"), "{error}");
}

#[test]
fn a_file_serves_every_command() {
    let file = "[model]\nsize = 'large'\n[optimizer]\nlr = 1\n[output]\njson = 'run.json'\n[show]\njson = true\nafter = 3";
    let read = try_read(&["show"], file).unwrap();
    let (_, shown) = read.matches.subcommand().unwrap();
    assert!(shown.get_flag("json"));
    assert_eq!(shown.get_one("after"), Some(&Pass(3)));
    assert_eq!(shown.get_one::<String>("size").unwrap(), "large");
    assert!(train(&[], file).contains_id("json"));
    // What the others need is kept.
    let text = read.resolved.to_toml("program 1").unwrap();
    let again = train(&[], &text);
    assert_eq!(again.get_one("lr"), Some(&1.0));
    // A fault is one for all.
    let wrong = format!("{file}\n[optimizer.lr]\n");
    let told = [refused(&["show"], &wrong), refused(&["train"], &wrong)];
    assert_eq!(told[0], told[1]);
}

#[test]
fn what_was_read_is_written_with_its_help() {
    let args = [
        "program", "train", "--lr", "1e-3", "--data", "it's", "--model", "m",
    ];
    let mut resolved = config().try_read(args).unwrap().resolved;
    resolved.choose("clip", 0.5);
    resolved.choose("lr", 7.0);
    let options = resolved.options();
    for expected in [
        ("optimizer", "lr", Some("1e-3".to_string())),
        ("optimizer", "clip", Some("0.5".to_string())),
        ("model", "model", Some("m".to_string())),
    ] {
        assert!(options.contains(&expected), "{expected:?}: {options:?}");
    }
    let text = resolved.to_toml("program 1.2").unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let head = format!("# program 1.2, burn-dist {version}: every option");
    assert!(text.starts_with(&head), "{text}");
    assert!(
        text.contains("# program train --lr 1e-3 --data 'it'\\''s' --model m\n"),
        "{text}"
    );
    assert!(
        text.contains("\n[optimizer]\n# The rate.\nlr = 1e-3\nclip = 0.5\nsteps = 20\n"),
        "{text}"
    );
    // The model has a size already, and there is no folder for checkpoints.
    assert!(
        text.contains("# One of small, large.\n# size = \"small\"\nfolder = \"m\"\n"),
        "{text}"
    );
    assert!(text.contains("# folder =\n# every = 100\n"), "{text}");
}

/// An option with a value, or nothing.
fn option(
    name: &'static str,
    value: impl Strategy<Value = String>,
) -> impl Strategy<Value = Vec<String>> {
    proptest::option::of(value).prop_map(move |value| {
        let argument = |value| format!("--{name}={value}");
        value.map(argument).into_iter().collect()
    })
}

/// Any command line of `train` that clap takes.
fn lines() -> impl Strategy<Value = Vec<String>> {
    let number = || any::<f64>().prop_map(|number| format!("{number:?}"));
    let text = || ".+".prop_map(|text: String| text);
    let model = prop_oneof![
        option(
            "size",
            prop_oneof![Just("small".to_string()), Just("large".to_string())]
        ),
        option("model", text()),
    ];
    let optimizer = (
        number(),
        option("clip", number()),
        option("steps", (1_u32..).prop_map(|n| n.to_string())),
    );
    let data = (
        proptest::collection::vec(".*".prop_map(|text: String| format!("--data={text}")), 0..3),
        any::<bool>(),
        option("seed", any::<u64>().prop_map(|seed| seed.to_string())),
    );
    let every = option("every", any::<usize>().prop_map(|n| n.to_string()));
    let checkpoint = proptest::option::of((text(), every)).prop_map(|kept| match kept {
        Some((folder, every)) => [vec![format!("--checkpoint={folder}")], every].concat(),
        None => Vec::new(),
    });
    (model, optimizer, data, checkpoint).prop_map(|(model, (lr, clip, steps), data, checkpoint)| {
        let (files, shuffle, seed) = data;
        let shuffle = shuffle.then(|| "--shuffle".to_string());
        let first = [
            "program".to_string(),
            "train".to_string(),
            format!("--lr={lr}"),
        ];
        let lists = [model, clip, steps, files, seed, checkpoint].concat();
        first.into_iter().chain(lists).chain(shuffle).collect()
    })
}

proptest! {
    #[test]
    fn a_resolved_file_gives_the_same_arguments(line in lines()) {
        let read = config().try_read(&line).unwrap();
        let text = read.resolved.to_toml("program").unwrap();
        let again = try_read(&["train"], &text).map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
        prop_assert_eq!(all(&again.matches), all(&read.matches), "{}", text);
        // And once more, to the letter, but for the line that names the command.
        let body = |text: &str| text.lines().skip(2).map(str::to_string).collect::<Vec<_>>();
        prop_assert_eq!(body(&again.resolved.to_toml("program").unwrap()), body(&text));
    }
}
