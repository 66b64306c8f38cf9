//! The four commands.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use burn::module::AutodiffModule;
use burn::tensor::backend::{AutodiffBackend, Backend};

use crate::cli::{Cli, Command, FinetuneArgs, TrainArgs};
use crate::data::batch::{BatchSource, Packed, RandomTokens};
use crate::data::generate::{self as generated, KINDS};
use crate::data::rng::Rng;
use crate::data::tokenizer::{Encoded, Text};
use crate::data::{Example, jsonl};
use crate::generate::{Answered, ask, exact_match};
use crate::mesh::{Mesh, TrainBackend};
use crate::model::{Llama, LlamaConfig, Size};
use crate::plot::{self, Curve};
use crate::progress::Progress;
use crate::report::{Report, count_text, write_json};
use crate::train::{self, Schedule, Trace};

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It did all of its work.
    Done,
    /// Ctrl-C ended it; what it had is written.
    Interrupted,
}

pub fn run(cli: &Cli) -> anyhow::Result<End> {
    match &cli.command {
        Command::Finetune(args) => finetune(args),
        _ => bail!("later"),
    }
}

fn finetune(args: &FinetuneArgs) -> anyhow::Result<End> {
    let stop = AtomicBool::new(false);
    let mesh = Mesh::open(None)?;
    let device = mesh.device();
    let size = args.train.model.size;
    let (seq, batch) = size.default_seq_and_batch();
    let (seq, batch) = (args.train.model.seq.unwrap_or(seq), args.train.model.batch.unwrap_or(batch));
    let config = size.config();
    TrainBackend::seed(device, 0);
    let data = generated::generate(args.train.model.seed, 40_000, args.questions);
    let start = std::time::Instant::now();
    let text = Text::train(data.statements.iter().map(String::as_str).chain(data.train.iter().map(|e| e.prompt.as_str())), config.vocab)?;
    println!("tokenizer {} {:?}", text.vocab(), start.elapsed());
    let docs: Vec<Encoded> = data.train.iter().map(|e| text.encode_example(e)).collect::<Result<_, _>>()?;
    let st: Vec<Encoded> = data.statements.iter().map(|e| text.encode_text(e)).collect::<Result<_, _>>()?;
    println!("mean len {}", docs.iter().map(|d| d.ids.len()).sum::<usize>() as f64 / docs.len() as f64);
    println!("max len {}", docs.iter().map(|d| d.ids.len()).max().unwrap());
    let model = config.init::<TrainBackend>(device);
    let (mut src, _) = Packed::new(st, (batch, seq), text.end(), Rng::new(0, 2))?;
    let lr = args.train.lr.unwrap_or(2e-3);
    let bs = args.base_steps.unwrap_or(300);
    let (model, _) = train::run(model, &mut src, Schedule::new(lr, bs), device, &mesh, &Progress::new("pretrain", bs), &stop)?;
    let answers = ask(&model.valid(), &text, &data.held_out, device)?;
    println!("before {:?}", exact_match(&answers));
    let (mut src, left) = Packed::new(docs, (batch, seq), text.end(), Rng::new(0, 2))?;
    println!("left {left}");
    let steps = args.train.steps.unwrap_or(900);
    let (model, t) = train::run(model, &mut src, Schedule::new(lr, steps), device, &mesh, &Progress::new("finetune", steps), &stop)?;
    let answers = ask(&model.valid(), &text, &data.held_out, device)?;
    println!("after {:?} {:?} {:?}", exact_match(&answers), t.step_ms_median(), start.elapsed());
    for kind in KINDS {
        let of: Vec<_> = answers.iter().filter(|a| a.example.kind == Some(kind)).collect();
        println!("{kind} {}/{}", of.iter().filter(|a| a.right()).count(), of.len());
        for a in of.iter().filter(|a| !a.right()) {
            println!("   {} | {} | {}", a.example.prompt, a.example.response, a.said);
        }
    }
    Ok(End::Done)
}
