//! The expansion of wrong attributes: the errors, and an impl that says nothing.
//!
//! Without the impl every `model.parallelize(..)` would fail too, burying the one mistake under its consequences.

use proc_macro2::TokenStream;
use quote::quote;
use syn::DeriveInput;

/// Expands to the compile errors and a stub impl.
pub(crate) fn expand(input: &DeriveInput, error: &syn::Error) -> TokenStream {
    let errors = error.to_compile_error();
    let ident = &input.ident;
    let (impl_generics, ty_generics, where_clause) = input.generics.split_for_impl();
    quote! {
        #errors

        #[automatically_derived]
        impl #impl_generics ::burn_dist::__private::Parallelize for #ident #ty_generics #where_clause {
            fn describe(&self, _scope: &mut ::burn_dist::__private::Scope) {}
        }
    }
}
