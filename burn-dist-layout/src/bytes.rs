//! Amounts for people.

/// Returns bytes for people: `12.5 MiB`.
pub fn human_bytes(bytes: u64) -> String {
    human(bytes as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"])
}

/// Returns an amount in the largest of the units of which there is one; each is `base` of the one before it, and of the
/// first there are whole ones.
pub fn human(amount: f64, base: f64, units: &[&str]) -> String {
    let mut value = amount;
    let mut unit = 0;
    while value >= base && unit + 1 < units.len() {
        value /= base;
        unit += 1;
    }
    let digits = usize::from(unit > 0);
    format!("{value:.digits$} {}", units[unit])
}
