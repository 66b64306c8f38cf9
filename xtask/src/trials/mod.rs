//! Trials of runs that are killed, stopped and ended; on Linux, with programs as users build them.

mod faults;
mod hosts;
mod launch;
mod resumes;
mod steps;
mod system;

use launch::Programs;
use serde_json::json;

/// Tries what is asked for.
///
/// # Errors
/// Something is not as it should be, or cannot be tried.
pub(crate) fn trials(arguments: &[String]) -> Result<(), String> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |at: usize, default: u64| match arguments.get(at) {
        Some(text) => text.parse().map_err(|_| format!("{text} is no number")),
        None => Ok(default),
    };
    let Some(what) = arguments.first() else {
        return Err("say what to try: faults, hosts, resumes or steps".into());
    };
    if !["faults", "hosts", "resumes", "steps"].contains(what) {
        return Err(format!(
            "no trials `{what}`: there are faults, hosts, resumes and steps"
        ));
    }
    let programs = Programs::build()?;
    let (found, failed) = match *what {
        "faults" => faults::all(&programs, arguments.get(1).unwrap_or(&""))?,
        "hosts" => hosts::all(&programs, arguments.get(1).unwrap_or(&""))?,
        "resumes" => resumes::all(&programs, number(1, 20)? as usize, number(2, 1)?)?,
        _ => steps::all(&programs, number(1, 20_000)? as usize)?,
    };
    println!(
        "{}",
        json!({"trials": what, "failed": failed, "found": found})
    );
    match failed {
        0 => Ok(()),
        failed => Err(format!("{failed} failed")),
    }
}
