use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use burn::module::Module;
use burn_dist::explanation::Ask;
use burn_dist::train::chat::Day;
use burn_dist::train::rng::Rng;
use burn_dist::train::tokenizer::{Text, Wrap};
use burn_dist::trainer::capacity::{Needs, check_on, check_parameters};
use burn_dist::trainer::exit::End;
use burn_dist::trainer::folder::InFolders;
use burn_dist::trainer::lora::{LoraArgs, weights};
use burn_dist::trainer::mesh::{Explanation, Mesh};
use burn_dist::trainer::session::{unverified, warn_of_non_finite};
use burn_dist::trainer::voice::{note, say, speaks};

use super::chat;
use crate::cli::GenerateArgs;
use crate::generate::{Decoding, answer, extent, next_tokens};
use crate::model::{Llama, LlamaConfig};

/// Settings that need less memory than an answer that does not fit.
const REMEDIES: &str = "fewer ranks on it (a smaller --mesh, or more machines), a smaller --max-new-tokens, fewer \
                        --prompt, or a smaller model";

pub(super) fn run(args: &GenerateArgs) -> anyhow::Result<End> {
    let mut config = Llama::read_config(&args.model)?;
    config.adapters = LoraArgs::of_folder(args.adapters.as_deref()).asked::<Llama>(&config)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let day = Day::at(now.map_or(0, |since| since.as_secs()));
    let text = Text::of_model(&args.model, config.vocab)?.on(day);
    let wrap = match &args.template {
        Some(template) => Wrap::Template(template),
        None if args.chat => Wrap::Chat,
        None => Wrap::Nothing,
    };
    let decoding = Decoding {
        temperature: args.temperature,
        max_new_tokens: args.max_new_tokens,
        seed: args.seed,
    };
    let prompts: Vec<&str> = args.prompt.iter().map(String::as_str).collect();
    let mut lens = Vec::with_capacity(prompts.len());
    for prompt in &prompts {
        lens.push(text.encode_prompt(prompt, wrap)?.len());
    }

    let talks = prompts.is_empty();
    if talks && !args.chat {
        bail!("there is nothing to go on with: give a --prompt, or --chat to talk");
    }
    if talks {
        // A conversation grows; it is planned as far as its first answer.
        lens.push(text.encode_prompt("", wrap)?.len() + args.max_new_tokens);
    }

    let devices = args.devices.clone().into();
    let mesh = Mesh::open::<Llama>(&devices)?;
    if talks {
        chat::check(&mesh)?;
    }
    if !args.force {
        check_parameters(config.num_params(), &mesh, REMEDIES)?;
    }
    if mesh.in_host_memory() {
        let dry = Mesh::dry::<Llama>(&devices)?;
        let plan = token(&dry, &config, extent(&lens, &decoding))?;
        check_on(&Needs::new(&[&plan.memory], REMEDIES), &mesh, args.force)?;
    }
    if speaks() {
        // Not among the answers.
        note!("{}", unverified(&args.model));
        note!("{}", text.description());
    }
    let model = mesh.parallelize(config.init(mesh.device()))?;
    let folder = weights(&args.model, &config, args.adapters.as_deref());
    let (model, found) = (folder.load)(model, &folder.path, mesh.device())?;
    warn_of_non_finite(found, &args.model, &mesh)?;
    let (model, device) = (model.valid(), mesh.inference_device());
    if talks {
        chat::talk(&model, &text, &decoding, &device)?;
        return Ok(End::Done);
    }
    for said in answer(&model, &text, (&prompts, wrap), &decoding, &device)? {
        say!("{said}");
    }
    Ok(End::Done)
}

/// Plans the making of one token for each of `rows` rows of `seq` positions, on a dry mesh.
fn token(
    mesh: &Mesh,
    config: &LlamaConfig,
    (rows, seq): (usize, usize),
) -> anyhow::Result<Explanation> {
    let model = mesh.parallelize(config.init(mesh.device()))?;
    let (model, device) = (model.valid(), &mesh.inference_device());
    let rows = vec![vec![0]; rows];
    let (result, plan) = mesh.explain(Ask::default(), || {
        next_tokens(&model, &rows, seq, 0, 0.0, &mut Rng::new(0, 0), device)
    })?;
    result.context("the model cannot be planned")?;
    Ok(plan)
}
