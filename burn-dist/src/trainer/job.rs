//! A model and the rows of a step, as a command line names them: what every command is about.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::bail;
use burn_core::tensor::Device;

use super::error::TooFewRows;
use super::mesh::Mesh;
use super::model::Model;
use super::voice::{note, speaks};
use crate::checkpoint::NonFinite;

/// A model by the options of a program, not yet built, and its rows.
pub struct Job<M: Model> {
    /// Its sizes.
    pub config: M::Config,
    /// The name of its size, or the folder that it came from.
    pub name: String,
    /// Its first weights, if they are not made here.
    pub weights: Option<Folder<M>>,
    /// The rows of a step.
    pub rows: StepRows,
    /// The highest learning rate, unless the command line says another.
    pub peak: f64,
    /// Makes so many rows that look like those of the data, for steps that are planned and not run.
    pub sample: Sample<M>,
}

/// A folder of weights, with what reads them into a model.
pub struct Folder<M> {
    /// The folder.
    pub path: PathBuf,
    /// Reads the weights.
    pub load: Load<M>,
}

/// Reads the weights of a folder into a model; returns what of them is not finite too.
pub type Load<M> = Box<dyn Fn(M, &Path, &Device) -> anyhow::Result<(M, Option<NonFinite>)>>;

/// Makes so many rows.
pub type Sample<M> = Box<dyn Fn(usize) -> anyhow::Result<<M as Model>::Batch>>;

impl<M: Model> fmt::Debug for Job<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Job({}, {})", self.name, self.rows)
    }
}

/// More than any row and any step has of what is counted.
const EACH_MAX: usize = 1 << 22;
const ALL_MAX: usize = 1 << 30;

/// The rows of a step, over all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepRows {
    /// How many.
    pub batch: usize,
    /// Microbatches that they are cut into.
    pub accumulate: usize,
    /// How much of what a speed counts a row has: its tokens; 1, if rows are counted.
    pub each: usize,
    /// The name of what is counted: `tokens`, `images`.
    pub unit: &'static str,
}

impl fmt::Display for StepRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            batch, each, unit, ..
        } = self;
        match each {
            1 => write!(f, "{batch} {unit}"),
            each => write!(f, "{batch} x {each} {unit}"),
        }
    }
}

impl StepRows {
    /// Rows of which each has `each` of what `unit` names.
    ///
    /// # Errors
    /// If they are too many, or cannot be cut into so many microbatches.
    pub fn new(
        batch: usize,
        accumulate: usize,
        (each, unit): (usize, &'static str),
    ) -> anyhow::Result<Self> {
        // What follows from them is counted in 64 bits.
        let all = batch.checked_mul(each).filter(|all| *all <= ALL_MAX);
        if each > EACH_MAX || all.is_none() {
            let option = match each {
                1 => String::new(),
                _ => format!("a --seq of at most {EACH_MAX}, and "),
            };
            bail!(
                "{} are more than a step can have: give {option}a --batch with which a step has at most {ALL_MAX} {unit}",
                match each {
                    1 => format!("{batch} {unit}"),
                    each => format!("{batch} rows of {each} {unit}"),
                }
            );
        }
        if !batch.is_multiple_of(accumulate) {
            bail!(
                "--accumulate {accumulate} does not divide the {batch} rows of a step: give a --batch that is a \
                 multiple of it"
            );
        }
        Ok(Self {
            batch,
            accumulate,
            each,
            unit,
        })
    }

    /// Rows of a microbatch.
    pub fn of_microbatch(self) -> usize {
        self.batch / self.accumulate
    }

    /// Returns as many microbatches of the same rows.
    pub fn cut_to(self, microbatches: usize) -> Self {
        Self {
            batch: self.of_microbatch() * microbatches,
            accumulate: microbatches,
            ..self
        }
    }

    /// Checks that each rank that takes rows of its own has some, unless all are `allowed` to compute the same.
    ///
    /// # Errors
    /// [`TooFewRows`].
    pub fn check(self, mesh: &Mesh, allowed: bool) -> Result<(), TooFewRows> {
        let (rows, ranks) = (self.of_microbatch(), mesh.num_row_groups());
        match rows < ranks && !allowed {
            true => Err(TooFewRows {
                mesh: mesh.name(),
                rows,
                ranks,
                accumulate: self.accumulate,
            }),
            false => Ok(()),
        }
    }
}

/// How far the flops that a model says may be from those that are counted.
const FLOPS_APART: f64 = 0.05;

impl<M: Model> Job<M> {
    /// Warns, in the process that speaks, of a model that says other flops of a step than the planner has `counted`.
    ///
    /// # Errors
    /// If no rows can be made.
    pub fn check_flops(&self, counted: f64) -> anyhow::Result<()> {
        let batch = (self.sample)(self.rows.batch)?;
        let said = M::flops(&self.config, &batch);
        if let Some(warning) = said.and_then(|said| flops_apart(said, counted))
            && speaks()
        {
            note!("warning: {warning}");
        }
        Ok(())
    }
}

/// Says that the flops a model says of itself are not those that the planner counts.
fn flops_apart(said: f64, counted: f64) -> Option<String> {
    let is_near = (said - counted).abs() <= FLOPS_APART * counted;
    (!is_near).then(|| {
        format!(
            "the model says that a step has {said:.3e} flops (Model::flops), and the planner counts {counted:.3e} in its \
             products: figures are by the latter"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flops_that_are_not_those_counted_are_named() {
        assert_eq!(flops_apart(1.04e9, 1e9), None);
        assert_eq!(flops_apart(0.96e9, 1e9), None);
        for said in [2e9, 0.0, f64::NAN] {
            let told = flops_apart(said, 1e9).unwrap();
            assert!(
                told.contains("Model::flops") && told.contains("counts 1.000e9"),
                "{told}"
            );
        }
    }
}
