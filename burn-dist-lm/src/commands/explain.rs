use burn_dist::clock::Hardware;
use burn_dist::explanation::Ask;
use burn_dist::trainer::error::Unfit;
use burn_dist::trainer::exit::End;
use burn_dist::trainer::mesh::Mesh;
use burn_dist::trainer::predict::memory_table;
use burn_dist::trainer::report::{bytes_text, count_text, write_json};
use burn_dist::trainer::voice::{say, speaks};
use serde::Serialize;

use super::predict;
use super::shape::Shape;
use crate::cli::ExplainArgs;
use crate::model::{Llama, LlamaConfig};

/// The plan as `--json` writes it.
#[derive(Debug, Serialize)]
struct Explained {
    size: String,
    num_params: usize,
    mesh: String,
    world_size: usize,
    batch: usize,
    seq: usize,
    step_flops: f64,
    parameter_bytes: u64,
    gradient_bytes: u64,
    optimizer_bytes: u64,
    plan: serde_json::Value,
}

pub(super) fn run(args: &ExplainArgs) -> anyhow::Result<End> {
    let shape = Shape::new(&args.model)?;
    let hardware = args.hardware.read()?;
    let (devices, seed) = (&args.model.devices, args.model.seed);
    let costs_on = hardware
        .clone()
        .map_or_else(|| Hardware::preset("h100"), Ok)?;
    let mut devices = predict::costed(devices, &shape, seed, &costs_on)?;
    devices.hardware.clone_from(&hardware);
    let mesh = Mesh::dry::<Llama>(&devices)?;
    shape.check_rows(&mesh, args.model.repeat_rows)?;
    let config = &shape.config;
    let ask = Ask {
        after: args.after,
        why: args.why,
        ..Ask::default()
    };
    let rows = predict::Rows::default();
    let plan = predict::step(&mesh, &shape, seed, rows, &ask)?.steady;
    let unfit = hardware.and_then(|hardware| Unfit::of(&plan.memory, &hardware));
    let num_params = config.num_params();
    let bytes = 4 * num_params as u64;
    let explained = Explained {
        size: shape.name.clone(),
        num_params,
        mesh: mesh.name(),
        world_size: mesh.world_size(),
        batch: shape.batch,
        seq: shape.seq,
        step_flops: plan.model_flops,
        parameter_bytes: bytes,
        gradient_bytes: bytes,
        // AdamW keeps two moments.
        optimizer_bytes: 2 * bytes,
        plan: plan.json,
    };
    if let Some(unfit) = &unfit {
        say!("{unfit}\n");
    }
    table(&shape.name, config);
    say!("\na step of {} x {} tokens", shape.batch, shape.seq);
    say!(
        "in f32, over all ranks: parameters {}, gradients {}, AdamW {}",
        bytes_text(explained.parameter_bytes),
        bytes_text(explained.gradient_bytes),
        bytes_text(explained.optimizer_bytes)
    );
    say!("\n{}", plan.text);
    say!("{}", memory_table(&plan.memory));
    if let Some(pass) = args.after {
        say!("\na step after the pass {pass}\n\n{}", plan.after);
    }
    if let Some(value) = args.why {
        match plan.why.is_empty() {
            true => say!("\na step has no value {value}"),
            false => say!("\nwhy {value} is made so\n\n{}", plan.why),
        }
    }
    // All processes know the same plan.
    if let Some(path) = args.json.as_ref().filter(|_| speaks()) {
        write_json(path, &explained)?;
        say!("report: {}", path.display());
    }
    Ok(match unfit {
        Some(_) => End::Unfit,
        None => End::Done,
    })
}

/// Prints the matrices of the model with their shapes and counts.
fn table(name: &str, config: &LlamaConfig) {
    let LlamaConfig {
        dim,
        hidden_dim,
        vocab,
        num_layers,
        ..
    } = config;
    let kv_dim = config.num_kv_heads * config.head_dim();
    say!(
        "{name}: {} parameters",
        count_text(config.num_params() as u64)
    );
    let row = |times: usize, what: &str, shape: &[usize]| {
        let count = times * shape.iter().product::<usize>();
        let shape = shape
            .iter()
            .map(usize::to_string)
            .collect::<Vec<_>>()
            .join(" x ");
        let times = if times == 1 {
            String::new()
        } else {
            format!("{times} x")
        };
        say!(
            "  {times:>6} {what:<18} {shape:>16} {:>18}",
            count_text(count as u64)
        );
    };
    row(1, "tok_embeddings", &[*vocab, *dim]);
    row(2 * num_layers + 1, "norms", &[*dim]);
    row(2 * num_layers, "attention wq, wo", &[*dim, *dim]);
    row(2 * num_layers, "attention wk, wv", &[*dim, kv_dim]);
    row(2 * num_layers, "ffn w1, w3", &[*dim, *hidden_dim]);
    row(*num_layers, "ffn w2", &[*hidden_dim, *dim]);
    if !config.tied {
        row(1, "output", &[*dim, *vocab]);
    }
}
