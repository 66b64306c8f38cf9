//! Operations that Burn does not have: a crate's own kernels on a mesh, with their rule, what a rank does, how it runs
//! and their gradient.
//!
//! | who | says |
//! | --- | --- |
//! | [`CustomOp`] | what it makes, what of it may be split over ranks, how the operation of one rank differs, and what passes between ranks ([`CustomSteps`]) |
//! | [`Execute`] | how a backend runs it on what a rank holds |
//! | `WithKernels` | which backends run it, from Burn 0.22 on, where a program's tensors name no backend |
//! | [`call`] | records it on a mesh |
//! | [`check`] | runs every split that its rule allows, and compares it with one device |
//!
//! A gradient is written as Burn's users write it: a backend trait with the operation and its backward, which `Autodiff`
//! implements once for every backend. `examples/custom_op` is a whole one: a bias and GELU in one kernel, split over a
//! tensor-parallel axis.

pub use burn_dist_plan::op::{FloatClass, LocalView, Work};
pub use burn_dist_plan::region::{Binary, Fold, Unary};
pub use burn_dist_plan::rule::oracle::Mismatch;
pub use burn_dist_plan::rule::{FactorKind, Lowering, Name, OpRule, RuleBuilder, Shapes};
pub use burn_ir::BackendIr;
pub use burn_std::DType;

pub use crate::ops::custom::{
    Block, CustomError, CustomOp, CustomSteps, CustomTensor, Execute, Part, Passing, TensorInfo,
};
#[cfg(not(burn_021))]
pub use crate::ops::custom::{Kernels, WithKernels};
pub use crate::ops::formula::Value;
#[cfg(not(burn_021))]
pub use crate::record::Callable;
pub use crate::record::call;

use burn_dist_plan::rule::oracle::{self, Case, Values};

use crate::burn::data::*;
use crate::ops::Recorded;
use crate::ops::custom::Custom;
use crate::ops::dtype::of_burn;
use crate::ops::execute::{from_data, into_data};
use crate::run::run_alone;

/// Runs an operation under every split that its rule allows, on meshes of one and two axes, and compares it with the
/// operation on whole tensors. Returns under how many. Its formula, if it has one, is compared with the operation too.
///
/// ```
/// # use burn_dist_engine as burn_dist;
/// use burn_backend::ops::FloatTensorOps;
/// use burn_backend::{BackendTypes, TensorData};
/// use burn_flex::Flex;
/// use burn_dist::custom::{CustomOp, CustomTensor, Execute, OpRule, RuleBuilder, Shapes, TensorInfo, check};
///
/// #[derive(Clone, Debug, PartialEq, Hash)]
/// struct Negate;
///
/// impl CustomOp for Negate {
///     const ID: &'static str = "doc.negate";
///     fn outputs(&self, inputs: &[TensorInfo]) -> Vec<TensorInfo> {
///         inputs.to_vec()
///     }
///     fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
///         RuleBuilder::uniform(shapes, "...").elementwise().linear().build()
///     }
/// }
///
/// impl Execute<Flex> for Negate {
///     fn execute(
///         &self,
///         inputs: Vec<CustomTensor<Flex>>,
///         _: &<Flex as BackendTypes>::Device,
///     ) -> Vec<CustomTensor<Flex>> {
///         let negate = |tensor: CustomTensor<Flex>| CustomTensor::Float(Flex::float_neg(tensor.into_float()));
///         inputs.into_iter().map(negate).collect()
///     }
/// }
///
/// let data = TensorData::new((0..24).map(|x| x as f32).collect::<Vec<_>>(), [4, 6]);
/// let splits = check::<Flex, _>(&Negate, vec![data], 1e-6, &Default::default())?;
/// assert!(splits > 10);
/// # Ok::<(), burn_dist::custom::Mismatch>(())
/// ```
///
/// # Errors
/// [`Mismatch`] for the first split that gives something else: it names the layouts, the rank and the element. Or for
/// the formula, if that gives something else.
pub fn check<B: BackendIr, O: Execute<B>>(
    op: &O,
    inputs: Vec<TensorData>,
    tolerance: f64,
    device: &B::Device,
) -> Result<usize, Mismatch> {
    let infos: Vec<TensorInfo> = inputs
        .iter()
        .map(|data| TensorInfo {
            shape: data.shape().to_vec(),
            dtype: data.dtype(),
        })
        .collect();
    let made = op.outputs(&infos);
    let shapes = |infos: &[TensorInfo]| -> Vec<Vec<usize>> {
        infos.iter().map(|info| info.shape.clone()).collect()
    };
    let (of_inputs, of_outputs) = (shapes(&infos), shapes(&made));
    let rule = CustomOp::rule(
        op,
        &Shapes {
            inputs: of_inputs.iter().map(Vec::as_slice).collect(),
            outputs: of_outputs.iter().map(Vec::as_slice).collect(),
        },
    );
    let run = |op: &O, inputs: Vec<TensorData>| -> Vec<TensorData> {
        let tensors = inputs.into_iter().map(|data| {
            let (shape, dtype) = (data.shape().clone(), data.dtype());
            CustomTensor::<B>::of_handle(from_data::<B>(data, device), shape, dtype)
        });
        let made = op.execute(tensors.collect(), device);
        let read = |tensor: CustomTensor<B>| {
            let info = tensor.info();
            let data = into_data::<B>(tensor.into_handle(), info.shape.into(), info.dtype);
            burn_std::future::block_on(data).expect("the backend reads what it made")
        };
        made.into_iter().map(read).collect()
    };
    let values = |data: &TensorData| Values {
        shape: data.shape().to_vec(),
        dtype: of_burn(data.dtype()),
        values: match data.dtype() {
            DType::Bool(_) => data.iter::<bool>().map(f64::from).collect(),
            _ => data.iter::<f64>().collect(),
        },
    };
    let by_formula = Recorded::Custom(Box::new(Custom::numbered::<B, O>(op, &infos, &made)));
    let by_formula = run_alone(&by_formula, &inputs);
    let case = Case {
        op: O::ID.to_string(),
        rule,
        inputs: inputs.iter().map(values).collect(),
        outputs: run(op, inputs).iter().map(values).collect(),
        tolerance,
    };
    if let Some(outputs) = by_formula {
        let outputs = outputs.unwrap_or_else(|error| panic!("`{}` as a region: {error}", O::ID));
        let outputs: Vec<Values> = outputs.iter().map(values).collect();
        case.check_formula(&outputs)?;
    }
    oracle::check(&case, |view, blocks| {
        if view.has_no_terms() {
            let zeros = |index| vec![0.0; view.output_shape(index).iter().product()];
            return (0..view.outputs.len()).map(zeros).collect();
        }
        let blocks = blocks.into_iter().enumerate().map(|(index, block)| {
            // Of what is only looked at for its shape there is nothing to see.
            let (shape, values) = match block {
                Some(block) => (block.shape, block.values),
                None => {
                    let shape = view.input_shape(index);
                    let numel = shape.iter().product();
                    (shape, vec![f64::NAN; numel])
                }
            };
            match infos[index].dtype {
                DType::Bool(_) => {
                    TensorData::new(values.iter().map(|v| *v != 0.0).collect::<Vec<_>>(), shape)
                }
                dtype => TensorData::new(values, shape).convert_dtype(dtype),
            }
        });
        let blocks = blocks.collect();
        let made = run(&CustomOp::localize(op, view), blocks);
        made.iter().map(|data| values(data).values).collect()
    })
}
