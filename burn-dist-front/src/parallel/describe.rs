//! The trait the derive implements, and what its expansion writes into.

use super::entry::{Action, Entry, Split, StageMark, StyleEntry, Target};
use super::{LayoutText, Style};
use crate::plan::UnitPolicy;
use burn_dist_plan::layout::written::LayoutParts;

/// A module that says how it is split over a device mesh: what the derive of `Parallelize` implements.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say how it is parallelised",
    label = "no plan",
    note = "add `#[derive(Parallelize)]` to the module, or give a plan: `model.parallelize_with(&mesh, \
        &Plan::new().colwise(\"...\"))`"
)]
pub trait Describe {
    /// Writes the attributes into `scope`, those of nested modules too.
    fn describe(&self, scope: &mut Scope);
}

impl<T: Describe> Describe for Vec<T> {
    fn describe(&self, scope: &mut Scope) {
        self.as_slice().describe(scope);
    }
}

impl<T: Describe, const N: usize> Describe for [T; N] {
    fn describe(&self, scope: &mut Scope) {
        self.as_slice().describe(scope);
    }
}

impl<T: Describe> Describe for [T] {
    fn describe(&self, scope: &mut Scope) {
        for (i, item) in self.iter().enumerate() {
            scope.enter(&i.to_string(), |scope| item.describe(scope));
        }
    }
}

impl<T: Describe> Describe for Option<T> {
    fn describe(&self, scope: &mut Scope) {
        if let Some(item) = self {
            item.describe(scope);
        }
    }
}

/// A description of a module, at some path in it: what has been written so far.
#[derive(Debug, Default)]
pub struct Scope {
    path: Vec<String>,
    entries: Vec<Entry>,
}

impl Scope {
    /// Describes what lies under `segment`: a field, a variant, or an index, spelled as Burn's derive spells it.
    pub fn enter(&mut self, segment: &str, describe: impl FnOnce(&mut Self)) {
        self.path.push(segment.into());
        describe(self);
        self.path.pop();
    }

    /// Marks the module here as a unit with a policy; of a list, each element.
    pub fn unit(&mut self, policy: UnitPolicy) {
        self.push(Action::Unit(policy), false);
    }

    /// Leaves everything here whole on every rank, at rest too.
    pub fn skip(&mut self) {
        self.push(Action::Skip, false);
    }

    /// Gives what is here the first stage.
    pub fn first(&mut self) {
        self.push(Action::Stage(StageMark::First), false);
    }

    /// Gives what is here the last stage.
    pub fn last(&mut self) {
        self.push(Action::Stage(StageMark::Last), false);
    }

    /// Cuts the list here into stages, evenly.
    pub fn stages(&mut self, _blocks: &(impl Blocks + ?Sized)) {
        self.push(Action::Stage(StageMark::Blocks(Split::Even)), false);
    }

    /// Cuts the list here into stages by what each block costs.
    pub fn stage_weights(&mut self, _blocks: &(impl Blocks + ?Sized), weights: &[f64]) {
        let split = Split::Weights(weights.into());
        self.push(Action::Stage(StageMark::Blocks(split)), false);
    }

    /// Gives the module or parameter here a style.
    pub fn style(&mut self, mark: Mark) {
        let Mark {
            style,
            input,
            output,
            vacant,
        } = mark;
        self.push(Action::Style(style), vacant);
        if let Some(text) = input {
            self.push(Action::Input(Ok(text)), vacant);
        }
        if let Some(text) = output {
            self.push(Action::Output(Ok(text)), vacant);
        }
    }

    pub(super) fn into_entries(self) -> Vec<Entry> {
        self.entries
    }

    fn push(&mut self, action: Action, vacant: bool) {
        let path = self.path.clone();
        let target = Target::Field { path, vacant };
        self.entries.push(Entry { target, action });
    }
}

/// A list of blocks, which can be cut into stages.
#[diagnostic::on_unimplemented(
    message = "`stages` cuts a list of blocks, and `{Self}` is none",
    label = "no list",
    note = "put it on a `Vec` or an array of blocks; `first` and `last` are for single modules"
)]
pub trait Blocks {}

impl<T> Blocks for Vec<T> {}
impl<T, const N: usize> Blocks for [T; N] {}
impl<T: Blocks> Blocks for Option<T> {}

/// A style with its options.
#[derive(Debug)]
pub struct Mark {
    style: StyleEntry,
    input: Option<LayoutText>,
    output: Option<LayoutText>,
    vacant: bool,
}

impl Mark {
    /// Starts with a style over the default axis.
    pub fn new(style: Style) -> Self {
        Self {
            style: StyleEntry {
                style,
                axes: None,
                heads: None,
            },
            input: None,
            output: None,
            vacant: false,
        }
    }

    /// Names the axes, one but for experts; the mesh has to have them.
    pub fn axes(mut self, axes: &[&str]) -> Self {
        self.style.axes = Some(axes.iter().map(|axis| (*axis).into()).collect());
        self
    }

    /// Sets the layout of the input.
    pub fn input(mut self, layout: LayoutParts<'_>) -> Self {
        self.input = Some(LayoutText::from_parts(&layout));
        self
    }

    /// Sets the layout of the output.
    pub fn output(mut self, layout: LayoutParts<'_>) -> Self {
        self.output = Some(LayoutText::from_parts(&layout));
        self
    }

    /// Sets a count the axis has to divide, and what is counted.
    pub fn heads(mut self, count: usize, what: &str) -> Self {
        self.style.heads = Some((count, what.into()));
        self
    }

    /// Sets whether the field holds nothing just now, so that it is no mistake to find no parameter there.
    pub fn vacant(mut self, vacant: bool) -> Self {
        self.vacant = vacant;
        self
    }
}

/// Finding out whether a field's type has a plan, by trait resolution on the type itself (autoref specialisation).
///
/// `(&Probe(&field)).describe_into(scope)` takes the method of `ViaPlan` if the type implements [`Describe`], and
/// that of `ViaNothing`, one reference further away, if not. Foreign types need no impl, and no type name is
/// compared.
pub mod probe {
    use super::{Describe, Scope};

    /// A field to ask about.
    #[derive(Debug)]
    pub struct Probe<'a, T: ?Sized>(pub &'a T);

    /// Fields with a plan.
    pub trait ViaPlan {
        /// Writes the field's own plan.
        fn describe_into(&self, scope: &mut Scope);
    }

    impl<T: Describe + ?Sized> ViaPlan for Probe<'_, T> {
        fn describe_into(&self, scope: &mut Scope) {
            self.0.describe(scope);
        }
    }

    /// Fields without.
    pub trait ViaNothing {
        /// Writes nothing: the field's type has no plan.
        fn describe_into(&self, _scope: &mut Scope) {}

        /// Returns whether the field holds nothing; only lists and options can.
        fn is_vacant(&self) -> bool {
            false
        }
    }

    impl<T: ?Sized> ViaNothing for &Probe<'_, T> {}

    /// Lists and options, whose items are looked at one by one.
    pub trait EachItem<T> {
        /// Calls `describe` for each item, under its index where there is one.
        fn each(&self, scope: &mut Scope, describe: impl FnMut(&mut Scope, &T));

        /// Returns whether there is no item.
        fn is_vacant(&self) -> bool;
    }

    impl<T> EachItem<T> for Probe<'_, Vec<T>> {
        fn each(&self, scope: &mut Scope, describe: impl FnMut(&mut Scope, &T)) {
            each(self.0, scope, describe);
        }

        fn is_vacant(&self) -> bool {
            self.0.is_empty()
        }
    }

    impl<T, const N: usize> EachItem<T> for Probe<'_, [T; N]> {
        fn each(&self, scope: &mut Scope, describe: impl FnMut(&mut Scope, &T)) {
            each(self.0, scope, describe);
        }

        fn is_vacant(&self) -> bool {
            N == 0
        }
    }

    impl<T> EachItem<T> for Probe<'_, Option<T>> {
        fn each(&self, scope: &mut Scope, mut describe: impl FnMut(&mut Scope, &T)) {
            if let Some(item) = self.0 {
                describe(scope, item);
            }
        }

        fn is_vacant(&self) -> bool {
            self.0.is_none()
        }
    }

    /// Everything else has no items.
    pub trait EachNothing {
        /// Describes nothing.
        fn each<T>(&self, _scope: &mut Scope, _describe: impl FnMut(&mut Scope, &T)) {}
    }

    impl<T: ?Sized> EachNothing for &Probe<'_, T> {}

    fn each<T>(items: &[T], scope: &mut Scope, mut describe: impl FnMut(&mut Scope, &T)) {
        for (i, item) in items.iter().enumerate() {
            scope.enter(&i.to_string(), |scope| describe(scope, item));
        }
    }
}
