//! Answers from a model: greedy or sampled, one token at a time for many questions at once.

use anyhow::{Context, bail};
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_dist::train::corpus::Example;
use burn_dist::train::rng::Rng;
use burn_dist::train::tokenizer::{Text, Wrap};

use crate::model::Llama;

/// How answers are made.
#[derive(Debug, Clone)]
pub struct Decoding {
    /// 0 takes the likeliest token; higher values draw more freely.
    pub temperature: f64,
    /// An answer has at most this many tokens.
    pub max_new_tokens: usize,
    /// Seed of the draws.
    pub seed: u64,
}

/// Rows decoded together.
const ROWS: usize = 64;
/// Rows are padded to a multiple of this many positions, so that few shapes occur.
const SEQ_STEP: usize = 16;

/// Answers every question, each wrapped as `wrap` says, or goes on with every text if it says nothing.
///
/// Each token runs the whole prefix again: there is no cache of keys and values.
///
/// # Errors
/// If the tokenizer or the device fails.
pub fn answer(
    model: &Llama,
    text: &Text,
    (prompts, wrap): (&[&str], Wrap<'_>),
    decoding: &Decoding,
    device: &Device,
) -> anyhow::Result<Vec<String>> {
    let mut rng = Rng::new(decoding.seed, 3);
    let mut answers = Vec::with_capacity(prompts.len());
    // Where positions depend on the length, rows of several lengths would change each other.
    let together = if model.rope.depends_on_length() {
        1
    } else {
        ROWS
    };
    for prompts in prompts.chunks(together) {
        let rows: Vec<Vec<u32>> = prompts
            .iter()
            .map(|prompt| text.encode_prompt(prompt, wrap))
            .collect::<Result<_, _>>()?;
        let is_end = |id: u32| text.is_end(id);
        let ends: (u32, &dyn Fn(u32) -> bool) = (text.end(), &is_end);
        let on_ids = &mut |_: usize, _: &[u32]| Ok(());
        for ids in decode(model, rows, ends, decoding, (&mut rng, on_ids), device)? {
            answers.push(match wrap {
                // Its first space is part of the text.
                Wrap::Nothing => text.decode_exactly(&ids)?,
                Wrap::Chat | Wrap::Template(_) => text.decode(&ids)?,
            });
        }
    }
    Ok(answers)
}

/// The rows that are decoded together, and the positions of each, for prompts of these lengths.
pub fn extent(prompt_lens: &[usize], decoding: &Decoding) -> (usize, usize) {
    let longest = prompt_lens.iter().max().copied().unwrap_or(0);
    let seq = (longest + decoding.max_new_tokens).next_multiple_of(SEQ_STEP);
    (prompt_lens.len().min(ROWS), seq)
}

/// Is called for each row that has a new id, with all new ones of it.
pub(crate) type OnIds<'a> = &'a mut dyn FnMut(usize, &[u32]) -> anyhow::Result<()>;

/// Extends every row until an id that ends it; returns the new ids without that one.
pub(crate) fn decode(
    model: &Llama,
    mut rows: Vec<Vec<u32>>,
    (pad, is_end): (u32, &dyn Fn(u32) -> bool),
    decoding: &Decoding,
    (rng, on_ids): (&mut Rng, OnIds<'_>),
    device: &Device,
) -> anyhow::Result<Vec<Vec<u32>>> {
    let prompt_lens: Vec<usize> = rows.iter().map(Vec::len).collect();
    let (_, seq) = extent(&prompt_lens, decoding);
    let mut ended = vec![false; rows.len()];
    for _ in 0..decoding.max_new_tokens {
        let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
        // Padding would count as length.
        let seq = if model.rope.depends_on_length() {
            longest
        } else {
            seq
        };
        let next = next_tokens(model, &rows, seq, pad, decoding.temperature, rng, device)?;
        for (number, ((row, ended), id)) in rows.iter_mut().zip(&mut ended).zip(next).enumerate() {
            *ended |= is_end(id);
            if !*ended {
                row.push(id);
                on_ids(number, &row[prompt_lens[number]..])?;
            }
        }
        if ended.iter().all(|ended| *ended) {
            break;
        }
    }
    Ok(rows
        .into_iter()
        .zip(prompt_lens)
        .map(|(row, prompt)| row[prompt..].to_vec())
        .collect())
}

/// The token after each row, padded to `seq` positions.
///
/// # Errors
/// If the device fails, or the model gives numbers that are not finite.
pub fn next_tokens(
    model: &Llama,
    rows: &[Vec<u32>],
    seq: usize,
    pad: u32,
    temperature: f64,
    rng: &mut Rng,
    device: &Device,
) -> anyhow::Result<Vec<u32>> {
    // Positions after a row's end are padding, which the causal mask hides from it.
    let padded = |row: &Vec<u32>| -> Vec<i32> {
        row.iter()
            .copied()
            .chain(std::iter::repeat(pad))
            .take(seq)
            .map(|id| id as i32)
            .collect()
    };
    let tokens: Vec<i32> = rows.iter().flat_map(padded).collect();
    let last: Vec<i32> = rows.iter().map(|row| row.len() as i32 - 1).collect();
    let tokens_bs = Tensor::<2, Int>::from_data(TensorData::new(tokens, [rows.len(), seq]), device);
    let last_b11 = Tensor::<3, Int>::from_data(TensorData::new(last, [rows.len(), 1, 1]), device);

    let hidden_bsd = model.hidden(tokens_bs);
    let [b, _, d] = hidden_bsd.dims();
    let logits_b1v = model.logits(hidden_bsd.gather(1, last_b11.expand([b, 1, d])));
    let [_, _, vocab] = logits_b1v.dims();
    if temperature <= 0.0 {
        let ids_b11 = logits_b1v.clone().argmax(2);
        let lost_b11 = logits_b1v.is_finite().bool_not().int().sum_dim(2);
        // Read at once, one after the other.
        let both = Tensor::cat(vec![ids_b11, lost_b11], 0)
            .try_into_data()
            .context("cannot read the next tokens")?;
        let mut both = both.iter::<i64>();
        let ids: Vec<u32> = both.by_ref().take(b).map(|id| id as u32).collect();
        check_finite(both.map(|lost| lost as usize), vocab)?;
        return Ok(ids);
    }
    let logits = logits_b1v
        .try_into_data()
        .context("cannot read the logits")?;
    let logits: Vec<f32> = logits.iter::<f32>().collect();
    let lost = logits
        .chunks(vocab)
        .map(|logits| logits.iter().filter(|it| !it.is_finite()).count());
    check_finite(lost, vocab)?;
    Ok(logits
        .chunks(vocab)
        .map(|logits| draw(logits, temperature, rng))
        .collect())
}

/// Refuses to choose a token by numbers that are none; `lost` are how many of a row are not finite.
fn check_finite(mut lost: impl Iterator<Item = usize>, vocab: usize) -> anyhow::Result<()> {
    match lost.position(|lost| lost > 0) {
        Some(row) => bail!(
            "numbers from which the next token of text {} is chosen, {vocab} of them, are NaN or infinite: look at the \
             weights, and whether the numbers of --param-dtype or --float8 reach far enough",
            row + 1
        ),
        None => Ok(()),
    }
}

/// Draws an id with probability proportional to `exp(logit / temperature)`.
fn draw(logits: &[f32], temperature: f64, rng: &mut Rng) -> u32 {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |logit: &f32| (f64::from(logit - highest) / temperature).exp();
    let mut left = rng.unit() * logits.iter().map(weight).sum::<f64>();
    for (id, logit) in logits.iter().enumerate() {
        left -= weight(logit);
        if left < 0.0 {
            return id as u32;
        }
    }
    // Rounding may leave a sliver: it belongs to the last id.
    logits.len() as u32 - 1
}

/// A question with the model's answer.
#[derive(Debug, Clone)]
pub struct Answered<'a> {
    /// The question and the right answer.
    pub example: &'a Example,
    /// The model's answer.
    pub said: String,
}

impl Answered<'_> {
    /// Returns whether the answer is right to the letter, outer spaces aside.
    pub fn right(&self) -> bool {
        self.said == self.example.response.trim()
    }
}

/// Asks every question and keeps the answers; greedy, with room for the longest right answer.
///
/// # Errors
/// As [`answer`].
pub fn ask<'a>(
    model: &Llama,
    text: &Text,
    questions: &'a [Example],
    device: &Device,
) -> anyhow::Result<Vec<Answered<'a>>> {
    let prompts: Vec<&str> = questions
        .iter()
        .map(|example| example.prompt.as_str())
        .collect();
    let mut max_new_tokens = 1;
    for example in questions {
        let encoded = text.encode_example(example)?;
        max_new_tokens = max_new_tokens.max(encoded.num_learnt());
    }
    let decoding = Decoding {
        temperature: 0.0,
        max_new_tokens,
        seed: 0,
    };
    let said = answer(model, text, (&prompts, text.asking()), &decoding, device)?;
    Ok(questions
        .iter()
        .zip(said)
        .map(|(example, said)| Answered { example, said })
        .collect())
}

/// Share of the answers that are right.
pub fn exact_match(answers: &[Answered<'_>]) -> Option<f64> {
    let right = answers.iter().filter(|answer| answer.right()).count();
    (!answers.is_empty()).then(|| right as f64 / answers.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::LlamaConfig;
    use burn::module::{Module, ModuleMapper, Param};

    #[test]
    fn greedy_answers_do_not_depend_on_the_other_rows_or_on_padding() {
        let model = LlamaConfig::test().init(&Device::flex());
        let decoding = Decoding {
            temperature: 0.0,
            max_new_tokens: 6,
            seed: 0,
        };
        let decode = |rows: Vec<Vec<u32>>| {
            decode(
                &model,
                rows,
                (63, &|id| id == 63),
                &decoding,
                (&mut Rng::new(0, 0), &mut |_, _| Ok(())),
                &Device::flex(),
            )
            .unwrap()
        };
        let (short, long) = (vec![1, 2, 3], (0..20).collect::<Vec<u32>>());
        let together = decode(vec![short.clone(), long.clone()]);
        assert_eq!(together[0], decode(vec![short])[0]);
        assert_eq!(together[1], decode(vec![long])[0]);
        assert!(
            together
                .iter()
                .all(|ids| ids.len() <= 6 && !ids.contains(&63))
        );
    }

    /// All parameters times a number.
    struct Times(f32);

    impl ModuleMapper for Times {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|tensor| tensor.mul_scalar(self.0))
        }
    }

    #[test]
    fn a_token_is_not_chosen_by_what_is_no_number() {
        for (value, temperature) in [f32::NAN, f32::INFINITY]
            .into_iter()
            .flat_map(|value| [(value, 0.0), (value, 1.0)])
        {
            let model = LlamaConfig::test().init(&Device::flex());
            let model = model.map(&mut Times(value));
            let rows = [vec![1, 2, 3], vec![4]];
            let mut rng = Rng::new(0, 0);
            let next = next_tokens(
                &model,
                &rows,
                16,
                63,
                temperature,
                &mut rng,
                &Device::flex(),
            );
            let error = next.unwrap_err().to_string();
            assert!(
                error.contains("64 of them, are NaN") && error.contains("text 1"),
                "{error}"
            );
        }
    }

    #[test]
    fn draws_follow_the_temperature() {
        let logits = [0.0, 2.0, 1.0];
        let share = |temperature| {
            let mut rng = Rng::new(1, 1);
            (0..4000)
                .filter(|_| draw(&logits, temperature, &mut rng) == 1)
                .count() as f64
                / 4000.0
        };
        let expected = 2.0_f64.exp() / (1.0 + 2.0_f64.exp() + 1.0_f64.exp());
        assert!((share(1.0) - expected).abs() < 0.03, "{}", share(1.0));
        assert!(share(0.05) > 0.999);
        assert!((share(100.0) - 1.0 / 3.0).abs() < 0.03);
    }
}
