//! The values of attributes as constants in the expansion, so that no text is read again when a program runs.

use burn_dist_layout::LayoutText;
use burn_dist_layout::policy::{Float8, Precision, UnitPolicy};
use burn_dist_layout::written::{AxisText, FactorText, PartialText};
use proc_macro2::{Literal, TokenStream};
use quote::{ToTokens, format_ident, quote};
use std::fmt::Debug;

/// A value of an enum without fields; its `Debug` is derived, and so is the name of the variant.
pub(crate) fn choice(of: &str, value: impl Debug) -> TokenStream {
    let (of, variant) = (format_ident!("{of}"), format_ident!("{value:?}"));
    quote!(::burn_dist::__private::policy::#of::#variant)
}

/// A policy of which only the precision and float8 are set.
pub(crate) fn computing(policy: &UnitPolicy) -> TokenStream {
    let precision = policy.precision.map(|precision| {
        let Precision {
            param,
            reduce,
            output,
        } = precision;
        let (param, reduce) = (choice("Float", param), choice("Float", reduce));
        let output = option(output.map(|output| choice("Float", output)));
        quote! {
            .precision(::burn_dist::__private::policy::Precision {
                param: #param, reduce: #reduce, output: #output,
            })
        }
    });
    let float8 = policy.float8.as_ref().map(|float8| {
        let float8 = option(float8.as_ref().map(float8_value));
        quote!(.float8(#float8))
    });
    quote!(::burn_dist::__private::policy::UnitPolicy::new() #precision #float8)
}

fn float8_value(float8: &Float8) -> TokenStream {
    let Float8 {
        scaling,
        scope,
        gather,
        forward,
        gradients,
        skip,
    } = float8;
    let (scaling, scope) = (choice("Scaling", scaling), choice("Scope", scope));
    let (forward, gradients) = (choice("Fp8", forward), choice("Fp8", gradients));
    quote! {
        ::burn_dist::__private::policy::Float8 {
            scaling: #scaling, scope: #scope, gather: #gather, forward: #forward, gradients: #gradients,
            skip: ::std::vec![#(::std::string::String::from(#skip)),*],
        }
    }
}

fn option(value: Option<impl ToTokens>) -> TokenStream {
    match value {
        Some(value) => quote!(::core::option::Option::Some(#value)),
        None => quote!(::core::option::Option::None),
    }
}

/// A layout, taken apart.
pub(crate) fn layout_parts(layout: &LayoutText) -> TokenStream {
    let (text, end) = (layout.as_str(), number(layout.end()));
    let dims = layout.dims().iter().map(|dim| {
        let (column, factors) = (number(dim.column), dim.factors.iter().map(factor));
        quote!((#column, &[#(#factors),*]))
    });
    let partial = layout.partial().iter().map(|PartialText { op, axes }| {
        let op = format_ident!("{op:?}");
        let axes = axes.iter().map(axis);
        quote!((::burn_dist::__private::ReduceOp::#op, &[#(#axes),*]))
    });
    quote! {
        ::burn_dist::__private::LayoutParts {
            text: #text, end: #end, dims: &[#(#dims),*], partial: &[#(#partial),*],
        }
    }
}

fn factor(factor: &FactorText) -> TokenStream {
    let (column, axes) = (number(factor.column), factor.axes.iter().map(axis));
    let size = option(factor.size.map(number));
    quote!((#column, #size, &[#(#axes),*]))
}

fn axis(axis: &AxisText) -> TokenStream {
    let (column, name) = (number(axis.column), &axis.name);
    quote!((#column, #name))
}

fn number(number: usize) -> Literal {
    Literal::usize_unsuffixed(number)
}
