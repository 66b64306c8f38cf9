//! A stacked, bidirectional LSTM with layer norms that continues sequences, after Burn's `modern-lstm`.
//!
//! Many small operations per time step, and a batcher that makes two tensors per item.

use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{
    Dropout, DropoutConfig, Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig,
    LstmState, Sigmoid, Tanh,
};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Device, Tensor, s};

use crate::data::Source;
use crate::{Numbers, Program, Setup, start};

const SEED: u64 = 5;

/// Numbers, each about the sum of the two before it, and the one that follows.
#[derive(Clone, Debug)]
struct Sequence {
    values: Vec<f32>,
    next: f32,
}

fn sequences(count: usize, length: usize, seed: u64) -> InMemDataset<Sequence> {
    let mut source = Source(seed);
    let items = (0..count).map(|_| {
        let mut values = vec![source.unit(), source.unit()];
        for at in 0..length {
            let next = values[at] + values[at + 1] + 0.1 * source.normal();
            values.push(next);
        }
        let next = values.pop().expect("there are two at least");
        Sequence { values, next }
    });
    InMemDataset::new(items.collect())
}

#[derive(Clone, Debug)]
struct SequenceBatch {
    /// `[batch, seq, 1]`.
    sequences: Tensor<3>,
    /// `[batch, 1]`.
    targets: Tensor<2>,
}

#[derive(Clone, Debug)]
struct SequenceBatcher;

impl Batcher<Sequence, SequenceBatch> for SequenceBatcher {
    fn batch(&self, items: Vec<Sequence>, device: &Device) -> SequenceBatch {
        let sequences: Vec<Tensor<2>> = items
            .iter()
            .map(|item| Tensor::<1>::from_floats(item.values.as_slice(), device))
            .map(|sequence| sequence.unsqueeze_dims(&[-1]))
            .collect();
        let targets: Vec<Tensor<1>> = items
            .iter()
            .map(|item| Tensor::from_floats([item.next], device))
            .collect();
        SequenceBatch {
            sequences: Tensor::stack(sequences, 0),
            targets: Tensor::stack(targets, 0),
        }
    }
}

#[derive(Module, Debug)]
struct Cell {
    hidden: usize,
    of_input: Linear,
    of_hidden: Linear,
    norm_input: LayerNorm,
    norm_hidden: LayerNorm,
    norm_cell: LayerNorm,
    dropout: Dropout,
}

impl Cell {
    fn new(input: usize, hidden: usize, dropout: f64, device: &Device) -> Self {
        // The bias of the forget gate starts at 1.
        let gates = |input| {
            let mut linear = LinearConfig::new(input, 4 * hidden)
                .with_initializer(Initializer::XavierNormal { gain: 1.0 })
                .init(device);
            let ones = Tensor::<1>::ones([hidden], device);
            let bias = linear.bias.clone().expect("it has one").val();
            #[allow(clippy::single_range_in_vec_init, reason = "one range per dim")]
            // A parameter is a leaf of the graph.
            let bias = bias.slice_assign([hidden..2 * hidden], ones).detach();
            linear.bias = linear.bias.map(|param| param.map(|_| bias));
            linear
        };
        let norm = |width| LayerNormConfig::new(width).init(device);
        Self {
            hidden,
            of_input: gates(input),
            of_hidden: gates(hidden),
            norm_input: norm(4 * hidden),
            norm_hidden: norm(hidden),
            norm_cell: norm(hidden),
            dropout: DropoutConfig::new(dropout).init(),
        }
    }

    fn forward(&self, x: Tensor<2>, state: LstmState<2>) -> LstmState<2> {
        let gates = self.norm_input.forward(self.of_input.forward(x))
            + self.of_hidden.forward(state.hidden);
        let gates = gates.chunk(4, 1);
        let (sigmoid, tanh) = (Sigmoid::new(), Tanh::new());
        let input = sigmoid.forward(gates[0].clone());
        let forget = sigmoid.forward(gates[1].clone());
        let candidate = tanh.forward(gates[2].clone());
        let output = sigmoid.forward(gates[3].clone());
        let cell = self
            .norm_cell
            .forward(forget * state.cell + input * candidate);
        let hidden = self
            .norm_hidden
            .forward(output * tanh.forward(cell.clone()));
        LstmState::new(cell, self.dropout.forward(hidden))
    }
}

#[derive(Module, Debug)]
struct Stack {
    cells: Vec<Cell>,
}

impl Stack {
    fn new(widths: &[usize], dropout: f64, device: &Device) -> Self {
        let last = widths.len() - 2;
        let cells = widths.windows(2).enumerate().map(|(at, pair)| {
            let dropout = if at < last { dropout } else { 0.0 };
            Cell::new(pair[0], pair[1], dropout, device)
        });
        Self {
            cells: cells.collect(),
        }
    }

    /// `[batch, seq, input]` to `[batch, seq, hidden]`.
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [rows, length, _] = x.dims();
        let device = x.device();
        let zeros = |cell: &Cell| Tensor::zeros([rows, cell.hidden], &device);
        let mut states: Vec<LstmState<2>> = self
            .cells
            .iter()
            .map(|cell| LstmState::new(zeros(cell), zeros(cell)))
            .collect();
        let mut outputs = Vec::new();
        for at in 0..length {
            let mut input = x.clone().slice(s![.., at..at + 1, ..]).squeeze_dim::<2>(1);
            for (cell, state) in self.cells.iter().zip(&mut states) {
                let old = LstmState::new(state.cell.clone(), state.hidden.clone());
                *state = cell.forward(input, old);
                input = state.hidden.clone();
            }
            outputs.push(input);
        }
        Tensor::stack(outputs, 1)
    }
}

#[derive(Module, Debug)]
struct Network {
    ahead: Stack,
    back: Stack,
    dropout: Dropout,
    output: Linear,
}

impl Network {
    fn new(widths: &[usize], dropout: f64, device: &Device) -> Self {
        Self {
            ahead: Stack::new(widths, dropout, device),
            back: Stack::new(widths, dropout, device),
            dropout: DropoutConfig::new(dropout).init(),
            output: LinearConfig::new(2 * widths[widths.len() - 1], 1).init(device),
        }
    }

    /// `[batch, seq, 1]` to `[batch, 1]`.
    fn forward(&self, x: Tensor<3>) -> Tensor<2> {
        let [_, length, _] = x.dims();
        let back = self.back.forward(x.clone().flip([1])).flip([1]);
        let both = Tensor::cat(vec![self.ahead.forward(x), back], 2);
        let last = self
            .dropout
            .forward(both)
            .slice(s![.., length - 1..length, ..]);
        self.output.forward(last.squeeze_dim::<2>(1))
    }
}

/// The program.
pub struct ModernLstm;

impl Program for ModernLstm {
    const NAME: &'static str = "modern-lstm";

    fn run(setup: &Setup) -> Numbers {
        let (device, size) = (&setup.device.clone().autodiff(), setup.size);
        device.seed(SEED);
        let widths: &[usize] = size.pick(&[1, 6, 6], &[1, 32, 32]);
        let dropout = setup.dropout(0.1);
        let model = Network::new(widths, dropout, device);
        let mut model = start(setup, model, |host| Network::new(widths, dropout, host));
        let mut optimizer = AdamConfig::new().init();
        let length = size.pick(4, 10);
        let train = DataLoaderBuilder::new(SequenceBatcher)
            .batch_size(size.pick(12, 32))
            .shuffle(SEED)
            .num_workers(setup.workers)
            .set_device(device.clone())
            .build(sequences(size.pick(60, 1000), length, 1));
        let valid = DataLoaderBuilder::new(SequenceBatcher)
            .batch_size(size.pick(12, 32))
            .shuffle(SEED)
            .num_workers(setup.workers)
            .set_device(setup.device.clone())
            .build(sequences(size.pick(20, 200), length, 2));

        let mut numbers = Numbers::default();
        for _epoch in 0..2 {
            for batch in train.iter() {
                let batch = batch.expect("what is in memory is read");
                let output = model.forward(batch.sequences);
                let loss = MseLoss::new().forward(output, batch.targets.clone(), Reduction::Mean);
                numbers.add("train Loss", loss.clone().into_scalar());
                let grads = GradientsParams::from_grads(loss.backward(), &model);
                model = optimizer.step(1e-3, model, grads);
            }
            let inference = model.valid();
            for batch in valid.iter() {
                let batch = batch.expect("what is in memory is read");
                let output = inference.forward(batch.sequences);
                let loss = MseLoss::new().forward(output, batch.targets, Reduction::Mean);
                numbers.add("valid Loss", loss.into_scalar());
            }
        }
        model
            .save_file(setup.path("model"))
            .expect("the model is saved");
        numbers
    }
}
