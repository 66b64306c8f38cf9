//! Differences of the options of a run that goes on.

use burn_dist::trainer::command_line::CommandLine;
use burn_dist::trainer::options::{Options, differences, of};

use crate::PROGRAM;
use crate::cli::{Cli, Command};

#[test]
fn what_has_changed_is_named() {
    let options = |more: &[&str]| {
        let args = [&["llama", "pretrain", "--run", "r"], more].concat();
        match Cli::try_read(PROGRAM, args).unwrap().command {
            Command::Pretrain(args) => of(&args.train.resolved),
            _ => unreachable!("it is pretrain"),
        }
    };
    let before = options(&["--lr", "0.002", "--beta1", "0.8", "--save", "a"]);
    assert_eq!(differences(&before, &before), Vec::<String>::new());
    let now = options(&[
        "--lr",
        "1e-3",
        "--clip",
        "0.5",
        "--every",
        "7",
        "--seed",
        "3",
        "--log-every",
        "5",
    ]);
    let mut found = differences(&before, &now);
    found.sort();
    let expected = [
        "--beta1 was 0.8, and is 0.9",
        "--clip was not given, and is 0.5",
        "--lr was 0.002, and is 1e-3",
        "--seed was 0, and is 3",
    ];
    assert_eq!(found, expected);
    // Of a checkpoint from before options were kept.
    assert_eq!(differences(&Options::new(), &now), Vec::<String>::new());
}
