//! Plan x parameters x mesh -> one spec per parameter. A pure function.

use super::entry::{Action, Entry, StyleEntry, Target};
use super::fit::{self, Match, Relation};
use super::pattern::{Pattern, closest_first};
use super::plan::{DEFAULT_AXIS, Plan};
use super::stages;
use super::tree::{ModuleTree, Node, Parameter, decisive};
use super::{LayoutText, ParallelError, ParamRole, ParamSpec, Style};
use crate::layout::{Layout, LayoutError};
use crate::mesh::{AxisIndex, MeshShape};
use crate::plan::{Policy, Stage, UnitPolicy};
use burn_dist_plan::pattern::PatternSegment;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

/// How many existing paths an error lists.
const NUM_LISTED_MAX: usize = 8;

impl<L> Plan<L> {
    /// Returns one spec per float parameter of a tree, in the order of its walk.
    ///
    /// # Errors
    /// Those of [`Self::resolve`].
    #[doc(hidden)]
    pub fn resolve_tree(
        &self,
        tree: &ModuleTree,
        mesh: &MeshShape,
    ) -> Result<Vec<ParamSpec>, ParallelError> {
        resolve(self, tree, mesh)
    }
}

fn resolve<L>(
    plan: &Plan<L>,
    tree: &ModuleTree,
    mesh: &MeshShape,
) -> Result<Vec<ParamSpec>, ParallelError> {
    let parameters = &tree.parameters;
    let mut matches: Vec<Vec<Match>> = Vec::with_capacity(plan.entries.len());
    for entry in &plan.entries {
        check_axes(entry, mesh)?;
        if let Action::Unit(policy) = &entry.action {
            check_policy(&entry.place(), policy, mesh)?;
        }
        let nodes = nodes(entry, tree)?;
        check_bases(entry, &nodes, tree)?;
        let found = matching(&nodes, tree);
        if found.is_empty() {
            check_may_be_empty(entry, &nodes, tree)?;
        } else if let Action::Unit(policy) = &entry.action {
            let of_unit = found.iter().map(|found| &parameters[found.parameter]);
            check_skipped(&entry.place(), policy, of_unit)?;
        }
        matches.push(found);
    }
    let model = "the policy of the model";
    check_policy(model, &plan.policy, mesh)?;
    check_skipped(model, &plan.policy, parameters)?;
    let stages = stages::stages(plan, tree, &matches, mesh)?;
    let mut of_parameter: Vec<Vec<(usize, Match)>> = vec![Vec::new(); parameters.len()];
    for (e, found) in matches.iter().enumerate() {
        for found in found {
            of_parameter[found.parameter].push((e, *found));
        }
    }
    let resolver = Resolver {
        plan,
        parameters,
        mesh,
        matches,
        of_parameter,
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

/// Returns what an entry names in the tree, in the order of the walk.
fn nodes(entry: &Entry, tree: &ModuleTree) -> Result<Vec<Node>, ParallelError> {
    match &entry.target {
        Target::Field { path, .. } => Ok(tree.at(path)),
        Target::Pattern { text, pattern } => match pattern {
            Ok(pattern) => Ok(tree.named(pattern)),
            Err(reason) => Err(ParallelError::MalformedPattern {
                entry: entry.verb(),
                pattern: text.clone(),
                reason: reason.clone(),
            }),
        },
    }
}

/// A style is not for the base of an adapter alone.
fn check_bases(entry: &Entry, nodes: &[Node], tree: &ModuleTree) -> Result<(), ParallelError> {
    let (
        Target::Pattern {
            pattern: Ok(pattern),
            ..
        },
        Action::Style(_),
    ) = (&entry.target, &entry.action)
    else {
        return Ok(());
    };
    // `**` names all that there is.
    if matches!(pattern.segments().last(), Some(PatternSegment::Any)) {
        return Ok(());
    }
    match nodes.iter().find(|node| tree.is_adapted(**node)) {
        Some(node) => Err(ParallelError::AdaptedBase {
            place: entry.place(),
            path: tree.path(*node),
        }),
        None => Ok(()),
    }
}

/// Returns the parameters in nodes, in order, each with the node that is nearest to it: `**` may name several above
/// it.
fn matching(nodes: &[Node], tree: &ModuleTree) -> Vec<Match> {
    let mut nearest: BTreeMap<usize, (Relation, usize)> = BTreeMap::new();
    for node in nodes {
        let len = tree.depth(*node);
        for parameter in tree.parameters_in(*node) {
            let found = (fit::relation(tree.decisive(parameter, len), len), len);
            let known = nearest.entry(parameter).or_insert(found);
            *known = found.max(*known);
        }
    }
    let found = nearest.into_iter();
    found
        .map(|(parameter, (relation, len))| Match {
            parameter,
            len,
            relation,
        })
        .collect()
}

/// An axis that was named has to exist, but for the default one, and to be one that tensors are split over.
fn check_axes(entry: &Entry, mesh: &MeshShape) -> Result<(), ParallelError> {
    // Named explicitly, and in texts that may name the default axis.
    let (of_style, others): (&[String], Vec<&str>) = match &entry.action {
        Action::Style(style) => (style.axes.as_deref().unwrap_or_default(), Vec::new()),
        Action::Divisible { axis, .. } => (&[], vec![axis]),
        Action::Input(layout) | Action::Output(layout) => {
            let malformed = |source: &LayoutError| ParallelError::MalformedLayout {
                place: entry.place(),
                source: source.clone(),
            };
            (&[], layout.as_ref().map_err(malformed)?.axes().collect())
        }
        Action::Skip | Action::Unit(_) | Action::Stage(_) => (&[], Vec::new()),
    };
    for (at, name) in of_style.iter().enumerate() {
        if of_style[..at].contains(name) {
            return Err(ParallelError::AxisTwice {
                place: entry.place(),
                axis: name.clone(),
            });
        }
    }
    for name in of_style.iter().map(String::as_str).chain(others) {
        match mesh.axis(name) {
            Ok(axis) if mesh.role(axis).cuts_stages() => {
                return Err(ParallelError::PipelineAxis {
                    place: entry.place(),
                    axis: name.into(),
                });
            }
            Err(_) if !of_style.is_empty() || name != DEFAULT_AXIS => {
                return Err(unknown_axis(entry.place(), name, mesh));
            }
            _ => {}
        }
    }
    Ok(())
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

/// Checks that what a policy leaves as it is exists, among the parameters that it is for.
fn check_skipped<'a>(
    place: &str,
    policy: &UnitPolicy,
    parameters: impl IntoIterator<Item = &'a Parameter>,
) -> Result<(), ParallelError> {
    if policy
        .float8
        .iter()
        .flatten()
        .all(|float8| float8.skip.is_empty())
    {
        return Ok(());
    }
    let parameters: Vec<&Parameter> = parameters.into_iter().collect();
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

/// Complains about an entry that names no parameter, if that is a mistake; `nodes` is what it names.
fn check_may_be_empty(
    entry: &Entry,
    nodes: &[Node],
    tree: &ModuleTree,
) -> Result<(), ParallelError> {
    match (&entry.target, &entry.action) {
        (Target::Pattern { text, .. }, action) => {
            if let (Action::Unit(_), Some(node)) = (action, nodes.first()) {
                return Err(ParallelError::NoUnit {
                    place: entry.place(),
                    path: tree.path(*node),
                });
            }
            Err(unknown_path(entry.verb(), text, &tree.parameters))
        }
        (Target::Field { vacant: false, .. }, Action::Style(style)) if style.style.splits() => {
            Err(ParallelError::NoParameters {
                path: entry.text(),
                style: style.style,
            })
        }
        (Target::Field { .. }, _) => Ok(()),
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

struct Resolver<'a, L> {
    plan: &'a Plan<L>,
    parameters: &'a [Parameter],
    mesh: &'a MeshShape,
    /// By entry.
    matches: Vec<Vec<Match>>,
    /// By parameter: entries, in order, and where they match it.
    of_parameter: Vec<Vec<(usize, Match)>>,
    /// Per parameter, on a mesh with stages.
    stages: Option<Vec<Stage>>,
}

/// Requests of all entries for one parameter, the later over the earlier.
#[derive(Default)]
struct Asked<'a> {
    /// The style, with its entry and where that matches.
    style: Option<(usize, &'a StyleEntry, Match)>,
    skip: bool,
    input: Option<AskedLayout<'a>>,
    output: Option<AskedLayout<'a>>,
    /// Number of segments of the unit's path; the longest wins.
    unit: Option<usize>,
    /// The policies of the units it is in, with the number of segments of their paths.
    policies: Vec<(usize, &'a UnitPolicy)>,
    divisible: Vec<(usize, &'a str, usize)>,
}

/// The layout of an activation.
struct AskedLayout<'a> {
    text: &'a LayoutText,
    /// True if a person asked for it, not an attribute.
    is_written: bool,
}

impl<L> Resolver<'_, L> {
    fn spec(
        &self,
        i: usize,
        intern: &mut impl FnMut(Policy) -> Arc<Policy>,
    ) -> Result<ParamSpec, ParallelError> {
        let parameter = &self.parameters[i];
        let asked = self.asked(i);
        let model = self.plan.policy.over(&Policy::default(), self.mesh);
        let policy = asked
            .policies
            .iter()
            .fold(model, |around, (_, policy)| policy.over(&around, self.mesh));
        let mut spec = ParamSpec {
            path: parameter.path(),
            style: Style::Replicate,
            role: ParamRole::Other,
            layout: layout(&parameter.shape, None, self.mesh),
            input: asked
                .input
                .and_then(|asked| self.without_missing(asked.text)),
            output: asked
                .output
                .and_then(|asked| self.without_missing(asked.text)),
            unit: asked.unit.map(|len| parameter.prefix(len)),
            at_rest: !asked.skip && !policy.replicates(self.mesh),
            policy: intern(policy),
            stage: self.stages.as_ref().map(|stages| stages[i].clone()),
        };
        let Some((e, entry, Match { len, relation, .. })) = asked.style else {
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
        let decisive = decisive(self.parameters, i, len);
        let (dim, role) = fit::fit(decisive, entry.style, relation, &named, &others)?;
        // A factor is split as its base is, where it has the dim.
        let (dim, role) = match parameter.factor {
            Some(factor) if decisive.names != parameter.names => {
                (dim.filter(|_| dim == factor.dim), ParamRole::Other)
            }
            _ => (dim, role),
        };
        let axes = self.axes(entry);
        spec.style = entry.style;
        spec.role = role;
        let experts = dim.filter(|_| entry.style == Style::Experts);
        let experts = experts.map(|dim| parameter.shape[dim]);
        if self.splits_evenly(&named, entry, &axes, experts, &asked.divisible)? {
            spec.layout = layout(&parameter.shape, dim.zip(Some(axes)), self.mesh);
        } else {
            spec.style = Style::Replicate;
            spec.input = None;
            spec.output = None;
        }
        Ok(spec)
    }

    fn asked(&self, i: usize) -> Asked<'_> {
        let parameter = &self.parameters[i];
        let mut asked = Asked::default();
        for (e, found) in &self.of_parameter[i] {
            let (entry, len) = (&self.plan.entries[*e], found.len);
            let layout = |text| AskedLayout {
                text,
                is_written: entry.is_written(),
            };
            match &entry.action {
                Action::Style(style) => asked.style = Some((*e, style, *found)),
                Action::Skip => asked.style = None,
                Action::Input(Ok(text)) => asked.input = Some(layout(text)),
                Action::Output(Ok(text)) => asked.output = Some(layout(text)),
                Action::Input(Err(_)) | Action::Output(Err(_)) => {}
                Action::Unit(policy) => {
                    asked.policies.push((len, policy));
                    let elements = parameter.segments[len..]
                        .iter()
                        .take_while(|s| s.is_element())
                        .count();
                    asked.unit = asked.unit.max(Some(len + elements));
                }
                Action::Divisible { count, axis } => asked.divisible.push((len, axis, *count)),
                Action::Stage(_) => {}
            }
            if matches!(entry.action, Action::Style(_) | Action::Skip) {
                asked.skip = matches!(entry.action, Action::Skip);
                // Layouts that came with an attribute's style go with it.
                if asked.skip || entry.is_written() {
                    asked.input = asked.input.filter(|asked| asked.is_written);
                    asked.output = asked.output.filter(|asked| asked.is_written);
                }
            }
        }
        // The nearest last; of two at one path the later counts.
        asked.policies.sort_by_key(|(len, _)| *len);
        asked
    }

    /// The axes of a style, as far as the mesh has them: one, but for experts.
    fn axes(&self, entry: &StyleEntry) -> Vec<AxisIndex> {
        let axis = |name: &str| self.mesh.axis(name).ok();
        match &entry.axes {
            None if entry.style == Style::Experts => self.mesh.expert_axes(),
            None => axis(DEFAULT_AXIS).into_iter().collect(),
            Some(axes) => axes.iter().filter_map(|name| axis(name)).collect(),
        }
    }

    /// Drops the default axis from an activation's layout when the mesh lacks it.
    fn without_missing(&self, text: &LayoutText) -> Option<LayoutText> {
        if self.mesh.axis(DEFAULT_AXIS).is_ok() || text.axes().all(|axis| axis != DEFAULT_AXIS) {
            return Some(text.clone());
        }
        text.without(DEFAULT_AXIS)
    }

    /// Returns whether all counts divide, `experts` among them; `false` if not and that means replicating.
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
        let here = |found: &&Match| self.parameters[found.parameter].prefix(found.len) == named;
        let describe = |found: &Match| {
            let parameter = &self.parameters[found.parameter];
            let name = parameter.names[found.len..].join(".");
            let text = format!("{name} {}", fit::shape(&parameter.shape));
            text.trim_start().to_owned()
        };
        let all: Vec<String> = self.matches[e].iter().filter(here).map(describe).collect();
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
