//! Random programs: 5 to 15 operations on a few tensors, forward and backward, on random meshes with random layouts.

use burn::tensor::{Int, Tensor, activation as act, module};
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence};

use super::harness::{Case1, MESHES, Way, compare, num_seeds, reference};

/// Tensors stay at most this large: a program is about layouts, not about arithmetic.
const ELEMENTS_MAX: usize = 240;

/// One operation: which, on which tensors, with which parameter. All are taken modulo what there is, so that any bytes
/// are a program.
type Op = (u8, u8, u8, u8);

#[derive(Clone, Debug)]
struct Program {
    shapes: Vec<[usize; 3]>,
    ops: Vec<Op>,
}

/// Bounds the values, so that sums stay comparable.
fn bounded(x: Tensor<3>) -> Tensor<3> {
    act::tanh(x * 0.5)
}

/// Applies one operation; `None` where the shapes do not allow it.
fn apply(
    c: &mut Case1,
    tensors: &[Tensor<3>],
    (op, first, second, parameter): Op,
) -> Option<Tensor<3>> {
    let x = tensors[first as usize % tensors.len()].clone();
    let y = tensors[second as usize % tensors.len()].clone();
    let p = parameter as usize;
    let dim = p % 3;
    let ([a, b, d], other) = (x.dims(), y.dims());
    let broadcasts = (0..3).all(|i| x.dims()[i] == other[i] || x.dims()[i] == 1 || other[i] == 1);
    let result = match op % 32 {
        0 if broadcasts => x + y,
        1 if broadcasts => x - y,
        2 | 3 if broadcasts => x * y,
        4 if broadcasts => x / (y.square() + 1.0),
        5 => bounded(x),
        6 => act::sigmoid(x),
        7 => x.cos(),
        8 => x * 0.75 + 0.25,
        9 => act::softmax(x, dim),
        10 => act::log_softmax(x, dim) * 0.25,
        11 if d == other[1] && (a == other[0] || a == 1 || other[0] == 1) => bounded(x.matmul(y)),
        12 if d == other[2] && (a == other[0] || a == 1 || other[0] == 1) => {
            bounded(x.matmul(y.transpose()))
        }
        13 => bounded(x.sum_dim(dim)),
        14 => x.mean_dim(dim),
        15 => bounded(x.cumsum(dim)),
        16 => x.permute(
            [
                [0, 2, 1],
                [1, 0, 2],
                [2, 0, 1],
                [2, 1, 0],
                [1, 2, 0],
                [0, 1, 2],
            ][p % 6],
        ),
        17 => match p % 4 {
            0 => x.reshape([a * b, d, 1]),
            1 => x.reshape([1, a, b * d]),
            2 => x.reshape([b, a, d]),
            _ if d % 2 == 0 => x.reshape([a, b * 2, d / 2]),
            _ => x.reshape([1, a * b * d, 1]),
        },
        18 => {
            let size = x.dims()[dim];
            let start = (p / 3) % size;
            x.narrow(dim, start, 1 + (p / 7) % (size - start))
        }
        19 => x.flip([dim as isize]),
        20 if (0..3).all(|i| i == dim || x.dims()[i] == other[i]) => Tensor::cat(vec![x, y], dim),
        21 => {
            let mut shape = x.dims();
            if shape[dim] == 1 {
                shape[dim] = 2 + p % 4;
                x.expand(shape)
            } else {
                x.repeat_dim(dim, 2)
            }
        }
        22 => {
            let (size, count) = (x.dims()[dim], 1 + p % 6);
            let indices: Vec<i32> = (0..count).map(|i| ((i * 5 + p) % size) as i32).collect();
            let indices = Tensor::<1, Int>::from_ints(indices.as_slice(), &c.device);
            x.select(dim, indices)
        }
        23 => {
            let mut shape = x.dims();
            let size = shape[dim];
            shape[dim] = 1 + p % 4;
            let indices = c.int(0, size as i32, shape);
            x.gather(dim, indices)
        }
        24 => {
            let mask = c.bool(x.dims());
            x.mask_fill(mask, 0.5)
        }
        25 if x.dims() == other => {
            let mask = c.bool(other);
            x.mask_where(mask, y)
        }
        26 => {
            let mut range = x.dims().map(|size| 0..size);
            let start = (p / 3) % x.dims()[dim];
            range[dim] = start..x.dims()[dim];
            let values = x.clone().slice(range.clone()) * 2.0;
            x.slice_assign(range, values)
        }
        27 => x.pad([(p % 2, p / 2 % 2), (p / 4 % 2, p / 8 % 2)], 0.5),
        28 => {
            let weight = c.float([d, 1 + p % 5]);
            let bias = c.float([1 + p % 5]);
            bounded(module::linear(x, weight, Some(bias)))
        }
        29 => bounded(x.clone().sum().reshape([1, 1, 1]) * 0.1) + x,
        30 => x.clone() * x.detach(),
        31 => {
            // Read in the middle of the program: everything alive outlives a window.
            c.value(x.clone());
            x
        }
        _ => return None,
    };
    (result.shape().num_elements() <= ELEMENTS_MAX).then_some(result)
}

fn run(c: &mut Case1, program: &Program) {
    // Rounding errors add up along up to 15 operations, each of which at most doubles what it is given: between 2^-24
    // and 2^-9. What is seen is far below.
    c.tolerance(1e-4);
    let mut tensors: Vec<Tensor<3>> = program.shapes.iter().map(|shape| c.float(*shape)).collect();
    for op in &program.ops {
        if let Some(result) = apply(c, &tensors, *op) {
            tensors.push(result);
        }
    }
    for tensor in tensors {
        c.out(tensor);
    }
}

fn programs() -> impl Strategy<Value = Program> {
    let shape = prop::array::uniform3(1usize..6);
    (
        prop::collection::vec(shape, 2..4),
        prop::collection::vec(any::<Op>(), 5..16),
    )
        .prop_map(|(shapes, ops)| Program { shapes, ops })
}

#[test]
fn random_programs() {
    let config = Config {
        cases: 100 * num_seeds() as u32,
        failure_persistence: Some(Box::new(FileFailurePersistence::Off)),
        max_shrink_iters: 400,
        ..Config::default()
    };
    let mut runner = proptest::test_runner::TestRunner::new_with_rng(
        config,
        // The same programs in every run: what fails here fails everywhere.
        proptest::test_runner::TestRng::deterministic_rng(
            proptest::test_runner::RngAlgorithm::ChaCha,
        ),
    );
    let outcome = runner.run(
        &(programs(), 0..MESHES.len(), prop::option::of(0u64..1000)),
        |(program, mesh, seed)| {
            let expected = reference(|c| run(c, &program));
            if let Err(message) = &expected {
                // A program that one device cannot run says nothing about meshes.
                return Err(TestCaseError::reject(message.clone()));
            }
            let way = Way {
                mesh: MESHES[mesh].to_string(),
                seed,
            };
            match compare(&way, &expected, |c| run(c, &program)) {
                None => Ok(()),
                Some(difference) => Err(TestCaseError::fail(format!(
                    "mesh \"{}\" seed {:?}: {difference}\nrepeat: cargo test -p promises --test promises \
                     random_programs",
                    way.mesh, way.seed
                ))),
            }
        },
    );
    if let Err(error) = outcome {
        panic!("{error}");
    }
}
