//! Which parameter is which tensor, as data.

use super::Form;
use super::factor::{Factor, WRAPPERS};
use super::pattern::Pattern;
use std::fmt;
use toml::de::{DeTable, DeValue};

/// A text of names is no longer, and has no more rows: each is compared with all before it.
pub(crate) const TEXT_BYTES_MAX: usize = 512 << 10;
const ROWS_MAX: usize = 1_000;

/// Where a file of names lists the tensors that are none of the model's parameters.
const IGNORED: &str = "ignored";

/// Which parameter is which tensor, and how the tensor holds it.
///
/// The text form is TOML: a row for each kind of parameter, with the path of the parameter, the name of the tensor, and
/// the [`Form`] if it is not `same`. `*` stands for any one name between points, in the same order on both sides. The
/// width of rotary heads is a number, or a name for one that is passed when the text is read. Stacked tensors have one
/// `*` more than their parameter, for the number of each. `ignored` lists tensors that are no parameters.
///
/// ```
/// use burn_dist_checkpoint::hf::{Form, Names};
/// let text = r#"
/// "tok_embeddings.weight" = "model.embed_tokens.weight"
/// "layers.*.attention.wq.weight" = "model.layers.*.self_attn.q_proj.weight, rotary(head_dim)"
/// "layers.*.attention.wo.weight" = "model.layers.*.self_attn.o_proj.weight, transposed"
/// ignored = ["model.layers.*.self_attn.rotary_emb.inv_freq"]
/// "#;
/// let names = Names::parse(text, &[("head_dim", 64)])?;
/// let (tensor, form) = names.tensor("layers.7.attention.wq.weight").expect("it has a row");
/// assert_eq!(tensor, "model.layers.7.self_attn.q_proj.weight");
/// assert_eq!(form, Form::Rotary { head_dim: 64 });
/// assert_eq!(names.parameter(&tensor), Some(("layers.7.attention.wq.weight".into(), form)));
/// assert!(names.is_ignored("model.layers.0.self_attn.rotary_emb.inv_freq"));
/// # Ok::<(), burn_dist_checkpoint::hf::NamesError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// No path fits two patterns of one side.
    rows: Vec<Row>,
    ignored: Vec<Pattern>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    parameter: Pattern,
    tensor: Pattern,
    form: Form,
    line: usize,
}

/// A text that says of no model which parameter is which tensor.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct NamesError {
    /// The line, counted from 1.
    pub line: usize,
    /// The fault there.
    pub problem: NamesProblem,
}

burn_dist_mesh::debug_by_message!(NamesError);

/// A fault of a line of a text of names.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NamesProblem {
    /// It is not TOML.
    #[error("it is not TOML: {0}")]
    Toml(String),
    /// Something else than a text, or than a list of texts.
    #[error("write `\"parameter\" = \"tensor, form\"`, or `ignored = [\"tensor\"]`")]
    Row,
    /// A path that is none.
    #[error("`{0}` is no path: it is made of names with points between, and `*` is a whole name")]
    Path(String),
    /// A form that there is not.
    #[error(
        "there is no form `{0}`: write same, transposed, stacked, or rotary(64) with an even number"
    )]
    Form(String),
    /// The name of a width that was not passed.
    #[error("the width `{0}` was not given, or is not even")]
    Width(String),
    /// Not as many gaps on both sides; stacked tensors have one more.
    #[error("`{parameter}` and `{tensor}` have not as many `*`, or for stacked tensors one more")]
    Gaps {
        /// One side.
        parameter: String,
        /// The other.
        tensor: String,
    },
    /// A text that is longer than that of any model, or has more rows.
    #[error("it has {found} {what}, and at most {max} are read: write `*` for names that count")]
    TooLong {
        /// Bytes, rows, or names that are ignored.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many there may be.
        max: usize,
    },
    /// A path fits two rows.
    #[error("there are names that fit both `{own}` and `{other}` of line {line}")]
    Overlap {
        /// The pattern of this line.
        own: String,
        /// The line of the other.
        other: String,
        /// The other line.
        line: usize,
    },
}

burn_dist_mesh::debug_by_message!(NamesProblem);

impl Names {
    /// Reads the text form. `widths` are the numbers that it may call by name.
    ///
    /// # Errors
    /// [`NamesError`] for the first line that makes no sense, or if the text is longer than that of any model.
    pub fn parse(text: &str, widths: &[(&str, usize)]) -> Result<Self, NamesError> {
        at_most(1, "bytes", text.len(), TEXT_BYTES_MAX)?;
        let table = DeTable::parse(text).map_err(|error| NamesError {
            line: error.span().map_or(1, |span| line_of(text, span.start)),
            problem: NamesProblem::Toml(error.message().to_owned()),
        })?;
        let mut names = Self {
            rows: Vec::new(),
            ignored: Vec::new(),
        };
        names.add(text, "", table.get_ref(), widths)?;
        names.rows.sort_by_key(|row| row.line);
        names.check()?;
        Ok(names)
    }

    /// Returns the tensor that holds a parameter, and how.
    pub fn tensor(&self, parameter: &str) -> Option<(String, Form)> {
        let find = |row: &Row| {
            let gaps = row.parameter.gaps(parameter)?;
            Some((row.tensor.fill(&gaps), row.form))
        };
        self.rows.iter().find_map(find)
    }

    /// Returns the parameter that a tensor holds, and how.
    pub fn parameter(&self, tensor: &str) -> Option<(String, Form)> {
        let find = |row: &Row| {
            let gaps = row.tensor.gaps(tensor)?;
            Some((row.parameter.fill(&gaps), row.form))
        };
        self.rows.iter().find_map(find)
    }

    /// Returns whether a tensor is known to be no parameter.
    pub fn is_ignored(&self, tensor: &str) -> bool {
        let fits = |pattern: &Pattern| pattern.gaps(tensor).is_some();
        self.ignored.iter().any(fits)
    }

    /// Returns the names of LoRA's factors of linear layers: of a matrix `w` that the tensor `m.weight` holds turned,
    /// `w.lora.a` and `w.lora.b` are those of the layer `m` by the names of [`Factor`], and the rows of the latter are
    /// in the order of those of the tensor.
    ///
    /// ```
    /// use burn_dist_checkpoint::hf::{Form, Names};
    /// let names = Names::parse(r#""up.*.weight" = "model.*.up_proj.weight, transposed""#, &[])?.lora();
    /// let (tensor, form) = names.tensor("up.3.weight.lora.b").expect("it has a row");
    /// assert_eq!(tensor, "base_model.model.model.3.up_proj.lora_B.weight");
    /// assert_eq!(form, Form::Transposed);
    /// assert_eq!(names.tensor("up.3.weight"), None);
    /// # Ok::<(), burn_dist_checkpoint::hf::NamesError>(())
    /// ```
    pub fn lora(&self) -> Self {
        let is_linear = |row: &&Row| row.form != Form::Same && row.tensor.last() == Some("weight");
        let factors = self.rows.iter().filter(is_linear).flat_map(|row| {
            let own = row.parameter.last().unwrap_or_default();
            Factor::ALL.map(|factor| Row {
                parameter: row
                    .parameter
                    .with_ends(&[], &[own, "lora", factor.own_name()]),
                tensor: row.tensor.with_ends(&WRAPPERS, &[factor.name(), "weight"]),
                form: match factor {
                    Factor::A => Form::Transposed,
                    Factor::B => row.form,
                },
                line: row.line,
            })
        });
        Self {
            rows: factors.collect(),
            ignored: Vec::new(),
        }
    }

    /// Adds the rows of a table; points outside of quotes make tables of their own.
    fn add(
        &mut self,
        text: &str,
        prefix: &str,
        table: &DeTable<'_>,
        widths: &[(&str, usize)],
    ) -> Result<(), NamesError> {
        for (key, value) in table {
            at_most(1, "rows", self.rows.len() + 1, ROWS_MAX)?;
            let line = line_of(text, key.span().start);
            let error = |problem| NamesError { line, problem };
            let path = match prefix {
                "" => key.get_ref().to_string(),
                prefix => format!("{prefix}.{}", key.get_ref()),
            };
            match value.get_ref() {
                DeValue::Table(inner) => self.add(text, &path, inner, widths)?,
                DeValue::String(value) => {
                    let row = row(&path, value, line, widths).map_err(error)?;
                    self.rows.push(row);
                }
                DeValue::Array(list) if path == IGNORED => {
                    at_most(line, "names", list.len(), ROWS_MAX)?;
                    for value in list {
                        let line = line_of(text, value.span().start);
                        let error = |problem| NamesError { line, problem };
                        let name = value.get_ref().as_str();
                        let name = name.ok_or(NamesProblem::Row).map_err(error)?;
                        self.ignored.push(pattern(name).map_err(error)?);
                    }
                }
                _ => return Err(error(NamesProblem::Row)),
            }
        }
        Ok(())
    }

    /// Refuses rows of which two fit the same path.
    fn check(&self) -> Result<(), NamesError> {
        for (index, row) in self.rows.iter().enumerate() {
            for earlier in &self.rows[..index] {
                let sides = [
                    (&row.parameter, &earlier.parameter),
                    (&row.tensor, &earlier.tensor),
                ];
                if let Some((own, other)) = sides.iter().find(|(own, other)| own.overlaps(other)) {
                    let problem = NamesProblem::Overlap {
                        own: own.to_string(),
                        other: other.to_string(),
                        line: earlier.line,
                    };
                    let line = row.line;
                    return Err(NamesError { line, problem });
                }
            }
        }
        Ok(())
    }
}

fn at_most(line: usize, what: &'static str, found: usize, max: usize) -> Result<(), NamesError> {
    let problem = NamesProblem::TooLong { what, found, max };
    let error = NamesError { line, problem };
    (found <= max).then_some(()).ok_or(error)
}

/// Reads a row: `tensor`, or `tensor, form`.
fn row(
    parameter: &str,
    value: &str,
    line: usize,
    widths: &[(&str, usize)],
) -> Result<Row, NamesProblem> {
    let (tensor, form) = value.split_once(',').unwrap_or((value, "same"));
    let form = form_of(form.trim(), widths)?;
    let (parameter, tensor) = (pattern(parameter)?, pattern(tensor.trim())?);
    let more = usize::from(form == Form::Stacked);
    if parameter.num_gaps() + more != tensor.num_gaps() {
        let (parameter, tensor) = (parameter.to_string(), tensor.to_string());
        return Err(NamesProblem::Gaps { parameter, tensor });
    }
    Ok(Row {
        parameter,
        tensor,
        form,
        line,
    })
}

fn pattern(text: &str) -> Result<Pattern, NamesProblem> {
    Pattern::parse(text).ok_or_else(|| NamesProblem::Path(text.to_owned()))
}

fn form_of(text: &str, widths: &[(&str, usize)]) -> Result<Form, NamesProblem> {
    match text {
        "same" => return Ok(Form::Same),
        "transposed" => return Ok(Form::Transposed),
        "stacked" => return Ok(Form::Stacked),
        _ => {}
    }
    let no_form = || NamesProblem::Form(text.to_owned());
    let inside = text.strip_prefix("rotary(");
    let width = inside.and_then(|rest| rest.strip_suffix(')'));
    let width = width.ok_or_else(no_form)?.trim();
    let is_width = |head_dim: &usize| *head_dim > 0 && head_dim.is_multiple_of(2);
    let head_dim = if width.starts_with(|c: char| c.is_ascii_digit()) {
        let number = width.parse().ok().filter(is_width);
        number.ok_or_else(no_form)?
    } else {
        let given = widths.iter().find(|(name, _)| *name == width);
        let given = given.map(|(_, head_dim)| *head_dim).filter(is_width);
        given.ok_or_else(|| NamesProblem::Width(width.to_owned()))?
    };
    Ok(Form::Rotary { head_dim })
}

fn line_of(text: &str, byte: usize) -> usize {
    let before = text.bytes().take(byte);
    1 + before.filter(|byte| *byte == b'\n').count()
}

/// Text that is read back as the same names.
impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.rows {
            write!(f, "\"{}\" = \"{}", row.parameter, row.tensor)?;
            match row.form {
                Form::Same => writeln!(f, "\"")?,
                form => writeln!(f, ", {form}\"")?,
            }
        }
        let ignored = self.ignored.iter().map(|pattern| format!("\"{pattern}\""));
        match self.ignored.is_empty() {
            true => Ok(()),
            false => writeln!(
                f,
                "{IGNORED} = [{}]",
                ignored.collect::<Vec<_>>().join(", ")
            ),
        }
    }
}
