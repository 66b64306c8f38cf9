//! A model with parameters of every kind.

use super::prelude::*;
use super::run::*;

/// Parameters of every kind, with all that a module may do to them.
#[derive(Module, Debug)]
pub(super) struct Zoo {
    /// Kept as `[out, in]`, and transposed in records.
    pub columns: Linear,
    /// Has running statistics, which no gradient changes.
    pub norm: BatchNorm,
    pub dropout: Dropout,
    pub rows: Linear,
    pub counts: Param<Tensor<1, Int>>,
    pub mask: Param<Tensor<2, Bool>>,
}

pub(super) fn fixed<T: Parameter>(value: T) -> Param<T> {
    Param::initialized(ParamId::new(), value)
}

impl Zoo {
    pub(super) fn new(device: &Device) -> Self {
        let columns = LinearConfig::new(6, 10).with_layout(LinearLayout::Col);
        let rows: Linear = LinearConfig::new(10, 3).init(device);
        Self {
            columns: columns.init(device),
            norm: BatchNormConfig::new(10).init(device),
            dropout: DropoutConfig::new(0.5).init(),
            rows,
            counts: fixed(Tensor::from_data([1, 2, 3], device)),
            mask: fixed(Tensor::from_data([[true, false], [false, true]], device)),
        }
    }

    pub(super) fn forward(&self, x: Tensor<2>) -> Tensor<1> {
        let x = self.norm.forward(self.columns.forward(x));
        self.rows.forward(self.dropout.forward(x)).mean()
    }
}

pub(super) fn zoo(axes: &str) -> (DeviceMesh, Zoo) {
    let mesh = builder(axes).build().expect("a mesh");
    let plan = Plan::new().rowwise("rows");
    let zoo = Zoo::new(&mesh.device().autodiff()).parallelize_with(&mesh, &plan);
    (mesh, zoo.expect("a plan"))
}

/// A step with a batch and a mask that are drawn.
pub(super) fn draw(zoo: Zoo, optimizer: &mut ModuleOptimizer, device: &Device) -> (Zoo, f32) {
    let x = Tensor::random([8, 6], Distribution::Normal(0.0, 1.0), device);
    let loss = zoo.forward(x);
    let gradients = GradientsParams::from_grads(loss.backward(), &zoo);
    let zoo = optimizer.step(0.1, zoo, gradients);
    (zoo, loss.into_scalar())
}

#[test]
fn every_kind_of_parameter_and_the_random_numbers_go_on() {
    let root = directory();
    let (mesh, mut model) = zoo("fsdp=2");
    let device = mesh.device().autodiff();
    device.seed(7);
    let mut optimizer = AdamConfig::new().init();
    (model, _) = draw(model, &mut optimizer, &device);
    model.counts = fixed(Tensor::from_data([7, 8, 9], &device));
    model.mask = fixed(Tensor::from_data([[true, true], [false, false]], &device));
    let mut ema = Ema::new(&model, 0.5);
    (model, _) = draw(model, &mut optimizer, &device);
    ema.update(&model);
    let mut scaler = LossScaler::new(1024.0);
    let infinite = model.rows.weight.val().sum() * f32::INFINITY;
    let infinite = GradientsParams::from_grads(infinite.backward(), &model);
    assert!(scaler.unscale(&model, infinite).is_none());
    let state = State::new()
        .module("model", &model)
        .optimizer("optimizer", &optimizer, &model)
        .value("scaler", &scaler);
    let mut checkpoints = Checkpointer::at(root.path(), &device).unwrap();
    checkpoints.save(1, state).unwrap();
    let averages = root.path().join("averages");
    let mut of_average = Checkpointer::at(&averages, &device).unwrap();
    of_average
        .save(1, State::new().module("average", ema.model()))
        .unwrap();

    let mut expected = Vec::new();
    for _ in 0..3 {
        let (next, loss) = draw(model, &mut optimizer, &device);
        (model, _) = (next, expected.push(loss));
    }
    for axes in ["fsdp=2", "tp=2,fsdp=2", ""] {
        let (mesh, model) = zoo(axes);
        let device = mesh.device().autodiff();
        let saved = Checkpointer::at(root.path(), &device)
            .unwrap()
            .latest()
            .unwrap()
            .unwrap();
        let mut model = saved.module("model", model).unwrap();
        let mut optimizer = saved
            .optimizer("optimizer", AdamConfig::new().init(), &model)
            .unwrap();
        assert_eq!(saved.value::<LossScaler>("scaler").unwrap(), scaler);
        let counts: Vec<i64> = model.counts.val().into_data().iter::<i64>().collect();
        assert_eq!(counts, [7, 8, 9]);
        let mask: Vec<bool> = model.mask.val().into_data().iter::<bool>().collect();
        assert_eq!(mask, [true, true, false, false]);
        let of_average = Checkpointer::at(&averages, &device).unwrap();
        let average = of_average.latest().unwrap().unwrap();
        let average = average.module("average", model.valid()).unwrap();
        let bits = |weight: Tensor<2>| weight.into_data().into_bytes();
        assert!(bits(average.rows.weight.val()) == bits(ema.model().rows.weight.val()));
        saved.restore_random().unwrap();
        let mut losses = Vec::new();
        for _ in 0..3 {
            let (next, loss) = draw(model, &mut optimizer, &device);
            (model, _) = (next, losses.push(loss));
        }
        match axes {
            "fsdp=2" => assert_eq!(losses, expected),
            _ => close(&losses, &expected, axes),
        }
    }
}
