use super::pack::{Piece, Segment};

/// A row of a batch: `seq` positions, and the token that follows each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The tokens, `seq + 1` of them: those from the second on are what is predicted.
    pub ids: Vec<u32>,
    /// For each position, whether the token that follows it is to be learnt: the first of a document is not, nor is
    /// padding, nor a prompt.
    pub learn: Vec<bool>,
    /// For each position, which of the row's documents it is of, from 0; padding has a number of its own.
    pub documents: Vec<u32>,
    /// For each position, its place in its document: how many tokens of it come before, in this row.
    pub positions: Vec<u32>,
    /// Positions without a document.
    pub padding: usize,
    /// Which source the documents are from.
    pub source: usize,
}

impl Row {
    /// Puts segments together, and fills up to `seq + 1` tokens.
    pub(super) fn new(
        pieces: &[Piece],
        segments: &[Segment],
        (seq, pad): (usize, u32),
        source: usize,
    ) -> Self {
        let mut row = Self::empty(seq, pad);
        row.source = source;
        let mut at = 0;
        for (number, segment) in segments.iter().enumerate() {
            let document = &pieces[segment.piece].document;
            for (place, index) in (segment.from..segment.to).enumerate() {
                row.ids[at] = document.ids[index];
                if at < seq {
                    row.documents[at] = number as u32;
                    row.positions[at] = place as u32;
                }
                if place > 0 && document.learns(index) {
                    row.learn[at - 1] = true;
                }
                at += 1;
            }
        }
        for (place, at) in (at..seq).enumerate() {
            row.documents[at] = segments.len() as u32;
            row.positions[at] = place as u32;
        }
        row.padding = seq.saturating_sub(at);
        row
    }

    /// A row of padding, of which nothing is learnt.
    pub fn empty(seq: usize, pad: u32) -> Self {
        Self {
            ids: vec![pad; seq + 1],
            learn: vec![false; seq],
            documents: vec![0; seq],
            positions: (0..seq as u32).collect(),
            padding: seq,
            source: 0,
        }
    }

    /// How many positions are to be learnt.
    pub fn num_learnt(&self) -> usize {
        self.learn.iter().filter(|learn| **learn).count()
    }
}
