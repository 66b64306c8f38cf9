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

/// The layout of an activation as it is written, before a mesh and a tensor are at hand: axes by name, sizes where they
/// are given.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LayoutText {
    text: String,
    dims: Vec<DimText>,
    /// The column of the `]`.
    end: usize,
    partial: Vec<PartialText>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct DimText {
    column: usize,
    /// One, or a product.
    factors: Vec<FactorText>,
}

/// `-`, if neither a size nor axes are given.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct FactorText {
    column: usize,
    size: Option<usize>,
    axes: Vec<AxisText>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PartialText {
    op: ReduceOp,
    axes: Vec<AxisText>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct AxisText {
    column: usize,
    name: String,
    rests: bool,
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

    /// Reads any layout.
    fn read(text: &str) -> Result<Self, LayoutError> {
        let mut parser = Parser {
            text,
            chars: text.chars().collect(),
            at: 0,
            used: Vec::new(),
        };
        let read = parser.layout()?;
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

const UNSIZED: &str = "the size is not known here: write it before the axes, as in `8{tp}`";

struct Parser<'a> {
    text: &'a str,
    chars: Vec<char>,
    at: usize,
    /// Axes so far: one splits or sums at most once in a layout.
    used: Vec<String>,
}

type Parsed<T> = Result<T, LayoutError>;

impl Parser<'_> {
    fn layout(&mut self) -> Parsed<LayoutText> {
        let mut dims = Vec::new();
        self.expect('[', "a layout starts with `[`")?;
        if !self.eat(']') {
            loop {
                dims.push(self.dim()?);
                if self.eat(']') {
                    break;
                }
                self.expect(',', "dims are separated by `,` and end with `]`")?;
            }
        }
        let end = self.at;
        let mut partial = Vec::new();
        while self.peek().is_some() {
            self.expect(
                '+',
                "after the dims only `+ sum{axis}` and the like may follow",
            )?;
            partial.push(self.partial()?);
        }
        Ok(LayoutText {
            text: self.text.to_owned(),
            dims,
            end,
            partial,
        })
    }

    fn dim(&mut self) -> Parsed<DimText> {
        let column = self.column();
        let mut factors = Vec::new();
        if self.eat('-') {
            factors.push(FactorText {
                column,
                size: None,
                axes: Vec::new(),
            });
        } else if self.eat('(') {
            loop {
                let factor = self.factor()?;
                if factor.size.is_none() {
                    return self.fail_at(factor.column, UNSIZED.to_owned());
                }
                factors.push(factor);
                if self.eat(')') {
                    break;
                }
                self.expect('.', "factors are separated by `.` and end with `)`")?;
            }
        } else {
            factors.push(self.factor()?);
        }
        Ok(DimText { column, factors })
    }

    fn factor(&mut self) -> Parsed<FactorText> {
        let column = self.column();
        let size = self.number()?;
        let axes = match self.peek() {
            Some('{') => self.axes(true)?,
            _ if size.is_some() => Vec::new(),
            _ => {
                let problem = "a dim is `-`, axes such as `{tp}`, or factors such as `(4 . 8{tp})`";
                return self.fail(problem.to_owned());
            }
        };
        Ok(FactorText { column, size, axes })
    }

    fn partial(&mut self) -> Parsed<PartialText> {
        let column = self.column();
        let name = self.word();
        let Some(op) = ReduceOp::ALL.into_iter().find(|op| op.name() == name) else {
            let known = ReduceOp::ALL.map(ReduceOp::name).join(", ");
            return self.fail_at(
                column,
                format!("`{name}` is no reduction: there are {known}"),
            );
        };
        let axes = self.axes(false)?;
        Ok(PartialText { op, axes })
    }

    fn axes(&mut self, may_rest: bool) -> Parsed<Vec<AxisText>> {
        self.expect('{', "axes are listed in `{` and `}`")?;
        let mut axes = Vec::new();
        loop {
            let column = self.column();
            let name = self.word();
            if name.is_empty() {
                return self.fail("the name of an axis is missing".to_owned());
            }
            if self.used.contains(&name) {
                return self.fail_at(column, format!("axis `{name}` is used twice"));
            }
            self.used.push(name.clone());
            axes.push(AxisText {
                column,
                name,
                rests: may_rest && self.eat('*'),
            });
            if self.eat('}') {
                return Ok(axes);
            }
            self.expect(',', "axes are separated by `,` and end with `}`")?;
        }
    }

    fn number(&mut self) -> Parsed<Option<usize>> {
        let column = self.column();
        let digits = self.take_while(|c| c.is_ascii_digit());
        if digits.is_empty() {
            return Ok(None);
        }
        match digits.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => self.fail_at(column, format!("`{digits}` is too large for a size")),
        }
    }

    /// Reads a name; an empty one where none starts.
    fn word(&mut self) -> String {
        let first = self.chars.get(self.at).copied().unwrap_or_default();
        if !first.is_ascii_alphabetic() && first != '_' {
            return String::new();
        }
        self.take_while(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
    }

    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> String {
        let start = self.at;
        while self.chars.get(self.at).is_some_and(|&c| wanted(c)) {
            self.at += 1;
        }
        self.chars[start..self.at].iter().collect()
    }

    /// Skips blanks and returns the next character.
    fn peek(&mut self) -> Option<char> {
        while self.chars.get(self.at).is_some_and(|c| c.is_whitespace()) {
            self.at += 1;
        }
        self.chars.get(self.at).copied()
    }

    fn eat(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, wanted: char, why: &str) -> Parsed<()> {
        if self.eat(wanted) {
            return Ok(());
        }
        match self.peek() {
            Some(found) => self.fail(format!("found `{found}`, but {why}")),
            None => self.fail(format!("the text ends, but {why}")),
        }
    }

    /// Skips blanks and returns the column of what comes next.
    fn column(&mut self) -> usize {
        self.peek();
        self.at + 1
    }

    fn fail<T>(&self, problem: String) -> Parsed<T> {
        self.fail_at(self.at + 1, problem)
    }

    fn fail_at<T>(&self, column: usize, problem: String) -> Parsed<T> {
        Err(LayoutError::Parse {
            text: self.text.to_owned(),
            column,
            problem,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use insta::assert_snapshot;

    fn mesh() -> MeshShape {
        MeshShape::parse("dp=2,fsdp=2,cp=2,tp=2,one=1").unwrap()
    }

    #[test]
    fn text_round_trips() {
        let mesh = mesh();
        let cases: [(&str, &[usize]); 8] = [
            ("[]", &[]),
            ("[-]", &[0]),
            ("[{dp}, -, (4 . 8{tp})] + sum{cp}", &[5, 3, 32]),
            ("[{tp, fsdp*}, -]", &[7, 7]),
            ("[-, {fsdp*, tp}] + max{dp, cp}", &[1, 2]),
            ("[(2{dp} . 3 . 4{tp, cp})]", &[24]),
            ("[] + mean{fsdp}", &[]),
            ("[-] + sum{fsdp} + mean{dp, tp}", &[9]),
        ];
        for (text, shape) in cases {
            let layout = Layout::parse(text, &mesh, Some(shape)).unwrap();
            assert_eq!(layout.display(&mesh).to_string(), text);
            let sized = format!("{:#}", layout.display(&mesh));
            assert_eq!(
                Layout::parse(&sized, &mesh, None).unwrap(),
                layout,
                "{sized}"
            );
        }
    }

    #[test]
    fn reading_normalises() {
        let mesh = mesh();
        let read = |text: &str| {
            let layout = Layout::parse(text, &mesh, Some(&[12])).unwrap();
            layout.display(&mesh).to_string()
        };
        assert_eq!(read(" [ ( 2.6 ) ] "), "[-]");
        assert_eq!(read("[12]"), "[-]");
        assert_eq!(read("[12{one}] + sum{tp}"), "[-] + sum{tp}");
        assert_eq!(
            read("[(1 . 3{tp,one*} . 2 . 2)]+max{dp}"),
            "[(3{tp} . 4)] + max{dp}"
        );
        assert_eq!(read("[-]+sum{tp}+sum{dp}"), "[-] + sum{dp, tp}");
    }

    #[test]
    fn an_axis_is_taken_out_of_every_place() {
        for (text, left) in [
            ("[-, {tp}, -]", None),
            ("[{dp}, {tp}, -]", Some("[{dp}, -, -]")),
            ("[{dp, tp}, -]", Some("[{dp}, -]")),
            ("[{dp}, (4 . 8{tp})]", Some("[{dp}, (4 . 8)]")),
            ("[{dp}, 16{tp}]", Some("[{dp}, 16]")),
            ("[{dp}, -] + sum{tp}", Some("[{dp}, -]")),
            ("[-] + sum{tp, cp}", Some("[-] + sum{cp}")),
            ("[-] + sum{tp} + sum{cp}", Some("[-] + sum{cp}")),
            ("[-]", None),
        ] {
            let read = LayoutText::parse(text).unwrap();
            assert_eq!(read.canonical(), text);
            let without = read.without("tp");
            let without = without.as_ref().map(LayoutText::as_str);
            assert_eq!(without, left, "{text} without tp");
        }
    }

    #[test]
    fn the_form_is_checked_without_a_mesh() {
        for (text, ndim) in [
            ("[]", 0),
            ("[-]", 1),
            ("[{dp, tp}, (4 . 8{cp}), 16]", 3),
            ("[ {dp , tp}, - ]", 2),
            ("[-] + sum{tp}", 1),
        ] {
            let read = LayoutText::parse(text).map(|read| (read.ndim(), read.to_string()));
            assert_eq!(read, Ok((ndim, text.to_owned())));
        }
        for (text, column) in [
            ("", 1),
            ("-, {tp}", 1),
            ("[-", 3),
            ("[-, tp]", 5),
            ("[-, {tp]", 8),
            ("[-, {tp}", 9),
            ("[-, {}]", 6),
            ("[{tp, -]", 7),
            ("[{tp}, {tp}]", 9),
            ("[{tp}] + sum{tp}", 14),
            ("[(4 . ), -]", 7),
            ("[(4 . {tp})]", 7),
            ("[-] + avg{tp}", 7),
            ("[-] tp", 5),
            ("[-];x", 4),
            ("[{tp*}]", 5),
        ] {
            match LayoutText::parse(text) {
                Err(LayoutError::Parse { column: found, .. }) => {
                    assert_eq!(found, column, "{text}")
                }
                other => panic!("{text}: {other:?}"),
            }
        }
        let mixed = LayoutText::parse("[-] + sum{tp} + max{cp}");
        assert!(matches!(mixed, Err(LayoutError::MixedPartial { .. })));
    }

    #[test]
    fn errors_point_at_the_column() {
        let mesh = mesh();
        let texts = [
            "{tp}",
            "[{tp, foo}, -]",
            "[{tp}, {tp}]",
            "[{tp}, -] + sum{tp}",
            "[{tp}",
            "[{tp} -]",
            "[-]",
            "[-, -, -]",
            "[(4 . {tp}), -]",
            "[(4 . 3{tp}), -]",
            "[9, -]",
            "[x, -]",
            "[{}, -]",
            "[-, -] sum{tp}",
            "[-, -] + add{tp}",
            "[-, -] + sum{tp*}",
            "[99999999999999999999999, -]",
        ];
        let errors: Vec<_> = texts
            .iter()
            .map(|text| {
                Layout::parse(text, &mesh, Some(&[8, 8]))
                    .unwrap_err()
                    .to_string()
            })
            .collect();
        assert_snapshot!(errors.join("\n"), @r"
        cannot read the layout, column 1: found `{`, but a layout starts with `[`
          {tp}
          ^
        cannot read the layout, column 7: the mesh has no axis `foo`: it has dp, fsdp, cp, tp, one
          [{tp, foo}, -]
                ^
        cannot read the layout, column 9: axis `tp` is used twice
          [{tp}, {tp}]
                  ^
        cannot read the layout, column 17: axis `tp` is used twice
          [{tp}, -] + sum{tp}
                          ^
        cannot read the layout, column 6: the text ends, but dims are separated by `,` and end with `]`
          [{tp}
               ^
        cannot read the layout, column 7: found `-`, but dims are separated by `,` and end with `]`
          [{tp} -]
                ^
        cannot read the layout, column 3: the shape [8, 8] has 2 dims, but there are 1 here
          [-]
            ^
        cannot read the layout, column 8: the shape [8, 8] has no dim 2
          [-, -, -]
                 ^
        cannot read the layout, column 7: the size is not known here: write it before the axes, as in `8{tp}`
          [(4 . {tp}), -]
                ^
        cannot read the layout, column 2: this dim is of size 12, but the shape says 8
          [(4 . 3{tp}), -]
           ^
        cannot read the layout, column 2: this dim is of size 9, but the shape says 8
          [9, -]
           ^
        cannot read the layout, column 2: a dim is `-`, axes such as `{tp}`, or factors such as `(4 . 8{tp})`
          [x, -]
           ^
        cannot read the layout, column 3: the name of an axis is missing
          [{}, -]
            ^
        cannot read the layout, column 8: found `s`, but after the dims only `+ sum{axis}` and the like may follow
          [-, -] sum{tp}
                 ^
        cannot read the layout, column 10: `add` is no reduction: there are sum, mean, min, max, prod
          [-, -] + add{tp}
                   ^
        cannot read the layout, column 16: found `*`, but axes are separated by `,` and end with `}`
          [-, -] + sum{tp*}
                         ^
        cannot read the layout, column 2: `99999999999999999999999` is too large for a size
          [99999999999999999999999, -]
           ^
        ");
        let err = Layout::parse("", &mesh, None).unwrap_err();
        assert!(matches!(err, LayoutError::Parse { column: 1, .. }));
        let err = Layout::parse("[{tp}, 3]", &mesh, None).unwrap_err();
        assert!(matches!(err, LayoutError::Parse { column: 2, .. }));
        let err = Layout::parse("[3{tp}, -]", &mesh, None).unwrap_err();
        assert!(matches!(err, LayoutError::Parse { column: 9, .. }));
        let err = Layout::parse("[-] + sum{tp} + max{dp}", &mesh, Some(&[3])).unwrap_err();
        assert!(matches!(err, LayoutError::MixedPartial { .. }));
    }
}
