use burn_dist::clock::Hardware;
use burn_dist::plan::explain::Ask;
use serde::Serialize;

use super::End;
use super::predict;
use super::session::Shape;
use crate::cli::ExplainArgs;
use crate::mesh::Mesh;
use crate::model::LlamaConfig;
use crate::report::{bytes_text, count_text, write_json};
use crate::say;
use crate::voice::speaks;

/// What `--json` writes.
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
    plan: Option<serde_json::Value>,
}

pub(super) fn run(args: &ExplainArgs) -> anyhow::Result<End> {
    let shape = Shape::new(&args.model)?;
    let (devices, seed) = (&args.model.devices, args.model.seed);
    let devices = predict::costed(devices, &shape, seed, &Hardware::preset("h100")?)?;
    let mesh = Mesh::dry(&devices)?;
    let config = &shape.config;
    let num_params = config.num_params();
    let bytes = 4 * num_params as u64;
    let explained = |plan| Explained {
        size: shape.name.clone(),
        num_params,
        mesh: mesh.name(),
        world_size: mesh.world_size(),
        batch: shape.batch,
        seq: shape.seq,
        step_flops: step_flops(config, shape.batch, shape.seq),
        parameter_bytes: bytes,
        gradient_bytes: bytes,
        // AdamW keeps two moments.
        optimizer_bytes: 2 * bytes,
        plan,
    };

    let ask = Ask {
        after: args.after,
        ..Ask::default()
    };
    let plan = predict::step(
        &mesh,
        &shape,
        args.model.seed,
        predict::Rows::default(),
        &ask,
    )?
    .steady;
    let memory = predict::table(&plan.memory);
    let explained = explained(Some(plan.json));

    table(&shape.name, config);
    say!(
        "\na step of {} x {} tokens: {:.3e} floating-point operations",
        shape.batch,
        shape.seq,
        explained.step_flops
    );
    say!(
        "in f32, over all ranks: parameters {}, gradients {}, AdamW {}",
        bytes_text(explained.parameter_bytes),
        bytes_text(explained.gradient_bytes),
        bytes_text(explained.optimizer_bytes)
    );
    say!("\n{}", plan.text);
    say!("{memory}");
    if let Some(pass) = args.after {
        say!("\na step after the pass {pass}\n\n{}", plan.after);
    }
    // All processes know the same plan.
    if let Some(path) = args.json.as_ref().filter(|_| speaks()) {
        write_json(path, &explained)?;
        say!("report: {}", path.display());
    }
    Ok(End::Done)
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

/// Floating-point operations of the matrix products of a training step: each once forward and twice backward.
pub(super) fn step_flops(config: &LlamaConfig, batch: usize, seq: usize) -> f64 {
    let tokens = (batch * seq) as f64;
    let embedding = (config.vocab * config.dim) as f64;
    // A tied embedding is multiplied with once, as the output.
    let read = if config.tied { 0.0 } else { embedding };
    let matrices = config.num_params() as f64 - read;
    // Scores and their product with the values; the masked half is computed too.
    let attention = (config.num_layers * 2 * seq * config.dim) as f64;
    3.0 * 2.0 * tokens * (matrices + attention)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Size;

    #[test]
    fn a_token_costs_six_operations_per_parameter_and_more_for_attention() {
        let config = Size::B8.config();
        let short = step_flops(&config, 1, 1);
        assert!((short / (6.0 * 7.5e9) - 1.0).abs() < 0.01, "{short:e}");
        assert!(step_flops(&config, 1, 8192) > 8192.0 * short * 1.2);
    }
}
