//! Syntax of a layout in text, checked while compiling: `[{dp}, -, (4 . 8{tp})] + sum{cp}`.
//!
//! Only the form is checked here. Whether the axes exist and the dims fit is known when a mesh and a tensor are.

/// Finds the first mistake: its column, from 1, and what was expected there.
pub(crate) fn check(text: &str) -> Result<(), (usize, String)> {
    let mut cursor = Cursor {
        chars: text.chars().collect(),
        at: 0,
        seen: Vec::new(),
    };
    cursor.layout()
}

struct Cursor {
    chars: Vec<char>,
    at: usize,
    /// Axes so far: one may split or sum at most once in a layout.
    seen: Vec<String>,
}

type Step<T = ()> = Result<T, (usize, String)>;

impl Cursor {
    fn layout(&mut self) -> Step {
        self.expect('[', "a layout starts with `[`")?;
        if !self.eat(']') {
            loop {
                self.dim()?;
                if self.eat(']') {
                    break;
                }
                self.expect(',', "expected `,` or `]`")?;
            }
        }
        while self.eat('+') {
            self.partial()?;
        }
        match self.peek() {
            None => Ok(()),
            Some(found) => self.fail(format!("expected `+` or the end, found `{found}`")),
        }
    }

    fn dim(&mut self) -> Step {
        match self.peek() {
            Some('-') => {
                self.at += 1;
                Ok(())
            }
            Some('{') => self.axes(),
            Some('0'..='9') => self.factor(),
            Some('(') => {
                self.at += 1;
                self.factor()?;
                while self.eat('.') {
                    self.factor()?;
                }
                self.expect(')', "expected `.` or `)`")
            }
            Some(found) => self.fail(format!(
                "expected a dim (`-`, `{{axis}}` or `(size . size{{axis}})`), found `{found}`"
            )),
            None => self.fail("expected a dim, found the end".into()),
        }
    }

    fn factor(&mut self) -> Step {
        self.skip_spaces();
        let start = self.at;
        while self.chars.get(self.at).is_some_and(char::is_ascii_digit) {
            self.at += 1;
        }
        if self.at == start {
            return self.fail("expected the size of a factor".into());
        }
        if self.peek() == Some('{') {
            self.axes()?;
        }
        Ok(())
    }

    fn partial(&mut self) -> Step {
        const OPS: [&str; 5] = ["sum", "mean", "min", "max", "prod"];
        let (start, op) = self.word("expected a reduction")?;
        if !OPS.contains(&op.as_str()) {
            let known = OPS.join("`, `");
            return Err((
                start + 1,
                format!("unknown reduction `{op}`: one of `{known}`"),
            ));
        }
        self.axes()
    }

    fn axes(&mut self) -> Step {
        self.expect('{', "expected `{` and axes")?;
        loop {
            let (start, axis) = self.word("expected the name of a mesh axis")?;
            if self.seen.contains(&axis) {
                return Err((start + 1, format!("axis `{axis}` is used twice")));
            }
            self.seen.push(axis);
            if self.eat('}') {
                return Ok(());
            }
            if self.peek() == Some('*') {
                return self.fail("only parameters rest: leave the `*` out".into());
            }
            self.expect(',', "expected `,` or `}`")?;
        }
    }

    /// Reads a name, and where it starts.
    fn word(&mut self, expected: &str) -> Step<(usize, String)> {
        self.skip_spaces();
        let start = self.at;
        while let Some(&c) = self.chars.get(self.at) {
            let first = self.at == start;
            if c == '_' || c.is_alphabetic() || (!first && c.is_alphanumeric()) {
                self.at += 1;
            } else {
                break;
            }
        }
        if self.at == start {
            return self.fail(expected.into());
        }
        Ok((start, self.chars[start..self.at].iter().collect()))
    }

    fn expect(&mut self, c: char, message: &str) -> Step {
        if self.eat(c) {
            Ok(())
        } else {
            self.fail(message.into())
        }
    }

    fn eat(&mut self, c: char) -> bool {
        let found = self.peek() == Some(c);
        self.at += usize::from(found);
        found
    }

    fn peek(&mut self) -> Option<char> {
        self.skip_spaces();
        self.chars.get(self.at).copied()
    }

    fn skip_spaces(&mut self) {
        while self.chars.get(self.at) == Some(&' ') {
            self.at += 1;
        }
    }

    fn fail<T>(&mut self, message: String) -> Step<T> {
        self.skip_spaces();
        Err((self.at + 1, message))
    }
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn accepts_every_form() {
        for text in [
            "[]",
            "[-]",
            "[-, {tp}, -]",
            "[ {dp , tp}, - ]",
            "[(4 . 8{tp}), -]",
            "[8{tp}, 16]",
            "[-, -] + sum{tp}",
            "[{dp}, (2{cp} . 4)] + sum{tp} + max{ep}",
        ] {
            assert_eq!(check(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn names_the_column() {
        for (text, column) in [
            ("", 1),
            ("-, {tp}", 1),
            ("[-, tp]", 5),
            ("[-, {tp]", 8),
            ("[-, {tp}", 9),
            ("[-, {}]", 6),
            ("[{tp}, {tp}]", 9),
            ("[(4 . ), -]", 7),
            ("[-] + avg{tp}", 7),
            ("[-] tp", 5),
            ("[{tp}] + sum{tp}", 14),
            ("[{tp*}]", 5),
        ] {
            let error = check(text).expect_err(text);
            assert_eq!(error.0, column, "{text}: {}", error.1);
        }
    }
}
