//! Plan x parameters x mesh -> one spec per parameter. A pure function.

use super::fit::{self, Relation};
use super::pattern::{Pattern, closest_first};
use super::plan::{Action, DEFAULT_AXIS, Entry, Origin, Plan, StyleEntry};
use super::stages;
use super::walk::{Parameter, Walk};
use super::{LayoutText, ParallelError, ParamRole, ParamSpec, Style};
use crate::layout::{Layout, LayoutError};
use crate::mesh::{AxisIndex, MeshShape};
use crate::plan::{Policy, Stage, UnitPolicy};
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

/// How many existing paths an error lists.
const NUM_LISTED_MAX: usize = 8;

/// Where an entry's pattern meets a parameter's path: the segments it names, and what they are to the parameter.
pub(super) type Meeting = Option<(usize, Relation)>;

pub(super) fn resolve(
    plan: &Plan,
    walk: &Walk,
    mesh: &MeshShape,
) -> Result<Vec<ParamSpec>, ParallelError> {
    let parameters = &walk.parameters;
    let mut met: Vec<Vec<Meeting>> = Vec::with_capacity(plan.entries.len());
    for entry in &plan.entries {
        check_axes(entry, mesh)?;
        if let Action::Unit(policy) = &entry.action {
            check_policy(&entry.place(), policy, mesh)?;
        }
        let meetings = meetings(entry, parameters)?;
        if meetings.iter().all(Option::is_none) {
            check_may_be_empty(entry, walk)?;
        } else if let Action::Unit(policy) = &entry.action {
            let met = meetings.iter().zip(parameters);
            let of_unit = met.filter_map(|(met, parameter)| met.map(|_| parameter));
            check_skipped(&entry.place(), policy, of_unit.collect())?;
        }
        met.push(meetings);
    }
    let model = "the policy of the model";
    check_policy(model, &plan.policy, mesh)?;
    check_skipped(model, &plan.policy, parameters.iter().collect())?;
    let stages = stages::stages(plan, walk, &met, mesh)?;
    let resolver = Resolver {
        plan,
        parameters,
        mesh,
        met,
        stages,
    };
    // Equal policies are one.
    let mut policies: HashSet<Arc<Policy>> = HashSet::new();
    let mut intern = |policy: Policy| match policies.get(&policy) {
        Some(known) => known.clone(),
        None => {
            let policy = Arc::new(policy);
            policies.insert(policy.clone());
            policy
        }
    };
    let specs = 0..parameters.len();
    specs.map(|i| resolver.spec(i, &mut intern)).collect()
}

/// Finds what the pattern names in each parameter's path.
fn meetings(entry: &Entry, parameters: &[Parameter]) -> Result<Vec<Meeting>, ParallelError> {
    let pattern = match &entry.pattern {
        Ok(pattern) => pattern,
        Err(reason) => {
            return Err(ParallelError::MalformedPattern {
                entry: entry.verb(),
                pattern: entry.text.clone(),
                reason: reason.clone(),
            });
        }
    };
    let meeting = |parameter: &Parameter| {
        // `**` may name several modules on the way down; the one nearest to the parameter is meant.
        (0..=parameter.names.len())
            .filter(|len| pattern.matches(&parameter.names[..*len]))
            .map(|len| (fit::relation(parameter, len), len))
            .max()
            .map(|(relation, len)| (len, relation))
    };
    Ok(parameters.iter().map(meeting).collect())
}

/// An axis that was named has to exist, but for the default one, and to be one that tensors are split over.
fn check_axes(entry: &Entry, mesh: &MeshShape) -> Result<(), ParallelError> {
    // Named explicitly, and in texts that may name the default axis.
    let (style, others): (_, Vec<&str>) = match &entry.action {
        Action::Style(style) => (style.axis.as_deref(), Vec::new()),
        Action::Divisible { axis, .. } => (None, vec![axis]),
        Action::Input(layout) | Action::Output(layout) => {
            let malformed = |source: &LayoutError| ParallelError::MalformedLayout {
                place: entry.place(),
                source: source.clone(),
            };
            (None, layout.as_ref().map_err(malformed)?.axes().collect())
        }
        Action::Skip | Action::Unit(_) | Action::Stage(_) => (None, Vec::new()),
    };
    let of_style = style_axes(entry);
    for (at, name) in of_style.iter().enumerate() {
        if of_style[..at].contains(name) {
            return Err(ParallelError::AxisTwice {
                place: entry.place(),
                axis: (*name).into(),
            });
        }
    }
    for name in of_style.into_iter().chain(others.iter().copied()) {
        match mesh.axis(name) {
            Ok(axis) if mesh.role(axis).cuts_stages() => {
                return Err(ParallelError::PipelineAxis {
                    place: entry.place(),
                    axis: name.into(),
                });
            }
            Err(_) if style.is_some() || name != DEFAULT_AXIS => {
                return Err(unknown_axis(entry.place(), name, mesh));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The axes that an entry names for its style: one, or for experts several.
fn style_axes(entry: &Entry) -> Vec<&str> {
    match &entry.action {
        Action::Style(style) => style.axes().unwrap_or_default(),
        _ => Vec::new(),
    }
}

fn unknown_axis(place: String, axis: &str, mesh: &MeshShape) -> ParallelError {
    let axes = mesh.axes().iter();
    ParallelError::UnknownAxis {
        place,
        axis: axis.into(),
        axes: axes.map(|a| format!("{}={}", a.name, a.size)).collect(),
    }
}

/// A precision has to be possible, patterns are to be read, and strategies are for shard axes of the mesh.
fn check_policy(place: &str, policy: &UnitPolicy, mesh: &MeshShape) -> Result<(), ParallelError> {
    if let Some(precision) = policy.precision.filter(|p| !p.is_possible()) {
        return Err(ParallelError::ImpossiblePrecision {
            place: place.into(),
            precision,
        });
    }
    let float8 = policy.float8.iter().flatten();
    for pattern in float8.flat_map(|float8| &float8.skip) {
        if let Err(reason) = Pattern::parse(pattern) {
            return Err(ParallelError::MalformedPattern {
                entry: format!("{place}: float8 skip"),
                pattern: pattern.clone(),
                reason,
            });
        }
    }
    let named = policy.strategies.iter();
    for name in named.filter_map(|(axis, _)| axis.as_deref()) {
        match mesh.axis(name) {
            Ok(axis) if !mesh.role(axis).shards() => {
                return Err(ParallelError::NotSharded {
                    place: place.into(),
                    axis: name.into(),
                    mesh: mesh.clone(),
                });
            }
            Err(_) => return Err(unknown_axis(place.into(), name, mesh)),
            Ok(_) => {}
        }
    }
    Ok(())
}

/// What a policy leaves as it is has to be there, among the parameters that it is said of.
fn check_skipped(
    place: &str,
    policy: &UnitPolicy,
    parameters: Vec<&Parameter>,
) -> Result<(), ParallelError> {
    let float8 = policy.float8.iter().flatten();
    for text in float8.flat_map(|float8| &float8.skip) {
        let names = |parameter: &&Parameter| {
            let path = &parameter.names;
            let pattern = Pattern::parse(text);
            pattern.is_ok_and(|pattern| (0..=path.len()).any(|len| pattern.matches(&path[..len])))
        };
        if !parameters.iter().any(names) {
            let entry = format!("{place}: float8 skip");
            return Err(unknown_path(entry, text, parameters));
        }
    }
    Ok(())
}

/// A pattern names none of these parameters and of the modules that they are in.
fn unknown_path<'a>(
    entry: String,
    pattern: &str,
    parameters: impl IntoIterator<Item = &'a Parameter>,
) -> ParallelError {
    let mut closest = existing_paths(parameters);
    closest_first(pattern, &mut closest);
    let num_more = closest.len().saturating_sub(NUM_LISTED_MAX);
    closest.truncate(NUM_LISTED_MAX);
    ParallelError::UnknownPath {
        entry,
        pattern: pattern.into(),
        closest,
        num_more,
    }
}

/// Complains about an entry that names nothing, if that is a mistake.
fn check_may_be_empty(entry: &Entry, walk: &Walk) -> Result<(), ParallelError> {
    match (&entry.origin, &entry.action) {
        (Origin::Written, action) => {
            if let (Action::Unit(_), Ok(pattern)) = (action, &entry.pattern)
                && let Some(names) = walk.modules.iter().find(|names| pattern.matches(names))
            {
                return Err(ParallelError::NoUnit {
                    place: entry.place(),
                    path: names.join("."),
                });
            }
            Err(unknown_path(entry.verb(), &entry.text, &walk.parameters))
        }
        (Origin::Derived { vacant: false }, Action::Style(style)) if style.style.splits() => {
            Err(ParallelError::NoParameters {
                path: entry.text.clone(),
                style: style.style,
            })
        }
        (Origin::Derived { .. }, _) => Ok(()),
    }
}

/// Every path that exists, modules and parameters, with `*` for the indices of lists.
fn existing_paths<'a>(parameters: impl IntoIterator<Item = &'a Parameter>) -> Vec<String> {
    let mut paths = BTreeSet::new();
    for parameter in parameters {
        let names: Vec<&str> = parameter
            .segments
            .iter()
            .map(|s| {
                if s.is_interchangeable() {
                    "*"
                } else {
                    s.name.as_str()
                }
            })
            .collect();
        paths.extend((1..=names.len()).map(|len| names[..len].join(".")));
    }
    paths.into_iter().collect()
}

struct Resolver<'a> {
    plan: &'a Plan,
    parameters: &'a [Parameter],
    mesh: &'a MeshShape,
    /// Per entry, per parameter.
    met: Vec<Vec<Meeting>>,
    /// Per parameter, on a mesh with stages.
    stages: Option<Vec<Stage>>,
}

/// What the entries say about one parameter, the later over the earlier.
#[derive(Default)]
struct Said<'a> {
    /// The entry that gives the style.
    style: Option<usize>,
    skip: bool,
    input: Option<(&'a LayoutText, Origin)>,
    output: Option<(&'a LayoutText, Origin)>,
    /// Number of segments of the unit's path; the longest wins.
    unit: Option<usize>,
    /// What is said of the units it is in, with the number of segments of their paths.
    policies: Vec<(usize, &'a UnitPolicy)>,
    divisible: Vec<(usize, &'a str, usize)>,
}

impl Resolver<'_> {
    fn spec(
        &self,
        i: usize,
        intern: &mut impl FnMut(Policy) -> Arc<Policy>,
    ) -> Result<ParamSpec, ParallelError> {
        let parameter = &self.parameters[i];
        let said = self.said(i);
        let model = self.plan.policy.over(&Policy::default(), self.mesh);
        let policy = said
            .policies
            .iter()
            .fold(model, |around, (_, policy)| policy.over(&around, self.mesh));
        let mut spec = ParamSpec {
            path: parameter.path(),
            style: Style::Replicate,
            role: ParamRole::Other,
            layout: layout(&parameter.shape, None, self.mesh),
            input: said.input.and_then(|(text, _)| self.without_missing(text)),
            output: said.output.and_then(|(text, _)| self.without_missing(text)),
            unit: said.unit.map(|len| parameter.prefix(len)),
            at_rest: !said.skip && !policy.replicates(self.mesh),
            policy: intern(policy),
            stage: self.stages.as_ref().map(|stages| stages[i].clone()),
        };
        let style = said
            .style
            .and_then(|e| match (&self.plan.entries[e].action, self.met[e][i]) {
                (Action::Style(style), Some((len, relation))) => Some((e, style, len, relation)),
                _ => None,
            });
        let Some((e, entry, len, relation)) = style else {
            let (_, role) = fit::fit(
                parameter,
                Style::Replicate,
                Relation::Holder,
                &spec.path,
                &String::new,
            )?;
            spec.role = role;
            return Ok(spec);
        };
        let named = parameter.prefix(len);
        let others = || self.described(e, &named);
        let (dim, role) = fit::fit(parameter, entry.style, relation, &named, &others)?;
        let axes = self.axes(entry);
        spec.style = entry.style;
        spec.role = role;
        let experts = dim.filter(|_| entry.style == Style::Experts);
        let experts = experts.map(|dim| parameter.shape[dim]);
        if self.splits_evenly(&named, entry, &axes, experts, &said.divisible)? {
            spec.layout = layout(&parameter.shape, dim.zip(Some(axes)), self.mesh);
        } else {
            spec.style = Style::Replicate;
            spec.input = None;
            spec.output = None;
        }
        Ok(spec)
    }

    fn said(&self, i: usize) -> Said<'_> {
        let parameter = &self.parameters[i];
        let mut said = Said::default();
        for (e, entry) in self.plan.entries.iter().enumerate() {
            let Some((len, _)) = self.met[e][i] else {
                continue;
            };
            match &entry.action {
                Action::Style(_) | Action::Skip => {
                    said.skip = matches!(entry.action, Action::Skip);
                    said.style = (!said.skip).then_some(e);
                    // Layouts that came with an attribute's style go with it.
                    if said.skip || entry.origin == Origin::Written {
                        let written = |layout: &(&LayoutText, Origin)| layout.1 == Origin::Written;
                        said.input = said.input.filter(written);
                        said.output = said.output.filter(written);
                    }
                }
                Action::Input(Ok(text)) => said.input = Some((text, entry.origin)),
                Action::Output(Ok(text)) => said.output = Some((text, entry.origin)),
                Action::Input(Err(_)) | Action::Output(Err(_)) => {}
                Action::Unit(policy) => {
                    said.policies.push((len, policy));
                    let elements = parameter.segments[len..]
                        .iter()
                        .take_while(|s| s.is_element())
                        .count();
                    said.unit = said.unit.max(Some(len + elements));
                }
                Action::Divisible { count, axis } => said.divisible.push((len, axis, *count)),
                Action::Stage(_) => {}
            }
        }
        // The nearest last; of two at one place the later counts.
        said.policies.sort_by_key(|(len, _)| *len);
        said
    }

    /// The axes of a style, as far as the mesh has them: one, but for experts.
    fn axes(&self, entry: &StyleEntry) -> Vec<AxisIndex> {
        let axes = match entry.axes() {
            None if entry.style == Style::Experts => return self.mesh.expert_axes(),
            None => vec![DEFAULT_AXIS],
            Some(axes) => axes,
        };
        let axes = axes.into_iter();
        axes.filter_map(|axis| self.mesh.axis(axis).ok()).collect()
    }

    /// Drops the default axis from an activation's layout when the mesh lacks it.
    fn without_missing(&self, text: &LayoutText) -> Option<LayoutText> {
        if self.mesh.axis(DEFAULT_AXIS).is_ok() || text.axes().all(|axis| axis != DEFAULT_AXIS) {
            return Some(text.clone());
        }
        text.without(DEFAULT_AXIS)
    }

    /// Whether all counts divide, `experts` among them; `false` if not and that means replicating.
    fn splits_evenly(
        &self,
        named: &str,
        entry: &StyleEntry,
        axes: &[AxisIndex],
        experts: Option<usize>,
        divisible: &[(usize, &str, usize)],
    ) -> Result<bool, ParallelError> {
        if axes.is_empty() || !entry.style.splits() {
            return Ok(true);
        }
        let size = self.mesh.group_size(axes);
        let names: Vec<&str> = axes.iter().map(|axis| self.mesh.name(*axis)).collect();
        let heads = entry
            .heads
            .iter()
            .map(|(count, what)| (*count, what.as_str()));
        let required = divisible
            .iter()
            .filter(|(_, required, _)| names.contains(required))
            .map(|(_, required, count)| (*count, "parts", *required));
        let name = names.join(" x ");
        let all = experts.map(|count| (count, "experts")).into_iter();
        let all = all.chain(heads).map(|(count, what)| (count, what, None));
        let required = required.map(|(count, what, axis)| (count, what, Some(axis)));
        for (count, what, axis) in all.chain(required) {
            let (size, name) = match axis.and_then(|axis| Some((axis, self.mesh.axis(axis).ok()?)))
            {
                Some((name, axis)) => (self.mesh.size(axis), name),
                None => (size, name.as_str()),
            };
            if count.is_multiple_of(size) {
                continue;
            }
            if self.plan.replicate_indivisible {
                return Ok(false);
            }
            return Err(ParallelError::Indivisible {
                path: named.into(),
                count,
                what: what.into(),
                axis: name.into(),
                size,
            });
        }
        Ok(true)
    }

    /// The parameters an entry names at one path, for messages: `gamma [64], beta [64]`.
    fn described(&self, e: usize, named: &str) -> String {
        let all: Vec<String> = self
            .parameters
            .iter()
            .zip(&self.met[e])
            .filter_map(|(parameter, met)| {
                let (len, _) = met.filter(|(len, _)| parameter.prefix(*len) == named)?;
                let name = parameter.names[len..].join(".");
                Some(
                    format!("{name} {}", fit::shape(&parameter.shape))
                        .trim_start()
                        .into(),
                )
            })
            .collect();
        match all.split_at_checked(4) {
            Some((first, rest)) if !rest.is_empty() => {
                format!("{} and {} more", first.join(", "), rest.len())
            }
            _ => all.join(", "),
        }
    }
}

/// The layout of a tensor split over at most one dim; a split over one rank is none.
fn layout(shape: &[usize], split: Option<(usize, Vec<AxisIndex>)>, mesh: &MeshShape) -> Layout {
    match split {
        Some((dim, mut axes)) => {
            axes.retain(|axis| mesh.size(*axis) > 1);
            Layout::sharded(shape, dim, &axes)
        }
        None => Layout::replicated(shape),
    }
}
