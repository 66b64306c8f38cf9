//! The sections of a configuration file that have the trainer's options.

use crate::train::config::{Key, Section};

/// The folder of the run, and what is of no other section.
pub const RUN: Section = Section::new(
    "run",
    "The run",
    &[
        Key::named("folder", "run"),
        Key::of("seed"),
        Key::of("force"),
    ],
);

/// The devices.
pub const MESH: Section = Section::new(
    "mesh",
    "The devices",
    &[
        Key::named("axes", "mesh"),
        Key::of("ranks-per-node"),
        Key::of("backend"),
        Key::of("gpu-transport"),
        Key::of("link"),
        Key::of("replicate-indivisible"),
    ],
);

/// The policy.
pub const POLICY: Section = Section::new(
    "policy",
    "How a step is laid out over the devices",
    &[
        Key::of("strategy"),
        Key::of("reshard"),
        Key::of("prefetch"),
        Key::of("accumulate-reduce"),
        Key::of("param-dtype"),
        Key::of("reduce-dtype"),
        Key::of("float8"),
        Key::of("activation-checkpoint"),
        Key::of("offload"),
        Key::of("context"),
        Key::of("async-tp"),
        Key::of("regions"),
    ],
);

/// Stages.
pub const PIPELINE: Section = Section::new(
    "pipeline",
    "Stages along pp",
    &[
        Key::of("schedule"),
        Key::of("stages-per-rank"),
        Key::of("stages-by"),
    ],
);

/// The optimizer.
pub const OPTIMIZER: Section = Section::new(
    "optimizer",
    "The optimizer",
    &[
        Key::of("lr"),
        Key::of("beta1"),
        Key::of("beta2"),
        Key::of("eps"),
        Key::of("weight-decay"),
        Key::of("clip"),
    ],
);

/// Steps.
pub const SCHEDULE: Section = Section::new(
    "schedule",
    "Steps and learning rates",
    &[
        Key::of("steps"),
        Key::of("epochs"),
        Key::named("warmup", "lr-warmup"),
        Key::named("decay", "lr-decay"),
        Key::named("floor", "lr-floor"),
        Key::named("last", "lr-last"),
    ],
);

/// Checkpoints.
pub const CHECKPOINT: Section = Section::new(
    "checkpoint",
    "Checkpoints",
    &[
        Key::named("folder", "checkpoint"),
        Key::of("every"),
        Key::of("keep"),
        Key::of("resume"),
    ],
);

/// Figures.
pub const METRICS: Section = Section::new(
    "metrics",
    "Figures while it runs",
    &[
        Key::named("every", "metrics-every"),
        Key::of("log-every"),
        Key::of("hardware"),
        Key::of("peak-tflops"),
    ],
);

/// Other files.
pub const OUTPUT: Section = Section::new(
    "output",
    "What else is written",
    &[
        Key::named("report", "json"),
        Key::of("plot"),
        Key::of("no-plot"),
        Key::of("memory"),
        Key::of("trace"),
        Key::of("chart"),
    ],
);

/// The options of `explain`.
pub const EXPLAIN: Section = Section::new(
    "explain",
    "What is shown",
    &[
        Key::of("hardware"),
        Key::of("hardware-file"),
        Key::of("json"),
        Key::of("after"),
        Key::of("why"),
    ],
)
.of_command("explain");

/// The options of `simulate`.
pub const SIMULATE: Section = Section::new(
    "simulate",
    "The modelled hardware, and what is shown",
    &[
        Key::of("batch-per-rank"),
        Key::of("hardware"),
        Key::of("hardware-file"),
        Key::of("compile"),
        Key::of("plan-microbatches"),
        Key::of("chart"),
        Key::of("json"),
    ],
)
.of_command("simulate");

/// The options of `plan`.
pub const SEARCH: Section = Section::new(
    "plan",
    "What a mesh is searched for, and shown",
    &[
        Key::of("devices"),
        Key::of("nodes"),
        Key::of("batch-tokens"),
        Key::of("hardware"),
        Key::of("hardware-file"),
        Key::of("compile"),
        Key::of("simulations"),
        Key::of("exhaustive"),
        Key::of("tokens"),
        Key::of("write"),
    ],
)
.of_command("plan");

/// The options of `evaluate`.
pub const EVALUATE: Section = Section::new(
    "evaluate",
    "What is evaluated, and shown",
    &[Key::of("step"), Key::of("json")],
)
.of_command("evaluate");

/// Rows of a step.
pub const ROWS: Section = Section::new(
    "data",
    "What is learnt from",
    &[
        Key::of("batch"),
        Key::of("seq"),
        Key::of("accumulate"),
        Key::of("repeat-rows"),
    ],
);

/// Validation.
pub const VALIDATION: Section = Section::new(
    "validation",
    "Validation",
    &[
        Key::named("every", "validate-every"),
        Key::named("batches", "validate-batches"),
    ],
);

/// Texts, and how they become rows.
pub const TEXTS: Section = Section::new(
    "data",
    "What is learnt from",
    &[
        Key::named("files", "data"),
        Key::of("batch"),
        Key::of("seq"),
        Key::of("accumulate"),
        Key::of("repeat-rows"),
        Key::of("packing"),
        Key::of("longer"),
        Key::of("document-mask"),
        Key::of("shuffle-buffer"),
    ],
);

/// Validation on texts.
pub const TEXT_VALIDATION: Section = Section::new(
    "validation",
    "Validation",
    &[
        Key::named("files", "validate"),
        Key::named("every", "validate-every"),
        Key::named("batches", "validate-batches"),
    ],
);

/// Low-rank adapters.
pub const LORA: Section = Section::new(
    "lora",
    "Low-rank adapters, trained in place of the weights",
    &[
        Key::named("rank", "lora-rank"),
        Key::named("alpha", "lora-alpha"),
        Key::named("dropout", "lora-dropout"),
        Key::named("targets", "lora-targets"),
        Key::of("base-dtype"),
    ],
);

/// The options of `convert`.
pub const CONVERT: Section = Section::new(
    "convert",
    "What is converted",
    &[Key::of("like"), Key::of("step"), Key::of("dtype")],
)
.of_command("convert");

/// The sections of a program that has options of its own about its model alone.
pub const fn with(model: Section) -> [Section; 15] {
    [
        RUN, model, MESH, POLICY, PIPELINE, ROWS, OPTIMIZER, SCHEDULE, CHECKPOINT, METRICS,
        VALIDATION, OUTPUT, EVALUATE, EXPLAIN, SIMULATE,
    ]
}

/// Names of sections about where and what is written, and how often; options in all others change the values of a run.
pub(super) const OF_OUTPUT: [&str; 5] = ["run", "checkpoint", "metrics", "validation", "output"];
