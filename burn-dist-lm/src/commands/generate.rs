use super::End;
use super::predict;
use super::session::{Shape, check_memory, check_parameters, non_finite, read_text, unverified};
use burn::module::Module;

use crate::capacity::Needs;
use crate::cli::{GenerateArgs, ModelArgs};
use crate::data::tokenizer::Wrap;
use crate::generate::{Decoding, answer, extent};
use crate::hf;
use crate::mesh::Mesh;
use crate::model::Size;
use crate::note;
use crate::say;
use crate::voice::speaks;

/// Settings that need less memory than an answer that does not fit.
const REMEDIES: &str = "fewer ranks on it (a smaller --mesh, or more machines), a smaller --max-new-tokens, fewer \
    --prompt, \
                        or a smaller model";

pub(super) fn run(args: &GenerateArgs) -> anyhow::Result<End> {
    let shape = Shape::new(&ModelArgs {
        devices: args.devices.clone().into(),
        size: Size::Tiny,
        model: Some(args.model.clone()),
        seed: args.seed,
        batch: None,
        seq: None,
        accumulate: 1,
        repeat_rows: true,
    })?;
    let text = read_text(&args.model, &shape)?;
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

    let devices = args.devices.clone().into();
    let mesh = Mesh::open(&devices)?;
    if !args.force {
        check_parameters(&shape.config, &mesh, REMEDIES)?;
    }
    if mesh.in_host_memory() {
        let plan = predict::token(&Mesh::dry(&devices)?, &shape, extent(&lens, &decoding))?;
        check_memory(&Needs::new(&[&plan.memory], REMEDIES), &mesh, args.force)?;
    }
    if speaks() {
        // Not among the answers.
        note!("{}", unverified(&args.model));
        note!("{}", text.description());
    }
    let model = mesh.parallelize(shape.config.init(mesh.device()))?;
    let (model, found) = hf::load_reported(model, &shape.config, &args.model, mesh.device())?;
    if let Some(found) = non_finite(found, &mesh)?
        && speaks()
    {
        note!(
            "warning: the weights of {} have {found}",
            args.model.display()
        );
    }
    let model = model.valid();
    for said in answer(
        &model,
        &text,
        (&prompts, wrap),
        &decoding,
        &mesh.inference_device(),
    )? {
        say!("{said}");
    }
    Ok(End::Done)
}
