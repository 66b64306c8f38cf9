//! What a user asks for and cannot have is named in the user's own numbers and names.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::module::Module;
use burn::nn::{
    Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig, LinearLayout,
};
use burn::tensor::{Device, IndexingUpdateOp, Int, Tensor, TensorData};
use burn_dist::mesh::MeshShape;
use burn_dist::{DTensor, DeviceMesh, Parallelize, ParallelizeWith, Plan};

fn mesh(text: &str) -> DeviceMesh {
    DeviceMesh::parse(text).expect("a mesh")
}

fn data(shape: [usize; 2]) -> TensorData {
    let values: Vec<f32> = (0..shape[0] * shape[1]).map(|i| i as f32).collect();
    TensorData::new(values, shape)
}

/// The message of a panic.
fn panics<T>(program: impl FnOnce() -> T) -> String {
    let panic = match catch_unwind(AssertUnwindSafe(program)) {
        Ok(_) => panic!("nothing was refused"),
        Err(panic) => panic,
    };
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast_ref::<&str>().expect("a message").to_string(),
    }
}

// ---------------------------------------------------------------- indices

/// Every operation that reads or writes at indices along a dim, at one index out of range.
fn at_index(device: &Device, layout: &str, what: &str, dim: usize, index: i32) -> String {
    let x = Tensor::<2>::from_data(data([8, 6]), device)
        .redistribute(layout)
        .expect("a layout");
    // Computed on the mesh, so that it lies there.
    let x = x.exp();
    let line = |other: i32| Tensor::<1, Int>::from_ints([other, index], device);
    let grid = || {
        let mut indices = vec![0; 48];
        indices[13] = index;
        Tensor::<2, Int>::from_data(TensorData::new(indices, [8, 6]), device)
    };
    let ones = Tensor::<2>::ones([8, 6], device);
    // One index for each row along the dim.
    let each = || {
        let mut shape = [8, 6];
        let mut indices = vec![0; 48 / shape[dim]];
        indices[4] = index;
        shape[dim] = 1;
        (
            Tensor::<2, Int>::from_data(TensorData::new(indices, shape), device),
            Tensor::<2>::ones(shape, device),
        )
    };
    let result = match what {
        // A region adds the values to its own zeros, along the last dim.
        "scatter into zeros" => {
            let (indices, values) = each();
            let zeros = Tensor::<2>::zeros([8, 6], device);
            zeros.scatter(dim, indices, values, IndexingUpdateOp::Add) * x
        }
        "select" => x.select(dim, line(0)),
        "gather" => x.gather(dim, grid()),
        "scatter" => x.scatter(dim, grid(), ones, IndexingUpdateOp::Add),
        "select_assign" => {
            let mut shape = [8, 6];
            shape[dim] = 2;
            x.select_assign(
                dim,
                line(0),
                Tensor::ones(shape, device),
                IndexingUpdateOp::Add,
            )
        }
        other => panic!("no operation {other}"),
    };
    result
        .try_into_data()
        .expect_err("the index is out of range")
        .to_string()
}

#[test]
fn an_index_out_of_range_is_told_in_global_numbers() {
    for (text, layout) in [
        ("1", "[-, -]"),
        ("tp=2", "[{tp}, -]"),
        ("tp=3", "[{tp}, -]"),
        ("tp=4", "[-, {tp}]"),
        ("dp=2,tp=2", "[{dp, tp}, -]"),
        ("dp=2,tp=2", "[{dp}, {tp}]"),
    ] {
        for what in [
            "select",
            "gather",
            "scatter",
            "scatter into zeros",
            "select_assign",
        ] {
            for (dim, size) in [(0, 8), (1, 6)] {
                for index in [size, 99, -1] {
                    let mesh = mesh(text);
                    let error = at_index(&mesh.device().autodiff(), layout, what, dim, index);
                    let expected = format!(
                        "index {index} is out of range for dim {dim} (size {size}) of the tensor of shape [8, 6]: its \
                         indices are 0 to {}",
                        size - 1
                    );
                    let name = what.split(' ').next().expect("a name");
                    let place = format!("{what}, dim {dim} of {layout} on {text}");
                    assert!(error.contains(&expected), "{place}: {error}");
                    assert!(
                        error.contains(&format!("failed in {name}(f32 [8, 6]")),
                        "{place}: {error}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_token_outside_a_split_vocabulary_is_told() {
    let mesh = mesh("fsdp=2,tp=2");
    let device = mesh.device().autodiff();
    let embedding = EmbeddingConfig::new(10, 4).init(&device);
    let plan = Plan::new().vocab("**");
    let embedding = embedding.parallelize_with(&mesh, &plan).expect("a plan");
    let tokens = Tensor::<2, Int>::from_ints([[1, 9], [3, 10]], &device);
    let error = embedding
        .forward(tokens)
        .try_into_data()
        .expect_err("no such token")
        .to_string();
    assert!(
        error.contains(
            "index 10 is out of range for dim 0 (size 10) of the tensor of shape [10, 4]"
        ),
        "{error}"
    );
}

#[test]
fn an_output_layout_that_meets_no_result_is_refused() {
    let output = |text: &str| -> Result<TensorData, String> {
        let mesh = mesh("tp=2");
        let device = mesh.device();
        let linear = LinearConfig::new(6, 4).init(&device);
        let plan = Plan::new().colwise("**").output("**", text);
        let linear = linear
            .parallelize_with(&mesh, &plan)
            .expect("layouts are checked against results");
        let x = Tensor::<2>::from_data(data([3, 6]), &device);
        let y = linear.forward(x);
        (y.exp() + 1.0)
            .try_into_data()
            .map_err(|error| error.to_string())
    };
    assert!(output("[-, {tp}]").is_ok());
    let error = output("[-, -, {tp}]").expect_err("the result has two dims");
    assert!(
        error.contains("the layout `[-, -, {tp}]` asked for its input or output does not fit"),
        "{error}"
    );

    // A module that works on flattened tokens: the layout is for what its result is reshaped to.
    let mesh = mesh("tp=2");
    let device = mesh.device().autodiff();
    let linear = LinearConfig::new(6, 4).init(&device);
    let plan = Plan::new().colwise("**").output("**", "[-, -, {tp}]");
    let linear = linear.parallelize_with(&mesh, &plan).expect("a plan");
    let x = Tensor::<2>::from_data(data([4, 6]), &device);
    let y = linear.forward(x).reshape([2, 2, 4]);
    assert_eq!(y.layout_text().expect("a layout"), "[-, -, {tp}]");
    y.sum().backward();
}

// ---------------------------------------------------------------- parameters

#[derive(Module, Debug, Parallelize)]
struct Block {
    #[parallel(colwise, heads = self.h)]
    up: Linear,
    #[parallel(rowwise)]
    down: Linear,
    norm: LayerNorm,
    h: usize,
}

#[derive(Module, Debug, Parallelize)]
struct Model {
    #[parallel(vocab)]
    embedding: Embedding,
    blocks: Vec<Block>,
}

impl Model {
    fn new(dim: usize, hidden: usize, layout: LinearLayout, device: &Device) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).with_layout(layout).init(device);
        Self {
            embedding: EmbeddingConfig::new(10, dim).init(device),
            blocks: vec![Block {
                up: linear(dim, hidden),
                down: linear(hidden, dim),
                norm: LayerNormConfig::new(dim).init(device),
                h: 2,
            }],
        }
    }

    fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let x = self.embedding.forward(tokens);
        self.blocks.iter().fold(x, |x, block| {
            block.norm.forward(block.down.forward(block.up.forward(x)))
        })
    }
}

#[test]
fn heads_that_do_not_divide_are_named_by_their_field() {
    let device = Device::flex().autodiff();
    let mut model = Model::new(4, 6, LinearLayout::Row, &device);
    model.blocks[0].h = 3;
    let mesh = MeshShape::parse("tp=2").expect("a mesh");
    let error = model
        .plan()
        .resolve(&model, &mesh)
        .expect_err("3 heads over 2 ranks")
        .to_string();
    assert_eq!(
        error,
        "blocks.0.up: 3 heads (`self.h`) cannot be split over axis tp (size 2): use tp = 1 or 3, or mark it replicate \
         / pass .replicate_indivisible()"
    );
}

#[test]
fn a_record_of_another_config_is_refused_by_name() {
    let mesh = mesh("fsdp=2,tp=2");
    let device = mesh.device().autodiff();
    for layout in [LinearLayout::Row, LinearLayout::Col] {
        let new = |dim, hidden| Model::new(dim, hidden, layout, &device);
        // Burn 0.22.1 loads no record into a weight of a column layout that was used.
        let uses: &[bool] = match layout {
            LinearLayout::Row => &[false, true],
            LinearLayout::Col => &[false],
        };
        for &is_initialized in uses {
            let placed = || {
                let model = new(4, 6);
                if is_initialized {
                    model
                        .forward(Tensor::from_ints([[1, 2]], &device))
                        .into_data();
                }
                model.parallelize(&mesh).expect("a plan")
            };
            let loaded = placed().load_record(new(4, 6).into_record());
            loaded
                .forward(Tensor::from_ints([[1, 2]], &device))
                .into_data();
            let error = panics(|| placed().load_record(new(4, 8).into_record()));
            // A weight of a column layout that was not used yet is known as it is kept: transposed.
            let (found, expected) = match layout {
                LinearLayout::Col => ("[8, 4]", "[6, 4]"),
                LinearLayout::Row => ("[4, 8]", "[4, 6]"),
            };
            let part = |shape: &str| format!("Shape {{ dims: {shape} }}");
            for part in ["blocks.0.up.weight", &part(found), &part(expected)] {
                assert!(error.contains(part), "{part} in {error}");
            }
        }
    }
}

#[test]
fn a_record_loaded_too_early_is_named_where_it_does_not_fit() {
    let mesh = mesh("fsdp=2,tp=2");
    let device = mesh.device().autodiff();
    let new = |dim, hidden| Model::new(dim, hidden, LinearLayout::Row, &device);
    // Loaded before the model is parallelised: all that is known then is the record's shape.
    let mut model = new(4, 6);
    model.blocks = new(8, 6).blocks;
    let model = model.parallelize(&mesh).expect("a plan");
    let error = panics(|| model.forward(Tensor::from_ints([[1, 2]], &device)));
    // Burn looks at the weight first.
    assert!(error.contains("expected 8, got 4"), "{error}");
}
