use burn::module::Module;
use burn_dist::trainer::capacity::{Needs, check_on, check_parameters};
use burn_dist::trainer::checkpoints::non_finite;
use burn_dist::trainer::exit::End;
use burn_dist::trainer::mesh::Mesh;
use burn_dist::trainer::voice::{note, say, speaks};

use super::predict;
use super::session::{read_text, unverified};
use super::shape::Shape;
use crate::cli::{GenerateArgs, ModelArgs};
use crate::data::tokenizer::Wrap;
use crate::generate::{Decoding, answer, extent};
use crate::hf;
use crate::model::{Llama, Size};

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
    let mesh = Mesh::open::<Llama>(&devices)?;
    if !args.force {
        check_parameters(shape.config.num_params(), &mesh, REMEDIES)?;
    }
    if mesh.in_host_memory() {
        let plan = predict::token(
            &Mesh::dry::<Llama>(&devices)?,
            &shape,
            extent(&lens, &decoding),
        )?;
        check_on(&Needs::new(&[&plan.memory], REMEDIES), &mesh, args.force)?;
    }
    if speaks() {
        // Not among the answers.
        note!("{}", unverified(&args.model));
        note!("{}", text.description());
    }
    let model = mesh.parallelize(shape.config.init(mesh.device()))?;
    let (model, found) = hf::load_reported(model, &shape.config, &args.model, mesh.device())?;
    if let Some(found) = non_finite(found, mesh.processes())?
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
