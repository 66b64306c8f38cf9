//! Questions that are asked at the end, and not learnt.

use anyhow::bail;

use crate::train::corpus::{DOCUMENT_BYTES_MAX, Document, DocumentPlace, Example, Source};
use crate::train::rng::Rng;
use crate::trainer::processes::Processes;
use crate::trainer::voice::say;

/// Keeps up to `most` of the questions and answers of these files, and at most a tenth of them, drawn by `rng`; returns
/// the files without them, and them. Says how many there are. Conversations are none: nothing is kept of them.
///
/// # Communication
/// Each process reads all files; the processes wait for each other.
/// # Errors
/// If a file cannot be read, or holds texts; if there are fewer than two questions.
pub fn questions(
    files: Vec<Source>,
    most: usize,
    rng: &mut Rng,
    processes: &Processes,
) -> anyhow::Result<(Vec<Source>, Vec<Example>)> {
    // A pass over the files, to know how many examples there are.
    let mut examples: Vec<(usize, DocumentPlace)> = Vec::new();
    let mut chats = 0;
    for (number, file) in files.iter().enumerate() {
        let documents = file.documents(DOCUMENT_BYTES_MAX)?;
        let places = documents.map(|found| match found? {
            (place, Document::Pair { .. }) => Ok(Some((number, place))),
            (_, Document::Chat(_)) => Ok(None),
            (_, Document::Text(_)) => bail!(
                "{} holds texts, and finetune learns from questions and answers: give it lines or rows with a prompt \
                 and a response, or lines with messages",
                file.name()
            ),
        });
        for place in processes.in_turns(places)?? {
            match place {
                Some(place) => examples.push(place),
                None => chats += 1,
            }
        }
    }
    let num = examples.len();
    let names: Vec<&str> = files.iter().map(Source::name).collect();
    if chats > 0 {
        say!("read {chats} conversations from {}", names.join(", "));
    }
    if num == 0 && chats > 0 {
        return Ok((files, Vec::new()));
    }
    if num < 2 {
        bail!(
            "{} holds {num} examples: one to learn from and one to ask are needed",
            names.join(", ")
        );
    }
    rng.shuffle(&mut examples);
    examples.truncate(most.min((num / 10).max(1)));
    say!(
        "read {num} examples from {}, {} kept for the questions",
        names.join(", "),
        examples.len()
    );
    let asked = examples.iter().map(|(number, place)| {
        let document = files[*number].document(*place, DOCUMENT_BYTES_MAX)?;
        let Document::Pair { prompt, response } = document else {
            unreachable!("all documents were pairs");
        };
        anyhow::Ok(Example {
            kind: None,
            prompt,
            response,
        })
    });
    let asked = asked.collect::<Result<_, _>>()?;
    let rest = files.into_iter().enumerate().map(|(number, file)| {
        let asked = examples.iter().filter(|(of, _)| *of == number);
        file.except(asked.map(|(_, place)| *place))
    });
    Ok((rest.collect(), asked))
}
