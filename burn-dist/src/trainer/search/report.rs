//! The report of a search: its domain, what pruned how many, the best ten, and why well-known meshes are not among them.

use super::clock::Figures;
use super::domain::{AXES, Bound, Candidate, Domain, MICROBATCHES, SCHEDULES, mesh_text};
use super::outcome::{Outcome, SHOWN, Searched};
use crate::clock::Hardware;
use crate::mesh::DType;
use crate::trainer::job::Job;
use crate::trainer::model::Model;
use crate::trainer::report::bytes_text;
use crate::trainer::voice::say;

/// A search, with what it was of.
pub(super) struct Shown<'a, M: Model> {
    pub domain: &'a Domain,
    pub hardware: &'a Hardware,
    pub searched: &'a Searched,
    pub devices: usize,
    pub job: &'a Job<M>,
    /// The type of products.
    pub dtype: DType,
    /// Tokens, or whatever rows are counted in, whose time is shown.
    pub tokens: Option<u64>,
}

impl<M: Model> Shown<'_, M> {
    /// Tells all of it.
    pub(super) fn tell(&self) {
        for line in self.head() {
            say!("{line}");
        }
        for line in self.table() {
            say!("{line}");
        }
        for line in self.well_known() {
            say!("{line}");
        }
    }

    fn head(&self) -> Vec<String> {
        let Searched { all, unsplit, .. } = self.searched;
        let (hardware, rows) = (self.hardware, self.job.rows);
        let mut lines = vec![
            format!(
                "{}, {rows} a step, {} x {} with {} to a node",
                self.job.name, self.devices, hardware.name, hardware.devices_per_node
            ),
            format!("searched: meshes of {}", AXES.join(", ")),
        ];
        let counts = MICROBATCHES.map(|count| count.to_string()).join(", ");
        let schedules = SCHEDULES.map(|(kind, stages)| format!("{kind} with {stages}"));
        lines.push(format!(
            "  tp inside a node; dp not beside pp; {counts} microbatches for each rank along pp; recomputation none, \
             selective and full; {} stage(s) a rank; async TP where it pays{}",
            schedules.join(", "),
            match self.domain.float8.len() {
                1 => "; no float8 (give --float8 to try it too)",
                _ => "; with float8 and without",
            }
        ));
        lines.push(format!("{} candidates", all.len()));
        for bound in Bound::ALL {
            let pruned = all
                .iter()
                .filter(|(_, outcome)| outcome.bound() == Some(bound));
            match pruned.count() {
                0 => {}
                count => lines.push(format!("  {count:>6} pruned: {}", bound.text())),
            }
        }
        for (tp, why) in unsplit {
            lines.push(format!("         tp={tp}: {why}"));
        }
        let count = |is: fn(&Outcome) -> bool| all.iter().filter(|(_, of)| is(of)).count();
        let failed = all.iter().find_map(|(of, outcome)| match outcome {
            Outcome::Failed(why) => Some((of, why)),
            _ => None,
        });
        if let Some((of, why)) = failed {
            let count = count(|of| matches!(of, Outcome::Failed(_)));
            lines.push(format!("  {count:>6} cannot be planned; {of}: {why}"));
        }
        for (count, what) in [
            (
                count(|of| of.estimated().is_some()),
                "estimated by models with fewer layers, and slower",
            ),
            (
                count(|of| of.simulated().is_some()),
                "planned and simulated whole",
            ),
        ] {
            if count > 0 {
                lines.push(format!("  {count:>6} {what}"));
            }
        }
        lines
    }

    /// Returns tokens a second in all.
    fn speed(&self, of: &Figures) -> f64 {
        (self.job.rows.batch * self.job.rows.each) as f64 / of.step_s
    }

    fn table(&self) -> Vec<String> {
        let Searched { all, best, .. } = self.searched;
        let unit = self.job.rows.unit;
        let mut lines = Vec::new();
        if best.is_empty() {
            return lines;
        }
        let of_tokens = self
            .tokens
            .map_or(String::new(), |tokens| format!("  {tokens} {unit}"));
        lines.push(format!(
            "\n{:>12} {:>10} {:>6} {:>10}{of_tokens}  candidate",
            format!("{unit}/s"),
            "a device",
            "MFU",
            "memory",
        ));
        let peak = self.hardware.peak_flops(self.dtype) * self.devices as f64;
        for at in best.iter().take(SHOWN) {
            let (of, Some(figures)) = (&all[*at].0, all[*at].1.simulated()) else {
                continue;
            };
            let speed = self.speed(figures);
            let time = self.tokens.map_or(String::new(), |tokens| {
                let time = time_text(tokens as f64 / speed);
                format!("  {time:>width$}", width = of_tokens.len() - 2)
            });
            lines.push(format!(
                "{speed:>12.0} {:>10.0} {:>5.1}% {:>10}{time}  {of}",
                speed / self.devices as f64,
                100.0 * figures.model_flops / figures.step_s / peak,
                bytes_text(figures.peak_bytes as u64),
            ));
        }
        let seconds = |at: usize| all[at].1.simulated().map_or(f64::INFINITY, |of| of.step_s);
        lines.push(match self.searched.alone {
            None => "the fastest of those that were simulated: no proof that nothing else is faster"
                .to_string(),
            Some(alone) => format!(
                "the fastest of all; without looking at all, the search finds one that takes {:.2} % longer: {}",
                100.0 * (seconds(alone) / seconds(best[0]) - 1.0),
                all[alone].0
            ),
        });
        lines
    }

    /// Returns what became of meshes that people know.
    fn well_known(&self) -> Vec<String> {
        let Searched { all, best, .. } = self.searched;
        let fastest = best.first().and_then(|at| all[*at].1.simulated());
        let memory = self.hardware.memory_bytes() as f64;
        let mut lines = Vec::new();
        for (name, sizes) in self.domain.well_known() {
            let of_mesh = || all.iter().filter(|(of, _)| of.sizes == sizes);
            if of_mesh().next().is_none() {
                continue;
            }
            let figures = of_mesh().filter_map(|(of, outcome)| {
                let figures = outcome.simulated().or(outcome.estimated())?;
                Some((of, outcome, figures))
            });
            let least = figures.min_by(|(_, one, of_one), (_, other, of_other)| {
                let by_room = other.fits(memory).cmp(&one.fits(memory));
                by_room.then(of_one.step_s.total_cmp(&of_other.step_s))
            });
            let why = match (least, fastest) {
                (Some((of, outcome, figures)), Some(fastest)) if outcome.fits(memory) => format!(
                    "{:.2} times the fastest step{}, as {of}",
                    figures.step_s / fastest.step_s,
                    match outcome.simulated() {
                        Some(_) => "",
                        None => " by an estimate",
                    },
                ),
                (Some((of, _, figures)), _) => format!(
                    "{} of memory, as {of}",
                    bytes_text(figures.peak_bytes as u64)
                ),
                (None, _) => of_mesh().map(why).next_back().unwrap_or_default(),
            };
            lines.push(format!("  {name} ({}): {why}", mesh_text(sizes)));
        }
        if !lines.is_empty() {
            lines.insert(0, "\nwell-known meshes".to_string());
        }
        lines
    }
}

/// Returns why a candidate was not planned whole.
fn why((_, outcome): &(Candidate, Outcome)) -> String {
    match outcome {
        Outcome::Unfit(figures) => {
            let held = bytes_text(figures.peak_bytes.max(0.0) as u64);
            format!("a rank would hold {held} (estimated)")
        }
        Outcome::Pruned(bound) => bound.text().to_string(),
        Outcome::Failed(why) => why.clone(),
        Outcome::Estimated(_) | Outcome::Simulated(_) => String::new(),
    }
}

/// Seconds for people.
fn time_text(seconds: f64) -> String {
    match seconds {
        ..120.0 => format!("{seconds:.0} s"),
        ..7200.0 => format!("{:.0} min", seconds / 60.0),
        ..172_800.0 => format!("{:.1} h", seconds / 3600.0),
        _ => format!("{:.1} days", seconds / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_in_units_of_people() {
        let texts = [90.0, 600.0, 36_000.0, 864_000.0].map(time_text);
        assert_eq!(texts, ["90 s", "10 min", "10.0 h", "10.0 days"]);
    }
}
