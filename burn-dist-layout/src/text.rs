//! The canonical text form: `[{dp}, -, (4 . 8{tp})] + sum{cp}`.
//!
//! ```text
//! layout   = "[" (dim ("," dim)*)? "]" ("+" op "{" name ("," name)* "}")*
//! dim      = "-" | factor | "(" factor ("." factor)* ")"
//! factor   = size | axes | size axes        sizes may be left out where the shape is known and the dim is one factor
//! axes     = "{" name "*"? ("," name "*"?)* "}"       a star marks an axis at rest
//! op       = "sum" | "mean" | "min" | "max" | "prod"
//! ```

use super::{DimLayout, Factor, Layout, LayoutError, Partial};
use burn_dist_mesh::{AxisIndex, MeshShape, ReduceOp};
use std::fmt;

mod parser;
#[cfg(test)]
mod tests;
mod written;

use parser::Parser;
use written::UNSIZED;
pub use written::{
    AxisParts, AxisText, DimText, FactorParts, FactorText, LayoutParts, LayoutText, PartialText,
};

impl Layout {
    /// Returns the canonical text form, which names axes and leaves out what the shape says; `{:#}` writes the size of
    /// every dim as well.
    ///
    /// Law: [`Layout::parse`] of the text, with the shape or with the sizes written out, gives the layout back.
    pub fn display<'a>(&'a self, mesh: &'a MeshShape) -> impl fmt::Display + 'a {
        Text { layout: self, mesh }
    }

    /// Reads a layout from its text form; without a `shape`, every dim must have its size written out.
    ///
    /// # Errors
    /// [`LayoutError::Parse`], which points at the column, and those of [`Layout::validate`].
    pub fn parse(
        text: &str,
        mesh: &MeshShape,
        shape: Option<&[usize]>,
    ) -> Result<Layout, LayoutError> {
        LayoutText::read(text)?.layout(mesh, shape)
    }
}

impl LayoutText {
    /// Reads the layout of an activation, whatever mesh and tensor it is for.
    ///
    /// # Errors
    /// [`LayoutError::Parse`], which points at the column, also for an axis at rest, and [`LayoutError::MixedPartial`].
    pub fn parse(text: &str) -> Result<Self, LayoutError> {
        let read = Self::read(text)?;
        let resting = read.axis_texts().find(|axis| axis.rests);
        let star = resting.map(|axis| axis.column + axis.name.chars().count());
        match star {
            Some(star) => read.fail(star, "only parameters rest: leave the `*` out".to_owned()),
            None => Ok(read),
        }
    }

    /// Returns the layout of an activation that was read before: [`LayoutText::parse`] of its text.
    pub fn from_parts(parts: &LayoutParts<'_>) -> Self {
        let axes = |axes: &[AxisParts<'_>]| {
            let axes = axes.iter().map(|(column, name)| AxisText {
                column: *column,
                name: (*name).into(),
                rests: false,
            });
            axes.collect::<Vec<_>>()
        };
        let factor = |(column, size, of): &FactorParts<'_>| FactorText {
            column: *column,
            size: *size,
            axes: axes(of),
        };
        let dims = parts.dims.iter().map(|(column, factors)| DimText {
            column: *column,
            factors: factors.iter().map(factor).collect(),
        });
        let partial = parts.partial.iter().map(|(op, of)| PartialText {
            op: *op,
            axes: axes(of),
        });
        Self {
            text: parts.text.into(),
            dims: dims.collect(),
            end: parts.end,
            partial: partial.collect(),
        }
    }

    /// Returns the column of the `]`.
    pub fn end(&self) -> usize {
        self.end
    }

    /// Returns what is written of each dim.
    pub fn dims(&self) -> &[DimText] {
        &self.dims
    }

    /// Returns the operations whose terms ranks hold, with their axes.
    pub fn partial(&self) -> &[PartialText] {
        &self.partial
    }

    /// Reads any layout.
    fn read(text: &str) -> Result<Self, LayoutError> {
        let read = Parser::new(text).layout()?;
        let mut partial = read.partial.iter();
        if let Some(first) = partial.next()
            && let Some(other) = partial.find(|other| !first.op.commutes_with(other.op))
        {
            return Err(LayoutError::MixedPartial {
                first: first.op.name(),
                second: other.op.name(),
            });
        }
        Ok(read)
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the number of dims of the tensors it is for.
    pub fn ndim(&self) -> usize {
        self.dims.len()
    }

    /// Returns the names of the axes in it, in order.
    pub fn axes(&self) -> impl Iterator<Item = &str> {
        self.axis_texts().map(|axis| axis.name.as_str())
    }

    fn axis_texts(&self) -> impl Iterator<Item = &AxisText> {
        let factors = self.dims.iter().flat_map(|dim| &dim.factors);
        let split = factors.flat_map(|factor| &factor.axes);
        split.chain(self.partial.iter().flat_map(|partial| &partial.axes))
    }

    /// Returns it without an axis; `None` if no other axis is left, so that it says nothing.
    pub fn without(&self, axis: &str) -> Option<Self> {
        let mut kept = self.clone();
        for factor in kept.dims.iter_mut().flat_map(|dim| &mut dim.factors) {
            factor.axes.retain(|other| other.name != axis);
        }
        for partial in &mut kept.partial {
            partial.axes.retain(|other| other.name != axis);
        }
        kept.partial.retain(|partial| !partial.axes.is_empty());
        kept.axes().next()?;
        kept.text = kept.canonical();
        Some(kept)
    }

    /// Returns the layout on a mesh; without a `shape`, every dim must have its size written out.
    ///
    /// # Errors
    /// [`LayoutError::Parse`] for an axis that the mesh lacks and for dims that do not fit the shape.
    pub fn layout(&self, mesh: &MeshShape, shape: Option<&[usize]>) -> Result<Layout, LayoutError> {
        let mut at_rest = Vec::new();
        let mut dims = Vec::new();
        for (index, dim) in self.dims.iter().enumerate() {
            let size = match shape.map(|shape| (shape, shape.get(index))) {
                Some((shape, None)) => {
                    let problem = format!("the shape {shape:?} has no dim {index}");
                    return self.fail(dim.column, problem);
                }
                Some((_, size)) => size.copied(),
                None => None,
            };
            dims.push(self.dim(dim, mesh, size, &mut at_rest)?);
        }
        if let Some(shape) = shape
            && dims.len() < shape.len()
        {
            let problem = format!(
                "the shape {shape:?} has {} dims, but there are {} here",
                shape.len(),
                dims.len()
            );
            return self.fail(self.end, problem);
        }
        let mut partial = Vec::new();
        for PartialText { op, axes } in &self.partial {
            for axis in axes {
                let axis = self.axis(axis, mesh)?;
                partial.push(Partial { axis, op: *op });
            }
        }
        Layout::new(dims, partial, at_rest, mesh)
    }

    fn dim(
        &self,
        dim: &DimText,
        mesh: &MeshShape,
        size: Option<usize>,
        at_rest: &mut Vec<AxisIndex>,
    ) -> Result<DimLayout, LayoutError> {
        let mut factors = Vec::new();
        for factor in &dim.factors {
            let mut axes = Vec::new();
            for text in &factor.axes {
                let axis = self.axis(text, mesh)?;
                axes.push(axis);
                if text.rests {
                    at_rest.push(axis);
                }
            }
            // Each factor of a product has its size.
            let Some(size) = factor.size.or(size) else {
                let problem = match axes.is_empty() {
                    true => "`-` needs a shape: give one, or write the size of the dim",
                    false => UNSIZED,
                };
                return self.fail(factor.column, problem.to_owned());
            };
            factors.push(Factor { size, axes });
        }
        let found = DimLayout { factors };
        match size {
            Some(size) if size != found.size() => {
                let problem = format!(
                    "this dim is of size {}, but the shape says {size}",
                    found.size()
                );
                self.fail(dim.column, problem)
            }
            _ => Ok(found),
        }
    }

    fn axis(&self, axis: &AxisText, mesh: &MeshShape) -> Result<AxisIndex, LayoutError> {
        let found = mesh.axis(&axis.name);
        found.or_else(|unknown| self.fail(axis.column, unknown.to_string()))
    }

    fn fail<T>(&self, column: usize, problem: String) -> Result<T, LayoutError> {
        Err(LayoutError::Parse {
            text: self.text.clone(),
            column,
            problem,
        })
    }

    fn canonical(&self) -> String {
        let names = |axes: &[AxisText]| {
            let star = |axis: &AxisText| if axis.rests { "*" } else { "" };
            let names = axes
                .iter()
                .map(|axis| format!("{}{}", axis.name, star(axis)));
            let names = names.collect::<Vec<String>>().join(", ");
            if names.is_empty() {
                names
            } else {
                format!("{{{names}}}")
            }
        };
        let factor = |factor: &FactorText| match (factor.size, names(&factor.axes)) {
            (None, axes) if axes.is_empty() => "-".to_owned(),
            (None, axes) => axes,
            (Some(size), axes) => format!("{size}{axes}"),
        };
        let dim = |dim: &DimText| match dim.factors.as_slice() {
            [only] => factor(only),
            all => format!(
                "({})",
                all.iter().map(factor).collect::<Vec<_>>().join(" . ")
            ),
        };
        let dims = self.dims.iter().map(dim).collect::<Vec<_>>().join(", ");
        let mut text = format!("[{dims}]");
        for PartialText { op, axes } in &self.partial {
            text.push_str(&format!(" + {}{}", op.name(), names(axes)));
        }
        text
    }
}

impl fmt::Display for LayoutText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

struct Text<'a> {
    layout: &'a Layout,
    mesh: &'a MeshShape,
}

impl Text<'_> {
    fn dim(&self, dim: &DimLayout, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match dim.factors.as_slice() {
            [factor] if f.alternate() => self.sized(factor, f),
            [factor] if factor.axes.is_empty() => f.write_str("-"),
            [factor] => self.axes(&factor.axes, f),
            factors => {
                f.write_str("(")?;
                for (i, factor) in factors.iter().enumerate() {
                    f.write_str(if i == 0 { "" } else { " . " })?;
                    self.sized(factor, f)?;
                }
                f.write_str(")")
            }
        }
    }

    fn sized(&self, factor: &Factor, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", factor.size)?;
        if factor.axes.is_empty() {
            return Ok(());
        }
        self.axes(&factor.axes, f)
    }

    fn axes(&self, axes: &[AxisIndex], f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, axis) in axes.iter().enumerate() {
            let open = if i == 0 { "{" } else { ", " };
            let rest = self.layout.at_rest.contains(axis);
            let star = if rest { "*" } else { "" };
            write!(f, "{open}{}{star}", self.mesh.name(*axis))?;
        }
        f.write_str("}")
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, dim) in self.layout.dims.iter().enumerate() {
            f.write_str(if i == 0 { "" } else { ", " })?;
            self.dim(dim, f)?;
        }
        f.write_str("]")?;
        for op in ReduceOp::ALL {
            let partial = self.layout.partial.iter().filter(|p| p.op == op);
            let names: Vec<_> = partial.map(|p| self.mesh.name(p.axis)).collect();
            if !names.is_empty() {
                write!(f, " + {}{{{}}}", op.name(), names.join(", "))?;
            }
        }
        Ok(())
    }
}
