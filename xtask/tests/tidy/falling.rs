//! Numbers of what should not be, which only fall: a test fails when one rises, and when it falls and is still allowed.

/// Returns what is wrong with `found` things where `allowed` are; `list` names them.
pub(crate) fn only_falls(what: &str, found: usize, allowed: usize, list: &str) -> Option<String> {
    if found > allowed {
        Some(format!("{found} {what} instead of {allowed}:\n{list}"))
    } else if found < allowed {
        Some(format!("{found} {what}: lower the number to {found}\n"))
    } else {
        None
    }
}

#[test]
fn numbers_only_fall() {
    assert_eq!(only_falls("files", 2, 2, "list"), None);
    let risen = only_falls("files", 3, 2, "list");
    assert_eq!(risen.as_deref(), Some("3 files instead of 2:\nlist"));
    let fallen = only_falls("files", 1, 2, "list");
    assert_eq!(fallen.as_deref(), Some("1 files: lower the number to 1\n"));
}
