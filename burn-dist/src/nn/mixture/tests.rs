//! Tokens are neither lost nor doubled, beyond the drops that are accounted for.

use burn_core::tensor::activation::softmax;
use burn_core::tensor::{Device, Int, Tensor, TensorData};
use proptest::prelude::*;

use super::*;
use crate::DeviceMesh;

/// Groups, tokens of each, experts, choices, width.
type Sizes = [usize; 5];

fn config() -> MixtureConfig {
    MixtureConfig {
        width: 3,
        hidden: 4,
        experts: 1,
        top_k: 1,
        capacity: Capacity::Dropless,
        groups: 1,
        shared: false,
    }
}

/// Sizes, capacity and the router's logits, which favour some experts.
fn cases() -> impl Strategy<Value = (Sizes, MixtureConfig, Vec<f32>)> {
    let sizes = (1..5usize, 1..9usize, 1..7usize, 1..4usize);
    let factor = prop_oneof![Just(None), (0.05..3.0f64).prop_map(Some)];
    (sizes, factor).prop_flat_map(|((g, t, e, k), factor)| {
        let top_k = k.min(e);
        let config = MixtureConfig {
            experts: e,
            top_k,
            capacity: factor.map_or(Capacity::Dropless, Capacity::Factor),
            ..config()
        };
        let sizes = [g, t, e, top_k, 3];
        let logits = prop::collection::vec(-3.0..3.0f32, g * t * e);
        (Just(sizes), Just(config), logits)
    })
}

fn tensor<const D: usize>(values: Vec<f32>, shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values, shape), device)
}

fn read<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

fn integers(tensor: Tensor<3, Int>) -> Vec<usize> {
    let data = tensor.into_data();
    data.iter::<i64>().map(|value| value as usize).collect()
}

/// Routes, and looks at every pair and every slot.
fn check(
    [g, t, e, k, d]: Sizes,
    config: &MixtureConfig,
    logits: &[f32],
    device: &Device,
) -> Result<(), TestCaseError> {
    let c = config.slots(t);
    let probabilities = softmax(tensor::<3>(logits.to_vec(), [g, t, e], device), 2);
    let choices = Choices::top_k(probabilities.clone(), k);
    let routing = Routing::new(choices.expert.clone(), e, c);
    // No two tokens are alike, and none is zero.
    let x: Vec<f32> = (1..=g * t * d).map(|i| i as f32).collect();
    let x_gtd = tensor::<3>(x.clone(), [g, t, d], device);
    let slots = read(routing.dispatch(x_gtd));
    let ones = Tensor::<3>::ones([g, k * t, 1], device);
    let dispatched = tensor::<3>(slots.clone(), [e, g * c, d], device);
    let back = read(routing.combine(dispatched, ones, t));
    let probabilities = read(probabilities);
    let gates = read(choices.gate);
    let kept = read(routing.kept);
    let numbers = integers(routing.slot);
    let experts = integers(choices.expert);

    let mut filled = vec![false; e * g * c];
    for group in 0..g {
        let mut left = vec![c; e];
        for pair in 0..k * t {
            let (at, token) = (group * k * t + pair, pair % t);
            let expert = experts[at];
            // The slot of this expert that is next, if there is one: first choices come first.
            let has_slot = left[expert] > 0;
            prop_assert_eq!(kept[at], f32::from(u8::from(has_slot)));
            if !has_slot {
                continue;
            }
            let slot = expert * c + c - left[expert];
            left[expert] -= 1;
            prop_assert_eq!(numbers[at], slot);
            let place = expert * g * c + group * c + slot % c;
            prop_assert!(!filled[place], "two tokens in one slot");
            filled[place] = true;
            let row = (group * t + token) * d;
            prop_assert_eq!(&slots[place * d..][..d], &x[row..row + d]);
        }
        for token in 0..t {
            let pairs: Vec<usize> = (0..k)
                .map(|choice| group * k * t + choice * t + token)
                .collect();
            // The likeliest experts, each once.
            let row = &probabilities[(group * t + token) * e..][..e];
            let mut likeliest: Vec<f32> = row.to_vec();
            likeliest.sort_by(|a, b| b.total_cmp(a));
            let chosen: Vec<f32> = pairs.iter().map(|pair| row[experts[*pair]]).collect();
            prop_assert_eq!(&chosen, &likeliest[..k]);
            let mut different: Vec<usize> = pairs.iter().map(|pair| experts[*pair]).collect();
            different.sort();
            different.dedup();
            prop_assert_eq!(different.len(), k);
            let sum: f32 = pairs.iter().map(|pair| gates[*pair]).sum();
            let expected = if k == 1 { chosen[0] } else { 1.0 };
            prop_assert!((sum - expected).abs() < 1e-5, "gates add up to {}", sum);
            // What comes back is the token, as often as it was kept.
            let copies: f32 = pairs.iter().map(|pair| kept[*pair]).sum();
            let row = (group * t + token) * d;
            for i in row..row + d {
                prop_assert_eq!(back[i], copies * x[i]);
            }
        }
    }
    for (place, filled) in filled.iter().enumerate() {
        let is_empty = slots[place * d..][..d].iter().all(|x| *x == 0.0);
        prop_assert_eq!(is_empty, !filled, "slot {}", place);
    }
    if config.capacity == Capacity::Dropless {
        prop_assert!(kept.iter().all(|kept| *kept == 1.0));
    }
    Ok(())
}

proptest! {
    #[test]
    fn every_pair_is_in_one_slot_or_dropped((sizes, config, logits) in cases()) {
        check(sizes, &config, &logits, &Device::flex())?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn so_it_is_on_a_mesh((sizes, config, logits) in cases()) {
        let mesh = DeviceMesh::parse("fsdp=2,ep=2").expect("a mesh");
        check(sizes, &config, &logits, &mesh.device())?;
    }
}
