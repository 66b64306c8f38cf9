//! One decoder on both lines: the llama of the examples, and its twin on Burn 0.21.

use burn_dist::AsyncTp;
use burn_dist::explanation::{Ask, Explanation};

/// A mesh, and what a step of training on it has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub mesh: &'static str,
    /// The only layers of the model, or all that its size has.
    pub layers: Option<usize>,
    pub is_s: bool,
    /// Products are computed in chunks beside transfers.
    pub asks_async_tp: bool,
    /// Rows of a batch, tokens of a row, microbatches of a step.
    pub sizes: [usize; 3],
}

impl Case {
    pub(super) fn tiny(mesh: &'static str, sizes: [usize; 3]) -> Self {
        Self {
            mesh,
            layers: None,
            is_s: false,
            asks_async_tp: false,
            sizes,
        }
    }

    fn async_tp(self) -> AsyncTp {
        match self.asks_async_tp {
            true => AsyncTp::On,
            false => AsyncTp::Off,
        }
    }
}

/// A program on one of the lines.
pub(super) struct Line {
    pub name: &'static str,
    /// Returns the losses of so many steps.
    pub losses: fn(Case, usize) -> Vec<f32>,
    /// Plans a step, the second, and shows it after a pass; nothing is computed.
    pub explained: fn(Case, &str) -> Explanation,
    /// Checks the law of the text form of such a step, and returns its texts.
    pub texts: fn(Case) -> Vec<String>,
}

/// The current line, and the one before.
pub(super) const LINES: [Line; 2] = [
    Line {
        name: "0.22",
        losses: current::losses,
        explained: current::explained,
        texts: current::texts,
    },
    Line {
        name: "0.21",
        losses: before::losses,
        explained: before::explained,
        texts: before::texts,
    },
];

const SEED: u64 = 7;
const RATE: f64 = 1e-3;

/// Returns the token ids of a step and the one after each: SplitMix64 (Steele et al., 2014).
fn tokens(state: &mut u64, [batch, seq, _]: [usize; 3], vocab: usize) -> [Vec<i32>; 2] {
    let mut draw = || {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % vocab as u64) as i32
    };
    let mut both = [Vec::new(), Vec::new()];
    for _ in 0..batch {
        let row: Vec<i32> = (0..=seq).map(|_| draw()).collect();
        both[0].extend(&row[..seq]);
        both[1].extend(&row[1..]);
    }
    both
}

/// The program of a line, by its own mesh and its `Training`.
macro_rules! program {
    ($explain_after:expr, $start_explaining:expr, $explained:expr) => {
        fn builder(case: Case) -> DeviceMeshBuilder {
            DeviceMesh::builder().axes(&case.mesh.parse().expect("axes"))
        }

        pub(super) fn losses(case: Case, steps: usize) -> Vec<f32> {
            let mesh = builder(case).build().expect("a mesh");
            let mut training = Training::new(case, &mesh);
            (0..steps).map(|_| training.step()).collect()
        }

        pub(super) fn explained(case: Case, pass: &str) -> Explanation {
            let mesh = builder(case).dry_run().build().expect("a mesh");
            let mut training = Training::new(case, &mesh);
            training.step();
            let device = training.device.clone();
            let (_, explanation) =
                $explain_after(&device, pass, || training.step()).expect("a pass");
            explanation
        }

        pub(super) fn texts(case: Case) -> Vec<String> {
            let mesh = builder(case).dry_run().build().expect("a mesh");
            let mut training = Training::new(case, &mesh);
            training.step();
            let device = training.device.clone();
            let ask = Ask {
                checks_form: true,
                ..Ask::default()
            };
            $start_explaining(&device, ask);
            training.step();
            $explained(&device).after
        }
    };
}

mod current {
    use super::*;
    use burn::optim::ModuleOptimizer;
    use burn::tensor::Device;
    use burn_dist::layout::Rows;
    use burn_dist::trainer::optimizer::optimizer;
    use burn_dist::trainer::step::Recipe;
    use burn_dist::trainer::step::one_with;
    use burn_dist::trainer::tokens::Batch;
    use burn_dist::{DeviceMesh, DeviceMeshBuilder, OnMesh, Parallelize, ParallelizeWith};
    use burn_dist_lm::model::{Llama, LlamaConfig, Size};

    struct Training {
        model: Option<Llama>,
        optimizer: ModuleOptimizer,
        device: Device,
        vocab: usize,
        state: u64,
        case: Case,
    }

    impl Training {
        fn new(case: Case, mesh: &DeviceMesh) -> Self {
            let device = mesh.device().autodiff();
            device.seed(SEED);
            let size = if case.is_s { Size::S } else { Size::Tiny };
            let config = size.config();
            let config = LlamaConfig {
                num_layers: case.layers.unwrap_or(config.num_layers),
                ..config
            };
            let model = config.init(&device);
            let plan = model.plan().async_tp(case.async_tp());
            let model = model.parallelize_with(mesh, &plan);
            Self {
                model: Some(model.expect("it fits")),
                optimizer: optimizer(),
                device,
                vocab: config.vocab,
                state: 0,
                case,
            }
        }

        fn step(&mut self) -> f32 {
            let sizes @ [batch, seq, accumulate] = self.case.sizes;
            let [tokens, targets] = tokens(&mut self.state, sizes, self.vocab);
            let batch = Batch {
                batch,
                held: Rows::all(batch),
                seq,
                tokens,
                targets,
                weights: None,
                packed: None,
            };
            let recipe = Recipe {
                accumulate,
                ..Recipe::default()
            };
            let (model, device) = (self.model.take().expect("a model"), &self.device);
            let hold = device.hold();
            let (model, loss) = one_with(model, &mut self.optimizer, &batch, recipe, RATE, device);
            drop(hold);
            self.model = Some(model);
            loss.into_scalar::<f32>()
        }
    }

    program!(
        burn_dist::explain_after,
        OnMesh::start_explaining,
        OnMesh::explained
    );
}

mod before {
    use super::*;
    use burn_021::backend::{Autodiff, Flex};
    use burn_021::optim::AdamW;
    use burn_021::optim::adaptor::OptimizerAdaptor;
    use burn_021::tensor::backend::Backend;
    use burn_dist_021::{
        DeviceMesh, DeviceMeshBuilder, Dist, MeshBackend, MeshDevice, Parallelize, ParallelizeWith,
    };
    use promises::llama::{Llama, LlamaConfig, Size, Tokens, optimizer, step_of};

    type B = Autodiff<Dist<Flex>>;

    struct Training {
        model: Option<Llama<B>>,
        optimizer: OptimizerAdaptor<AdamW, Llama<B>, B>,
        device: MeshDevice,
        vocab: usize,
        state: u64,
        case: Case,
    }

    impl Training {
        fn new(case: Case, mesh: &DeviceMesh) -> Self {
            let device = mesh.device();
            B::seed(&device, SEED);
            let size = if case.is_s { Size::S } else { Size::Tiny };
            let config = size.config();
            let config = LlamaConfig {
                num_layers: case.layers.unwrap_or(config.num_layers),
                ..config
            };
            let model = config.init::<B>(&device);
            let plan = model.plan().async_tp(case.async_tp());
            let model = model.parallelize_with(mesh, &plan);
            Self {
                model: Some(model.expect("it fits")),
                optimizer: optimizer::<B>(),
                device,
                vocab: config.vocab,
                state: 0,
                case,
            }
        }

        fn step(&mut self) -> f32 {
            let sizes @ [_, seq, parts] = self.case.sizes;
            let [tokens, targets] = tokens(&mut self.state, sizes, self.vocab);
            let batch = Tokens {
                tokens,
                targets,
                seq,
            };
            let (model, device) = (self.model.take().expect("a model"), &self.device);
            let hold = B::hold(device);
            let batch = (&batch, parts);
            let (model, loss) = step_of(model, &mut self.optimizer, batch, RATE, device);
            drop(hold);
            self.model = Some(model);
            loss.into_scalar()
        }
    }

    program!(
        burn_dist_021::explain_after::<B, _>,
        B::start_explaining,
        B::explained
    );
}
