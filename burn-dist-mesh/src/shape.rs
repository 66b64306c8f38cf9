//! The mesh itself: axes, ranks, coordinates.

use super::axis::is_axis_name;
use super::{Axis, AxisIndex, AxisRole, MeshError, Rank};
use serde::{Deserialize, Serialize};

/// The axes of a mesh, outermost first. Ranks are numbered row-major.
///
/// ```
/// use burn_dist_mesh::{MeshShape, Rank};
/// let mesh = MeshShape::new([("fsdp", 2), ("tp", 4)])?;
/// assert_eq!(mesh.num_ranks(), 8);
/// assert_eq!(mesh.coords(Rank(6)), [1, 2]);
/// assert_eq!(mesh.to_string(), "fsdp=2,tp=4");
/// # Ok::<(), burn_dist_mesh::MeshError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<Axis>", into = "Vec<Axis>")]
pub struct MeshShape {
    // Valid names, no two alike; sizes at least 1; the product of the sizes fits a `Rank`.
    axes: Vec<Axis>,
}

impl MeshShape {
    /// Creates a mesh from (name, size) pairs, outermost first; each role follows from the name.
    ///
    /// No axes at all make a mesh of one rank.
    /// # Errors
    /// Those of [`Axis::new`] and [`MeshShape::with_roles`].
    pub fn new<S: Into<String>>(
        axes: impl IntoIterator<Item = (S, usize)>,
    ) -> Result<Self, MeshError> {
        let axes = axes.into_iter().map(|(name, size)| Axis::new(name, size));
        Self::with_roles(axes.collect::<Result<_, _>>()?)
    }

    /// Creates a mesh from axes with explicit roles.
    ///
    /// # Errors
    /// [`MeshError::BadName`], [`MeshError::EmptyAxis`], [`MeshError::DuplicateAxis`], [`MeshError::TooManyAxes`] and
    /// [`MeshError::TooManyRanks`].
    pub fn with_roles(axes: Vec<Axis>) -> Result<Self, MeshError> {
        let max = usize::from(u8::MAX);
        if axes.len() > max {
            return Err(MeshError::TooManyAxes {
                found: axes.len(),
                max,
            });
        }
        for (i, axis) in axes.iter().enumerate() {
            let name = axis.name.clone();
            if !is_axis_name(&name) {
                return Err(MeshError::BadName { name });
            }
            if axis.size == 0 {
                return Err(MeshError::EmptyAxis { name });
            }
            if axes[..i].iter().any(|other| other.name == name) {
                return Err(MeshError::DuplicateAxis { name });
            }
        }
        let mesh = Self { axes };
        let ranks = mesh.axes.iter().try_fold(1u32, |n, axis| {
            n.checked_mul(u32::try_from(axis.size).ok()?)
        });
        match ranks {
            Some(_) => Ok(mesh),
            None => Err(MeshError::TooManyRanks {
                mesh: mesh.to_string(),
                max: u32::MAX,
            }),
        }
    }

    /// Checks that the model is cut into stages along one axis at most.
    ///
    /// # Errors
    /// [`MeshError::TwoPipelines`].
    pub fn check_one_pipeline(&self) -> Result<(), MeshError> {
        let is_cut = |axis: &&Axis| axis.role.cuts_stages() && axis.size > 1;
        let mut cut = self.axes.iter().filter(is_cut);
        match (cut.next(), cut.next()) {
            (Some(first), Some(second)) => Err(MeshError::TwoPipelines {
                first: first.name.clone(),
                second: second.name.clone(),
                mesh: self.to_string(),
            }),
            _ => Ok(()),
        }
    }

    /// Returns the axes, outermost first.
    pub fn axes(&self) -> &[Axis] {
        &self.axes
    }

    /// Returns the number of axes.
    pub fn num_axes(&self) -> usize {
        self.axes.len()
    }

    /// Returns the number of ranks: the product of the sizes of the axes.
    pub fn num_ranks(&self) -> usize {
        self.axes.iter().map(|axis| axis.size).product()
    }

    /// Returns the number of ranks along an axis.
    pub fn size(&self, axis: AxisIndex) -> usize {
        self.get(axis).size
    }

    /// Returns the name of an axis.
    pub fn name(&self, axis: AxisIndex) -> &str {
        &self.get(axis).name
    }

    /// Returns the role of an axis.
    pub fn role(&self, axis: AxisIndex) -> AxisRole {
        self.get(axis).role
    }

    /// Returns the axis of this name.
    ///
    /// # Errors
    /// [`MeshError::UnknownAxis`], which lists the axes that exist.
    pub fn axis(&self, name: &str) -> Result<AxisIndex, MeshError> {
        self.axis_indices()
            .find(|&axis| self.name(axis) == name)
            .ok_or_else(|| MeshError::UnknownAxis {
                name: name.to_owned(),
                known: self.axes.iter().map(|axis| axis.name.clone()).collect(),
            })
    }

    /// Returns the index of every axis, outermost first.
    pub fn axis_indices(&self) -> impl Iterator<Item = AxisIndex> + use<> {
        (0..self.axes.len()).map(index)
    }

    /// Returns every rank, in order.
    pub fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..self.num_ranks()).map(rank)
    }

    /// Returns the coordinates of a rank, one per axis.
    ///
    /// Law: `mesh.rank(&mesh.coords(r)) == r`.
    pub fn coords(&self, rank: Rank) -> Vec<usize> {
        self.assert_rank(rank);
        let mut rest = rank.0 as usize;
        let mut coords = vec![0; self.axes.len()];
        for (coord, axis) in coords.iter_mut().zip(&self.axes).rev() {
            *coord = rest % axis.size;
            rest /= axis.size;
        }
        coords
    }

    /// Returns the coordinate of a rank along one axis.
    pub fn coord(&self, rank: Rank, axis: AxisIndex) -> usize {
        rank.0 as usize / self.stride(axis) % self.size(axis)
    }

    /// Returns the rank that differs from `rank` in one coordinate.
    ///
    /// # Panics
    /// If the coordinate lies outside the axis.
    pub fn with_coord(&self, rank: Rank, axis: AxisIndex, coord: usize) -> Rank {
        let mut coords = self.coords(rank);
        coords[usize::from(axis.0)] = coord;
        self.rank(&coords)
    }

    /// Returns the rank at these coordinates.
    ///
    /// # Panics
    /// If there is not one coordinate per axis, or one lies outside its axis.
    pub fn rank(&self, coords: &[usize]) -> Rank {
        assert_eq!(
            coords.len(),
            self.axes.len(),
            "one coordinate per axis of {self}"
        );
        let flat = coords.iter().zip(&self.axes).fold(0, |flat, (&c, axis)| {
            assert!(
                c < axis.size,
                "coordinate {c} is outside axis {} of {self}",
                axis.name
            );
            flat * axis.size + c
        });
        rank(flat)
    }

    /// Returns the distance in ranks between neighbours along an axis.
    pub(super) fn stride(&self, axis: AxisIndex) -> usize {
        self.axes[usize::from(axis.0) + 1..]
            .iter()
            .map(|axis| axis.size)
            .product()
    }

    fn get(&self, axis: AxisIndex) -> &Axis {
        match self.axes.get(usize::from(axis.0)) {
            Some(axis) => axis,
            None => panic!("axis index {} is outside the mesh {self}", axis.0),
        }
    }

    pub(super) fn assert_rank(&self, rank: Rank) {
        assert!(
            (rank.0 as usize) < self.num_ranks(),
            "rank {rank} is outside the mesh {self} of {} ranks",
            self.num_ranks()
        );
    }
}

/// A mesh is passed as anything that has a shape, the bare shape included.
impl AsRef<MeshShape> for MeshShape {
    fn as_ref(&self) -> &MeshShape {
        self
    }
}

impl TryFrom<Vec<Axis>> for MeshShape {
    type Error = MeshError;

    fn try_from(axes: Vec<Axis>) -> Result<Self, MeshError> {
        Self::with_roles(axes)
    }
}

impl From<MeshShape> for Vec<Axis> {
    fn from(mesh: MeshShape) -> Self {
        mesh.axes
    }
}

fn index(i: usize) -> AxisIndex {
    AxisIndex(u8::try_from(i).expect("a mesh has at most 255 axes"))
}

pub(super) fn rank(i: usize) -> Rank {
    Rank(u32::try_from(i).expect("the number of ranks fits a u32"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(axes: &[(&str, usize)]) -> Result<MeshShape, MeshError> {
        MeshShape::new(axes.iter().copied())
    }

    /// A mesh of axes of any name.
    fn any(axes: &[(&str, usize)]) -> Result<MeshShape, MeshError> {
        let axes = axes.iter().copied();
        let axes = axes.map(|(name, size)| Axis::with_role(name, size, AxisRole::Model));
        MeshShape::with_roles(axes.collect())
    }

    #[test]
    fn ranks_are_row_major() {
        let mesh = any(&[("a", 2), ("b", 3), ("c", 4)]).unwrap();
        assert_eq!(mesh.coords(Rank(0)), [0, 0, 0]);
        assert_eq!(mesh.coords(Rank(1)), [0, 0, 1]);
        assert_eq!(mesh.coords(Rank(23)), [1, 2, 3]);
        for rank in mesh.ranks() {
            let coords = mesh.coords(rank);
            assert_eq!(mesh.rank(&coords), rank);
            for axis in mesh.axis_indices() {
                assert_eq!(mesh.coord(rank, axis), coords[usize::from(axis.0)]);
            }
        }
    }

    #[test]
    fn no_axes_is_one_rank() {
        let mesh = new(&[]).unwrap();
        assert_eq!((mesh.num_axes(), mesh.num_ranks()), (0, 1));
        assert_eq!(mesh.rank(&[]), Rank(0));
    }

    #[test]
    fn roles_follow_names_unless_they_are_set() {
        let mesh = new(&[("dp", 2), ("fsdp", 2), ("tp", 2)]).unwrap();
        let roles: Vec<_> = mesh.axis_indices().map(|a| mesh.role(a)).collect();
        assert_eq!(
            roles,
            [AxisRole::Replicate, AxisRole::Shard, AxisRole::Model]
        );
        let axis = Axis::with_role("hosts", 2, AxisRole::Shard);
        let mesh = MeshShape::with_roles(vec![axis]).unwrap();
        assert_eq!(mesh.shard_axes(), [AxisIndex(0)]);
    }

    #[test]
    fn bad_axes_are_errors() {
        for name in ["", "2x", "a b", "a,b", "tp=", "{a}", "*", "é"] {
            let bad = MeshError::BadName { name: name.into() };
            assert_eq!(new(&[(name, 2)]), Err(bad.clone()));
            assert_eq!(any(&[(name, 2)]), Err(bad));
        }
        assert_eq!(
            new(&[("tp", 0)]).unwrap_err(),
            MeshError::EmptyAxis { name: "tp".into() }
        );
        assert_eq!(
            new(&[("tp", 2), ("tp", 2)]).unwrap_err(),
            MeshError::DuplicateAxis { name: "tp".into() }
        );
        let err = any(&[("a", 1 << 20), ("b", 1 << 20)]).unwrap_err();
        assert!(matches!(err, MeshError::TooManyRanks { .. }));
        assert!(any(&[("a", 1 << 16), ("b", (1 << 16) - 1)]).is_ok());
    }

    #[test]
    fn stages_are_along_one_axis() {
        let check = |text: &str| MeshShape::parse(text).unwrap().check_one_pipeline();
        for text in [
            "1",
            "pp=2,cp=2,tp=2",
            "dp=2,stages:model=2,ep=2",
            "pp=2,pipeline=1",
        ] {
            assert_eq!(check(text), Ok(()), "{text}");
        }
        let error = check("pp=2,pipeline=2").unwrap_err().to_string();
        assert!(error.contains("axes `pp` and `pipeline`"), "{error}");
    }

    #[test]
    fn an_axis_of_an_unknown_name_says_what_it_is_for() {
        let error = |text: &str| MeshShape::parse(text).unwrap_err().to_string();
        insta::assert_snapshot!(error("fdsp=2"), @"the axis `fdsp` has a name that says nothing of what it is for: did you mean `fsdp=2`? Known names are pp, dp, fsdp, ep, cp and tp, and their long forms; for another one say what it is for, as in `fdsp:model=2`: pipeline, replicate, shard, expert, context or model");
        insta::assert_snapshot!(error("tp=2,hosts=3"), @"the axis `hosts` has a name that says nothing of what it is for. Known names are pp, dp, fsdp, ep, cp and tp, and their long forms; for another one say what it is for, as in `hosts:model=3`: pipeline, replicate, shard, expert, context or model");
        let mesh = MeshShape::parse("hosts:shard=3").unwrap();
        assert_eq!(mesh.shard_axes(), [AxisIndex(0)]);
        insta::assert_snapshot!(error("hosts:shared=3"), @"cannot read the mesh `hosts:shared=3`: `shared` is no role of an axis: use pipeline, replicate, shard, expert, context or model; write axes as name=size, for example `fsdp=2,tp=4`");
    }

    #[test]
    fn an_unknown_axis_lists_the_known_ones() {
        let mesh = new(&[("fsdp", 2), ("tp", 2)]).unwrap();
        assert_eq!(
            mesh.axis("pp").unwrap_err().to_string(),
            "the mesh has no axis `pp`: it has fsdp, tp"
        );
    }

    #[test]
    fn deserialising_checks() {
        let mesh = new(&[("fsdp", 2), ("tp", 2)]).unwrap();
        let json = serde_json::to_string(&mesh).unwrap();
        assert_eq!(serde_json::from_str::<MeshShape>(&json).unwrap(), mesh);
        let twice = json.replace("fsdp", "tp");
        assert!(serde_json::from_str::<MeshShape>(&twice).is_err());
    }
}
