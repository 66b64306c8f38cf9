//! A mesh from the usual parallel degrees.

use super::{MeshError, MeshShape};
use serde::{Deserialize, Serialize};

/// How many ranks one kind of parallelism spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Degree {
    /// This many.
    Exact(usize),
    /// Whatever is left of the world.
    Infer,
}

impl From<usize> for Degree {
    fn from(degree: usize) -> Self {
        Degree::Exact(degree)
    }
}

/// The degrees of the usual parallelisms; [`ParallelDims::build`] makes the mesh.
///
/// By default every degree is 1, except that `dp_shard` takes the ranks that are left.
///
/// ```
/// use burn_dist_mesh::ParallelDims;
/// let dims = ParallelDims { tp: 2.into(), ..Default::default() };
/// assert_eq!(dims.build(8)?.to_string(), "fsdp=4,tp=2");
/// # Ok::<(), burn_dist_mesh::MeshError>(())
/// ```
/// # Source
/// The degrees and their order are torchtitan's. Differs: the axis of `dp_shard` is called `fsdp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ParallelDims {
    /// Data parallel with replicated parameters (DDP), axis `dp_replicate`.
    pub dp_replicate: Degree,
    /// Data parallel with parameters in pieces (FSDP), axis `fsdp`.
    pub dp_shard: Degree,
    /// Context parallel, axis `cp`.
    pub cp: Degree,
    /// Tensor parallel, axis `tp`.
    pub tp: Degree,
}

impl Default for ParallelDims {
    fn default() -> Self {
        let one = Degree::Exact(1);
        Self {
            dp_replicate: one,
            dp_shard: Degree::Infer,
            cp: one,
            tp: one,
        }
    }
}

impl ParallelDims {
    /// Returns the mesh of `world_size` ranks, outermost axis first: `dp_replicate, fsdp, cp, tp`; axes of size 1 are
    /// left out.
    ///
    /// # Errors
    /// [`MeshError::InferTwice`] if more than one degree is left open, [`MeshError::EmptyAxis`] for a degree of 0,
    /// [`MeshError::WorldSize`] if the degrees do not multiply to `world_size`.
    pub fn build(&self, world_size: usize) -> Result<MeshShape, MeshError> {
        let degrees = [
            ("dp_replicate", self.dp_replicate),
            ("fsdp", self.dp_shard),
            ("cp", self.cp),
            ("tp", self.tp),
        ];
        let mut known = 1usize;
        let mut open = Vec::new();
        for (name, degree) in degrees {
            match degree {
                Degree::Exact(0) => {
                    return Err(MeshError::EmptyAxis {
                        name: name.to_owned(),
                    });
                }
                Degree::Exact(degree) => known = known.saturating_mul(degree),
                Degree::Infer => open.push(name.to_owned()),
            }
        }
        let fits = world_size > 0 && world_size.is_multiple_of(known);
        let left = if fits { world_size / known } else { 1 };
        if open.len() > 1 {
            return Err(MeshError::InferTwice {
                names: open,
                example: left,
            });
        }
        if !fits || (open.is_empty() && left != 1) {
            return Err(MeshError::WorldSize {
                degrees: describe(&degrees),
                needed: known,
                world_size,
                hint: hint(&open, known, world_size, left),
            });
        }
        MeshShape::new(
            degrees
                .into_iter()
                .map(|(name, degree)| match degree {
                    Degree::Exact(degree) => (name, degree),
                    Degree::Infer => (name, left),
                })
                .filter(|&(_, degree)| degree != 1),
        )
    }
}

fn describe(degrees: &[(&str, Degree)]) -> String {
    let shown: Vec<_> = degrees
        .iter()
        .filter_map(|&(name, degree)| match degree {
            Degree::Exact(1) => None,
            Degree::Exact(degree) => Some(format!("{name}={degree}")),
            Degree::Infer => Some(format!("{name}=inferred")),
        })
        .collect();
    if shown.is_empty() {
        "no parallelism".to_owned()
    } else {
        shown.join(",")
    }
}

fn hint(open: &[String], known: usize, world_size: usize, left: usize) -> String {
    let fits = world_size > 0 && world_size.is_multiple_of(known);
    match open.first() {
        None if fits => format!("multiply a degree by {left}, or let one be inferred"),
        None | Some(_) if world_size == 0 => "start at least one rank".to_owned(),
        None => format!("start {known} ranks, or change a degree"),
        Some(name) => {
            let up = world_size.div_ceil(known).saturating_mul(known);
            format!("start a multiple of {known} ranks, for example {up}, so that {name} is whole")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use insta::assert_snapshot;

    fn exact(dp_replicate: usize, dp_shard: usize, tp: usize) -> ParallelDims {
        ParallelDims {
            dp_replicate: dp_replicate.into(),
            dp_shard: dp_shard.into(),
            tp: tp.into(),
            ..ParallelDims::default()
        }
    }

    #[test]
    fn order_and_sizes() {
        let mesh = exact(3, 4, 6).build(72).unwrap();
        assert_eq!(mesh.to_string(), "dp_replicate=3,fsdp=4,tp=6");
        assert_eq!(exact(1, 1, 2).build(2).unwrap().to_string(), "tp=2");
        let dims = ParallelDims {
            cp: 2.into(),
            ..exact(1, 2, 2)
        };
        assert_eq!(dims.build(8).unwrap().to_string(), "fsdp=2,cp=2,tp=2");
        assert_eq!(exact(1, 1, 1).build(1).unwrap().num_ranks(), 1);
    }

    #[test]
    fn one_degree_is_inferred() {
        let dims = ParallelDims {
            dp_replicate: Degree::Infer,
            ..exact(1, 2, 2)
        };
        let mesh = dims.build(12).unwrap();
        assert_eq!(mesh.to_string(), "dp_replicate=3,fsdp=2,tp=2");
        assert_eq!(ParallelDims::default().build(1).unwrap().to_string(), "1");
    }

    #[test]
    fn errors_say_what_fits() {
        let open = ParallelDims {
            tp: 3.into(),
            ..Default::default()
        };
        let twice = ParallelDims {
            tp: Degree::Infer,
            ..Default::default()
        };
        let errors: Vec<_> = [
            exact(1, 2, 2).build(8),
            exact(1, 2, 4).build(4),
            exact(1, 1, 1).build(0),
            exact(1, 0, 1).build(1),
            open.build(8),
            twice.build(8),
        ]
        .map(|built| built.unwrap_err().to_string())
        .into();
        assert_snapshot!(errors.join("\n"), @r"
        fsdp=2,tp=2 needs 4 ranks, but there are 8: multiply a degree by 2, or let one be inferred
        fsdp=2,tp=4 needs 8 ranks, but there are 4: start 8 ranks, or change a degree
        no parallelism needs 1 ranks, but there are 0: start at least one rank
        axis `fsdp` has size 0: an axis spans at least 1 rank; leave the axis out if it is not used
        fsdp=inferred,tp=3 needs 3 ranks, but there are 8: start a multiple of 3 ranks, for example 9, so that fsdp is whole
        fsdp and tp are all to be inferred, which has no single answer: give all but one, for example fsdp=8
        ");
    }
}
