//! The families of operations, and what each says of its own.
//!
//! A family is a file: an enum of burn-ir's descriptions, each with the kernel that runs it, and beside them rule,
//! lowering and what else the planner asks. [`table`](super::table) says which family an operation belongs to.

use prelude::*;

use super::Recorded;
use super::custom::Custom;
use super::float8::Float8;
use super::recorded::Marked;

/// Imports of a family's file.
pub(super) mod prelude {
    pub(crate) use burn_dist_plan::op::{Adjoint, FloatClass, Layer, Traits, Work};
    pub(crate) use burn_dist_plan::region::{Binary, Fold, Pointwise, Unary};
    pub(crate) use burn_dist_plan::rule::{
        FactorKind, Lowering, Name, OpRule, Rule, RuleBuilder, Shapes,
    };
    pub(crate) use burn_dist_plan::storage::{Operand, Place, Strided};
    pub(crate) use burn_ir::*;

    pub(crate) use super::{Operation, Run, family, put};
    pub(crate) use crate::emit::{Emit, base, base_mut, read};
    pub(crate) use crate::execute::{Context, Env, ExecuteError};
    pub(crate) use crate::kinds::{Kind, Numbers, Tensors, by_kind, by_number};
    pub(crate) use crate::lower::Local;
    pub(crate) use crate::nothing::{Nothing, OfNothing};
    pub(crate) use crate::rules::{dims, dims_but, numel, replicated};
    pub(crate) use burn_dist_mesh::ReduceOp;
}

/// An operation of a family, to the planner. Nothing here knows a backend.
pub(super) trait Operation {
    /// Returns what of it may be split over ranks.
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule;

    /// Emits the local operations of one rank, if the rule asks for other ones than the operation on local shapes.
    fn lower(&self, local: &Local<'_>, _: &Rule, _: &mut Emit<'_>) {
        panic!(
            "a rule asks for a lowering that does not exist: {:?}",
            local.op
        )
    }

    /// Sets what a copy of the operation carries, besides the shapes of its tensors, to what it is on one rank.
    fn localize(&self, _: &mut Recorded, _: &Local<'_>) {}

    /// Returns in which float type it runs, if its tensors are floats.
    fn float_class(&self) -> FloatClass {
        FloatClass::Recorded
    }

    /// Returns whether its result looks at the memory of its first input.
    fn is_view(&self) -> bool {
        false
    }

    /// Returns what else is known of it.
    fn traits(&self) -> Traits {
        Traits::default()
    }

    /// Returns the flops of a product of matrices or the like: floating-point operations, counted as the papers do.
    fn flops(&self, _: &Shapes<'_>) -> Option<f64> {
        None
    }

    /// See [`Op::remade_flops`](burn_dist_plan::op::Op::remade_flops).
    fn remade_flops(&self, _: &Shapes<'_>) -> f64 {
        0.0
    }

    /// Returns what it computes of each element, as [`formula`](super::formula) says it.
    fn pointwise(&self) -> Option<Pointwise> {
        None
    }

    /// Returns where burn-flex puts its first result, of `shape`, if that [lies as](Self::lies_as) no input; further ones
    /// are in buffers of their own.
    ///
    /// A tensor of burn-flex is a shared buffer with strides and an offset. A kernel overwrites an operand that nobody
    /// else holds and that lies in its buffer from the start, in order.
    fn place(&self, _: Kind, _: &[Operand<'_>], shape: &[usize]) -> Place {
        Place::New(Strided::contiguous(shape))
    }

    /// See [`CustomOp::lies_as`](super::custom::CustomOp::lies_as).
    fn lies_as(&self, _result: usize) -> Option<usize> {
        None
    }

    /// Returns whether its results are never in the buffers of its operands: products, reductions, whole modules.
    fn makes(&self) -> bool {
        false
    }

    /// Returns what it makes of inputs without elements, for results that have some; `None` if that is left to its
    /// kernel, as it is where such an input comes with such results alone.
    fn of_nothing(&self) -> Option<OfNothing> {
        None
    }
}

/// An operation of a family, on a backend.
pub(super) trait Run {
    /// Takes its inputs from the environment, in the order of [`visit`](super::visit), and puts its outputs there.
    ///
    /// # Errors
    /// [`ExecuteError::Unsupported`], before it has taken a tensor.
    fn run<B: BackendIr, E: Env<B>>(&self, cx: &mut Context<'_, B, E>) -> Result<(), ExecuteError>;
}

/// Declares a family: its operations, and the kernel of each.
///
/// A row is `Variant(Description) kind = value`: what the kernel makes becomes the tensor `out` of that kind (`float`,
/// `int`, `bool`, `quantized`). Rows with `_` store their results themselves. In a family `by_kind(K: Bound)`, or
/// `by_number`, `K` is the kind of the operation's tensors.
macro_rules! family {
    (
        $family:ident |$cx:ident, $op:ident| {
            $( $(#[$row:meta])* $variant:ident($of:ty) $to:tt = $run:expr, )*
        }
    ) => {
        #[allow(clippy::enum_variant_names, reason = "they are burn-ir's")]
        pub(super) enum $family<'a> {
            $( $(#[$row])* $variant(&'a $of), )*
        }

        impl Run for $family<'_> {
            #[inline]
            fn run<B: BackendIr, E: Env<B>>(
                &self,
                $cx: &mut Context<'_, B, E>,
            ) -> Result<(), ExecuteError> {
                match self { $( Self::$variant($op) => put!($cx, $op, $to, $run), )* }
                Ok(())
            }
        }
    };
    (
        $family:ident |$cx:ident, $op:ident| $by:ident($K:ident: $bound:ident) {
            $( $(#[$row:meta])* $variant:ident($of:ty) $to:tt = $run:expr, )*
        }
    ) => {
        #[allow(clippy::enum_variant_names, reason = "they are burn-ir's")]
        pub(super) enum $family<'a> {
            $( $(#[$row])* $variant(&'a $of), )*
        }

        impl Run for $family<'_> {
            #[inline]
            fn run<B: BackendIr, E: Env<B>>(
                &self,
                cx: &mut Context<'_, B, E>,
            ) -> Result<(), ExecuteError> {
                $by!(cx.kind, $K => self.on::<B, E, $K>(cx))
            }
        }

        impl $family<'_> {
            fn on<B: BackendIr, E: Env<B>, $K: $bound<B>>(
                &self,
                $cx: &mut Context<'_, B, E>,
            ) -> Result<(), ExecuteError> {
                match self { $( Self::$variant($op) => put!($cx, $op, $to, $run), )* }
                Ok(())
            }
        }
    };
}

/// Runs a kernel, and stores the tensor that it makes.
macro_rules! put {
    ($cx:ident, $op:ident, _, $run:expr) => {{
        let _ = $op;
        $run
    }};
    ($cx:ident, $op:ident, float, $run:expr) => {{
        let made = $run;
        $cx.put_float(&$op.out, made)
    }};
    ($cx:ident, $op:ident, int, $run:expr) => {{
        let made = $run;
        $cx.put_int(&$op.out, made)
    }};
    ($cx:ident, $op:ident, bool, $run:expr) => {{
        let made = $run;
        $cx.put_bool(&$op.out, made)
    }};
    ($cx:ident, $op:ident, quantized, $run:expr) => {{
        let made = $run;
        $cx.put_quantized(&$op.out, made)
    }};
    ($cx:ident, $op:ident, $K:ident, $run:expr) => {{
        let made = $run;
        $K::put($cx, &$op.out, made)
    }};
}

pub(super) use {family, put};

/// Lists the families.
macro_rules! families {
    ($( $(#[$line:meta])? $file:ident::$family:ident, )*) => {
        $( $(#[$line])? pub(super) use super::$file::$family; )*

        /// A recorded operation, by its family.
        pub(super) enum Family<'a> {
            $( $(#[$line])? $family($family<'a>), )*
            Custom(&'a Custom),
            Float8(&'a Float8),
            Mark(&'a Marked),
            /// A family that only a feature of burn-ir brings. Other crates of a program may turn such features on;
            /// the recorder refuses the operations.
            Unknown(&'a OperationIr),
        }

        impl Family<'_> {
            /// Returns what the family says of its operation.
            pub(super) fn operation(&self) -> &dyn Operation {
                match self {
                    $( $(#[$line])? Self::$family(op) => op, )*
                    Self::Custom(op) => op.operation(),
                    Self::Float8(op) => *op,
                    Self::Mark(op) => *op,
                    Self::Unknown(op) => *op,
                }
            }
        }

        impl Run for Family<'_> {
            #[inline]
            fn run<B: BackendIr, E: Env<B>>(
                &self,
                cx: &mut Context<'_, B, E>,
            ) -> Result<(), ExecuteError> {
                match self {
                    $( $(#[$line])? Self::$family(op) => op.run(cx), )*
                    Self::Custom(op) => op.run(cx),
                    Self::Float8(op) => op.run(cx),
                    Self::Mark(op) => op.run(cx),
                    Self::Unknown(op) => Err(ExecuteError::Unsupported {
                        op: format!("{op:?}"),
                        reason: "only a feature of burn-ir brings it, and no backend runs it one by one",
                    }),
                }
            }
        }
    };
}

families! {
    view::View,
    join::Join,
    index::Index,
    mask::Mask,
    compare::Compare,
    convert::Convert,
    create::Create,
    arithmetic::Arithmetic,
    function::Function,
    bits::Bits,
    logic::Logic,
    reduce::Reduce,
    scan::Scan,
    matmul::Matmul,
    linear::Linear,
    embedding::Embedding,
    conv::Conv,
    pool::Pool,
    #[cfg(burn_021)]
    spectral::Spectral,
    attention::Attention,
    ctc::Ctc,
    quantized::Quantized,
    packing::Packing,
    activation::Activated,
    #[cfg(not(burn_021))]
    normal::Normal,
    #[cfg(not(burn_021))]
    pad::Pad,
    #[cfg(not(burn_021))]
    signed::Signed,
    #[cfg(not(burn_021))]
    sort::Sort,
    #[cfg(not(burn_021))]
    space::Space,
    #[cfg(not(burn_021))]
    sums::Sums,
    #[cfg(not(burn_021))]
    transposed::Transposed,
    #[cfg(not(burn_021))]
    truth::Truth,
}

impl Operation for OperationIr {
    fn rule(&self, _: &Shapes<'_>) -> OpRule {
        unreachable!("the recorder refuses what it does not know: {self:?}")
    }
}
