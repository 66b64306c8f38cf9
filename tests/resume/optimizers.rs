//! State of every optimizer.

use super::prelude::*;
use super::run::*;

#[test]
fn every_optimizer_is_resumed() {
    fn check(name: &str, optimizer: impl Fn() -> ModuleOptimizer) {
        for axes in ["fsdp=2,tp=2", "pp=2"] {
            let (whole, halves) = (directory(), directory());
            begin(axes, optimizer(), [whole.path(), halves.path()]);
            let start = |root| Run::start(builder(axes), root, optimizer());
            let expected = start(whole.path()).train(2 * HALF).save();
            let first = start(halves.path()).train(HALF).save().losses;
            let rest = start(halves.path()).train(HALF).save().losses;
            let what = format!("{name} on {axes}");
            assert_eq!([first, rest].concat(), expected.losses, "{what}");
            assert_equal(halves.path(), whole.path(), &what);
        }
    }
    check("SGD", || SgdConfig::new().init());
    check("SGD with momentum", || {
        let config = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
        config
            .with_weight_decay(Some(WeightDecayConfig::new(1e-2)))
            .init()
    });
    check("Adam", || AdamConfig::new().init());
    check("AMSGrad", || AdamWConfig::new().with_amsgrad(true).init());
    check("Adan", || AdanConfig::new().init());
    check("AdaGrad", || AdaGradConfig::new().init());
    check("RMSProp", || {
        RmsPropConfig::new().with_centered(true).init()
    });
}

/// It updates matrices alone.
#[test]
fn muon_is_resumed() {
    let mesh = builder("fsdp=2").build().unwrap();
    let device = mesh.device().autodiff();
    let root = directory();
    let config = LinearConfig::new(4, 6).with_bias(false);
    let plan = Plan::new();
    let step = |linear: Linear, optimizer: &mut dyn FnMut(Linear, GradientsParams) -> Linear| {
        let loss = linear
            .forward(Tensor::<2>::ones([2, 4], &device))
            .powi_scalar(2)
            .mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &linear);
        optimizer(linear, gradients)
    };
    let mut linear = config.init(&device).parallelize_with(&mesh, &plan).unwrap();
    let mut muon = MuonConfig::new().init();
    linear = step(linear, &mut |linear, gradients| {
        muon.step(0.1, linear, gradients)
    });
    let mut checkpoints = Checkpointer::at(root.path(), &device).unwrap();
    let state = State::new()
        .module("model", &linear)
        .optimizer("muon", &muon, &linear);
    checkpoints.save(1, state).unwrap();
    let expected = step(linear, &mut |linear, gradients| {
        muon.step(0.1, linear, gradients)
    });

    let saved = checkpoints.open(1).unwrap();
    let fresh = config.init(&device).parallelize_with(&mesh, &plan).unwrap();
    let linear = saved.module("model", fresh).unwrap();
    let mut muon = saved
        .optimizer("muon", MuonConfig::new().init(), &linear)
        .unwrap();
    let found = step(linear, &mut |linear, gradients| {
        muon.step(0.1, linear, gradients)
    });
    assert!(found.weight.val().into_data().bytes() == expected.weight.val().into_data().bytes());
}
