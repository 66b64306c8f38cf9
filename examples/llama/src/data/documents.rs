//! Documents as token ids, of which every process makes its share and knows how long the others are: enough to pack
//! them alike.

use std::borrow::Cow;
use std::ops::Range;

use anyhow::{anyhow, ensure};
use serde::{Deserialize, Serialize};

use super::tokenizer::Encoded;
use crate::processes::Processes;

/// What packing has to know of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Its tokens.
    pub len: usize,
    /// Where the answer begins; 0 if all of it is to be learnt.
    pub answer_from: usize,
}

impl From<&Encoded> for Extent {
    fn from(document: &Encoded) -> Self {
        Self {
            len: document.ids.len(),
            answer_from: document.answer_from,
        }
    }
}

/// Documents in an order that all processes know: the extents of all, the ids of this process's share, and a way to the
/// ids of the others.
pub struct Documents<'a> {
    extents: Vec<Extent>,
    /// Where this process's share begins.
    first: usize,
    mine: Vec<Encoded>,
    encode: Box<dyn Fn(usize) -> anyhow::Result<Encoded> + 'a>,
}

impl<'a> Documents<'a> {
    /// Encodes this process's share, and hears from the others how long the documents of theirs are. Shares follow each
    /// other in the order of processes.
    ///
    /// # Communication
    /// Two numbers per document, of each process. Waits for the others.
    /// # Errors
    /// The first of `encode` in any process, in all of them. If another process is late or has ended.
    pub fn share(
        mine: Range<usize>,
        processes: &Processes,
        encode: impl Fn(usize) -> anyhow::Result<Encoded> + 'a,
    ) -> anyhow::Result<Self> {
        let encoded = processes.in_turns(mine.clone().map(&encode))?;
        let extents = match &encoded {
            Ok(mine) => Ok(mine.iter().map(Extent::from).collect::<Vec<_>>()),
            Err(error) => Err(format!("{error:#}")),
        };
        let all = processes.gather(extents)?;
        let all: Vec<_> = all
            .into_iter()
            .collect::<Result<_, _>>()
            .map_err(|error: String| anyhow!(error))?;
        let before: usize = all[..processes.process()].iter().map(Vec::len).sum();
        assert_eq!(mine.start, before, "shares follow each other");
        Ok(Self {
            extents: all.concat(),
            first: mine.start,
            mine: encoded?,
            encode: Box::new(encode),
        })
    }

    /// What is known of a document in all processes.
    ///
    /// # Panics
    /// If there are not as many.
    pub fn extent(&self, index: usize) -> Extent {
        self.extents[index]
    }

    /// A document; one of another process's share is encoded anew each time.
    ///
    /// # Errors
    /// Those of `encode`; if the document is another one here than in the process that has it in its share.
    /// # Panics
    /// If there are not as many.
    pub fn get(&self, index: usize) -> anyhow::Result<Cow<'_, Encoded>> {
        let place = index.checked_sub(self.first);
        if let Some(mine) = place.and_then(|place| self.mine.get(place)) {
            return Ok(Cow::Borrowed(mine));
        }
        let document = (self.encode)(index)?;
        let (found, expected) = (Extent::from(&document), self.extents[index]);
        ensure!(
            found == expected,
            "document {index} has {} tokens here and {} in another process: give all processes the same data and the \
             same tokenizer",
            found.len,
            expected.len
        );
        Ok(Cow::Owned(document))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::tests::in_processes;
    use std::cell::Cell;

    fn document(index: usize) -> Encoded {
        Encoded {
            ids: (0..=index as u32).collect(),
            answer_from: index / 2,
        }
    }

    #[test]
    fn every_process_encodes_its_share_and_what_it_is_asked_for() {
        for (num_processes, shares) in [(1, [10].as_slice()), (2, &[5, 5]), (3, &[3, 3, 4])] {
            in_processes(num_processes, |processes| {
                let encoded = Cell::new(0);
                let encode = |index| {
                    encoded.set(encoded.get() + 1);
                    Ok(document(index))
                };
                let mine = processes.share(10);
                let documents = Documents::share(mine.clone(), &processes, encode).unwrap();
                assert_eq!(encoded.get(), shares[processes.process()]);
                for index in 0..10 {
                    assert_eq!(documents.extent(index), Extent::from(&document(index)));
                    assert_eq!(*documents.get(index).unwrap(), document(index));
                }
                // Those of its share were there, the others were not.
                assert_eq!(encoded.get(), 10);
                documents.get(mine.start).unwrap();
                assert_eq!(encoded.get(), 10);
            });
        }
    }

    #[test]
    fn an_error_in_one_process_is_one_in_all() {
        let errors = in_processes(3, |processes| {
            let encode = |index: usize| match index {
                4.. => Err(anyhow!("document {index} is empty")),
                _ => Ok(document(index)),
            };
            let documents = Documents::share(processes.share(10), &processes, encode);
            documents.err().expect("an error").to_string()
        });
        assert_eq!(errors, ["document 4 is empty"; 3]);
    }

    #[test]
    fn another_document_under_the_same_number_is_noticed() {
        let errors = in_processes(2, |processes| {
            // What process 1 calls 0 is longer.
            let shift = processes.process();
            let encode = |index| Ok(document(index + shift));
            let documents = Documents::share(processes.share(4), &processes, encode).unwrap();
            let foreign = 2 - 2 * shift;
            documents.get(foreign).unwrap_err().to_string()
        });
        assert!(
            errors[0].contains("document 2 has 3 tokens here and 4"),
            "{errors:?}"
        );
        assert!(
            errors[1].contains("document 0 has 2 tokens here and 1"),
            "{errors:?}"
        );
    }
}
