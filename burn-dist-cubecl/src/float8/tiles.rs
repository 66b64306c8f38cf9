//! Which elements of a tensor share a scale.

use burn_dist_plan::float8::{BLOCK, ScaleOf};

/// A tensor as matrices, and which of its elements share a scale: rectangles, of which the last ones of a matrix may be
/// smaller. Scales lie one after the other, matrix by matrix, and by rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiles {
    /// The number of matrices.
    pub count: usize,
    /// The size of a matrix.
    pub height: usize,
    /// The size of a matrix along the last dim.
    pub width: usize,
    /// Rows of a rectangle.
    pub tile_height: usize,
    /// Columns of a rectangle.
    pub tile_width: usize,
}

impl Tiles {
    /// Rows or columns of a rectangle that has all of them: there is one also where there are none.
    pub const ALL: usize = usize::MAX;

    /// Returns the rectangles of a tensor.
    pub fn of(scale: ScaleOf, shape: &[usize]) -> Self {
        let (width, rows) = match shape.split_last() {
            Some((width, rows)) => (*width, rows.iter().product()),
            None => (1, 1),
        };
        let all = Self {
            count: 1,
            height: rows,
            width,
            tile_height: Self::ALL,
            tile_width: Self::ALL,
        };
        match scale {
            ScaleOf::Tensor => all,
            ScaleOf::Row => Self {
                tile_height: 1,
                ..all
            },
            ScaleOf::Column => Self {
                tile_width: 1,
                ..all
            },
            ScaleOf::RowTile => Self::blocks(shape, 1, BLOCK),
            ScaleOf::ColumnTile => Self::blocks(shape, BLOCK, 1),
            ScaleOf::Block => Self::blocks(shape, BLOCK, BLOCK),
        }
    }

    /// Returns rectangles of `height` x `width` in the last two dims.
    pub fn blocks(shape: &[usize], height: usize, width: usize) -> Self {
        let (rows, columns, count) = match shape {
            [] => (1, 1, 1),
            [columns] => (1, *columns, 1),
            [rest @ .., rows, columns] => (*rows, *columns, rest.iter().product()),
        };
        Self {
            count,
            height: rows,
            width: columns,
            tile_height: height.max(1),
            tile_width: width.max(1),
        }
    }

    /// Returns the number of elements.
    pub fn num_elements(&self) -> usize {
        self.count * self.height * self.width
    }

    /// Returns how many rectangles are below each other.
    pub fn down(&self) -> usize {
        match self.tile_height {
            Self::ALL => 1,
            tile => self.height.div_ceil(tile),
        }
    }

    /// Returns how many rectangles are beside each other.
    pub fn across(&self) -> usize {
        match self.tile_width {
            Self::ALL => 1,
            tile => self.width.div_ceil(tile),
        }
    }

    /// Returns the number of the scale of an element.
    pub fn scale_of(&self, index: usize) -> usize {
        let (row, column) = (index / self.width, index % self.width);
        let down = row / self.height * self.down() + row % self.height / self.tile_height;
        down * self.across() + column / self.tile_width
    }

    /// Returns the number of scales.
    pub fn num_scales(&self) -> usize {
        self.count * self.down() * self.across()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the scale of each element, row by row.
    fn scales(tiles: Tiles) -> Vec<usize> {
        (0..tiles.num_elements())
            .map(|index| tiles.scale_of(index))
            .collect()
    }

    #[test]
    fn elements_share_the_scale_of_their_rectangle() {
        let shape = [2, 2, 3];
        let of = |scale| Tiles::of(scale, &shape);
        assert_eq!(scales(of(ScaleOf::Tensor)), [0; 12]);
        assert_eq!(
            scales(of(ScaleOf::Row)),
            [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
        );
        assert_eq!(
            scales(of(ScaleOf::Column)),
            [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]
        );
        let blocks = |height, width| scales(Tiles::blocks(&shape, height, width));
        assert_eq!(blocks(1, 2), [0, 0, 1, 2, 2, 3, 4, 4, 5, 6, 6, 7]);
        assert_eq!(blocks(2, 1), [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]);
        assert_eq!(blocks(2, 2), [0, 0, 1, 0, 0, 1, 2, 2, 3, 2, 2, 3]);
        assert_eq!(blocks(128, 128), [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]);
    }

    #[test]
    fn there_are_as_many_scales_as_the_planner_makes() {
        for shape in [
            &[][..],
            &[0],
            &[7],
            &[0, 3],
            &[3, 0],
            &[1, 1],
            &[4, 5],
            &[2, 3, 4],
            &[2, 0, 4],
        ] {
            for scale in [ScaleOf::Tensor, ScaleOf::Row, ScaleOf::Column] {
                let tiles = Tiles::of(scale, shape);
                let planned: usize = scale.shape(shape).iter().product();
                assert_eq!(tiles.num_scales(), planned, "{scale:?} of {shape:?}");
                assert!(scales(tiles).iter().all(|scale| *scale < planned));
            }
        }
    }
}
