//! Products of values in 8 bits by `mma`, the instruction for tensor cores that CubeCL has: NVIDIA's `m16n8k32`, from
//! compute capability 8.9 on. Operands lie by rows, along what is added up.
//!
//! A cube of eight planes makes a tile of 64 x 128, a plane 32 x 32 of it: with more, registers of GPUs that unpack
//! what they multiply do not suffice. 128 of what is added up are in shared memory, and the next ones are loaded into
//! registers. An instruction adds up in an order of its own, so it may as well take terms in the order in which they
//! are read best: a unit reads 16 neighbouring bytes of a row, its words of two instructions, of both operands alike.

use burn_dist_kernels::cuda::product::{BLOCK, Out, Product, Scales};
use burn_dist_plan::policy::Fp8;
use cubecl::cmma::MmaDefinition;
use cubecl::ir::{ElemType, FloatKind, StorageType};
use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::dialect::array;
use crate::launch::assert_counted;

/// Rows and columns of the result that a cube makes.
const TILE_ROWS: usize = 64;
const TILE_COLUMNS: usize = 128;
/// Units of a cube.
pub(crate) const UNITS: usize = 256;
/// Units of a plane.
const PLANE: usize = 32;
/// Rows that a plane makes, and columns.
const PLANE_ROWS: usize = 32;
const PLANE_COLUMNS: usize = 32;
/// Rows, columns and depth of an instruction.
const ROWS: usize = 16;
const COLUMNS: usize = 8;
const DEPTH: usize = 32;
/// Bytes of an operand that are read at once.
const CHUNK: usize = 16;
/// Chunks of a row of a tile.
const CHUNKS: usize = BLOCK / CHUNK;
/// Chunks of each operand that a unit reads of a tile.
const READS: [usize; 2] = [TILE_ROWS * CHUNKS / UNITS, TILE_COLUMNS * CHUNKS / UNITS];
/// Squares of `ROWS` x `COLUMNS` below and beside each other, of a plane.
const DOWN: usize = PLANE_ROWS / ROWS;
const ACROSS: usize = PLANE_COLUMNS / COLUMNS;

/// Bytes of shared memory: a tile of both operands, and inverses of scales.
pub(crate) const SHARED: usize = (TILE_ROWS + TILE_COLUMNS) * (BLOCK + size_of::<f32>());

/// The words that are read at once.
pub(crate) type Words = Vector<u32, Const<4>>;
/// Neighbours in a row of the result.
pub(crate) type Pair<T> = Vector<T, Const<2>>;

/// How far apart the scales of an operand are.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct Strides {
    /// The distance of those of neighbouring rows, or blocks of rows.
    pub row: usize,
    /// The distance of those of neighbouring blocks of what is added up.
    pub block: usize,
}

/// The product as a kernel knows it when it is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Variant {
    /// Rows of each operand that share a scale, or one if strides say it.
    pub rows_of_scale: [usize; 2],
    /// True if scales change along what is added up.
    pub in_blocks: bool,
    /// True if there is a bias.
    pub bias: bool,
}

impl Variant {
    /// Returns the variant for a product.
    pub(crate) fn of(product: &Product) -> Self {
        let rows = |scales: Scales| match scales {
            Scales::Block | Scales::BlockOfColumn => BLOCK,
            _ => 1,
        };
        Self {
            rows_of_scale: product.scales.map(rows),
            in_blocks: product.scales.iter().any(|scales| scales.is_of_blocks()),
            bias: product.bias,
        }
    }
}

/// The types of operands and result.
pub(crate) fn types(product: &Product) -> [StorageType; 3] {
    let format = |format: Fp8| match format {
        Fp8::E4M3 => FloatKind::E4M3,
        Fp8::E5M2 => FloatKind::E5M2,
    };
    let [a, b] = product.formats.map(format);
    let out = match product.out {
        Out::F32 => FloatKind::F32,
        Out::F16 => FloatKind::F16,
        Out::BF16 => FloatKind::BF16,
    };
    [a, b, out].map(|kind| ElemType::Float(kind).into())
}

/// Reads what a unit brings of a tile: zeros beyond the operand.
#[cube]
fn fetch(
    operand: &Array<Words>,
    read: &mut Array<Words>,
    row_first: usize,
    rows: usize,
    block: usize,
    chunks: usize,
    #[comptime] reads: usize,
) {
    #[unroll]
    for step in 0..reads {
        let index = UNIT_POS as usize + step * UNITS;
        let row = row_first + index / CHUNKS;
        let chunk = block * CHUNKS + index % CHUNKS;
        let mut words = Words::new(0u32);
        if row < rows && chunk < chunks {
            words = operand[row * chunks + chunk];
        }
        read[step] = words;
    }
}

/// Returns where a chunk of a row is in shared memory: neighbouring rows have their halves exchanged, so that what
/// eight units read at once, four chunks of two rows, lies in all banks.
#[cube]
fn place(row: usize, chunk: usize) -> usize {
    row * CHUNKS + (chunk ^ ((row % 2) * comptime!(CHUNKS / 2)))
}

/// Puts what a unit has read in shared memory.
#[cube]
fn put(tile: &mut SharedMemory<Words>, read: &Array<Words>, #[comptime] reads: usize) {
    #[unroll]
    for step in 0..reads {
        let index = UNIT_POS as usize + step * UNITS;
        tile[place(index / CHUNKS, index % CHUNKS)] = read[step];
    }
}

/// Returns the inverse of the scale of a row in a block.
#[cube]
fn inverse(
    scales: &Array<f32>,
    strides: &Strides,
    row: usize,
    rows: usize,
    block: usize,
    #[comptime] rows_of_scale: usize,
) -> f32 {
    let row = select(row < rows, row, rows - 1);
    1.0f32 / scales[row / rows_of_scale * strides.row + block * strides.block]
}

#[cube(launch)]
pub(crate) fn products<A: Numeric, B: Numeric, O: Float>(
    first: &Array<Words>,
    second: &Array<Words>,
    first_scales: &Array<f32>,
    second_scales: &Array<f32>,
    bias: &Array<Pair<O>>,
    out: &mut Array<Pair<O>>,
    first_strides: &Strides,
    second_strides: &Strides,
    rows: usize,
    columns: usize,
    chunks: usize,
    #[comptime] variant: Variant,
    #[define(A, B, O)] _types: [StorageType; 3],
) {
    let row_first = CUBE_POS_Y as usize * TILE_ROWS;
    let column_first = CUBE_POS_X as usize * TILE_COLUMNS;
    let mut first_tile = SharedMemory::<Words>::new(comptime!(TILE_ROWS * CHUNKS));
    let mut second_tile = SharedMemory::<Words>::new(comptime!(TILE_COLUMNS * CHUNKS));
    // Of the rows of the tile, then of its columns.
    let mut inverses = SharedMemory::<f32>::new(comptime!(TILE_ROWS + TILE_COLUMNS));

    // In a plane, a unit has rows `unit_row` and eight below it of each square, columns `2 * member` and the next one.
    let plane = UNIT_POS as usize / PLANE;
    let unit_row = UNIT_POS as usize % PLANE / 4;
    let member = UNIT_POS as usize % 4;
    let plane_row = plane / comptime!(TILE_COLUMNS / PLANE_COLUMNS) * PLANE_ROWS;
    let plane_column = plane % comptime!(TILE_COLUMNS / PLANE_COLUMNS) * PLANE_COLUMNS;

    let definition = MmaDefinition::<A, B, f32>::new(ROWS, COLUMNS, DEPTH);
    let mut sums = Sequence::<Array<Pair<f32>>>::new();
    let mut parts = Sequence::<Array<Pair<f32>>>::new();
    #[unroll]
    for _ in 0..comptime!(DOWN * ACROSS) {
        let mut sum = Array::<Pair<f32>>::new(2usize);
        sum[0] = Pair::<f32>::new(0.0f32);
        sum[1] = Pair::<f32>::new(0.0f32);
        sums.push(sum);
        parts.push(Array::<Pair<f32>>::new(2usize));
    }

    let mut first_read = Array::<Words>::new(comptime!(READS[0]));
    let mut second_read = Array::<Words>::new(comptime!(READS[1]));
    fetch(
        first,
        &mut first_read,
        row_first,
        rows,
        0usize,
        chunks,
        comptime!(READS[0]),
    );
    fetch(
        second,
        &mut second_read,
        column_first,
        columns,
        0usize,
        chunks,
        comptime!(READS[1]),
    );
    let blocks = chunks.div_ceil(CHUNKS);
    for block in 0..blocks {
        sync_cube();
        put(&mut first_tile, &first_read, comptime!(READS[0]));
        put(&mut second_tile, &second_read, comptime!(READS[1]));
        // Once, if scales are those of whole rows.
        if comptime!(variant.in_blocks) || block == 0 {
            let unit = UNIT_POS as usize;
            if unit < TILE_ROWS {
                inverses[unit] = inverse(
                    first_scales,
                    first_strides,
                    row_first + unit,
                    rows,
                    block,
                    comptime!(variant.rows_of_scale[0]),
                );
            } else if unit < comptime!(TILE_ROWS + TILE_COLUMNS) {
                inverses[unit] = inverse(
                    second_scales,
                    second_strides,
                    column_first + unit - TILE_ROWS,
                    columns,
                    block,
                    comptime!(variant.rows_of_scale[1]),
                );
            }
        }
        sync_cube();
        if block + 1 < blocks {
            fetch(
                first,
                &mut first_read,
                row_first,
                rows,
                block + 1,
                chunks,
                comptime!(READS[0]),
            );
            fetch(
                second,
                &mut second_read,
                column_first,
                columns,
                block + 1,
                chunks,
                comptime!(READS[1]),
            );
        }

        #[unroll]
        for square in 0..comptime!(DOWN * ACROSS) {
            let part = parts.index_mut(square);
            part[0] = Pair::<f32>::new(0.0f32);
            part[1] = Pair::<f32>::new(0.0f32);
        }
        #[unroll]
        for half in 0..2usize {
            let chunk = comptime!(half * CHUNKS / 2) + member;
            let mut beside = Array::<Words>::new(ACROSS);
            #[unroll]
            for across in 0..ACROSS {
                let row = plane_column + comptime!(across * COLUMNS) + unit_row;
                beside[across] = second_tile[place(row, chunk)];
            }
            #[unroll]
            for down in 0..DOWN {
                let row = plane_row + comptime!(down * ROWS) + unit_row;
                let upper = first_tile[place(row, chunk)];
                let lower = first_tile[place(row + 8, chunk)];
                #[unroll]
                for pair in 0..2usize {
                    let word = comptime!(pair * 2);
                    let mut a = Array::<Vector<A, Const<4>>>::new(4usize);
                    a[0] = Vector::<A, Const<4>>::reinterpret(upper[word]);
                    a[1] = Vector::<A, Const<4>>::reinterpret(lower[word]);
                    a[2] = Vector::<A, Const<4>>::reinterpret(upper[comptime!(word + 1)]);
                    a[3] = Vector::<A, Const<4>>::reinterpret(lower[comptime!(word + 1)]);
                    #[unroll]
                    for across in 0..ACROSS {
                        let words = beside[across];
                        let mut b = Array::<Vector<B, Const<4>>>::new(2usize);
                        b[0] = Vector::<B, Const<4>>::reinterpret(words[word]);
                        b[1] = Vector::<B, Const<4>>::reinterpret(words[comptime!(word + 1)]);
                        let part = parts.index_mut(comptime!(down * ACROSS + across));
                        definition.execute_inplace(&a, &b, part);
                    }
                }
            }
        }
        // Tensor cores may add up in fewer bits than f32 has: no more than a block.
        #[unroll]
        for down in 0..DOWN {
            #[unroll]
            for across in 0..ACROSS {
                let square = comptime!(down * ACROSS + across);
                let part = parts.index(square);
                let sum = sums.index_mut(square);
                #[unroll]
                for eight in 0..2usize {
                    if comptime!(variant.in_blocks) {
                        let row = plane_row + comptime!(down * ROWS + eight * 8) + unit_row;
                        let column = plane_column + comptime!(across * COLUMNS) + member * 2;
                        let scale = scale_of(&inverses, row, column);
                        sum[eight] += part[eight] * scale;
                    } else {
                        sum[eight] += part[eight];
                    }
                }
            }
        }
    }

    #[unroll]
    for down in 0..DOWN {
        #[unroll]
        for eight in 0..2usize {
            let row = plane_row + comptime!(down * ROWS + eight * 8) + unit_row;
            #[unroll]
            for across in 0..ACROSS {
                let column = plane_column + comptime!(across * COLUMNS) + member * 2;
                if row_first + row < rows && column_first + column < columns {
                    let sum = sums.index(comptime!(down * ACROSS + across));
                    let mut value = sum[eight];
                    if comptime!(!variant.in_blocks) {
                        value *= scale_of(&inverses, row, column);
                    }
                    let pair = (column_first + column) / 2;
                    if comptime!(variant.bias) {
                        value += Pair::<f32>::cast_from(bias[pair]);
                    }
                    out[(row_first + row) * (columns / 2) + pair] = Pair::<O>::cast_from(value);
                }
            }
        }
    }
}

/// Returns what a pair of a row is multiplied with.
#[cube]
fn scale_of(inverses: &SharedMemory<f32>, row: usize, column: usize) -> Pair<f32> {
    let of_row = inverses[row];
    let mut scale = Pair::<f32>::empty();
    scale[0] = of_row * inverses[TILE_ROWS + column];
    scale[1] = of_row * inverses[TILE_ROWS + column + 1];
    scale
}

/// Returns why there is no kernel for a product on a device.
pub(crate) fn supports(compute: (u32, u32), product: &Product) -> Result<(), &'static str> {
    let Product { m, n, k, .. } = *product;
    if compute < (8, 9) {
        return Err("no tensor cores for float8");
    }
    if m == 0 || n == 0 || k == 0 {
        return Err("nothing to multiply");
    }
    if n % 16 != 0 || k % 16 != 0 {
        return Err("N and K are not multiples of 16");
    }
    let is_counted = |rows: usize, columns: usize| {
        let elements = rows.checked_mul(columns);
        elements.is_some_and(|elements| u32::try_from(elements).is_ok())
    };
    if !(is_counted(m, k) && is_counted(n, k) && is_counted(m, n)) {
        return Err("a tensor of 2^32 elements or more");
    }
    // What a grid may have below each other.
    match cubes(product)[0] <= 65_535 {
        true => Ok(()),
        false => Err("more rows than a grid has"),
    }
}

/// Returns how many cubes make a product, below each other and beside each other.
pub(crate) fn cubes(product: &Product) -> [usize; 2] {
    [
        product.m.div_ceil(TILE_ROWS),
        product.n.div_ceil(TILE_COLUMNS),
    ]
}

/// Enqueues a product that [`supports`] allows. Operands lie by rows, `[m, k]` and `[n, k]`.
///
/// # Panics
/// If there are 2^32 elements or more.
pub(crate) fn product<R: Runtime>(
    client: &ComputeClient<R>,
    product: &Product,
    values: [&Handle; 2],
    scales: [&Handle; 2],
    bias: Option<&Handle>,
) -> Handle {
    let Product { m, n, k, .. } = *product;
    assert_counted(m * n);
    let out = client.empty(m * n * product.out.bytes());
    let strides = |side: usize, rows: usize| {
        let [row, block] = product.scales[side].strides(rows, k);
        StridesLaunch::new(row, block)
    };
    let count = |side: usize, rows: usize| product.scales[side].count(rows, k);
    let (bias_at, bias_pairs) = match bias {
        Some(bias) => (bias, n / 2),
        // It is not read.
        None => (scales[0], 1),
    };
    let [down, across] = cubes(product);
    products::launch::<R>(
        client,
        CubeCount::Static(across as u32, down as u32, 1),
        CubeDim::new_1d(UNITS as u32),
        array(values[0], m * k / CHUNK),
        array(values[1], n * k / CHUNK),
        array(scales[0], count(0, m)),
        array(scales[1], count(1, n)),
        array(bias_at, bias_pairs),
        array(&out, m * n / 2),
        strides(0, m),
        strides(1, n),
        m,
        n,
        k / CHUNK,
        Variant::of(product),
        types(product),
    );
    out
}
