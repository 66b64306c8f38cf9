//! The options of texts.

use clap::Args;

use super::RowsArgs;
use crate::train::corpus::DataFile;

/// Texts, and how they become rows.
#[derive(Debug, Clone, Default, Args)]
pub struct TextArgs {
    /// A file of texts: lines of JSON (.jsonl) or rows of Parquet with a field text, or prompt and response, or lines
    /// with messages, or plain text (.txt, .md), also packed (.gz, .zst); a folder of such files; or a pattern of their
    /// names, such as 'web/**/*.jsonl.zst'. May be repeated. After the file: weight=W for its part of all positions as
    /// against the others (1), text=FIELD or prompt=FIELD,response=FIELD or messages=FIELD, split=paragraph, line or
    /// file for what a document of plain text is, format=jsonl, parquet or text where the name does not tell, or for
    /// which files of a folder or pattern are read. finetune takes prompts and responses, or messages.
    #[arg(long, value_name = "FILE[,KEY=VALUE]")]
    pub data: Vec<DataFile>,
    /// A file, folder or pattern of held-out texts, whose loss is shown during training. May be repeated.
    #[arg(long, value_name = "FILE[,KEY=VALUE]", requires = "data")]
    pub validate: Vec<DataFile>,
    /// How they become rows.
    #[command(flatten)]
    pub rows: RowsArgs,
}
