//! Exponential moving averages of weights.

use std::any::Any;
use std::collections::HashMap;

use burn_core::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn_core::tensor::{Bool, DType, Int, Tensor};

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
/// use burn::nn::LinearConfig;
/// use burn_dist::optim::Ema;
/// use burn_dist::{DeviceMesh, ParallelizeWith, Plan};
///
/// let mesh = DeviceMesh::parse("fsdp=2")?;
/// let model = LinearConfig::new(4, 4).init(&mesh.device().autodiff()).parallelize_with(&mesh, &Plan::new())?;
/// let mut ema = Ema::new(&model, 0.99);
/// // After each step of the optimizer:
/// ema.update(&model);
/// let before = model.weight.val().into_data();
/// ema.model().weight.val().into_data().assert_approx_eq::<f32>(&before, Default::default());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Ema<M: Module> {
    average: Option<M>,
    decay: f64,
}

impl<M: Module> Ema<M> {
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
        }
    }

    /// Takes the weights of `model` into account.
    pub fn update(&mut self, model: &M) {
        let mut weights = Weights(HashMap::new());
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
    pub fn model(&self) -> &M {
        self.average.as_ref().expect("only empty during an update")
    }
}

/// The values of a model's parameters: tensors of their kind and number of dims.
struct Weights(HashMap<ParamId, Box<dyn Any>>);

impl ModuleVisitor for Weights {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.insert(param.id, Box::new(param.base()));
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.0.insert(param.id, Box::new(param.base()));
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.0.insert(param.id, Box::new(param.base()));
    }
}

struct Blend {
    weights: Weights,
    decay: f64,
}

impl Blend {
    fn weights<T: 'static>(&mut self, id: ParamId) -> Option<T> {
        let weights = self.weights.0.remove(&id)?.downcast();
        weights.ok().map(|weights| *weights)
    }
}

impl ModuleMapper for Blend {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let decay = self.decay;
        match self.weights::<Tensor<D>>(param.id) {
            // What is quantized is not trained.
            Some(weights) if matches!(weights.dtype(), DType::QFloat(_)) => param.map(|_| weights),
            Some(weights) => param.map(|average| average * decay + weights * (1.0 - decay)),
            None => param,
        }
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        match self.weights::<Tensor<D, Int>>(param.id) {
            Some(weights) => param.map(|_| weights),
            None => param,
        }
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        match self.weights::<Tensor<D, Bool>>(param.id) {
            Some(weights) => param.map(|_| weights),
            None => param,
        }
    }
}
