//! The process that prints where several run the same program: the first; and each of its own errors.

use std::fmt;
use std::io::{self, ErrorKind, Write};

use crate::launch;

/// Returns whether this process prints, draws and writes files; all of them compute.
pub fn speaks() -> bool {
    // A world that cannot be reached is an error of the mesh, which says so.
    let world = launch::world().ok().flatten();
    world.is_none_or(|world| world.process() == 0)
}

/// Prints a line, in the process that speaks.
#[doc(hidden)]
#[macro_export]
macro_rules! __say {
    ($($text:tt)*) => {
        if $crate::trainer::voice::speaks() {
            $crate::__out!($($text)*);
        }
    };
}

/// Prints a line, as `println!` does; whoever has closed the output wants no more, and the program goes on.
#[doc(hidden)]
#[macro_export]
macro_rules! __out {
    ($($text:tt)*) => { $crate::trainer::voice::to_stdout(format_args!($($text)*)) };
}

/// Prints a line for people, as `eprintln!` does; nobody may read it.
#[doc(hidden)]
#[macro_export]
macro_rules! __note {
    ($($text:tt)*) => { $crate::trainer::voice::to_stderr(format_args!($($text)*)) };
}

pub use {__note as note, __out as out, __say as say};

/// Writes a line to standard output.
pub fn to_stdout(line: fmt::Arguments<'_>) {
    if let Err(error) = writeln!(io::stdout(), "{line}")
        && error.kind() != ErrorKind::BrokenPipe
    {
        note!("cannot write to standard output: {error}");
    }
}

/// Writes a part of a line to standard output, at once.
pub fn say_part(text: &str) {
    let mut out = io::stdout();
    let written = write!(out, "{text}").and_then(|()| out.flush());
    if let Err(error) = written
        && error.kind() != ErrorKind::BrokenPipe
    {
        note!("cannot write to standard output: {error}");
    }
}

/// Writes a line to standard error.
pub fn to_stderr(line: fmt::Arguments<'_>) {
    // There is nobody to tell.
    let _ = writeln!(io::stderr(), "{line}");
}

/// Tells an error, with the process whose it is if there are others.
pub fn complain(error: &anyhow::Error) {
    let process = match launch::world() {
        Ok(Some(world)) => format!("process {}: ", world.process()),
        _ => String::new(),
    };
    note!("{process}error: {}", in_one_line(error));
}

/// An error with its causes, without those that the text before them already tells.
pub fn in_one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !line.contains(&cause) {
            if !line.is_empty() {
                line += ": ";
            }
            line += &cause;
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_printed_once() {
        let error = || anyhow::anyhow!("no space").context("cannot write a: no space");
        assert_eq!(in_one_line(&error()), "cannot write a: no space");
        let error = error().context("the run failed");
        assert_eq!(
            in_one_line(&error),
            "the run failed: cannot write a: no space"
        );
    }
}
