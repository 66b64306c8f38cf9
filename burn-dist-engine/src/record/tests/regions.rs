//! Random programs of elementwise work, with reductions, views and products between: regions give what one operation
//! after the other gives, on any mesh, bit by bit, and what Flex gives but for the error of its functions and of ours.

use burn_backend::tensor::FloatTensor;
use burn_backend::{Backend, DType, Shape};
use burn_dist_door::Registered;
use burn_flex::Flex;
use burn_std::future::block_on;

use super::Nameless;
use crate::burn::data::*;
use crate::mesh::MeshShape;
use crate::plan::Regions;
use crate::plan::explain::Ask;
use crate::record::{DeviceMesh, MeshDevice, explained, report, start_explaining};

/// Rows and columns of the tensors.
const ROWS: usize = 12;
const COLUMNS: usize = 20;

/// A small generator (Steele et al., OOPSLA 2014).
struct SplitMix(u64);

impl SplitMix {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % end as u64) as usize
    }
}

/// Returns a random value of two, which are between -1 and 1 as it is, with as many rows and columns.
fn step<B: Backend>(
    random: &mut SplitMix,
    x: FloatTensor<B>,
    y: FloatTensor<B>,
    device: &B::Device,
) -> FloatTensor<B> {
    let whole = || Shape::from(vec![ROWS, COLUMNS]);
    let bools = crate::burn::bool_type::<B>(device);
    let stretched = |line| B::float_expand(line, whole());
    match random.below(22) {
        0 => B::float_mul_scalar(B::float_add(x, y), 0.5.into()),
        1 => B::float_sub(x, B::float_mul(y.clone(), y)),
        2 => B::float_mul(x, y),
        3 => B::float_div(x, B::float_add_scalar(B::float_abs(y), 1.0.into())),
        4 => B::float_exp(B::float_sub_scalar(B::float_abs(x), 1.5.into())),
        5 => B::sigmoid(B::float_sub(x, y)),
        6 => B::float_tanh(B::float_add(x, y)),
        7 => B::gelu(x),
        8 => B::relu(B::float_sub(x, y)),
        // A norm over rows.
        9 => {
            let square = B::float_mean_dim(B::float_mul(x.clone(), x.clone()), 1);
            let scale = B::float_recip(B::float_sqrt(B::float_add_scalar(square, 1e-3.into())));
            B::float_tanh(B::float_mul(B::float_mul(x, scale), y))
        }
        // Exponentials over their sum.
        10 => {
            let shifted = B::float_sub(x.clone(), B::float_max_dim(x, 1));
            let exponentials = B::float_exp(shifted);
            B::float_div(exponentials.clone(), B::float_sum_dim(exponentials, 1))
        }
        // Means over columns, and of all.
        11 => stretched(B::float_mul_scalar(
            B::float_sum_dim(x, 0),
            (1.0 / 12.0).into(),
        )),
        12 => {
            let mean = B::float_reshape(B::float_mean(x), Shape::from(vec![1, 1]));
            B::float_mul(stretched(mean), y)
        }
        13 => {
            let mask = B::float_greater(x.clone(), y.clone(), bools.into());
            B::float_mask_where(x, mask, y)
        }
        14 => {
            let mask = B::float_lower_elem(x.clone(), 0.25.into(), bools.into());
            B::float_mask_fill(B::float_mul(x, y), mask, (-0.5).into())
        }
        15 => B::float_cast(
            B::float_cast(B::float_add_scalar(x, 0.1.into()), DType::BF16.into()),
            DType::F32.into(),
        ),
        16 => B::float_clamp(x, (-0.3).into(), 0.6.into()),
        17 => B::float_powf_scalar(B::float_abs(x), 1.7.into()),
        // Turned and back, and in another shape.
        18 => {
            let turned = B::float_neg(B::float_swap_dims(x, 0, 1));
            B::float_add_scalar(B::float_swap_dims(turned, 0, 1), 0.01.into())
        }
        19 => {
            let flat = B::float_reshape(B::float_neg(x), Shape::from(vec![ROWS * COLUMNS]));
            B::float_reshape(B::float_sin(flat), whole())
        }
        20 => {
            let zeros = B::float_zeros(whole(), device, DType::F32.into());
            B::float_sub(
                B::float_add(zeros, x),
                B::float_ones(whole(), device, DType::F32.into()),
            )
        }
        // A product, which is none of a region.
        _ => B::float_mul_scalar(
            B::float_matmul(B::float_matmul(x, B::float_swap_dims(y.clone(), 0, 1)), y),
            (1.0 / 240.0).into(),
        ),
    }
}

/// Runs a random program of some steps, and returns three values of it and a sum.
pub(super) fn program<B: Backend>(seed: u64, device: &B::Device) -> Vec<TensorData> {
    let mut random = SplitMix(seed);
    let mut values: Vec<FloatTensor<B>> = (0..3)
        .map(|_| {
            let numbers = (0..ROWS * COLUMNS).map(|_| random.below(2001) as f32 / 1000.0 - 1.0);
            let data = TensorData::new(numbers.collect::<Vec<f32>>(), [ROWS, COLUMNS]);
            B::float_from_data(data, device)
        })
        .collect();
    for _ in 0..16 {
        let [x, y] = [(); 2].map(|()| values[random.below(values.len())].clone());
        let made = step::<B>(&mut random, x, y, device);
        match random.below(3) {
            0 => {
                let place = random.below(values.len());
                values[place] = made;
            }
            _ => values.push(made),
        }
    }
    let sum = B::float_sum_dim(values[values.len() - 1].clone(), 1);
    let read = |value| block_on(B::float_into_data(value)).expect("a value");
    let last = values.split_off(values.len() - 3);
    last.into_iter().chain([sum]).map(read).collect()
}

pub(super) fn device(axes: &str, fuzz: Option<u64>, regions: Regions) -> MeshDevice {
    let axes = MeshShape::parse(axes).expect("a mesh");
    let mesh = DeviceMesh::builder().axes(&axes).alone().regions(regions);
    let mesh = mesh.account_memory(true);
    let mesh = match fuzz {
        Some(seed) => mesh.fuzz_layouts(seed),
        None => mesh,
    };
    mesh.build().expect("a mesh").device()
}

pub(super) const MESHES: [&str; 4] = ["", "fsdp=2", "fsdp=2,tp=2", "dp=3"];

#[test]
fn regions_have_the_bits_of_one_operation_after_the_other() {
    for seed in 0..24 {
        let axes = MESHES[seed as usize % 4];
        let fuzz = (seed % 3 > 0).then_some(seed);
        let made = [Regions::On, Regions::Off].map(|regions| {
            let device = device(axes, fuzz, regions);
            program::<Nameless>(seed, &device)
        });
        let [on, off] = made;
        assert_eq!(on, off, "program {seed} on {axes}, layouts {fuzz:?}");
    }
}

/// By how much `on` may differ from Flex. In units in the last place of values up to one, a function of ours is off by
/// two and one of the library by one, and two sums of n terms in two orders by sqrt(n), n at most 20: six for a step,
/// where most have one of the two. Nine steps at most stand one after the other in these programs, and a step doubles
/// what is off before it, or less.
const TOLERANCE: f32 = 6.0 * ((1 << 9) - 1) as f32 * (f32::EPSILON / 2.0);

/// Regions, of many operations and of one, hold what the plan says, to the byte; with memory that is kept for the next
/// ones, no more.
#[test]
fn bytes_that_are_found_are_those_of_the_plan() {
    let mut wrong = Vec::new();
    for seed in 0..24 {
        let axes = MESHES[seed as usize % 4];
        let fuzz = (seed % 3 > 0).then_some(seed);
        for regions in [Regions::On, Regions::Off, Regions::Flex] {
            let device = device(axes, fuzz, regions);
            start_explaining::<Registered>(&device, Ask::default());
            program::<Nameless>(seed, &device);
            let plan = explained::<Registered>(&device);
            for (index, rank) in report::<Registered>(&device).ranks.iter().enumerate() {
                let (predicted, found) = (rank.predicted_peak_bytes, rank.peak_bytes);
                let accounted = rank.accounted.as_ref().expect("the mesh accounts");
                if predicted == found && accounted.with_kept <= predicted {
                    continue;
                }
                // Where the window with the most is the same, the task is that from which on they are apart.
                let (planned, held) = (&plan.timelines[index].tasks, &accounted.timeline.tasks);
                let totals = planned.iter().zip(held.iter());
                let apart = totals.clone().position(|(a, b)| a.total() != b.total());
                wrong.push(format!(
                    "program {seed} on {axes}, layouts {fuzz:?}, {regions}, rank {index}: {predicted} predicted at {}, \
                     {found} found at {}, {} with what is kept; apart at {apart:?} of {} and {} tasks",
                    plan.memory[index].peak_cause,
                    accounted.peak_cause,
                    accounted.with_kept,
                    planned.len(),
                    held.len(),
                ));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn regions_are_near_flex() {
    for seed in 0..24 {
        let expected = program::<Flex>(seed, &Default::default());
        let axes = MESHES[seed as usize % 4];
        let found = program::<Nameless>(seed, &device(axes, Some(seed), Regions::On));
        for (found, expected) in found.iter().zip(&expected) {
            for (a, b) in found.iter::<f32>().zip(expected.iter::<f32>()) {
                let near = (a - b).abs() <= TOLERANCE * (1.0 + b.abs());
                assert!(near, "program {seed} on {axes}: {a} for {b}");
            }
        }
    }
}

#[test]
fn flex_has_the_bits_of_flex_on_one_rank() {
    for seed in 0..8 {
        let expected = program::<Flex>(seed, &Default::default());
        let found = program::<Nameless>(seed, &device("", None, Regions::Flex));
        assert_eq!(found, expected, "program {seed}");
    }
}

#[test]
fn elementwise_work_is_in_regions() {
    for seed in 0..4 {
        let fused = |regions| {
            let device = device(MESHES[seed as usize], None, regions);
            start_explaining::<Registered>(&device, Ask::default());
            program::<Nameless>(seed, &device);
            explained::<Registered>(&device).fused
        };
        let [on, off] = [Regions::On, Regions::Off].map(|regions| fused(regions).expect("regions"));
        assert!(
            on.operations >= on.regions && on.regions > 0,
            "program {seed}: {on:?}"
        );
        assert!(
            on.regions < off.regions,
            "program {seed}: {on:?}, apart {off:?}"
        );
        assert!(fused(Regions::Flex).is_none());
    }
}
