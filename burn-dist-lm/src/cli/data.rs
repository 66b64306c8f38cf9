//! The options of the data.

use burn_dist::train::corpus::{Longer, Packing, SHUFFLE_BYTES};
use clap::Args;

use crate::data::file::DataFile;

/// Texts, and how they become rows.
#[derive(Debug, Clone, Args)]
pub struct DataArgs {
    /// A file of texts: lines of JSON (.jsonl) or rows of Parquet with a field text, or prompt and response, or plain
    /// text (.txt, .md), also packed (.gz, .zst); a folder of such files; or a pattern of their names, such as
    /// 'web/**/*.jsonl.zst'. May be repeated. After the file: weight=W for its part of all positions as against the
    /// others (1), text=FIELD or prompt=FIELD,response=FIELD, split=paragraph, line or file for what a document of plain
    /// text is, format=jsonl, parquet or text where the name does not tell, or for which files of a folder or pattern
    /// are read. finetune takes prompts and responses.
    #[arg(long, value_name = "FILE[,KEY=VALUE]")]
    pub data: Vec<DataFile>,
    /// A file, folder or pattern of held-out texts, whose loss is shown during training. May be repeated.
    #[arg(long, value_name = "FILE[,KEY=VALUE]", requires = "data")]
    pub validate: Vec<DataFile>,
    /// How documents become rows: whole ones, several to a row (pack), one to a row (pad), or one after the other, cut
    /// where a row ends (stream).
    #[arg(long, value_name = "HOW", default_value_t)]
    pub packing: Packing,
    /// Documents longer than --seq: split, drop or refuse. By default pretrain splits and finetune drops them.
    #[arg(long, value_name = "HOW")]
    pub longer: Option<Longer>,
    /// Bytes of text that are shuffled together over all processes, such as 64MiB. The more, the more lanes there are
    /// in which processes read just their part.
    #[arg(long, value_name = "BYTES", default_value_t = ByteSize(SHUFFLE_BYTES))]
    pub shuffle_buffer: ByteSize,
    /// Hide the documents of a row from each other. Without, a document sees those before it in its row.
    #[arg(long)]
    pub document_mask: bool,
}

impl Default for DataArgs {
    fn default() -> Self {
        Self {
            data: Vec::new(),
            validate: Vec::new(),
            packing: Packing::default(),
            longer: None,
            shuffle_buffer: ByteSize(SHUFFLE_BYTES),
            document_mask: false,
        }
    }
}

/// A number of bytes: 512, 64KiB, 16MiB or 1GiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteSize(pub u64);

const UNITS: [(&str, u32); 3] = [("KiB", 10), ("MiB", 20), ("GiB", 30)];

impl std::fmt::Display for ByteSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let unit = UNITS
            .iter()
            .rev()
            .find(|(_, shift)| self.0 > 0 && self.0.is_multiple_of(1 << shift));
        match unit {
            Some((unit, shift)) => write!(f, "{}{unit}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

impl std::str::FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unit = UNITS
            .iter()
            .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
        let (number, shift) = unit.unwrap_or((text, 0));
        let number: Option<u64> = number.trim().parse().ok();
        let bytes = number.and_then(|number| number.checked_mul(1 << shift));
        match bytes {
            Some(bytes) if bytes > 0 => Ok(Self(bytes)),
            _ => Err(format!(
                "`{text}` is no size above 0: write 64KiB, 16MiB or 1GiB, or a number of bytes"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_they_are_written() {
        for text in ["1", "1000", "64KiB", "16MiB", "3GiB", "1025KiB"] {
            assert_eq!(text.parse::<ByteSize>().unwrap().to_string(), text);
        }
        for text in ["", "0", "0MiB", "1MB", "-1", "99999999999GiB"] {
            let error = text.parse::<ByteSize>().unwrap_err();
            assert!(error.contains("16MiB"), "{error}");
        }
    }
}
