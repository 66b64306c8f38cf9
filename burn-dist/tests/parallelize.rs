//! `parallelize` on real meshes: parameters lie as the derive says, whatever the order of initialising, loading and
//! placing, and no value changes.

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig, LinearLayout};
use burn::store::ModuleRecord;
use burn::tensor::{Bytes, Device, Int, Tensor, TensorData, Tolerance};
use burn_dist::parallel::ParallelError;
use burn_dist::{DTensor, DeviceMesh, Parallelize, Plan};

one_thread::one_thread!();

#[derive(Module, Debug, Parallelize)]
struct Model {
    #[parallel(vocab)]
    embedding: Embedding,
    #[parallel(colwise, heads = self.n_heads)]
    up: Linear,
    #[parallel(rowwise)]
    down: Linear,
    n_heads: usize,
}

impl Model {
    fn new(layout: LinearLayout, device: &Device) -> Self {
        let linear = |input, output| LinearConfig::new(input, output).with_layout(layout);
        Self {
            embedding: EmbeddingConfig::new(10, 6).init(device),
            up: linear(6, 8).init(device),
            down: linear(8, 6).with_bias(false).init(device),
            n_heads: 4,
        }
    }

    /// The output, and the gradient of the embedding where there is autodiff.
    fn forward(&self, device: &Device) -> Tensor<3> {
        let tokens = Tensor::<2, Int>::from_data([[1, 2, 3], [9, 0, 1]], device);
        self.down
            .forward(self.up.forward(self.embedding.forward(tokens)))
    }
}

/// A trained model's file, and what it computes on one device.
fn reference(layout: LinearLayout) -> (Vec<u8>, TensorData) {
    let device = Device::flex().autodiff();
    let model = Model::new(layout, &device);
    let out = model.forward(&device).into_data();
    let file = model.into_record().into_bytes().expect("records");
    (file.to_vec(), out)
}

fn load(model: Model, file: &[u8]) -> Model {
    let bytes = Bytes::from_bytes_vec(file.to_vec());
    let record = ModuleRecord::from_bytes(bytes).expect("loads");
    model.load_record(record)
}

/// The dims of the three weights that are split over `tp`.
fn split_dims(model: &Model, mesh: &DeviceMesh) -> Vec<Option<usize>> {
    let tp = mesh.shape().axis("tp").expect("an axis");
    [
        &model.embedding.weight,
        &model.up.weight,
        &model.down.weight,
    ]
    .map(|weight| {
        let layout = weight.val().layout().expect("a running mesh");
        layout.position(tp).map(|(dim, _)| dim)
    })
    .to_vec()
}

#[test]
fn every_order_gives_the_same_model() {
    for layout in [LinearLayout::Row, LinearLayout::Col] {
        let (file, expected) = reference(layout);
        for axes in ["tp=2", "tp=4", "fsdp=2,tp=2"] {
            let mesh = DeviceMesh::parse(axes).expect("a mesh");
            let fresh = || Model::new(layout, &mesh.device().autodiff());
            let lazy_then_load = load(fresh().parallelize(&mesh).expect("fits"), &file);
            let load_then_place = load(fresh(), &file).parallelize(&mesh).expect("fits");
            let mut orders = vec![
                ("lazy, placed, loaded", lazy_then_load),
                ("loaded, placed", load_then_place),
            ];
            // Burn 0.22.1 compares a record with the shape in use, and so takes back no transposed parameter.
            if matches!(layout, LinearLayout::Row) {
                let initialised = fresh();
                initialised.forward(&mesh.device().autodiff());
                let placed = initialised.parallelize(&mesh).expect("fits");
                orders.push(("initialised, placed, loaded", load(placed, &file)));
            }
            for (order, model) in orders {
                assert_eq!(
                    split_dims(&model, &mesh),
                    [Some(0), Some(1), Some(0)],
                    "{axes}, {layout:?}, {order}"
                );
                let out = model.forward(&mesh.device().autodiff());
                out.into_data()
                    .assert_approx_eq::<f32>(&expected, Tolerance::rel_abs(1e-5, 1e-6));
            }
        }
    }
}

#[test]
fn parameters_made_after_placing_are_split_and_trainable() {
    let mesh = DeviceMesh::parse("fsdp=2,tp=2").expect("a mesh");
    let model = Model::new(LinearLayout::Row, &mesh.device().autodiff())
        .parallelize(&mesh)
        .expect("fits");
    assert!(!model.up.weight.is_initialized());
    let grads = model.forward(&mesh.device().autodiff()).sum().backward();
    assert_eq!(split_dims(&model, &mesh), [Some(0), Some(1), Some(0)]);
    let grad = model.up.weight.grad(&grads).expect("a leaf");
    assert_eq!(grad.dims(), [6, 8]);
}

#[test]
fn the_same_model_runs_without_a_tp_axis() {
    let (file, expected) = reference(LinearLayout::Row);
    let mesh = DeviceMesh::parse("fsdp=4").expect("a mesh");
    let model = Model::new(LinearLayout::Row, &mesh.device().autodiff());
    let model = load(model.parallelize(&mesh).expect("fits"), &file);
    let out = model.forward(&mesh.device().autodiff()).into_data();
    out.assert_approx_eq::<f32>(&expected, Tolerance::rel_abs(1e-5, 1e-6));
}

#[test]
fn indivisible_heads_and_other_meshes_are_refused() {
    let mesh = DeviceMesh::parse("tp=3").expect("a mesh");
    let model = || Model::new(LinearLayout::Row, &mesh.device().autodiff());
    let error = model().parallelize(&mesh).expect_err("4 heads over 3");
    assert!(
        matches!(
            error,
            ParallelError::Indivisible {
                count: 4,
                size: 3,
                ..
            }
        ),
        "{error}"
    );
    let plan: Plan = model().plan().replicate_indivisible();
    let replicated = burn_dist::ParallelizeWith::parallelize_with(model(), &mesh, &plan);
    assert_eq!(
        split_dims(&replicated.expect("fits"), &mesh),
        [Some(0), None, Some(0)]
    );
    let other = DeviceMesh::parse("tp=2").expect("a mesh");
    let error = model().parallelize(&other).expect_err("another mesh");
    assert!(matches!(error, ParallelError::OtherMesh { .. }), "{error}");
}
