use burn::tensor::{Bool, Tensor};

use super::Rope;

/// The inputs of every block besides the hidden values.
#[derive(Debug, Clone)]
pub struct Positions {
    /// Rotary tables: of one sequence length, or of each token.
    pub rope: Rope,
    /// `[b, 1, s, s]`: true where a query and a key are of different documents.
    pub mask: Option<Tensor<4, Bool>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Llama, LlamaConfig};
    use burn::module::{Module, ModuleVisitor, Param};
    use burn::optim::GradientsParams;
    use burn::tensor::{Device, TensorData, Tolerance};
    use burn_dist::layout::Rows;
    use burn_dist::trainer::args::{AxesArgs, MeshArgs};
    use burn_dist::trainer::mesh::Mesh;
    use burn_dist::trainer::optimizer::optimizer;
    use burn_dist::trainer::step::Recipe;
    use burn_dist::trainer::step::one_with;
    use burn_dist::trainer::tokens::{Batch, PackedIds};

    /// Lengths of the documents of each row.
    const ROWS: [&[usize]; 4] = [&[5, 7, 4], &[16], &[1, 2, 3, 4, 6], &[9, 7]];
    const SEQ: usize = 16;

    fn batch() -> Batch {
        let id = |at: usize| ((at * 37 + at / 7 * 11) % 64) as i32;
        let (mut documents, mut positions) = (Vec::new(), Vec::new());
        for row in ROWS {
            for (number, len) in row.iter().enumerate() {
                documents.extend(std::iter::repeat_n(number as i32, *len));
                positions.extend(0..*len as i32);
            }
        }
        Batch {
            batch: ROWS.len(),
            held: Rows::all(ROWS.len()),
            seq: SEQ,
            tokens: (0..ROWS.len() * SEQ).map(id).collect(),
            targets: (1..=ROWS.len() * SEQ).map(id).collect(),
            weights: None,
            packed: Some(PackedIds {
                documents,
                positions,
            }),
        }
    }

    fn model(device: &Device) -> Llama {
        device.seed(3);
        LlamaConfig::test().init(device)
    }

    /// The gradients of all parameters, in the order of the module.
    fn gradients(model: &Llama, loss: Tensor<1>) -> Vec<TensorData> {
        struct Collect(GradientsParams, Vec<TensorData>);

        impl ModuleVisitor for Collect {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let gradient = self.0.get::<D>(param.id);
                self.1
                    .push(gradient.expect("all parameters are used").into_data());
            }
        }

        let gradients = GradientsParams::from_grads(loss.backward(), model);
        let mut collect = Collect(gradients, Vec::new());
        model.visit(&mut collect);
        collect.1
    }

    #[test]
    fn documents_that_share_a_row_are_each_alone() {
        let device = Device::flex().autodiff();
        let model = model(&device);
        let tensors = batch().tensors(&device);
        let together = model.forward_packed(tensors.tokens.clone(), tensors.packed);
        let mut alone = Vec::new();
        for (row, lens) in ROWS.iter().enumerate() {
            let mut at = 0;
            let documents = lens.iter().map(|len| {
                let range = at..at + len;
                at += len;
                model.forward(tensors.tokens.clone().slice([row..row + 1, range]))
            });
            alone.push(Tensor::cat(documents.collect(), 1));
        }
        let alone = Tensor::cat(alone, 0);
        let tolerance = Tolerance::<f32>::absolute(1e-5);
        let (found, expected) = (together.to_data(), alone.to_data());
        found.assert_approx_eq::<f32>(&expected, tolerance);
        // Not what they are if they see each other.
        let seen = model.forward(tensors.tokens).into_data();
        let pairs = seen.iter::<f32>().zip(expected.iter::<f32>());
        assert!(pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) > 1e-3);

        let loss = |logits: Tensor<3>| (logits.clone() * logits.exp()).mean();
        let found = gradients(&model, loss(together));
        let expected = gradients(&model, loss(alone));
        for (found, expected) in found.iter().zip(&expected) {
            found.assert_approx_eq::<f32>(expected, tolerance);
        }
    }

    #[test]
    fn every_mesh_trains_on_documents_that_share_rows() {
        let losses = |axes: Option<&str>| -> Vec<f32> {
            let axes = AxesArgs {
                mesh: axes.map(|axes| axes.parse().unwrap()),
                ..AxesArgs::default()
            };
            let mesh = Mesh::open::<Llama>(&MeshArgs::from(axes)).unwrap();
            let device = mesh.device();
            let mut model = mesh.parallelize(model(device)).unwrap();
            let mut optim = optimizer();
            let recipe = Recipe {
                accumulate: 2,
                ..Recipe::default()
            };
            let step = |_| {
                let hold = mesh.hold();
                let (next, loss) =
                    one_with(model.clone(), &mut optim, &batch(), recipe, 1e-2, device);
                drop(hold);
                model = next;
                loss.into_scalar()
            };
            (0..4).map(step).collect()
        };
        let expected = losses(None);
        assert!(expected[3] < expected[0], "{expected:?}");
        for axes in ["fsdp=2", "tp=2", "cp=2", "pp=2", "fsdp=2,cp=2"] {
            for (found, expected) in losses(Some(axes)).iter().zip(&expected) {
                assert!(
                    (found - expected).abs() < 1e-4 * expected,
                    "{axes}: {found}, {expected}"
                );
            }
        }
    }
}
