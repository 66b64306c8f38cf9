//! The meaning of a style for a parameter: the dim it splits, and the parameter's role.

use super::tree::{Parameter, Segment};
use super::{ParallelError, ParamRole, Style};

/// How an entry's pattern names a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Relation {
    /// It names a module somewhere above the one that holds the parameter.
    Above,
    /// It names the parameter itself.
    Itself,
    /// It names the module that holds the parameter.
    Holder,
}

/// A parameter that an entry names, itself or a module that it is in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Match {
    /// The parameter, by number.
    pub(super) parameter: usize,
    /// How many segments of its path the entry names.
    pub(super) len: usize,
    /// The relation of these to the parameter.
    pub(super) relation: Relation,
}

/// Returns how the first `len` segments of a parameter's path relate to it.
pub(super) fn relation(parameter: &Parameter, len: usize) -> Relation {
    let below = &parameter.segments[len..];
    let unnamed = |segments: &[Segment]| segments.iter().all(|s| s.struct_name().is_none());
    match below.split_last() {
        None => Relation::Itself,
        Some((last, between)) if unnamed(between) => match last.struct_name() {
            Some(_) => Relation::Holder,
            None => Relation::Itself,
        },
        Some(_) => Relation::Above,
    }
}

/// Returns the dim that `style` splits, if any, and what the parameter is.
///
/// `named` is the path the style was put on, and `others` describes all parameters there, both for messages.
pub(super) fn fit(
    parameter: &Parameter,
    style: Style,
    relation: Relation,
    named: &str,
    others: &dyn Fn() -> String,
) -> Result<(Option<usize>, ParamRole), ParallelError> {
    let role = role(parameter, style, relation);
    if !style.splits() {
        return Ok((None, role));
    }
    let misfit = |found: String, advice: String| ParallelError::DoesNotFit {
        path: named.into(),
        style,
        found,
        advice,
    };
    let dim = match (relation, role, parameter.shape.len()) {
        (Relation::Above, ..) => {
            return Err(misfit(
                format!("a module of modules ({})", others()),
                "name the modules in it that hold weights".into(),
            ));
        }
        (_, ParamRole::Weight, 3) | (_, ParamRole::Bias, 2) if style == Style::Experts => Some(0),
        (relation, ..) if style == Style::Experts => {
            let found = match relation {
                Relation::Itself => "a parameter",
                _ => "a module whose parameters are",
            };
            return Err(misfit(
                format!("{found} {}", others()),
                "it splits dim 0 of stacked weights [experts, in, out] and biases [experts, out]; use replicate".into(),
            ));
        }
        (_, ParamRole::Weight | ParamRole::Embedding, 2) => {
            Some(weight_dim(parameter, style, role, relation, named)?)
        }
        (_, ParamRole::Bias, 1) => match style {
            Style::Rowwise => None,
            _ => Some(0),
        },
        (Relation::Itself, ..) => {
            return Err(misfit(
                format!(
                    "a parameter of {} dims ({})",
                    parameter.shape.len(),
                    others()
                ),
                "it splits the 2 dims of a weight, or the one of a bias; use replicate".into(),
            ));
        }
        (Relation::Holder, ..) => {
            return Err(misfit(
                format!("a module whose parameters are {}", others()),
                format!(
                    "it splits a `weight` of 2 dims and a `bias`; use sequence or replicate, or give `{}` its own \
                     entry",
                    parameter.path()
                ),
            ));
        }
    };
    Ok((dim, role))
}

fn weight_dim(
    parameter: &Parameter,
    style: Style,
    role: ParamRole,
    relation: Relation,
    named: &str,
) -> Result<usize, ParallelError> {
    match (style, role) {
        (Style::Colwise, _) => Ok(1),
        (Style::Vocab, ParamRole::Weight) => match (relation, holder(parameter)) {
            // Burn's own name for the output head, as its definition spells it.
            (Relation::Holder, Some("Linear")) => Ok(1),
            (Relation::Holder, found) => Err(ParallelError::DoesNotFit {
                path: named.into(),
                style,
                found: format!("`{}` ({})", found.unwrap_or("module"), shape(&parameter.shape)),
                advice: "only `Embedding` and `Linear` say which dim is the vocabulary; use rowwise for dim 0, colwise \
                    for dim 1".into(),
            }),
            // A bare table of vectors.
            _ => Ok(0),
        },
        _ => Ok(0),
    }
}

/// Returns the role of a parameter in its module, by the names Burn's modules share.
fn role(parameter: &Parameter, style: Style, relation: Relation) -> ParamRole {
    let ndim = parameter.shape.len();
    if style.splits() && relation == Relation::Itself {
        return match (style, ndim) {
            (Style::Vocab, 2) => ParamRole::Embedding,
            (Style::Experts, 3) => ParamRole::Weight,
            (Style::Experts, 2) => ParamRole::Bias,
            (Style::Experts, _) => ParamRole::Other,
            (_, 2) => ParamRole::Weight,
            (_, 1) => ParamRole::Bias,
            _ => ParamRole::Other,
        };
    }
    let name = parameter
        .segments
        .iter()
        .rfind(|s| s.struct_name().is_some())
        .map_or("", |s| s.name.as_str());
    match (name, ndim) {
        (_, 1) if style == Style::Sequence => ParamRole::Norm,
        // Stacked, whatever they are called; but a `weight` of 2 dims is that of one layer.
        (_, 3) if style == Style::Experts => ParamRole::Weight,
        (name, 2) if style == Style::Experts && name != "weight" => ParamRole::Bias,
        ("weight", 2) if holder(parameter) == Some("Embedding") => ParamRole::Embedding,
        ("weight", 2..) => ParamRole::Weight,
        ("bias", 1) => ParamRole::Bias,
        ("gamma" | "beta", 1) => ParamRole::Norm,
        _ => ParamRole::Other,
    }
}

/// The type that holds the parameter as a field, as its definition names it.
fn holder(parameter: &Parameter) -> Option<&str> {
    parameter
        .segments
        .iter()
        .rev()
        .find_map(Segment::struct_name)
}

/// `[16, 64]`.
pub(super) fn shape(shape: &[usize]) -> String {
    format!("{shape:?}")
}
