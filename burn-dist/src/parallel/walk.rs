//! The modules in any Burn module and its float parameters, with their paths.

use burn_core::module::{Module, ModuleVisitor, Param};
use burn_core::tensor::Tensor;
use burn_core::tensor::backend::Backend;
use core::marker::PhantomData;

/// Where a walk stands: one segment per `enter_module`.
#[derive(Default)]
pub(crate) struct Place {
    segments: Vec<Segment>,
}

/// One step of a path.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    /// Field, variant, or index.
    pub(super) name: String,
    /// What the step is taken in, as Burn tells it: `Struct:Linear`, `Enum:Proj`, `Vec`, `Array`, `Tuple`.
    container: String,
}

impl Segment {
    /// The type whose field this is, if it is a field.
    pub(super) fn struct_name(&self) -> Option<&str> {
        self.container.strip_prefix("Struct:")
    }

    /// Whether this is an element of a list or a tuple.
    pub(super) fn is_element(&self) -> bool {
        matches!(self.container.as_str(), "Vec" | "Array" | "Tuple")
    }

    /// Whether the index says nothing about the kind of element, so that `*` may stand for it in a listing.
    pub(super) fn is_interchangeable(&self) -> bool {
        matches!(self.container.as_str(), "Vec" | "Array")
    }
}

impl Place {
    pub(crate) fn enter(&mut self, name: &str, container: &str) {
        self.segments.push(Segment {
            name: name.into(),
            container: container.into(),
        });
    }

    pub(crate) fn exit(&mut self) {
        self.segments.pop();
    }

    /// The dotted path.
    pub(crate) fn path(&self) -> String {
        self.names().join(".")
    }

    fn names(&self) -> Vec<String> {
        self.segments.iter().map(|s| s.name.clone()).collect()
    }
}

/// A float parameter, before anything is decided about it.
#[derive(Clone, Debug)]
pub(super) struct Parameter {
    /// One segment per step from the root.
    pub(super) segments: Vec<Segment>,
    /// The names of `segments`.
    pub(super) names: Vec<String>,
    /// Its global shape. For a parameter still to be initialised, the shape Burn states before its mappers run, which
    /// transposes the weight of a `LinearLayout::Col`.
    pub(super) shape: Vec<usize>,
}

impl Parameter {
    /// The dotted path.
    pub(super) fn path(&self) -> String {
        self.names.join(".")
    }

    /// The dotted path of the first `len` segments.
    pub(super) fn prefix(&self, len: usize) -> String {
        self.names[..len].join(".")
    }
}

/// What a walk over a module meets, in order.
#[derive(Debug, Default)]
pub(super) struct Walk {
    pub(super) parameters: Vec<Parameter>,
    /// The names on the way to each module and parameter, those without float parameters included.
    pub(super) modules: Vec<Vec<String>>,
}

/// Walks over a module, initialising no parameter.
pub(super) fn walk<B: Backend, M: Module<B>>(module: &M) -> Walk {
    let mut visitor = Lister {
        place: Place::default(),
        found: Walk {
            modules: vec![Vec::new()],
            ..Walk::default()
        },
        backend: PhantomData,
    };
    module.visit(&mut visitor);
    visitor.found
}

struct Lister<B> {
    place: Place,
    found: Walk,
    backend: PhantomData<B>,
}

impl<B: Backend> ModuleVisitor<B> for Lister<B> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.place.enter(name, container);
        self.found.modules.push(self.place.names());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.place.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let segments = self.place.segments.clone();
        self.found.parameters.push(Parameter {
            names: self.place.names(),
            segments,
            shape: param.lazy_shape().to_vec(),
        });
    }
}
