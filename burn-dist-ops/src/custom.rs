//! Operations that burn-ir does not have: a crate's own kernels, with their rule, what a rank does, and how it runs.
//!
//! The module `custom` of this crate is what users see of it.

use std::any::{Any, TypeId, type_name};
use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use burn_backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn_backend::{Backend, BackendTypes, Shape, TensorMetadata};
use burn_dist_plan::op::{LocalView, Steps};
use burn_std::DType;

use super::Recorded;
use super::family::prelude::*;
use super::formula::{Unwritten, Value, written};

mod checked;
mod steps;

pub use checked::{CheckedFormulas, check_formula};
pub use steps::{Block, CustomSteps, Part, Passing};

/// Shape and element type of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorInfo {
    /// Shape.
    pub shape: Vec<usize>,
    /// Element type.
    pub dtype: DType,
}

/// A tensor of a backend, of whatever kind.
pub enum CustomTensor<B: Backend> {
    /// Floats.
    Float(FloatTensor<B>),
    /// Ints.
    Int(IntTensor<B>),
    /// Bools.
    Bool(BoolTensor<B>),
}

impl<B: Backend> CustomTensor<B> {
    /// Returns the floats.
    ///
    /// # Panics
    /// If it holds something else.
    pub fn into_float(self) -> FloatTensor<B> {
        match self {
            Self::Float(tensor) => tensor,
            _ => panic!("floats were asked for, and the tensor holds something else"),
        }
    }

    /// Returns shape and element type.
    pub fn info(&self) -> TensorInfo {
        let (shape, dtype) = match self {
            Self::Float(tensor) => (tensor.shape(), tensor.dtype()),
            Self::Int(tensor) => (tensor.shape(), tensor.dtype()),
            Self::Bool(tensor) => (tensor.shape(), tensor.dtype()),
        };
        TensorInfo {
            shape: shape.to_vec(),
            dtype,
        }
    }
}

impl<B: BackendIr> CustomTensor<B> {
    /// Makes one of what a backend holds: floats, bools or ints, as its element type says.
    pub fn of_handle(handle: B::Handle, shape: Shape, dtype: DType) -> Self {
        let handle = TensorHandle { handle, shape };
        if dtype.is_float() {
            Self::Float(B::float_tensor(handle))
        } else if dtype.is_bool() {
            Self::Bool(B::bool_tensor(handle))
        } else {
            Self::Int(B::int_tensor(handle))
        }
    }

    /// Returns what the backend holds.
    pub fn into_handle(self) -> B::Handle {
        match self {
            Self::Float(tensor) => B::float_tensor_handle(tensor),
            Self::Int(tensor) => B::int_tensor_handle(tensor),
            Self::Bool(tensor) => B::bool_tensor_handle(tensor),
        }
    }
}

/// An operation: a value of the type holds its options, which are part of what makes two operations equal.
pub trait CustomOp: Clone + Debug + PartialEq + Hash + Send + Sync + 'static {
    /// Its name: unique in a program. Write the name of your crate first.
    const ID: &'static str;

    /// Returns what it makes of inputs like that.
    fn outputs(&self, inputs: &[TensorInfo]) -> Vec<TensorInfo>;

    /// Returns its rule: what may be split over ranks, and what that leaves. `shapes` are global.
    ///
    /// [`RuleBuilder::notation`] writes it down: `"... i, i -> ... i"` is a bias that is added to rows.
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule;

    /// Returns the operation of one rank, for blocks of its inputs and outputs: the same one, unless an option depends
    /// on what the rank holds.
    fn localize(&self, _view: &LocalView<'_>) -> Self {
        self.clone()
    }

    /// Returns whether blocks of it may pass from rank to rank: whether its rule splits a factor
    /// [along](RuleBuilder::along) another one.
    fn passes_blocks(&self) -> bool {
        false
    }

    /// Adds the steps of one rank, if blocks pass from rank to rank under this split: otherwise adds nothing and returns
    /// `false`, and the [localized](Self::localize) operation runs.
    ///
    /// Each rank gets all blocks in turn, the next one in transfer while one is used:
    ///
    /// ```text
    /// let mut block = steps.block(1, 0)?;                  // of input 1, split along dim 0
    /// for _ in 1..block.homes(steps.view()).len() {
    ///     let next = steps.pass(&[&block]);
    ///     steps.run(...);                                  // with the block at hand
    ///     block = steps.arrive(next).remove(0);
    /// }
    /// steps.run(...);                                      // with the last one
    /// ```
    fn steps(&self, _steps: &mut CustomSteps<'_, Self>) -> bool {
        false
    }

    /// Returns what it computes of each element of its inputs: a value for each output. `None`, as without this method,
    /// if its elements cannot be computed one by one, or row by row along the last dim.
    ///
    /// ```
    /// # mod burn_dist {
    /// #     pub mod custom {
    /// #         pub use burn_dist_ops::formula::Value;
    /// #         pub use burn_dist_plan::region::Unary;
    /// #     }
    /// # }
    /// use burn_dist::custom::{Unary, Value};
    ///
    /// fn swish<'s>(inputs: &[Value<'s>]) -> Option<Vec<Value<'s>>> {
    ///     let x = inputs[0];
    ///     Some(vec![x * x.unary(Unary::Sigmoid)])
    /// }
    /// ```
    ///
    /// On ranks that compute in memory it then is part of a region together with what stands around it, in one kernel
    /// (`Regions::On`), and [`Execute::execute`] is not called. Inputs and outputs broadcast to one shape, dims aligned
    /// at the last. `check` compares it with `execute`.
    fn formula<'s>(&self, _inputs: &[Value<'s>]) -> Option<Vec<Value<'s>>> {
        None
    }

    /// Returns the flops of a product (of matrices, a convolution, attention); `None` of anything else.
    fn flops(&self, _shapes: &Shapes<'_>) -> Option<f64> {
        None
    }

    /// Returns how many of these flops make again what an operation before it has made, as the backward of attention
    /// makes its scores again: the flops of the model are without them.
    fn remade_flops(&self, _shapes: &Shapes<'_>) -> f64 {
        0.0
    }

    /// Returns in which float type it runs where a unit asks for 16 bits: by default in the type it was recorded with.
    fn float_class(&self) -> FloatClass {
        FloatClass::Recorded
    }

    /// Returns whether selective checkpointing keeps its result, as that of a layer, or makes it again.
    fn work(&self) -> Work {
        Work::Other
    }

    /// Returns the input that an output lies as in memory, where ranks compute on Flex: elements of its last dim lie next
    /// to each other, and its other dims follow in the order of those of the input, which has as many. So what is made
    /// of heads that a linear layer has left between each other goes to the next layer as it is. By default outputs lie
    /// in the order of their dims; memory is accounted by this.
    fn lies_as(&self, _output: usize) -> Option<usize> {
        None
    }

    /// Returns which input is in f32 also where a unit asks for 16 bits: a sum or a maximum over many elements that
    /// another operation has found.
    fn statistic_input(&self) -> Option<usize> {
        None
    }

    /// Returns which output is in f32 also where a unit asks for 16 bits.
    fn statistic_output(&self) -> Option<usize> {
        None
    }
}

/// How a backend runs an operation.
pub trait Execute<B: Backend>: CustomOp {
    /// Runs it on blocks of one rank.
    ///
    /// # Shapes
    /// Inputs have the local shapes of their layouts; the results must have those of theirs, which are what
    /// [`CustomOp::outputs`] says of the inputs unless the rule says otherwise.
    ///
    /// It is not called where its [formula](CustomOp::formula) runs in its place, and where no result has an element,
    /// as on a rank whose part is empty: there is nothing to compute. Inputs without elements may come with results
    /// that have some.
    fn execute(&self, inputs: Vec<CustomTensor<B>>, device: &B::Device) -> Vec<CustomTensor<B>>;
}

/// Why an operation cannot be recorded.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CustomError {
    /// Two types have one id.
    #[error(
        "two operations have the id `{id}`: `{first}`, which was used before, and `{second}`; give one of them another"
    )]
    Registered {
        /// The id.
        id: &'static str,
        /// The type that has it.
        first: &'static str,
        /// The type that asks for it too.
        second: &'static str,
    },
    /// The ranks of the mesh compute on a backend that the operation does not run on.
    #[error(
        "operation `{id}` runs on {kernels}, and the ranks of this mesh compute on {backend}: name a kernel of it in \
         `WithKernels::kernels`, or build the mesh with another backend"
    )]
    NoKernel {
        /// The operation.
        id: &'static str,
        /// The backends that it names.
        kernels: String,
        /// The backend of the mesh.
        backend: &'static str,
    },
    /// Its formula says something else than its outputs.
    #[error("operation `{id}` has no formula that goes with its outputs: {reason}")]
    Formula {
        /// The operation.
        id: &'static str,
        /// The reason.
        reason: String,
    },
    /// Without a tensor there is no mesh to record on.
    #[error("operation `{id}` was called without a tensor: at least one tells the mesh")]
    NoInputs {
        /// The operation.
        id: &'static str,
    },
}

burn_dist_mesh::debug_by_message!(CustomError);

/// Notes that `O` has its id.
///
/// # Errors
/// [`CustomError::Registered`] if another type has it.
pub fn register<O: CustomOp>() -> Result<(), CustomError> {
    type Known = RwLock<HashMap<&'static str, (TypeId, &'static str)>>;
    static KNOWN: OnceLock<Known> = OnceLock::new();
    let known = KNOWN.get_or_init(Known::default);
    let here = (TypeId::of::<O>(), type_name::<O>());
    // A panic elsewhere leaves a whole map.
    let read = known.read().unwrap_or_else(PoisonError::into_inner);
    let found = read.get(O::ID).copied();
    drop(read);
    let (of, first) = match found {
        Some(found) => found,
        None => *known
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(O::ID)
            .or_insert(here),
    };
    match of == here.0 {
        true => Ok(()),
        false => Err(CustomError::Registered {
            id: O::ID,
            first,
            second: here.1,
        }),
    }
}

/// Returns tensors that nothing has, with numbers from `first` on.
fn numbered(first: u64, infos: &[TensorInfo]) -> Vec<TensorIr> {
    let numbered = (first..).zip(infos);
    let tensor = |(id, info): (u64, &TensorInfo)| {
        TensorIr::uninit(TensorId::new(id), info.shape.clone().into(), info.dtype)
    };
    numbered.map(tensor).collect()
}

/// A custom operation says what a family says of its operations.
impl<O: CustomOp> Operation for O {
    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        CustomOp::rule(self, shapes)
    }

    fn lower(&self, local: &Local<'_>, _: &Rule, emit: &mut Emit<'_>) {
        local.same(emit);
    }

    fn localize(&self, op: &mut Recorded, local: &Local<'_>) {
        if let Recorded::Custom(op) = op {
            op.definition = Arc::new(CustomOp::localize(self, local));
        }
    }

    fn float_class(&self) -> FloatClass {
        CustomOp::float_class(self)
    }

    fn traits(&self) -> Traits {
        Traits {
            work: self.work(),
            shifts: self.passes_blocks(),
            statistic_input: self.statistic_input(),
            statistic_output: self.statistic_output(),
            ..Traits::default()
        }
    }

    fn flops(&self, shapes: &Shapes<'_>) -> Option<f64> {
        CustomOp::flops(self, shapes)
    }

    fn remade_flops(&self, shapes: &Shapes<'_>) -> f64 {
        CustomOp::remade_flops(self, shapes)
    }

    fn lies_as(&self, result: usize) -> Option<usize> {
        CustomOp::lies_as(self, result)
    }
}

/// A [`CustomOp`] without its type.
pub(super) trait Definition: Operation + Debug + Send + Sync {
    fn id(&self) -> &'static str;
    fn as_any(&self) -> &dyn Any;
    fn is_same(&self, other: &dyn Definition) -> bool;
    fn hash_into(&self, state: &mut dyn Hasher);
    /// See [`CustomOp::formula`].
    fn written(&self, inputs: &[TensorIr], outputs: &[TensorIr]) -> Result<Pointwise, Unwritten>;
    /// See [`CustomOp::steps`].
    fn shift(&self, op: &Custom, view: &LocalView<'_>, steps: &mut Steps<Recorded>) -> bool;
}

impl<O: CustomOp> Definition for O {
    fn id(&self) -> &'static str {
        O::ID
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn is_same(&self, other: &dyn Definition) -> bool {
        other.as_any().downcast_ref::<O>() == Some(self)
    }

    fn hash_into(&self, mut state: &mut dyn Hasher) {
        O::ID.hash(&mut state);
        self.hash(&mut state);
    }

    fn written(&self, inputs: &[TensorIr], outputs: &[TensorIr]) -> Result<Pointwise, Unwritten> {
        let inputs: Vec<&TensorIr> = inputs.iter().collect();
        let outputs: Vec<&TensorIr> = outputs.iter().collect();
        written(&inputs, &outputs, &mut |_, values| {
            CustomOp::formula(self, &values)
        })
    }

    fn shift(&self, op: &Custom, view: &LocalView<'_>, steps: &mut Steps<Recorded>) -> bool {
        self.passes_blocks() && CustomOp::steps(self, &mut CustomSteps::new(view, op, steps))
    }
}

/// Runs the operation that is behind the first argument.
type Call<B> =
    fn(&dyn Any, Vec<CustomTensor<B>>, &<B as BackendTypes>::Device) -> Vec<CustomTensor<B>>;

/// How a backend runs a definition.
struct Kernel<B: Backend> {
    run: Call<B>,
}

impl<B: Backend> Kernel<B> {
    fn of<O: Execute<B>>() -> Self {
        Self {
            run: |op, inputs, device| {
                let op: &O = op.downcast_ref().expect("a kernel runs its own operation");
                op.execute(inputs, device)
            },
        }
    }

    fn run(
        &self,
        definition: &dyn Definition,
        inputs: Vec<CustomTensor<B>>,
        device: &B::Device,
    ) -> Vec<CustomTensor<B>> {
        (self.run)(definition.as_any(), inputs, device)
    }
}

/// A [`Kernel`] of some backend.
pub type AnyKernel = Arc<dyn Any + Send + Sync>;

/// Returns the kernel of an operation on a backend.
pub fn kernel<B: Backend, O: Execute<B>>() -> AnyKernel {
    Arc::new(Kernel::<B>::of::<O>())
}

/// The kernels of an operation, one for each backend that it runs on.
pub struct Kernels<O> {
    of: Vec<(TypeId, &'static str, AnyKernel)>,
    op: PhantomData<fn() -> O>,
}

impl<O: CustomOp> Kernels<O> {
    /// Starts with one backend.
    pub fn of<B: BackendIr>() -> Self
    where
        O: Execute<B>,
    {
        let (of, op) = (Vec::new(), PhantomData);
        Self { of, op }.and::<B>()
    }

    /// Adds a backend.
    pub fn and<B: BackendIr>(mut self) -> Self
    where
        O: Execute<B>,
    {
        self.of
            .push((TypeId::of::<B>(), type_name::<B>(), kernel::<B, O>()));
        self
    }

    /// Returns the kernel of a backend.
    ///
    /// # Errors
    /// [`CustomError::NoKernel`].
    pub fn find(self, (id, backend): (TypeId, &'static str)) -> Result<AnyKernel, CustomError> {
        let names: Vec<_> = self.of.iter().map(|(_, name, _)| *name).collect();
        let mut kernels = self.of.into_iter();
        let found = kernels.find(|(of, _, _)| *of == id);
        found
            .map(|(_, _, kernel)| kernel)
            .ok_or_else(|| CustomError::NoKernel {
                id: O::ID,
                kernels: names.join(", "),
                backend,
            })
    }
}

/// An operation that says which backends it runs on, for programs whose backend does not name that of the ranks.
///
/// ```ignore
/// impl WithKernels for BiasGelu {
///     fn kernels() -> Kernels<Self> {
///         Kernels::of::<Flex>().and::<Wgpu>()
///     }
/// }
/// ```
pub trait WithKernels: CustomOp {
    /// Returns its kernels.
    fn kernels() -> Kernels<Self>;
}

/// A recorded custom operation.
#[derive(Clone)]
pub struct Custom {
    pub(super) definition: Arc<dyn Definition>,
    /// A [`Kernel`] of the inner backend.
    kernel: AnyKernel,
    pub(crate) inputs: Vec<TensorIr>,
    pub(crate) outputs: Vec<TensorIr>,
}

impl Debug for Custom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:?} {:?} -> {:?}",
            self.definition, self.inputs, self.outputs
        )
    }
}

impl PartialEq for Custom {
    fn eq(&self, other: &Self) -> bool {
        self.definition.is_same(other.definition.as_ref())
            && self.inputs == other.inputs
            && self.outputs == other.outputs
    }
}

impl Hash for Custom {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.definition.hash_into(state);
        self.inputs.hash(state);
        self.outputs.hash(state);
    }
}

impl Custom {
    /// Returns the operation, with its kernel for the backend that the ranks compute on.
    pub fn new<O: CustomOp>(
        op: O,
        kernel: AnyKernel,
        inputs: Vec<TensorIr>,
        outputs: Vec<TensorIr>,
    ) -> Self {
        Self {
            definition: Arc::new(op),
            kernel,
            inputs,
            outputs,
        }
    }

    /// Returns the operation on tensors that are numbered: inputs, then outputs.
    pub fn numbered<B: Backend, O: Execute<B>>(
        op: &O,
        inputs: &[TensorInfo],
        outputs: &[TensorInfo],
    ) -> Self {
        let made = numbered(inputs.len() as u64, outputs);
        Self::new(op.clone(), kernel::<B, O>(), numbered(0, inputs), made)
    }

    /// Returns what it computes of each element, if it says so.
    pub(super) fn pointwise(&self) -> Option<Pointwise> {
        self.definition.written(&self.inputs, &self.outputs).ok()
    }

    /// Returns what the crate that brings it says of it.
    pub(super) fn operation(&self) -> &dyn Operation {
        self.definition.as_ref()
    }

    /// Adds the steps of a rank, if blocks pass from rank to rank.
    pub(super) fn shift(&self, view: &LocalView<'_>, steps: &mut Steps<Recorded>) -> bool {
        self.definition.shift(self, view, steps)
    }

    /// Hashes what it is, without its operands.
    pub fn hash_definition(&self, state: &mut dyn Hasher) {
        self.definition.hash_into(state);
    }
}

impl Run for Custom {
    fn run<B: BackendIr, E: Env<B>>(&self, cx: &mut Context<'_, B, E>) -> Result<(), ExecuteError> {
        let Some(kernel) = self.kernel.downcast_ref::<Kernel<B>>() else {
            unreachable!("recorded for another backend than {}", type_name::<B>())
        };
        let inputs = self.inputs.iter().map(|input| {
            let handle = cx.env.take(input);
            CustomTensor::<B>::of_handle(handle, input.shape.clone(), input.dtype)
        });
        let inputs = inputs.collect();
        let made = kernel.run(self.definition.as_ref(), inputs, cx.env.device());
        let found: Vec<_> = made.iter().map(CustomTensor::info).collect();
        let is_as_said = |(found, out): (&TensorInfo, &TensorIr)| {
            found.shape == *out.shape && found.dtype == out.dtype
        };
        if found.len() != self.outputs.len() || !found.iter().zip(&self.outputs).all(is_as_said) {
            let text = |dtype: DType, shape: &[usize]| format!("{} {shape:?}", dtype.name());
            let found = found.iter().map(|info| text(info.dtype, &info.shape));
            let expected = self.outputs.iter().map(|out| text(out.dtype, &out.shape));
            return Err(ExecuteError::Results {
                op: self.definition.id(),
                found: found.collect::<Vec<_>>().join(", "),
                expected: expected.collect::<Vec<_>>().join(", "),
            });
        }
        for (tensor, out) in made.into_iter().zip(&self.outputs) {
            cx.env.put(out, tensor.into_handle());
        }
        Ok(())
    }
}
