use anyhow::bail;
use burn_dist::train::corpus::{Fields, Longer, sample};
use burn_dist::train::tokenizer::Text;
use burn_dist::trainer::batch::Position;
use burn_dist::trainer::evaluate::Evaluation;
use burn_dist::trainer::exit::End;
use burn_dist::trainer::tokens::sources;

use super::finetune::FINETUNE;
use super::job::{Columns, job, random};
use super::texts::{self, RANDOM_BATCHES, reader};
use crate::cli::EvaluationArgs;

pub(super) fn run(args: &EvaluationArgs) -> anyhow::Result<End> {
    let columns = Columns {
        weighted: !args.data.data.is_empty(),
        packed: args.data.rows.document_mask,
    };
    let (model, data) = (&args.model, &args.data);
    let job = job(model, model.step.batch, columns)?;
    let evaluation = Evaluation::start(&job, &model.step, &args.args)?;
    let rows = evaluation.rows();
    if data.data.is_empty() {
        let source = random(&job, (model.step.seed, 5), rows);
        return evaluation.run(Box::new(source), RANDOM_BATCHES);
    }
    let left = evaluation.so_far.as_ref();
    // As the run was trained that the weights are of.
    let is_finetuned = args.responses || left.is_some_and(|left| left.phase == FINETUNE);
    let (fields, longer) = match is_finetuned {
        true => (Fields::Dialogue, Longer::Drop),
        false => (Fields::Usual, Longer::Split),
    };
    let files = sources(&data.data, &fields)?;
    let text = texts::text(&job, !args.args.json, || Ok(sample(&files)?))?;
    if let Some(Position::Rows(position)) = left.and_then(|left| left.position.as_ref()) {
        check_tokenizer(position.identity("tokenizer"), &text)?;
    }
    let asked = match data.validate.is_empty() {
        true => files,
        false => sources(&data.validate, &fields)?,
    };
    let processes = evaluation.mesh.processes();
    let reader = reader((&job, model.step.seed), data, &text, rows, processes)?;
    let held_out = match is_finetuned {
        true => reader.held_out(asked, longer, text.encoder())?,
        false => reader.held_out(asked, longer, text.whole_encoder())?,
    };
    let Some(held_out) = held_out else {
        bail!("there are no rows to evaluate");
    };
    // One line of JSON stands alone.
    if !args.args.json {
        held_out.tell();
    }
    let batches = held_out.num_batches();
    evaluation.run(Box::new(held_out), batches)
}

/// Refuses a tokenizer that the run was not trained with.
fn check_tokenizer(expected: Option<&str>, text: &Text) -> anyhow::Result<()> {
    let found = text.fingerprint()?;
    match expected {
        Some(expected) if expected != found => bail!(
            "the run was trained with another tokenizer ({expected}) than this ({found}): give the --data or the --model \
             that it was begun with, and what to evaluate with --validate"
        ),
        _ => Ok(()),
    }
}
