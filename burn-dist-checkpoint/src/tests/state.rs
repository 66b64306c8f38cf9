//! States: tensors with known bytes, saved and loaded by layouts.

use super::worlds;
use crate::error::CheckpointError;
use crate::format::SaveId;
use crate::load::{Checkpoint, Match, Options, Request};
use crate::region::Region;
use crate::save::{Checkpoints, Part, Save, SavePlan, Tensor};
use burn_dist_layout::Layout;
use burn_dist_mesh::{BoolStore, DType, MeshShape, Rank};
use proptest::prelude::*;
use serde_json::Map;

/// Tensors on a mesh. Their bytes follow from the seed.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub mesh: MeshShape,
    pub tensors: Vec<Tensor>,
    pub seed: u64,
}

const DTYPES: [DType; 6] = [
    DType::F32,
    DType::BF16,
    DType::I64,
    DType::U8,
    DType::Bool(BoolStore::U32),
    DType::Bool(BoolStore::Native),
];

/// The seed of a state whose floats are NaN at their first element, and finite otherwise, as those of all others are.
pub(crate) const SPOILT: u64 = 0x5b01_17ed;

pub(crate) fn options() -> Options {
    Options {
        threads: 1,
        ..Options::default()
    }
}

impl State {
    /// One of a few tensors with uneven layouts, and a factor that is split within a dim.
    pub(crate) fn example() -> Self {
        Self::seeded(5)
    }

    pub(crate) fn seeded(seed: u64) -> Self {
        let mesh: MeshShape = "dp=2,fsdp=2".parse().unwrap();
        let tensor = |key: &str, dtype, shape: &[usize], layout: &str| {
            let layout = Layout::parse(layout, &mesh, Some(shape)).unwrap();
            Tensor::new(key, dtype, layout)
        };
        let tensors = vec![
            tensor("layers.0.weight", DType::F32, &[7, 5], "[{fsdp}, -]"),
            tensor("layers.0.bias", DType::BF16, &[5], "[-]"),
            tensor("qkv", DType::F32, &[12, 3], "[(3 . 4{fsdp}), -]"),
            tensor("columns", DType::U8, &[4, 6], "[-, {fsdp}]"),
            tensor("step", DType::I64, &[], "[]"),
            tensor("none", DType::F32, &[0, 3], "[-, -]"),
        ];
        Self {
            mesh,
            tensors,
            seed,
        }
    }

    /// Any: on any mesh, in any layouts.
    pub(crate) fn any() -> impl Strategy<Value = Self> {
        let tensors = |mesh: MeshShape| {
            let stages = mesh.pipeline_axis().map_or(1, |axis| mesh.size(axis));
            let stage = prop::option::of(0..stages);
            let dtype = prop::sample::select(DTYPES.to_vec());
            let tensor = (worlds::layout(mesh.clone()), dtype, stage);
            prop::collection::vec(tensor, 0..6).prop_map(move |tensors| {
                let each = tensors.into_iter().enumerate();
                let tensors = each.map(|(index, (layout, dtype, stage))| Tensor {
                    stage,
                    ..Tensor::new(format!("tensors.{index}"), dtype, layout)
                });
                (mesh.clone(), tensors.collect::<Vec<_>>())
            })
        };
        let tensors = worlds::mesh().prop_flat_map(tensors);
        (tensors, any::<u64>()).prop_map(|((mesh, tensors), seed)| Self {
            mesh,
            tensors,
            seed,
        })
    }

    /// The same tensors on another mesh, in other layouts.
    pub(crate) fn elsewhere(self) -> impl Strategy<Value = (Self, Self)> {
        worlds::mesh().prop_flat_map(move |mesh| {
            let from = self.clone();
            let layouts: Vec<_> = from
                .tensors
                .iter()
                .map(|tensor| worlds::layout_of(mesh.clone(), tensor.layout.shape()))
                .collect();
            layouts.prop_map(move |layouts| {
                let tensors = from.tensors.iter().zip(layouts);
                let tensors = tensors
                    .map(|(tensor, layout)| Tensor::new(tensor.key.clone(), tensor.dtype, layout));
                let to = Self {
                    mesh: mesh.clone(),
                    tensors: tensors.collect(),
                    seed: from.seed,
                };
                (from.clone(), to)
            })
        })
    }

    /// The bytes of a whole tensor.
    pub(crate) fn bytes(&self, key: &str) -> Vec<u8> {
        let tensor = self
            .tensors
            .iter()
            .find(|tensor| tensor.key == key)
            .unwrap();
        let count = tensor.layout.numel() * tensor.dtype.size();
        let start = key
            .bytes()
            .fold(self.seed, |n, c| n.wrapping_mul(31) + u64::from(c));
        let size = tensor.dtype.size();
        let mut bytes: Vec<u8> = (0..count as u64)
            .map(|i| ((start.wrapping_add(i)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8)
            .collect();
        if tensor.dtype.is_float() {
            // An exponent without a bit is that of a finite number.
            let highest = bytes.iter_mut().skip(size - 1).step_by(size);
            highest.for_each(|byte| *byte &= !0x40);
            if self.seed == SPOILT {
                bytes.iter_mut().take(size).for_each(|byte| *byte = 0xff);
            }
        }
        bytes
    }

    /// The block that a rank holds.
    pub(crate) fn block(&self, key: &str, rank: Rank) -> Vec<u8> {
        let tensor = self
            .tensors
            .iter()
            .find(|tensor| tensor.key == key)
            .unwrap();
        let (bytes, size) = (self.bytes(key), tensor.dtype.size());
        let elements = tensor.layout.elements(&self.mesh, rank);
        elements
            .flat_map(|i| bytes[i * size..(i + 1) * size].to_vec())
            .collect()
    }

    /// A writer for each rank.
    pub(crate) fn plan(&self) -> SavePlan {
        let writers: Vec<usize> = (0..self.mesh.num_ranks()).collect();
        SavePlan::new(&self.mesh, self.tensors.clone(), &writers).unwrap()
    }

    /// Writers of some ranks each.
    pub(crate) fn plan_by(&self, choice: u64) -> SavePlan {
        let each = choice as usize % self.mesh.num_ranks() + 1;
        let writers: Vec<usize> = (0..self.mesh.num_ranks()).map(|rank| rank / each).collect();
        SavePlan::new(&self.mesh, self.tensors.clone(), &writers).unwrap()
    }

    pub(crate) fn write(&self, save: &Save<'_>, plan: &SavePlan) -> Vec<Part> {
        self.try_write(save, plan).unwrap()
    }

    fn try_write(&self, save: &Save<'_>, plan: &SavePlan) -> Result<Vec<Part>, CheckpointError> {
        let part = |writer| {
            save.write(
                plan,
                writer,
                |share, file| {
                    let block = self.block(&share.key, share.rank);
                    // In two, as who streams does.
                    let (first, second) =
                        block[share.bytes.clone()].split_at(share.bytes.len() / 2);
                    file.write(first)?;
                    file.write(second)
                },
                |_| {},
            )
        };
        (0..plan.num_writers()).map(part).collect()
    }

    pub(crate) fn save(
        &self,
        to: &Checkpoints,
        step: u64,
        id: u128,
    ) -> Result<(), CheckpointError> {
        self.save_by(to, step, id, &self.plan())
    }

    pub(crate) fn save_by(
        &self,
        to: &Checkpoints,
        step: u64,
        id: u128,
        plan: &SavePlan,
    ) -> Result<(), CheckpointError> {
        let save = to.save(step, SaveId::new(id))?;
        let parts = self
            .try_write(&save, plan)
            .inspect_err(|_| save.abandon())?;
        save.commit(
            plan,
            parts,
            Map::from_iter([("step".to_owned(), step.into())]),
        )?;
        Ok(())
    }

    /// Loads what every rank holds, and compares.
    pub(crate) fn assert_is(&self, checkpoint: &Checkpoint, options: Options) {
        for rank in self.mesh.ranks() {
            let blocks = self.load(checkpoint, rank, options).unwrap();
            for (tensor, block) in self.tensors.iter().zip(blocks) {
                assert_eq!(
                    block,
                    self.block(&tensor.key, rank),
                    "{} of rank {rank}",
                    tensor.key
                );
            }
        }
    }

    /// Loads what a rank holds.
    pub(crate) fn load(
        &self,
        checkpoint: &Checkpoint,
        rank: Rank,
        options: Options,
    ) -> Result<Vec<Vec<u8>>, CheckpointError> {
        let local = |tensor: &Tensor| {
            vec![0; tensor.layout.local_numel(&self.mesh, rank) * tensor.dtype.size()]
        };
        let mut blocks: Vec<Vec<u8>> = self.tensors.iter().map(local).collect();
        let requests = self.tensors.iter().zip(&mut blocks).map(|(tensor, block)| {
            let region = Region::of(&tensor.layout, &self.mesh, rank).unwrap();
            Request::new(
                &tensor.key,
                tensor.dtype,
                &tensor.layout.shape(),
                region,
                block,
            )
        });
        let mut requests: Vec<Request<'_>> = requests.collect();
        let loaded = checkpoint.load(&mut requests, options)?;
        if options.matching == Match::Exact {
            assert!(loaded.report.is_empty());
        }
        Ok(blocks)
    }
}
