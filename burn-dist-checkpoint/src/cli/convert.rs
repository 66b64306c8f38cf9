//! `burn-dist ckpt convert`.

use crate::convert::{Conversion, Kind};
use crate::hf::{Names, TEXT_BYTES_MAX};
use burn_dist_layout::bytes::human_bytes;
use burn_dist_mesh::DType;
use std::fs::File;
use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};

/// Converts parameters: between checkpoints, folders in the form of Hugging Face, and records of Burn's modules.
#[derive(clap::Args)]
pub(super) struct Convert {
    /// A checkpoint or the directory of a run, a folder with model.safetensors or its index, or a file .mpk or .bpk:
    /// distinguished by content.
    from: PathBuf,
    /// Where it goes: the directory of a run, a folder, or a file. Nothing is replaced.
    to: PathBuf,
    /// The module of a checkpoint of training that is converted: `model`, say, without the optimizer's state.
    #[arg(long, value_name = "NAME")]
    module: Option<String>,
    /// The kind that is written, if the name (.mpk, .bpk) does not have it.
    #[arg(long = "to", value_name = "KIND")]
    kind: Option<Kind>,
    /// Which parameter is which tensor of a folder. Without it, names and the order of elements are kept.
    #[arg(long, value_name = "FILE.toml")]
    names: Option<PathBuf>,
    /// A number that the names call by name, the width of heads in rotary(head_dim): head_dim=64.
    #[arg(long = "width", value_name = "NAME=NUMBER", value_parser = width, requires = "names")]
    widths: Vec<(String, usize)>,
    /// The type that floats get; without it, they keep theirs.
    #[arg(long, value_parser = dtype)]
    dtype: Option<DType>,
    /// How many bytes of tensors a file of a folder has at most; other kinds are one file.
    #[arg(long, value_name = "BYTES", default_value = "5GB", value_parser = bytes)]
    shard_bytes: u64,
}

impl Convert {
    pub(super) fn run(self, out: &mut dyn Write) -> Result<(), Box<dyn std::error::Error>> {
        let names = self.names.as_ref().map(|path| {
            let widths: Vec<_> = self.widths.iter().map(|(n, w)| (n.as_str(), *w)).collect();
            let text = read_names(path).map_err(|error| error.to_string());
            let names = text
                .and_then(|text| Names::parse(&text, &widths).map_err(|error| error.to_string()));
            names.map_err(|error| format!("the names {} cannot be used: {error}", path.display()))
        });
        let names = names.transpose()?;
        let converted = Conversion {
            module: self.module.as_deref(),
            kind: self.kind,
            names: names.as_ref(),
            dtype: self.dtype,
            shard_bytes: Some(self.shard_bytes),
            ..Conversion::new(&self.from, &self.to)
        }
        .run()?;
        let (from, to, count) = (converted.from, converted.to, converted.parameters);
        let bytes = human_bytes(converted.bytes);
        let path = converted.path.display();
        writeln!(
            out,
            "{path}: {to} of {count} parameters, {bytes}, from {from}"
        )?;
        Ok(())
    }
}

/// Reads a file of names, and no more of it than one has: what is longer is refused as it is parsed.
fn read_names(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let most = TEXT_BYTES_MAX as u64 + 1;
    File::open(path)?.take(most).read_to_string(&mut text)?;
    Ok(text)
}

fn width(text: &str) -> Result<(String, usize), String> {
    let parts = text.split_once('=');
    let parts = parts.and_then(|(name, width)| Some((name.to_owned(), width.parse().ok()?)));
    parts.ok_or_else(|| "write a name and a number: head_dim=64".to_owned())
}

fn dtype(text: &str) -> Result<DType, String> {
    let floats = [DType::BF16, DType::F16, DType::F32];
    let found = floats.into_iter().find(|dtype| dtype.name() == text);
    found.ok_or_else(|| "write bf16, f16 or f32".to_owned())
}

/// Reads a size: `5GB`, `512MiB`, `100000`.
fn bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 8] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("KB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("B", 1),
        ("", 1),
    ];
    let unit = UNITS.into_iter().find_map(|(name, unit)| {
        let number = text.strip_suffix(name)?.trim().parse::<u64>().ok()?;
        number.checked_mul(unit).filter(|bytes| *bytes > 0)
    });
    unit.ok_or_else(|| "write a size: 5GB, 512MiB, 100000".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_widths_are_read() {
        for (text, size) in [
            ("5GB", 5_000_000_000),
            ("2 MiB", 2 << 20),
            ("7", 7),
            ("7B", 7),
            ("1KB", 1000),
        ] {
            assert_eq!(bytes(text), Ok(size));
        }
        for text in ["", "GB", "-1", "0", "5 G", "1.5GB", "99999999999GB"] {
            assert!(bytes(text).is_err(), "{text}");
        }
        assert_eq!(width("head_dim=64"), Ok(("head_dim".into(), 64)));
        assert!(width("64").is_err() && width("a=b").is_err());
        assert_eq!(dtype("bf16"), Ok(DType::BF16));
        assert!(dtype("i32").is_err());
    }
}
