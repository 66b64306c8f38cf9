//! The arguments of a test program.

/// Options of the harness that have a value, which may be the next argument.
const WITH_VALUE: [&str; 6] = [
    "--color",
    "--format",
    "--logfile",
    "--shuffle-seed",
    "--skip",
    "-Z",
];

/// Options that choose tests, as filters do.
const CHOOSING: [&str; 2] = ["--exact", "--skip"];

/// Options by which the program does something else, or is to run its tests itself.
const ALONE: [&str; 5] = ["--list", "--test-threads", "--logfile", "--help", "-h"];

/// Returns the arguments but for those that say which tests run; `None` if the program is to run its tests itself.
pub(crate) fn options(arguments: &[String]) -> Option<Vec<String>> {
    let mut options = Vec::new();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let name = argument.split('=').next().unwrap_or_default();
        if ALONE.contains(&name) {
            return None;
        }
        let has_value = WITH_VALUE.contains(&argument.as_str());
        let value = has_value.then(|| arguments.next()).flatten();
        if name.starts_with('-') && !CHOOSING.contains(&name) {
            options.push(argument.clone());
            options.extend(value.cloned());
        }
    }
    Some(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(arguments: &str) -> Option<String> {
        let arguments: Vec<String> = arguments.split_whitespace().map(String::from).collect();
        options(&arguments).map(|options| options.join(" "))
    }

    #[test]
    fn filters_are_left_out_and_options_stay() {
        let whole = "loops:: --nocapture --skip slow -Z unstable-options --skip=other --exact --color never rows";
        let options = "--nocapture -Z unstable-options --color never";
        assert_eq!(left(whole).as_deref(), Some(options));
        assert_eq!(left("").as_deref(), Some(""));
        assert_eq!(
            left("--ignored --format=terse").as_deref(),
            Some("--ignored --format=terse")
        );
    }

    #[test]
    fn who_lists_or_asks_for_threads_gets_the_program_itself() {
        for alone in [
            "--list",
            "loops --test-threads=2",
            "--test-threads 2",
            "--logfile a",
            "--help",
        ] {
            assert_eq!(left(alone), None, "{alone}");
        }
    }
}
