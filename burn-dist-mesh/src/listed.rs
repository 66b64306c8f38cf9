//! Names that a message offers.

/// Returns `names` as a message offers them: `a, b or c`.
#[doc(hidden)]
pub fn any_of<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    listed(names, "or")
}

/// Returns `names` as a list with a word before the last one: `a, b and c`.
pub(super) fn listed<'a>(names: impl IntoIterator<Item = &'a str>, word: &str) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    match &names[..] {
        [others @ .., last] if !others.is_empty() => {
            format!("{} {word} {last}", others.join(", "))
        }
        names => names.concat(),
    }
}

#[test]
fn names_are_listed() {
    assert_eq!(any_of([]), "");
    assert_eq!(any_of(["a"]), "a");
    assert_eq!(any_of(["a", "b"]), "a or b");
    assert_eq!(listed(["a", "b", "c"], "and"), "a, b and c");
}
