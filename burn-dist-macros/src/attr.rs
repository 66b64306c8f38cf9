//! The grammar of `#[parallel(...)]`: a list of `key` and `key = value`, nothing interpreted yet.

use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Attribute, Expr, Ident, Meta, Token};

/// One `key` or `key = value`.
pub(crate) struct Item {
    pub(crate) key: Ident,
    pub(crate) value: Option<Expr>,
}

impl Parse for Item {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        if !input.peek(Ident::peek_any) {
            return Err(input.error("expected a key, such as `colwise`, `rowwise` or `unit`"));
        }
        let key = input.call(Ident::parse_any)?;
        let value = match input.parse::<Option<Token![=]>>()? {
            Some(_) => Some(input.parse()?),
            None if input.is_empty() || input.peek(Token![,]) => None,
            None => return Err(input.error(format!("expected `,` or `=` after `{key}`"))),
        };
        Ok(Self { key, value })
    }
}

/// Reads every `#[parallel(...)]` among `attrs`; mistakes go to `errors` and the rest is still returned.
pub(crate) fn items(attrs: &[Attribute], errors: &mut Vec<syn::Error>) -> Vec<Item> {
    let mut items = Vec::new();
    for attr in attrs.iter().filter(|attr| attr.path().is_ident("parallel")) {
        let parsed = match &attr.meta {
            Meta::List(list) if list.tokens.is_empty() => Err(empty_list(attr)),
            Meta::List(_) => attr.parse_args_with(Punctuated::<Item, Token![,]>::parse_terminated),
            Meta::Path(_) | Meta::NameValue(_) => Err(empty_list(attr)),
        };
        match parsed {
            Ok(parsed) => items.extend(parsed),
            Err(error) => errors.push(error),
        }
    }
    items
}

fn empty_list(attr: &Attribute) -> syn::Error {
    syn::Error::new_spanned(
        &attr.meta,
        "`parallel` needs a list, such as `#[parallel(colwise)]`",
    )
}

/// Returns whether Burn leaves the field alone: `#[module(skip)]`.
pub(crate) fn is_hidden(attrs: &[Attribute]) -> bool {
    let mut hidden = false;
    for attr in attrs.iter().filter(|attr| attr.path().is_ident("module")) {
        // A malformed `#[module(...)]` is reported by Burn's own derive.
        let _ = attr.parse_nested_meta(|meta| {
            hidden |= meta.path.is_ident("skip");
            Ok(())
        });
    }
    hidden
}
