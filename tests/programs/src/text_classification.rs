//! A transformer encoder that tells the topic of a text, after Burn's `text-classification`.
//!
//! Its batcher makes a tensor per label, and writes each text's tokens into a padded table of its own.

use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::lr_scheduler::noam::NoamLrSchedulerConfig;
use burn::module::Module;
use burn::nn::attention::{SeqLengthOption, generate_padding_mask};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::AdamConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use burn::train::metric::{AccuracyMetric, IterationSpeedMetric, LearningRateMetric, LossMetric};
use burn::train::{
    ClassificationOutput, ExecutionStrategy, InferenceStep, Learner, SupervisedTraining,
    TrainOutput, TrainStep,
};

use crate::data::Source;
use crate::{Log, Numbers, Program, Setup, start};

const NUM_TOPICS: usize = 4;
const SEED: u64 = 21;

/// A text as its tokens; what a tokenizer would make of it.
#[derive(Clone, Debug)]
struct Text {
    tokens: Vec<usize>,
    topic: usize,
}

/// Texts of 10 to `longest` tokens; some tokens belong to one topic.
fn texts(count: usize, vocabulary: usize, longest: usize, seed: u64) -> InMemDataset<Text> {
    let mut source = Source(seed);
    let items = (0..count).map(|_| {
        let topic = source.below(NUM_TOPICS);
        let length = 10 + source.below(longest - 9);
        let tokens = (0..length).map(|_| match source.below(3) {
            0 => 1 + topic,
            _ => 1 + source.below(vocabulary - 1),
        });
        Text {
            tokens: tokens.collect(),
            topic,
        }
    });
    InMemDataset::new(items.collect())
}

#[derive(Clone, Debug)]
struct TextBatch {
    /// `[batch, seq]`.
    tokens: Tensor<2, Int>,
    /// `[batch]`.
    labels: Tensor<1, Int>,
    /// `[batch, seq]`: where nothing is.
    mask: Tensor<2, Bool>,
}

#[derive(Clone, Debug)]
struct TextBatcher {
    length: usize,
}

impl Batcher<Text, TextBatch> for TextBatcher {
    fn batch(&self, items: Vec<Text>, device: &Device) -> TextBatch {
        let labels = items
            .iter()
            .map(|item| {
                let label = TensorData::from([item.topic as i64]);
                Tensor::<1, Int>::from_data(label, device)
            })
            .collect();
        let tokens = items.into_iter().map(|item| item.tokens).collect();
        let padded = generate_padding_mask(0, tokens, SeqLengthOption::Fixed(self.length), device);
        TextBatch {
            tokens: padded.tensor,
            labels: Tensor::cat(labels, 0),
            mask: padded.mask,
        }
    }
}

#[derive(Module, Debug)]
struct Model {
    transformer: TransformerEncoder,
    tokens: Embedding,
    positions: Embedding,
    output: Linear,
}

impl Model {
    fn new(
        transformer: &TransformerEncoderConfig,
        vocabulary: usize,
        length: usize,
        device: &Device,
    ) -> Self {
        let width = transformer.d_model;
        Self {
            transformer: transformer.init(device),
            tokens: EmbeddingConfig::new(vocabulary, width).init(device),
            positions: EmbeddingConfig::new(length, width).init(device),
            output: LinearConfig::new(width, NUM_TOPICS).init(device),
        }
    }

    fn classify(&self, batch: TextBatch) -> ClassificationOutput {
        let [rows, length] = batch.tokens.dims();
        let device = &self.tokens.devices()[0];
        let tokens = batch.tokens.to_device(device);
        let labels = batch.labels.to_device(device);
        let mask = batch.mask.to_device(device);
        let positions = Tensor::arange(0..length as i64, device)
            .reshape([1, length])
            .repeat_dim(0, rows);
        let embedded = (self.positions.forward(positions) + self.tokens.forward(tokens)) / 2;
        let encoded = self
            .transformer
            .forward(TransformerEncoderInput::new(embedded).mask_pad(mask));
        let output = self
            .output
            .forward(encoded)
            .slice([0..rows, 0..1])
            .reshape([rows, NUM_TOPICS]);
        let loss = CrossEntropyLossConfig::new()
            .init(&output.device())
            .forward(output.clone(), labels.clone());
        ClassificationOutput::new(loss, output, labels)
    }
}

impl TrainStep for Model {
    type Input = TextBatch;
    type Output = ClassificationOutput;

    fn step(&self, batch: TextBatch) -> TrainOutput<ClassificationOutput> {
        let output = self.classify(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Model {
    type Input = TextBatch;
    type Output = ClassificationOutput;

    fn step(&self, batch: TextBatch) -> ClassificationOutput {
        self.classify(batch)
    }
}

/// The program.
pub struct TextClassification;

impl Program for TextClassification {
    const NAME: &'static str = "text-classification";

    fn run(setup: &Setup) -> Numbers {
        let size = setup.size;
        let (vocabulary, length) = size.pick((64, 24), (28_996, 256));
        let transformer = size.pick(
            TransformerEncoderConfig::new(16, 32, 2, 2),
            TransformerEncoderConfig::new(256, 1024, 8, 4),
        );
        let transformer = transformer
            .with_norm_first(true)
            .with_quiet_softmax(true)
            .with_dropout(setup.dropout(0.1));
        let strategy = ExecutionStrategy::single(setup.device.clone().autodiff());
        strategy.main_device().seed(SEED);
        let model = Model::new(&transformer, vocabulary, length, strategy.main_device());
        let model = start(setup, model, |host| {
            Model::new(&transformer, vocabulary, length, host)
        });

        let batcher = TextBatcher { length };
        let longest = size.pick(30, 80);
        let train = DataLoaderBuilder::new(batcher.clone())
            .batch_size(size.pick(6, 8))
            .num_workers(setup.workers)
            .build(texts(size.pick(60, 256), vocabulary, longest, 1));
        let valid = DataLoaderBuilder::new(batcher)
            .batch_size(size.pick(6, 8))
            .num_workers(setup.workers)
            .build(texts(size.pick(20, 64), vocabulary, longest, 2));
        let optimizer = AdamConfig::new().with_weight_decay(Some(WeightDecayConfig::new(5e-5)));
        let schedule = NoamLrSchedulerConfig::new(1e-2)
            .with_warmup_steps(size.pick(10, 1000))
            .with_model_size(transformer.d_model)
            .init()
            .expect("a schedule");
        let log = Log::default();
        let training = SupervisedTraining::new(&setup.directory, train, valid)
            .metric_train(IterationSpeedMetric::new())
            .metric_train_numeric(LossMetric::new())
            .metric_valid_numeric(LossMetric::new())
            .metric_train_numeric(AccuracyMetric::new())
            .metric_valid_numeric(AccuracyMetric::new())
            .metric_train_numeric(LearningRateMetric::new())
            .with_default_checkpointers()
            .with_training_strategy(strategy.into())
            .num_epochs(size.pick(2, 1))
            .renderer(Box::new(log.clone()))
            .summary();
        let result = training.launch(Learner::new(model, optimizer.init(), schedule));
        result
            .model
            .into_record()
            .save(setup.path("model"))
            .expect("the model is saved");
        log.numbers()
    }
}
