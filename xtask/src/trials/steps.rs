//! Many small steps: memory and threads of both processes stay as they are.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::launch::{Ask, Ended, Launcher, Programs, TrialFolder};
use super::system::status;

/// Looks at so many moments of a run, equally far apart.
const LOOKS: usize = 10;

/// Memory that may differ between looks: pages come and go.
const KIB_MORE: u64 = 16 << 10;

const LIMIT: Duration = Duration::from_secs(3600);

/// Runs so many steps; returns what both processes held, and how many of them grew.
pub(super) fn all(programs: &Programs, steps: usize) -> Result<(Value, usize), String> {
    let folder = TrialFolder::new("steps")?;
    let ask = Ask {
        launcher: Launcher::Run,
        steps,
        more: &["--every", "1000000", "--no-plot"],
        held: None,
    };
    let start = Instant::now();
    let mut launched = ask.start(programs, &folder)?;
    let mut looks = Vec::new();
    for look in 1..LOOKS {
        let step = steps * look / LOOKS;
        if !launched.until(LIMIT, || {
            std::thread::sleep(Duration::from_millis(5));
            last_step(&folder) >= step
        }) {
            break;
        }
        let of_rank = |rank| {
            let pid = folder.program(rank)?.pid;
            Some([status(pid, "VmRSS:")?, status(pid, "Threads:")?])
        };
        let Some(found) = of_rank(0).zip(of_rank(1)) else {
            break;
        };
        let [zero, one] = [found.0, found.1];
        println!(
            "step {step:>7}: {} and {} KiB, {} and {} threads",
            zero[0], one[0], zero[1], one[1]
        );
        looks.push((step, [zero, one]));
    }
    let seconds = start.elapsed().as_secs();
    match launched.end(LIMIT) {
        Some(Ended { code: 0, .. }) if looks.len() == LOOKS - 1 => {}
        Some(Ended { code, output }) => return Err(format!("it ended with {code}: {output}")),
        None => return Err("it did not end".into()),
    }
    // The first steps plan and fill caches.
    let settled = &looks[1..];
    let grows = |rank: usize, what: usize, more: u64| {
        let (first, last) = (
            settled[0].1[rank][what],
            settled[settled.len() - 1].1[rank][what],
        );
        last > first + more
    };
    let failed = (0..2).filter(|rank| grows(*rank, 0, KIB_MORE) || grows(*rank, 1, 0));
    let failed = failed.count();
    let looks: Vec<Value> = looks
        .iter()
        .map(|(step, [zero, one])| json!({"step": step, "kib": [zero[0], one[0]], "threads": [zero[1], one[1]]}))
        .collect();
    folder.remove();
    Ok((json!({"seconds": seconds, "looks": looks}), failed))
}

/// Returns the last step whose figures are written.
fn last_step(folder: &TrialFolder) -> usize {
    end_of_figures(folder).unwrap_or(0)
}

fn end_of_figures(folder: &TrialFolder) -> Option<usize> {
    let mut file = File::open(folder.run().join("metrics.jsonl")).ok()?;
    let size = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(16 << 10)))
        .ok()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).ok()?;
    let end = String::from_utf8_lossy(&bytes);
    let last = end.rsplit("{\"step\":").next()?;
    last.split(',').next()?.parse().ok()
}
