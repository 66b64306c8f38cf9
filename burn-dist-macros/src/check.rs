//! From attributes to their meaning, collecting every mistake at the token to change.

use crate::attr::{self, Item};
use crate::model::{Body, Field, Heads, Mark, Module, Rule, Stage, Style, Unit, Variant};
use crate::nearest::nearest;
use crate::value::{
    axis_name, axis_names, context, flag, heads, layout, precision, stages, strategy,
};
use burn_dist_layout::LayoutText;
use syn::{Data, DeriveInput, Fields, Ident};

const FIELD_KEYS: [&str; 20] = [
    "colwise",
    "rowwise",
    "vocab",
    "sequence",
    "replicate",
    "experts",
    "skip",
    "nested",
    "input",
    "output",
    "axis",
    "heads",
    "unit",
    "checkpoint",
    "strategy",
    "precision",
    "context",
    "stages",
    "first",
    "last",
];
const TYPE_KEYS: [&str; 6] = [
    "unit",
    "checkpoint",
    "strategy",
    "precision",
    "context",
    "axis",
];

/// Reads the derive's input; all mistakes come back as one combined error.
pub(crate) fn check(input: &DeriveInput) -> syn::Result<Module> {
    let mut errors = Vec::new();
    let TypeAttributes { unit, axis } = type_attributes(input, &mut errors);
    let body = match &input.data {
        Data::Struct(data) => Body::Struct(struct_fields(&data.fields, axis.as_ref(), &mut errors)),
        Data::Enum(data) => Body::Enum(
            data.variants
                .iter()
                .map(|variant| enum_variant(variant, axis.as_ref(), &mut errors))
                .collect(),
        ),
        Data::Union(data) => {
            errors.push(syn::Error::new(
                data.union_token.span,
                "a union cannot be a module: use a struct or an enum",
            ));
            Body::Struct(Vec::new())
        }
    };
    let all = errors.into_iter().reduce(|mut all, error| {
        all.combine(error);
        all
    });
    match all {
        Some(error) => Err(error),
        None => Ok(Module {
            ident: input.ident.clone(),
            generics: input.generics.clone(),
            unit,
            body,
        }),
    }
}

/// The attributes of the struct or enum itself.
#[derive(Default)]
struct TypeAttributes {
    unit: Unit,
    /// The axis its fields use unless they say otherwise.
    axis: Option<String>,
}

fn type_attributes(input: &DeriveInput, errors: &mut Vec<syn::Error>) -> TypeAttributes {
    let items = attr::items(&input.attrs, errors);
    let mut keys = Keys::default();
    let mut read = TypeAttributes::default();
    for item in &items {
        let key = item.key.to_string();
        if !keys.first(item, errors) {
            continue;
        }
        match key.as_str() {
            key if Unit::KEYS.contains(&key) => unit_option(&mut read.unit, key, item, errors),
            "axis" => read.axis = axis_name(item, errors),
            key if FIELD_KEYS.contains(&key) => errors.push(syn::Error::new(
                item.key.span(),
                format!("`{key}` belongs on a field; a type takes `unit`, `checkpoint`, `strategy`, `precision`, \
                    `context` and `axis`"),
            )),
            key => errors.push(unknown(&item.key, key, &TYPE_KEYS)),
        }
    }
    read
}

/// Reads one option of a unit.
fn unit_option(unit: &mut Unit, key: &str, item: &Item, errors: &mut Vec<syn::Error>) {
    match key {
        "unit" => unit.unit = flag(item, errors),
        "checkpoint" => unit.checkpoint = flag(item, errors),
        "strategy" => unit.strategy = strategy(item, errors),
        "context" => unit.context = context(item, errors),
        _ => unit.precision = precision(item, errors),
    }
}

fn struct_fields(
    fields: &Fields,
    axis: Option<&String>,
    errors: &mut Vec<syn::Error>,
) -> Vec<Field> {
    if let Fields::Unnamed(fields) = fields {
        errors.push(syn::Error::new_spanned(
            fields,
            "a module needs named fields: their names are the paths of its parameters",
        ));
        return Vec::new();
    }
    fields
        .iter()
        .filter_map(|field| {
            let name = field.ident.clone()?;
            let mut found = Vec::new();
            let items = attr::items(&field.attrs, &mut found);
            let (rule, stage) = rule(&items, attr::is_hidden(&field.attrs), axis, &mut found);
            errors.append(&mut found);
            Some(Field {
                name,
                ty: field.ty.clone(),
                rule,
                stage,
            })
        })
        .collect()
}

fn enum_variant(
    variant: &syn::Variant,
    axis: Option<&String>,
    errors: &mut Vec<syn::Error>,
) -> Variant {
    // `#[parallel(...)]` may stand on the variant or on the field in it.
    let mut found = Vec::new();
    let mut items = attr::items(&variant.attrs, &mut found);
    for field in &variant.fields {
        items.extend(attr::items(&field.attrs, &mut found));
    }
    let content = match &variant.fields {
        Fields::Unnamed(fields) if fields.unnamed.len() == 1 => {
            let hidden = attr::is_hidden(&fields.unnamed[0].attrs);
            let (rule, stage) = rule(&items, hidden, axis, &mut found);
            Some(Field {
                name: variant.ident.clone(),
                ty: fields.unnamed[0].ty.clone(),
                rule,
                stage,
            })
        }
        _ => {
            if let Some(item) = items.first() {
                found.push(syn::Error::new(
                    item.key.span(),
                    "only a variant with exactly one unnamed field holds a module",
                ));
            }
            None
        }
    };
    errors.append(&mut found);
    Variant {
        name: variant.ident.clone(),
        content,
    }
}

/// Combines the attributes of one field; `errors` holds those of this field only.
fn rule(
    items: &[Item],
    hidden: bool,
    default_axis: Option<&String>,
    errors: &mut Vec<syn::Error>,
) -> (Rule, Option<Stage>) {
    if hidden {
        if let Some(item) = items.first() {
            errors.push(syn::Error::new(
                item.key.span(),
                "this field is `#[module(skip)]`: it has no parameters to place",
            ));
        }
        return (Rule::Hidden, None);
    }
    let mut read = Options::default();
    for item in items {
        read.item(item, errors);
    }
    let stage = read.stage.take().map(|(stage, _)| stage);
    (read.rule(default_axis, errors), stage)
}

/// The options of a field as they are read.
#[derive(Default)]
struct Options {
    keys: Keys,
    style: Option<(Style, Ident)>,
    skip: Option<Ident>,
    nested: Option<Ident>,
    unit: Unit,
    /// The options of the unit that are there.
    unit_keys: Vec<Ident>,
    axis: Option<(String, Ident)>,
    /// The axes of `experts = "..."`.
    expert_axes: Option<Vec<String>>,
    input: Option<(LayoutText, Ident)>,
    output: Option<(LayoutText, Ident)>,
    heads: Option<(Heads, Ident)>,
    stage: Option<(Stage, Ident)>,
}

impl Options {
    fn item(&mut self, item: &Item, errors: &mut Vec<syn::Error>) {
        if !self.keys.first(item, errors) {
            return;
        }
        let key = item.key.to_string();
        if let Some(style) = Style::from_key(&key) {
            if style == Style::Experts && item.value.is_some() {
                match axis_names(item, errors) {
                    Some(axes) => self.expert_axes = Some(axes),
                    None => return,
                }
            } else if !flag(item, errors) {
                return;
            }
            match &self.style {
                Some((_, first)) => errors.push(syn::Error::new(
                    item.key.span(),
                    format!("`{key}` conflicts with `{first}`: a field has one style"),
                )),
                None => self.style = Some((style, item.key.clone())),
            }
            return;
        }
        let with_key = |layout| (layout, item.key.clone());
        match key.as_str() {
            "skip" if flag(item, errors) => self.skip = Some(item.key.clone()),
            "nested" if flag(item, errors) => self.nested = Some(item.key.clone()),
            "skip" | "nested" => {}
            key if Unit::KEYS.contains(&key) => {
                unit_option(&mut self.unit, key, item, errors);
                self.unit_keys.push(item.key.clone());
            }
            "axis" => self.axis = axis_name(item, errors).map(|axis| (axis, item.key.clone())),
            "input" => self.input = layout(item, errors).map(with_key),
            "output" => self.output = layout(item, errors).map(with_key),
            "heads" => self.heads = heads(item, errors).map(|heads| (heads, item.key.clone())),
            "stages" => self.stage(stages(item, errors), &item.key, errors),
            "first" => self.stage(
                flag(item, errors).then_some(Stage::First),
                &item.key,
                errors,
            ),
            "last" => self.stage(flag(item, errors).then_some(Stage::Last), &item.key, errors),
            key => errors.push(unknown(&item.key, key, &FIELD_KEYS)),
        }
    }

    fn stage(&mut self, stage: Option<Stage>, key: &Ident, errors: &mut Vec<syn::Error>) {
        match (&self.stage, stage) {
            (Some((_, first)), Some(_)) => errors.push(syn::Error::new(
                key.span(),
                format!("`{key}` conflicts with `{first}`: say once which stages have the field"),
            )),
            (None, Some(stage)) => self.stage = Some((stage, key.clone())),
            (_, None) => {}
        }
    }

    /// Checks how the options go together.
    fn rule(self, default_axis: Option<&String>, errors: &mut Vec<syn::Error>) -> Rule {
        let others = [
            self.style.as_ref().map(|(_, key)| key),
            self.axis.as_ref().map(|(_, key)| key),
            self.input.as_ref().map(|(_, key)| key),
            self.output.as_ref().map(|(_, key)| key),
            self.heads.as_ref().map(|(_, key)| key),
        ];
        if self.skip.is_some() {
            let free = self.nested.iter().chain(&self.unit_keys);
            for key in others.into_iter().flatten().chain(free) {
                errors.push(syn::Error::new(
                    key.span(),
                    format!(
                        "`{key}` conflicts with `skip`, which leaves the field whole on every rank"
                    ),
                ));
            }
            return Rule::Skip;
        }
        let Some((style, style_key)) = self.style else {
            // Options without a style: each is a mistake, unless the style itself was one and is already reported.
            if errors.is_empty() {
                for key in others.into_iter().flatten() {
                    errors.push(syn::Error::new(
                        key.span(),
                        format!("`{key}` needs a style beside it: `colwise`, `rowwise`, `vocab`, `sequence`, \
                            `replicate` or `experts`"),
                    ));
                }
            }
            return Rule::Nested {
                unit: self.unit,
                required: self.nested.is_some(),
            };
        };
        if let Some(key) = &self.nested {
            errors.push(syn::Error::new(
                key.span(),
                format!("`nested` conflicts with `{style_key}`: a field with a style is a leaf, and a plan of its own \
                    is not used"),
            ));
        }
        if !style.splits()
            && let Some((_, key)) = &self.heads
        {
            errors.push(syn::Error::new(
                key.span(),
                format!("`heads` says what a split must divide, and `{style_key}` splits nothing"),
            ));
        }
        if style == Style::Replicate
            && let Some((_, key)) = &self.axis
        {
            errors.push(syn::Error::new(
                key.span(),
                "`replicate` is over every axis: remove `axis`",
            ));
        }
        if style == Style::Experts
            && let Some((axis, key)) = &self.axis
        {
            errors.push(syn::Error::new(
                key.span(),
                format!("the axes of experts are their value: `experts = \"{axis}\"`"),
            ));
        }
        Rule::Styled(Box::new(Mark {
            style,
            axes: match (style, self.axis) {
                (Style::Experts, _) => self.expert_axes,
                (_, Some((axis, _))) => Some(vec![axis]),
                (Style::Replicate, None) => None,
                (_, None) => default_axis.map(|axis| vec![axis.clone()]),
            },
            input: self.input.map(|(layout, _)| layout),
            output: self.output.map(|(layout, _)| layout),
            heads: self.heads.map(|(heads, _)| heads),
            unit: self.unit,
        }))
    }
}

/// The keys of one place so far.
#[derive(Default)]
struct Keys(Vec<String>);

impl Keys {
    /// Returns whether this is the first item with its key; otherwise reports the duplicate.
    fn first(&mut self, item: &Item, errors: &mut Vec<syn::Error>) -> bool {
        let key = item.key.to_string();
        if self.0.contains(&key) {
            errors.push(syn::Error::new(
                item.key.span(),
                format!("`{key}` is given twice"),
            ));
            return false;
        }
        self.0.push(key);
        true
    }
}

fn unknown(at: &Ident, key: &str, known: &[&str]) -> syn::Error {
    let advice = match nearest(key, known) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("known keys are `{}`", known.join("`, `")),
    };
    syn::Error::new(at.span(), format!("unknown key `{key}`: {advice}"))
}
