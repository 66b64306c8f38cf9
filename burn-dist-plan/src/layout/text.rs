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
        let mut parser = Parser {
            text,
            chars: text.chars().collect(),
            at: 0,
            mesh,
            used: Vec::new(),
        };
        parser.layout(shape)
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

struct Parser<'a> {
    text: &'a str,
    chars: Vec<char>,
    at: usize,
    mesh: &'a MeshShape,
    used: Vec<AxisIndex>,
}

type Parsed<T> = Result<T, LayoutError>;

impl Parser<'_> {
    fn layout(&mut self, shape: Option<&[usize]>) -> Parsed<Layout> {
        let mut dims = Vec::new();
        let mut at_rest = Vec::new();
        self.expect('[', "a layout starts with `[`")?;
        if !self.eat(']') {
            loop {
                let size = match shape {
                    None => None,
                    Some(shape) => match shape.get(dims.len()) {
                        Some(&size) => Some(size),
                        None => {
                            return self
                                .fail(format!("the shape {shape:?} has no dim {}", dims.len()));
                        }
                    },
                };
                dims.push(self.dim(size, &mut at_rest)?);
                if self.eat(']') {
                    break;
                }
                self.expect(',', "dims are separated by `,` and end with `]`")?;
            }
        }
        if let Some(shape) = shape
            && dims.len() < shape.len()
        {
            self.at -= 1;
            return self.fail(format!(
                "the shape {shape:?} has {} dims, but there are {} here",
                shape.len(),
                dims.len()
            ));
        }
        let mut partial = Vec::new();
        while self.peek().is_some() {
            self.expect(
                '+',
                "after the dims only `+ sum{axis}` and the like may follow",
            )?;
            self.partial(&mut partial)?;
        }
        Layout::new(dims, partial, at_rest, self.mesh)
    }

    fn dim(&mut self, size: Option<usize>, at_rest: &mut Vec<AxisIndex>) -> Parsed<DimLayout> {
        self.peek();
        let start = self.at;
        let mut factors = Vec::new();
        if self.eat('-') {
            let Some(size) = size else {
                return self.fail_at(
                    start,
                    "`-` needs a shape: give one, or write the size of the dim".to_owned(),
                );
            };
            factors.push(Factor::whole(size));
        } else if self.eat('(') {
            loop {
                factors.push(self.factor(None, at_rest)?);
                if self.eat(')') {
                    break;
                }
                self.expect('.', "factors are separated by `.` and end with `)`")?;
            }
        } else {
            factors.push(self.factor(size, at_rest)?);
        }
        let dim = DimLayout { factors };
        match size {
            Some(size) if size != dim.size() => self.fail_at(
                start,
                format!(
                    "this dim is of size {}, but the shape says {size}",
                    dim.size()
                ),
            ),
            _ => Ok(dim),
        }
    }

    fn factor(&mut self, size: Option<usize>, at_rest: &mut Vec<AxisIndex>) -> Parsed<Factor> {
        self.peek();
        let start = self.at;
        let written = self.number()?;
        let mut axes = Vec::new();
        if self.peek() == Some('{') {
            self.axes(true, &mut axes, at_rest)?;
        } else if written.is_none() {
            return self.fail(
                "a dim is `-`, axes such as `{tp}`, or factors such as `(4 . 8{tp})`".to_owned(),
            );
        }
        match written.or(size) {
            Some(size) => Ok(Factor { size, axes }),
            None => self.fail_at(
                start,
                "the size is not known here: write it before the axes, as in `8{tp}`".to_owned(),
            ),
        }
    }

    fn partial(&mut self, partial: &mut Vec<Partial>) -> Parsed<()> {
        self.peek();
        let start = self.at;
        let name = self.word();
        let Some(op) = ReduceOp::ALL.into_iter().find(|op| op.name() == name) else {
            let known = ReduceOp::ALL.map(ReduceOp::name).join(", ");
            return self.fail_at(
                start,
                format!("`{name}` is no reduction: there are {known}"),
            );
        };
        let mut axes = Vec::new();
        self.axes(false, &mut axes, &mut Vec::new())?;
        partial.extend(axes.into_iter().map(|axis| Partial { axis, op }));
        Ok(())
    }

    fn axes(
        &mut self,
        may_rest: bool,
        axes: &mut Vec<AxisIndex>,
        at_rest: &mut Vec<AxisIndex>,
    ) -> Parsed<()> {
        self.expect('{', "axes are listed in `{` and `}`")?;
        loop {
            self.peek();
            let start = self.at;
            let name = self.word();
            let axis = match self.mesh.axis(&name) {
                Ok(axis) => axis,
                Err(_) if name.is_empty() => {
                    return self.fail("the name of an axis is missing".to_owned());
                }
                Err(unknown) => return self.fail_at(start, unknown.to_string()),
            };
            if self.used.contains(&axis) {
                return self.fail_at(start, format!("axis `{name}` is used twice"));
            }
            self.used.push(axis);
            axes.push(axis);
            if may_rest && self.eat('*') {
                at_rest.push(axis);
            }
            if self.eat('}') {
                return Ok(());
            }
            self.expect(',', "axes are separated by `,` and end with `}`")?;
        }
    }

    fn number(&mut self) -> Parsed<Option<usize>> {
        let start = self.at;
        let digits = self.take_while(|c| c.is_ascii_digit());
        if digits.is_empty() {
            return Ok(None);
        }
        match digits.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => self.fail_at(start, format!("`{digits}` is too large for a size")),
        }
    }

    fn word(&mut self) -> String {
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

    fn fail<T>(&self, problem: String) -> Parsed<T> {
        self.fail_at(self.at, problem)
    }

    fn fail_at<T>(&self, at: usize, problem: String) -> Parsed<T> {
        Err(LayoutError::Parse {
            text: self.text.to_owned(),
            column: at + 1,
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
        cannot read the layout, column 7: the shape [8, 8] has no dim 2
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
