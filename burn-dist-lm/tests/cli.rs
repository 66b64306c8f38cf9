//! The program as its user meets it: what it says when it cannot go on, and what it leaves behind.

#[path = "cli/chat.rs"]
mod chat;
#[path = "cli/convert.rs"]
mod convert;
#[path = "cli/evaluate.rs"]
mod evaluate;
#[path = "cli/files.rs"]
mod files;
#[cfg(unix)]
#[path = "cli/guide.rs"]
mod guide;
#[path = "cli/planned.rs"]
mod planned;

use std::path::Path;
use std::process::{Command, Output};

one_thread::one_thread_per_process!();

fn llama(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_burn-dist-lm"))
        .args(args)
        .output()
        .expect("the program starts")
}

/// Fails unless the program ended with `code` and said all of `parts` on standard error; returns what it said there.
fn fails(args: &[&str], code: i32, parts: &[&str]) -> String {
    let output = llama(args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    for part in parts {
        assert!(said.contains(part), "{args:?} must say {part:?}: {said}");
    }
    said
}

/// Fails unless the program did all of its work; returns its standard output.
fn works(args: &[&str]) -> String {
    let output = llama(args);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {said}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a temporary folder's name is UTF-8")
}

/// One short step of the smallest model.
const SHORT: [&str; 7] = ["pretrain", "--steps", "1", "--batch", "2", "--seq", "8"];

fn short<'a>(more: &[&'a str]) -> Vec<&'a str> {
    SHORT.iter().chain(more).copied().collect()
}

#[test]
fn a_mesh_that_cannot_be_read_is_explained() {
    let refused = |mesh: &str, part: &str| {
        fails(&short(&["--no-plot", "--mesh", mesh]), 2, &["--mesh", part]);
    };
    refused("fsdp", "`fsdp` has no size");
    refused("fsdp=two", "`two` of axis `fsdp` is not a whole number");
    refused("fsdp=0", "axis `fsdp` has size 0");
    refused("tp=2,tp=2", "axis `tp` appears twice");
}

#[test]
fn an_axis_that_splits_nothing_is_refused() {
    let refused = |mesh: &str, parts: &[&str]| {
        fails(&short(&["--no-plot", "--mesh", mesh]), 2, parts);
    };
    refused("fdsp=2", &["--mesh", "`fdsp`", "did you mean `fsdp=2`?"]);
    refused("fsdp=2,heads=2", &["--mesh", "`heads`", "`heads:model=2`"]);
    for mesh in ["model=2", "fsdp=2,heads:model=2"] {
        let args = short(&["--no-plot", "--mesh", mesh]);
        fails(
            &args,
            1,
            &[
                "nothing of this model is split over axis",
                mesh,
                "use pp, dp, fsdp, cp and tp",
            ],
        );
    }
}

#[test]
fn a_step_has_no_more_tokens_than_can_be_counted() {
    let most = usize::MAX.to_string();
    let parts = ["are more than a step can have", "give a --seq of at most"];
    for command in ["explain", "simulate", "pretrain"] {
        fails(&[command, "--batch", &most], 1, &parts);
        fails(&[command, "--seq", &most, "--batch", "1"], 1, &parts);
    }
    let many = ["simulate", "--mesh", "fsdp=8", "--batch-per-rank", &most];
    fails(&many, 1, &parts);
}

#[test]
fn a_sequence_has_a_token_for_every_rank_that_splits_it() {
    let args = [
        "explain",
        "--size",
        "tiny",
        "--mesh",
        "fsdp=2,cp=4",
        "--seq",
        "3",
    ];
    fails(&args, 1, &["fsdp=2,cp=4", "4 ranks", "3 tokens", "--seq"]);
}

#[test]
fn stages_are_shown() {
    let mesh = ["mesh", "--mesh", "pp=2,fsdp=2"];
    let shown = works(&mesh);
    for part in [
        "2 stages over pp, schedule 1f1b",
        "tok_embeddings, layers 0",
        "norm, output",
    ] {
        assert!(shown.contains(part), "{part:?} in\n{shown}");
    }
    let more = |more: &[&'static str]| [&mesh[..], more].concat();
    let shown = works(&more(&["--schedule", "zb-v", "--size", "8b"]));
    for part in [
        "4 stages over pp, schedule zb-v",
        "layers 0-7",
        "layers 24-31, norm, output",
    ] {
        assert!(shown.contains(part), "{part:?} in\n{shown}");
    }
    fails(&more(&["--schedule", "zb"]), 2, &["`zb` is not a schedule"]);
    let parts = [
        "schedule 1f1b cannot have 2 stage(s) per rank",
        "--stages-per-rank",
    ];
    fails(&more(&["--stages-per-rank", "2"]), 1, &parts);
    let parts = ["fewer stages", "stages"];
    fails(&["mesh", "--mesh", "pp=64"], 1, &parts);
    let dir = tempfile::tempdir().unwrap();
    let chart = dir.path().join("stages.svg");
    let chart = chart.to_str().unwrap();
    let planned = works(&[
        "simulate",
        "--mesh",
        "pp=2",
        "--microbatches",
        "4",
        "--chart",
        chart,
    ]);
    assert!(planned.contains("bubble of the stages"), "{planned}");
    assert!(
        std::fs::read_to_string(chart)
            .unwrap()
            .contains(">stage 1<")
    );
    let none = ["simulate", "--mesh", "fsdp=2", "--chart", chart];
    fails(&none, 1, &["has none", "pp=2"]);
    fails(
        &["simulate", "--mesh", "pp=2", "--chart", "c.png"],
        2,
        &["drawn as .svg"],
    );
    // The head has the flops of 2.04 layers: 7 with it would cost more than 9 of the others.
    let by_cost = ["mesh", "--mesh", "pp=4", "--size", "8b", "--stages-by"];
    let shown = |by| works(&[&by_cost[..], &[by]].concat());
    assert!(shown("layers").contains("layers 24-31, norm, output"));
    assert!(shown("cost").contains("layers 26-31, norm, output"));
}

/// Rows are counted for each rank of the data axes, not of the pipeline; microbatches divide these.
#[test]
fn simulated_stages_wait_for_each_other() {
    let output = llama(&[
        "simulate",
        "--size=tiny",
        "--mesh=pp=2,fsdp=2",
        "--batch-per-rank=3",
        "--microbatches=3",
    ]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        text.contains("tiny, 6 x 48 tokens, mesh pp=2,fsdp=2 (4 rank(s))"),
        "{text}"
    );
    // Both ways between the stages.
    assert!(
        text.contains("pp inside 0>1: ") || text.contains("pp 0>1: "),
        "{text}"
    );
    assert!(text.contains("1>0: "), "{text}");
}

/// What is said of a step does not depend on how many of its microbatches are planned.
#[test]
fn one_microbatch_stands_for_others() {
    let with = |more: &str| {
        let step = "simulate --size tiny --batch-per-rank 12 --microbatches 12";
        let args = format!("{step} {more}");
        works(&args.split_whitespace().collect::<Vec<_>>())
    };
    for more in [
        "--mesh pp=2,fsdp=2 --activation-checkpoint full --schedule zb-h1",
        "--mesh pp=2,tp=2 --activation-checkpoint selective",
        "--mesh dp=2,pp=2 --schedule interleaved --stages-per-rank 2 --param-dtype bf16",
        "--mesh fsdp=4",
    ] {
        let all = with(&format!("{more} --json --plan-microbatches 12"));
        let few = with(&format!("{more} --json"));
        let json = |said: &str| -> serde_json::Value { serde_json::from_str(said).unwrap() };
        let (all, mut few) = (json(&all), json(&few));
        assert_eq!(few["planned_microbatches"], 5, "{more}");
        few["planned_microbatches"] = 12.into();
        assert_eq!(few, all, "{more}");
    }
    for mesh in ["--mesh pp=2,fsdp=2", "--mesh pp=2"] {
        let said = with(mesh);
        assert!(said.contains("planned 5 of 12 microbatches"), "{said}");
    }
    let few = "simulate --size tiny --mesh pp=2 --batch 12 --microbatches 12 --plan-microbatches 2";
    let few: Vec<&str> = few.split_whitespace().collect();
    fails(
        &few,
        78,
        &["a step of 2 microbatches cannot stand for one of 12"],
    );
}

#[test]
fn a_pipeline_trains_as_its_mesh_without_stages() {
    let losses = |more: &[&str]| {
        let steps = [
            "pretrain",
            "--no-plot",
            "--steps",
            "3",
            "--batch",
            "4",
            "--seq",
            "8",
        ];
        let said = works(&[&steps[..], &["--microbatches", "2"], more].concat());
        let last = said.lines().find(|line| line.starts_with("loss "));
        let (losses, _) = last
            .expect("losses")
            .split_once(',')
            .expect("and the speed");
        losses.to_string()
    };
    let expected = losses(&["--mesh", "fsdp=2"]);
    assert_eq!(losses(&["--mesh", "pp=2,fsdp=2"]), expected);
    let there_and_back = ["--mesh", "pp=2,fsdp=2", "--schedule", "zb-v"];
    assert_eq!(losses(&there_and_back), expected);
}

#[test]
fn mixed_precision_runs_and_says_what_it_cannot_do() {
    works(&short(&[
        "--no-plot",
        "--mesh",
        "fsdp=2,tp=2",
        "--param-dtype",
        "bf16",
    ]));
    let low = ["--param-dtype", "bf16", "--reduce-dtype", "bf16"];
    works(&short(
        &[&["--no-plot", "--mesh", "fsdp=2"], &low[..]].concat(),
    ));
    let other = [
        "--no-plot",
        "--param-dtype",
        "bf16",
        "--reduce-dtype",
        "f16",
    ];
    fails(
        &short(&other),
        1,
        &["--reduce-dtype f16", "--param-dtype bf16"],
    );
    fails(
        &short(&["--param-dtype", "bf8"]),
        2,
        &["`bf8`", "bf16, f16 or f32"],
    );
}

#[test]
fn float8_runs_and_says_what_it_leaves() {
    for scaling in ["tensorwise", "rowwise", "blockwise128"] {
        let flags = ["--no-plot", "--mesh", "fsdp=2", "--float8", scaling];
        works(&short(&flags));
    }
    let explain =
        "explain --size tiny --mesh fsdp=2 --param-dtype bf16 --float8 tensorwise,skip=layers.0";
    let said = works(&explain.split_whitespace().collect::<Vec<_>>());
    for part in [
        "float8: 21 of 29 linear layer(s)",
        "float8 skips output.weight: output head",
        "skip `layers.0`",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let explain = "explain --size tiny --mesh fsdp=2 --float8 tensorwise";
    let said = works(&explain.split_whitespace().collect::<Vec<_>>());
    assert!(said.contains("float8: 28 of 29 linear layer(s)"), "{said}");
    fails(
        &short(&["--float8", "delayed"]),
        2,
        &["`delayed`", "tensorwise, rowwise or blockwise128"],
    );
}

#[test]
fn kv_heads_that_tp_does_not_divide_need_an_option() {
    let args = short(&["--no-plot", "--mesh", "tp=4"]);
    let parts = [
        "2 kv heads",
        "axis tp (size 4)",
        "use tp = 1 or 2",
        "--replicate-indivisible",
    ];
    fails(&args, 1, &parts);
    works(&[&args[..], &["--replicate-indivisible"]].concat());
}

#[test]
fn a_malformed_line_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data.jsonl");
    let lines = "{\"prompt\": \"a\", \"response\": \"b\"}\n{\"prompt\": \"a\"}\n";
    std::fs::write(&data, lines).unwrap();
    let place = format!("{}:2: missing field `response`", text(&data));
    fails(
        &["finetune", "--no-plot", "--data", text(&data)],
        1,
        &[&place],
    );
}

#[test]
fn a_missing_folder_is_named_with_one_cause() {
    let args = ["generate", "--model", "/nonexistent", "--prompt", "a"];
    let said = fails(&args, 1, &["cannot read /nonexistent/config.json"]);
    assert_eq!(said.matches("os error 2").count(), 1, "{said}");
    let args = short(&["--plot", "/nonexistent/loss.png"]);
    fails(
        &args,
        1,
        &["cannot write /nonexistent/loss.png: there is no folder /nonexistent"],
    );
    fails(
        &short(&["--plot", "loss.gif"]),
        1,
        &["loss.gif is neither an .svg nor a .png file"],
    );
}

#[test]
fn a_world_that_cannot_be_has_the_exit_code_of_a_configuration() {
    for args in [short(&["--no-plot"]), vec!["mesh", "--mesh", "fsdp=2"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_burn-dist-lm"))
            .args(&args)
            .envs([("RANK", "5"), ("WORLD_SIZE", "2")])
            .output()
            .expect("the program starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(78), "{args:?}: {said}");
        assert!(said.contains("RANK=5 is outside WORLD_SIZE=2"), "{said}");
    }
}

#[test]
fn every_mesh_leaves_the_same_report() {
    let dir = tempfile::tempdir().unwrap();
    let (json, plot) = (dir.path().join("run.json"), dir.path().join("loss.png"));
    let mut losses = Vec::new();
    for (mesh, ranks) in [("1", 1), ("fsdp=3", 3), ("tp=2", 2), ("fsdp=2,tp=2", 4)] {
        let mut args = short(&["--mesh", mesh, "--json", text(&json), "--plot", text(&plot)]);
        // A row for each rank of the largest axis.
        let rows = args.iter().position(|arg| *arg == "--batch").unwrap() + 1;
        args[rows] = "3";
        works(&args);
        let report: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        assert_eq!(report["world_size"], ranks, "{report}");
        assert_eq!(report["mesh"], mesh);
        assert_eq!(
            (&report["size"], &report["seed"]),
            (&"tiny".into(), &0.into())
        );
        assert_eq!(report["ranks"].as_array().unwrap().len(), ranks);
        for rank in report["ranks"].as_array().unwrap() {
            assert!(
                rank["peak_bytes"].as_u64() >= rank["at_rest_bytes"].as_u64(),
                "{rank}"
            );
            assert!(rank["at_rest_bytes"].as_u64() > Some(0), "{rank}");
            let peak = rank["peak_bytes"].as_u64().unwrap();
            let predicted = rank["predicted_peak_bytes"].as_u64().unwrap();
            assert!(peak.abs_diff(predicted) * 100 <= predicted, "{rank}");
            let classes = rank["peak_bytes_by_class"].as_object().unwrap();
            let total: u64 = classes.values().filter_map(|bytes| bytes.as_u64()).sum();
            assert_eq!(total, peak, "{rank}");
        }
        assert_eq!(
            report["collectives"].as_object().unwrap().is_empty(),
            ranks == 1
        );
        assert!(report["step_ms_median"].as_f64() > Some(0.0));
        assert!(report["tokens_per_second"].as_f64() > Some(0.0));
        assert!(report["plan"]["windows"].as_u64() > Some(0));
        // Rows of a batch are split; along tp, norms and sums are computed more than once.
        let redundancy = report["redundancy"].as_object().unwrap();
        for (axis, share) in redundancy {
            let share = share.as_f64().unwrap();
            let most = if axis == "fsdp" { 0.01 } else { 0.25 };
            assert!((0.0..most).contains(&share), "{mesh}: {share} along {axis}");
        }
        assert_eq!(redundancy.len(), mesh.matches('=').count());
        losses.push(report["losses"][0].as_f64().unwrap());
        assert!(std::fs::read(&plot).unwrap().starts_with(b"\x89PNG"));
    }
    for loss in &losses {
        assert!((loss - losses[0]).abs() < 1e-5, "{losses:?}");
    }
}

#[test]
fn a_link_shows_in_the_report_the_plan_and_the_trace() {
    let dir = tempfile::tempdir().unwrap();
    let (json, trace) = (dir.path().join("run.json"), dir.path().join("trace.json"));
    let read = |path: &Path| -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    };
    let mesh = ["--mesh", "fsdp=2", "--link", "latency_us=1,gbps=10"];
    let training = [
        &[
            "--steps",
            "3",
            "--no-plot",
            "--json",
            text(&json),
            "--trace",
            text(&trace),
        ],
        &mesh[..],
    ]
    .concat();
    let small = ["pretrain", "--batch", "2", "--seq", "8"];
    works(&[&small[..], &training[..]].concat());
    let report = read(&json);
    let series = |holder: &serde_json::Value, name: &str| -> Vec<f64> {
        let values = holder[name]
            .as_array()
            .unwrap_or_else(|| panic!("no {name} in {holder}"));
        values.iter().map(|value| value.as_f64().unwrap()).collect()
    };
    for holder in report["ranks"].as_array().unwrap().iter().chain([&report]) {
        for name in ["compute_ms", "comm_ms", "exposed_comm_ms"] {
            let series = series(holder, name);
            assert_eq!(series.len(), 3, "{name}");
            assert!(series.iter().all(|ms| *ms > 0.0), "{name}: {series:?}");
        }
    }
    let planned = [
        "explain",
        "--batch",
        "2",
        "--seq",
        "8",
        "--json",
        text(&json),
    ];
    let said = works(&[&planned[..], &mesh[..]].concat());
    assert!(said.contains("communication over fsdp: "), "{said}");
    let ns = read(&json)["plan"]["communication_ns"]["fsdp"]
        .as_f64()
        .unwrap();
    let comm = series(&report, "comm_ms");
    assert!((comm[2] - ns / 1e6).abs() < 1e-6, "{comm:?} ms, {ns} ns");
    let events = read(&trace)["traceEvents"].as_array().unwrap().len();
    assert!(events > 1000, "{events}");
    fails(
        &[&small[..], &["--link", "gbps=1"]].concat(),
        2,
        &["latency_us is missing"],
    );
    fails(
        &[
            &small[..],
            &["--mesh", "tp=2", "--link", "dp:latency_us=1,gbps=1"],
        ]
        .concat(),
        1,
        &["no axis `dp`"],
    );
}

#[test]
fn a_step_is_simulated_without_running() {
    let dir = tempfile::tempdir().unwrap();
    let step = "simulate --size 1b --mesh fsdp=8 --batch-per-rank 1 --seq 2048 --param-dtype bf16";
    let with = |more: &str| -> serde_json::Value {
        let args = format!("{step} --json {more}");
        let said = works(&args.split_whitespace().collect::<Vec<_>>());
        assert_eq!(said.lines().count(), 1, "{said}");
        serde_json::from_str(&said).unwrap()
    };
    let eager = with("");
    let seconds = |json: &serde_json::Value| json["step_s"].as_f64().unwrap();
    assert_eq!(eager["batch"], 8);
    let flops = 6.0 * 1.23e9 * 2048.0;
    assert!(seconds(&eager) > flops / 989.4e12, "{eager}");
    assert!(seconds(&with("--compile")) < seconds(&eager));
    assert!(seconds(&with("--hardware a100")) > seconds(&eager));

    let said = works(&step.split_whitespace().collect::<Vec<_>>());
    assert!(said.contains("tokens a second and rank"), "{said}");
    assert!(said.contains("computing"), "{said}");

    fails(
        &["simulate", "--hardware", "b9"],
        2,
        &["a100, h100, h100-hbm2e-500w, h200"],
    );
    let file = dir.path().join("mine.toml");
    std::fs::write(&file, "name = \"mine\"\ncores = 3\n").unwrap();
    let args = ["simulate", "--hardware-file", text(&file)];
    fails(&args, 1, &["mine.toml", "unknown field `cores`", "presets"]);
}

#[test]
fn a_saved_model_answers_alike_on_every_mesh() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data.jsonl");
    let lines: String = (0..20)
        .map(|i| {
            format!(
                "{{\"prompt\": \"What follows {i}?\", \"response\": \"{}\"}}\n",
                i + 1
            )
        })
        .collect();
    std::fs::write(&data, lines).unwrap();
    let model = dir.path().join("model");
    works(&[
        "finetune",
        "--data",
        text(&data),
        "--steps",
        "3",
        "--batch",
        "4",
        "--questions",
        "1",
        "--no-plot",
        "--save",
        text(&model),
    ]);
    let ask = |mesh: &str, more: &[&str]| {
        let model = text(&model);
        let asked = [
            "generate",
            "--model",
            model,
            "--prompt",
            "What follows 7?",
            "--max-new-tokens",
            "4",
            "--mesh",
            mesh,
        ];
        works(&[&asked, more].concat())
    };
    let alone = ask("1", &["--chat"]);
    chat::talks(text(&model), alone.trim());
    for mesh in ["fsdp=3", "tp=2", "fsdp=2,tp=2"] {
        assert_eq!(ask(mesh, &["--chat"]), alone, "{mesh}");
    }
    // In float8, in windows that have no backward.
    for scaling in ["tensorwise", "rowwise", "blockwise128"] {
        let said = |mesh: &str| ask(mesh, &["--chat", "--float8", scaling]);
        let expected = said("1");
        assert_eq!(said("fsdp=2"), expected, "{scaling}");
        // Sums in another order may end in another token.
        assert!(!said("tp=2").is_empty());
    }
    // What the model reads is the text itself, unless it is asked to be wrapped.
    assert_eq!(
        ask("1", &["--template={prompt}"]).trim(),
        ask("1", &[]).trim()
    );
    assert_ne!(ask("1", &[]).trim(), alone.trim());

    // It was not compared with anything, and says so; nothing is lost on the way through.
    let again = dir.path().join("again");
    let json = dir.path().join("run.json");
    let printed = works(&short(&[
        "--no-plot",
        "--lr",
        "1e-30",
        "--model",
        text(&model),
        "--save",
        text(&again),
        "--json",
        text(&json),
    ]));
    let note = format!("weights from {}, unverified", text(&model));
    assert!(printed.contains(&note), "{printed}");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(report["weights"]["verified"], false);
    assert_eq!(report["weights"]["from"], text(&model));
    let read = |dir: &Path, name| std::fs::read(dir.join(name)).unwrap();
    let name = "tokenizer.json";
    assert!(read(&again, name) == read(&model, name));
    let config =
        |dir| serde_json::from_slice::<serde_json::Value>(&read(dir, "config.json")).unwrap();
    assert_eq!(config(&again), config(&model));
    let said = fails(
        &[
            "generate",
            "--model",
            text(&model),
            "--prompt",
            "a",
            "--mesh",
            "tp=4",
        ],
        1,
        &["2 kv heads"],
    );
    assert!(said.contains("--replicate-indivisible"), "{said}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_reported_and_the_rest_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let plot = dir.path().join("loss.svg");
    let args = short(&["--json", "/dev/full", "--plot", text(&plot)]);
    fails(
        &args,
        74,
        &["cannot write the report /dev/full: No space left on device"],
    );
    assert!(plot.exists());

    let json = dir.path().join("run.json");
    let full = dir.path().join("full.png");
    std::os::unix::fs::symlink("/dev/full", &full).unwrap();
    let args = short(&["--json", text(&json), "--plot", text(&full)]);
    fails(
        &args,
        74,
        &["cannot write the plot", "full.png: No space left on device"],
    );
    assert!(json.exists());
}

#[test]
fn what_does_not_fit_into_memory_is_refused_before_the_run() {
    // One rank that would hold many TiB of activations.
    let large = ["--size", "8b", "--batch", "64"];
    // Rows that 1,000 ranks cannot share are on each of them.
    let rows = ["--batch", "999", "--repeat-rows"];
    let many = [&["--size", "M", "--mesh", "fsdp=1000"], &rows[..]].concat();
    for more in [&large[..], &many] {
        let args = [&["pretrain", "--no-plot"], more].concat();
        let parts = [
            "this run needs about",
            "on this machine, and",
            "of tensors",
            "(at ",
            "use fewer ranks on it",
            "--activation-checkpoint full",
            "--force runs it all the same",
        ];
        let said = fails(&args, 78, &parts);
        let ranks = if more == large {
            "1 rank there holds up to"
        } else {
            "1000 ranks there hold up to"
        };
        assert!(said.contains(ranks), "{said}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_limit_of_the_address_space_counts_and_can_be_overridden() {
    let run = |more: &[&str]| {
        // 40 ranks of 10 MiB each: it is their stacks and arenas that do not fit.
        let output = Command::new("sh")
            .args(["-c", "ulimit -v 1300000; exec \"$@\"", "sh"])
            .arg(env!("CARGO_BIN_EXE_burn-dist-lm"))
            .args(short(&["--no-plot", "--mesh", "fsdp=40", "--repeat-rows"]))
            .args(more)
            .output()
            .expect("a shell");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    let (code, said) = run(&[]);
    assert_eq!(code, Some(78), "{said}");
    assert!(
        said.contains("limit of its address space (ulimit -v)"),
        "{said}"
    );
    let (_, said) = run(&["--force"]);
    assert!(said.contains("forced: this run needs about"), "{said}");
}

#[cfg(unix)]
#[test]
fn a_disk_that_fills_up_leaves_nothing_half_written() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| text(&dir.path().join(name)).to_owned();
    let names = ["run.json", "trace.json", "loss.png", "memory.svg"];
    let [json, trace, plot, memory] = names.map(file);
    // Files may hold 1 KiB at most, and whoever writes more is told so instead of ended.
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 2; exec \"$@\"", "sh"])
        .arg(env!("CARGO_BIN_EXE_burn-dist-lm"))
        .args(short(&["--mesh", "fsdp=2", "--json", &json]))
        .args(["--trace", &trace, "--plot", &plot, "--memory", &memory])
        .output()
        .expect("a shell");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(74), "{said}");
    for (what, path) in [
        ("report", json),
        ("trace", trace),
        ("plot", plot),
        ("plot", memory),
    ] {
        let told = format!("error: cannot write the {what} {path}: File too large");
        assert!(said.contains(&told), "{told}: {said}");
    }
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn data_that_does_not_fit_is_told_before_anything_is_computed() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data.jsonl");
    let words: String = (0..400).map(|i| format!("w{i} ")).collect();
    let line = |i| {
        format!("{{\"prompt\": \"What is {i}? {words}\", \"response\": \"It is {i}: {words}\"}}\n")
    };
    std::fs::write(&data, (0..4).map(line).collect::<String>()).unwrap();
    let output = llama(&["finetune", "--no-plot", "--data", text(&data)]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("none of 3 documents fits into 48 positions")
            && said.contains("sequence length"),
        "{said}"
    );
    // Asking the model is what takes long: it answers token by token, up to the longest answer.
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(!printed.contains("before fine-tuning"), "{printed}");
}

#[test]
fn texts_of_several_files_are_mixed_and_what_is_wrong_with_them_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| text(&dir.path().join(name)).to_string();
    let (lines, plain, held_out) = (path("a.jsonl"), path("b.txt"), path("c.txt"));
    let line = |i: usize| format!("{{\"body\": \"line {i} of many others\"}}\n");
    std::fs::write(&lines, (0..200).map(line).collect::<String>()).unwrap();
    let paragraph = |i: usize| format!("Paragraph {i}\nof two lines.\n\n");
    std::fs::write(&plain, (0..50).map(paragraph).collect::<String>()).unwrap();
    std::fs::write(&held_out, (50..60).map(paragraph).collect::<String>()).unwrap();
    let (first, second) = (
        format!("{lines},text=body,weight=3"),
        format!("{plain},weight=1"),
    );
    let data = ["--data", first.as_str(), "--data", second.as_str()];
    let run = |mesh: &str, more: &[&str]| {
        let flags = ["--no-plot", "--mesh", mesh, "--document-mask"];
        works(&[&short(&flags)[..], &data, more].concat())
    };
    let said = run("fsdp=2", &["--validate", &held_out]);
    assert!(said.contains("held out: 10 documents in "), "{said}");
    assert!(said.contains(" documents read; "), "{said}");
    let loss = |said: &str| {
        let line = said.lines().find(|line| line.starts_with("loss ")).unwrap();
        line.split(',').next().unwrap().to_string()
    };
    assert_eq!(loss(&said), loss(&run("1", &[])));
    run("1", &["--packing", "stream", "--shuffle-buffer", "1KiB"]);

    let refused = |more: &[&str], code: i32, parts: &[&str]| {
        fails(&[&short(&["--no-plot"])[..], more].concat(), code, parts);
    };
    let zero = format!("{lines},text=body,weight=0");
    refused(
        &["--data", &zero],
        1,
        &["a.jsonl sum to 0", "weight above 0"],
    );
    refused(
        &["--data", &lines],
        1,
        &["a.jsonl:1: missing field `text` (it has `body`)"],
    );
    let nearest = ["no key `wieght`", "did you mean `weight`"];
    refused(&["--data", &format!("{lines},wieght=2")], 2, &nearest);
    let many = ["--data", &plain, "--validate", &held_out, "--batch", "500"];
    let many = [
        &["pretrain", "--no-plot", "--steps", "1", "--seq", "8"][..],
        &many,
    ]
    .concat();
    fails(
        &many,
        1,
        &[
            "c.txt make ",
            "fewer than the 500 of a batch",
            "smaller batch",
        ],
    );
    let refuse = ["--data", &plain, "--longer", "refuse"];
    refused(&refuse, 1, &["b.txt:", "do not fit into 8 positions"]);
    refused(
        &["--document-mask"],
        1,
        &["random tokens have none", "--data"],
    );
}

#[test]
fn memory_is_told_before_the_run_and_drawn_after_it() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["memory.png", "memory.svg"] {
        let path = dir.path().join(name);
        let said = works(&short(&[
            "--no-plot",
            "--mesh",
            "fsdp=2",
            "--offload",
            "optimizer",
            "--memory",
            text(&path),
        ]));
        assert!(said.contains("memory of a step, as planned"), "{said}");
        assert!(said.contains("at_rest") && said.contains("0..1"), "{said}");
        let drawn = std::fs::read(&path).unwrap();
        match name {
            "memory.png" => assert!(drawn.starts_with(b"\x89PNG")),
            _ => assert!(String::from_utf8(drawn).unwrap().contains("predicted")),
        }
    }
    let args = short(&["--no-plot", "--offload", "params,host=1"]);
    fails(&args, 78, &["of host memory", "1 B are allowed"]);
}

/// The lines of a run's figures, without the events.
fn rows(folder: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(folder.join("metrics.jsonl")).expect("figures");
    let lines = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    lines
        .filter(|line: &serde_json::Value| line.get("event").is_none())
        .collect()
}

/// What of the figures depends neither on time nor on memory: bit by bit the same in a run that goes on.
fn exact(rows: &[serde_json::Value]) -> Vec<serde_json::Value> {
    let names = [
        "step",
        "train/loss",
        "validation/loss",
        "train/gradient_norm",
        "train/learning_rate",
    ];
    let exact = rows
        .iter()
        .map(|row| names.map(|name| row.get(name).cloned()));
    exact.map(|row| serde_json::json!(row)).collect()
}

/// The smallest model, for as many steps.
fn steps<'a>(steps: &'a str, folder: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    let all = [
        "pretrain",
        "--batch",
        "2",
        "--seq",
        "8",
        "--steps",
        steps,
        "--run",
        text(folder),
    ];
    all.iter().chain(more).copied().collect()
}

#[test]
fn a_run_leaves_its_figures() {
    let dir = tempfile::tempdir().unwrap();
    for mesh in ["1", "fsdp=2,tp=2"] {
        let folder = dir.path().join(mesh);
        works(&steps(
            "5",
            &folder,
            &[
                "--mesh",
                mesh,
                "--every",
                "2",
                "--validate-every",
                "2",
                "--peak-tflops",
                "0.5",
            ],
        ));
        let rows = rows(&folder);
        let number = |row: &serde_json::Value, name: &str| -> f64 {
            row[name]
                .as_f64()
                .unwrap_or_else(|| panic!("{name}: {row}"))
        };
        assert_eq!(rows.len(), 5);
        for (index, row) in rows.iter().enumerate() {
            assert_eq!(row["step"], index + 1);
            // Every second step, and the last.
            assert_eq!(
                row.get("validation/loss").is_some(),
                index != 0 && index != 2,
                "{row}"
            );
            // For the figures alone it is computed every tenth step, and in the last.
            assert_eq!(
                row.get("train/gradient_norm").is_some(),
                index == 4,
                "{row}"
            );
            for name in ["train/loss", "train/learning_rate", "time/computing_ms"] {
                assert!(number(row, name) > 0.0, "{row}");
            }
            let seconds = number(row, "time/step_ms") / 1e3;
            let close = |name: &str, expected: f64| {
                let found = number(row, name);
                assert!(
                    (found - expected).abs() <= 1e-9 * expected,
                    "{name}: {found}, {expected}"
                );
            };
            close("time/tokens_per_second", 16.0 / seconds);
            let tflops = number(row, "time/model_tflops_per_second");
            close(
                "time/mfu_percent",
                100.0 * tflops / (0.5 * if mesh == "1" { 1.0 } else { 4.0 }),
            );
            let object = row.as_object().unwrap();
            let classes = object
                .iter()
                .filter(|(name, _)| name.starts_with("memory/") && !name.ends_with("peak_bytes"));
            let held = classes.map(|(_, bytes)| bytes.as_f64().unwrap());
            assert!(
                held.sum::<f64>() >= number(row, "memory/peak_bytes"),
                "{row}"
            );
            let axes = object.keys().filter(|name| name.starts_with("redundancy/"));
            let axes: Vec<&String> = axes.collect();
            match mesh {
                "1" => assert_eq!(axes, Vec::<&str>::new()),
                _ => assert_eq!(axes, ["redundancy/fsdp_percent", "redundancy/tp_percent"]),
            }
            assert_eq!(
                number(row, "time/communicating_ms") > 0.0,
                mesh != "1",
                "{row}"
            );
        }
        for name in [
            "report.json",
            "loss.png",
            "tensorboard",
            "checkpoints/step-0000000005",
        ] {
            assert!(folder.join(name).exists(), "{name}");
        }
        let report = std::fs::read(folder.join("report.json")).unwrap();
        let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
        let losses = report["losses"].as_array().unwrap();
        assert_eq!(
            losses[4].as_f64(),
            rows[4]["train/loss"].as_f64().map(|loss| {
                // The report has the shortest text of a 32-bit number.
                format!("{}", loss as f32).parse().unwrap()
            })
        );
        assert_eq!(report["validation_losses"].as_array().unwrap().len(), 3);
    }
}

#[cfg(unix)]
#[test]
fn a_run_that_is_killed_goes_on_in_the_same_files() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, parts) = (dir.path().join("whole"), dir.path().join("parts"));
    let more = ["--mesh", "fsdp=2", "--every", "4", "--validate-every", "3"];
    works(&steps("60", &whole, &more));
    let expected = exact(&rows(&whole));
    assert_eq!(expected.len(), 60);

    let mut killed = Vec::new();
    // Killed twice, in steps after which there is no checkpoint.
    for at in [7, 22] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_burn-dist-lm"))
            .args(steps("60", &parts, &more))
            .args(["--resume", "auto"])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let lines = parts.join("metrics.jsonl");
        let last = || {
            let text = std::fs::read_to_string(&lines).unwrap_or_default();
            let last = text
                .lines()
                .rev()
                .find(|line| line.starts_with("{\"step\":"));
            let number = last.and_then(|line| line["{\"step\":".len()..].split(',').next());
            number.map_or(0, |number| number.parse::<u64>().unwrap())
        };
        while last() < at {
            assert!(
                child.try_wait().unwrap().is_none(),
                "it ended at step {}",
                last()
            );
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // What was written before is there, whole lines, and no step twice.
        let found = exact(&rows(&parts));
        assert!(
            found.len() as u64 >= at && found.len() < 60,
            "{}",
            found.len()
        );
        assert_eq!(found, expected[..found.len()]);
        killed.push(found.len());
    }
    works(&steps(
        "60",
        &parts,
        &[&more[..], &["--resume", "auto"]].concat(),
    ));
    assert_eq!(exact(&rows(&parts)), expected);
    // One file of events for each start; the begin of each is told.
    assert_eq!(
        std::fs::read_dir(parts.join("tensorboard"))
            .unwrap()
            .count(),
        3
    );
    let said = std::fs::read_to_string(parts.join("metrics.jsonl")).unwrap();
    assert_eq!(said.matches("\"event\":\"begin\"").count(), 3, "{said}");
    // Nothing is left to do, and nothing is added but that.
    works(&steps(
        "60",
        &parts,
        &[&more[..], &["--resume", "auto"]].concat(),
    ));
    assert_eq!(exact(&rows(&parts)), expected);
}

#[test]
fn a_folder_has_one_run() {
    use std::io::{BufRead, BufReader};

    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("run");
    let mut child = Command::new(env!("CARGO_BIN_EXE_burn-dist-lm"))
        .args(steps("1000000", &folder, &[]))
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut said = String::new();
    while !said.contains("figures: ") {
        assert!(stdout.read_line(&mut said).unwrap() > 0, "{said}");
    }
    let holder = format!("belongs to process {}", child.id());
    for more in [&[][..], &["--resume", "auto"]] {
        fails(
            &steps("1", &folder, more),
            78,
            &[&holder, "choose another folder"],
        );
    }
    // A run has begun when it has figures of a step.
    let figures = || std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap_or_default();
    while !figures().contains("\"step\":1,") {
        assert!(child.try_wait().unwrap().is_none(), "{}", figures());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // Its figures are there: another run does not write among them.
    fails(
        &steps("1", &folder, &[]),
        78,
        &["is of an earlier run", "--resume auto"],
    );
    works(&steps("1", &folder, &["--resume", "auto"]));
    fails(
        &["pretrain", "--every", "2"],
        2,
        &["--every", "--checkpoint", "--run"],
    );
}

#[cfg(unix)]
#[test]
fn a_disk_that_fills_up_does_not_end_a_run() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("run");
    // Files may hold 16 KiB: figures of some steps, and no checkpoint at all.
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 32; exec \"$@\"", "sh"])
        .arg(env!("CARGO_BIN_EXE_burn-dist-lm"))
        .args(steps("60", &folder, &["--every", "20", "--no-plot"]))
        .output()
        .expect("a shell");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(74), "{said}");
    for part in [
        "cannot write figures to",
        "the run goes on without: File too large",
        "warning: cannot save the checkpoint of step 20 in",
        "earlier ones are whole",
        "error: cannot save the checkpoint of step 60 in",
        "metrics.jsonl lacks",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // All steps were done, and the lines that fitted are whole.
    let report = std::fs::read(folder.join("report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
    assert_eq!(report["losses"].as_array().unwrap().len(), 60);
    let kept = rows(&folder);
    assert!(!kept.is_empty() && kept.len() < 60, "{}", kept.len());
    // With room again, the run goes on from its last checkpoint: here, from the start.
    works(&steps(
        "60",
        &folder,
        &["--every", "20", "--resume", "auto"],
    ));
    let rows = rows(&folder);
    assert_eq!(rows.len(), 60);
    assert_eq!(exact(&rows)[..kept.len()], exact(&kept));
}

/// The losses of a report, as they are written.
fn losses(report: &Path) -> Vec<String> {
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    let losses = report["losses"].as_array().unwrap();
    losses.iter().map(ToString::to_string).collect()
}

#[test]
fn the_configuration_of_a_run_repeats_it_bit_by_bit() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    let (config, first, second) = (file("run.toml"), file("first"), file("second"));
    let settings = "[mesh]\naxes = 'fsdp=2'\n[data]\nseq = 8\nbatch = 4\naccumulate = 2\n[optimizer]\nclip = 0.5\n\
        beta1 = 0.8\n[schedule]\nsteps = 4\ndecay = 'linear'\n[policy]\nparam-dtype = 'bf16'\n";
    std::fs::write(&config, settings).unwrap();
    // The command line goes over the file, and what both leave open is in the run's own.
    let options = ["--seed", "3", "--lr-floor", "0.2", "--run", text(&first)];
    works(&[&["pretrain", "--config", text(&config)], &options[..]].concat());
    let kept = first.join("config.toml");
    works(&["pretrain", "--config", text(&kept), "--run", text(&second)]);
    let expected = losses(&first.join("report.json"));
    assert_eq!(expected.len(), 4);
    assert_eq!(losses(&second.join("report.json")), expected);
    let options = |file: &Path| -> Vec<String> {
        let text = std::fs::read_to_string(file).unwrap();
        let lines = text
            .lines()
            .filter(|line| !line.starts_with('#') && !line.starts_with("folder"));
        lines.map(str::to_string).collect()
    };
    let told = options(&kept);
    for expected in [
        "seed = 3",
        "floor = 0.2",
        "lr = 0.002",
        "steps = 4",
        "batch = 4",
        "beta1 = 0.8",
    ] {
        assert!(
            told.iter().any(|line| line == expected),
            "{expected}: {told:?}"
        );
    }
    assert_eq!(options(&second.join("config.toml")), told);
    // A repeated run ends as the first in every setting that matters, and in none other.
    let other = file("other");
    works(&[
        "pretrain",
        "--config",
        text(&kept),
        "--run",
        text(&other),
        "--beta1",
        "0.9",
    ]);
    assert_ne!(losses(&other.join("report.json")), expected);
}

#[test]
fn a_run_that_goes_on_keeps_what_each_part_was_told() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("checkpoints");
    let begin = short(&["--no-plot", "--checkpoint", text(&root)]);
    works(&begin);
    let on = short(&["--no-plot", "--checkpoint", text(&root), "--resume", "auto"]);
    works(&[&on[..], &["--mesh", "fsdp=2"]].concat());
    let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
    assert!(read("config.toml").contains("\nresume = \"never\"\n"));
    let second = read("config-1.toml");
    assert!(second.contains("\naxes = \"fsdp=2\"\n") && second.contains("\nresume = \"auto\"\n"));
}

#[test]
fn a_file_is_checked_before_anything_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("run.toml");
    std::fs::write(
        &config,
        "[optimizer]\nlr = 'fast'\n[policy]\nfloat-8 = 'rowwise'\n",
    )
    .unwrap();
    for command in [
        "pretrain", "finetune", "generate", "explain", "simulate", "mesh", "config",
    ] {
        let parts = [
            "run.toml:2:6: `optimizer.lr` takes a number, and this is a string",
            "run.toml:4:1: there is no key `float-8` in [policy]; did you mean `float8`?",
        ];
        fails(&[command, "--config", text(&config)], 2, &parts);
    }
    let said = works(&["config", "--mesh", "fsdp=2,tp=2", "--clip", "1"]);
    assert!(
        said.contains("\naxes = \"fsdp=2,tp=2\"\n") && said.contains("\nclip = 1\n"),
        "{said}"
    );
}
