//! Reads the text form.

use super::written::{AxisText, DimText, FactorText, LayoutText, PartialText, UNSIZED};
use crate::LayoutError;
use burn_dist_mesh::ReduceOp;

pub(super) struct Parser<'a> {
    text: &'a str,
    chars: Vec<char>,
    at: usize,
    /// Axes so far: one splits or sums at most once in a layout.
    used: Vec<String>,
}

type Parsed<T> = Result<T, LayoutError>;

impl<'a> Parser<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self {
            text,
            chars: text.chars().collect(),
            at: 0,
            used: Vec::new(),
        }
    }

    pub(super) fn layout(&mut self) -> Parsed<LayoutText> {
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
