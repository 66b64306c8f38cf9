//! The command `plan`: which mesh trains a decoder fastest.

use anyhow::bail;
use burn_dist::trainer::args::SearchArgs;
use burn_dist::trainer::command_line::CommandLine;
use burn_dist::trainer::exit::End;
use burn_dist::trainer::search::{self, Options, search};

use super::job::{Columns, job};
use crate::PROGRAM;
use crate::cli::{Cli, ModelArgs};

/// Searches the mesh.
pub(super) fn run(model: &ModelArgs, args: &SearchArgs) -> anyhow::Result<End> {
    let any = Columns::default();
    let given = job(model, None, any)?;
    if given.config.adapters.is_some() {
        bail!("`plan` takes it that all weights are trained: `simulate` meshes for adapters");
    }
    let each = given.rows.each;
    let rows = search::rows(args, &model.step, each)?;
    let make = || job(model, rows, any);
    let batch = make()?.rows.batch;
    let configure = |found: &Options| {
        let mut line = vec![PROGRAM.name.to_string(), "pretrain".to_string()];
        let mut add = |option: &str, value: &dyn ToString| {
            line.push(format!("--{option}={}", value.to_string()));
        };
        match &model.model {
            Some(folder) => add("model", &folder.display()),
            None => add("size", &model.size.name()),
        }
        add("batch", &batch);
        add("seq", &each);
        let devices = &model.step.devices;
        add("param-dtype", &devices.forward.param_dtype);
        add("reduce-dtype", &devices.reduce_dtype);
        found.iter().for_each(|(option, value)| add(option, value));
        let read = Cli::config(PROGRAM).try_read(&line)?;
        Ok(read.resolved.to_toml(&PROGRAM.versioned())?)
    };
    search(&make, &model.step, args, &configure)
}
