//! The command `plan`: which mesh trains a model fastest on devices that are not here.
//!
//! Candidates are all meshes of the devices, with microbatches, schedules, recomputation and float8. Few of them are
//! planned, and fewer whole, which takes a second for a large model:
//!
//! 1. numbers tell of most that they cannot be ([`Bound`]): rows, sequences, heads, layers, memory at rest;
//! 2. closed forms put the meshes in order, of which the first go on: 16 without stages and 12 with,
//!    and more only as long as none fits. The forms may be wrong: so may be what they leave out;
//! 3. models with three and five layers tell how long these take, and what they hold, as if each layer more took
//!    as much. What fits with less made again is not tried with more. Of a mesh with stages they tell it of a
//!    microbatch on the ranks of a stage, so that it is left out where its bubble alone makes it too slow;
//! 4. the best of these are planned and simulated whole, as the command `simulate` does, until ten are faster than the
//!    next can be.
//!
//! `--exhaustive` plans and simulates everything else whole, too, that is not slower by far, and says how much faster the
//! fastest of it is.
//!
//! Async TP is no candidate of its own: the planner takes it where the clock says that it is faster.
//!
//! | file | idea |
//! | --- | --- |
//! | `domain` | candidates, and bounds by numbers |
//! | `forms` | how long one takes by closed forms, which put candidates in order |
//! | `clock` | how long one takes: of the whole model, or from models with fewer layers |
//! | `exhaustive` | all candidates, one after the other |
//! | `families` | candidates of one kind, of which one that fits prunes others |
//! | `outcome` | what is found out of candidates |
//! | `report` | what was searched, the best ten, and why well-known meshes are not among them |

mod clock;
mod domain;
mod exhaustive;
mod families;
mod forms;
mod outcome;
mod report;

use std::sync::Mutex;

use anyhow::{Context, bail};

pub use clock::Figures;
pub use domain::{Bound, Candidate};
pub use outcome::{Outcome, Searched};

use super::args::{SearchArgs, StepArgs};
use super::exit::End;
use super::job::Job;
use super::mesh::Mesh;
use super::model::Model;
use super::simulate::of_products;
use super::voice::{note, say};
use crate::clock::Hardware;
use crate::mesh::{DType, MeshShape};
use crate::train::files::write_whole;
use crate::{ActivationCheckpoint, Float};
use clock::{APART, Clock};
use domain::{Domain, STATE_BYTES};
use families::{chain, ordered, prune_bubbles};
use forms::Forms;
use outcome::SHOWN;

/// Meshes whose candidates are estimated: without stages, and schedules of meshes with stages.
const FLAT: usize = 16;
const STAGED: usize = 12;

/// Returns the rows of a step, of so many tokens each.
///
/// # Errors
/// If the batch is not one of whole rows.
pub fn rows(args: &SearchArgs, step: &StepArgs, each: usize) -> anyhow::Result<Option<usize>> {
    let Some(tokens) = args.batch_tokens else {
        return Ok(step.batch);
    };
    if !tokens.is_multiple_of(each) {
        bail!(
            "--batch-tokens {tokens} are not whole rows of {each} tokens: give {} or {}",
            tokens / each * each,
            (tokens / each + 1) * each
        );
    }
    Ok(Some(tokens / each))
}

/// How much is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// At most so many are planned and simulated whole, and more only as long as none fits; none if it is 0.
    pub simulations: usize,
    /// After that all others, but what is slower for certain, or by far as models with fewer layers tell.
    pub is_exhaustive: bool,
}

/// Searches the meshes of so many devices.
///
/// # Errors
/// If the model cannot be made, or cannot lie on one device.
pub fn find<M: Model>(
    make: &(dyn Fn() -> anyhow::Result<Job<M>> + Sync),
    step: &StepArgs,
    hardware: &Hardware,
    devices: usize,
    effort: Effort,
) -> anyhow::Result<Searched> {
    About::new(&make()?, step, hardware, false)?.search(make, step, devices, effort)
}

/// Searches the fastest mesh, tells of it, and writes what `configure` makes of its options.
///
/// # Errors
/// If the command line fixes what is searched, the model cannot be made, or the file not be written.
pub fn search<M: Model>(
    make: &(dyn Fn() -> anyhow::Result<Job<M>> + Sync),
    step: &StepArgs,
    args: &SearchArgs,
    configure: &dyn Fn(&Options) -> anyhow::Result<String>,
) -> anyhow::Result<End> {
    let devices = &step.devices;
    let fixed = [
        ("--mesh", devices.forward.axes.mesh.is_some()),
        ("--accumulate", step.accumulate != 1),
        (
            "--activation-checkpoint",
            devices.activation_checkpoint != ActivationCheckpoint::None,
        ),
    ];
    if let Some((option, _)) = fixed.iter().find(|(_, is_given)| *is_given) {
        bail!("{option} is what `plan` searches: leave it out, or `simulate` the mesh");
    }
    let hardware = match args.hardware.read()? {
        Some(hardware) => hardware,
        None => Hardware::preset("h100")?,
    };
    let compile = args.compile || hardware.kernels.compile;
    let hardware = hardware.compiled(compile);
    let count = match (args.devices, args.nodes) {
        (Some(devices), _) => devices,
        (None, Some(nodes)) => nodes * hardware.devices_per_node,
        (None, None) => bail!("give --devices, or --nodes"),
    };
    let job = make()?;
    let about = About::new(&job, step, &hardware, true)?;
    let effort = Effort {
        simulations: args.simulations,
        is_exhaustive: args.exhaustive,
    };
    let searched = about.search(make, step, count, effort)?;
    let domain = Domain {
        devices: count,
        ..about.domain.clone()
    };
    let shown = report::Shown {
        domain: &domain,
        hardware: &hardware,
        searched: &searched,
        devices: count,
        job: &job,
        dtype: about.dtype,
        tokens: args.tokens,
    };
    shown.tell();
    if let Some(best) = searched.best.first() {
        let best = &searched.all[*best].0;
        if let Some(path) = &args.write {
            let text = configure(&options(best))?;
            let written = write_whole(path, |to| to.write_all(text.as_bytes()));
            written.with_context(|| format!("cannot write {}", path.display()))?;
            say!("\nconfiguration: {}", path.display());
        }
        return Ok(End::Done);
    }
    say!(
        "\nno mesh of {count} device(s) fits; {}",
        about.remedy(make, step, count)?
    );
    Ok(End::Unfit)
}

/// The options of a candidate, by name.
pub type Options = Vec<(&'static str, String)>;

fn options(of: &Candidate) -> Options {
    let mut options = vec![
        ("mesh", of.mesh()),
        ("accumulate", of.microbatches.to_string()),
        ("activation-checkpoint", of.checkpoint.to_string()),
    ];
    if of.stages() > 1 {
        let (kind, stages) = of.schedule;
        options.push(("schedule", kind.to_string()));
        options.push(("stages-per-rank", stages.to_string()));
    }
    if let Some(float8) = &of.float8 {
        options.push(("float8", float8.to_string()));
    }
    options
}

/// A model, its rows and the devices, as far as all candidates share them.
struct About<'a> {
    domain: Domain,
    hardware: &'a Hardware,
    /// Flops of a step, over all ranks.
    flops: f64,
    dtype: DType,
    /// True if each phase is shown as it begins.
    tells: bool,
}

impl<'a> About<'a> {
    fn new<M: Model>(
        job: &Job<M>,
        step: &StepArgs,
        hardware: &'a Hardware,
        tells: bool,
    ) -> anyhow::Result<Self> {
        let mesh = Mesh::dry::<M>(&step.devices)?;
        let model = M::build(&job.config, mesh.device());
        let parameters = mesh.num_params(&model)?;
        // Without a formula: a product of each parameter with each token, forward, and two backward.
        let of_row = M::flops(&job.config, &(job.sample)(1)?);
        let of_row = of_row.unwrap_or(6.0 * (parameters * job.rows.each) as f64);
        let float8 = &step.devices.forward.float8;
        let float8 = float8.clone().map(Some).into_iter();
        Ok(Self {
            domain: Domain {
                devices: 1,
                per_node: hardware.devices_per_node,
                rows: job.rows.batch,
                each: job.rows.each,
                splits_model: M::AXES.contains(&"tp"),
                layers: mesh.num_units(&model)?,
                parameters,
                room: hardware
                    .memory_bytes()
                    .saturating_sub(hardware.reserved_bytes()),
                float8: std::iter::once(None).chain(float8).collect(),
            },
            hardware,
            flops: of_row * job.rows.batch as f64,
            dtype: of_products(step),
            tells,
        })
    }

    /// Searches the meshes of so many devices.
    fn search<M: Model>(
        &self,
        make: &(dyn Fn() -> anyhow::Result<Job<M>> + Sync),
        step: &StepArgs,
        devices: usize,
        effort: Effort,
    ) -> anyhow::Result<Searched> {
        let domain = Domain {
            devices,
            ..self.domain.clone()
        };
        let clock = Clock {
            make,
            step,
            hardware: self.hardware,
            layers: domain.layers,
            state_bytes: (STATE_BYTES * domain.parameters) as f64,
            known: Mutex::default(),
        };
        let candidates = domain.candidates();
        let unsplit = unsplit(&make()?, step, &candidates)?;
        let splits = |tp: usize| unsplit.iter().all(|(of, _)| *of != tp);
        let mut outcomes: Vec<Option<Outcome>> = candidates
            .iter()
            .map(|of| domain.bound(of, splits).map(Outcome::Pruned))
            .collect();
        let open = outcomes.iter().filter(|outcome| outcome.is_none()).count();
        self.tell(devices, || {
            format!(
                "{} candidates, of which numbers leave {open}",
                candidates.len()
            )
        });
        let forms = Forms {
            domain: &domain,
            hardware: self.hardware,
            flops: self.flops,
            dtype: self.dtype,
        };
        self.estimate(&clock, &forms, &candidates, &mut outcomes, false)?;
        prune_bubbles(&candidates, &mut outcomes);
        self.estimate(&clock, &forms, &candidates, &mut outcomes, true)?;
        let outcomes = outcomes
            .into_iter()
            .map(|outcome| outcome.expect("all are known"));
        let mut all: Vec<(Candidate, Outcome)> = candidates.into_iter().zip(outcomes).collect();
        let mut best = Vec::new();
        if effort.simulations > 0 {
            self.tell(devices, || {
                format!("planning the best whole, at most {}", effort.simulations)
            });
            best = self.simulate(&clock, &mut all, effort.simulations)?;
        }
        let mut alone = None;
        if effort.is_exhaustive {
            alone = best.first().copied();
            best = self.exhaust(&clock, devices, &mut all, alone)?;
        }
        Ok(Searched {
            all,
            best,
            alone,
            unsplit,
        })
    }

    /// Says how far the search is.
    fn tell(&self, devices: usize, phase: impl Fn() -> String) {
        if self.tells {
            note!("{devices} device(s): {}", phase());
        }
    }

    /// Estimates what is not yet known, of meshes with or without stages: those that are first by closed forms, and, as
    /// long as none fits, the next ones.
    fn estimate<M: Model>(
        &self,
        clock: &Clock<'_, M>,
        forms: &Forms<'_>,
        candidates: &[Candidate],
        outcomes: &mut [Option<Outcome>],
        is_staged: bool,
    ) -> anyhow::Result<()> {
        let memory = self.hardware.memory_bytes() as f64;
        let families = ordered(forms, candidates, outcomes, memory, is_staged);
        let (at_once, what) = match is_staged {
            false => (FLAT, "meshes"),
            true => (STAGED, "schedules of meshes with stages"),
        };
        let mut fits = outcomes.iter().flatten().any(|of| of.fits(memory));
        let mut known = forms.domain.well_known();
        for (number, some) in families.chunks(at_once).enumerate() {
            // Of a mesh that people know, the best of it is estimated in any case: they ask how it compares.
            let is_asked = |family: &Vec<usize>| {
                let sizes = candidates[family[0]].sizes;
                let before = known.len();
                known.retain(|(_, known)| *known != sizes);
                known.len() < before
            };
            let (asked, left): (Vec<_>, Vec<_>) = some.iter().cloned().partition(is_asked);
            let (some, which) = match number == 0 || !fits {
                true => {
                    let from = number * at_once;
                    (some, format!("{} to {}", from + 1, from + some.len()))
                }
                false => {
                    let left = left.iter().flatten();
                    left.for_each(|at| outcomes[*at] = Some(Outcome::Pruned(Bound::Forms)));
                    (&asked[..], format!("{} that people know", asked.len()))
                }
            };
            if some.is_empty() {
                continue;
            }
            self.tell(forms.domain.devices, || {
                format!("estimating {which} of {} {what}", families.len())
            });
            let found = clock.each(some, |job, family: &Vec<usize>| {
                let of: Vec<&Candidate> = family.iter().map(|at| &candidates[*at]).collect();
                chain(&of, memory, |of| clock.estimate(job, of))
            })?;
            for (family, found) in some.iter().zip(found) {
                for (at, outcome) in family.iter().zip(found) {
                    fits |= outcome.fits(memory);
                    outcomes[*at] = Some(outcome);
                }
            }
        }
        Ok(())
    }

    /// Returns what would fit where nothing does: products in bf16, or more devices.
    fn remedy<M: Model>(
        &self,
        make: &(dyn Fn() -> anyhow::Result<Job<M>> + Sync),
        step: &StepArgs,
        devices: usize,
    ) -> anyhow::Result<String> {
        let memory = self.hardware.memory_bytes() as f64;
        let fitting = |step: &StepArgs, devices: usize| -> anyhow::Result<Option<String>> {
            let none = Effort {
                simulations: 0,
                is_exhaustive: false,
            };
            let searched = self.search(make, step, devices, none)?;
            let fitting = searched.all.iter().find(|(_, of)| of.fits(memory));
            Ok(fitting.map(|(of, _)| of.to_string()))
        };
        let mut ways = Vec::new();
        if step.devices.forward.param_dtype == Float::F32 {
            let mut halves = step.clone();
            halves.devices.forward.param_dtype = Float::BF16;
            let of = fitting(&halves, devices)?;
            ways.extend(of.map(|of| format!("--param-dtype bf16 would, as {of}")));
        }
        for times in [2, 4, 8, 16] {
            if let Some(of) = fitting(step, devices * times)? {
                ways.push(format!("{} devices would, as {of}", devices * times));
                break;
            }
        }
        Ok(match ways.is_empty() {
            true => format!(
                "nor does one of {}, all activations made again: give shorter rows, or fewer of them",
                16 * devices
            ),
            false => ways.join("; "),
        })
    }

    /// Simulates the best estimates whole; returns those that fit, from the fastest on.
    fn simulate<M: Model>(
        &self,
        clock: &Clock<'_, M>,
        all: &mut [(Candidate, Outcome)],
        simulations: usize,
    ) -> anyhow::Result<Vec<usize>> {
        let memory = self.hardware.memory_bytes() as f64;
        let estimated = all.iter().enumerate();
        let estimated = estimated.filter_map(|(at, (_, of))| Some((of.estimated()?.step_s, at)));
        let mut next: Vec<(f64, usize)> = estimated.collect();
        next.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        let mut best: Vec<usize> = Vec::new();
        let seconds = |all: &[(Candidate, Outcome)], at: usize| {
            all[at].1.simulated().map_or(f64::INFINITY, |of| of.step_s)
        };
        let (first, more) = next.split_at(simulations.min(next.len()));
        let first = first.chunks(ROUND).map(|round| (round, false));
        let more = more.chunks(ROUND).map(|round| (round, true));
        for (round, is_more) in first.chain(more) {
            // More are simulated only as long as none fits.
            if is_more && !best.is_empty() {
                break;
            }
            if best.len() >= SHOWN && round[0].0 > seconds(all, best[SHOWN - 1]) * (1.0 + APART) {
                break;
            }
            let numbers: Vec<usize> = round.iter().map(|(_, at)| *at).collect();
            let found = clock.each(&numbers, |job, at| clock.whole(job, &all[*at].0))?;
            for (at, figures) in numbers.into_iter().zip(found) {
                all[at].1 = match figures {
                    Ok(figures) => Outcome::Simulated(figures),
                    Err(error) => Outcome::Failed(format!("{error:#}")),
                };
                best.extend(all[at].1.fits(memory).then_some(at));
            }
            best.sort_by(|one, other| seconds(all, *one).total_cmp(&seconds(all, *other)));
        }
        Ok(best)
    }
}

/// Candidates that are simulated before the next ones are looked at.
const ROUND: usize = 4;

/// Returns over how many ranks along tp the model cannot be split, with the reasons.
fn unsplit<M: Model>(
    job: &Job<M>,
    step: &StepArgs,
    candidates: &[Candidate],
) -> anyhow::Result<Vec<(usize, String)>> {
    let mut sizes: Vec<usize> = candidates.iter().map(Candidate::tp).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut unsplit = Vec::new();
    for tp in sizes.into_iter().filter(|tp| *tp > 1) {
        let mut devices = step.devices.clone();
        devices.forward.axes.mesh = Some(MeshShape::parse(&format!("tp={tp}"))?);
        let mesh = Mesh::dry::<M>(&devices)?;
        if let Err(error) = mesh.parallelize(M::build(&job.config, mesh.device())) {
            unsplit.push((tp, format!("{error:#}")));
        }
    }
    Ok(unsplit)
}
