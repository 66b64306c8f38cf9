//! A conversation in the terminal.

use std::io::{self, BufRead, IsTerminal, Read};

use anyhow::{Context, bail};
use burn::tensor::Device;
use burn_dist::train::chat::{ASSISTANT, Conversation, USER};
use burn_dist::train::rng::Rng;
use burn_dist::train::tokenizer::Text;
use burn_dist::trainer::mesh::Mesh;
use burn_dist::trainer::voice::{note, say, say_part};

use crate::generate::{Decoding, decode};
use crate::model::Llama;

/// A line of the user is no longer.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Refuses a conversation of which not every process would hear.
///
/// # Errors
/// If there are several.
pub(super) fn check(mesh: &Mesh) -> anyhow::Result<()> {
    match mesh.processes().are_several() {
        true => bail!("a conversation in the terminal is of one process: give a --prompt"),
        false => Ok(()),
    }
}

/// Answers each line of standard input, with all before it in mind, and shows answers as they are made.
///
/// # Errors
/// If the template does not take the conversation, or the device fails.
pub(super) fn talk(
    model: &Llama,
    text: &Text,
    decoding: &Decoding,
    device: &Device,
) -> anyhow::Result<()> {
    let mut conversation = Conversation::default();
    let mut rng = Rng::new(decoding.seed, 3);
    if io::stdin().is_terminal() {
        note!("each line is a message; an empty one begins anew, Ctrl-D ends");
    }
    loop {
        let mut line = String::new();
        let read = io::stdin().lock().take(LINE_BYTES_MAX).read_line(&mut line);
        if read.context("cannot read the message")? == 0 {
            return Ok(());
        }
        if line.trim().is_empty() {
            conversation = Conversation::default();
            continue;
        }
        conversation.push(USER, line.trim());
        let rows = vec![text.encode_asked(&conversation)?];
        let mut answer = String::new();
        let mut show = |_: usize, ids: &[u32]| {
            let found = text.decode_exactly(ids)?;
            // A character of several tokens is not whole yet.
            if let Some(more) = found.strip_prefix(&answer)
                && !more.ends_with(char::REPLACEMENT_CHARACTER)
            {
                say_part(more);
                answer = found;
            }
            Ok(())
        };
        let ends: (u32, &dyn Fn(u32) -> bool) = (text.end(), &|id| text.is_end(id));
        let made = decode(model, rows, ends, decoding, (&mut rng, &mut show), device)?;
        let whole = text.decode_exactly(&made[0])?;
        say!("{}", whole.strip_prefix(&answer).unwrap_or_default());
        conversation.push(ASSISTANT, whole.trim());
    }
}
