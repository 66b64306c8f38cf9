use burn::module::AutodiffModule;
use burn::tensor::backend::AutodiffBackend;

use super::End;
use super::session::{Shape, read_text};

use crate::cli::{GenerateArgs, ModelArgs};
use crate::generate::{Decoding, answer};
use crate::hf;
use crate::mesh::{Mesh, TrainBackend};
use crate::model::{Llama, Size};
use crate::say;

pub(super) fn run(args: &GenerateArgs) -> anyhow::Result<End> {
    let shape = Shape::new(&ModelArgs {
        devices: args.devices.clone(),
        size: Size::Tiny,
        model: Some(args.model.clone()),
        seed: args.seed,
        batch: None,
        seq: None,
        accumulate: 1,
    })?;
    let text = read_text(&args.model, &shape)?;
    let mesh = Mesh::open(&args.devices)?;
    let model = mesh.parallelize(shape.config.init::<TrainBackend>(mesh.device()))?;
    let model = hf::load(model, &shape.config, &args.model)?;
    let model: Llama<<TrainBackend as AutodiffBackend>::InnerBackend> = model.valid();

    let decoding = Decoding {
        temperature: args.temperature,
        max_new_tokens: args.max_new_tokens,
        seed: args.seed,
    };
    let prompts: Vec<&str> = args.prompt.iter().map(String::as_str).collect();
    for said in answer(&model, &text, &prompts, &decoding, mesh.device())? {
        say!("{said}");
    }
    Ok(End::Done)
}
