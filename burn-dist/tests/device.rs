//! The device of a mesh, as a program of Burn uses it: an ordinary program on it is the program on one device, bit by
//! bit on one rank; and what goes wrong has a name.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Barrier, Mutex};

use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig, Relu};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{
    Bool, Device, Distribution, IndexingUpdateOp, Int, Tensor, TensorData, Tolerance,
};
use burn_dist::{DeviceMesh, Regions};

one_thread::one_thread!();

fn mesh(text: &str) -> DeviceMesh {
    DeviceMesh::parse(text).expect("a mesh")
}

/// An encoder and a decoder: nothing here knows of meshes.
#[derive(Module, Debug)]
struct Coder {
    encode: Linear,
    relu: Relu,
    decode: Linear,
}

impl Coder {
    /// The same weights on every device.
    fn new(device: &Device) -> Self {
        let linear = |inputs, outputs| {
            let mut linear: Linear = LinearConfig::new(inputs, outputs).init(device);
            let weight = values(inputs * outputs, |i| ((i * 29 % 31) as f32 - 15.0) / 60.0);
            let weight = Tensor::from_data(TensorData::new(weight, [inputs, outputs]), device);
            linear.weight = Param::from_tensor(weight);
            linear.bias = Some(Param::from_tensor(Tensor::zeros([outputs], device)));
            linear
        };
        Self {
            encode: linear(8, 16),
            relu: Relu::new(),
            decode: linear(16, 8),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let hidden = self.relu.forward(self.encode.forward(x));
        self.decode.forward(hidden)
    }
}

fn values(count: usize, value: impl Fn(usize) -> f32) -> Vec<f32> {
    (0..count).map(value).collect()
}

/// Losses of 20 steps of Adam, and the weights after them.
fn train(device: &Device) -> Vec<TensorData> {
    let mut model = Coder::new(device);
    let mut optimizer = AdamConfig::new().init();
    let mut seen = Vec::new();
    for step in 0..20 {
        let x = values(48, |i| ((i * 37 + step * 101) % 97) as f32 / 97.0);
        let x = Tensor::<2>::from_data(TensorData::new(x, [6, 8]), device);
        let loss = (model.forward(x.clone()) - x).powi_scalar(2).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(1e-2, model, gradients);
        seen.push(loss.into_data());
    }
    seen.push(model.encode.weight.val().into_data());
    seen.push(model.decode.weight.val().into_data());
    seen
}

#[test]
fn one_rank_is_flex_bit_by_bit() {
    let mesh = DeviceMesh::builder().regions(Regions::Flex).build();
    let mesh = mesh.expect("a mesh");
    let plain = train(&Device::flex().autodiff());
    assert_eq!(train(&mesh.device().autodiff()), plain);
    let recomputing = mesh.device().autodiff().gradient_checkpointing();
    assert_eq!(train(&recomputing), plain);
}

#[test]
fn several_ranks_are_flex() {
    let plain = train(&Device::flex().autodiff());
    // Regions on one rank are off by as much: their functions by two units, and their sums are in another order too.
    for text in ["", "dp=2", "fsdp=2", "tp=2", "dp=3"] {
        let mesh = mesh(text);
        for (here, there) in train(&mesh.device().autodiff()).iter().zip(&plain) {
            // Sums of eight products and of 48 squares in another order: some units in the last place of a step, and
            // Adam's quotient carries them through 20 steps.
            here.assert_approx_eq::<f32>(there, Tolerance::rel_abs(1e-4, 1e-5));
        }
    }
}

/// The text of the panic of `f`.
fn panic_of<T>(f: impl FnOnce() -> T) -> String {
    let panic = catch_unwind(AssertUnwindSafe(f)).map(drop);
    let panic = panic.expect_err("this is refused");
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
    text.unwrap_or_default()
}

#[test]
fn tensors_of_two_meshes_are_refused_by_name() {
    let (here, there) = (mesh("dp=2"), mesh("dp=3"));
    let (here, there) = (here.device(), there.device());
    let x = Tensor::<2>::ones([2, 3], &here);
    let y = Tensor::<2>::ones([2, 3], &there);
    let at = Tensor::<1, Int>::from_data([1, 0], &there);
    let wide = || at.clone().unsqueeze_dim::<2>(1).expand([2, 3]);
    let add = IndexingUpdateOp::Add;
    // Burn compares the devices of two operands itself.
    let compared = [
        ("Add", panic_of(|| x.clone() + y.clone())),
        (
            "Matmul",
            panic_of(|| x.clone().matmul(y.clone().transpose())),
        ),
    ];
    for (name, text) in compared {
        assert!(
            text.contains(name) && text.contains("not on the same device"),
            "{text}"
        );
        assert!(text.contains("dp=2") && text.contains("dp=3"), "{text}");
    }
    let tracked = |x: &Tensor<2>| x.clone().autodiff().require_grad();
    let refused: [(&str, String); 9] = [
        (
            "cat",
            panic_of(|| Tensor::cat(vec![x.clone(), y.clone()], 0)),
        ),
        ("select", panic_of(|| x.clone().select(0, at.clone()))),
        ("gather", panic_of(|| x.clone().gather(0, wide()))),
        (
            "scatter",
            panic_of(|| x.clone().scatter(0, wide(), x.clone(), add)),
        ),
        (
            "select_assign",
            panic_of(|| x.clone().select_assign(0, at.clone(), x.clone(), add)),
        ),
        (
            "mask_fill",
            panic_of(|| x.clone().mask_fill(y.clone().equal_elem(1.0), 2.0)),
        ),
        (
            "cat",
            panic_of(|| Tensor::cat(vec![tracked(&x), tracked(&y)], 0)),
        ),
        (
            "mask_where",
            panic_of(|| x.clone().mask_where(y.clone().equal_elem(1.0), x.clone())),
        ),
        (
            "slice_assign",
            panic_of(|| x.clone().slice_assign([0..2, 0..3], y.clone())),
        ),
    ];
    for (name, text) in refused {
        assert!(
            text.contains(&format!("`{name}` was given tensors of two meshes")),
            "{name}: {text}"
        );
        assert!(
            text.contains("dp=2") && text.contains("dp=3"),
            "{name}: {text}"
        );
    }
    // The way out that the error names.
    let moved = y.to_device(&here);
    assert_eq!((x + moved).sum().into_scalar::<f32>(), 12.0);
}

/// Burn chooses the backend of an operation by its first tensor, and so refuses a tensor of another one before a mesh
/// sees it: by both devices, or by the operand's name.
#[test]
fn a_tensor_of_another_backend_is_refused() {
    let mesh = mesh("dp=2");
    let (here, flex) = (mesh.device(), Device::flex());
    for (here, there) in [(&here, &flex), (&flex, &here)] {
        let x = Tensor::<2>::ones([2, 3], here);
        let y = Tensor::<2>::ones([2, 3], there);
        let at = Tensor::<1, Int>::from_data([1, 0], there);
        let wide = at.clone().unsqueeze_dim::<2>(1).expand([2, 3]);
        let text = panic_of(|| x.clone() + y.clone());
        for part in ["Add", "not on the same device", "dp=2", "Flex"] {
            assert!(text.contains(part), "{part} in: {text}");
        }
        let refused = [
            panic_of(|| Tensor::cat(vec![x.clone(), y.clone()], 0)),
            panic_of(|| x.clone().select(0, at.clone())),
            panic_of(|| x.clone().gather(0, wide.clone())),
            panic_of(|| x.clone().mask_fill(y.clone().equal_elem(1.0), 2.0)),
            panic_of(|| x.clone().slice_assign([0..2, 0..3], y.clone())),
        ];
        for text in refused {
            assert!(text.contains("is on the wrong backend"), "{text}");
        }
        // The way out.
        let moved = y.to_device(here);
        assert_eq!((x + moved).sum().into_scalar::<f32>(), 12.0);
    }
}

/// How many pairs of last uses meet; `BURN_DIST_RACE_PAIRS` asks for others.
fn race_pairs() -> usize {
    let asked = std::env::var("BURN_DIST_RACE_PAIRS").ok();
    asked.map_or(5_000, |text| text.parse().expect("a number of pairs"))
}

#[test]
fn last_uses_on_two_threads_do_not_race() {
    let mesh = mesh("dp=2");
    let device = mesh.device();
    let slots = [Mutex::new(None), Mutex::new(None)];
    let barrier = Barrier::new(2);
    let run = |me: usize| {
        let mut panics = 0;
        for _ in 0..race_pairs() {
            if me == 0 {
                let x = Tensor::<1>::from_data([1.0f32], &device) * 1.0;
                for slot in &slots {
                    *slot.lock().expect("no panic") = Some(x.clone());
                }
            }
            barrier.wait();
            let x: Option<Tensor<1>> = slots[me].lock().expect("no panic").take();
            let used = catch_unwind(AssertUnwindSafe(|| x.expect("a tensor") + 1.0));
            panics += usize::from(used.is_err());
            barrier.wait();
        }
        panics
    };
    let panics: usize = std::thread::scope(|scope| {
        let threads = [0, 1].map(|me| scope.spawn(move || run(me)));
        threads
            .map(|thread| thread.join().expect("it counts"))
            .iter()
            .sum()
    });
    assert_eq!(panics, 0, "of {} pairs", race_pairs());
    device.sync().expect("every operation has its tensors");
}

#[test]
fn a_device_keeps_its_mesh_and_says_when_it_has_ended() {
    let mesh = mesh("dp=2");
    let device = mesh.device();
    drop(mesh);
    let x = Tensor::<1>::ones([4], &device);
    assert_eq!(x.clone().sum().into_scalar::<f32>(), 4.0);
    drop(device);
    // A tensor keeps no mesh.
    let text = panic_of(|| (x.clone() + 1.0).into_data());
    assert!(
        text.contains("mesh dp=2 was dropped before this tensor was used"),
        "{text}"
    );
    let ended = x.device();
    assert!(format!("{ended:?}").contains("ended"), "{ended:?}");
    // Nor does the device of such a tensor.
    let refused = [
        panic_of(|| Tensor::<1>::ones([4], &ended).into_data()),
        panic_of(|| Tensor::<1>::ones([4], &ended.clone().autodiff()).into_data()),
        panic_of(|| Tensor::<1>::random([4], Distribution::Default, &ended).into_data()),
        panic_of(|| {
            Tensor::<1>::ones([4], &Device::flex())
                .to_device(&ended)
                .into_data()
        }),
        panic_of(|| Tensor::cat(vec![x.clone(), x.clone()], 0).into_data()),
        ended.sync().expect_err("it has ended").to_string(),
    ];
    for text in refused {
        assert!(text.contains("mesh dp=2 was dropped before"), "{text}");
    }
}

#[test]
fn a_seed_gives_the_same_numbers_on_every_mesh() {
    let random = |device: &Device| {
        device.seed(7);
        let first = Tensor::<2>::random([5, 3], Distribution::Default, device).into_data();
        let second = Tensor::<2>::random([5, 3], Distribution::Default, device).into_data();
        assert_ne!(first, second);
        (first, second)
    };
    let meshes = ["", "dp=2", "fsdp=3"].map(mesh);
    let one = random(&meshes[0].device());
    for mesh in &meshes {
        assert_eq!(random(&mesh.device()), one, "{mesh}");
        assert_eq!(random(&mesh.device().autodiff()), one, "{mesh}");
    }
}

#[test]
fn devices_are_equal_by_mesh() {
    let (here, there) = (mesh("dp=2"), mesh("dp=2"));
    assert_eq!(here.device(), here.device());
    assert_eq!(here.device(), here.device().autodiff());
    assert_ne!(here.device(), there.device());
    assert_ne!(here.device(), Device::flex());
    let x = Tensor::<1>::ones([1], &here.device());
    assert_eq!(x.device(), here.device());
    assert!(!x.device().is_autodiff());
    let device = here.device().autodiff().gradient_checkpointing();
    assert!(Tensor::<1>::ones([1], &device).device().is_autodiff());
}

#[test]
fn devices_are_printed_with_mesh_and_ranks() {
    let mesh = mesh("fsdp=2,tp=2");
    let device = format!("{:?}", mesh.device());
    assert!(device.starts_with("Device<NdArray(mesh "), "{device}");
    assert!(device.ends_with(" (fsdp=2,tp=2))>"), "{device}");
    for text in [format!("{mesh:?}"), mesh.to_string()] {
        assert!(
            text.contains("fsdp=2,tp=2") && !text.contains("NdArray"),
            "{text}"
        );
    }
}

/// Quantized values that are none stay quantized: there are no zeros for them.
#[test]
fn nothing_is_taken_of_quantized_values() {
    let taken = |device: &Device, takes: bool| {
        let x = Tensor::<1>::from_data([1.0, 7.0, 2.0, 3.0], device);
        let x = x.quantize_dynamic(&device.settings().quantization.scheme);
        let mask = Tensor::<1, Bool>::from_data([takes, false, takes, false], device);
        x.mask_select(mask).into_data()
    };
    for text in ["", "fsdp=2", "dp=3"] {
        let device = mesh(text).device();
        for takes in [true, false] {
            let (found, expected) = (taken(&device, takes), taken(&Device::flex(), takes));
            assert_eq!(found, expected, "{text}, {takes}");
        }
    }
}
