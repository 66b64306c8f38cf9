//! Low-rank adapters beside linear layers: made late, and multiplied with the input instead of with each other.
//!
//! The factors are Burn's: a [`LoraAdapter`] in the `Param` of the weight. Burn composes `base + scale * (a @ b)`
//! wherever the weight is read, which makes a matrix, and a gradient, as large as the base. [`adapted_linear`] never does:
//! `x W + scale * (x a) b`, of which the base has no gradient at all, so none of it is computed or reduced.

use burn_core::module::{LoraAdapter, Module, ModuleVisitor, Param, ParamId, Reparameterizer};
use burn_core::tensor::module::linear;
use burn_core::tensor::{Device, Distribution, Tensor};
use burn_dist_front::parallel::ModulePath;
use burn_nn::Linear;

use crate::ops::int8::is_packed;

/// Freezes all parameters of a module and attaches factors of LoRA to the matrices that `is_target` names by their
/// paths.
///
/// Parameters that are made late stay so, and so are the factors: `a` uniform within `d_input^-0.5`, `b` zero, as PEFT
/// starts them. Burn's own `Lora` makes what it attaches to.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::LinearConfig;
/// use burn::tensor::Device;
/// use burn_dist::nn::LateLora;
///
/// let lora = LateLora::new(2, 4.0, |path| path == "weight");
/// let layer = LinearConfig::new(8, 6).init(&Device::flex()).apply_reparameterization(lora);
/// assert!(!layer.weight.is_initialized());
/// assert_eq!(layer.weight.adapter().expect("it is a target").scale, 2.0);
/// ```
///
/// # Source
/// LoRA, arXiv:2106.09685; `peft/tuners/lora/layer.py`, `reset_lora_parameters`.
#[derive(Debug)]
pub struct LateLora<F> {
    rank: usize,
    scale: f64,
    is_target: F,
}

impl<F: FnMut(&str) -> bool> LateLora<F> {
    /// Returns adapters of this rank, whose product counts `alpha / rank` times.
    pub fn new(rank: usize, alpha: f64, is_target: F) -> Self {
        Self {
            rank,
            scale: alpha / rank as f64,
            is_target,
        }
    }

    /// Sets how often the product of the factors counts.
    pub fn scale(self, scale: f64) -> Self {
        Self { scale, ..self }
    }
}

impl<F: FnMut(&str) -> bool> Reparameterizer for LateLora<F> {
    type Reparam = LoraAdapter;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<LoraAdapter>) {
        let (shape, device) = (param.lazy_shape(), param.lazy_device());
        let param = param.set_require_grad(false);
        let &[d_input, d_output] = &shape[..] else {
            return (param, None);
        };
        let adapter = (self.is_target)(path).then(|| {
            let bound = (d_input as f64).powf(-0.5);
            let uniform = Distribution::Uniform(-bound, bound);
            let a = move |shape, device: &Device| Tensor::random(shape, uniform, device);
            LoraAdapter {
                a: late([d_input, self.rank], a, &device),
                b: late(
                    [self.rank, d_output],
                    |shape, device: &Device| Tensor::zeros(shape, device),
                    &device,
                ),
                scale: self.scale,
            }
        });
        (param, adapter)
    }
}

/// Returns a parameter that is trained, and made on its first use.
fn late(
    shape: [usize; 2],
    make: impl FnOnce([usize; 2], &Device) -> Tensor<2> + Send + Sync + 'static,
    device: &Device,
) -> Param<Tensor<2>> {
    let make = move |device: &Device, is_tracked| {
        let made = make(shape, device);
        match is_tracked {
            true => made.require_grad(),
            false => made,
        }
    };
    Param::uninitialized(ParamId::new(), make, device.clone(), true, shape.into())
}

/// Applies a linear layer, with the factors of LoRA beside it if its weight has some: `x W + scale * (drop(x) a) b`,
/// and the bias.
///
/// A weight that rests in another type than the input (bf16, or 8 bits) is cast to the input's where it is used.
/// `dropout` is the share of what the factors see of the input that is dropped, where there is a backward; the base sees
/// all of it.
///
/// # Shapes
/// `input`: `[..., d_input]`; output: `[..., d_output]`.
/// # Gradient
/// Of the input, the factors, and the bias if it has one. A base that is frozen has none.
pub fn adapted_linear<const D: usize>(layer: &Linear, input: Tensor<D>, dropout: f64) -> Tensor<D> {
    let (weight, dtype) = (layer.weight.base(), input.dtype());
    let weight = match is_packed(weight.dtype()) {
        true => weight.dequantize(),
        false => weight,
    };
    let weight = match weight.dtype().is_float() && weight.dtype() != dtype {
        true => weight.cast(dtype),
        false => weight,
    };
    let bias = layer.bias.as_ref().map(Param::val);
    let of_base = linear(input.clone(), weight, bias);
    let Some(adapter) = layer.weight.adapter() else {
        return of_base;
    };
    let seen = match dropout > 0.0 && input.device().is_autodiff() {
        true => {
            let kept = input.random_like(Distribution::Bernoulli(1.0 - dropout));
            input * kept * (1.0 / (1.0 - dropout))
        }
        false => input,
    };
    let low = linear(seen, adapter.a.val(), None) * adapter.scale;
    of_base + linear(low, adapter.b.val(), None)
}

/// Returns the number of elements that training changes: those of factors alone, if a module has some.
pub fn num_trained(module: &impl Module) -> usize {
    #[derive(Default)]
    struct Counter {
        path: ModulePath,
        own: usize,
        factors: usize,
    }

    impl ModuleVisitor for Counter {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.path.enter(name, container);
        }

        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.path.exit();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let count = param.lazy_shape().num_elements();
            match self.path.is_attached() {
                true => self.factors += count,
                false => self.own += count,
            }
        }
    }

    let mut counter = Counter::default();
    module.visit(&mut counter);
    match counter.factors {
        0 => counter.own,
        factors => factors,
    }
}
