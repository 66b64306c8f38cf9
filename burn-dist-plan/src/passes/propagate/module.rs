//! What parameters ask for: where they rest, the layouts of their module, and that an update is still the parameter.

use std::sync::Arc;

use super::offers::are_terms_of_rows;
use super::operands::Tensors;
use super::{Propagator, Unflattened};
use crate::PlanError;
use crate::ir::{Adjoint, Mark, Op, Origin, Owner, ParamSpec, Reason, Role, ValueIndex, Version};
use crate::layout::{Layout, LayoutText, Partial};
use crate::mesh::AxisIndex;
use crate::rule::Rule;

impl<O: Op> Propagator<'_, O> {
    /// Takes in what the program says of a value.
    pub(super) fn mark(&mut self, mark: &Mark, tensors: &Tensors<'_>) -> Result<(), PlanError> {
        let (value, out) = (tensors.inputs[0].id, tensors.outputs[0].id);
        let (layout, tag, what) = match mark {
            Mark::Param(spec) => {
                self.values[out as usize].owner = Owner::from(spec.as_ref());
                (spec.home(self.mesh), Some(spec.clone()), "parameter placed")
            }
            Mark::Redistribute(layout) => (layout.as_ref().clone(), None, "redistribute"),
        };
        if tag.is_none() && self.value(value).origin == Some(Origin::Data) {
            let rows = tensors.inputs[0].shape.first();
            self.program.rows = self.program.rows.max(rows.copied().unwrap_or(1));
        }
        let layout = Arc::new(layout);
        let slot = self.require(value, &layout, Reason::Constraint(what))?;
        if tag.is_some() {
            // Where nothing moves, the parameter is in the slot of what it is made of.
            self.values[value as usize].tag = tag.clone();
        }
        let result = &mut self.values[out as usize];
        result.tag = tag;
        result.preferred = layout.clone();
        result.versions.push(Version {
            layout,
            slot,
            until: None,
        });
        self.note_decided(out);
        Ok(())
    }

    /// Returns whether a value that is partial like that is made of terms of a gradient, one per rank of data axes.
    pub(super) fn is_gradient(&self, value: ValueIndex, partial: &[Partial]) -> bool {
        self.state.facts.backward[value as usize] && are_terms_of_rows(partial, self.mesh)
    }

    /// Returns where the result of an operation on pieces rests, if it belongs to the update of a parameter.
    pub(super) fn updates(&self, rule: &Rule, tensors: &Tensors<'_>) -> Option<Arc<Layout>> {
        let home = self.value(tensors.outputs[0].id).home.clone();
        let is_on_pieces = || rule.elementwise || self.follows_pieces(rule, tensors);
        home.filter(|_| tensors.outputs.len() == 1 && is_on_pieces())
    }

    /// Returns whether an operation works on what is at rest.
    pub(super) fn on_pieces(&self, rule: &Rule, tensors: &Tensors<'_>) -> bool {
        rule.on_pieces() || self.follows_pieces(rule, tensors)
    }

    /// Returns whether an operation works on what is at rest for being of an update: its result is, and so is an
    /// operand that is as large, or larger. A gradient that is summed from what is none of the update is made by the
    /// backward.
    fn follows_pieces(&self, rule: &Rule, tensors: &Tensors<'_>) -> bool {
        let out = &tensors.outputs[0];
        let is_of_update = |value: ValueIndex| self.value(value).home.is_some();
        let mut inputs = tensors.inputs.iter();
        is_of_update(out.id)
            && inputs.any(|input| input.numel() >= out.numel() && is_of_update(input.id))
            && rule.keeps_dims()
    }

    /// Returns where the result of an operation rests that is there in layout `made`: what updates a parameter, the
    /// gradient of a table that is read at indices, and that of a layer's weights that nothing but elementwise
    /// operations use.
    pub(super) fn resting(&self, op: &O, out: ValueIndex, made: &Layout) -> Option<Layout> {
        if let Some(home) = &self.value(out).home {
            return Some(home.as_ref().clone());
        }
        let traits = op.traits();
        if let (Some(Adjoint::Written { .. }), Role::Gradient(Some(table))) =
            (traits.adjoint, &self.state.facts.roles[out as usize])
        {
            return Some(table.home(self.mesh)).filter(|home| !home.at_rest.is_empty());
        }
        let gradient = traits.makes_weight_gradient && self.state.facts.of_layer[out as usize];
        let rest = || made.at_rest_over(self.mesh, &self.rest_axes(out));
        (gradient && made.at_rest.is_empty()).then(rest)
    }

    /// Brings what an operation has made to where it rests, and keeps nothing else of it: a gradient that every rank
    /// has made whole is cut at once. Terms of a gradient are left alone: they are summed there once they are all
    /// there.
    pub(super) fn bring_home(&mut self, op: &O, tensors: &Tensors<'_>) -> Result<(), PlanError> {
        for out in tensors.outputs.iter().map(|out| out.id) {
            let Some(made) = self.value(out).versions.first() else {
                continue;
            };
            let made = made.layout.clone();
            let Some(rest) = self.resting(op, out, &made) else {
                continue;
            };
            if made.has_partial() || made.as_ref() == &rest {
                continue;
            }
            self.bring(out, rest, "gradient at rest")?;
        }
        Ok(())
    }

    /// Brings a value into a layout, and keeps nothing else of it.
    fn bring(&mut self, value: ValueIndex, to: Layout, why: &'static str) -> Result<(), PlanError> {
        let to = Arc::new(to);
        self.require(value, &to, Reason::Constraint(why))?;
        let versions = &mut self.values[value as usize].versions;
        versions.retain(|version| version.layout == to);
        Ok(())
    }

    /// Returns the layout of a value, gathered where it rests.
    pub(super) fn gathered(&self, value: ValueIndex) -> Layout {
        match self.value(value).versions_at(self.now).next() {
            Some(version) => version.layout.gathered(),
            None => self.value(value).preferred.gathered(),
        }
    }

    /// Brings the first input of a linear layer into the layout its weight asks for.
    pub(super) fn constrain_input(
        &mut self,
        tensors: &Tensors<'_>,
    ) -> Result<Option<(usize, Layout)>, PlanError> {
        let tag = self.value(tensors.inputs[1].id).tag.clone();
        let Some((tag, text)) = tag.as_ref().and_then(|t| Some((t, t.input.as_ref()?))) else {
            return Ok(None);
        };
        let input = &tensors.inputs[0];
        // A module that works on flattened tokens has the layout of what they are a reshape of.
        let of = self.state.facts.reshape_of[input.id as usize];
        let unflattened = of.filter(|of| {
            let ndim = self.value(*of).shape.len();
            text.ndim() == ndim && ndim > input.shape.len()
        });
        let target = match unflattened {
            Some(of) => {
                let shape = &self.value(of).shape;
                let target = self.constrained(&self.gathered(of), text, shape, tag)?;
                let flat = target.reshape(self.mesh, input.shape);
                flat.unwrap_or_else(|| self.gathered(input.id))
            }
            None => self.constrained(&self.gathered(input.id), text, input.shape, tag)?,
        };
        let reason = Reason::Constraint("input layout of the module");
        self.require(input.id, &target.clone().into(), reason)?;
        Ok(Some((0, target)))
    }

    /// Brings the result of a linear layer or an embedding into the layout its weight asks for. A module that works on
    /// flattened tokens gives its output by a reshape, which is then where the layout applies.
    pub(super) fn constrain_result(
        &mut self,
        tag: &Arc<ParamSpec>,
        tensors: &Tensors<'_>,
    ) -> Result<(), PlanError> {
        let Some(text) = &tag.output else {
            return Ok(());
        };
        let out = &tensors.outputs[0];
        if text.ndim() > out.shape.len() && !self.unflattened.contains_key(&tensors.inputs[0].id) {
            self.wait_for_reshape(out.id, tag.clone());
            return Ok(());
        }
        let current = &self.value(out.id).versions[0].layout;
        let target = self.constrained(current, text, out.shape, tag)?;
        self.bring(out.id, target, "output layout of the module")
    }

    /// Notes that the output layout of a module has more dims than its result.
    pub(super) fn wait_for_reshape(&mut self, value: ValueIndex, tag: Arc<ParamSpec>) {
        let waiting = Unflattened {
            tag,
            is_applied: false,
        };
        self.unflattened.insert(value, waiting);
    }

    /// Checks that no output layout was asked for in vain: that a result with fewer dims was reshaped before it came to
    /// its end.
    ///
    /// A result that lives on may still be reshaped in a later window.
    pub(super) fn check_applied(&self) -> Result<(), PlanError> {
        let vain = self.unflattened.iter().filter(|(value, waiting)| {
            // Of those that die, those survive that are read.
            let info = self.value(**value);
            let is_used = info.survives || !info.uses.is_empty();
            !waiting.is_applied && is_used && self.state.window.dies[**value as usize]
        });
        let first = vain.min_by_key(|(value, _)| **value);
        let Some((value, Unflattened { tag, .. })) = first else {
            return Ok(());
        };
        let Some(text) = &tag.output else {
            return Ok(());
        };
        self.asked(text, &self.value(*value).shape, tag).map(drop)
    }

    /// Returns the layout that a module asks for.
    fn asked(
        &self,
        text: &LayoutText,
        shape: &[usize],
        tag: &ParamSpec,
    ) -> Result<Layout, PlanError> {
        let layout = text.layout(self.mesh, Some(shape));
        layout.map_err(|source| PlanError::ModuleLayout {
            path: tag.path.clone(),
            text: text.to_string(),
            source,
        })
    }

    /// Returns `current` with its splits over model axes replaced by what `text` says; data axes stay as they are.
    pub(super) fn constrained(
        &self,
        current: &Layout,
        text: &LayoutText,
        shape: &[usize],
        tag: &ParamSpec,
    ) -> Result<Layout, PlanError> {
        let wanted = self.asked(text, shape, tag)?;
        let model: Vec<AxisIndex> = self.mesh.model_axes();
        let mut layout = current.without_axes(&model);
        layout.partial.retain(|p| !model.contains(&p.axis));
        let used = layout.axes_used();
        for (dim, wanted) in layout.dims.iter_mut().zip(&wanted.dims) {
            let axes: Vec<AxisIndex> = wanted.axes().filter(|axis| !used.contains(axis)).collect();
            // Of a dim that a data axis splits in stripes, what each rank has is split once more.
            let whole = dim.factors.iter().position(|factor| factor.axes.is_empty());
            let at = whole.filter(|_| dim.factors.len() > 1).unwrap_or(0);
            dim.factors[at].axes.extend(axes);
        }
        layout.normalize(self.mesh);
        Ok(layout)
    }
}
