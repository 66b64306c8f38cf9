//! Putting values into a module.

use std::collections::VecDeque;
use std::vec::IntoIter;

use burn_core::module::{Module, ModuleMapper, Param};
use burn_core::tensor::{Bool, Int, Tensor, TensorPrimitive};

use super::StateError;
use super::parameters::{Kind, Parameter};
use super::read::{Reader, Want};
use super::settle::settle;
use crate::parallel::{MeshBackend, ModulePath};
use crate::run::Fault;
use burn_dist_door::AnyTensor;

/// Parameters are read together up to so many, so that the values that they replace are released soon.
const AHEAD: usize = 16;

/// Returns a module with values of a checkpoint. `wants` is what each of its parameters takes from there, in the order
/// of its visit.
///
/// # Errors
/// [`StateError`].
pub(super) fn restore<B: MeshBackend, M: Module<B>>(
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
        reader,
        error: None,
    };
    // An update that the module still keeps apart would replace what it is given.
    drop(settle(&module));
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

impl<B: MeshBackend> ModuleMapper<B> for Restorer<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let Some(value) = self.typed(Kind::Float, B::float_of) else {
            return param;
        };
        let id = param.id;
        param.transform_for_load(Tensor::from_primitive(TensorPrimitive::Float(value)), id)
    }

    fn map_int<const D: usize>(
        &mut self,
        param: Param<Tensor<B, D, Int>>,
    ) -> Param<Tensor<B, D, Int>> {
        let Some(value) = self.typed(Kind::Int, B::int_of) else {
            return param;
        };
        let id = param.id;
        param.transform_for_load(Tensor::from_primitive(value), id)
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<B, D, Bool>>,
    ) -> Param<Tensor<B, D, Bool>> {
        let Some(value) = self.typed(Kind::Bool, B::bool_of) else {
            return param;
        };
        let id = param.id;
        param.transform_for_load(Tensor::from_primitive(value), id)
    }
}
