//! A configuration file: the options of a command line, in sections.
//!
//! Every option of a program is declared once, as one of a [`clap::Command`]. [`Section`]s say where each of them
//! stands in a TOML file. Everything in a file is checked as an option would be, and by the option's own parser; the
//! command line goes over the file, and the file over the defaults. What came of them is written as a file again
//! ([`Resolved`]), which repeats the run.
//!
//! ```
//! use burn_dist_train::config::{Config, Key, Section};
//! use clap::{Arg, Command, value_parser};
//!
//! let command = Command::new("train")
//!     .arg(Arg::new("lr").long("lr").value_parser(value_parser!(f64)))
//!     .arg(Arg::new("steps").long("steps").default_value("20").value_parser(value_parser!(usize)));
//! const SECTIONS: &[Section] = &[
//!     Section::new("optimizer", "The optimizer", &[Key::of("lr")]),
//!     Section::new("run", "The run", &[Key::of("steps")]),
//! ];
//! let config = Config::new(command, SECTIONS);
//!
//! # let folder = tempfile::tempdir()?;
//! # let file = folder.path().join("run.toml");
//! std::fs::write(&file, "[optimizer]\nlr = 3e-4\n[run]\nsteps = 50\n")?;
//! let read = config.try_read(["train", "--steps", "9", "--config", file.to_str().unwrap()])?;
//! assert_eq!(read.matches.get_one("steps"), Some(&9_usize));
//! assert_eq!(read.matches.get_one("lr"), Some(&3e-4));
//!
//! std::fs::write(&file, "[optimizer]\nlrr = 3e-4\n")?;
//! let error = config.try_read(["train", "--config", file.to_str().unwrap()]).unwrap_err();
//! assert!(error.to_string().ends_with(
//!     "run.toml:2:1: there is no key `lrr` in [optimizer]; did you mean `lr`?"
//! ));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Paths in a file are relative to where the program runs, as those of the command line. A file may have keys of
//! several commands of a program: each takes what it has options for, and checks all.

mod error;
mod file;
mod outline;
mod read;
mod resolved;
#[cfg(test)]
mod tests;
mod value;

pub use error::{ConfigError, Fault, Problem};
pub use outline::{Config, Key, Section};
pub use read::Read;
pub use resolved::Resolved;
