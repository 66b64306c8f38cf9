//! Gradients that are not numbers are found, and named.

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor, TensorData};
use burn_dist::optim::{GradientCheck, NonFinite, clip_grad_norm};
use burn_dist::{ParallelizeWith, Plan};

use super::meshes::builder;

#[derive(Module, Debug)]
struct Net {
    first: Linear,
    layers: Vec<Linear>,
    unused: Linear,
    frozen: Linear,
}

impl Net {
    fn new(device: &Device) -> Self {
        let linear = || LinearConfig::new(5, 5).init(device);
        Self {
            first: linear(),
            layers: vec![linear(), linear()],
            unused: linear(),
            frozen: linear().no_grad(),
        }
    }
}

fn gradients(net: &Net, device: &Device) -> GradientsParams {
    // Data of the host is split over the data axes, so that gradients are sums over them.
    let x: Vec<f32> = (0..20).map(|i| i as f32 / 20.0).collect();
    let x = Tensor::<2>::from_data(TensorData::new(x, [4, 5]), device);
    let x = net.frozen.forward(net.first.forward(x));
    let x = net.layers.iter().fold(x, |x, layer| layer.forward(x));
    GradientsParams::from_grads(x.sum().backward(), net)
}

/// Puts `value` into the gradient of a parameter.
fn spoil(gradients: &mut GradientsParams, param: &Param<Tensor<2>>, values: &[(usize, f32)]) {
    let mut all = vec![1.0_f32; 25];
    for (at, value) in values {
        all[*at] = *value;
    }
    let device = param.val().device();
    gradients.remove::<2>(param.id);
    let spoiled = Tensor::<2>::from_data(TensorData::new(all, [5, 5]), &device);
    gradients.register(param.id, spoiled);
}

fn promises(device: &Device, net: Net, what: &str) {
    let mut stops = GradientCheck::new(NonFinite::Stop);
    let mut skips = GradientCheck::new(NonFinite::Skip);
    for _ in 0..2 {
        let checked = stops.check(&net, gradients(&net, device)).expect("finite");
        let checked = skips.check(&net, checked.expect("a step")).expect("finite");
        assert!(checked.is_some(), "{what}");
    }
    let unused = ["unused.weight", "unused.bias"];
    assert_eq!(
        stops.missing(),
        unused,
        "{what}: frozen parameters are not missed"
    );
    for values in [
        [(0, f32::NAN), (24, f32::INFINITY)],
        [(24, f32::NEG_INFINITY), (7, f32::NAN)],
    ] {
        let mut spoiled = gradients(&net, device);
        spoil(&mut spoiled, &net.layers[1].weight, &values);
        spoil(&mut spoiled, &net.layers[0].weight, &values);
        let error = stops.clone().check(&net, spoiled).expect_err("not finite");
        assert_eq!(
            (error.path.as_str(), error.step),
            ("layers.0.weight", 3),
            "{what}"
        );
        assert_eq!(
            (error.nans, error.infinities, error.elements),
            (1, 1, 25),
            "{what}"
        );
        let mut spoiled = gradients(&net, device);
        spoil(&mut spoiled, &net.layers[1].weight, &values);
        let skipped = skips.check(&net, spoiled).expect("skips");
        assert!(skipped.is_none(), "{what}");
    }
    assert_eq!(skips.skipped(), 2, "{what}");
    let next = skips.check(&net, gradients(&net, device)).expect("finite");
    assert!(next.is_some(), "{what}: the next step goes on");
}

#[test]
fn the_first_gradient_that_is_no_number_is_named() {
    let device = Device::flex().autodiff();
    promises(&device, Net::new(&device), "one device");
    for axes in [
        "",
        "dp=2",
        "fsdp=2",
        "fsdp=3",
        "tp=2",
        "dp=2,fsdp=2",
        "fsdp=2,tp=2",
    ] {
        let mesh = builder(axes).build().expect("a mesh");
        let plan = Plan::new().colwise("layers.0").rowwise("layers.1");
        let net = Net::new(&mesh.device().autodiff())
            .parallelize_with(&mesh, &plan)
            .expect("a plan");
        promises(&mesh.device().autodiff(), net, axes);
    }
}

#[test]
fn looking_and_clipping_cost_single_numbers() {
    for axes in ["dp=2", "fsdp=2"] {
        let mesh = builder(axes).build().expect("a mesh");
        let device = mesh.device().autodiff();
        let net = Net::new(&device)
            .parallelize_with(&mesh, &Plan::new())
            .expect("a plan");
        let gradients = gradients(&net, &device);
        // What is left of the backward.
        net.first.weight.val().into_data();
        let mut check = GradientCheck::new(NonFinite::Stop);
        let (gradients, looked) = burn_dist::explain(&device, || check.check(&net, gradients));
        let gradients = gradients.expect("finite").expect("a step");
        let (_, clipped) = burn_dist::explain(&device, || {
            let (_, norm) = clip_grad_norm(&net, gradients, 1.0);
            norm.into_scalar::<f32>()
        });
        assert_eq!((looked.windows, clipped.windows), (1, 1));
        for explanation in [looked, clipped] {
            let shapes = explanation.collectives.iter().map(|c| c.shape.clone());
            assert!(
                shapes.into_iter().all(|shape| shape == [1]),
                "{explanation}"
            );
        }
    }
}
