//! Cases, their inputs, and the comparison.
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::quantization::QuantizedBytes;
use burn::tensor::{Bool, DType, Device, Gradients, Int, Tensor, TensorData};
use burn_dist::DeviceMesh;
use burn_dist::mesh::MeshShape;

/// Meshes for random layouts: 1 to 8 ranks, with axes of every role (`dp` splits batches, `fsdp` also parameters, `cp`
/// sequences, `tp` models).
pub(crate) const MESHES: [&str; 6] = [
    "",
    "dp=2",
    "tp=3",
    "fsdp=2,tp=2",
    "tp=3,cp=2",
    "dp=2,fsdp=2,tp=2",
];

/// The mesh without random layouts.
const PLAIN: &str = "fsdp=2,tp=2";

/// Bound of the difference between a float and the one device's, absolute for values up to 1 and relative beyond.
///
/// A mesh sums the same terms in another order. With n terms of size up to m that moves the result by at most n m 2^-24
/// or so (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2); the cases sum up to about 100 products
/// of numbers up to 2, and the ops after that are no steeper than a few units: 100 * 2^-24 = 6e-6.
const TOLERANCE: f64 = 1e-5;

/// An operation in use.
pub(crate) struct Case {
    pub name: &'static str,
    pub run: fn(&mut Case1),
}

/// Declares the cases of a family and their table.
macro_rules! cases {
    ($(fn $name:ident($c:ident) $body:block)*) => {
        pub(crate) fn table() -> Vec<super::harness::Case> {
            vec![$(super::harness::Case { name: stringify!($name), run: $name }),*]
        }
        $(
            fn $name($c: &mut super::harness::Case1) $body
        )*
    };
}
pub(crate) use cases;

/// A result that has not been read yet.
type Pending = (String, Box<dyn FnOnce() -> TensorData>);
type GradientOf = Box<dyn Fn(&Gradients) -> Option<TensorData>>;

/// One run of a case: makes its inputs and takes its results.
pub(crate) struct Case1 {
    pub device: Device,
    salt: usize,
    exact: bool,
    tolerance: f64,
    leaves: Vec<GradientOf>,
    loss: Option<Tensor<1>>,
    pending: Vec<Pending>,
    resize: Option<Resize>,
    sizes: BTreeSet<usize>,
}

/// Dims of one size have another: those that belong together change together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resize {
    pub from: usize,
    pub to: usize,
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

impl Case1 {
    pub(crate) fn new(device: Device) -> Self {
        Self {
            device,
            salt: 0,
            exact: false,
            tolerance: TOLERANCE,
            leaves: Vec::new(),
            loss: None,
            pending: Vec::new(),
            resize: None,
            sizes: BTreeSet::new(),
        }
    }

    /// Returns the shape that an input has instead of `shape`.
    fn resized<const D: usize>(&mut self, shape: [usize; D]) -> [usize; D] {
        self.sizes.extend(shape);
        match self.resize {
            Some(Resize { from, to }) => shape.map(|size| if size == from { to } else { size }),
            None => shape,
        }
    }

    /// Demands that values and gradients are equal to the bit: for operations that move data and do not compute.
    pub(crate) fn exact(&mut self) {
        self.exact = true;
    }

    fn leaf<const D: usize>(&mut self, values: Vec<f32>, shape: [usize; D]) -> Tensor<D> {
        let tensor =
            Tensor::<D>::from_data(TensorData::new(values, shape), &self.device).require_grad();
        let copy = tensor.clone();
        self.leaves.push(Box::new(move |gradients| {
            copy.grad(gradients).map(|g| g.into_data())
        }));
        tensor
    }

    /// An input between -2 and 2, with a gradient.
    pub(crate) fn float<const D: usize>(&mut self, shape: [usize; D]) -> Tensor<D> {
        let shape = self.resized(shape);
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
    ) -> Tensor<D> {
        if (low, high) == (-2.0, 2.0) {
            return self.float(shape);
        }
        let shape = self.resized(shape);
        self.salt += 1;
        let values = numbers(shape.iter().product(), self.salt)
            .into_iter()
            .map(|x| low + (x + 2.0) / 4.0156 * (high - low))
            .collect();
        self.leaf(values, shape)
    }

    /// An input without a gradient.
    pub(crate) fn constant<const D: usize>(&mut self, shape: [usize; D]) -> Tensor<D> {
        let shape = self.resized(shape);
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
    ) -> Tensor<D, Int> {
        let shape = self.resized(shape);
        self.salt += 1;
        let span = (high - low) as usize;
        let values: Vec<i32> = (0..shape.iter().product())
            .map(|i| low + ((i * 37 + self.salt * 101) % 257 % span) as i32)
            .collect();
        Tensor::from_data(TensorData::new(values, shape), &self.device)
    }

    /// Bools.
    pub(crate) fn bool<const D: usize>(&mut self, shape: [usize; D]) -> Tensor<D, Bool> {
        let shape = self.resized(shape);
        self.salt += 1;
        let values: Vec<bool> = (0..shape.iter().product())
            .map(|i| (i * 37 + self.salt * 101) % 257 % 5 < 2)
            .collect();
        Tensor::from_data(TensorData::new(values, shape), &self.device)
    }

    /// Takes a result: its value is compared, and it takes part in the loss with weights of its own.
    pub(crate) fn out<const D: usize>(&mut self, tensor: Tensor<D>) {
        assert_eq!(tensor.dtype(), DType::F32, "the loss is a sum in f32");
        self.salt += 1;
        let weights = numbers(tensor.shape().num_elements(), self.salt);
        let weights =
            Tensor::<D>::from_data(TensorData::new(weights, tensor.shape()), &self.device);
        let term = (tensor.clone() * weights).sum();
        self.loss = Some(match self.loss.take() {
            Some(loss) => loss + term,
            None => term,
        });
        self.push(move || tensor.into_data());
    }

    /// Takes a float result that has no gradient.
    pub(crate) fn value<const D: usize>(&mut self, tensor: Tensor<D>) {
        self.push(move || tensor.into_data());
    }

    /// Takes a quantized result, which has no gradient: its shape, values and scales.
    pub(crate) fn quantized<const D: usize>(&mut self, tensor: Tensor<D>) {
        self.push(move || unpacked(tensor.into_data()));
    }

    /// Takes what the case has read itself.
    pub(crate) fn data(&mut self, data: TensorData) {
        self.push(move || data);
    }

    /// Takes an int result.
    pub(crate) fn out_int<const D: usize>(&mut self, tensor: Tensor<D, Int>) {
        self.push(move || tensor.into_data());
    }

    /// Takes a bool result.
    pub(crate) fn out_bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) {
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

impl Outcome {
    /// Checks that every result has its data: Flex gives some sums of nothing a shape, and no elements.
    fn complete(self) -> Result<Self, String> {
        let cut = self.results.iter().find(|(_, data)| {
            !matches!(data.dtype(), DType::QFloat(_))
                && data.bytes().len() != data.num_elements() * data.dtype().size()
        });
        match cut {
            Some((name, data)) => Err(format!(
                "{name} of shape {:?} has {} bytes",
                data.shape(),
                data.bytes().len()
            )),
            None => Ok(self),
        }
    }
}

/// Runs a case and returns what it gave, or the panic's message.
fn outcome(device: &Device, run: impl FnOnce(&mut Case1)) -> Result<Outcome, String> {
    outcome_of(device, None, run)
}

fn outcome_of(
    device: &Device,
    resize: Option<Resize>,
    run: impl FnOnce(&mut Case1),
) -> Result<Outcome, String> {
    catch_unwind(AssertUnwindSafe(|| {
        let mut case = Case1::new(device.clone());
        case.resize = resize;
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
fn difference(found: &Outcome, expected: &Outcome) -> Option<String> {
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
            let detail = different(a, b, expected)?;
            Some(format!(
                "{name}: {detail}\n  found    {}\n  expected {}",
                brief(a),
                brief(b)
            ))
        })
}

/// Only the dtypes of floats are compared: some of Flex's kernels that make or move ints choose a dtype of their own
/// (`argmax` of ints gives i64, `select` of bools gives u8).
fn different(a: &TensorData, b: &TensorData, expected: &Outcome) -> Option<String> {
    if a.shape() != b.shape() {
        return Some(format!("{:?} instead of {:?}", a.shape(), b.shape()));
    }
    if b.dtype().is_float() && a.dtype() != b.dtype() {
        return Some(format!("{:?} instead of {:?}", a.dtype(), b.dtype()));
    }
    let exact = expected.exact || !b.dtype().is_float();
    let tolerance = expected.tolerance;
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
    format!("{:?} {values:?}{more}", data.shape())
}

/// The dims, values and scales of quantized data, one after the other.
fn unpacked(data: TensorData) -> TensorData {
    let DType::QFloat(scheme) = data.dtype() else {
        panic!("expected quantized data, found {:?}", data.dtype());
    };
    let dims = data.shape().to_vec();
    let bytes = QuantizedBytes {
        shape: data.shape().clone(),
        bytes: data.into_bytes(),
        scheme,
    };
    let (values, params) = bytes.into_vec_i8();
    let dims = dims.into_iter().map(|dim| dim as f32);
    let numbers: Vec<f32> = dims
        .chain(values.into_iter().map(f32::from))
        .chain(params.block)
        .chain(params.global)
        .collect();
    let length = numbers.len();
    TensorData::new(numbers, [length])
}

/// A way to run a case.
pub(crate) struct Way {
    pub mesh: String,
    /// Seed of random layouts.
    pub seed: Option<u64>,
}

impl Way {
    pub(crate) fn mesh(&self) -> DeviceMesh {
        let shape: MeshShape = self.mesh.parse().expect("a mesh");
        let builder = DeviceMesh::builder()
            .axes(&shape)
            // Small tensors take the ways of large ones.
            .scatter_bytes_min(0);
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

fn ways(name: &str) -> Vec<Way> {
    let only_mesh = std::env::var("BURN_DIST_TEST_MESH").ok();
    let only_seed = std::env::var("BURN_DIST_TEST_SEED").ok();
    let repeats = number_or("BURN_DIST_TEST_REPEATS", 1);
    // Each case has seeds of its own, so that over all cases many layouts are met.
    let first: u64 = name
        .bytes()
        .fold(0, |sum, byte| sum * 31 % 9973 + u64::from(byte));
    let mut ways = Vec::new();
    for mesh in MESHES {
        for seed in first..first + num_seeds() {
            ways.push((mesh, Some(seed)));
        }
    }
    ways.push((PLAIN, None));
    if let Some(seed) = &only_seed {
        let seed = seed.parse::<u64>().ok();
        ways = MESHES.iter().map(|mesh| (*mesh, seed)).collect();
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

/// Runs `on_mesh` as `way` says and returns how it differs from `expected` by more than its tolerance.
pub(crate) fn compare(
    way: &Way,
    expected: &Result<Outcome, String>,
    on_mesh: impl FnOnce(&mut Case1),
) -> Option<String> {
    let mesh = way.mesh();
    let device = mesh.device().autodiff();
    let found = match std::env::var_os("BURN_DIST_TEST_EXPLAIN") {
        Some(_) => {
            let (found, explanation) = burn_dist::explain(&device, || outcome(&device, on_mesh));
            println!("{explanation}");
            found
        }
        None => outcome(&device, on_mesh),
    };
    match (&found, expected) {
        (Ok(found), Ok(expected)) => difference(found, expected),
        (Err(message), Ok(_)) => Some(format!("failed: {message}")),
        (_, Err(message)) => Some(format!("one device fails: {message}")),
    }
}

/// Runs a program on one device.
pub(crate) fn reference(run: impl FnOnce(&mut Case1)) -> Result<Outcome, String> {
    outcome(&Device::flex().autodiff(), run)
}

/// Runs all cases of a family in all ways and reports every difference, with the command that repeats it.
pub(crate) fn run(cases: Vec<Case>) {
    let only = std::env::var("BURN_DIST_TEST_CASE").ok();
    let mut failures = Vec::new();
    let mut runs = 0;
    for case in cases {
        if only.as_deref().is_some_and(|only| only != case.name) {
            continue;
        }
        let expected = reference(case.run);
        for way in ways(case.name) {
            runs += 1;
            if let Some(difference) = compare(&way, &expected, case.run) {
                let seed = way.seed.map_or("none".to_string(), |seed| seed.to_string());
                failures.push(format!(
                    "{} on mesh \"{}\" with seed {seed}: {difference}\n  repeat: BURN_DIST_TEST_CASE={} \
                     BURN_DIST_TEST_MESH={} BURN_DIST_TEST_SEED={seed} \
                     cargo test -p promises --test promises families",
                    case.name, way.mesh, case.name, way.mesh,
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

/// Cases that are left out where dims have that many elements or fewer, and why.
const NOT_SMALL: &[(&str, usize, &str)] = &[
    ("matmul_broadcast", 0, SHARED_MATRIX),
    ("linear", 0, SHARED_MATRIX),
    ("linear_chain", 0, SHARED_MATRIX),
    ("rotary", 0, SHARED_MATRIX),
    ("max_pool", 1, LARGE_WINDOW),
    ("avg_pool", 1, LARGE_WINDOW),
    ("without_autodiff", 1, LARGE_WINDOW),
    ("deform_conv2d", 1, DEPENDENT),
    ("grid_sample", 0, DEPENDENT),
];
const SHARED_MATRIX: &str =
    "Flex alone reads beyond its buffers: a product of no matrices by one that all of them share";
const LARGE_WINDOW: &str = "where a window is larger than what it moves over, burn-ir's number of its places is below \
    zero";
const DEPENDENT: &str =
    "its offsets or coordinates no longer fit its input, which Flex does not check";

/// Runs all cases of a family with the dims of each size empty, and of size 1: fewer elements than ranks. Where Flex
/// alone cannot compute that, a mesh may fail too.
///
/// Returns how many of them Flex computes, and those it does not with its message.
pub(crate) fn run_small(cases: Vec<Case>, to: usize) -> (usize, Vec<String>) {
    let only = std::env::var("BURN_DIST_TEST_CASE").ok();
    let mut failures = Vec::new();
    let mut refused = Vec::new();
    let mut computed = 0;
    for case in cases {
        if only.as_deref().is_some_and(|only| only != case.name) {
            continue;
        }
        let mut exceptions = NOT_SMALL.iter();
        let exception = exceptions.find(|(name, most, _)| *name == case.name && to <= *most);
        if let Some((name, _, why)) = exception {
            println!("{name} is left out: {why}");
            continue;
        }
        let sizes = {
            let mut alone = Case1::new(Device::flex().autodiff());
            (case.run)(&mut alone);
            alone.sizes
        };
        for from in sizes.into_iter().filter(|from| *from != to) {
            let resize = Some(Resize { from, to });
            let expected = outcome_of(&Device::flex().autodiff(), resize, case.run);
            let expected = expected.and_then(Outcome::complete);
            let what = format!("{} with {to} instead of {from}", case.name);
            for (seed, mesh) in [(Some(2), "fsdp=3"), (Some(4), "tp=2,dp=3"), (None, PLAIN)] {
                let way = Way {
                    mesh: mesh.to_string(),
                    seed,
                };
                let mesh = way.mesh();
                let found = outcome_of(&mesh.device().autodiff(), resize, case.run);
                let found = found.and_then(Outcome::complete);
                match (&found, &expected) {
                    (Ok(found), Ok(expected)) => {
                        if let Some(difference) = difference(found, expected) {
                            failures.push(format!("{what} on mesh \"{}\": {difference}", way.mesh));
                        }
                    }
                    (Err(message), Ok(_)) => {
                        failures.push(format!("{what} on mesh \"{}\" failed: {message}", way.mesh));
                    }
                    (_, Err(_)) => {}
                }
            }
            match expected {
                Ok(_) => computed += 1,
                Err(message) => refused.push(format!("{what}: {message}")),
            }
        }
    }
    assert!(
        failures.is_empty(),
        "{} runs differ from one device, which computes {computed} and refuses {}:\n\n{}",
        failures.len(),
        refused.len(),
        failures.join("\n\n")
    );
    (computed, refused)
}

/// Runs cases on one mesh and returns the family and kind of every operation that they record.
pub(crate) fn recorded(
    device: &Device,
    cases: Vec<Case>,
) -> BTreeSet<(&'static str, &'static str)> {
    let ((), explanation) = burn_dist::explain(device, || {
        for case in cases {
            if let Err(message) = outcome(device, case.run) {
                panic!("{}: {message}", case.name);
            }
        }
    });
    let families = explanation.operations.into_iter();
    families
        .flat_map(|(family, kinds)| kinds.into_keys().map(move |kind| (family, kind)))
        .collect()
}
