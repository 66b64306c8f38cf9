//! The loss of a model as it is, and how long and how often a run asks for that of its own: evaluation, epochs, parts
//! of what is held out, lines of a log.

use super::{fails, llama, short, text, works};

/// Lines of questions and answers about numbers.
fn numbers(range: std::ops::Range<usize>) -> String {
    let line = |number| {
        format!(
            "{{\"prompt\": \"What follows {number}?\", \"response\": \"{}\"}}\n",
            number + 1
        )
    };
    range.map(line).collect()
}

fn json_line(printed: &str) -> serde_json::Value {
    assert_eq!(printed.lines().count(), 1, "{printed}");
    serde_json::from_str(printed).unwrap()
}

#[test]
fn a_model_is_evaluated_as_its_run_validated_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| text(&dir.path().join(name)).to_string();
    let [data, held_out, run, saved] =
        ["numbers.jsonl", "held-out.jsonl", "run", "saved"].map(path);
    std::fs::write(&data, numbers(0..60)).unwrap();
    std::fs::write(&held_out, numbers(200..240)).unwrap();
    let rows = ["--batch", "2", "--seq", "32"];
    let texts = ["--data", &data, "--validate", &held_out];
    let of = |command: &str, more: &[&str]| -> String {
        works(&[&[command][..], &rows, &texts, more].concat())
    };
    let train = [
        "--steps",
        "4",
        "--validate-every",
        "2",
        "--every",
        "2",
        "--no-plot",
    ];
    let whole = of(
        "pretrain",
        &[&train[..], &["--run", &run, "--save", &saved]].concat(),
    );
    assert!(whole.contains("held out: 40 documents"), "{whole}");
    let report = std::fs::read(dir.path().join("run/report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
    let losses = report["validation_losses"].as_array().unwrap();
    let loss = |at: usize| losses[at]["loss"].as_f64().unwrap();
    // Of either checkpoint, on other meshes, to rounding: and of the folder that was saved.
    for (from, step, mesh) in [
        (["--run", &run].as_slice(), Some(4), "fsdp=2"),
        (&["--run", &run, "--step", "2"], Some(2), "1"),
        (&["--model", &saved], None, "tp=2"),
    ] {
        let more = [from, &["--mesh", mesh, "--json"]].concat();
        let found = json_line(&of("evaluate", &more));
        let expected = loss(usize::from(step != Some(2)));
        let evaluated = found["loss"].as_f64().unwrap();
        assert!(
            (evaluated - expected).abs() < 1e-4,
            "{from:?}: {found}, {expected}"
        );
        let perplexity = found["perplexity"].as_f64().unwrap();
        assert!((perplexity - evaluated.exp()).abs() < 1e-6 * perplexity);
        assert_eq!(found["step"].as_u64(), step, "{found}");
        assert_eq!(found["mesh"], mesh);
    }
    let two = json_line(&of(
        "evaluate",
        &["--run", &run, "--validate-batches", "2", "--json"],
    ));
    assert_eq!(two["batches"], 2);
    let said = of("evaluate", &["--run", &run]);
    assert!(said.contains("tiny after step 4: loss "), "{said}");
    assert!(
        said.contains(", perplexity ") && said.contains(" positions in "),
        "{said}"
    );

    // What cannot be.
    let refused = |args: &[&str], parts: &[&str]| {
        fails(&[&["evaluate"][..], &rows, args].concat(), 1, parts);
    };
    refused(
        &texts,
        &[
            "there are no weights to evaluate",
            "--run or --checkpoint",
            "--model",
        ],
    );
    refused(
        &[&texts[..], &["--run", &path("none")]].concat(),
        &["there is no folder of checkpoints"],
    );
    let steps = [
        "cannot read the checkpoint of step 3",
        "those of steps 2, 4",
    ];
    refused(
        &[&texts[..], &["--run", &run, "--step", "3"]].concat(),
        &steps,
    );
    let other = ["begun with the model tiny, and goes on with S"];
    refused(
        &[&texts[..], &["--run", &run, "--size", "S"]].concat(),
        &other,
    );
    let other = path("other.txt");
    std::fs::write(&other, "A fox and a hen went over the hill and far away.\n").unwrap();
    let tokenizer = ["--data", &other, "--run", &run];
    refused(&tokenizer, &["another tokenizer", "--validate"]);
}

#[test]
fn epochs_are_as_many_steps_as_the_data_makes() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("numbers.jsonl");
    std::fs::write(&data, numbers(0..40)).unwrap();
    let epochs = |number: &str| -> (String, usize) {
        let said = works(&[
            "pretrain",
            "--data",
            text(&data),
            "--packing",
            "pad",
            "--batch",
            "3",
            "--seq",
            "32",
            "--epochs",
            number,
            "--no-plot",
            "--json",
            text(&dir.path().join("run.json")),
        ]);
        let report = std::fs::read(dir.path().join("run.json")).unwrap();
        let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
        (said, report["losses"].as_array().unwrap().len())
    };
    // 40 rows, one for each document.
    let (said, steps) = epochs("1");
    assert_eq!(steps, 14);
    assert!(said.contains("1 epoch of 40 rows: 14 steps"), "{said}");
    let (said, steps) = epochs("2");
    assert_eq!(steps, 27);
    assert!(said.contains("2 epochs of 40 rows: 27 steps"), "{said}");
    fails(
        &["pretrain", "--epochs", "1"],
        1,
        &["--epochs needs data that ends", "--steps"],
    );
    fails(
        &["pretrain", "--epochs", "1", "--steps", "2"],
        2,
        &["cannot be used with"],
    );
}

#[test]
fn a_log_has_a_line_for_each_step_or_for_some() {
    let lines = |more: &[&str]| -> Vec<String> {
        let args = [
            "pretrain",
            "--steps",
            "5",
            "--batch",
            "2",
            "--seq",
            "8",
            "--no-plot",
        ];
        let output = llama(&[&args[..], more].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let lines = said
            .lines()
            .map(str::trim)
            .filter(|line| line.starts_with("pretrain "));
        lines.map(str::to_string).collect()
    };
    let all = lines(&[]);
    assert_eq!(all.len(), 5, "{all:?}");
    for (number, line) in all.iter().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[1], format!("{}/5", number + 1), "{line}");
        for what in ["loss", "tokens/s", "lr", "ms"] {
            assert!(words.contains(&what), "{line}");
        }
    }
    let some = lines(&["--log-every", "2", "--clip", "1"]);
    let steps: Vec<&str> = some
        .iter()
        .map(|line| line.split_whitespace().nth(1).unwrap())
        .collect();
    assert_eq!(steps, ["2/5", "4/5", "5/5"], "{some:?}");
}

#[test]
fn a_part_of_what_is_held_out_may_be_enough() {
    let dir = tempfile::tempdir().unwrap();
    let validated = |more: &[&str]| -> f64 {
        let json = dir.path().join("run.json");
        let args = ["--no-plot", "--validate-every", "9", "--json", text(&json)];
        works(&[&short(&args)[..], more].concat());
        let report: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        report["validation_losses"][0]["loss"].as_f64().unwrap()
    };
    let all = validated(&[]);
    assert_ne!(validated(&["--validate-batches", "1"]), all);
    assert_eq!(validated(&["--validate-batches", "100"]), all);
}
