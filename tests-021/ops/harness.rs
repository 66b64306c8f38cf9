//! Cases, their inputs, and the comparison.
#![allow(
    dead_code,
    reason = "several test targets use it, and not each uses all of it"
)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::backend::{Autodiff, Flex};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Bool, DType, Int, Tensor, TensorData};
use burn_dist::mesh::MeshShape;
use burn_dist::{DeviceMesh, DeviceMeshBuilder, MeshBackend, MeshDevice};

/// One device: what every mesh must agree with.
pub(crate) type One = Autodiff<Flex>;

/// What is compared with one device.
pub(crate) struct Suite {
    /// Meshes for random layouts.
    pub meshes: &'static [&'static str],
    /// The mesh without random layouts.
    pub plain: &'static str,
    /// Puts so many ranks on their devices.
    pub placed: fn(DeviceMeshBuilder, usize) -> DeviceMeshBuilder,
    /// Cases left out because the inner backend alone, on one device, differs from Flex there; and how.
    /// [`backend_alone`] tests that it does.
    pub exceptions: &'static [(&'static str, &'static str)],
    /// By how much tolerances grow for the arithmetic of the inner backend's device.
    pub slack: f64,
    /// The same for cases in which the device rounds the factors of products, by name.
    pub products: (&'static [&'static str], f64),
    /// The test target, for the command that repeats a failure.
    pub target: &'static str,
}

impl Suite {
    /// By how much the tolerance of a case grows.
    fn slack(&self, case: &str) -> f64 {
        let (names, slack) = self.products;
        if names.contains(&case) {
            slack
        } else {
            self.slack
        }
    }
}

/// All ranks are on the backend's default device.
pub(crate) fn on_one_device(builder: DeviceMeshBuilder, _ranks: usize) -> DeviceMeshBuilder {
    builder
}

/// Bound of the difference between a float and the one device's, absolute for values up to 1 and relative beyond.
///
/// A mesh sums the same terms in another order. With n terms of size up to m that moves the result by at most n m 2^-24
/// or so (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2); the cases sum up to about 100 products
/// of numbers up to 2, and the ops after that are no steeper than a few units: 100 * 2^-24 = 6e-6.
const TOLERANCE: f64 = 1e-5;

/// An operation in use, on backend `B`.
pub(crate) struct Case<B: AutodiffBackend> {
    pub name: &'static str,
    pub run: fn(&mut Case1<B>),
}

/// Declares the cases of a family and their table.
macro_rules! cases {
    ($(fn $name:ident($c:ident) $body:block)*) => {
        pub(crate) fn table<B: burn::tensor::backend::AutodiffBackend>() -> Vec<super::harness::Case<B>> {
            vec![$(super::harness::Case { name: stringify!($name), run: $name::<B> }),*]
        }
        $(
            fn $name<B: burn::tensor::backend::AutodiffBackend>($c: &mut super::harness::Case1<B>) $body
        )*
    };
}
pub(crate) use cases;

/// A result that has not been read yet.
type Pending = (String, Box<dyn FnOnce() -> TensorData>);
type GradientOf<B> = Box<dyn Fn(&<B as AutodiffBackend>::Gradients) -> Option<TensorData>>;

/// One run of a case: makes its inputs and takes its results.
pub(crate) struct Case1<B: AutodiffBackend> {
    pub device: B::Device,
    salt: usize,
    exact: bool,
    tolerance: f64,
    leaves: Vec<GradientOf<B>>,
    loss: Option<Tensor<B, 1>>,
    pending: Vec<Pending>,
}

/// What a run gives.
pub(crate) struct Outcome {
    exact: bool,
    tolerance: f64,
    results: Vec<(String, TensorData)>,
}

/// Numbers k / 64 between -2 and 2, distinct in tensors of up to 257 elements, unlike each other for different `salt`s.
///
/// Sums and differences of them with small integers are exact in f32: random partial layouts split them into such
/// terms, so that even then moving data around must not change a bit.
fn numbers(count: usize, salt: usize) -> Vec<f32> {
    (0..count)
        .map(|i| ((i * 37 + salt * 101) % 257) as f32 / 64.0 - 2.0)
        .collect()
}

impl<B: AutodiffBackend> Case1<B> {
    pub(crate) fn new(device: B::Device) -> Self {
        Self {
            device,
            salt: 0,
            exact: false,
            tolerance: TOLERANCE,
            leaves: Vec::new(),
            loss: None,
            pending: Vec::new(),
        }
    }

    /// Demands that values and gradients are equal to the bit: for operations that move data and do not compute.
    pub(crate) fn exact(&mut self) {
        self.exact = true;
    }

    fn leaf<const D: usize>(&mut self, values: Vec<f32>, shape: [usize; D]) -> Tensor<B, D> {
        let tensor =
            Tensor::<B, D>::from_data(TensorData::new(values, shape), &self.device).require_grad();
        let copy = tensor.clone();
        self.leaves.push(Box::new(move |gradients| {
            copy.grad(gradients).map(|g| g.into_data())
        }));
        tensor
    }

    /// An input between -2 and 2, with a gradient.
    pub(crate) fn float<const D: usize>(&mut self, shape: [usize; D]) -> Tensor<B, D> {
        self.salt += 1;
        let values = numbers(shape.iter().product(), self.salt);
        self.leaf(values, shape)
    }

    /// Allows floats to differ by more than [`TOLERANCE`]; say why beside the call.
    pub(crate) fn tolerance(&mut self, tolerance: f64) {
        self.tolerance = tolerance;
    }

    /// An input between `low` and `high`, with a gradient.
    pub(crate) fn between<const D: usize>(
        &mut self,
        low: f32,
        high: f32,
        shape: [usize; D],
    ) -> Tensor<B, D> {
        if (low, high) == (-2.0, 2.0) {
            return self.float(shape);
        }
        self.salt += 1;
        let values = numbers(shape.iter().product(), self.salt)
            .into_iter()
            .map(|x| low + (x + 2.0) / 4.0156 * (high - low))
            .collect();
        self.leaf(values, shape)
    }

    /// An input without a gradient.
    pub(crate) fn constant<const D: usize>(&mut self, shape: [usize; D]) -> Tensor<B, D> {
        self.salt += 1;
        let values = numbers(shape.iter().product(), self.salt);
        Tensor::from_data(TensorData::new(values, shape), &self.device)
    }

    /// Ints from `low` up to and without `high`.
    pub(crate) fn int<const D: usize>(
        &mut self,
        low: i32,
        high: i32,
        shape: [usize; D],
    ) -> Tensor<B, D, Int> {
        self.salt += 1;
        let span = (high - low) as usize;
        let values: Vec<i32> = (0..shape.iter().product())
            .map(|i| low + ((i * 37 + self.salt * 101) % 257 % span) as i32)
            .collect();
        Tensor::from_data(TensorData::new(values, shape), &self.device)
    }

    /// Bools.
    pub(crate) fn bool<const D: usize>(&mut self, shape: [usize; D]) -> Tensor<B, D, Bool> {
        self.salt += 1;
        let values: Vec<bool> = (0..shape.iter().product())
            .map(|i| (i * 37 + self.salt * 101) % 257 % 5 < 2)
            .collect();
        Tensor::from_data(TensorData::new(values, shape), &self.device)
    }

    /// Takes a result: its value is compared, and it takes part in the loss with weights of its own.
    pub(crate) fn out<const D: usize>(&mut self, tensor: Tensor<B, D>) {
        assert_eq!(tensor.dtype(), DType::F32, "the loss is a sum in f32");
        self.salt += 1;
        let weights = numbers(tensor.shape().num_elements(), self.salt);
        let weights =
            Tensor::<B, D>::from_data(TensorData::new(weights, tensor.shape()), &self.device);
        let term = (tensor.clone() * weights).sum();
        self.loss = Some(match self.loss.take() {
            Some(loss) => loss + term,
            None => term,
        });
        self.push(move || tensor.into_data());
    }

    /// Takes a float result that has no gradient.
    pub(crate) fn value<const D: usize>(&mut self, tensor: Tensor<B, D>) {
        self.push(move || tensor.into_data());
    }

    /// Takes what the case has read itself.
    pub(crate) fn data(&mut self, data: TensorData) {
        self.push(move || data);
    }

    /// Takes an int result.
    pub(crate) fn out_int<const D: usize>(&mut self, tensor: Tensor<B, D, Int>) {
        self.push(move || tensor.into_data());
    }

    /// Takes a bool result.
    pub(crate) fn out_bool<const D: usize>(&mut self, tensor: Tensor<B, D, Bool>) {
        self.push(move || tensor.into_data());
    }

    /// Results are read at the end: forward, backward and all of the case in one window, unless the mesh closes windows
    /// earlier.
    fn push(&mut self, read: impl FnOnce() -> TensorData + 'static) {
        self.pending
            .push((format!("result {}", self.pending.len()), Box::new(read)));
    }

    fn finish(mut self) -> Outcome {
        let gradients = self.loss.take().map(|loss| loss.backward());
        let mut results: Vec<(String, TensorData)> = self
            .pending
            .into_iter()
            .map(|(name, read)| (name, read()))
            .collect();
        for (index, leaf) in self.leaves.iter().enumerate() {
            if let Some(gradient) = gradients.as_ref().and_then(leaf) {
                results.push((format!("gradient of input {index}"), gradient));
            }
        }
        Outcome {
            exact: self.exact,
            tolerance: self.tolerance,
            results,
        }
    }
}

/// Runs a case and returns what it gave, or the panic's message.
fn outcome<B: AutodiffBackend>(
    device: &B::Device,
    run: impl FnOnce(&mut Case1<B>),
) -> Result<Outcome, String> {
    catch_unwind(AssertUnwindSafe(|| {
        let mut case = Case1::<B>::new(device.clone());
        run(&mut case);
        case.finish()
    }))
    .map_err(|panic| {
        panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()))
            .unwrap_or_else(|| "panicked".to_string())
    })
}

/// Returns where two outcomes differ.
fn difference(found: &Outcome, expected: &Outcome, slack: f64) -> Option<String> {
    if found.results.len() != expected.results.len() {
        let names = |outcome: &Outcome| -> Vec<String> {
            outcome
                .results
                .iter()
                .map(|(name, _)| name.clone())
                .collect()
        };
        return Some(format!(
            "gave {:?} instead of {:?}",
            names(found),
            names(expected)
        ));
    }
    found
        .results
        .iter()
        .zip(&expected.results)
        .find_map(|((name, a), (_, b))| {
            let detail = different(a, b, expected, slack)?;
            Some(format!(
                "{name}: {detail}\n  found    {}\n  expected {}",
                brief(a),
                brief(b)
            ))
        })
}

/// Only the dtypes of floats are compared: some of Flex's kernels that make or move ints choose a dtype of their own
/// (`argmax` of ints gives i64, `select` of bools gives u8).
fn different(a: &TensorData, b: &TensorData, expected: &Outcome, slack: f64) -> Option<String> {
    if a.shape != b.shape {
        return Some(format!("{:?} instead of {:?}", a.shape, b.shape));
    }
    if b.dtype.is_float() && a.dtype != b.dtype {
        return Some(format!("{:?} instead of {:?}", a.dtype, b.dtype));
    }
    let exact = expected.exact || !b.dtype.is_float();
    let tolerance = expected.tolerance * slack;
    a.iter::<f64>()
        .zip(b.iter::<f64>())
        .enumerate()
        .find_map(|(index, (x, y))| {
            let equal = x == y
                || (x.is_nan() && y.is_nan())
                || (!exact && (x - y).abs() <= tolerance * y.abs().max(1.0));
            (!equal).then(|| format!("element {index} is {x} instead of {y}"))
        })
}

fn brief(data: &TensorData) -> String {
    let values: Vec<f64> = data.iter::<f64>().take(24).collect();
    let more = if data.num_elements() > 24 { ".." } else { "" };
    format!("{:?} {values:?}{more}", data.shape)
}

/// A way to run a case.
pub(crate) struct Way {
    pub mesh: String,
    /// Seed of random layouts.
    pub seed: Option<u64>,
}

impl Way {
    pub(crate) fn mesh(&self, suite: &Suite) -> DeviceMesh {
        let shape: MeshShape = self.mesh.parse().expect("a mesh");
        let builder = DeviceMesh::builder()
            .axes(&shape)
            // Small tensors take the ways of large ones.
            .scatter_bytes_min(0);
        let builder = (suite.placed)(builder, shape.num_ranks());
        match self.seed {
            // Every other seed cuts the program into short windows, anywhere.
            Some(seed) if seed % 2 == 1 => builder.fuzz_layouts(seed).window_ops_max(5),
            Some(seed) => builder.fuzz_layouts(seed),
            None => builder,
        }
        .build()
        .expect("a mesh")
    }
}

/// Returns the number of random layouts per mesh.
pub(crate) fn num_seeds() -> u64 {
    number_or("BURN_DIST_TEST_SEEDS", 1)
}

fn number_or(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |number| number.parse().expect("a number"))
}

fn ways(name: &str, suite: &Suite) -> Vec<Way> {
    let only_mesh = std::env::var("BURN_DIST_TEST_MESH").ok();
    let only_seed = std::env::var("BURN_DIST_TEST_SEED").ok();
    let repeats = number_or("BURN_DIST_TEST_REPEATS", 1);
    // Each case has seeds of its own, so that over all cases many layouts are met.
    let first: u64 = name
        .bytes()
        .fold(0, |sum, byte| sum * 31 % 9973 + u64::from(byte));
    let mut ways = Vec::new();
    for &mesh in suite.meshes {
        for seed in first..first + num_seeds() {
            ways.push((mesh, Some(seed)));
        }
    }
    ways.push((suite.plain, None));
    if let Some(seed) = &only_seed {
        let seed = seed.parse::<u64>().ok();
        ways = suite.meshes.iter().map(|mesh| (*mesh, seed)).collect();
    }
    ways.into_iter()
        .filter(|(mesh, _)| only_mesh.as_deref().is_none_or(|only| only == *mesh))
        .flat_map(|(mesh, seed)| {
            (0..repeats).map(move |_| Way {
                mesh: mesh.to_string(),
                seed,
            })
        })
        .collect()
}

/// Runs `on_mesh` as `way` says and returns how it differs from `expected` by more than the tolerances of the suite.
pub(crate) fn compare<M: AutodiffBackend<Device = MeshDevice> + MeshBackend>(
    way: &Way,
    suite: &Suite,
    case: &str,
    expected: &Result<Outcome, String>,
    on_mesh: impl FnOnce(&mut Case1<M>),
) -> Option<String> {
    let mesh = way.mesh(suite);
    let device = mesh.device();
    let found = match std::env::var_os("BURN_DIST_TEST_EXPLAIN") {
        Some(_) => {
            let (found, explanation) =
                burn_dist::explain::<M, _>(&device, || outcome::<M>(&device, on_mesh));
            println!("{explanation}");
            found
        }
        None => outcome::<M>(&device, on_mesh),
    };
    match (&found, expected) {
        (Ok(found), Ok(expected)) => difference(found, expected, suite.slack(case)),
        (Err(message), Ok(_)) => Some(format!("failed: {message}")),
        (_, Err(message)) => Some(format!("one device fails: {message}")),
    }
}

/// Runs a program on one device.
pub(crate) fn reference(run: impl FnOnce(&mut Case1<One>)) -> Result<Outcome, String> {
    outcome::<One>(&Default::default(), run)
}

/// Returns how a case on one device of backend `B`, without a mesh, differs from [`reference`].
pub(crate) fn backend_alone<B: AutodiffBackend>(
    suite: &Suite,
    device: &B::Device,
    one: &Case<One>,
    alone: &Case<B>,
) -> Option<String> {
    let expected = reference(one.run).expect("Flex runs every case");
    match outcome::<B>(device, alone.run) {
        Ok(found) => difference(&found, &expected, suite.slack(one.name)),
        Err(message) => Some(message),
    }
}

/// Runs all cases of a family in all ways and reports every difference, with the command that repeats it.
pub(crate) fn run<M: AutodiffBackend<Device = MeshDevice> + MeshBackend>(
    suite: &Suite,
    one: Vec<Case<One>>,
    meshes: Vec<Case<M>>,
) {
    let only = std::env::var("BURN_DIST_TEST_CASE").ok();
    let mut failures = Vec::new();
    let mut runs = 0;
    for (one, on_mesh) in one.iter().zip(&meshes) {
        if only.as_deref().is_some_and(|only| only != one.name) {
            continue;
        }
        if let Some((_, why)) = suite.exceptions.iter().find(|(name, _)| *name == one.name) {
            println!("{} is left out: {why}", one.name);
            continue;
        }
        let expected = reference(one.run);
        for way in ways(one.name, suite) {
            runs += 1;
            if let Some(difference) = compare(&way, suite, one.name, &expected, on_mesh.run) {
                let seed = way.seed.map_or("none".to_string(), |seed| seed.to_string());
                failures.push(format!(
                    "{} on mesh \"{}\" with seed {seed}: {difference}\n  repeat: BURN_DIST_TEST_CASE={} \
                     BURN_DIST_TEST_MESH={} BURN_DIST_TEST_SEED={seed} \
                     cargo test {} families",
                    one.name, way.mesh, one.name, way.mesh, suite.target,
                ));
            }
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {runs} runs differ from one device:\n\n{}",
        failures.len(),
        failures.join("\n\n")
    );
}
