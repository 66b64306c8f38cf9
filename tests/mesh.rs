//! Meshes as a user meets them: several, threads, seeds, the end of one, and layouts asked for and
//! changed.

use burn::nn::DropoutConfig;
use burn::tensor::{Device, Distribution, Int, Tensor, TensorData, module};
use burn_dist::mesh::Rank;
use burn_dist::{DTensor, DeviceMesh, InputPolicy, LocalParts};

fn mesh(text: &str) -> DeviceMesh {
    DeviceMesh::builder()
        .axes(&text.parse().expect("a mesh"))
        .scatter_bytes_min(0)
        .build()
        .expect("a mesh")
}

fn grid(shape: [usize; 2], salt: usize) -> TensorData {
    let values: Vec<f32> = (0..shape[0] * shape[1])
        .map(|i| ((i * 37 + salt * 101) % 257) as f32 / 64.0 - 2.0)
        .collect();
    TensorData::new(values, shape)
}

// ---------------------------------------------------------------- the environment

/// Makes a mesh; the test below runs it with an environment.
#[test]
#[ignore = "a child process of the test of the environment"]
fn child() {
    if let Err(error) = DeviceMesh::parse("tp=2") {
        panic!("{error}");
    }
}

#[test]
fn a_wrong_environment_is_named() {
    let mut command = crate::child("mesh::child");
    command.env("BURN_DIST_REGIONS", "much");
    let (text, success) = crate::outcome(command);
    assert!(!success);
    assert!(
        text.contains("BURN_DIST_REGIONS is `much`: give on, off or flex"),
        "{text}"
    );
}

// ---------------------------------------------------------------- threads and several meshes

#[test]
fn threads_record_on_one_mesh() {
    let mesh = mesh("fsdp=2,tp=2");
    let work = |device: &Device, salt: usize| -> TensorData {
        let x = Tensor::<2>::from_data(grid([6, 5], salt), device).require_grad();
        let w = Tensor::<2>::from_data(grid([5, 3], salt + 1), device).require_grad();
        let y = x.clone().matmul(w.clone()).tanh().sum();
        let gradients = y.backward();
        let gx = x.grad(&gradients).expect("tracked");
        let gw = w.grad(&gradients).expect("tracked");
        Tensor::cat(vec![gx.flatten::<1>(0, 1), gw.flatten(0, 1)], 0).into_data()
    };
    let expected: Vec<TensorData> = (0..40)
        .map(|salt| work(&mesh.device().autodiff(), salt))
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (mesh, expected) = (&mesh, &expected);
            scope.spawn(move || {
                for (salt, expected) in expected.iter().enumerate().skip(thread) {
                    // Where windows end depends on the other thread, and with it how sums are cut.
                    work(&mesh.device().autodiff(), salt)
                        .assert_approx_eq(expected, burn::tensor::Tolerance::<f32>::absolute(1e-5));
                }
            });
        }
    });
}

#[test]
fn a_tensor_made_on_one_thread_is_used_on_another() {
    let mesh = mesh("dp=2");
    let (sender, receiver) = std::sync::mpsc::sync_channel::<Tensor<2>>(2);
    let loader = {
        let device = mesh.device().autodiff();
        std::thread::spawn(move || {
            for salt in 0..20 {
                let batch = Tensor::<2>::from_data(grid([4, 3], salt), &device) * 2.0;
                sender.send(batch).expect("the receiver is there");
            }
        })
    };
    for (salt, batch) in receiver.iter().enumerate() {
        let expected: f32 = grid([4, 3], salt).iter::<f32>().map(|x| x * 2.0).sum();
        let sum = batch.sum().into_scalar::<f32>();
        assert!((sum - expected).abs() < 1e-5, "{salt}: {sum} {expected}");
    }
    loader.join().expect("the loader ends");
}

#[test]
fn tensors_move_between_meshes() {
    let (first, second) = (mesh("fsdp=2"), mesh("tp=3"));
    let x = Tensor::<2>::from_data(grid([5, 4], 1), &first.device().autodiff()).require_grad();
    let y = (x.clone() * 3.0).to_device(&second.device().autodiff());
    assert_eq!(y.device(), second.device().autodiff());
    let w = Tensor::<2>::from_data(grid([4, 2], 2), &second.device().autodiff());
    let gradients = y.matmul(w).sum().backward();
    let gradient = x.grad(&gradients).expect("tracked through the move");
    assert_eq!(gradient.device(), first.device().autodiff());

    let device = Device::flex().autodiff();
    let x = Tensor::<2>::from_data(grid([5, 4], 1), &device).require_grad();
    let w = Tensor::<2>::from_data(grid([4, 2], 2), &device);
    let gradients = (x.clone() * 3.0).matmul(w).sum().backward();
    gradient.into_data().assert_approx_eq(
        &x.grad(&gradients).expect("tracked").into_data(),
        burn::tensor::Tolerance::<f32>::absolute(1e-5),
    );

    let ints = Tensor::<1, Int>::arange(0..7, &first.device().autodiff()) * 2;
    let moved = ints.clone().to_device(&second.device().autodiff());
    assert_eq!(moved.into_data(), ints.clone().into_data());
    let bools = ints.greater_elem(4);
    let moved = bools.clone().to_device(&second.device().autodiff());
    assert_eq!(moved.into_data(), bools.into_data());
}

#[test]
fn operations_across_meshes_are_refused() {
    let (first, second) = (mesh("fsdp=2"), mesh("tp=3"));
    let x = Tensor::<1>::ones([4], &first.device().autodiff()) + 1.0;
    let y = Tensor::<1>::ones([4], &second.device().autodiff()) + 1.0;
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (x + y).into_data()));
    assert!(outcome.is_err(), "tensors of two meshes were added");
}

#[test]
fn a_tensor_outlives_its_mesh_only_in_name() {
    let mesh = mesh("fsdp=2");
    let x = Tensor::<2>::from_data(grid([4, 3], 1), &mesh.device().autodiff());
    let placed = x.clone() * 2.0;
    placed.to_data();
    drop(mesh);
    let expected = "mesh fsdp=2 was dropped before this tensor was used: keep the `DeviceMesh` or a device of it alive \
        as long as its tensors";
    for tensor in [placed.clone(), placed + 1.0, x] {
        let error = tensor
            .try_into_data()
            .expect_err("the mesh has ended")
            .to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn meshes_come_and_go() {
    for round in 0..30 {
        let mesh = mesh(["dp=2", "tp=3", ""][round % 3]);
        let x = Tensor::<2>::from_data(grid([4, 3], round), &mesh.device().autodiff());
        // Work that nobody waits for.
        let _ = x.clone().matmul(x.transpose());
    }
}

// ---------------------------------------------------------------- seeds

/// Draws in every way there is.
fn draws(mesh: &DeviceMesh, seed: u64) -> Vec<TensorData> {
    let device = mesh.device().autodiff();
    device.seed(seed);
    let floats = |distribution| Tensor::<2>::random([5, 7], distribution, &device);
    let x = floats(Distribution::Default);
    let drawn = [
        x.clone(),
        floats(Distribution::Uniform(-3.0, 2.0)),
        floats(Distribution::Normal(1.0, 2.0)),
        floats(Distribution::Bernoulli(0.3)),
        x.clone().random_like(Distribution::Default),
        Tensor::random([1, 1], Distribution::Default, &device),
        Tensor::random([2, 1], Distribution::Normal(0.0, 1.0), &device),
    ];
    let ints = Tensor::<2, Int>::random([5, 7], Distribution::Uniform(0.0, 100.0), &device);
    // Used in parts before it is ever whole: each rank draws just what it needs.
    let parts = Tensor::<2>::random([6, 4], Distribution::Default, &device)
        .slice([1..5, 0..3])
        .transpose();
    let weights = Tensor::<2>::random([7, 3], Distribution::Normal(0.0, 0.1), &device);
    let layer = burn::nn::LinearConfig::new(7, 4).init(&device);
    let mut all: Vec<TensorData> = drawn.into_iter().map(Tensor::into_data).collect();
    all.push(ints.into_data());
    all.push(parts.into_data());
    all.push(weights.into_data());
    all.push(layer.weight.val().into_data());
    let choices = x.clone().categorical(3);
    all.push(choices.into_data());
    all
}

#[test]
fn the_same_seed_draws_the_same_on_every_mesh() {
    let reference = draws(&mesh(""), 7);
    for text in ["dp=2", "tp=2", "fsdp=3", "fsdp=2,tp=2", "dp=2,fsdp=2,tp=2"] {
        assert_eq!(draws(&mesh(text), 7), reference, "mesh {text}");
        let fuzzed = DeviceMesh::builder()
            .axes(&text.parse().expect("a mesh"))
            .fuzz_layouts(3)
            .build()
            .expect("a mesh");
        assert_eq!(
            draws(&fuzzed, 7),
            reference,
            "mesh {text} with random layouts"
        );
    }
}

#[test]
fn streams_and_seeds_differ() {
    let mesh = mesh("fsdp=2");
    let first = draws(&mesh, 7);
    // Drawn one after the other from the same distribution.
    assert_ne!(first[0], first[4]);
    let second = draws(&mesh, 8);
    assert_ne!(first[0], second[0]);
    assert_eq!(first, draws(&mesh, 7), "seeding starts over");
}

#[test]
fn dropout_is_the_same_on_every_mesh() {
    let run = |text: &str| -> Vec<TensorData> {
        let mesh = mesh(text);
        let device = mesh.device().autodiff();
        device.seed(11);
        let x = Tensor::<2>::from_data(grid([6, 5], 1), &device).require_grad();
        let y = DropoutConfig::new(0.4).init().forward(x.clone());
        let gradients = (y.clone() * y.clone()).sum().backward();
        vec![
            y.into_data(),
            x.grad(&gradients).expect("tracked").into_data(),
        ]
    };
    let reference = run("");
    assert!(
        reference[0].iter::<f32>().any(|x| x == 0.0),
        "nothing was dropped"
    );
    for text in ["dp=2", "tp=3", "fsdp=2,tp=2"] {
        assert_eq!(run(text), reference, "mesh {text}");
    }
}

// ---------------------------------------------------------------- layouts

#[test]
fn data_enters_as_a_batch_or_whole() {
    let mesh = mesh("dp=2,fsdp=2,tp=2");
    let layout = |shape: [usize; 2]| {
        Tensor::<2>::from_data(grid(shape, 1), &mesh.device().autodiff())
            .layout_text()
            .expect("a layout")
    };
    assert_eq!(layout([8, 3]), "[{dp, fsdp}, -]");
    assert_eq!(layout([5, 3]), "[{dp, fsdp}, -]");
    // Too short to give every rank a part.
    assert_eq!(layout([3, 8]), "[-, -]");

    let whole = DeviceMesh::builder()
        .axis("dp", 2)
        .input_policy(InputPolicy::Replicate)
        .build()
        .expect("a mesh");
    let x = Tensor::<2>::from_data(grid([8, 3], 1), &whole.device().autodiff());
    assert_eq!(x.layout_text().expect("a layout"), "[-, -]");
}

#[test]
fn redistributed_values_and_gradients_are_the_same() {
    let data = grid([5, 6], 3);
    for text in ["fsdp=2,tp=2", "tp=3,fsdp=2"] {
        let mesh = mesh(text);
        let device = mesh.device().autodiff();
        for target in [
            "[-, -]",
            "[{tp}, -]",
            "[-, {tp}]",
            "[{fsdp}, {tp}]",
            "[{tp, fsdp}, -]",
            "[-, (2 . 3{tp})]",
        ] {
            let x = Tensor::<2>::from_data(data.clone(), &device).require_grad();
            let y = x.clone().redistribute(target).expect("a layout");
            assert_eq!(y.layout_text().expect("a layout"), target, "mesh {text}");
            assert_eq!(y.to_data(), data, "mesh {text}, {target}");
            let gradients = (y.clone() * y * 0.5).sum().backward();
            assert_eq!(
                x.grad(&gradients).expect("tracked").into_data(),
                data,
                "mesh {text}, {target}"
            );
        }
    }
}

#[test]
fn ints_and_bare_backends_are_redistributed() {
    let mesh = mesh("tp=3");
    let x = Tensor::<1, Int>::arange(0..7, &mesh.device().autodiff());
    let y = x.clone().redistribute("[{tp}]").expect("a layout");
    assert_eq!(y.layout_text().expect("a layout"), "[{tp}]");
    assert_eq!(y.into_data(), x.into_data());
}

#[test]
fn layouts_follow_the_program() {
    let mesh = mesh("fsdp=2,tp=2");
    let device = mesh.device().autodiff();
    let x = Tensor::<2>::from_data(grid([4, 6], 1), &device);
    let w = Tensor::<2>::from_data(grid([6, 8], 2), &device)
        .redistribute("[-, {tp}]")
        .expect("a layout");
    let y = module::linear(x, w, None);
    assert_eq!(y.layout_text().expect("a layout"), "[{fsdp}, {tp}]");
    assert_eq!(
        y.clone().transpose().layout_text().expect("a layout"),
        "[{tp}, {fsdp}]"
    );
    assert_eq!(y.sum_dim(1).layout_text().expect("a layout"), "[{fsdp}, -]");
}

#[test]
fn parts_of_single_ranks() {
    let mesh = mesh("fsdp=2,tp=2");
    let device = mesh.device().autodiff();
    let data = grid([5, 6], 3);
    let x = Tensor::<2>::from_data(data.clone(), &device)
        .redistribute("[{fsdp}, {tp}]")
        .expect("a layout");
    // 5 rows over 2: 3 and 2.
    let shapes: Vec<[usize; 2]> = (0..4)
        .map(|rank| x.to_local(Rank(rank)).expect("a part").shape().dims())
        .collect();
    assert_eq!(shapes, [[3, 3], [3, 3], [2, 3], [2, 3]]);
    let whole = Tensor::<2>::from_data(data.clone(), &Device::flex().autodiff());
    let part = x.to_local(Rank(3)).expect("a part");
    assert_eq!(part, whole.slice([3..5, 3..6]).into_data());

    let parts: Vec<TensorData> = (0..4)
        .map(|rank| x.to_local(Rank(rank)).expect("a part"))
        .collect();
    let again = Tensor::<2>::from_local(parts.clone(), &[5, 6], "[{fsdp}, {tp}]", &device)
        .expect("the parts fit");
    assert_eq!(again.to_data(), data);
    let again = again.require_grad();
    let gradients = again.clone().exp().sum().backward();
    assert!(
        again.grad(&gradients).is_some(),
        "a tensor of parts can be a leaf"
    );

    // Sums of what the ranks hold.
    let terms: Vec<TensorData> = (0..4)
        .map(|rank| TensorData::from([[rank as f32; 2]]))
        .collect();
    let sum = Tensor::<2>::from_local(terms, &[1, 2], "[-, -] + sum{fsdp, tp}", &device)
        .expect("the parts fit");
    assert_eq!(sum.into_data(), TensorData::from([[6.0_f32, 6.0]]));
}

#[test]
fn wrong_layouts_and_parts_are_named() {
    let mesh = mesh("fsdp=2,tp=2");
    let device = mesh.device().autodiff();
    let x = Tensor::<2>::from_data(grid([5, 6], 3), &device);
    let error = |target: &str| -> String {
        x.clone()
            .redistribute(target)
            .err()
            .unwrap_or_else(|| panic!("{target} was accepted"))
            .to_string()
    };
    insta::assert_snapshot!(error("[{dp}, -]"), @r"
cannot read the layout, column 3: the mesh has no axis `dp`: it has fsdp, tp
  [{dp}, -]
    ^
");
    insta::assert_snapshot!(error("[{tp}, {tp}]"), @r"
cannot read the layout, column 9: axis `tp` is used twice
  [{tp}, {tp}]
          ^
");
    insta::assert_snapshot!(error("[{tp}]"), @r"
cannot read the layout, column 6: the shape [5, 6] has 2 dims, but there are 1 here
  [{tp}]
       ^
");
    insta::assert_snapshot!(error("[{tp, -]"), @r"
cannot read the layout, column 7: the name of an axis is missing
  [{tp, -]
        ^
");
    insta::assert_snapshot!(error("[(2 . 2{tp}), -]"), @r"
cannot read the layout, column 2: this dim is of size 4, but the shape says 5
  [(2 . 2{tp}), -]
   ^
");

    let missing = x
        .to_local(Rank(4))
        .expect_err("there is no rank 4")
        .to_string();
    insta::assert_snapshot!(missing, @"rank 4 does not exist: mesh fsdp=2,tp=2 has ranks 0 to 3");
    let part = |shape: [usize; 2]| TensorData::zeros::<f32, _>(shape);
    let error = |parts: Vec<TensorData>| -> String {
        Tensor::<2>::from_local(parts, &[5, 6], "[{fsdp}, {tp}]", &device)
            .expect_err("the parts do not fit")
            .to_string()
    };
    insta::assert_snapshot!(error(vec![part([3, 3]), part([3, 3])]), @"this process runs 4 rank(s) of mesh \
        fsdp=2,tp=2, but 2 parts were given: give one per rank that it runs, in rank order");
    insta::assert_snapshot!(
        error(vec![part([3, 3]), part([3, 3]), part([3, 3]), part([2, 3])]),
        @"rank 2 must hold [2, 3] of a tensor in layout [{fsdp}, {tp}], but was given [3, 3]"
    );
    // None of these ends the mesh.
    assert_eq!(x.into_data(), grid([5, 6], 3));
}

#[test]
fn a_process_runs_only_so_many_ranks() {
    let error = DeviceMesh::parse("fsdp=100000").expect_err("too many threads");
    assert!(error.to_string().contains("at most 1024"), "{error}");
    let dry = DeviceMesh::builder().axis("fsdp", 4096).dry_run().build();
    assert_eq!(dry.expect("only planned").shape().num_ranks(), 4096);
}
