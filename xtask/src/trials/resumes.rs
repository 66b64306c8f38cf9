//! Runs that are killed at random moments and go on: they have to become, bit by bit, the run that was not.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::launch::{Ask, Ended, LAUNCHERS, Launcher, Programs, TrialFolder};
use super::system::{self, Random};

const STEPS: usize = 60;
const MORE: [&str; 8] = [
    "--every",
    "5",
    "--validate-every",
    "7",
    "--clip",
    "1",
    "--resume",
    "auto",
];

/// How long a run may take.
const LIMIT: Duration = Duration::from_secs(120);

/// Kills so many runs and lets them go on; returns what happened, and how many became another run.
pub(super) fn all(programs: &Programs, count: usize, seed: u64) -> Result<(Value, usize), String> {
    let whole = TrialFolder::new("whole")?;
    let start = Instant::now();
    finish(programs, &whole, Launcher::Mpirun)?;
    let takes = start.elapsed();
    let expected = exact(&whole);
    if expected.len() != STEPS {
        return Err(format!("{} rows of {STEPS} steps", expected.len()));
    }
    let mut random = Random::new(seed);
    let (mut rows, mut failed) = (Vec::new(), 0);
    for number in 0..count {
        let launcher = LAUNCHERS[number % LAUNCHERS.len()];
        // Once, or several times, for the second start may be killed too.
        let mut kills = Vec::new();
        let wanted = 1 + random.below(2) as usize;
        let mut folder = TrialFolder::new(&format!("resume-{number}"))?;
        while kills.len() < wanted {
            let after = Duration::from_millis(random.below(takes.as_millis() as u64));
            kills.extend(kill(programs, &folder, launcher, after, &mut random)?);
            if folder.checkpoint(STEPS).exists() {
                if !kills.is_empty() {
                    break;
                }
                // It was faster than the signal.
                folder.remove();
                folder = TrialFolder::new(&format!("resume-{number}"))?;
            }
        }
        let mut wrong = Vec::new();
        if let Err(error) = finish(programs, &folder, launcher) {
            wrong.push(error);
        }
        let found = exact(&folder);
        if let Some(at) = (0..STEPS).find(|at| found.get(*at) != expected.get(*at)) {
            wrong.push(format!(
                "row {}: {:?} in place of {:?}",
                at + 1,
                found.get(at),
                expected[at]
            ));
        }
        wrong.extend(programs.diff(&whole.checkpoint(STEPS), &folder.checkpoint(STEPS)));
        println!(
            "resume {number:>2}, {}: killed {}",
            launcher.name(),
            kills.join("; then ")
        );
        for wrong in &wrong {
            println!("    wrong: {wrong}");
        }
        failed += usize::from(!wrong.is_empty() || kills.is_empty());
        rows.push(json!({"launcher": launcher.name(), "kills": kills, "wrong": wrong}));
        if wrong.is_empty() {
            folder.remove();
        }
    }
    whole.remove();
    Ok((Value::Array(rows), failed))
}

fn ask<'a>(launcher: Launcher) -> Ask<'a> {
    Ask {
        launcher,
        steps: STEPS,
        more: &MORE,
        held: None,
    }
}

/// Runs to the last step.
fn finish(programs: &Programs, folder: &TrialFolder, launcher: Launcher) -> Result<(), String> {
    let ended = ask(launcher).start(programs, folder)?.end(LIMIT);
    match ended {
        Some(Ended { code: 0, .. }) => Ok(()),
        Some(Ended { code, output }) => Err(format!("it ended with {code}: {output}")),
        None => {
            folder.end_all();
            Err("it did not end".into())
        }
    }
}

/// Starts the run, and kills one of its processes after a time; returns which, and where it was, if it still ran.
fn kill(
    programs: &Programs,
    folder: &TrialFolder,
    launcher: Launcher,
    after: Duration,
    random: &mut Random,
) -> Result<Option<String>, String> {
    let mut launched = ask(launcher).start(programs, folder)?;
    let start = Instant::now();
    launched.until(LIMIT, || start.elapsed() >= after);
    // What has started the processes is one of those that may be killed, too.
    let victims = folder.processes();
    let victim = victims.get(random.below(victims.len() as u64) as usize);
    let killed = victim.filter(|victim| system::send("KILL", victim.pid));
    let told = killed.map(|victim| {
        let steps = exact(folder).len();
        let rank = victim
            .rank
            .map_or(String::new(), |rank| format!(" of rank {rank}"));
        format!(
            "{}{rank} after {after:.2?}, at {steps} steps",
            victim.program
        )
    });
    let ended = launched.end(LIMIT);
    // Whoever is left of it has the folder.
    let start = Instant::now();
    while !folder.processes().is_empty() && start.elapsed() < Duration::from_secs(35) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let left = folder.processes();
    folder.end_all();
    match (ended, left.is_empty()) {
        (None, _) => Err(format!("{told:?}: it did not end")),
        (_, false) => Err(format!("{told:?}: {left:?} is left")),
        _ => Ok(told),
    }
}

/// Returns what of a run's figures does not depend on time.
fn exact(folder: &TrialFolder) -> Vec<Value> {
    let names = [
        "step",
        "train/loss",
        "validation/loss",
        "train/gradient_norm",
        "train/learning_rate",
    ];
    let figures = folder.figures();
    let lines = figures
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let rows = lines.filter(|line: &Value| line.get("event").is_none());
    let exact = rows.map(|row| names.map(|name| row.get(name).cloned()));
    exact.map(|row| json!(row)).collect()
}
