//! The derive on tokens: what attributes mean, which mistakes are found, and what is emitted.

use crate::expand::Line;
use crate::model::{Body, Mark, Module, Rule, Style};
use crate::{check, derive};
use burn_dist_layout::policy::{Float, Precision, ShardStrategy, UnitPolicy};
use proc_macro2::TokenStream;
use quote::quote;

fn model(input: TokenStream) -> Module {
    check::check(&syn::parse2(input).expect("an item")).expect("no mistakes")
}

/// The mark on the only field of a struct.
fn mark(attribute: TokenStream) -> Mark {
    let module = model(quote!(
        struct M {
            #[parallel(#attribute)]
            field: Linear,
        }
    ));
    match module.body {
        Body::Struct(fields) => match fields.into_iter().next().expect("a field").rule {
            Rule::Styled(mark) => *mark,
            _ => panic!("no style"),
        },
        Body::Enum(_) => panic!("an enum"),
    }
}

/// Every mistake, in order.
fn mistakes(input: TokenStream) -> Vec<String> {
    match check::check(&syn::parse2(input).expect("an item")) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.into_iter().map(|error| error.to_string()).collect(),
    }
}

fn field_mistakes(attribute: TokenStream) -> Vec<String> {
    mistakes(quote!(
        struct M {
            #[parallel(#attribute)]
            field: Linear,
        }
    ))
}

fn expansion_for(line: Line, input: TokenStream) -> String {
    let input = syn::parse2(input).expect("an item");
    prettyplease::unparse(&syn::parse2(derive(&input, line)).expect("items"))
}

fn expansion(input: TokenStream) -> String {
    expansion_for(Line::Current, input)
}

#[test]
fn styles_and_options() {
    let mark = mark(quote!(
        colwise,
        axis = "model",
        input = "[-, {model}]",
        heads = self.n_kv_heads,
        unit,
        checkpoint,
        strategy = "zero2",
        precision = "param=bf16, reduce=bf16"
    ));
    assert_eq!(mark.style, Style::Colwise);
    assert_eq!(mark.axes.expect("named"), ["model"]);
    assert_eq!(mark.input.expect("a layout").as_str(), "[-, {model}]");
    assert!(mark.output.is_none());
    assert_eq!(
        mark.heads.expect("given").label,
        "kv heads (`self.n_kv_heads`)"
    );
    assert!(mark.unit.unit && mark.unit.checkpoint);
    assert_eq!(mark.unit.strategy, Some(ShardStrategy::GradOptim));
    let bf16 = Precision::new(Float::BF16).reduce(Float::BF16);
    let policy = UnitPolicy::new().precision(bf16);
    assert_eq!(mark.unit.precision, Some(policy));
}

#[test]
fn counts_are_labelled_by_their_last_name() {
    for (count, label) in [
        (quote!(self.n_heads), "heads (`self.n_heads`)"),
        (
            quote!(self.config.num_key_value_heads),
            "key value heads (`self.config.num_key_value_heads`)",
        ),
        (quote!(self.groups()), "groups (`self.groups()`)"),
        (quote!(N_EXPERTS), "experts (`N_EXPERTS`)"),
        (quote!(self.h), "heads (`self.h`)"),
        (quote!(8), "heads"),
        (quote!(2 * self.n_heads), "heads (`2 * self.n_heads`)"),
    ] {
        let heads = mark(quote!(colwise, heads = #count)).heads.expect("given");
        assert_eq!(heads.label, label, "{count}");
    }
}

#[test]
fn the_axis_of_the_type_is_the_default_of_its_fields() {
    let module = model(quote!(
        #[parallel(axis = "model", unit, checkpoint)]
        struct M {
            #[parallel(colwise)]
            a: Linear,
            #[parallel(rowwise, axis = "other")]
            b: Linear,
            #[parallel(replicate)]
            c: Linear,
        }
    ));
    assert!(module.unit.unit && module.unit.checkpoint);
    let Body::Struct(fields) = module.body else {
        panic!("an enum")
    };
    let axes: Vec<Option<Vec<String>>> = fields
        .iter()
        .map(|field| match &field.rule {
            Rule::Styled(mark) => mark.axes.clone(),
            _ => panic!("no style"),
        })
        .collect();
    let named = |axis: &str| Some(vec![axis.to_owned()]);
    assert_eq!(axes, [named("model"), named("other"), None]);
}

#[test]
fn experts_name_their_axes_as_their_value() {
    let axes = |attribute| mark(attribute).axes.map(|axes| axes.join(" "));
    assert_eq!(mark(quote!(experts)).style, Style::Experts);
    assert_eq!(axes(quote!(experts)), None);
    assert_eq!(
        axes(quote!(experts = "fsdp,cp")).as_deref(),
        Some("fsdp cp")
    );
    // The axis of the type is that of its other styles.
    let module = model(quote!(
        #[parallel(axis = "model")]
        struct M {
            #[parallel(experts)]
            a: Experts,
        }
    ));
    let Body::Struct(fields) = module.body else {
        panic!("an enum")
    };
    let Rule::Styled(mark) = &fields[0].rule else {
        panic!("no style")
    };
    assert!(mark.axes.is_none());
}

#[test]
fn each_mistake_is_named() {
    for (attribute, expected) in [
        (
            quote!(colwize),
            "unknown key `colwize`: did you mean `colwise`?",
        ),
        (
            quote!(everything),
            "unknown key `everything`: known keys are `colwise`, `rowwise`, `vocab`, `sequence`, `replicate`, `experts`, \
             `skip`, \
             `nested`, `input`, \
             `output`, `axis`, `heads`, `unit`, `checkpoint`, `strategy`, `precision`, `context`, `stages`, \
             `first`, `last`",
        ),
        (quote!(colwise, colwise), "`colwise` is given twice"),
        (
            quote!(colwise, rowwise),
            "`rowwise` conflicts with `colwise`: a field has one style",
        ),
        (
            quote!(skip, unit),
            "`unit` conflicts with `skip`, which leaves the field whole on every rank",
        ),
        (
            quote!(colwise, nested),
            "`nested` conflicts with `colwise`: a field with a style is a leaf, and a plan of its own is not used",
        ),
        (
            quote!(input = "[-]"),
            "`input` needs a style beside it: `colwise`, `rowwise`, `vocab`, `sequence`, `replicate` or `experts`",
        ),
        (
            quote!(sequence, heads = 8),
            "`heads` says what a split must divide, and `sequence` splits nothing",
        ),
        (
            quote!(experts, axis = "fsdp"),
            "the axes of experts are their value: `experts = \"fsdp\"`",
        ),
        (
            quote!(experts = "fsdp, 2"),
            "`2` is not the name of a mesh axis",
        ),
        (
            quote!(experts = 8),
            "expected a string: `experts = \"fsdp,cp\"`",
        ),
        (
            quote!(replicate, axis = "tp"),
            "`replicate` is over every axis: remove `axis`",
        ),
        (
            quote!(strategy = "zero3"),
            "`zero3` is not a sharding strategy: use fsdp, zero2, zero1 or ddp",
        ),
        (
            quote!(context = "zigzag"),
            "`zigzag` does not say how attention gets keys of other ranks: use auto, ring or gather",
        ),
        (
            quote!(unit, strategy),
            "`strategy` needs a value: `strategy = \"zero2\"`",
        ),
        (
            quote!(precision = "bf8"),
            "`bf8` is not a precision: use bf16, f16 or f32, or param=bf16,reduce=f32,output=f32, where reduce is f32 \
             or what param is",
        ),
        (
            quote!(precision = "param=bf16,reduce=f16"),
            "`param=bf16,reduce=f16` is not a precision: use bf16, f16 or f32, or param=bf16,reduce=f32,output=f32, \
             where reduce is f32 or \
             what param is",
        ),
        (
            quote!(precision = bf16),
            "expected a string: `precision = \"bf16\"`",
        ),
        (
            quote!(skip, strategy = "ddp"),
            "`strategy` conflicts with `skip`, which leaves the field whole on every rank",
        ),
        (quote!(colwise = "tp"), "`colwise` takes no value"),
        (
            quote!(first, last),
            "`last` conflicts with `first`: say once which stages have the field",
        ),
        (quote!(last = 3), "`last` takes no value"),
        (
            quote!(stages = 4),
            "expected what each block costs, such as `self.costs` or `[1.0, 2.0]`",
        ),
        (
            quote!(colwise, axis),
            "`axis` needs a value: `axis = \"tp\"`",
        ),
        (
            quote!(colwise, axis = tp),
            "expected a string: `axis = \"tp\"`",
        ),
        (
            quote!(colwise, axis = "t p"),
            "`t p` is not the name of a mesh axis",
        ),
        (
            quote!(colwise, input = "[-, {tp]"),
            "cannot read the layout, column 8: found `]`, but axes are separated by `,` and end with `}`\n  [-, {tp]\n         ^",
        ),
        (
            quote!(colwise, heads = "8"),
            "expected a count, such as `self.n_heads` or `8`",
        ),
        (
            quote!(colwise rowwise),
            "expected `,` or `=` after `colwise`",
        ),
        (
            quote!("colwise"),
            "expected a key, such as `colwise`, `rowwise` or `unit`",
        ),
        (
            quote!(),
            "`parallel` needs a list, such as `#[parallel(colwise)]`",
        ),
    ] {
        assert_eq!(field_mistakes(attribute.clone()), [expected], "{attribute}");
    }
}

#[test]
fn mistakes_of_types_and_shapes() {
    for (input, expected) in [
        (
            quote!(
                #[parallel(colwise)]
                struct M {}
            ),
            "`colwise` belongs on a field; a type takes `unit`, `checkpoint`, `strategy`, `precision`, `context` and \
             `axis`",
        ),
        (
            quote!(
                #[parallel(axes = "tp")]
                struct M {}
            ),
            "unknown key `axes`: did you mean `axis`?",
        ),
        (
            quote!(
                struct M(Linear);
            ),
            "a module needs named fields: their names are the paths of its parameters",
        ),
        (
            quote!(
                union M {
                    a: u8,
                }
            ),
            "a union cannot be a module: use a struct or an enum",
        ),
        (
            quote!(
                struct M {
                    #[module(skip)]
                    #[parallel(colwise)]
                    a: Linear,
                }
            ),
            "this field is `#[module(skip)]`: it has no parameters to place",
        ),
        (
            quote!(
                enum M {
                    #[parallel(colwise)]
                    Two(Linear, Linear),
                }
            ),
            "only a variant with exactly one unnamed field holds a module",
        ),
        (
            quote!(
                struct M {
                    #[parallel]
                    a: Linear,
                }
            ),
            "`parallel` needs a list, such as `#[parallel(colwise)]`",
        ),
        (
            quote!(
                enum M {
                    #[parallel(colwise)]
                    A(#[parallel(rowwise)] Linear),
                }
            ),
            "`rowwise` conflicts with `colwise`: a field has one style",
        ),
    ] {
        assert_eq!(mistakes(input.clone()), [expected], "{input}");
    }
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let found = mistakes(quote!(
        #[parallel(uint)]
        struct M {
            #[parallel(colwize)]
            a: Linear,
            #[parallel(rowwise, input = "-")]
            b: Linear,
            #[parallel(output = "[-]")]
            c: Linear,
        }
    ));
    assert_eq!(found.len(), 4, "{found:?}");
}

#[test]
fn a_mistake_still_leaves_an_impl() {
    let out = expansion(quote!(
        struct M<T: Block> {
            #[parallel(colwize)]
            a: Linear,
            b: T,
        }
    ));
    assert_eq!(out.matches("compile_error!").count(), 1, "{out}");
    assert!(
        out.contains("impl<T: Block> ::burn_dist::__private::Parallelize for M<T>"),
        "{out}"
    );
}

#[test]
fn nothing_panics_on_odd_input() {
    for input in [
        quote!(
            struct M;
        ),
        quote!(
            struct M {}
        ),
        quote!(
            enum M {}
        ),
        quote!(
            enum M {
                A,
                B { a: u8 },
                C(),
            }
        ),
        quote!(
            struct M<'a, const N: usize, T: 'a = u8>
            where
                T: Clone,
            {
                a: &'a [T; N],
                b: (),
                c: fn(u8) -> u8,
            }
        ),
        quote!(
            struct M {
                #[parallel()]
                #[parallel(,)]
                #[parallel(a = )]
                #[module = "skip"]
                a: u8,
            }
        ),
    ] {
        for line in [Line::Current, Line::Burn021] {
            expansion_for(line, input.clone());
        }
    }
}

#[test]
fn a_parameter_named_b_is_the_backend_of_021_alone() {
    let input = quote!(
        struct Net<B: Block> {
            #[parallel(nested)]
            body: B,
            #[parallel(nested)]
            head: Head<B>,
        }
    );
    let bounds = |line| {
        let out = expansion_for(line, input.clone());
        ["B", "Head<B>"]
            .map(|ty| out.contains(&format!("{ty}: ::burn_dist::__private::Parallelize,")))
    };
    assert_eq!(bounds(Line::Current), [true, true]);
    assert_eq!(bounds(Line::Burn021), [false, false]);
}

#[test]
fn expansion_of_a_struct() {
    insta::assert_snapshot!(expansion(quote!(
        #[parallel(unit)]
        struct Block<B: Projection, M> {
            #[parallel(sequence)]
            norm: RmsNorm,
            #[parallel(colwise, heads = self.n_heads, input = "[-, {tp}, -]", output = "[(2 . 4{dp}), -] + sum{tp}")]
            wq: Linear,
            #[parallel(unit, checkpoint, precision = "param=f16,float8=rowwise,output=f32")]
            attention: Attention,
            #[parallel(nested, unit, strategy = "zero2", precision = "bf16", context = "ring")]
            inner: M,
            #[parallel(nested)]
            output: B,
            pairs: Vec<(Linear, Attention)>,
            #[parallel(skip, first)]
            frozen: Linear,
            #[parallel(stages, unit)]
            blocks: Vec<Attention>,
            #[parallel(stages = self.costs)]
            others: [Attention; 4],
            #[module(skip)]
            note: String,
            n_heads: usize,
        }
    )));
}

#[test]
fn expansion_of_an_enum() {
    insta::assert_snapshot!(expansion(quote!(
        enum Projection {
            #[parallel(vocab, axis = "model", last)]
            Head(Linear),
            Block(Block),
        }
    )));
}

#[test]
fn expansion_of_a_struct_021() {
    insta::assert_snapshot!(expansion_for(
        Line::Burn021,
        quote!(
            #[parallel(unit)]
            struct Block<B: Backend, M> {
                #[parallel(sequence)]
                norm: RmsNorm<B>,
                #[parallel(colwise, heads = self.n_heads, input = "[-, {tp}, -]", output = "[(2 . 4{dp}), -] + sum{tp}")]
                wq: Linear<B>,
                #[parallel(unit, checkpoint, precision = "param=f16,float8=rowwise,output=f32")]
                attention: Attention<B>,
                #[parallel(nested, unit, strategy = "zero2", precision = "bf16", context = "ring")]
                inner: M,
                pairs: Vec<(Linear<B>, Attention<B>)>,
                #[parallel(skip, first)]
                frozen: Linear<B>,
                #[parallel(stages, unit)]
                blocks: Vec<Attention<B>>,
                #[parallel(stages = self.costs)]
                others: [Attention<B>; 4],
                #[module(skip)]
                note: String,
                n_heads: usize,
            }
        )
    ));
}

#[test]
fn expansion_of_an_enum_021() {
    insta::assert_snapshot!(expansion_for(
        Line::Burn021,
        quote!(
            enum Projection<B: Backend> {
                #[parallel(vocab, axis = "model", last)]
                Head(Linear<B>),
                Block(Block<B>),
            }
        )
    ));
}
