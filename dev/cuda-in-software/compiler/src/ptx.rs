//! Instructions of PTX in a text: those that are known become C++. The host's assembler refuses the others by name.

/// Templates of `asm`, or the first line of longer ones, and what they do to their operands.
const KNOWN: &[(&str, &str)] = &[
    (
        "ld.acquire.sys.global.u32 %0, [%1];",
        "%0 = software::acquire(%1)",
    ),
    (
        "add.sat.s32 %0, %1, %2;",
        "%0 = software::saturated((long long)(%1) + (%2))",
    ),
    (
        "sub.sat.s32 %0, %1, %2;",
        "%0 = software::saturated((long long)(%1) - (%2))",
    ),
    // Followed by a macro that is a format's name.
    (
        "cvt.rn.satfinite.",
        "%0 = software::float8(FORMAT, %1) << 8 | software::float8(FORMAT, %2)",
    ),
    ("cvt.f32.f16 %0, %1;", "%0 = software::of_half(%1)"),
    (
        "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier:",
        "software::load_pixels<3>(%0, %1, %2, %3, %4, %5, %6)",
    ),
    (
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier:",
        "software::load_pixels<4>(%0, %1, %2, %3, %4, %5, %6, %7, %8)",
    ),
    (
        "cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier:",
        "software::load_pixels<5>(%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10)",
    ),
];

/// Replaces the statements `asm` whose template is known.
pub(crate) fn translated(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("asm") {
        let (before, statement) = rest.split_at(at);
        out += before;
        let end = statement.find(");").map_or(statement.len(), |end| end + 1);
        match known(&statement[..end]) {
            Some(made) => {
                out += &made;
                rest = &statement[end..];
            }
            None => {
                out += "asm";
                rest = &statement["asm".len()..];
            }
        }
    }
    out + rest
}

/// Returns what a statement does, if its template is known.
fn known(statement: &str) -> Option<String> {
    let start = statement.find('"')?;
    let template = statement[start + 1..].split('"').next()?;
    let (_, does) = KNOWN.iter().find(|(of, _)| *of == template)?;
    let mut rest = &statement[start + template.len() + 2..];
    let mut operands = Vec::new();
    // Each operand is a constraint and an expression in parentheses.
    while let Some(open) = rest.find("\"(") {
        let inside = &rest[open + 1..];
        let mut depth = 0;
        let close = inside.find(|c| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            depth == 0
        })?;
        operands.push(&inside[..=close]);
        rest = &inside[close..];
    }
    // The last ones first: `%1` is a part of `%10`.
    let operands = operands.iter().enumerate().rev();
    let with = |made: String, (number, operand): (usize, &&str)| {
        made.replace(&format!("%{number}"), operand)
    };
    Some(operands.fold(String::from(*does), with))
}

#[cfg(test)]
mod tests {
    use super::translated;

    #[test]
    fn instructions_that_are_known_become_calls() {
        let text = "asm volatile(\"ld.acquire.sys.global.u32 %0, [%1];\" : \"=r\"(found) \
            : \"l\"(f(word)) : \"memory\");";
        assert_eq!(translated(text), "(found) = software::acquire((f(word)));");
        let eleven: String = (0..11).map(|x| format!(", \"r\"(x{x})")).collect();
        let text = format!(
            "asm(\"{}\" : :{});",
            super::KNOWN.last().expect("one").0,
            &eleven[1..]
        );
        assert!(translated(&text).ends_with("(x9), (x10));"), "{text}");
        let other = "asm(\"mov.u32 %0, %1;\" : \"=r\"(a) : \"r\"(b));";
        assert_eq!(translated(other), other);
    }
}
