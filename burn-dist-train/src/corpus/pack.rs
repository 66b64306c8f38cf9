//! Documents as rows of a fixed number of tokens.

use std::collections::BTreeMap;
use std::ops::Bound::{Included, Unbounded};
use std::sync::Arc;

use super::document::Encoded;
use super::policy::{Longer, Packing};

/// Tokens of a document that stay together, unless rows are cut anywhere.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) document: Arc<Encoded>,
    /// Where the document begins in its source.
    pub(super) at: u64,
    pub(super) from: usize,
    pub(super) to: usize,
    /// It has waited for this block.
    pub(super) carried: bool,
}

impl Piece {
    fn len(&self) -> usize {
        self.to - self.from
    }
}

/// Tokens of a piece in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) piece: usize,
    /// The first token, within the document.
    pub(super) from: usize,
    pub(super) to: usize,
}

/// A document, as it is packed.
pub(super) enum Cut {
    Pieces(Vec<Piece>),
    /// It has fewer than two tokens: nothing follows anything.
    Short,
    /// It has more tokens than a row, and is left out.
    Dropped,
    /// It has more tokens than a row, and is refused.
    Refused,
}

/// Cuts a document into pieces of at most `capacity` tokens; a stream cuts it later.
///
/// A piece begins with the last token of the one before, so that every token but the first of a document is predicted
/// once.
pub(super) fn cut(
    document: Encoded,
    at: u64,
    capacity: usize,
    packing: Packing,
    longer: Longer,
) -> Cut {
    let len = document.ids.len();
    if len < 2 {
        return Cut::Short;
    }
    match longer {
        Longer::Drop if len > capacity => return Cut::Dropped,
        Longer::Refuse if len > capacity => return Cut::Refused,
        _ => {}
    }
    let most = match packing {
        Packing::Stream => len,
        Packing::Pack | Packing::Pad => capacity,
    };
    let document = Arc::new(document);
    let mut pieces = Vec::new();
    let mut from = 0;
    // capacity 5, 12 tokens -> 0..5, 4..9, 8..12
    while from + 1 < len {
        let to = len.min(from + most);
        pieces.push(Piece {
            document: Arc::clone(&document),
            at,
            from,
            to,
            carried: false,
        });
        from = to - 1;
    }
    Cut::Pieces(pieces)
}

/// The rows of a block.
#[derive(Debug, Default)]
pub(super) struct Rows {
    /// The rows that are handed out.
    pub(super) rows: Vec<Vec<Segment>>,
    /// The segments that wait for the next block.
    pub(super) carried: Vec<Segment>,
}

/// At most one row in so many waits for the next block.
const WAITING_ONE_IN: usize = 32;

/// Makes rows of at most `capacity` tokens of the pieces of a block, and of all of them if it is the `last` one.
pub(super) fn pack(pieces: &[Piece], capacity: usize, packing: Packing, last: bool) -> Rows {
    let mut rows = match packing {
        Packing::Pack => best_fit(pieces, capacity),
        Packing::Pad => (0..pieces.len())
            .map(|piece| vec![whole(pieces, piece)])
            .collect(),
        Packing::Stream => stream(pieces, capacity),
    };
    if last || packing == Packing::Pad {
        return Rows {
            rows,
            carried: Vec::new(),
        };
    }
    // The emptiest rows wait for what fits, unless a piece in them has waited before. They are few: documents of some
    // lengths fill rows less well than others, and if all of these waited, the rows of a block would be no sample of
    // its documents.
    let full = match packing {
        Packing::Stream => capacity - 1,
        Packing::Pack | Packing::Pad => capacity - capacity / 64,
    };
    let len = |row: &[Segment]| -> usize { row.iter().map(|part| part.to - part.from).sum() };
    let waited = |row: &[Segment]| row.iter().any(|part| pieces[part.piece].carried);
    let may_wait =
        |row: &[Segment]| len(row) < full && (packing == Packing::Stream || !waited(row));
    let mut emptiest: Vec<usize> = (0..rows.len()).filter(|at| may_wait(&rows[*at])).collect();
    // Of rows as empty as each other the later ones.
    emptiest.sort_by_key(|at| (len(&rows[*at]), std::cmp::Reverse(*at)));
    // A lane always has a next row.
    emptiest.truncate(
        (rows.len() / WAITING_ONE_IN)
            .max(1)
            .min(rows.len().saturating_sub(1)),
    );
    let mut waits = vec![false; rows.len()];
    emptiest.into_iter().for_each(|at| waits[at] = true);
    let mut waits = waits.into_iter();
    let (waiting, going): (Vec<_>, Vec<_>) = rows
        .drain(..)
        .partition(|_| waits.next().expect("as many as rows"));
    Rows {
        rows: going,
        carried: waiting.concat(),
    }
}

fn whole(pieces: &[Piece], piece: usize) -> Segment {
    Segment {
        piece,
        from: pieces[piece].from,
        to: pieces[piece].to,
    }
}

/// Best fit decreasing: the longest piece first, into the fullest row that has room for it. In a row, pieces keep their
/// order.
fn best_fit(pieces: &[Piece], capacity: usize) -> Vec<Vec<Segment>> {
    let mut order: Vec<usize> = (0..pieces.len()).collect();
    order.sort_by_key(|piece| std::cmp::Reverse(pieces[*piece].len()));
    let mut rows: Vec<Vec<usize>> = Vec::new();
    // Rows by the room that they have.
    let mut open: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for piece in order {
        let len = pieces[piece].len();
        let room = open
            .range((Included(len), Unbounded::<usize>))
            .next()
            .map(|(room, _)| *room);
        let (row, room) = match room {
            None => {
                rows.push(Vec::new());
                (rows.len() - 1, capacity)
            }
            Some(room) => {
                let with = open.get_mut(&room).expect("it was just found");
                let row = with.pop().expect("lists without rows are removed");
                if with.is_empty() {
                    open.remove(&room);
                }
                (row, room)
            }
        };
        rows[row].push(piece);
        // One token has nothing that it could be predicted from.
        if room - len > 1 {
            open.entry(room - len).or_default().push(row);
        }
    }
    let ordered = rows.into_iter().map(|mut row| {
        row.sort_unstable();
        row.into_iter().map(|piece| whole(pieces, piece)).collect()
    });
    ordered.collect()
}

/// One piece after the other; the next row begins with the token that the last one ended with, if it goes on.
fn stream(pieces: &[Piece], capacity: usize) -> Vec<Vec<Segment>> {
    let (mut rows, mut row, mut room) = (Vec::new(), Vec::new(), capacity);
    for (piece, whole) in pieces.iter().enumerate() {
        let mut from = whole.from;
        while from + 1 < whole.to {
            let to = whole.to.min(from + room);
            row.push(Segment { piece, from, to });
            room -= to - from;
            from = to - 1;
            if room < 2 {
                rows.push(std::mem::take(&mut row));
                room = capacity;
            }
        }
    }
    rows.extend((!row.is_empty()).then_some(row));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pieces(lens: &[usize], capacity: usize, packing: Packing) -> Vec<Piece> {
        let all = lens.iter().enumerate().flat_map(|(at, len)| {
            let document = Encoded::new((0..*len as u32).collect(), 0);
            match cut(document, at as u64, capacity, packing, Longer::Split) {
                Cut::Pieces(pieces) => pieces,
                _ => Vec::new(),
            }
        });
        all.collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn every_token_but_the_first_is_predicted_once(
            lens in prop::collection::vec(0usize..40, 0..30),
            capacity in 2usize..20,
            packing in prop_oneof![Just(Packing::Pack), Just(Packing::Pad), Just(Packing::Stream)],
            last: bool,
        ) {
            let pieces = pieces(&lens, capacity, packing);
            let made = pack(&pieces, capacity, packing, last);
            prop_assert!(!last || made.carried.is_empty());
            prop_assert!(!made.rows.is_empty() || pieces.is_empty());
            for row in &made.rows {
                let len: usize = row.iter().map(|part| part.to - part.from).sum();
                prop_assert!((2..=capacity).contains(&len));
            }
            let mut predicted: Vec<Vec<usize>> = lens.iter().map(|len| vec![0; *len]).collect();
            for part in made.rows.iter().flatten().chain(&made.carried) {
                let document = pieces[part.piece].at as usize;
                let tokens = &mut predicted[document][part.from + 1..part.to];
                tokens.iter_mut().for_each(|count| *count += 1);
            }
            for tokens in predicted {
                prop_assert!(tokens.iter().skip(1).all(|count| *count == 1));
            }
        }
    }

    #[test]
    fn a_row_takes_what_fits_best() {
        let pieces = pieces(&[6, 3, 7, 4, 3], 10, Packing::Pack);
        let rows: Vec<Vec<usize>> = pack(&pieces, 10, Packing::Pack, true)
            .rows
            .iter()
            .map(|row| row.iter().map(|part| part.piece).collect())
            .collect();
        assert_eq!(rows, [vec![1, 2], vec![0, 3], vec![4]]);
    }

    /// Documents that fill no row to its end are learnt from as early as others: no more than one row in 32 waits.
    #[test]
    fn a_block_is_a_sample_of_its_documents() {
        let lens: Vec<usize> = (0..1000).flat_map(|_| [33, 9, 7, 14]).collect();
        let pieces = pieces(&lens, 49, Packing::Pack);
        let made = pack(&pieces, 49, Packing::Pack, false);
        let long = |parts: &[Segment]| parts.iter().filter(|part| part.to == 33).count();
        let (going, waiting) = (long(&made.rows.concat()), long(&made.carried));
        assert_eq!(going + waiting, 1000);
        assert!(
            waiting <= 1000 / 32,
            "{waiting} of 1,000 long documents wait"
        );
    }

    #[test]
    fn what_waited_does_not_wait_again() {
        let mut pieces = pieces(&[600, 500], 1000, Packing::Pack);
        let made = pack(&pieces, 1000, Packing::Pack, false);
        assert_eq!((made.rows.len(), made.carried.len()), (1, 1));
        assert_eq!((made.rows[0][0].piece, made.carried[0].piece), (0, 1));
        pieces[1].carried = true;
        let made = pack(&pieces, 1000, Packing::Pack, false);
        assert_eq!((made.rows.len(), made.rows[0][0].piece), (1, 1));
    }
}
