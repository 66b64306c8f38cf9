//! The content of a checkpoint as text: from the manifest alone.

use crate::format::{Manifest, TensorEntry};
use crate::load::Checkpoint;
use burn_dist_layout::bytes::human_bytes;
use serde_json::Value;
use std::fmt::Write;

/// Returns a checkpoint as text: save, mesh, metadata, files, and the tree of its tensors with shapes, layouts, sizes.
pub fn inspect(checkpoint: &Checkpoint) -> String {
    let manifest = checkpoint.manifest();
    let mut text = String::new();
    let mut line = |name: &str, value: String| writeln!(text, "{name:<9} {value}");
    // Writing to a text does not fail.
    let _ = line("directory", checkpoint.path().display().to_string());
    let _ = line("save", manifest.save_id.to_string());
    let _ = line("mesh", manifest.mesh.to_string());
    for (key, value) in &manifest.metadata {
        let _ = line("metadata", format!("{key} = {}", brief(value)));
    }
    let bytes = human_bytes(manifest.num_bytes());
    let _ = line("files", manifest.files.len().to_string());
    let _ = line("tensors", format!("{}, {bytes}", manifest.tensors.len()));
    tree(manifest, &mut text);
    text
}

/// Lists longer than this are counted, and so are the entries of what is inside of two others.
const LIST_MAX: usize = 4;

/// Returns metadata in short.
fn brief(value: &Value) -> String {
    brief_at(value, 0)
}

fn brief_at(value: &Value, depth: usize) -> String {
    match value {
        Value::Array(values) if values.len() > LIST_MAX => format!("[{} items]", values.len()),
        Value::Object(map) if depth > 1 => format!("{{{} in it}}", map.len()),
        Value::Array(values) => {
            let each = values.iter().map(|value| brief_at(value, depth + 1));
            format!("[{}]", each.collect::<Vec<_>>().join(", "))
        }
        Value::Object(map) => {
            let each = map.iter();
            let each = each.map(|(key, value)| format!("{key}: {}", brief_at(value, depth + 1)));
            format!("{{{}}}", each.collect::<Vec<_>>().join(", "))
        }
        plain => plain.to_string(),
    }
}

fn tree(manifest: &Manifest, text: &mut String) {
    let mut open: Vec<&str> = Vec::new();
    for tensor in &manifest.tensors {
        let path: Vec<&str> = tensor.key.split('.').collect();
        let (name, folders) = path.split_last().unwrap_or((&"", &[]));
        let same = open.iter().zip(folders).take_while(|(a, b)| a == b).count();
        open.truncate(same);
        for folder in &folders[same..] {
            let _ = writeln!(text, "{}{folder}", indent(open.len()));
            open.push(folder);
        }
        let _ = writeln!(text, "{}{name:<16} {}", indent(open.len()), details(tensor));
    }
}

fn indent(depth: usize) -> String {
    "  ".repeat(depth + 1)
}

fn details(tensor: &TensorEntry) -> String {
    let numel: usize = tensor.shape.iter().product();
    let size = tensor.dtype().map_or(0, |dtype| dtype.size());
    let pieces = match tensor.pieces.len() {
        1 => "1 piece".to_owned(),
        count => format!("{count} pieces"),
    };
    let stage = tensor.stage.map(|stage| format!(" stage {stage}"));
    format!(
        "{} {:?} {}{} {}, {pieces}",
        tensor.dtype,
        tensor.shape,
        tensor.layout,
        stage.unwrap_or_default(),
        human_bytes((numel * size) as u64)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_are_short() {
        let long: Vec<usize> = (0..5).collect();
        let value = serde_json::json!({
            "values": { "step": 3, "losses": long, "position": { "epoch": 1 } },
            "records": { "optimizer": { "a": { "b": 1 } } },
        });
        assert_eq!(
            brief(&value),
            "{records: {optimizer: {1 in it}}, values: {losses: [5 items], position: {1 in it}, step: 3}}"
        );
    }
}
