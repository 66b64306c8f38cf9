//! The candidates of a search, and the bounds that tell without a plan that one cannot be.

use std::fmt;

use crate::schedule::ScheduleKind;
use crate::{ActivationCheckpoint, Float8};

/// The axes, outermost first.
pub(super) const AXES: [&str; 5] = ["pp", "dp", "fsdp", "cp", "tp"];

/// Microbatches that are tried, times the ranks along pp.
pub(super) const MICROBATCHES: [usize; 4] = [1, 2, 4, 8];

/// The schedules that are tried, with the stages of a rank.
pub(super) const SCHEDULES: [(ScheduleKind, u32); 3] = [
    (ScheduleKind::OneFOneB, 1),
    (ScheduleKind::Interleaved, 2),
    (ScheduleKind::ZbV, 2),
];

/// The recomputation that is tried, from the one that takes no time on.
pub(super) const CHECKPOINTS: [ActivationCheckpoint; 3] = [
    ActivationCheckpoint::None,
    ActivationCheckpoint::Selective,
    ActivationCheckpoint::Full,
];

/// Returns a mesh as text.
pub(super) fn mesh_text(sizes: [usize; 5]) -> String {
    let named = AXES.iter().zip(sizes).filter(|(_, size)| *size > 1);
    let named: Vec<String> = named.map(|(name, size)| format!("{name}={size}")).collect();
    match named.is_empty() {
        true => "1".to_string(),
        false => named.join(","),
    }
}

/// How devices are used.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Ranks along pp, dp, fsdp, cp and tp.
    pub sizes: [usize; 5],
    /// Microbatches of a step.
    pub microbatches: usize,
    /// In which order the ranks along pp work on them, and how many stages each has.
    pub schedule: (ScheduleKind, u32),
    /// The recomputation of the backward.
    pub checkpoint: ActivationCheckpoint,
    /// The scaling of linear layers in float8, if they are.
    pub float8: Option<Float8>,
}

impl Candidate {
    /// Returns the mesh as text: `fsdp=128,cp=4`, and `1` for one device.
    pub fn mesh(&self) -> String {
        mesh_text(self.sizes)
    }

    /// Returns how many ranks there are along pp.
    pub(super) fn stages(&self) -> usize {
        self.sizes[0]
    }

    /// Returns how many ranks share a sequence.
    pub(super) fn cp(&self) -> usize {
        self.sizes[3]
    }

    /// Returns how many ranks share a layer.
    pub(super) fn tp(&self) -> usize {
        self.sizes[4]
    }

    /// Returns how many ranks have rows of their own.
    pub(super) fn row_groups(&self) -> usize {
        self.sizes[1] * self.sizes[2]
    }

    /// Returns how many parts the parameters are at rest in.
    pub(super) fn parts_at_rest(&self) -> usize {
        self.sizes.iter().product::<usize>() / self.sizes[1]
    }

    /// Returns what part of the work on the microbatches of a step the fullest rank waits besides, at best.
    pub(super) fn bubble(&self) -> f64 {
        let (kind, stages_per_rank) = self.schedule;
        let waits = match kind {
            ScheduleKind::ZbV => 0.0,
            _ => (self.stages() - 1) as f64 / f64::from(stages_per_rank),
        };
        waits / self.microbatches as f64
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.mesh())?;
        if self.microbatches > 1 {
            write!(f, ", {} microbatches", self.microbatches)?;
        }
        if self.stages() > 1 {
            write!(f, ", {}", self.schedule.0)?;
        }
        write!(f, ", recomputation {}", self.checkpoint)?;
        match &self.float8 {
            Some(float8) => write!(f, ", float8 {float8}"),
            None => Ok(()),
        }
    }
}

/// Why a candidate is not planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bound {
    /// The rows of a step are not so many microbatches with as many rows for each rank that takes some.
    Rows,
    /// A sequence has no equal part for each rank along cp.
    Sequences,
    /// The model has tensors that cannot be split over so many ranks along tp, such as heads.
    Heads,
    /// The model has fewer layers than there would be stages.
    Layers,
    /// Parameters and the optimizer's moments alone are more than a device has room for.
    Memory,
    /// It would hold too much, as far as that is known from models with fewer layers.
    Activations,
    /// The same mesh fits with less that is made again, or in fewer microbatches.
    Recomputation,
    /// Waiting for other stages alone makes it slower than another one.
    Bubble,
    /// Closed forms put other meshes first: it was not looked at, and may be faster.
    Forms,
    /// Its products, and the bubble that is certain, take longer than the fastest step.
    Products,
    /// Models with fewer layers tell that it is slower than the fastest by much.
    Far,
    /// The same with less made again is slower than the fastest.
    Slower,
}

impl Bound {
    /// All of them, in the order in which they are asked.
    pub const ALL: [Self; 12] = [
        Self::Rows,
        Self::Sequences,
        Self::Heads,
        Self::Layers,
        Self::Memory,
        Self::Activations,
        Self::Recomputation,
        Self::Bubble,
        Self::Forms,
        Self::Products,
        Self::Far,
        Self::Slower,
    ];

    /// Returns whether numbers alone tell: that it cannot be, or that its parameters do not fit.
    pub(super) fn is_by_numbers(self) -> bool {
        use Bound::{Heads, Layers, Memory, Rows, Sequences};
        matches!(self, Rows | Sequences | Heads | Layers | Memory)
    }

    /// Returns what it is, for people.
    pub fn text(self) -> &'static str {
        match self {
            Self::Rows => "rows are not split evenly",
            Self::Sequences => "sequences are not split evenly",
            Self::Heads => "heads, or other tensors, are not split evenly",
            Self::Layers => "fewer layers than stages",
            Self::Memory => "parameters and moments do not fit",
            Self::Activations => "activations do not fit (estimated)",
            Self::Recomputation => "fits with less made again, or fewer microbatches",
            Self::Bubble => "the bubble alone is too long (estimated)",
            Self::Forms => "behind others by closed forms, not estimated",
            Self::Products => "products alone, with their bubble, take longer than the fastest",
            Self::Far => "slower than the fastest by a tenth or more (estimated)",
            Self::Slower => "slower than the fastest with less made again",
        }
    }
}

/// The numbers that candidates are made of.
#[derive(Clone, Debug)]
pub(super) struct Domain {
    /// Devices, and those of a node: tp stays inside.
    pub devices: usize,
    pub per_node: usize,
    /// Rows of a step, and tokens of a row.
    pub rows: usize,
    pub each: usize,
    /// True if the model is split over tp.
    pub splits_model: bool,
    /// Its layers; 0 if it has no list of them, and so no stages.
    pub layers: usize,
    /// Its parameters.
    pub parameters: usize,
    /// Bytes of a device that tensors may have.
    pub room: u64,
    /// With and without float8, if there is a choice.
    pub float8: Vec<Option<Float8>>,
}

/// Bytes of a parameter and its two moments, in f32.
const BYTES_AT_REST: usize = 12;

/// The same with its gradient.
pub(super) const STATE_BYTES: usize = BYTES_AT_REST + 4;

fn divisors(number: usize) -> impl Iterator<Item = usize> {
    (1..=number).filter(move |part| number.is_multiple_of(*part))
}

impl Domain {
    /// Returns all candidates: of each mesh from the one that needs the most memory to the one that needs the least.
    pub(super) fn candidates(&self) -> Vec<Candidate> {
        let mut all = Vec::new();
        let pipelines = divisors(self.devices).filter(|pp| *pp == 1 || self.layers > 0);
        for pp in pipelines {
            let inside = |tp: &usize| *tp == 1 || (self.splits_model && *tp <= self.per_node);
            for tp in divisors(self.devices / pp).filter(inside) {
                for cp in divisors(self.devices / pp / tp) {
                    let rest = self.devices / pp / tp / cp;
                    // Stages hold their parts alone: replicas of them are the business of fsdp.
                    for dp in divisors(rest).filter(|dp| pp == 1 || *dp == 1) {
                        self.of_mesh([pp, dp, rest / dp, cp, tp], &mut all);
                    }
                }
            }
        }
        all
    }

    fn of_mesh(&self, sizes: [usize; 5], all: &mut Vec<Candidate>) {
        let pp = sizes[0];
        let schedules = match pp {
            1 => &SCHEDULES[..1],
            _ => &SCHEDULES[..],
        };
        for float8 in &self.float8 {
            for schedule in schedules {
                for times in MICROBATCHES {
                    for checkpoint in CHECKPOINTS {
                        all.push(Candidate {
                            sizes,
                            microbatches: pp * times,
                            schedule: *schedule,
                            checkpoint,
                            float8: float8.clone(),
                        });
                    }
                }
            }
        }
    }

    /// Returns meshes that people know, of those that the devices make.
    pub(super) fn well_known(&self) -> Vec<(&'static str, [usize; 5])> {
        let (count, each) = (self.devices, self.per_node);
        let nodes = count.div_ceil(each);
        let known = [
            ("DDP", [1, count, 1, 1, 1]),
            ("FSDP", [1, 1, count, 1, 1]),
            ("HSDP, a replica a node", [1, nodes, each, 1, 1]),
            ("FSDP x CP", [1, 1, count / 2, 2, 1]),
            ("FSDP x TP, TP a node", [1, 1, nodes, 1, each]),
            ("PP x FSDP, two stages", [2, 1, count / 2, 1, 1]),
        ];
        let of_devices = |sizes: &[usize; 5]| count > 1 && sizes.iter().product::<usize>() == count;
        let known = known.into_iter();
        known.filter(|(_, sizes)| of_devices(sizes)).collect()
    }

    /// Returns why a candidate cannot be, if numbers alone tell; `splits` says whether the model can be split over so
    /// many ranks along tp.
    pub(super) fn bound(&self, of: &Candidate, splits: impl Fn(usize) -> bool) -> Option<Bound> {
        let stages = of.stages() * of.schedule.1 as usize;
        let at_rest = self.parameters * BYTES_AT_REST / of.parts_at_rest();
        if !self.rows.is_multiple_of(of.microbatches * of.row_groups()) {
            Some(Bound::Rows)
        } else if !self.each.is_multiple_of(of.cp()) {
            Some(Bound::Sequences)
        } else if !splits(of.tp()) {
            Some(Bound::Heads)
        } else if of.stages() > 1 && stages > self.layers {
            Some(Bound::Layers)
        } else if at_rest as u64 > self.room {
            Some(Bound::Memory)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain() -> Domain {
        Domain {
            devices: 16,
            per_node: 8,
            rows: 16,
            each: 64,
            splits_model: true,
            layers: 8,
            parameters: 1000,
            room: 1 << 20,
            float8: vec![None],
        }
    }

    #[test]
    fn every_mesh_of_the_devices_is_a_candidate_once() {
        let all = domain().candidates();
        let mut meshes: Vec<[usize; 5]> = all.iter().map(|of| of.sizes).collect();
        meshes.dedup();
        let count = meshes.len();
        meshes.sort_unstable();
        meshes.dedup();
        assert_eq!(meshes.len(), count);
        // Of four factors of two: without stages those with tp up to 8, and with stages those without dp.
        let splits = |twos: usize| (twos + 1) * (twos + 2) / 2;
        let without: usize = (1..=4).map(splits).sum();
        let with: usize = (0..=3).map(splits).sum();
        assert_eq!(count, without + with);
        assert!(
            all.iter()
                .all(|of| of.sizes.iter().product::<usize>() == 16)
        );
        let one = Domain {
            splits_model: false,
            layers: 0,
            ..domain()
        };
        let all = one.candidates();
        assert!(all.iter().all(|of| of.sizes[0] == 1 && of.sizes[4] == 1));
    }

    #[test]
    fn what_cannot_be_is_known_by_numbers() {
        let domain = domain();
        let of = |sizes, times: usize, schedule| Candidate {
            sizes,
            microbatches: sizes[0] * times,
            schedule,
            checkpoint: ActivationCheckpoint::None,
            float8: None,
        };
        let [flat, _, v] = SCHEDULES;
        for (candidate, expected) in [
            (of([1, 1, 16, 1, 1], 1, flat), None),
            (of([1, 1, 16, 1, 1], 2, flat), Some(Bound::Rows)),
            (of([1, 1, 4, 4, 1], 4, flat), None),
            (of([1, 1, 2, 1, 8], 1, flat), Some(Bound::Heads)),
            (of([8, 1, 1, 1, 2], 2, flat), None),
            (of([8, 1, 1, 1, 2], 2, v), Some(Bound::Layers)),
        ] {
            let found = domain.bound(&candidate, |tp| tp <= 4);
            assert_eq!(found, expected, "{candidate:?}");
        }
        let odd = Domain {
            each: 63,
            ..domain.clone()
        };
        let split = of([1, 1, 8, 2, 1], 1, flat);
        assert_eq!(odd.bound(&split, |_| true), Some(Bound::Sequences));
        // 12 bytes of each parameter are at rest in as many parts as there are ranks, but for those of replicas.
        let small = Domain {
            room: 12 * 1000 / 8,
            ..domain
        };
        let replicas = |dp| of([1, dp, 16 / dp, 1, 1], 1, flat);
        assert_eq!(small.bound(&replicas(2), |_| true), None);
        assert_eq!(small.bound(&replicas(4), |_| true), Some(Bound::Memory));
    }

    #[test]
    fn bubbles_are_those_of_the_schedules() {
        let of = |schedule| Candidate {
            sizes: [4, 1, 4, 1, 1],
            microbatches: 12,
            schedule,
            checkpoint: ActivationCheckpoint::None,
            float8: None,
        };
        assert_eq!(
            SCHEDULES.map(|schedule| of(schedule).bubble()),
            [0.25, 0.125, 0.0]
        );
    }
}
