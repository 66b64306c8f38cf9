//! Putting values into a module.

use std::collections::VecDeque;
use std::vec::IntoIter;

use burn_core::backend::{BackendTensor, DispatchAutodiffContext};
use burn_core::module::{Module, ModuleMapper, Param, Parameter as Value};
use burn_core::tensor::kind::Autodiff;
use burn_core::tensor::{Bool, Int, Tensor};

use super::StateError;
use super::parameters::{Kind, Parameter};
use super::read::{Reader, Want};
use super::settle::settle;
use crate::Dist;
use crate::bridge::{from_mesh, on_device};
use crate::parallel::ModulePath;
use crate::record::parts::Parts;
use crate::run::Fault;
use burn_dist_door::AnyTensor;

/// Parameters are read together up to so many, so that the values that they replace are released soon.
const AHEAD: usize = 16;

/// Returns a module with values of a checkpoint. `wants` is what each of its parameters takes from there, in the order
/// of its visit.
///
/// # Errors
/// [`StateError`].
pub(super) fn restore<M: Module>(
    module: M,
    parameters: &[Parameter],
    wants: Vec<Option<Want>>,
    reader: &Reader<'_>,
) -> Result<M, StateError> {
    let mut restorer = Restorer {
        path: ModulePath::default(),
        parameters,
        next: 0,
        wants: wants.into_iter(),
        ready: VecDeque::new(),
        has_packed: false,
        reader,
        error: None,
    };
    // An update that the module still keeps apart would replace what it is given.
    settle(&module);
    let module = module.map(&mut restorer);
    match restorer.error {
        Some(error) => Err(error),
        None => Ok(module),
    }
}

struct Restorer<'a> {
    path: ModulePath,
    parameters: &'a [Parameter],
    next: usize,
    wants: IntoIter<Option<Want>>,
    ready: VecDeque<Option<AnyTensor>>,
    /// True if some that were read together rest in 8 bits.
    has_packed: bool,
    reader: &'a Reader<'a>,
    error: Option<StateError>,
}

impl Restorer<'_> {
    /// Returns what the parameter here takes, if all is well.
    fn value(&mut self, kind: Kind) -> Option<AnyTensor> {
        if self.error.is_some() {
            return None;
        }
        let (path, index) = (self.path.path(), self.next);
        self.next += 1;
        let is_next = |parameter: &&Parameter| parameter.path == path && parameter.kind == kind;
        if self.parameters.get(index).filter(is_next).is_none() {
            self.error = Some(StateError::Mismatch {
                name: path,
                reason: "the module's `map` meets other parameters than its `visit`".into(),
            });
            return None;
        }
        if self.ready.is_empty() {
            let wants: Vec<Option<Want>> = self.wants.by_ref().take(AHEAD).collect();
            let places: Vec<bool> = wants.iter().map(Option::is_some).collect();
            match self.reader.read(wants.into_iter().flatten().collect()) {
                Ok(read) => {
                    let mut read = read.into_iter();
                    let each = places.into_iter();
                    self.ready = each
                        .map(|is_there| if is_there { read.next() } else { None })
                        .collect();
                }
                Err(error) => {
                    self.error = Some(error);
                    return None;
                }
            }
        }
        self.ready.pop_front().flatten()
    }

    /// Returns the value of [`Self::value`] as a tensor of its kind; an error if it is of another.
    fn typed<T>(&mut self, kind: Kind, of: impl FnOnce(AnyTensor) -> Option<T>) -> Option<T> {
        let typed = of(self.value(kind)?);
        if typed.is_none() {
            let fault = Fault::bug("a parameter was read as one of another kind");
            self.error.get_or_insert(fault.into());
        }
        typed
    }
}

impl ModuleMapper for Restorer<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let value = self.typed(Kind::Float, Dist::float_of);
        let param = restored(param, value.map(BackendTensor::Float));
        let at = self
            .next
            .checked_sub(1)
            .and_then(|at| self.parameters.get(at));
        self.has_packed |= at.is_some_and(|parameter| parameter.is_packed);
        if self.has_packed && self.ready.is_empty() {
            // What was read is four times what stays of it: it goes before more is read. A fault stops the next read.
            self.has_packed = false;
            let _ = param.lazy_device().sync();
        }
        param
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let value = self.typed(Kind::Int, Dist::int_of);
        restored(param, value.map(BackendTensor::Int))
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        let value = self.typed(Kind::Bool, Dist::bool_of);
        restored(param, value.map(BackendTensor::Bool))
    }
}

/// Returns a parameter with a value of the mesh, if there is one, that has gradients if the parameter's has.
fn restored<const D: usize, K: Autodiff>(
    param: Param<Tensor<D, K>>,
    value: Option<BackendTensor<Dist>>,
) -> Param<Tensor<D, K>>
where
    Tensor<D, K>: Value,
{
    let Some(value) = value else {
        return param;
    };
    let id = param.id;
    let value = from_mesh(value, DispatchAutodiffContext::Disabled);
    let value = on_device(value, &param.lazy_device());
    param.transform_for_load(value, id)
}
