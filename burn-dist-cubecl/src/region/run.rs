//! Launches of a region's kernels.

use burn_dist_kernels::region::number_bits;
use burn_dist_plan::region::{Extent, Fold, Keep, Number, ROWS_OF_A_SUM, Region};
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::code::{
    Code, Constant, Draw, Kind, NUMBERS_OF_DRAW, Source, Store, Stored, Value, Values,
};
use super::kernels::{self, LANES, ROWS_AT_ONCE};
use crate::dialect::{Client, array, arrays, words};
use crate::launch::{assert_counted, cubes};

/// Units of a cube that share nothing.
const UNITS: u32 = 64;

/// An operand on a device.
#[derive(Clone, Debug)]
pub struct Operand {
    /// Where its first element is.
    pub handle: Handle,
    /// How many elements apart its elements are along each dim of the region's space; not read along those that it does
    /// not span.
    pub strides: Vec<usize>,
}

/// An operand of a kernel, or what it draws: its buffer with the words of that, and how far elements, or their numbers,
/// are apart in rows of the space.
struct Input {
    buffer: Option<(Handle, usize)>,
    outer: Vec<usize>,
    last: usize,
}

/// The space as rows: dims that every operand passes through evenly are one.
struct Geometry {
    outer: Vec<usize>,
    rows: usize,
    len: usize,
}

impl Geometry {
    /// Returns the space of a kernel, and how its operands and draws pass through it.
    fn new(run: &Run<'_, impl Client>, operands: &[usize], draws: &[usize]) -> (Self, Vec<Input>) {
        let region = run.region;
        let (len, outer) = region.space.split_last().expect("a space has a dim");
        let of_operands = operands.iter().map(|operand| {
            let strides = run.operands[*operand].strides.iter();
            let spans = strides.zip(&region.spans[*operand]);
            let strides = spans.map(|(stride, spans)| if *spans { *stride } else { 0 });
            strides.collect::<Vec<usize>>()
        });
        let of_draws = draws
            .iter()
            .map(|draw| run.draws[*draw].numbering.strides.clone());
        let strides: Vec<Vec<usize>> = of_operands.chain(of_draws).collect();
        let mut dims: Vec<(usize, Vec<usize>)> = Vec::new();
        for (dim, size) in outer.iter().enumerate() {
            let own: Vec<usize> = strides.iter().map(|strides| strides[dim]).collect();
            if *size == 1 {
                continue;
            }
            match dims.last_mut() {
                Some((before, strides))
                    if strides
                        .iter()
                        .zip(&own)
                        .all(|(outer, own)| *outer == own * size) =>
                {
                    *before *= size;
                    *strides = own;
                }
                _ => dims.push((*size, own)),
            }
        }
        let buffer_of = |operand: usize| {
            let stored = Stored::of(region.formula.operands[operand]).expect("it is supported");
            let shape = region.operand_shape(operand);
            let sizes = shape.iter().zip(&run.operands[operand].strides);
            let reach: usize = sizes
                .map(|(size, stride)| size.saturating_sub(1) * stride)
                .sum();
            let handle = run.operands[operand].handle.clone();
            (handle, (reach + 1).div_ceil(stored.per_word))
        };
        let inputs = strides.iter().enumerate().map(|(at, strides)| Input {
            buffer: operands.get(at).map(|operand| buffer_of(*operand)),
            outer: dims.iter().map(|(_, strides)| strides[at]).collect(),
            last: strides[outer.len()],
        });
        let inputs = inputs.collect();
        let geometry = Self {
            rows: outer.iter().product(),
            outer: dims.iter().map(|(size, _)| *size).collect(),
            len: *len,
        };
        (geometry, inputs)
    }

    /// Elements one after the other.
    fn plain(rows: usize, len: usize) -> Self {
        Self {
            outer: if rows == 1 { Vec::new() } else { vec![rows] },
            rows,
            len,
        }
    }

    fn input(&self, handle: Handle, of: Extent) -> Input {
        let last = usize::from(of == Extent::Elements);
        let apart = if last == 1 { self.len } else { 1 };
        Input {
            buffer: Some((handle, self.rows * apart)),
            outer: self.outer.iter().map(|_| apart).collect(),
            last,
        }
    }
}

/// A run of a region.
struct Run<'a, C> {
    client: &'a C,
    region: &'a Region,
    operands: &'a [Operand],
    draws: &'a [Draw],
    values: Values,
    /// The constants, scalars and numbers of draws, as bits.
    numbers: Vec<u32>,
}

/// Runs a region: one operand and one draw for each of the region's, in order. Returns its results, which lie without
/// gaps.
///
/// # Panics
/// If the region is not [supported](super::supports), or has 2^32 elements or more.
pub fn run<C: Client>(
    client: &C,
    region: &Region,
    operands: &[Operand],
    scalars: &[Number],
    draws: &[Draw],
) -> Vec<Handle> {
    assert_counted(region.space.iter().product());
    let values = Values::new(region, draws);
    let of_draws: Vec<[u32; NUMBERS_OF_DRAW]> = draws.iter().map(Draw::numbers).collect();
    let numbers = values.numbers.iter().map(|number| match *number {
        Constant::Known(number, dtype) => number_bits(number, dtype),
        Constant::Scalar(scalar, dtype) => number_bits(scalars[scalar], dtype),
        Constant::OfDraw(draw, number) => of_draws[draw][number],
    });
    let run = Run {
        client,
        region,
        operands,
        draws,
        numbers: numbers.collect(),
        values,
    };
    run.results()
}

impl<C: Client> Run<'_, C> {
    fn results(&self) -> Vec<Handle> {
        let region = self.region;
        let mut made: Vec<Option<Handle>> = region.keeps.iter().map(|_| None).collect();
        // Results of elements and of rows that no fold is needed for, and those with folds.
        let kept = |extent: Extent, folds: bool| {
            let keeps = region.keeps.iter().enumerate();
            let each = keeps.filter_map(move |(result, keep)| match keep {
                Keep::Each(of) if *of == extent => Some(result),
                _ => None,
            });
            each.filter(move |result| self.values.folds(self.values.results[*result]) == folds)
                .collect::<Vec<usize>>()
        };
        for extent in [Extent::Elements, Extent::Rows] {
            let results = kept(extent, false);
            let stores: Vec<Store> = results.iter().map(|result| self.store(*result)).collect();
            for (result, handle) in results.iter().zip(self.elements(stores, extent)) {
                made[*result] = Some(handle);
            }
        }
        // With folds, a unit writes one element, so that those that share a word are packed afterwards. What is folded
        // over rows is written too, and folded then.
        let mut of_rows: Vec<usize> = kept(Extent::Elements, true);
        of_rows.extend(kept(Extent::Rows, true));
        let over = (0..region.keeps.len()).filter(|result| self.over(*result).is_some());
        let over: Vec<usize> = over.collect();
        let folded = over.iter().copied();
        of_rows.extend(folded.filter(|result| self.values.folds(self.values.results[*result])));
        let stores: Vec<Store> = of_rows
            .iter()
            .map(|result| self.wide_store(*result))
            .collect();
        let mut temporary: Vec<Option<Handle>> = region.keeps.iter().map(|_| None).collect();
        for (result, handle) in of_rows.iter().zip(self.rows(stores)) {
            temporary[*result] = Some(handle);
        }
        for result in over {
            made[result] = Some(self.fold_over(result, temporary[result].take()));
        }
        let made = made.into_iter().zip(temporary).enumerate();
        let made = made.map(|(result, (made, temporary))| {
            made.unwrap_or_else(|| {
                let wide = temporary.expect("what is kept is made above");
                self.packed(wide, result, self.num_elements(result))
            })
        });
        made.collect()
    }

    /// Returns how rows are folded for a result, and what: its elements, or one value for each row.
    fn over(&self, result: usize) -> Option<(Fold, Extent)> {
        match self.region.keeps[result] {
            Keep::Each(_) => None,
            Keep::OverRows(fold) => Some((fold, Extent::Elements)),
            Keep::OverAll(fold, _) => Some((fold, Extent::Rows)),
        }
    }

    fn num_elements(&self, result: usize) -> usize {
        self.region.result_shape(result).iter().product()
    }

    /// How a result is stored.
    fn stored(&self, result: usize) -> Stored {
        let register = self.region.formula.results[result];
        Stored::of(self.region.formula.dtype(register)).expect("it is supported")
    }

    /// The store of a result.
    fn store(&self, result: usize) -> Store {
        Store {
            stored: self.stored(result),
            ..self.wide_store(result)
        }
    }

    /// The same with one element in each word: of what is folded over rows, before that is done.
    fn wide_store(&self, result: usize) -> Store {
        let value = self.values.results[result];
        let extent = match self.region.keeps[result] {
            Keep::Each(extent) => extent,
            // One for each row, once they are spread.
            Keep::OverRows(_) => self.values.values[value].extent,
            Keep::OverAll(..) => Extent::Rows,
        };
        Store {
            value,
            stored: Stored::wide(self.values.values[value].kind),
            extent,
        }
    }

    /// Returns the numbers that a kernel is launched with.
    fn numbers(&self, geometry: &Geometry, inputs: &[Input], own: &[u32]) -> Vec<u32> {
        let mut numbers = vec![
            0,
            0,
            0,
            0,
            geometry.rows as u32,
            geometry.len as u32,
            f32::NEG_INFINITY.to_bits(),
            f32::INFINITY.to_bits(),
        ];
        numbers.extend(geometry.outer.iter().map(|size| *size as u32));
        for input in inputs {
            numbers.push(input.last as u32);
            numbers.extend(input.outer.iter().map(|stride| *stride as u32));
        }
        numbers.extend(own);
        numbers
    }

    /// Returns the code that stores values, its space and operands.
    fn code(&self, stores: Vec<Store>) -> (Code, Geometry, Vec<Input>) {
        let (_, operands, draws) = self.values.code(stores.clone(), 0);
        let (geometry, inputs) = Geometry::new(self, &operands, &draws);
        let (code, ..) = self.values.code(stores, geometry.outer.len());
        (code, geometry, inputs)
    }

    fn handles(inputs: &[Input]) -> Vec<(Handle, usize)> {
        let buffers = inputs.iter().filter_map(|input| input.buffer.clone());
        buffers.collect()
    }

    /// Memory for elements, and its words.
    fn empty(&self, elements: usize, stored: Stored) -> (Handle, usize) {
        let words = elements.div_ceil(stored.per_word);
        // There is no memory of no bytes.
        let bytes = words.max(1) * size_of::<u32>();
        (self.client.cubecl().empty(bytes), words)
    }

    /// Runs the kernel of elements, where no rows are folded.
    fn elements(&self, stores: Vec<Store>, extent: Extent) -> Vec<Handle> {
        if stores.is_empty() {
            return Vec::new();
        }
        let (code, mut geometry, mut inputs) = self.code(stores);
        if extent == Extent::Rows {
            geometry.len = 1;
        }
        // Values of rows are the same for elements of one row alone.
        let spans_rows = |value: &Value| match value.source {
            Source::Operand { .. } => value.extent == Extent::Elements,
            _ => true,
        };
        if extent == Extent::Elements && code.values.iter().all(spans_rows) {
            join(&mut geometry, &mut inputs);
        }
        let (code, ..) = self.values.code(code.stores, geometry.outer.len());
        self.launch_elements(code, &geometry, &inputs, &self.numbers)
    }

    fn launch_elements(
        &self,
        code: Code,
        geometry: &Geometry,
        inputs: &[Input],
        own: &[u32],
    ) -> Vec<Handle> {
        let elements = geometry.rows * geometry.len;
        let stores = code.stores.iter();
        let outputs: Vec<(Handle, usize)> = stores
            .map(|store| self.empty(elements, store.stored))
            .collect();
        let per_word: Vec<usize> = code
            .stores
            .iter()
            .map(|store| store.stored.per_word)
            .collect();
        if elements > 0 {
            kernels::elements::launch(
                self.client.cubecl(),
                cubes(elements.div_ceil(code.per_unit).div_ceil(UNITS as usize)),
                CubeDim::new_1d(UNITS),
                arrays(&Self::handles(inputs)),
                arrays(&outputs),
                words(&self.numbers(geometry, inputs, own)),
                code,
            );
        }
        let made = outputs.into_iter().zip(per_word);
        made.map(|((handle, words), per_word)| trimmed(handle, words, elements, per_word))
            .collect()
    }

    /// Runs the kernel that folds rows.
    fn rows(&self, stores: Vec<Store>) -> Vec<Handle> {
        if stores.is_empty() {
            return Vec::new();
        }
        let (code, geometry, inputs) = self.code(stores);
        let outputs = code.stores.iter().map(|store| {
            let elements = match store.extent {
                Extent::Elements => geometry.rows * geometry.len,
                Extent::Rows => geometry.rows,
            };
            self.empty(elements, store.stored)
        });
        let outputs: Vec<(Handle, usize)> = outputs.collect();
        if geometry.rows > 0 {
            kernels::rows::launch(
                self.client.cubecl(),
                cubes(geometry.rows.div_ceil(ROWS_AT_ONCE)),
                CubeDim::new_1d((LANES * ROWS_AT_ONCE) as u32),
                arrays(&Self::handles(&inputs)),
                arrays(&outputs),
                words(&self.numbers(&geometry, &inputs, &self.numbers)),
                code,
            );
        }
        outputs.into_iter().map(|(handle, _)| handle).collect()
    }

    /// Folds rows: of a value that has been written, one in each word, or of one that is made meanwhile.
    fn fold_over(&self, result: usize, written: Option<Handle>) -> Handle {
        let (fold, extent) = self.over(result).expect("it is folded over rows");
        let store = self.wide_store(result);
        let kind = self.values.values[store.value].kind;
        let width = match extent {
            Extent::Elements => self.region.row_len(),
            Extent::Rows => 1,
        };
        let (code, mut geometry, inputs, own) = match written {
            None => {
                let (code, geometry, inputs) = self.code(vec![store]);
                (code, geometry, inputs, &self.numbers[..])
            }
            Some(handle) => {
                let geometry = Geometry::plain(self.region.rows(), self.region.row_len());
                let input = geometry.input(handle, store.extent);
                let code = copy(kind, store.extent, store.stored, geometry.outer.len());
                (code, geometry, vec![input], &[][..])
            }
        };
        geometry.len = width;
        let blocks = geometry.rows.div_ceil(ROWS_OF_A_SUM);
        let sums = self.empty(blocks * width, store.stored);
        if blocks * width > 0 {
            kernels::blocks::launch(
                self.client.cubecl(),
                cubes((blocks * width).div_ceil(UNITS as usize)),
                CubeDim::new_1d(UNITS),
                arrays(&Self::handles(&inputs)),
                arrays(std::slice::from_ref(&sums)),
                words(&self.numbers(&geometry, &inputs, own)),
                code,
                fold,
                kind,
            );
        }
        let out = self.empty(width, store.stored);
        if width > 0 {
            kernels::columns::launch(
                self.client.cubecl(),
                cubes(width.div_ceil(UNITS as usize)),
                CubeDim::new_1d(UNITS),
                array(&sums.0, sums.1),
                array(&out.0, out.1),
                words(&self.numbers(&Geometry::plain(blocks, width), &[], &[])),
                store,
                fold,
                kind,
            );
        }
        self.packed(out.0, result, width)
    }

    /// Returns elements as they are stored, from one in each word.
    fn packed(&self, wide: Handle, result: usize, elements: usize) -> Handle {
        let stored = self.stored(result);
        if stored.per_word == 1 {
            return wide;
        }
        let geometry = Geometry::plain(1, elements);
        let input = geometry.input(wide, Extent::Elements);
        let code = copy(stored.kind, Extent::Elements, stored, 0);
        self.launch_elements(code, &geometry, &[input], &[])
            .remove(0)
    }
}

/// The code that stores a value that was written, one in each word.
fn copy(kind: Kind, extent: Extent, stored: Stored, outer: usize) -> Code {
    let value = Value {
        source: Source::Operand {
            buffer: 0,
            stored: Stored::wide(kind),
        },
        kind,
        extent,
        phase: 0,
    };
    let values = Values {
        values: vec![value],
        numbers: Vec::new(),
        results: vec![0],
    };
    let store = Store {
        value: 0,
        stored,
        extent,
    };
    values.code(vec![store], outer).0
}

/// Makes the rows of a space one, where they follow each other in every operand.
fn join(geometry: &mut Geometry, inputs: &mut [Input]) {
    let len = geometry.len;
    match geometry.outer[..] {
        [] => {}
        [rows]
            if inputs
                .iter()
                .all(|input| input.outer[0] == input.last * len) =>
        {
            geometry.outer.clear();
            geometry.len = rows * len;
            geometry.rows = 1;
            inputs.iter_mut().for_each(|input| input.outer.clear());
        }
        _ => {}
    }
}

/// Leaves out the bytes of the last word that are no elements.
fn trimmed(handle: Handle, words: usize, elements: usize, per_word: usize) -> Handle {
    let bytes = elements * size_of::<u32>() / per_word;
    let held = words.max(1) * size_of::<u32>();
    handle.offset_end((held - bytes) as u64)
}
