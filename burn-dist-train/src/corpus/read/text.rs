use super::Reader;
use super::lines::Lines;
use crate::corpus::document::Document;
use crate::corpus::error::CorpusError;
use crate::corpus::format::Split;

/// Opens plain text.
pub(super) fn open(lines: Lines, split: Split) -> Box<dyn Reader> {
    Box::new(Text { lines, split })
}

/// Plain text; documents begin at lines.
struct Text {
    lines: Lines,
    split: Split,
}

impl Text {
    fn text(&mut self, at: u64, bytes: &[u8]) -> Result<Document, CorpusError> {
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Document::Text(text.trim_end().to_string())),
            Err(error) => Err(CorpusError::Malformed {
                place: self.lines.place(at),
                reason: format!("not UTF-8 ({error})"),
            }),
        }
    }
}

impl Reader for Text {
    fn end(&self) -> u64 {
        self.lines.end()
    }

    fn bytes(&self) -> u64 {
        self.lines.end()
    }

    fn seek(&mut self, at: u64) -> Result<(), CorpusError> {
        match self.split {
            Split::Line => self.lines.seek(at),
            Split::Paragraph => {
                self.lines.seek(at)?;
                let here = self.lines.at();
                if self.lines.follows_blank(here)? {
                    return Ok(());
                }
                // The rest of a paragraph that begins before.
                while let Some((_, line)) = self.lines.next()? {
                    if line.trim_ascii().is_empty() {
                        break;
                    }
                }
                Ok(())
            }
            // Its one document begins with the first line that is not blank.
            Split::File => {
                let mut first = self.lines.begin();
                self.lines.seek(first)?;
                while let Some((place, line)) = self.lines.next()? {
                    if !line.trim_ascii().is_empty() {
                        first = place;
                        break;
                    }
                }
                let end = self.lines.end();
                self.lines.seek(if at <= first { first } else { end })
            }
        }
    }

    fn at(&self) -> u64 {
        self.lines.at()
    }

    fn next(&mut self) -> Result<Option<(u64, Document)>, CorpusError> {
        let mut document: Option<(u64, Vec<u8>)> = None;
        let limit = self.lines.limit();
        while let Some((at, line)) = self.lines.next()? {
            let is_blank = line.trim_ascii().is_empty();
            match &mut document {
                None if is_blank => {}
                None => document = Some((at, line.to_vec())),
                Some(_) if is_blank && self.split == Split::Paragraph => break,
                Some((begins, text)) => {
                    let begins = *begins;
                    text.extend(line);
                    if text.len() > limit {
                        return Err(self.lines.too_large(begins));
                    }
                }
            }
            if self.split == Split::Line && document.is_some() {
                break;
            }
        }
        match document {
            Some((at, bytes)) => Ok(Some((at, self.text(at, &bytes)?))),
            None => Ok(None),
        }
    }

    fn place(&mut self, at: u64) -> String {
        self.lines.place(at)
    }
}
