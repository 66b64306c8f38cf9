//! Groups of ranks along axes, named groups of axes, sub-meshes.

use super::shape::rank as to_rank;
use super::{AxisIndex, AxisRole, MeshError, MeshShape, Rank};

impl MeshShape {
    /// Returns the number of ranks in a group along `axes`.
    pub fn group_size(&self, axes: &[AxisIndex]) -> usize {
        axes.iter().map(|&axis| self.size(axis)).product()
    }

    /// Returns the ranks that agree with `rank` on every axis not in `axes`, ordered by their coordinates along `axes`,
    /// the first major.
    pub fn group_of(&self, rank: Rank, axes: &[AxisIndex]) -> Vec<Rank> {
        self.assert_rank(rank);
        let origin: usize = axes
            .iter()
            .map(|&axis| self.coord(rank, axis) * self.stride(axis))
            .sum();
        let mut flat = vec![rank.0 as usize - origin];
        for &axis in axes {
            let stride = self.stride(axis);
            flat = flat
                .iter()
                .flat_map(|&first| (0..self.size(axis)).map(move |i| first + i * stride))
                .collect();
        }
        flat.into_iter().map(to_rank).collect()
    }

    /// Returns the position of `rank` in its [`MeshShape::group_of`].
    pub fn group_index(&self, rank: Rank, axes: &[AxisIndex]) -> usize {
        axes.iter()
            .fold(0, |i, &axis| i * self.size(axis) + self.coord(rank, axis))
    }

    /// Returns all groups along `axes`, in the order of their first ranks. Every rank is in exactly one.
    pub fn groups(&self, axes: &[AxisIndex]) -> Vec<Vec<Rank>> {
        self.ranks()
            .filter(|&rank| self.group_index(rank, axes) == 0)
            .map(|rank| self.group_of(rank, axes))
            .collect()
    }

    /// Returns the rank that is `places` before `rank` along the group of `axes`, cyclically.
    ///
    /// ```
    /// use burn_dist_mesh::{MeshShape, Rank};
    /// let mesh = MeshShape::parse("dp=2,cp=3")?;
    /// let before = |places| mesh.rank_before(Rank(4), &[mesh.axis("cp").unwrap()], places);
    /// assert_eq!([0, 1, 2, -1].map(before), [4, 3, 5, 5].map(Rank));
    /// # Ok::<(), burn_dist_mesh::MeshError>(())
    /// ```
    pub fn rank_before(&self, rank: Rank, axes: &[AxisIndex], places: isize) -> Rank {
        let group = self.group_of(rank, axes);
        let index = self.group_index(rank, axes) as isize - places;
        group[index.rem_euclid(group.len() as isize) as usize]
    }

    /// Returns the axes over which the rows of a batch are split: those whose role [`AxisRole::splits_rows`],
    /// in mesh order.
    pub fn data_axes(&self) -> Vec<AxisIndex> {
        self.axes_that(AxisRole::splits_rows)
    }

    /// Returns the axes over which experts are split by default: those of role [`AxisRole::Expert`], in
    /// mesh order.
    pub fn expert_axes(&self) -> Vec<AxisIndex> {
        self.axes_that(AxisRole::splits_experts)
    }

    /// Returns the axes over which the sequences of a batch are split: those of role [`AxisRole::Context`], in mesh
    /// order.
    pub fn context_axes(&self) -> Vec<AxisIndex> {
        self.axes_that(AxisRole::splits_sequences)
    }

    /// Returns the axes over which parameters rest in pieces: those whose role [`AxisRole::shards`], in mesh order.
    pub fn shard_axes(&self) -> Vec<AxisIndex> {
        self.axes_that(AxisRole::shards)
    }

    /// Returns the axes that split the model itself: those of role [`AxisRole::Model`], in mesh order.
    pub fn model_axes(&self) -> Vec<AxisIndex> {
        self.axes_that(AxisRole::splits_model)
    }

    /// Returns the axis along which the model is cut into stages, if there is one of more than one rank.
    pub fn pipeline_axis(&self) -> Option<AxisIndex> {
        let axes = self.axes_that(AxisRole::cuts_stages);
        axes.into_iter().find(|axis| self.size(*axis) > 1)
    }

    /// Returns the axes of whose role something holds, such as [`AxisRole::shards`], in mesh order.
    pub fn axes_that(&self, wanted: impl Fn(AxisRole) -> bool) -> Vec<AxisIndex> {
        self.axis_indices()
            .filter(|&axis| wanted(self.role(axis)))
            .collect()
    }

    /// Returns the axes of a named group.
    ///
    /// An axis name stands for that axis; `model` for those that split its tensors, `data` for the data axes, `all` and
    /// `world` for all; names joined by `,` or `*` for the flattened group, the first name major. An axis that is
    /// itself called `data` or `model` wins over the group of that name.
    /// # Errors
    /// [`MeshError::UnknownAxis`] for a name that is none of these, [`MeshError::DuplicateAxis`] if an axis is named
    /// twice.
    pub fn group(&self, name: &str) -> Result<Vec<AxisIndex>, MeshError> {
        let mut group = Vec::new();
        for part in name.split([',', '*']) {
            let part = part.trim();
            let axes = match (self.axis(part), part) {
                (Ok(axis), _) => vec![axis],
                (Err(_), "all" | "world") => self.axis_indices().collect(),
                (Err(_), "data") => self.data_axes(),
                (Err(_), "model") => self.model_axes(),
                (Err(unknown), _) => return Err(unknown),
            };
            for axis in axes {
                if group.contains(&axis) {
                    return Err(MeshError::DuplicateAxis {
                        name: self.name(axis).to_owned(),
                    });
                }
                group.push(axis);
            }
        }
        Ok(group)
    }

    /// Returns the mesh of the named axes alone, in the order named.
    ///
    /// Rank `i` of the sub-mesh is `mesh.group_of(rank, axes)[i]` for any `rank` of the mesh.
    /// # Errors
    /// [`MeshError::UnknownAxis`], [`MeshError::DuplicateAxis`].
    pub fn sub_mesh(&self, names: &[&str]) -> Result<MeshShape, MeshError> {
        let axes = names
            .iter()
            .map(|name| Ok(self.axes()[usize::from(self.axis(name)?.0)].clone()))
            .collect::<Result<_, MeshError>>()?;
        Self::with_roles(axes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Axis;
    use proptest::prelude::*;

    fn mesh(text: &str) -> MeshShape {
        MeshShape::parse(text).unwrap()
    }

    fn ranks(ids: &[u32]) -> Vec<Rank> {
        ids.iter().copied().map(Rank).collect()
    }

    #[test]
    fn the_first_axis_of_a_group_is_major() {
        let mesh = mesh("a:model=2,b:model=2,c:model=2");
        let [a, b, c] = [0, 1, 2].map(AxisIndex);
        assert_eq!(mesh.group_of(Rank(3), &[a]), ranks(&[3, 7]));
        assert_eq!(mesh.group_of(Rank(3), &[a, c]), ranks(&[2, 3, 6, 7]));
        assert_eq!(mesh.group_of(Rank(3), &[c, a]), ranks(&[2, 6, 3, 7]));
        assert_eq!(mesh.group_of(Rank(3), &[]), ranks(&[3]));
        assert_eq!(
            mesh.groups(&[a, b]),
            [ranks(&[0, 2, 4, 6]), ranks(&[1, 3, 5, 7])]
        );
    }

    #[test]
    fn named_groups() {
        let m = mesh("pp=2,dp=2,fsdp=2,tp=2");
        let group = |name: &str| {
            m.group(name)
                .map(|g| g.iter().map(|a| a.0).collect::<Vec<_>>())
        };
        assert_eq!(group("tp").unwrap(), [3]);
        assert_eq!(group("data").unwrap(), [1, 2]);
        assert_eq!(group("model").unwrap(), [3]);
        assert_eq!(group("all").unwrap(), [0, 1, 2, 3]);
        assert_eq!(group("world").unwrap(), [0, 1, 2, 3]);
        assert_eq!(group("tp, dp").unwrap(), [3, 1]);
        assert_eq!(
            group("tp*model").unwrap_err(),
            MeshError::DuplicateAxis { name: "tp".into() }
        );
        assert!(matches!(group("ep"), Err(MeshError::UnknownAxis { .. })));
        assert!(matches!(group(""), Err(MeshError::UnknownAxis { .. })));
        assert_eq!(mesh("data=2,fsdp=2").group("data").unwrap(), [AxisIndex(0)]);
    }

    #[test]
    fn a_sub_mesh_numbers_ranks_like_the_group() {
        let m = mesh("a:model=2,b:model=3,c:model=4");
        let sub = m.sub_mesh(&["c", "a"]).unwrap();
        assert_eq!(sub.to_string(), "c:model=4,a:model=2");
        let axes = [AxisIndex(2), AxisIndex(0)];
        for rank in m.ranks() {
            for (i, member) in m.group_of(rank, &axes).into_iter().enumerate() {
                let coords = sub.coords(to_rank(i));
                assert_eq!(m.coord(member, axes[0]), coords[0]);
                assert_eq!(m.coord(member, axes[1]), coords[1]);
            }
        }
        assert!(m.sub_mesh(&["d"]).is_err());
        assert!(m.sub_mesh(&["a", "a"]).is_err());
    }

    proptest! {
        #[test]
        fn groups_partition_the_ranks(
            sizes in prop::collection::vec(1usize..5, 0..5),
            seed in any::<prop::sample::Index>(),
            mask in any::<u8>(),
        ) {
            let axes = sizes.iter().enumerate();
            let axes = axes.map(|(i, &s)| Axis::with_role(format!("a{i}"), s, AxisRole::Model));
            let mesh = MeshShape::with_roles(axes.collect()).unwrap();
            let mut axes: Vec<_> = mesh.axis_indices().filter(|a| mask >> a.0 & 1 == 1).collect();
            if !axes.is_empty() {
                let by = seed.index(axes.len());
                axes.rotate_left(by);
            }
            let groups = mesh.groups(&axes);
            let mut all: Vec<_> = groups.concat();
            all.sort();
            prop_assert_eq!(all, mesh.ranks().collect::<Vec<_>>());
            for group in groups {
                prop_assert_eq!(group.len(), mesh.group_size(&axes));
                for (i, &member) in group.iter().enumerate() {
                    prop_assert_eq!(mesh.group_index(member, &axes), i);
                    prop_assert_eq!(&mesh.group_of(member, &axes), &group);
                }
            }
        }
    }
}
