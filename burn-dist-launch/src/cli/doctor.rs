//! `burn-dist doctor FILES`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use crate::doctor::{diagnose, read};

/// Files that cannot be read, or do not belong together (`EX_NOINPUT` of BSD's `sysexits.h`).
const NO_INPUT: u8 = 66;

/// Says in words what stopped a run, from the flight records of its processes.
///
/// Every process that is still there when a mesh stops writes one, and its error ends with the file's name. Give those
/// of all processes, from all hosts; one that is missing tells something too.
#[derive(clap::Args)]
pub struct Doctor {
    /// Flight records, one per process.
    #[arg(required = true, value_name = "FILES")]
    files: Vec<PathBuf>,
}

impl Doctor {
    /// Prints the diagnosis. What is no record is named, and left out if there are others.
    pub fn run(&self) -> ExitCode {
        let mut records = Vec::new();
        for file in &self.files {
            match read(file) {
                Ok(record) => records.push(record),
                // Whoever has closed it does not read it.
                Err(error) => drop(writeln!(io::stderr(), "{error}")),
            }
        }
        match diagnose(&records) {
            // Whoever reads may have seen enough.
            Ok(diagnosis) => match write!(io::stdout(), "{diagnosis}") {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            },
            Err(error) => {
                let _ = writeln!(io::stderr(), "{error}");
                NO_INPUT.into()
            }
        }
    }
}
