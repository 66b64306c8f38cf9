//! Bytes before, between and after those of the tensors of a record.

use super::{DEPTH, PATH_BYTES};
use crate::records::{Layout, Parameter, RecordProblem, dtype, id};
use rmp::encode;
use std::collections::BTreeMap;

/// Fields of a list that Burn may leave out, and no more.
const ELEMENTS: usize = 1 << 16;

/// The metadata of the recorder; it reads elements of any type.
const METADATA: [(&str, &str); 5] = [
    ("float", "f32"),
    ("int", "i32"),
    (
        "format",
        "burn_core::record::file::NamedMpkFileRecorder<burn_core::record::settings::FullPrecisionSettings>",
    ),
    ("version", "0.21.0"),
    ("settings", "FullPrecisionSettings"),
];

/// A module or a list of modules, by names; or a parameter, by its index.
enum Node {
    Inner(BTreeMap<String, Node>),
    Leaf(usize),
}

/// Returns the file of these parameters. Those without an id get `new_id`.
pub(crate) fn layout(
    parameters: &[Parameter],
    mut new_id: impl FnMut() -> u64,
) -> Result<Layout, RecordProblem> {
    let mut root = BTreeMap::new();
    for (index, parameter) in parameters.iter().enumerate() {
        let bytes = parameter.num_bytes();
        if bytes > u64::from(u32::MAX) {
            return Err(RecordProblem::TooLarge {
                key: parameter.key.clone(),
                bytes,
                max: u64::from(u32::MAX),
            });
        }
        insert(&mut root, &parameter.key, index)?;
    }
    let mut layout = Layout::default();
    let out = &mut layout.end;
    put_map(out, 3);
    put_text(out, "metadata");
    put_map(out, METADATA.len());
    for (name, value) in METADATA {
        put_text(out, name);
        put_text(out, value);
    }
    put_text(out, "item");
    put_node(&Node::Inner(root), parameters, &mut new_id, &mut layout)?;
    put_text(&mut layout.end, "_b");
    put_array(&mut layout.end, 0);
    Ok(layout)
}

fn insert(root: &mut BTreeMap<String, Node>, key: &str, index: usize) -> Result<(), RecordProblem> {
    let error = || RecordProblem::Path {
        key: key.to_owned(),
    };
    let names: Vec<&str> = key.split('.').collect();
    let (last, modules) = names.split_last().ok_or_else(error)?;
    if names.contains(&"") || names.len() >= DEPTH || key.len() + 8 > PATH_BYTES {
        return Err(error());
    }
    let mut node = root;
    for module in modules {
        let inner = node
            .entry((*module).to_owned())
            .or_insert_with(|| Node::Inner(BTreeMap::new()));
        let Node::Inner(inner) = inner else {
            return Err(error());
        };
        node = inner;
    }
    match node.insert((*last).to_owned(), Node::Leaf(index)) {
        None => Ok(()),
        Some(_) => Err(error()),
    }
}

fn put_node(
    node: &Node,
    parameters: &[Parameter],
    new_id: &mut dyn FnMut() -> u64,
    layout: &mut Layout,
) -> Result<(), RecordProblem> {
    match node {
        Node::Leaf(index) => {
            let Parameter { id, .. } = parameters[*index];
            put_parameter(
                *index,
                &parameters[*index],
                id.unwrap_or_else(new_id),
                layout,
            )
        }
        Node::Inner(inner) => {
            if let Some(elements) = elements(inner) {
                put_array(&mut layout.end, elements.len());
                for element in elements {
                    match element {
                        Some(node) => put_node(node, parameters, new_id, layout)?,
                        None => written(encode::write_nil(&mut layout.end)),
                    }
                }
                return Ok(());
            }
            put_map(&mut layout.end, inner.len());
            for (name, node) in inner {
                put_text(&mut layout.end, name);
                put_node(node, parameters, new_id, layout)?;
            }
            Ok(())
        }
    }
}

/// Returns the elements of a list in order, with gaps; none if the names are not those of a list.
fn elements(inner: &BTreeMap<String, Node>) -> Option<Vec<Option<&Node>>> {
    let mut elements = Vec::new();
    for (name, node) in inner {
        let index: usize = name.parse().ok()?;
        if index.to_string() != *name || index >= ELEMENTS {
            return None;
        }
        if elements.len() <= index {
            elements.resize(index + 1, None);
        }
        elements[index] = Some(node);
    }
    (!elements.is_empty()).then_some(elements)
}

fn put_parameter(
    index: usize,
    parameter: &Parameter,
    parameter_id: u64,
    layout: &mut Layout,
) -> Result<(), RecordProblem> {
    let Parameter { key, shape, .. } = parameter;
    let Some((name, store)) = dtype::name(parameter.dtype) else {
        let (key, found) = (key.clone(), parameter.dtype.to_string());
        return Err(RecordProblem::DType { key, found });
    };
    let out = &mut layout.end;
    put_map(out, 2);
    put_text(out, "id");
    put_text(out, &id::encode(parameter_id));
    put_text(out, "param");
    put_map(out, 3);
    put_text(out, "bytes");
    let bytes = u32::try_from(parameter.num_bytes()).expect("larger ones were refused");
    written(encode::write_bin_len(out, bytes));
    layout.parts.push((std::mem::take(out), index));
    put_text(out, "shape");
    put_array(out, shape.len());
    for size in shape {
        put_int(out, *size as u64);
    }
    put_text(out, "dtype");
    match store {
        None => put_text(out, name),
        Some(store) => {
            put_map(out, 1);
            put_text(out, name);
            put_text(out, store);
        }
    }
    Ok(())
}

fn put_map(out: &mut Vec<u8>, pairs: usize) {
    written(encode::write_map_len(out, length(pairs)));
}

fn put_array(out: &mut Vec<u8>, values: usize) {
    written(encode::write_array_len(out, length(values)));
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    written(encode::write_str(out, text));
}

fn put_int(out: &mut Vec<u8>, number: u64) {
    written(encode::write_uint(out, number));
}

/// Returns the number of values of a map or list.
fn length(values: usize) -> u32 {
    u32::try_from(values).expect("the parameters of a model are fewer")
}

/// Looks at no result: memory takes whatever is written.
fn written<T, E: std::fmt::Debug>(result: Result<T, E>) {
    result.expect("memory takes what is written");
}
