//! Plans in words and numbers, for people and for programs.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write;
use std::hash::Hash;

use serde::Serialize;

pub use crate::ir::Accumulated;
pub use crate::passes::async_tp::Overlap;
pub use crate::passes::checkpoint::Recomputed;
pub use burn_dist_layout::bytes::human_bytes;

use crate::account::account;
use crate::clock::{ClockError, Hardware, Simulation};
use crate::ir::{CollectiveRecord, Op};
use crate::memory::{MemoryClass, MemoryPlan, MemoryTimeline};
use crate::mesh::{Links, Rank, Topology};
use crate::passes::float8::Float8Layer;
use crate::passes::redundancy::Redundancy;
use crate::passes::regions::Fused;
use crate::plan::Plan;
use crate::policy::Regions;
use crate::{Accumulation, ActivationCheckpoint, AskedValue};

/// Questions about windows beside what they do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ask {
    /// A pass: what there is of a window after it is kept as text.
    pub after: Option<&'static str>,
    /// A value: why the operation that makes it is split as it is.
    pub why: Option<AskedValue>,
    /// Hardware to simulate the plans on.
    pub hardware: Option<Hardware>,
    /// How many microbatches a step is to have: in a window of fewer one is repeated, for what is explained and
    /// simulated alone.
    pub microbatches: Option<u32>,
    /// True to check the law of the [text form](crate::form) on windows, and to keep their texts after all passes:
    /// a question of tests.
    #[cfg(any(test, feature = "text-form"))]
    pub checks_form: bool,
}

/// Totals of one kind of collective.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CollectiveTotal {
    /// Number of calls.
    pub count: u64,
    /// Number of times calls are started, those that start together counted once.
    pub launches: u64,
    /// Bytes the busiest rank receives.
    pub bytes: u64,
}

/// Collectives that are alike but for the module they serve.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ExplainedCollective {
    /// `all_gather`, `reduce_scatter`, `all_reduce` or `all_to_all`.
    pub kind: &'static str,
    /// Mesh axes it runs over.
    pub axes: String,
    /// Global shape of the tensor.
    pub shape: Vec<usize>,
    /// Layout before.
    pub from: String,
    /// Layout after.
    pub to: String,
    /// Why it is there.
    pub reason: String,
    /// Path of the module it serves (`*` where several do).
    pub path: Option<String>,
    /// Number of calls.
    pub count: u64,
    /// Bytes the busiest rank receives, all calls together.
    pub bytes: u64,
}

/// A plan in words and numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Explanation {
    /// Text form of the mesh.
    pub mesh: String,
    /// The nodes under it, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<String>,
    /// Number of windows.
    pub windows: u64,
    /// Operations recorded, by family and kind; not part of the text.
    pub operations: BTreeMap<&'static str, BTreeMap<&'static str, u64>>,
    /// Totals by kind.
    pub totals: BTreeMap<&'static str, CollectiveTotal>,
    /// Collectives, alike ones together, in program order.
    pub collectives: Vec<ExplainedCollective>,
    /// Where each of them is, by what it is with a count of none.
    #[serde(skip)]
    places: HashMap<ExplainedCollective, usize>,
    /// When accumulated gradients are reduced, as text; of several policies, those other than the default.
    pub accumulation: String,
    /// Gradients that were added or kept before they were reduced.
    pub accumulated: Accumulated,
    /// The activations that units make again in the backward, as text; of several policies, those other than `none`.
    pub checkpoint: String,
    /// Pipelines with their schedules; several where windows have several.
    pub scheduled: Vec<String>,
    /// The steps that are made again in the backward.
    pub recomputed: Recomputed,
    /// Linear layers whose units ask for float8, and why some are left as they are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub float8: Vec<Float8Layer>,
    /// What the inner backend runs products in float8 by, if that is known: the name of an engine, or one of each
    /// scaling.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub float8_by: Option<String>,
    /// Collectives along tensor-parallel axes whose policies ask for async TP: those that products run beside, and why
    /// others stay as they are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub overlaps: Vec<Overlap>,
    /// Elementwise work as few kernels, if it is: of the first rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fused: Option<Fused>,
    /// How elementwise work was asked to run, as text, where it runs as [`Regions::Flex`] because regions
    /// are not for the inner backend.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without_regions: Option<String>,
    /// Work that ranks repeat.
    pub redundancy: Redundancy,
    /// The planned ranks; not part of the text and of JSON.
    #[serde(skip)]
    pub ranks: Vec<Rank>,
    /// Memory of each.
    pub memory: Vec<MemoryPlan>,
    /// Nanoseconds that collectives take on the links of the mesh, by the axes they go over; empty without links.
    pub communication_ns: BTreeMap<String, u64>,
    /// Where those come from.
    #[serde(skip)]
    links: Option<Links>,
    /// What there was of each window after the pass that was asked for; not part of the text and of JSON.
    #[serde(skip)]
    pub after: Vec<String>,
    /// Why the operation that makes the value that was asked about is split as it is, of each window that has it; not
    /// part of the text and of JSON.
    #[serde(skip)]
    pub why: Vec<String>,
    /// The plan of each window on the hardware that was asked for; not part of the text and of JSON.
    #[serde(skip)]
    pub simulations: Vec<Result<Simulation, ClockError>>,
    /// How it runs over the tasks, of the window with the highest peak of each rank; not part of the text and of JSON.
    #[serde(skip)]
    pub timelines: Vec<MemoryTimeline>,
}

impl Explanation {
    /// Starts an explanation of nothing.
    pub fn new(mesh: String) -> Self {
        Self {
            mesh,
            accumulation: Accumulation::default().to_string(),
            checkpoint: ActivationCheckpoint::default().to_string(),
            ..Self::default()
        }
    }

    /// Sums the time that collectives take on `links`; see the [formula](crate::mesh::link).
    pub fn with_links(mut self, links: &Links) -> Self {
        self.links = (!links.is_empty()).then(|| links.clone());
        self
    }

    /// Notes the nodes under the mesh.
    pub fn with_topology(mut self, topology: &Topology) -> Self {
        self.nodes = (topology.num_nodes() > 1).then(|| topology.to_string());
        self
    }

    /// Notes what products in float8 run by.
    pub fn with_float8_by(mut self, by: String) -> Self {
        self.float8_by = Some(by);
        self
    }

    /// Notes that elementwise work does not run as it was asked to, but by the operations of the inner backend.
    pub fn without_regions(mut self, asked: Regions) -> Self {
        self.without_regions = Some(asked.to_string());
        self
    }

    /// Adds a plan.
    pub fn add<O: Op>(&mut self, plan: &Plan<O>) {
        self.windows += 1;
        let mut launched = None;
        for ((family, kind), count) in &plan.operations {
            let kinds = self.operations.entry(family).or_default();
            *kinds.entry(kind).or_default() += count;
        }
        for record in &plan.collectives {
            self.add_collective(record);
            if record.launch.is_none() || record.launch != launched {
                self.totals.entry(record.kind.name()).or_default().launches += 1;
            }
            launched = record.launch;
        }
        for policy in &plan.policies {
            name(&mut self.accumulation, &policy.accumulation);
            name(&mut self.checkpoint, &policy.checkpoint);
        }
        if let Some(scheduled) = &plan.scheduled
            && !self.scheduled.contains(scheduled)
        {
            self.scheduled.push(scheduled.clone());
        }
        self.recomputed += plan.recomputed;
        let known: HashSet<Float8Layer> = self.float8.iter().cloned().collect();
        let layers = plan.float8.iter().filter(|layer| !known.contains(layer));
        self.float8.extend(layers.cloned());
        self.overlaps.extend(plan.overlaps.iter().cloned());
        if let Some(fused) = plan.fused {
            *self.fused.get_or_insert_default() += fused;
        }
        self.redundancy += &plan.redundancy;
        self.accumulated.added += plan.accumulated.added;
        self.accumulated.kept += plan.accumulated.kept;
        self.ranks.clone_from(&plan.numbers);
        for (rank, memory) in plan.memory.iter().enumerate() {
            match self.memory.get_mut(rank) {
                Some(total) if total.peak_bytes >= memory.peak_bytes => {
                    total.end_bytes = memory.end_bytes;
                }
                Some(total) => {
                    *total = memory.clone();
                    self.timelines[rank] = account(&plan.ranks[rank]).1;
                }
                None => {
                    self.memory.push(memory.clone());
                    self.timelines.push(account(&plan.ranks[rank]).1);
                }
            }
        }
    }

    fn add_collective(&mut self, record: &CollectiveRecord) {
        let kind = record.kind.name();
        let total = self.totals.entry(kind).or_default();
        total.count += 1;
        total.bytes += record.bytes;
        self.add_time(record);
        let alike = ExplainedCollective {
            kind,
            axes: record.axes.clone(),
            shape: record.shape.clone(),
            from: record.layouts.0.clone(),
            to: record.layouts.1.clone(),
            reason: record.reason.clone(),
            path: record.path.as_deref().map(generalize),
            count: 0,
            bytes: 0,
        };
        let place = *self.places.entry(alike).or_insert_with_key(|alike| {
            self.collectives.push(alike.clone());
            self.collectives.len() - 1
        });
        self.collectives[place].count += 1;
        self.collectives[place].bytes += record.bytes;
    }

    fn add_time(&mut self, record: &CollectiveRecord) {
        let Some(links) = &self.links else {
            return;
        };
        let names = record.axes.split(' ').next().unwrap_or_default();
        let Some(link) = links.on(names.split(','), record.spans_nodes) else {
            return;
        };
        let time = link.transfer_ns(record.rounds(), record.bytes);
        *self
            .communication_ns
            .entry(record.axes.clone())
            .or_default() += time;
    }

    /// Returns the explanation as JSON.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("plain data with string keys")
    }
}

impl Explanation {
    fn write_checkpoint(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Recomputed {
            visits,
            visits_seen,
            ops,
            collectives,
        } = self.recomputed;
        match (self.checkpoint.as_str(), visits_seen, visits) {
            ("none", _, 0) => Ok(()),
            (policy, 0, 0) => writeln!(
                f,
                "checkpoint {policy}: nothing to make again: no unit (`#[parallel(unit)]`, `Plan::unit`) has \
                 activations that its backward needs in the same window"
            ),
            (policy, ..) => writeln!(
                f,
                "checkpoint {policy}: {ops} step(s), {collectives} of them collectives, run again for {visits} of \
                 {visits_seen} pass(es) through a unit"
            ),
        }
    }

    /// How many layers compute in float8, and one line for those that are left or gathered for the same reason.
    fn write_float8(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.float8.is_empty() {
            return Ok(());
        }
        let taken = self.float8.iter().filter(|layer| layer.skipped.is_none());
        let (taken, all) = (taken.count(), self.float8.len());
        writeln!(f, "float8: {taken} of {all} linear layer(s)")?;
        if let Some(by) = self.float8_by.as_ref().filter(|_| taken > 0) {
            writeln!(f, "float8 products run by {by}")?;
        }
        let layers = self.float8.iter();
        let skipped = layers.filter_map(|layer| Some((layer.skipped.as_deref()?, &*layer.path)));
        for (reason, paths) in by_reason(skipped) {
            writeln!(f, "float8 skips {paths}: {reason}")?;
        }
        let layers = self.float8.iter();
        let gathered = layers.filter_map(|layer| {
            let reason = layer.gathered_before.as_deref()?;
            Some((reason, &*layer.path))
        });
        for (reason, paths) in by_reason(gathered) {
            writeln!(f, "float8 gathers {paths} before the cast: {reason}")?;
        }
        Ok(())
    }

    /// How many collectives along each tensor-parallel axis products run beside, and one line for those that stay as
    /// they are for the same reason.
    fn write_overlaps(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut axes: BTreeMap<&str, Vec<&Overlap>> = BTreeMap::new();
        for overlap in &self.overlaps {
            axes.entry(&overlap.axis).or_default().push(overlap);
        }
        for (axis, overlaps) in axes {
            let stay = overlaps.iter().filter_map(|overlap| {
                let path = overlap.path.as_deref().unwrap_or("the model");
                Some(((overlap.whole?, overlap.kind), path))
            });
            let mut left = by_reason(stay);
            left.sort_unstable();
            let left: Vec<_> = left.chunk_by(|one, next| one.0.0 == next.0.0).collect();
            let is_taken = |overlap: &&&Overlap| overlap.whole.is_none();
            let (taken, all) = (overlaps.iter().filter(is_taken).count(), overlaps.len());
            if let (0, [[((why, _), _), ..]]) = (taken, &left[..]) {
                writeln!(
                    f,
                    "async tp: none of {all} collective(s) along {axis}: {why}"
                )?;
                continue;
            }
            writeln!(
                f,
                "async tp: products run beside {taken} of {all} collective(s) along {axis}"
            )?;
            for alike in left {
                let kinds = alike.iter();
                let kinds = kinds.map(|((_, kind), paths)| format!("{kind} of {paths}"));
                let kinds = kinds.collect::<Vec<_>>().join("; ");
                writeln!(f, "async tp leaves {kinds}: {}", alike[0].0.0)?;
            }
        }
        Ok(())
    }

    /// One line for ranks of which the same is to be said.
    fn write_memory(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut lines: Vec<(String, Vec<usize>)> = Vec::new();
        for (index, memory) in self.memory.iter().enumerate() {
            let rank = self.ranks.get(index).map_or(index, |rank| rank.0 as usize);
            let line = memory_text(memory)?;
            match lines.iter_mut().find(|(same, _)| *same == line) {
                Some((_, ranks)) => ranks.push(rank),
                None => lines.push((line, vec![rank])),
            }
        }
        for (line, ranks) in lines {
            writeln!(f, "{}: {line}", ranks_text(&ranks))?;
        }
        Ok(())
    }

    /// Returns the most bytes of activations, gradients of activations and temporaries that are alive at once on any
    /// planned rank.
    pub fn activation_bytes(&self) -> u64 {
        let peaks = self
            .memory
            .iter()
            .map(|memory| memory.class_peaks.get(&MemoryClass::Activation));
        peaks.flatten().copied().max().unwrap_or(0)
    }
}

/// Returns the reasons, in order, each with the paths that have it, these once.
fn by_reason<'a, R: Copy + Eq + Hash>(
    reasons: impl Iterator<Item = (R, &'a str)>,
) -> Vec<(R, String)> {
    let mut found: Vec<(R, String)> = Vec::new();
    let mut places: HashMap<R, usize> = HashMap::new();
    let mut known: HashSet<(R, String)> = HashSet::new();
    for (reason, path) in reasons {
        let path = generalize(path);
        if !known.insert((reason, path.clone())) {
            continue;
        }
        match places.entry(reason) {
            Entry::Occupied(place) => {
                let (_, paths) = &mut found[*place.get()];
                paths.push_str(", ");
                paths.push_str(&path);
            }
            Entry::Vacant(place) => {
                place.insert(found.len());
                found.push((reason, path));
            }
        }
    }
    found
}

/// Adds a policy to the names of those in use, unless it is the default.
fn name<P: Default + PartialEq + ToString>(names: &mut String, policy: &P) {
    let (name, default) = (policy.to_string(), P::default());
    if *policy == default || names.split(", ").any(|known| known == name) {
        return;
    }
    match *names == default.to_string() {
        true => *names = name,
        false => names.push_str(&format!(", {name}")),
    }
}

/// What is said of a rank's memory.
fn memory_text(memory: &MemoryPlan) -> Result<String, std::fmt::Error> {
    let mut line = format!(
        "peak {} at {}, between windows {}",
        human_bytes(memory.peak_bytes),
        memory.peak_cause,
        human_bytes(memory.end_bytes)
    );
    for (class, bytes) in &memory.peak_by_class {
        write!(line, "; {} {}", class.name(), human_bytes(*bytes))?;
    }
    for (class, name) in [
        (MemoryClass::Gradient, "gradients"),
        (MemoryClass::Activation, "activations"),
    ] {
        if let Some(bytes) = memory.class_peaks.get(&class) {
            write!(line, "; {name} at most {}", human_bytes(*bytes))?;
        }
    }
    if memory.host_peak_bytes > 0 {
        write!(
            line,
            "; on the host {}",
            human_bytes(memory.host_peak_bytes)
        )?;
    }
    Ok(line)
}

/// Ranks in rising order, runs of them by their ends: `rank 3`, `ranks 0..3, 6`.
fn ranks_text(ranks: &[usize]) -> String {
    if let [rank] = ranks {
        return format!("rank {rank}");
    }
    let runs = ranks.chunk_by(|one, next| one + 1 == *next);
    let runs: Vec<String> = runs
        .map(|run| match run {
            [first, .., last] => format!("{first}..{last}"),
            run => run.iter().map(usize::to_string).collect(),
        })
        .collect();
    format!("ranks {}", runs.join(", "))
}

/// `layers.3.attention.wq` -> `layers.*.attention.wq`
fn generalize(path: &str) -> String {
    path.split('.')
        .map(|part| {
            if !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) {
                "*"
            } else {
                part
            }
        })
        .collect::<Vec<_>>()
        .join(".")
}

impl std::fmt::Display for Explanation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "mesh {}, {} window(s)", self.mesh, self.windows)?;
        match &self.nodes {
            Some(nodes) => writeln!(f, ", {nodes}")?,
            None => writeln!(f)?,
        }
        for scheduled in &self.scheduled {
            writeln!(f, "{scheduled}")?;
        }
        if self.collectives.is_empty() {
            writeln!(f, "no communication")?;
        }
        for c in &self.collectives {
            let mut line = String::new();
            write!(
                line,
                "{:>5} x {:<14} {:<10} {:>10}  {:?} {} -> {}",
                c.count,
                c.kind,
                c.axes,
                human_bytes(c.bytes),
                c.shape,
                c.from,
                c.to
            )?;
            write!(line, "  ({}", c.reason)?;
            if let Some(path) = &c.path {
                write!(line, ", {path}")?;
            }
            writeln!(f, "{line})")?;
        }
        for (kind, total) in &self.totals {
            writeln!(
                f,
                "{kind}: {} call(s) in {} launch(es), {} received by the busiest rank",
                total.count,
                total.launches,
                human_bytes(total.bytes)
            )?;
        }
        for (axes, ns) in &self.communication_ns {
            let ms = *ns as f64 / 1e6;
            writeln!(f, "communication over {axes}: {ms:.3} ms on its link(s)")?;
        }
        let Accumulated { added, kept } = self.accumulated;
        if self.accumulation != Accumulation::default().to_string() || added + kept > 0 {
            writeln!(
                f,
                "gradients reduced per {}: {added} sum(s) before the reduction, {kept} kept unreduced beyond a window",
                self.accumulation
            )?;
        }
        self.write_checkpoint(f)?;
        self.write_float8(f)?;
        self.write_overlaps(f)?;
        if self.redundancy.flops > 0.0 {
            writeln!(f, "{}", self.redundancy)?;
        }
        if let Some(fused) = &self.fused {
            writeln!(f, "{fused}")?;
        }
        if let Some(asked) = &self.without_regions {
            writeln!(
                f,
                "regions: flex, where {asked} was asked for: ranks compute on another backend than Flex, which has no \
                 kernels of regions, and run its operations"
            )?;
        }
        self.write_memory(f)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_that_another_backend_does_not_have_are_named() {
        let explanation = Explanation::new("dp=2".into()).without_regions(Regions::On);
        let text = explanation.to_string();
        assert!(
            text.contains(
                "regions: flex, where on was asked for: ranks compute on another backend"
            ),
            "{text}"
        );
        assert!(
            !Explanation::new("dp=2".into())
                .to_string()
                .contains("regions")
        );
    }

    #[test]
    fn ranks_that_agree_share_a_line() {
        let plan = |peak_bytes| MemoryPlan {
            peak_bytes,
            ..MemoryPlan::default()
        };
        let explanation = Explanation {
            memory: [1, 1, 2, 1, 3, 3].map(plan).to_vec(),
            ..Explanation::default()
        };
        let text = explanation.to_string();
        let heads: Vec<&str> = text
            .lines()
            .filter_map(|line| Some(line.split_once(": peak")?.0))
            .collect();
        assert_eq!(heads, ["ranks 0..1, 3", "rank 2", "ranks 4..5"]);
    }
}
