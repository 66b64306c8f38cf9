//! Operations on one rank where blocks of operands pass from rank to rank.

use std::marker::PhantomData;
use std::sync::Arc;

use burn_dist_plan::layout::Layout;
use burn_dist_plan::op::{Launched, LocalView, NewTensor, Op, Shift, Steps};
use burn_ir::{TensorId, TensorIr, TensorStatus};
use burn_std::DType;

use super::{Custom, CustomOp};
use crate::Recorded;
use crate::dtype::of_burn;
use burn_dist_mesh::{AxisIndex, Rank};

/// A tensor of one rank: a block of an operand, or an intermediate result.
#[derive(Clone, Debug)]
pub struct Part {
    ir: TensorIr,
}

impl Part {
    /// Returns its shape.
    pub fn shape(&self) -> &[usize] {
        &self.ir.shape
    }

    /// Returns its element type.
    pub fn dtype(&self) -> DType {
        self.ir.dtype
    }

    fn id(&self) -> u32 {
        u32::try_from(self.ir.id.value()).expect("tensors of a rank are numbered by slots")
    }
}

/// A block that passes from rank to rank: that of an input, or something of the same layout.
#[derive(Clone, Debug)]
pub struct Block {
    /// The part of it that this rank has.
    pub part: Part,
    layout: Arc<Layout>,
    axes: Arc<[AxisIndex]>,
    come: isize,
}

impl Block {
    /// Returns the ranks whose blocks come here, by the layout: first that of this block, then that of the one which
    /// comes next, and so on.
    pub fn homes(&self, view: &LocalView<'_>) -> Vec<Rank> {
        let further = 0..view.mesh.group_size(&self.axes) as isize;
        further
            .map(|places| self.home_after(view, places))
            .collect()
    }

    /// Returns the rank whose block is here once blocks have been passed on so many times.
    fn home_after(&self, view: &LocalView<'_>, times: isize) -> Rank {
        let (mesh, rank) = (view.mesh, view.rank);
        mesh.rank_before(rank, &self.axes, self.come + times)
    }

    /// Returns a block that is where this one is and has the same home.
    ///
    /// # Shapes
    /// `part` has the shape of this block.
    pub fn with(&self, part: Part) -> Self {
        debug_assert_eq!(part.shape(), self.part.shape());
        Self {
            part,
            ..self.clone()
        }
    }
}

/// Blocks that have been sent to the next ranks.
#[derive(Debug)]
#[must_use = "what was passed on is there only once it has arrived"]
pub struct Passing {
    launched: Launched,
    blocks: Vec<Block>,
}

/// The steps of one rank, in order.
///
/// All ranks of a group pass the same blocks on in the same order, also those that hold nothing.
pub struct CustomSteps<'a, O> {
    view: &'a LocalView<'a>,
    op: &'a Custom,
    steps: &'a mut Steps<Recorded>,
    of: PhantomData<O>,
}

impl<'a, O: CustomOp> CustomSteps<'a, O> {
    pub(super) fn new(
        view: &'a LocalView<'a>,
        op: &'a Custom,
        steps: &'a mut Steps<Recorded>,
    ) -> Self {
        Self {
            view,
            op,
            steps,
            of: PhantomData,
        }
    }

    /// Returns the operation as this rank sees it.
    pub fn view(&self) -> &'a LocalView<'a> {
        self.view
    }

    fn part(&self, ir: &TensorIr, shape: Vec<usize>) -> Part {
        Part {
            ir: TensorIr::uninit(ir.id, shape.into(), ir.dtype),
        }
    }

    /// Returns what this rank has of input `index`.
    pub fn input(&self, index: usize) -> Part {
        self.part(&self.op.inputs[index], self.view.input_shape(index))
    }

    /// Returns where this rank is to put its part of output `index`.
    pub fn output(&self, index: usize) -> Part {
        self.part(&self.op.outputs[index], self.view.output_shape(index))
    }

    /// Returns a tensor that is not yet made.
    pub fn temp(&mut self, shape: Vec<usize>, dtype: DType) -> Part {
        let id = TensorId::new(self.steps.temp().into());
        Part {
            ir: TensorIr::uninit(id, shape.into(), dtype),
        }
    }

    /// Runs an operation: `made` are as its [`execute`](super::Execute::execute) returns them.
    pub fn run(&mut self, op: O, inputs: &[&Part], made: &[&Part]) {
        let read = |part: &&Part| TensorIr {
            status: TensorStatus::ReadOnly,
            ..part.ir.clone()
        };
        self.steps.push(Recorded::Custom(Box::new(Custom {
            definition: Arc::new(op),
            kernel: self.op.kernel.clone(),
            inputs: inputs.iter().map(read).collect(),
            outputs: made.iter().map(|part| part.ir.clone()).collect(),
        })));
    }

    /// Makes zeros.
    pub fn zeros(&mut self, part: &Part) {
        self.steps.push(Recorded::zeros(NewTensor {
            id: part.id(),
            shape: part.shape().to_vec(),
            dtype: of_burn(part.dtype()),
        }));
    }

    /// Returns the block of input `index` whose dim `dim` is split, to be passed on along the axes that split it; `None`
    /// if none do.
    pub fn block(&self, index: usize, dim: usize) -> Option<Block> {
        let layout = &self.view.inputs[index];
        let axes: Arc<[AxisIndex]> = layout.dims[dim].axes().collect();
        (!axes.is_empty()).then(|| Block {
            part: self.input(index),
            layout: layout.clone(),
            axes,
            come: 0,
        })
    }

    /// Starts to pass blocks on to the ranks one place further, cyclically: what comes next runs beside it.
    ///
    /// # Communication
    /// A shift of each, in which the rank receives a block.
    pub fn pass(&mut self, blocks: &[&Block]) -> Passing {
        let (mut shifts, mut arriving) = (Vec::new(), Vec::new());
        for block in blocks {
            let home = block.home_after(self.view, 1);
            let shape = block.layout.local_shape(self.view.mesh, home);
            let next = Block {
                part: self.temp(shape, block.part.dtype()),
                come: block.come + 1,
                ..(*block).clone()
            };
            shifts.push(Shift {
                from: block.part.id(),
                to: next.part.id(),
                dtype: of_burn(block.part.dtype()),
                layout: block.layout.clone(),
                axes: block.axes.to_vec(),
                come: block.come,
                by: 1,
            });
            arriving.push(next);
        }
        Passing {
            launched: self.steps.launch(shifts),
            blocks: arriving,
        }
    }

    /// Waits for blocks, and returns them in the order in which they were passed on.
    pub fn arrive(&mut self, passing: Passing) -> Vec<Block> {
        self.steps.finish(passing.launched);
        passing.blocks
    }
}
