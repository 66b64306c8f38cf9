//! What `Dist<B>` promises for any inner backend `B`, here for those whose tensors live on a device.

use burn::backend::{Autodiff, Flex};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor, TensorData, Tolerance};
use burn_dist::checkpoint::{Checkpointer, State};
use burn_dist::mesh::ReduceOp;
use burn_dist::mesh::{GpuTransport, Reduction};
use burn_dist::{
    AsyncTp, DTensor, DeviceMesh, Dist, LocalParts, MeshBackend, MeshDevice, ParallelizeWith, Plan,
};
use burn_ir::BackendIr;

use super::net;

fn mesh(text: &str) -> DeviceMesh {
    DeviceMesh::builder()
        .axes(&text.parse().expect("a mesh"))
        .scatter_bytes_min(0)
        .build()
        .expect("a mesh")
}

/// Small whole numbers, whose sums and products are exact.
fn whole_numbers(shape: [usize; 2], salt: usize) -> Vec<f32> {
    (0..shape[0] * shape[1])
        .map(|i| ((i * 37 + salt * 101) % 13) as f32 - 6.0)
        .collect()
}

/// Whether `program` runs a collective of `kind` on `device`.
fn runs<B: BackendIr, T>(kind: &str, device: &MeshDevice, program: impl FnOnce() -> T) -> T {
    let (result, explanation) = burn_dist::explain::<Dist<B>, T>(device, program);
    let text = explanation.to_string();
    assert!(text.contains(kind), "no {kind} in\n{text}");
    result
}

/// Sizes that split evenly, unevenly, and into empty parts.
const SHAPES: [[usize; 2]; 3] = [[4, 6], [5, 7], [1, 2]];

/// Layouts before and after, and the collective between them.
const MOVES: [(&str, &str, &str); 5] = [
    ("[{tp}, -]", "[-, -]", "all_gather"),
    ("[-, {tp}]", "[-, -]", "all_gather"),
    ("[-, {tp}]", "[{tp}, -]", "all_to_all"),
    ("[{tp}, -]", "[-, {tp}]", "all_to_all"),
    ("[-, {tp*}]", "[-, -]", "all_gather"),
];

/// Moving data keeps every bit.
pub(crate) fn moves<B: BackendIr>(meshes: &[&str]) {
    for text in meshes {
        moves_on::<B>(&mesh(text), text);
    }
}

/// As [`moves`], on one mesh with an axis `tp`.
fn moves_on<B: BackendIr>(mesh: &DeviceMesh, name: &str) {
    let device = mesh.device();
    for shape in SHAPES {
        for (from, to, kind) in MOVES {
            let floats = TensorData::new(whole_numbers(shape, 1), shape);
            let x = Tensor::<Dist<B>, 2>::from_data(floats.clone(), &device);
            let x = x.redistribute(from).expect("a layout");
            let y = runs::<B, _>(kind, &device, || {
                let y = x.redistribute(to).expect("a layout");
                y.layout().expect("a layout");
                y
            });
            let what = format!("{shape:?} on {name}: {from} -> {to}");
            assert_eq!(y.into_data(), floats, "{what}");

            let ints = TensorData::new(floats.iter::<i32>().collect::<Vec<_>>(), shape);
            let x = Tensor::<Dist<B>, 2, Int>::from_data(ints.clone(), &device);
            let x = x.redistribute(from).expect("a layout");
            let y = runs::<B, _>(kind, &device, || {
                let y = x.redistribute(to).expect("a layout");
                y.layout().expect("a layout");
                y
            });
            y.into_data().assert_eq(&ints, false);
        }
    }
}

fn reduced(op: ReduceOp, terms: &[Vec<f32>]) -> Vec<f32> {
    let fold = |f: fn(f32, f32) -> f32, i: usize| {
        let values = terms.iter().map(|term| term[i]);
        values.reduce(f).expect("a term")
    };
    (0..terms[0].len())
        .map(|i| match op {
            ReduceOp::Sum => fold(|a, b| a + b, i),
            ReduceOp::Mean => fold(|a, b| a + b, i) / terms.len() as f32,
            ReduceOp::Min => fold(f32::min, i),
            ReduceOp::Max => fold(f32::max, i),
            ReduceOp::Prod => fold(|a, b| a * b, i),
        })
        .collect()
}

/// Every reduction of what the ranks hold, everywhere or in parts, on a mesh with one axis, `tp`.
pub(crate) fn reductions<B: BackendIr>(meshes: &[&str], local: &B::Device) {
    for text in meshes {
        let mesh = mesh(text);
        let devices = vec![local.clone(); mesh.shape().num_ranks()];
        reductions_on::<B>(&mesh, &devices);
    }
}

/// As [`reductions`], on one mesh whose ranks live on `devices`.
fn reductions_on<B: BackendIr>(mesh: &DeviceMesh, devices: &[B::Device]) {
    const OPS: [(&str, ReduceOp); 5] = [
        ("sum", ReduceOp::Sum),
        ("mean", ReduceOp::Mean),
        ("min", ReduceOp::Min),
        ("max", ReduceOp::Max),
        ("prod", ReduceOp::Prod),
    ];
    let device = mesh.device();
    for shape in SHAPES {
        let terms: Vec<Vec<f32>> = (0..devices.len())
            .map(|rank| whole_numbers(shape, rank))
            .collect();
        for (name, op) in OPS {
            let expected = TensorData::new(reduced(op, &terms), shape);
            for (to, kind) in [
                ("[-, -]", "all_reduce"),
                ("[{tp}, -]", "reduce_scatter"),
                ("[-, {tp}]", "reduce_scatter"),
            ] {
                let parts = terms.iter().zip(devices);
                let parts: Vec<Tensor<B, 2>> = parts
                    .map(|(term, local)| {
                        Tensor::from_data(TensorData::new(term.clone(), shape), local)
                    })
                    .collect();
                let layout = format!("[-, -] + {name}{{tp}}");
                let x = Tensor::<Dist<B>, 2>::from_local(parts, &shape, &layout, &device)
                    .expect("the parts fit");
                let y = runs::<B, _>(kind, &device, || {
                    let y = x.redistribute(to).expect("a layout");
                    y.layout().expect("a layout");
                    y
                });
                let found = y.into_data();
                // A division by three need not be rounded as the host does.
                found.assert_approx_eq::<f32>(
                    &expected,
                    burn::tensor::Tolerance::absolute(match op {
                        ReduceOp::Mean => 1e-6,
                        _ => 0.0,
                    }),
                );
            }
        }
    }
}

/// The parts of single ranks come out and go in.
pub(crate) fn parts<B: BackendIr>() {
    let mesh = mesh("fsdp=2,tp=2");
    let device = mesh.device();
    let data = TensorData::new(whole_numbers([5, 6], 3), [5, 6]);
    let x = Tensor::<Dist<B>, 2>::from_data(data.clone(), &device)
        .redistribute("[{fsdp}, {tp}]")
        .expect("a layout");
    let parts: Vec<Tensor<B, 2>> = (0..4)
        .map(|rank| x.to_local(burn_dist::mesh::Rank(rank)).expect("a part"))
        .collect();
    let shapes: Vec<[usize; 2]> = parts.iter().map(|part| part.dims()).collect();
    assert_eq!(shapes, [[3, 3], [3, 3], [2, 3], [2, 3]]);
    let whole = Tensor::<Flex, 2>::from_data(data.clone(), &Default::default());
    assert_eq!(
        (parts[3].clone() * 2).into_data(),
        (whole.slice([3..5, 3..6]) * 2).into_data()
    );
    let again = Tensor::<Dist<B>, 2>::from_local(parts, &[5, 6], "[{fsdp}, {tp}]", &device)
        .expect("the parts fit");
    assert_eq!(
        (again + x).into_data(),
        TensorData::new(
            data.iter::<f32>().map(|v| v + v).collect::<Vec<_>>(),
            [5, 6]
        )
    );
}

/// What is saved, in the background, is the state at that moment; a run that goes on from it has the bits of one that
/// went on, and another mesh the same weights.
pub(crate) fn checkpoints<B: BackendIr>()
where
    Autodiff<Dist<B>>: AutodiffBackend<Device = MeshDevice> + MeshBackend,
{
    type Model<B> = Linear<Autodiff<Dist<B>>>;
    let root = tempfile::tempdir().expect("a directory");
    let fresh = |text: &str| {
        let mesh = mesh(text);
        let model: Model<B> = LinearConfig::new(6, 10).init(&mesh.device());
        let model = model.parallelize_with(&mesh, &Plan::new()).expect("a plan");
        let adam = AdamConfig::new().init::<Autodiff<Dist<B>>, Model<B>>();
        (mesh, model, adam)
    };
    fn step<B: AutodiffBackend>(
        model: Linear<B>,
        optimizer: &mut impl Optimizer<Linear<B>, B>,
        device: &B::Device,
    ) -> Linear<B> {
        let x = Tensor::<B, 2>::ones([4, 6], device);
        let loss = model.forward(x).powi_scalar(2).mean();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        optimizer.step(0.1, model, gradients)
    }
    let (mesh, model, mut adam) = fresh("fsdp=2");
    let device = mesh.device();
    let model = step(model, &mut adam, &device);
    let mut checkpoints =
        Checkpointer::<Autodiff<Dist<B>>>::at(root.path(), &device).expect("a directory");
    let state = State::new()
        .module("model", &model)
        .optimizer("adam", &adam, &model);
    let saving = checkpoints.save_in_background(1, state).expect("a save");
    let saved_weight = model.weight.val().into_data();
    let expected = step(model, &mut adam, &device).weight.val().into_data();
    saving.wait().expect("saved");
    for text in ["fsdp=2", "tp=2,fsdp=2", ""] {
        let (mesh, model, adam) = fresh(text);
        let device = mesh.device();
        let checkpoints =
            Checkpointer::<Autodiff<Dist<B>>>::at(root.path(), &device).expect("a directory");
        let saved = checkpoints.latest().expect("readable").expect("one");
        let model = saved.module("model", model).expect("the model");
        let mut adam = saved.optimizer("adam", adam, &model).expect("its state");
        assert_eq!(model.weight.val().into_data(), saved_weight, "{text}");
        let found = step(model, &mut adam, &device).weight.val().into_data();
        match text {
            "fsdp=2" => assert_eq!(found, expected),
            _ => found.assert_approx_eq::<f32>(&expected, Tolerance::default()),
        }
    }
}

/// A small transformer trains like on one device of Flex, and twice the same to the bit. So it does with sequences split
/// over tp and products in chunks.
pub(crate) fn training<B: BackendIr>(meshes: &[&str], steps: usize)
where
    Autodiff<Dist<B>>: AutodiffBackend<Device = MeshDevice> + MeshBackend,
{
    let expected = net::train::<Autodiff<Flex>>(&Default::default(), steps, |net| net);
    for text in meshes {
        let mesh = mesh(text);
        let train = |plan: &Plan| {
            net::train::<Autodiff<Dist<B>>>(&mesh.device(), steps, |net| {
                net.parallelize_with(mesh.shape(), plan).expect("a plan")
            })
        };
        let losses = train(&net::plan());
        net::close(&losses, &expected, text);
        assert_eq!(losses, train(&net::plan()), "{text}: a second run differs");
        if mesh.shape().axis("tp").is_ok() {
            let split = net::plan().output("embedding", "[-, {tp}, -]");
            let chunks = split.async_tp(AsyncTp::On);
            let (losses, plans) =
                burn_dist::explain::<Dist<B>, _>(&mesh.device(), || train(&chunks));
            net::close(&losses, &expected, &format!("{text}, in chunks"));
            let shifted = plans.overlaps.iter().any(|overlap| overlap.whole.is_none());
            assert!(shifted, "{text}: {plans}");
        }
    }
}

/// Data that moves, and is reduced, between ranks that live on several devices.
pub(crate) fn across_devices<B: BackendIr>(devices: &[B::Device]) {
    across_devices_by::<B>(devices, GpuTransport::default(), Reduction::default());
}

/// As [`across_devices`], between GPUs by `transport`, which adds up as `reduction` says.
pub(crate) fn across_devices_by<B: BackendIr>(
    devices: &[B::Device],
    transport: GpuTransport,
    reduction: Reduction,
) {
    let mesh = DeviceMesh::builder()
        .axis("tp", devices.len())
        .devices(devices)
        .scatter_bytes_min(0)
        .gpu_transport(transport)
        .reduction(reduction)
        .build()
        .expect("a device per rank");
    let name = format!("{} devices, {transport:?}, {reduction:?}", devices.len());
    moves_on::<B>(&mesh, &name);
    reductions_on::<B>(&mesh, devices);
}

/// Fails, with what to do about it, if the backend finds no device.
pub(crate) fn device_or_fail<B: Backend>(hint: &str) -> B::Device {
    let found = std::thread::spawn(|| {
        let device = B::Device::default();
        let one = Tensor::<B, 1>::from_data([1.0_f32], &device);
        (one + 1).into_data().iter::<f32>().sum::<f32>()
    })
    .join();
    match found {
        Ok(sum) => assert_eq!(sum, 2.0, "the device cannot add"),
        Err(_) => panic!("no device for this backend: {hint}"),
    }
    B::Device::default()
}
