//! The values of keys: none, a name, a layout in text, a count.

use crate::attr::Item;
use crate::model::{Heads, Stage};
use burn_dist_layout::LayoutText;
use burn_dist_layout::policy::{ContextParallel, ShardStrategy, UnitPolicy};
use quote::ToTokens;
use std::fmt::Display;
use syn::{Expr, ExprLit, Ident, Lit, LitStr, Member};

/// A key that stands alone.
pub(crate) fn flag(item: &Item, errors: &mut Vec<syn::Error>) -> bool {
    match &item.value {
        None => true,
        Some(value) => {
            let message = format!("`{}` takes no value", item.key);
            errors.push(syn::Error::new_spanned(value, message));
            false
        }
    }
}

/// The value of a key, or the complaint that there is none.
fn value<'a>(item: &'a Item, example: &str, errors: &mut Vec<syn::Error>) -> Option<&'a Expr> {
    if item.value.is_none() {
        errors.push(syn::Error::new(
            item.key.span(),
            format!("`{0}` needs a value: `{0} = {example}`", item.key),
        ));
    }
    let mut value = item.value.as_ref()?;
    // A literal that comes out of a `macro_rules!` is wrapped in a group without delimiters.
    while let Expr::Group(group) = value {
        value = &group.expr;
    }
    Some(value)
}

fn string(item: &Item, example: &str, errors: &mut Vec<syn::Error>) -> Option<LitStr> {
    match value(item, example, errors)? {
        Expr::Lit(ExprLit {
            lit: Lit::Str(text),
            ..
        }) => Some(text.clone()),
        other => {
            errors.push(syn::Error::new_spanned(
                other,
                format!("expected a string: `{} = {example}`", item.key),
            ));
            None
        }
    }
}

/// The name of a mesh axis, in quotes.
pub(crate) fn axis_name(item: &Item, errors: &mut Vec<syn::Error>) -> Option<String> {
    let text = string(item, "\"tp\"", errors)?;
    if syn::parse_str::<Ident>(&text.value()).is_err() {
        errors.push(syn::Error::new(
            text.span(),
            format!("`{}` is not the name of a mesh axis", text.value()),
        ));
        return None;
    }
    Some(text.value())
}

/// The names of mesh axes, separated by commas.
pub(crate) fn axis_names(item: &Item, errors: &mut Vec<syn::Error>) -> Option<Vec<String>> {
    let text = string(item, "\"fsdp,cp\"", errors)?;
    let names = text.value();
    let names: Vec<&str> = names.split(',').map(str::trim).collect();
    if let Some(name) = names
        .iter()
        .find(|name| syn::parse_str::<Ident>(name).is_err())
    {
        errors.push(syn::Error::new(
            text.span(),
            format!("`{name}` is not the name of a mesh axis"),
        ));
        return None;
    }
    Some(names.into_iter().map(Into::into).collect())
}

/// The strategy of a unit: what shard axes do with it.
pub(crate) fn strategy(item: &Item, errors: &mut Vec<syn::Error>) -> Option<ShardStrategy> {
    read(item, "\"zero2\"", str::parse::<ShardStrategy>, errors)
}

/// The precision of a unit.
pub(crate) fn precision(item: &Item, errors: &mut Vec<syn::Error>) -> Option<UnitPolicy> {
    read(item, "\"bf16\"", UnitPolicy::computing_in, errors)
}

/// How attention gets keys that other ranks have.
pub(crate) fn context(item: &Item, errors: &mut Vec<syn::Error>) -> Option<ContextParallel> {
    read(item, "\"ring\"", str::parse::<ContextParallel>, errors)
}

/// The layout of an activation.
pub(crate) fn layout(item: &Item, errors: &mut Vec<syn::Error>) -> Option<LayoutText> {
    read(item, "\"[-, {tp}, -]\"", LayoutText::parse, errors)
}

/// The value that a string stands for.
fn read<T, E: Display>(
    item: &Item,
    example: &str,
    parse: impl Fn(&str) -> Result<T, E>,
    errors: &mut Vec<syn::Error>,
) -> Option<T> {
    let text = string(item, example, errors)?;
    match parse(&text.value()) {
        Ok(value) => Some(value),
        Err(error) => {
            errors.push(syn::Error::new(text.span(), error));
            None
        }
    }
}

/// A count the axis has to divide.
pub(crate) fn heads(item: &Item, errors: &mut Vec<syn::Error>) -> Option<Heads> {
    let count = value(item, "self.n_heads", errors)?.clone();
    if let Expr::Lit(ExprLit { lit, .. }) = &count
        && !matches!(lit, Lit::Int(_))
    {
        errors.push(syn::Error::new(
            lit.span(),
            "expected a count, such as `self.n_heads` or `8`",
        ));
        return None;
    }
    let label = label(&count);
    Some(Heads { count, label })
}

/// How a list is cut into stages: evenly, or by weights.
pub(crate) fn stages(item: &Item, errors: &mut Vec<syn::Error>) -> Option<Stage> {
    if item.value.is_none() {
        return Some(Stage::Blocks);
    }
    let weights = value(item, "self.costs", errors)?.clone();
    if let Expr::Lit(ExprLit { lit, .. }) = &weights {
        errors.push(syn::Error::new(
            lit.span(),
            "expected what each block costs, such as `self.costs` or `[1.0, 2.0]`",
        ));
        return None;
    }
    Some(Stage::Weights(Box::new(weights)))
}

/// Names what is counted, in words and as written: `self.n_kv_heads` counts "kv heads (`self.n_kv_heads`)", and a
/// number "heads".
fn label(count: &Expr) -> String {
    let words = words(count);
    if matches!(count, Expr::Lit(_)) {
        return words;
    }
    let written = count.to_token_stream().to_string();
    let written = written.replace(" . ", ".").replace(" (", "(");
    let written = written.replace("( ", "(").replace(" )", ")");
    format!("{words} (`{written}`)")
}

/// Names what is counted, in words: heads, unless a name says something else.
fn words(count: &Expr) -> String {
    let name = match count {
        Expr::Field(field) => match &field.member {
            Member::Named(name) => name.to_string(),
            Member::Unnamed(_) => String::new(),
        },
        Expr::MethodCall(call) => call.method.to_string(),
        Expr::Path(path) => path
            .path
            .segments
            .last()
            .map(|segment| segment.ident.to_string())
            .unwrap_or_default(),
        _ => String::new(),
    };
    let name = name.to_lowercase();
    let words = name
        .strip_prefix("num_")
        .or_else(|| name.strip_prefix("n_"))
        .unwrap_or(&name)
        .replace('_', " ");
    // A letter or two (`self.h`) say nothing.
    if words.len() <= 2 {
        "heads".into()
    } else {
        words
    }
}
