//! Exponential moving averages of weights.

use std::any::Any;
use std::collections::HashMap;

use burn_core::module::{AutodiffModule, Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn_core::tensor::backend::{AutodiffBackend, Backend};
use burn_core::tensor::container::TensorContainer;
use burn_core::tensor::{Bool, Int, Tensor};
use core::marker::PhantomData;

/// The exponential moving average of a model's weights: `average = decay * average + (1 - decay) * weights`.
///
/// The average is a model itself, without autodiff: ready to be evaluated or saved. Its parameters keep the ids of the
/// model's. Running statistics (`BatchNorm`) are averaged as weights are; integers and booleans are those of the model
/// at the last update.
///
/// # Communication
/// None on a mesh: averages lie as the parameters do, in pieces where those rest in pieces.
/// # Source
/// Polyak & Juditsky, "Acceleration of stochastic approximation by averaging" (1992).
///
/// ```
/// use burn::backend::{Autodiff, Flex};
/// use burn::nn::LinearConfig;
/// use burn_dist::optim::Ema;
/// use burn_dist::{DeviceMesh, Dist, ParallelizeWith, Plan};
///
/// type B = Autodiff<Dist<Flex>>;
/// let mesh = DeviceMesh::parse("fsdp=2")?;
/// let model = LinearConfig::new(4, 4).init::<B>(&mesh.device()).parallelize_with(&mesh, &Plan::new())?;
/// let mut ema = Ema::new(&model, 0.99);
/// // After each step of the optimizer:
/// ema.update(&model);
/// let before = model.weight.val().into_data();
/// ema.model().weight.val().into_data().assert_approx_eq::<f32>(&before, Default::default());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Ema<B: AutodiffBackend, M: AutodiffModule<B>> {
    average: Option<M::InnerModule>,
    decay: f64,
    backend: PhantomData<B>,
}

impl<B: AutodiffBackend, M: AutodiffModule<B>> Ema<B, M> {
    /// Starts the average at the weights of `model`.
    ///
    /// # Panics
    /// If `decay` is not in `0.0..=1.0`.
    pub fn new(model: &M, decay: f64) -> Self {
        assert!(
            (0.0..=1.0).contains(&decay),
            "the decay of an average is between 0 and 1, not {decay}"
        );
        Self {
            average: Some(model.valid()),
            decay,
            backend: PhantomData,
        }
    }

    /// Takes the weights of `model` into account.
    pub fn update(&mut self, model: &M) {
        let mut weights = Weights {
            floats: TensorContainer::new(),
            others: HashMap::new(),
        };
        // Burn settles running statistics there; a model with autodiff would show those of the step before.
        model.valid().visit(&mut weights);
        if let Some(average) = self.average.take() {
            self.average = Some(average.map(&mut Blend {
                weights,
                decay: self.decay,
            }));
        }
    }

    /// The averaged model.
    pub fn model(&self) -> &M::InnerModule {
        self.average.as_ref().expect("only empty during an update")
    }
}

struct Weights {
    floats: TensorContainer<ParamId>,
    /// Values that have no average.
    others: HashMap<ParamId, Box<dyn Any>>,
}

impl<B: Backend> ModuleVisitor<B> for Weights {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        self.floats
            .register::<B>(param.id, param.val().into_primitive());
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<B, D, Int>>) {
        self.others.insert(param.id, Box::new(param.val()));
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<B, D, Bool>>) {
        self.others.insert(param.id, Box::new(param.val()));
    }
}

struct Blend {
    weights: Weights,
    decay: f64,
}

impl Blend {
    fn other<T: 'static>(&mut self, id: ParamId) -> Option<T> {
        let other = self.weights.others.remove(&id)?.downcast();
        other.ok().map(|other| *other)
    }
}

impl<B: Backend> ModuleMapper<B> for Blend {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let Some(weights) = self.weights.floats.remove::<B>(&param.id) else {
            return param;
        };
        let weights = Tensor::<B, D>::from_primitive(weights);
        let decay = self.decay;
        param.map(|average| average * decay + weights * (1.0 - decay))
    }

    fn map_int<const D: usize>(
        &mut self,
        param: Param<Tensor<B, D, Int>>,
    ) -> Param<Tensor<B, D, Int>> {
        match self.other::<Tensor<B, D, Int>>(param.id) {
            Some(other) => param.map(|_| other),
            None => param,
        }
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<B, D, Bool>>,
    ) -> Param<Tensor<B, D, Bool>> {
        match self.other::<Tensor<B, D, Bool>>(param.id) {
            Some(other) => param.map(|_| other),
            None => param,
        }
    }
}
