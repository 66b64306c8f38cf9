use burn::module::AutodiffModule;
use burn::tensor::backend::AutodiffBackend;

use super::End;
use super::session::{Shape, read_text};
use burn_dist::Checkpoint;

use crate::cli::{GenerateArgs, ModelArgs};
use crate::generate::{Decoding, answer};
use crate::hf;
use crate::mesh::{Mesh, TrainBackend};
use crate::model::{Llama, Size};

pub(super) fn run(args: &GenerateArgs) -> anyhow::Result<End> {
    let shape = Shape::new(&ModelArgs {
        mesh: args.mesh.clone(),
        size: Size::Tiny,
        model: Some(args.model.clone()),
        seed: args.seed,
        batch: None,
        seq: None,
        activation_checkpoint: Checkpoint::None,
    })?;
    let text = read_text(&args.model, &shape)?;
    let mesh = Mesh::open(args.mesh.as_ref())?;
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
        println!("{said}");
    }
    Ok(End::Done)
}
