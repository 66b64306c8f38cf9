//! Loops that never read and keep something of every pass: their windows end all the same, so that memory grows by what
//! is kept and nothing else.

use std::collections::VecDeque;

use burn::module::Module as _;
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Device, Int, Tensor};
use burn_dist::{DeviceMesh, OnMesh, Parallelize};

use super::length::{Deep, batch, loss};
use super::mesh;

const ROWS: usize = 4;
const WIDTH: usize = 8;

/// Something that a program does again and again, on a model, and what it keeps.
struct Loop {
    name: &'static str,
    passes: usize,
    /// How many windows there are at least.
    windows: usize,
    meshes: &'static [&'static str],
    run: fn(&DeviceMesh, usize, &mut dyn FnMut()) -> Vec<f32>,
}

fn model(mesh: &DeviceMesh) -> Deep {
    let model = Deep::new(2, WIDTH, &mesh.device().autodiff());
    model.parallelize(mesh).expect("it fits")
}

fn data(pass: usize, device: &Device) -> Tensor<2> {
    batch(ROWS, WIDTH, pass, device)
}

/// Trains on what `input` makes for each step, and hands it the loss.
fn train(
    mesh: &DeviceMesh,
    steps: usize,
    mut input: impl FnMut(usize, Option<Tensor<1>>) -> Tensor<2>,
    after: &mut dyn FnMut(),
) -> Deep {
    let mut model = model(mesh);
    let mut optimizer = AdamConfig::new().init();
    let mut last = None;
    for step in 0..steps {
        let loss = loss(&model, input(step, last.take()));
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(1e-3, model, gradients);
        last = Some(loss.inner());
        after();
    }
    input(steps, last);
    model
}

/// Reads tensors of one shape, many at once.
fn values<const D: usize>(kept: Vec<Tensor<D>>) -> Vec<f32> {
    let read = |kept: &[Tensor<D>]| {
        let kept = Tensor::cat(kept.to_vec(), 0).into_data();
        kept.iter::<f32>().collect::<Vec<_>>()
    };
    kept.chunks(100).flat_map(read).collect()
}

const LOOPS: [Loop; 5] = [
    Loop {
        name: "losses in a list",
        passes: 160,
        windows: 40,
        meshes: &["", "fsdp=2"],
        run: |mesh, steps, after| {
            let (device, mut losses) = (mesh.device().autodiff(), Vec::new());
            let input = |step, loss| {
                losses.extend(loss);
                data(step, &device)
            };
            train(mesh, steps, input, after);
            values(losses)
        },
    },
    Loop {
        name: "the weights of every step",
        passes: 160,
        windows: 40,
        meshes: &["", "fsdp=2"],
        run: |mesh, steps, after| {
            let mut model = model(mesh);
            let mut optimizer = AdamConfig::new().init();
            let mut kept = Vec::new();
            for step in 0..steps {
                let loss = loss(&model, data(step, &mesh.device().autodiff()));
                let gradients = GradientsParams::from_grads(loss.backward(), &model);
                model = optimizer.step(1e-3, model, gradients);
                kept.push(model.blocks[1].up.weight.val().inner());
                after();
            }
            values(kept)
        },
    },
    Loop {
        name: "a replay buffer",
        passes: 160,
        windows: 40,
        meshes: &["", "fsdp=2"],
        run: |mesh, steps, after| {
            let device = mesh.device().autodiff();
            let mut buffer: VecDeque<Tensor<2>> = (0..100).map(|n| data(n, &device)).collect();
            let input = |step: usize, loss: Option<Tensor<1>>| {
                if let Some(loss) = loss {
                    buffer.pop_front();
                    buffer.push_back(data(step, &device) + Tensor::from_inner(loss).unsqueeze());
                }
                let of = |n: usize| buffer[(step * 37 + n * 53) % buffer.len()].clone();
                Tensor::cat(vec![of(0), of(1)], 0)
            };
            train(mesh, steps, input, after);
            values(buffer.into_iter().map(Tensor::inner).collect())
        },
    },
    Loop {
        name: "outputs of an evaluation",
        // Passes that use up nothing of each other are cut when the log is long: after 65,536 operations.
        passes: 3700,
        windows: 50,
        meshes: &["fsdp=2"],
        run: |mesh, passes, after| {
            let (model, mut outputs) = (model(mesh).valid(), Vec::new());
            for pass in 0..passes {
                outputs.push(model.forward(batch(ROWS, WIDTH, pass, &mesh.device().autodiff())));
                after();
            }
            values(outputs)
        },
    },
    Loop {
        name: "confusion matrices of an evaluation",
        passes: 2000,
        windows: 40,
        meshes: &["fsdp=2"],
        run: |mesh, passes, after| {
            let (model, device) = (model(mesh).valid(), mesh.device().autodiff());
            let mut matrices = Vec::new();
            let mut total = Tensor::<2>::zeros([WIDTH, WIDTH], &device);
            let classes = Tensor::<1, Int>::arange(0..WIDTH as i64, &device).unsqueeze();
            for pass in 0..passes {
                let x = batch(ROWS, WIDTH, pass, &device);
                let found = model.forward(x.clone()).argmax(1);
                let matrix = x.transpose().matmul(found.equal(classes.clone()).float());
                total = total + matrix.clone();
                matrices.push(matrix);
                after();
            }
            matrices.push(total);
            values(matrices)
        },
    },
];

#[test]
fn what_a_loop_keeps_does_not_keep_its_windows_open() {
    for case in LOOPS {
        let Loop {
            name,
            passes,
            run,
            meshes,
            ..
        } = case;
        for &text in meshes {
            let (kept, windows, misses) = {
                let mesh = mesh(text);
                let device = mesh.device().autodiff();
                device.seed(5);
                let (mut pass, start) = (0, device.report().cache);
                let mut end = start;
                let kept = run(&mesh, passes, &mut || {
                    pass += 1;
                    // Asked of the recorder itself, it closes a window.
                    if pass == passes {
                        end = device.report().cache;
                    }
                });
                let (windows, misses) = (end.windows - start.windows, end.misses - start.misses);
                (kept, windows, misses)
            };
            let found = format!("{name} on `{text}`: {windows} windows, {misses} planned anew");
            eprintln!("{found}");
            assert!(windows as usize >= case.windows, "{found}");
            assert!(misses * 12 <= windows, "{found}");
            // The same loop, which is cut elsewhere.
            let mesh = mesh(text);
            let device = mesh.device().autodiff();
            device.seed(5);
            let mut pass = 0;
            let expected = run(&mesh, passes, &mut || {
                pass += 1;
                if pass % 10 == 0 {
                    device.sync().expect("no fault");
                }
            });
            assert!(
                kept == expected,
                "{found}: how windows are cut changes no bit"
            );
        }
    }
}
