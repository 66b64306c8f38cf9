//! On the host: the kernels of burn-dist-kernels on tensors of Flex, in the order in which they lie.

use burn_backend::ops::{BoolTensorOps, FloatTensorOps};
use burn_backend::{Element, Shape, TensorData};
use burn_dist_kernels::attention::{Array, Attend, Dropout, Inputs, Made, Sizes, View};
use burn_dist_plan::storage::Strided;
use burn_flex::{Flex, FlexTensor, Layout};
use burn_std::{Bytes, DType, FloatDType};

use super::types::{AttentionGradients, AttentionInputs, AttentionMade, Scores};

/// Attends.
pub(super) fn attend(inputs: AttentionInputs<Flex>, scores: Scores) -> AttentionMade<Flex> {
    let dtype = inputs.q.dtype();
    match dtype {
        DType::F64 => forward::<f64>(&inputs, scores, |x| x),
        DType::F32 => forward::<f32>(&inputs, scores, |x| x as f32),
        _ => {
            let made = forward::<f32>(&cast(inputs, FloatDType::F32), scores, |x| x as f32);
            AttentionMade {
                out: cast_as_it_lies(made.out, dtype.into()),
                ..made
            }
        }
    }
}

/// Returns the gradients of the inputs, of that of the result; that of the bias if `with_bias`.
pub(super) fn backpropagate(
    inputs: AttentionInputs<Flex>,
    made: AttentionMade<Flex>,
    gradient: FlexTensor,
    scores: Scores,
    with_bias: bool,
) -> AttentionGradients<Flex> {
    let dtype = inputs.q.dtype();
    match dtype {
        DType::F64 => backward::<f64>(&inputs, &made, gradient, scores, with_bias, |x| x),
        DType::F32 => backward::<f32>(&inputs, &made, gradient, scores, with_bias, |x| x as f32),
        _ => {
            let wide = |tensor| cast_as_it_lies(tensor, FloatDType::F32);
            let made = AttentionMade {
                out: wide(made.out),
                ..made
            };
            let (inputs, gradient) = (cast(inputs, FloatDType::F32), wide(gradient));
            let gradients =
                backward::<f32>(&inputs, &made, gradient, scores, with_bias, |x| x as f32);
            let narrow = |tensor| cast_as_it_lies(tensor, dtype.into());
            AttentionGradients {
                q: narrow(gradients.q),
                k: narrow(gradients.k),
                v: narrow(gradients.v),
                bias: gradients.bias.map(narrow),
            }
        }
    }
}

/// Casts a tensor, whose dims stay in their order in memory.
fn cast_as_it_lies(tensor: FlexTensor, dtype: FloatDType) -> FlexTensor {
    let layout = tensor.layout();
    let at = Strided {
        shape: layout.shape().to_vec(),
        strides: layout.strides().to_vec(),
        offset: layout.start_offset(),
    };
    let order = at.order();
    let mut back = vec![0; order.len()];
    for (place, dim) in order.iter().enumerate() {
        back[*dim] = place;
    }
    Flex::float_cast(tensor.permute(&order), dtype).permute(&back)
}

fn cast(inputs: AttentionInputs<Flex>, dtype: FloatDType) -> AttentionInputs<Flex> {
    let cast = |tensor| cast_as_it_lies(tensor, dtype);
    AttentionInputs {
        q: cast(inputs.q),
        k: cast(inputs.k),
        v: cast(inputs.v),
        bias: inputs.bias.map(cast),
        mask: inputs.mask,
        seed: inputs.seed,
    }
}

/// Returns a tensor whose elements lie at distances that are not negative.
fn readable(tensor: &FlexTensor) -> FlexTensor {
    match tensor.layout().has_positive_strides() {
        true => tensor.clone(),
        false => tensor.to_contiguous(),
    }
}

fn view<T: Element + bytemuck::Pod, const N: usize>(tensor: &FlexTensor) -> View<'_, T, N> {
    let layout = tensor.layout();
    let dims = layout.shape().dims::<N>();
    let mut strides = [0; N];
    for (stride, of_layout) in strides.iter_mut().zip(layout.strides()) {
        *stride = of_layout.unsigned_abs();
    }
    let storage: &[T] = tensor.storage();
    View::new(
        &storage[layout.start_offset().min(storage.len())..],
        dims,
        strides,
    )
}

/// Returns the words of a seed.
fn words(seed: &FlexTensor) -> [u32; 2] {
    let data = seed.to_contiguous().into_data();
    let mut words = data.iter::<i64>().map(|word| word as u32);
    [(); 2].map(|()| words.next().expect("a seed is two words"))
}

/// Inputs that kernels can read.
struct Readable {
    sizes: Sizes,
    q: FlexTensor,
    k: FlexTensor,
    v: FlexTensor,
    mask: Option<FlexTensor>,
    bias: Option<FlexTensor>,
    seed: Option<[u32; 2]>,
}

impl Readable {
    fn new(inputs: &AttentionInputs<Flex>) -> Self {
        let [batch, heads, group, queries, width] = inputs.q.layout().shape().dims();
        let [_, _, keys, value_width] = inputs.v.layout().shape().dims();
        let pairs = Shape::new([batch, heads, group, queries, keys]);
        let bias = inputs.bias.clone();
        let mask = inputs.mask.clone();
        Self {
            sizes: Sizes {
                batch,
                heads,
                group,
                queries,
                keys,
                width,
                value_width,
            },
            q: readable(&inputs.q),
            k: readable(&inputs.k),
            v: readable(&inputs.v),
            mask: mask.map(|mask| readable(&Flex::bool_expand(mask, pairs.clone()))),
            bias: bias.map(|bias| readable(&Flex::float_expand(bias, pairs.clone()))),
            seed: inputs.seed.as_ref().map(words),
        }
    }

    fn inputs<T: Attend + Element + bytemuck::Pod>(
        &self,
        scores: Scores,
        scale: T,
    ) -> Inputs<'_, T> {
        Inputs {
            sizes: self.sizes,
            q: view(&self.q),
            k: view(&self.k),
            v: view(&self.v),
            mask: self.mask.as_ref().map(view),
            bias: self.bias.as_ref().map(view),
            scale,
            visible: scores.visible(),
            dropout: scores.dropout.map(|dropped| Dropout {
                share: dropped.share,
                seed: self.seed.expect("what drops weights has a seed"),
                origin: dropped.origin,
            }),
        }
    }
}

fn tensor<T: Element>(values: Vec<T>, shape: &[usize]) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape.to_vec()))
}

/// Returns a result, in the order in which it lies.
fn lying<T: Element, const N: usize>(array: Array<T, N>) -> FlexTensor {
    let strides = array.strides.map(|stride| stride as isize).to_vec();
    let layout = Layout::new(Shape::new(array.shape), strides, 0);
    FlexTensor::new(Bytes::from_elems(array.data), layout, T::dtype())
}

fn forward<T: Attend + Element + bytemuck::Pod>(
    inputs: &AttentionInputs<Flex>,
    scores: Scores,
    of: fn(f64) -> T,
) -> AttentionMade<Flex> {
    let inputs = Readable::new(inputs);
    let made = T::forward(&inputs.inputs::<T>(scores, of(scores.scale)));
    let s = inputs.sizes;
    let rows = [s.batch, s.heads, s.group, s.queries];
    AttentionMade {
        out: lying(made.out),
        log_sum_exp: tensor(made.log_sum_exp, &rows),
    }
}

fn backward<T: Attend + Element + bytemuck::Pod>(
    inputs: &AttentionInputs<Flex>,
    made: &AttentionMade<Flex>,
    gradient: FlexTensor,
    scores: Scores,
    with_bias: bool,
    of: fn(f64) -> T,
) -> AttentionGradients<Flex> {
    let inputs = Readable::new(inputs);
    let (out, log_sum_exp) = (readable(&made.out), made.log_sum_exp.to_contiguous());
    let gradient = readable(&gradient);
    let made = Made {
        out: view(&out),
        log_sum_exp: log_sum_exp.storage(),
    };
    let s = inputs.sizes;
    let of_scale = of(scores.scale);
    let gradients = T::backward(
        &inputs.inputs(scores, of_scale),
        made,
        view(&gradient),
        with_bias,
    );
    let pairs = [s.batch, s.heads, s.group, s.queries, s.keys];
    AttentionGradients {
        q: lying(gradients.q),
        k: lying(gradients.k),
        v: lying(gradients.v),
        bias: with_bias.then(|| tensor(gradients.bias, &pairs)),
    }
}
