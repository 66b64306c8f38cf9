//! The full text form of what passes share, for tests: everything that a later pass may read, written so that it can be
//! read again.
//!
//! `explain --after PASS` prints less, for people ([`text_after`](crate::text_after)). Law: reading what was written
//! gives the same, after every pass; so a pass can be tested alone, from text to text.
//!
//! A crate that has operations of its own turns on `text-form` for its tests, says how they are written ([`Form`]), and
//! [`check`]s the law on its windows.
//!
//! ```text
//! policies {                                                   each once: `q0` elsewhere
//!   0: fsdp reshard "last" prefetch 1 ...
//! }
//! parameters {                                                 likewise `p0`
//!   0: "up.weight" replicate weight [4, 8] unit "up" of q0 rests
//! }
//! inputs {
//!   %0: f32 [4, 8] placed [4{fsdp*}, 8] as parameter p0
//!   %1: f32 [2, 4] host [2{fsdp}, 4] free data
//! }
//! ops {
//!   0: %2: f32 [2, 8] = linear [%1, %0]                        type and shape of a tensor where it is first met
//! }
//! ...                                                          facts and visits of the window
//! programs {
//!   at 0                                                       the coordinate along the pipeline axis
//!   values {
//!     0: f32 [4, 8] prefers [4{fsdp*}, 8] met param p0 used by [0] versions [s0 [4{fsdp*}, 8], s1 [4, 8]]
//!   }
//!   slots {
//!     0: f32 [4{fsdp*}, 8] of %0
//!   }
//!   steps {
//!     load %0 to s0
//!     move s1 = all_gather [fsdp] dim 0 factor 0 of s0 for operand "linear" @0 in "up"
//!     run s3 = linear [s2, s1] @0 split [2{fsdp}, 4, 8] in "up"
//!   }
//!   ...                                                        what outlives the window, and counts
//! }
//! ...                                                          stages, actions, collectives, tasks of ranks, reports
//! ```
//!
//! A step leaves out what follows from its slots: layouts of operands and results, and the rule of an operation.
//!
//! # How it is written down
//! One table for each type, with [`form`]: its fields in order, each with the text before it. A field with a default
//! (`or`) is left out where it has that. Printer and parser are both made of the table, so that they cannot differ, and
//! a field that a table lacks is an error of the compiler. Lines are lines, spaces do not count; layouts have the size
//! of every dim and are as they are, not in their canonical form.
//!
//! # Source
//! Printer and parser from one description: Rendel and Ostermann, "Invertible syntax descriptions" (Haskell 2010).

#[cfg(test)]
mod block;
mod facts;
mod float8;
#[cfg(test)]
mod goldens;
mod law;
#[cfg(test)]
pub(crate) mod laws;
mod leaves;
mod program;
mod regions;
#[cfg(test)]
mod small;
mod state;
mod tasks;
#[cfg(test)]
mod toy;

pub use facts::{read_tensor, write_tensor};
pub use law::check;
#[cfg(test)]
pub(crate) use small::{gather, rank};
#[cfg(test)]
pub(crate) use state::{parse, print};

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::ir::{ParamSpec, Slot, SlotInfo, Value};
use crate::layout::Policy;
use crate::mesh::{DType, MeshShape};

/// A type that can be written and read again.
pub trait Form: Sized {
    /// Writes it.
    fn write(&self, to: &mut Writer<'_>);

    /// Reads it.
    ///
    /// # Errors
    /// [`Failed`] if it is not there; the reader knows what was expected where.
    fn read(from: &mut Reader<'_>) -> Result<Self, Failed>;
}

/// Returns the text of one thing.
pub fn text_of<T: Form>(thing: &T, mesh: &MeshShape) -> String {
    let mut to = Writer::new(Known::new(mesh));
    thing.write(&mut to);
    to.text
}

/// Reads one thing.
///
/// # Errors
/// [`FormError`] if the text is none.
pub fn of_text<T: Form>(text: &str, mesh: &MeshShape) -> Result<T, FormError> {
    let mut from = Reader::new(text, mesh);
    let found = T::read(&mut from);
    match found {
        Ok(thing) if from.rest().is_empty() => Ok(thing),
        Ok(_) => {
            from.note(from.at, "the end of the text");
            Err(from.error())
        }
        Err(Failed) => Err(from.error()),
    }
}

/// The reader came to something else than what was expected.
#[derive(Debug)]
pub struct Failed;

/// The things that a text says once, and what its names stand for.
pub(crate) struct Known<'a> {
    pub mesh: &'a MeshShape,
    pub policies: Vec<Arc<Policy>>,
    pub params: Vec<Arc<ParamSpec>>,
    /// The values of a window, or the slots of a program or of a rank.
    pub tensors: Tensors,
    /// The slots of the program that was written or read last.
    pub slots: Vec<SlotInfo>,
    pub values: Arc<[Value]>,
}

impl<'a> Known<'a> {
    fn new(mesh: &'a MeshShape) -> Self {
        Self {
            mesh,
            policies: Vec::new(),
            params: Vec::new(),
            tensors: Tensors::new("%"),
            slots: Vec::new(),
            values: Vec::new().into(),
        }
    }
}

/// Tensors that a text has, by their numbers.
pub(crate) struct Tensors {
    /// The sign before a number: `%` of a value, `s` of a slot.
    sign: &'static str,
    /// The type and the shape of each, once they are known.
    known: FxHashMap<u32, (DType, Vec<usize>)>,
    /// How many there are, once that is known.
    count: Option<u32>,
}

impl Tensors {
    /// Returns tensors with a sign, of which nothing is known.
    fn new(sign: &'static str) -> Self {
        Self {
            sign,
            known: FxHashMap::default(),
            count: None,
        }
    }

    /// Remembers the type and the shape of a tensor; that of which the shape alone is read has no number to find it by.
    fn meet(&mut self, id: u32, tensor: (DType, Vec<usize>)) {
        if id != Slot::MAX {
            self.known.insert(id, tensor);
        }
    }
}

/// Writes a text.
pub struct Writer<'a> {
    pub(crate) known: Known<'a>,
    text: String,
    depth: usize,
}

impl<'a> Writer<'a> {
    fn new(known: Known<'a>) -> Self {
        Self {
            known,
            text: String::new(),
            depth: 0,
        }
    }

    /// Writes a text; at the end of a line, the indent of the next one.
    pub fn put(&mut self, text: &str) {
        match text.strip_prefix('\n') {
            Some(text) => {
                let indent = "  ".repeat(self.depth);
                self.text.push_str(&format!("\n{indent}{text}"));
            }
            None => self.text.push_str(text),
        }
    }

    /// Writes items on lines of their own, in braces.
    fn lines<T>(&mut self, items: &[T], write: impl Fn(&mut Self, usize, &T)) {
        if items.is_empty() {
            return self.put("{}");
        }
        self.put("{");
        self.depth += 1;
        for (index, item) in items.iter().enumerate() {
            self.put("\n");
            write(self, index, item);
        }
        self.depth -= 1;
        self.put("\n}");
    }
}

/// Reads a text.
pub struct Reader<'a> {
    pub(crate) known: Known<'a>,
    text: &'a str,
    at: usize,
    /// The farthest that it came, and what would have been right there.
    far: usize,
    expected: Vec<String>,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str, mesh: &'a MeshShape) -> Self {
        Self {
            known: Known::new(mesh),
            text,
            at: 0,
            far: 0,
            expected: Vec::new(),
        }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip_spaces(&mut self) {
        self.at = self.text.len() - self.rest().trim_start_matches(' ').len();
    }

    /// Notes what would have been right at `at`.
    fn note(&mut self, at: usize, expected: impl Into<String>) {
        if at > self.far {
            self.far = at;
            self.expected.clear();
        }
        let expected = expected.into();
        if at == self.far && !self.expected.contains(&expected) {
            self.expected.push(expected);
        }
    }

    fn fail_at<T>(&mut self, at: usize, expected: impl Into<String>) -> Result<T, Failed> {
        self.note(at, expected);
        Err(Failed)
    }

    /// Fails here.
    ///
    /// # Errors
    /// [`Failed`].
    pub fn fail<T>(&mut self, expected: impl Into<String>) -> Result<T, Failed> {
        self.fail_at(self.at, expected)
    }

    /// Takes `text` if it comes next, and returns whether it does. A word is followed by no letter; one at the start of
    /// a line begins with a line break.
    pub fn has(&mut self, text: &str) -> bool {
        let start = self.at;
        if text.starts_with('\n') && !self.ends_line() {
            self.note(start, "the end of the line");
            return false;
        }
        self.skip_spaces();
        let word = text.trim();
        let is_letter = |c: char| c.is_alphabetic() || c == '_';
        let after = self.rest().strip_prefix(word);
        let is_word = word.ends_with(is_letter);
        match after.filter(|after| !(is_word && after.starts_with(is_letter))) {
            Some(after) => {
                self.at = self.text.len() - after.len();
                true
            }
            None => {
                self.note(self.at, format!("`{word}`"));
                self.at = start;
                false
            }
        }
    }

    /// Takes `text` as [`Self::has`] does.
    ///
    /// # Errors
    /// [`Failed`] if something else comes next.
    pub fn word(&mut self, text: &str) -> Result<(), Failed> {
        self.has(text).then_some(()).ok_or(Failed)
    }

    /// Takes the end of a line, and empty ones.
    fn ends_line(&mut self) -> bool {
        self.skip_spaces();
        let is_end = self.rest().starts_with('\n');
        self.at = self.text.len() - self.rest().trim_start_matches(['\n', ' ']).len();
        is_end
    }

    /// Takes what `belongs`, which `parse` understands.
    ///
    /// # Errors
    /// [`Failed`] if it does not.
    pub fn token<T>(
        &mut self,
        expected: &str,
        belongs: impl Fn(char) -> bool,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, Failed> {
        self.skip_spaces();
        let start = self.at;
        let length = self.rest().find(|c| !belongs(c));
        let token = &self.rest()[..length.unwrap_or(self.rest().len())];
        self.at += token.len();
        match parse(token) {
            Some(found) => Ok(found),
            None => self.fail_at(start, expected),
        }
    }

    /// Reads how many there are of things that the text has something to say of, each: it has more letters.
    fn count(&mut self) -> Result<usize, Failed> {
        let (length, digits) = (self.text.len(), |c: char| c.is_ascii_digit());
        let count = |digits: &str| digits.parse().ok().filter(|count| *count <= length);
        self.token("as many as the text has letters for", digits, count)
    }

    /// Reads how many tensors there are, which is more than the number of any that was met.
    fn num_tensors(&mut self) -> Result<usize, Failed> {
        self.skip_spaces();
        let start = self.at;
        let count = self.count()?;
        match self.known.tensors.known.keys().max() {
            Some(last) if *last as usize >= count => {
                let expected = format!("more than {last}");
                self.fail_at(start, expected)
            }
            _ => Ok(count),
        }
    }

    /// Reads items on lines of their own, in braces.
    fn lines<T, C: FromIterator<T>>(
        &mut self,
        read: impl Fn(&mut Self, usize) -> Result<T, Failed>,
    ) -> Result<C, Failed> {
        self.word("{")?;
        let mut items = Vec::new();
        if !self.has("}") {
            self.ends_line();
            while !self.has("}") {
                items.push(read(self, items.len())?);
                if !self.ends_line() {
                    return self.fail("the end of the line");
                }
            }
        }
        Ok(items.into_iter().collect())
    }

    /// Returns what went wrong.
    fn error(self) -> FormError {
        let before = &self.text[..self.far];
        let rest = &self.text[self.far..];
        let found = rest.lines().next().filter(|line| !line.is_empty());
        FormError {
            line: before.matches('\n').count() + 1,
            column: before.chars().rev().take_while(|c| *c != '\n').count() + 1,
            found: match (found, rest.is_empty()) {
                (Some(line), _) => format!("`{line}`"),
                (None, false) => "the end of the line".into(),
                (None, true) => "the end of the text".into(),
            },
            expected: self.expected,
        }
    }
}

/// A text that is none of the form.
#[derive(PartialEq, thiserror::Error)]
#[error("line {line}, column {column}: expected {}, found {found}", expected.join(" or "))]
pub struct FormError {
    /// The line, from 1 on.
    pub line: usize,
    /// The column, from 1 on.
    pub column: usize,
    /// The words that would have been right there.
    pub expected: Vec<String>,
    /// The words that are there.
    pub found: String,
}

burn_dist_mesh::debug_by_message!(FormError);

/// Makes the [`Form`] of a type of its fields: the text before each, its name, what writes and reads it if that is not
/// its own form, and the value with which it is left out.
macro_rules! form {
    (struct $type:ident $(<$o:ident>)? {
        $($lit:literal $field:ident $(as $by:ident)? $(or $default:expr)?),* $(,)?
    }) => {
        impl $(<$o: crate::ir::Op + Form>)? Form for $type $(<$o>)? {
            fn write(&self, to: &mut Writer<'_>) {
                let Self { $($field),* } = self;
                $(form!(@put to, $lit, $field, [$($by)?] [$($default)?]);)*
            }

            fn read(from: &mut Reader<'_>) -> Result<Self, Failed> {
                $(let $field = form!(@take from, $lit, [$($by)?] [$($default)?]);)*
                Ok(Self { $($field),* })
            }
        }
    };
    (enum $type:ident $(<$o:ident>)? { $($word:literal => $name:ident
        $({ $($lit:literal $field:ident $(as $by:ident)? $(or $default:expr)?),* $(,)? })?
        $(( $($tuple_lit:literal $tuple:ident $(as $tuple_by:ident)?),* ))?
    ),* $(,)? }) => {
        impl $(<$o: crate::ir::Op + Form>)? Form for $type $(<$o>)? {
            fn write(&self, to: &mut Writer<'_>) {
                match self {
                    $(Self::$name $({ $($field),* })? $(( $($tuple),* ))? => {
                        to.put($word);
                        $($(form!(@put to, $lit, $field, [$($by)?] [$($default)?]);)*)?
                        $($(form!(@put to, $tuple_lit, $tuple, [$($tuple_by)?] []);)*)?
                    })*
                }
            }

            fn read(from: &mut Reader<'_>) -> Result<Self, Failed> {
                $(if from.has($word) {
                    $($(let $field = form!(@take from, $lit, [$($by)?] [$($default)?]);)*)?
                    $($(let $tuple = form!(@take from, $tuple_lit, [$($tuple_by)?] []);)*)?
                    return Ok(Self::$name $({ $($field),* })? $(( $($tuple),* ))?);
                })*
                Err(Failed)
            }
        }
    };
    (@put $to:ident, $lit:literal, $field:ident, [$($by:ident)?] [$default:expr]) => {
        if !crate::form::same($field, &$default) {
            form!(@put $to, $lit, $field, [$($by)?] []);
        }
    };
    (@put $to:ident, $lit:literal, $field:ident, [] []) => {
        $to.put($lit);
        Form::write($field, $to);
    };
    (@put $to:ident, $lit:literal, $field:ident, [$by:ident] []) => {
        $to.put($lit);
        $by::write($field, $to);
    };
    (@take $from:ident, $lit:literal, [$($by:ident)?] [$default:expr]) => {
        match $from.has($lit) {
            true => form!(@read $from, $($by)?),
            false => $default,
        }
    };
    (@take $from:ident, $lit:literal, [$($by:ident)?] []) => {{
        $from.word($lit)?;
        form!(@read $from, $($by)?)
    }};
    (@read $from:ident,) => { Form::read($from)? };
    (@read $from:ident, $by:ident) => { $by::read($from)? };
}

use form;

fn same<T: PartialEq>(found: &T, default: &T) -> bool {
    found == default
}

/// Items on lines of their own.
mod lines {
    use super::{Failed, Form, Reader, Writer};

    pub(super) fn write<T: Form>(items: &[T], to: &mut Writer<'_>) {
        to.lines(items, |to, _, item| item.write(to));
    }

    pub(super) fn read<T: Form, C: FromIterator<T>>(from: &mut Reader<'_>) -> Result<C, Failed> {
        from.lines(|from, _| T::read(from))
    }
}

/// Items on lines that begin with their numbers.
mod numbered {
    use super::{Failed, Form, Reader, Writer};

    pub(super) fn write<T: Form>(items: &[T], to: &mut Writer<'_>) {
        to.lines(items, |to, index, item| {
            to.put(&format!("{index}: "));
            item.write(to);
        });
    }

    pub(super) fn read<T: Form, C: FromIterator<T>>(from: &mut Reader<'_>) -> Result<C, Failed> {
        from.lines(|from, index| {
            from.word(&format!("{index}:"))?;
            T::read(from)
        })
    }
}
