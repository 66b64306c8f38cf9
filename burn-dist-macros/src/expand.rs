//! The impl: one call per field, in the words of `burn_dist::__private`.

use crate::constant::{choice, computing, layout_parts};
use crate::model::{Body, Field, Mark, Module, Rule, Stage, Unit, Variant};
use proc_macro2::{Ident, Literal, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{GenericArgument, Generics, PathArguments, Type, parse_quote_spanned};

/// A line of Burn.
#[derive(Clone, Copy)]
pub(crate) enum Line {
    /// Tensors and modules name no backend.
    Current,
    /// Modules are generic over a backend, which Burn's `Module` derive requires to be called `B`.
    Burn021,
}

impl Line {
    /// Returns whether a type parameter stands for the backend, whose types are known.
    fn is_backend(self, param: &Ident) -> bool {
        match self {
            Self::Current => false,
            Self::Burn021 => param == "B",
        }
    }
}

/// Expands to the impl of `Parallelize`.
pub(crate) fn expand(module: &Module, line: Line) -> TokenStream {
    let ident = &module.ident;
    let mut generics = module.generics.clone();
    let generic: Vec<&Type> = module
        .required()
        .into_iter()
        .filter(|ty| is_generic(ty, &module.generics, line))
        .collect();
    if !generic.is_empty() {
        let predicates = &mut generics.make_where_clause().predicates;
        for ty in generic {
            predicates
                .push(parse_quote_spanned!(ty.span()=> #ty: ::burn_dist::__private::Parallelize));
        }
    }
    let (impl_generics, ty_generics, where_clause) = generics.split_for_impl();
    let unit = marks(&module.unit);
    let body = match &module.body {
        Body::Struct(fields) => fields.iter().map(field).collect(),
        Body::Enum(variants) => enum_body(variants),
    };
    quote! {
        #[automatically_derived]
        impl #impl_generics ::burn_dist::__private::Parallelize for #ident #ty_generics #where_clause {
            #[allow(unused_imports, unused_variables)]
            fn describe(&self, scope: &mut ::burn_dist::__private::Scope) {
                use ::burn_dist::__private::{EachItem as _, EachNothing as _, ViaNothing as _, ViaPlan as _};
                #unit
                #body
            }
        }
    }
}

/// Returns whether only the user of the module knows the type: it mentions a type parameter that is not the backend.
fn is_generic(ty: &Type, generics: &Generics, line: Line) -> bool {
    let params: Vec<&Ident> = generics
        .type_params()
        .map(|param| &param.ident)
        .filter(|param| !line.is_backend(param))
        .collect();
    mentions(ty.to_token_stream(), &params)
}

fn mentions(tokens: TokenStream, params: &[&Ident]) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => params.contains(&&ident),
        TokenTree::Group(group) => mentions(group.stream(), params),
        _ => false,
    })
}

fn field(field: &Field) -> TokenStream {
    let name = &field.name;
    content(field, &quote!(&self.#name))
}

/// Expands a field's attributes; `value` is a reference to it.
fn content(field: &Field, value: &TokenStream) -> TokenStream {
    let stage = field
        .stage
        .iter()
        .map(|stage| staged(stage, &field.ty, value));
    // What a module says of its own parts comes later, and so counts.
    let inside = rule(&field.rule, &field.ty, value);
    enter(&field.name.to_string(), quote!(#(#stage)* #inside))
}

/// The stage of a value of type `ty`.
fn staged(stage: &Stage, ty: &Type, value: &TokenStream) -> TokenStream {
    // Reported at the type if it is no list; names are those of the expansion, also in the user's macros.
    let span = ty.span().resolved_at(proc_macro2::Span::call_site());
    match stage {
        Stage::First => quote!(scope.first();),
        Stage::Last => quote!(scope.last();),
        Stage::Blocks => quote_spanned!(span=> scope.stages(#value);),
        Stage::Weights(weights) => {
            quote_spanned!(span=> scope.stage_weights(#value, &#weights);)
        }
    }
}

fn enum_body(variants: &[Variant]) -> TokenStream {
    if variants.is_empty() {
        return quote!(match *self {});
    }
    let arms = variants.iter().map(|variant| {
        let name = &variant.name;
        match &variant.content {
            Some(field) => {
                let body = content(field, &quote!(module));
                quote!(Self::#name(module) => { #body })
            }
            None => quote!(Self::#name { .. } => {}),
        }
    });
    quote!(match self { #(#arms)* })
}

/// The segment of the path Burn uses, with `inside`; nothing where that is nothing.
fn enter(segment: &str, inside: TokenStream) -> TokenStream {
    if inside.is_empty() {
        return inside;
    }
    quote!(scope.enter(#segment, |scope| { #inside });)
}

/// Expands the policies of a unit.
fn marks(unit: &Unit) -> TokenStream {
    let policy = quote!(::burn_dist::__private::policy::UnitPolicy::new());
    let alone = unit.unit.then(|| policy.clone());
    let checkpoint = unit.checkpoint.then(
        || quote!(#policy.checkpoint(::burn_dist::__private::policy::ActivationCheckpoint::Full)),
    );
    let strategy = unit.strategy.map(|strategy| {
        let strategy = choice("ShardStrategy", strategy);
        quote!(#policy.strategy(#strategy))
    });
    let precision = unit.precision.as_ref().map(computing);
    let context = unit.context.map(|context| {
        let context = choice("ContextParallel", context);
        quote!(#policy.context(#context))
    });
    let policies = [alone, checkpoint, strategy, precision, context];
    let policies = policies.into_iter().flatten();
    quote!(#(scope.unit(#policies);)*)
}

/// Expands the rule of a value of type `ty`; `value` is a reference to it.
fn rule(rule: &Rule, ty: &Type, value: &TokenStream) -> TokenStream {
    match rule {
        Rule::Hidden => TokenStream::new(),
        Rule::Skip => quote!(scope.skip();),
        Rule::Nested { unit, required } => {
            let unit = marks(unit);
            let nested = match required {
                // The span of the type, so that its lack of a plan is reported there.
                true => quote_spanned! {ty.span()=>
                    ::burn_dist::__private::Parallelize::describe(#value, scope);
                },
                false => nested(ty, value),
            };
            quote!(#unit #nested)
        }
        Rule::Styled(mark) => styled(mark, value),
    }
}

fn styled(mark: &Mark, value: &TokenStream) -> TokenStream {
    let style = format_ident!("{}", mark.style.variant());
    let unit = marks(&mark.unit);
    let axes = mark.axes.iter().map(|axes| quote!(.axes(&[#(#axes),*])));
    let input = mark.input.iter().map(|layout| {
        let layout = layout_parts(layout);
        quote!(.input(#layout))
    });
    let output = mark.output.iter().map(|layout| {
        let layout = layout_parts(layout);
        quote!(.output(#layout))
    });
    let heads = mark.heads.iter().map(|heads| {
        let (count, label) = (&heads.count, &heads.label);
        // The span of the count, so that a count of another type is reported there.
        let call = quote_spanned!(count.span()=> .heads(#count, #label));
        quote!(#call)
    });
    // A field that may hold nothing at all (`None`, an empty `Vec`) is no mistake when it does.
    quote! {
        #unit
        scope.style(
            ::burn_dist::__private::Mark::new(::burn_dist::__private::Style::#style)
                #(#axes)* #(#input)* #(#output)* #(#heads)*
                .vacant((&::burn_dist::__private::Probe(#value)).is_vacant())
        );
    }
}

/// Hands over to the plan of the value's own type, if it has one: trait resolution decides, so foreign types need no
/// impl.
///
/// Tuples are taken apart here, since their elements differ in whether they have a plan.
fn nested(ty: &Type, value: &TokenStream) -> TokenStream {
    let item = Ident::new("item", proc_macro2::Span::mixed_site());
    match ty {
        Type::Paren(inner) => nested(&inner.elem, value),
        Type::Group(inner) => nested(&inner.elem, value),
        Type::Tuple(tuple) => tuple
            .elems
            .iter()
            .enumerate()
            .map(|(i, elem)| {
                let index = Literal::usize_unsuffixed(i);
                enter(&i.to_string(), nested(elem, &quote!(&(#value).#index)))
            })
            .collect(),
        Type::Array(array) if contains_tuple(ty) => {
            let inside = nested(&array.elem, &quote!(#item));
            each(value, &item, &array.elem, &inside)
        }
        Type::Path(_) if contains_tuple(ty) => match only_argument(ty) {
            Some(elem) => {
                let inside = nested(elem, &quote!(#item));
                each(value, &item, elem, &inside)
            }
            None => TokenStream::new(),
        },
        _ => quote!((&::burn_dist::__private::Probe(#value)).describe_into(scope);),
    }
}

fn each(value: &TokenStream, item: &Ident, elem: &Type, inside: &TokenStream) -> TokenStream {
    quote! {
        (&::burn_dist::__private::Probe(#value)).each(scope, |scope, #item: &#elem| { #inside });
    }
}

/// Returns whether a type is written with a tuple somewhere inside, and so needs to be taken apart by the derive.
fn contains_tuple(ty: &Type) -> bool {
    match ty {
        Type::Tuple(_) => true,
        Type::Paren(inner) => contains_tuple(&inner.elem),
        Type::Group(inner) => contains_tuple(&inner.elem),
        Type::Array(array) => contains_tuple(&array.elem),
        Type::Path(_) => only_argument(ty).is_some_and(contains_tuple),
        _ => false,
    }
}

/// The type argument of a path that has exactly one: `T` of `Vec<T>`.
fn only_argument(ty: &Type) -> Option<&Type> {
    let Type::Path(path) = ty else { return None };
    let PathArguments::AngleBracketed(arguments) = &path.path.segments.last()?.arguments else {
        return None;
    };
    match arguments.args.iter().collect::<Vec<_>>().as_slice() {
        [GenericArgument::Type(argument)] => Some(argument),
        _ => None,
    }
}
