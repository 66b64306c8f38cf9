//! Everything the planner must know about one parameter, as plain data.

use crate::Policy;
use crate::layout::Layout;
use crate::mesh::MeshShape;
use core::fmt;
use core::str::FromStr;
use std::sync::Arc;

/// How a module is split over a tensor-parallel axis.
///
/// For `y = x W + b` with `W` of shape `[in, out]`, as in Burn's `Linear`:
///
/// | style | `weight` | `bias` |
/// | --- | --- | --- |
/// | colwise | `[-, {tp}]` | `[{tp}]` |
/// | rowwise | `[{tp}, -]` | `[-]` |
/// | vocab on an `Embedding` (`[vocab, dim]`) | `[{tp}, -]` | |
/// | vocab on a `Linear` (the output head) | `[-, {tp}]` | `[{tp}]` |
/// | sequence, replicate | whole | whole |
///
/// # Source
/// Megatron-LM (arXiv:1909.08053, section 3) for colwise, rowwise and vocab; arXiv:2205.05198, section 4.2.2, for
/// sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Style {
    /// Output features are split; every rank computes some columns of the result.
    Colwise,
    /// Input features are split; every rank computes a term of a sum.
    Rowwise,
    /// The vocabulary is split: the rows of an embedding, the columns of an output head (logits stay sharded: loss
    /// parallel).
    Vocab,
    /// The module works on its part of the sequence; its own parameters are whole.
    Sequence,
    /// Whole over every tensor-parallel axis.
    Replicate,
}

impl Style {
    /// Whether the style splits weights over its axis.
    pub fn splits(self) -> bool {
        matches!(self, Self::Colwise | Self::Rowwise | Self::Vocab)
    }
}

/// What a parameter is to its module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParamRole {
    /// The matrix of a linear map, or a convolution's kernel.
    Weight,
    /// What is added after it.
    Bias,
    /// A table of vectors.
    Embedding,
    /// The scale or shift of a norm.
    Norm,
    /// Anything else.
    Other,
}

/// A two-way table of names, for the text forms.
macro_rules! names {
    ($type:ident, $what:literal, $($variant:ident = $name:literal),+ $(,)?) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $name),+ })
            }
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($name => Ok(Self::$variant),)+
                    other => Err(format!(concat!("unknown ", $what, " `{}`"), other)),
                }
            }
        }
    };
}

names!(
    Style,
    "style",
    Colwise = "colwise",
    Rowwise = "rowwise",
    Vocab = "vocab",
    Sequence = "sequence",
    Replicate = "replicate"
);
names!(
    ParamRole,
    "role",
    Weight = "weight",
    Bias = "bias",
    Embedding = "embedding",
    Norm = "norm",
    Other = "other"
);

/// The layout of an activation, kept as text until a tensor with its number of dims is at hand.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LayoutText(String);

impl LayoutText {
    /// Takes a layout in text; whether it can be read is checked by whoever takes it.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the number of dims of the tensors it is for.
    pub fn ndim(&self) -> usize {
        self.some_shape().len()
    }

    /// Returns the names of the axes in it, in order.
    pub fn axes(&self) -> impl Iterator<Item = &str> {
        self.0
            .split('{')
            .skip(1)
            .filter_map(|rest| rest.split_once('}'))
            .flat_map(|(axes, _)| axes.split(','))
            .map(|axis| axis.trim().trim_end_matches('*'))
    }

    /// Checks the form, whatever mesh it is for.
    pub fn check(&self) -> Result<(), String> {
        let mut names: Vec<&str> = self.axes().filter(|name| is_name(name)).collect();
        names.sort_unstable();
        names.dedup();
        let mesh = MeshShape::new(names.into_iter().map(|name| (name, 2)))
            .map_err(|error| error.to_string())?;
        let layout = Layout::parse(&self.0, &mesh, Some(&self.some_shape()))
            .map_err(|error| error.to_string())?;
        match layout.at_rest.as_slice() {
            [] => Ok(()),
            _ => Err("only parameters rest: leave the `*` out".into()),
        }
    }

    /// A shape the layout could be for: sizes as written, 1 where none is.
    fn some_shape(&self) -> Vec<usize> {
        let inside = self.0.split_once('[').map_or("", |(_, rest)| rest);
        let inside = inside.split_once(']').map_or(inside, |(inside, _)| inside);
        if inside.trim().is_empty() {
            return Vec::new();
        }
        let (mut shape, mut in_braces) = (vec![1_usize], false);
        let mut number: Option<usize> = None;
        // A comma at the end, so that the last number is taken too; its dim is cut off again.
        for c in inside.chars().chain([',']) {
            if let Some(digit) = c.to_digit(10).filter(|_| !in_braces) {
                number = Some(
                    number
                        .unwrap_or(0)
                        .saturating_mul(10)
                        .saturating_add(digit as usize),
                );
                continue;
            }
            if let (Some(size), Some(dim)) = (number.take(), shape.last_mut()) {
                *dim = dim.saturating_mul(size);
            }
            match c {
                '{' => in_braces = true,
                '}' => in_braces = false,
                ',' if !in_braces => shape.push(1),
                _ => {}
            }
        }
        shape.pop();
        shape
    }

    /// Returns the text without an axis; `None` if no other axis is left, so that it says nothing.
    pub fn without(&self, axis: &str) -> Option<Self> {
        let mut out = String::new();
        let mut rest = self.0.as_str();
        while let Some((before, group)) = rest.split_once('{') {
            let (axes, after) = group.split_once('}')?;
            let kept: Vec<&str> = axes
                .split(',')
                .map(str::trim)
                .filter(|a| *a != axis)
                .collect();
            let (head, word) = split_last_word(before);
            if !kept.is_empty() {
                out.push_str(&format!("{before}{{{}}}", kept.join(", ")));
            } else if word.chars().any(char::is_alphabetic) {
                // `+ sum{tp}`: a sum over nobody is no sum.
                out.push_str(head.trim_end().trim_end_matches('+').trim_end());
            } else if word.is_empty() {
                out.push_str(before);
                out.push('-');
            } else {
                // `8{tp}`: the factor stays, unsplit.
                out.push_str(before);
            }
            rest = after;
        }
        out.push_str(rest);
        let text = Self(out);
        let says_something = text.axes().next().is_some();
        says_something.then_some(text)
    }
}

fn is_name(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|c| c == '_' || c.is_alphabetic())
        && chars.all(|c| c == '_' || c.is_alphanumeric())
}

/// Splits off the run of letters, digits and underscores at the end.
fn split_last_word(text: &str) -> (&str, &str) {
    let word = text.trim_end_matches(|c: char| !(c == '_' || c.is_alphanumeric()));
    if word.len() < text.len() {
        return (text, "");
    }
    let start = text
        .char_indices()
        .rev()
        .take_while(|(_, c)| *c == '_' || c.is_alphanumeric())
        .last()
        .map_or(text.len(), |(at, _)| at);
    text.split_at(start)
}

impl fmt::Display for LayoutText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Everything the planner must know about one parameter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ParamSpec {
    /// Dotted path from the root of the model.
    pub path: String,
    /// The style of the module that holds it.
    pub style: Style,
    /// What it is to that module.
    pub role: ParamRole,
    /// Its tensor-parallel layout, without the axes it rests over.
    pub layout: Layout,
    /// The layout in which the module takes its input.
    pub input: Option<LayoutText>,
    /// The layout in which the module gives its output.
    pub output: Option<LayoutText>,
    /// The FSDP unit it belongs to: the path of the nearest module marked so, `""` for the whole model.
    pub unit: Option<String>,
    /// How that unit is trained.
    pub policy: Arc<Policy>,
    /// Whether it rests in pieces over the axes made for that (FSDP), as its policy says.
    pub at_rest: bool,
}

impl ParamSpec {
    /// Returns it as one line for people, keys in this order, options that are absent left out:
    /// `path=layers.0.attention.wq.weight;style=colwise;role=weight;layout=[-, {tp}];input=[-, -,
    /// -];unit=layers.0;checkpoint=full;precision=param=bf16,reduce=f32;strategy=zero2;rest=yes`. Of the policy, it names
    /// what differs from the default.
    pub fn to_text(&self, mesh: &MeshShape) -> String {
        let mut text = format!(
            "path={};style={};role={};layout={}",
            self.path,
            self.style,
            self.role,
            self.layout.display(mesh)
        );
        let options = [
            ("input", self.input.as_ref().map(LayoutText::as_str)),
            ("output", self.output.as_ref().map(LayoutText::as_str)),
            ("unit", self.unit.as_deref()),
        ];
        for (key, value) in options {
            if let Some(value) = value {
                text.push_str(&format!(";{key}={value}"));
            }
        }
        let policy = self.policy.to_text(mesh);
        if !policy.is_empty() {
            text.push_str(&format!(";{policy}"));
        }
        text.push_str(if self.at_rest {
            ";rest=yes"
        } else {
            ";rest=no"
        });
        text
    }

    /// Returns the spec for the shape the parameter turned out to have.
    ///
    /// Burn states the shape of a lazy parameter before its mappers run, so only now are the sizes certain. The layout
    /// splits the same dims.
    pub fn for_shape(mut self, shape: &[usize]) -> Self {
        for (dim, size) in self.layout.dims.iter_mut().zip(shape) {
            if let [factor] = dim.factors.as_mut_slice() {
                factor.size = *size;
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            ("[-] + sum{tp} + max{cp}", Some("[-] + max{cp}")),
            ("[-]", None),
        ] {
            let without = LayoutText::new(text).without("tp");
            assert_eq!(
                without.as_ref().map(LayoutText::as_str),
                left,
                "{text} without tp"
            );
            if let Some(text) = without {
                assert_eq!(text.check(), Ok(()), "{text}");
            }
        }
    }

    #[test]
    fn the_form_is_checked_without_a_mesh() {
        for text in ["[]", "[-]", "[{dp, tp}, (4 . 8{cp}), 16]", "[-] + sum{tp}"] {
            assert_eq!(LayoutText::new(text).check(), Ok(()), "{text}");
        }
        for text in ["", "-", "[-", "[tp]", "[{tp}, {tp}]", "[{tp*}]", "[-];x"] {
            assert!(LayoutText::new(text).check().is_err(), "{text}");
        }
    }
}
