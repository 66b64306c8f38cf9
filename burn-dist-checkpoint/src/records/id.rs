//! Ids of parameters as text: base 32 of their bytes, as Burn writes them.

const DIGITS: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";

/// Returns the text of an id: its bytes, lowest first, five bits each, zeros after the last.
pub(super) fn encode(id: u64) -> String {
    let bits = u128::from(id.swap_bytes()) << 1;
    let digit = |index: u32| char::from(DIGITS[(bits >> (60 - 5 * index) & 31) as usize]);
    (0..13).map(digit).collect()
}

/// Returns the id of a text; none if it is not one of eight bytes, as those of earlier versions.
pub(super) fn decode(text: &str) -> Option<u64> {
    let digit = |c: u8| DIGITS.iter().position(|digit| *digit == c);
    let bits = text.bytes().try_fold(0u128, |bits, c| {
        let digit = digit(c)? as u128;
        (bits >> 120 == 0).then_some(bits << 5 | digit)
    })?;
    let is_whole = text.len() == 13 && bits & 1 == 0;
    is_whole.then(|| ((bits >> 1) as u64).swap_bytes())
}
