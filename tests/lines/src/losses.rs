//! One model on both lines has the same losses, as far as the functions of their backends are the same.

use super::decoder::{Case, LINES};

/// Meshes, with the rows and the microbatches of a step.
const MESHES: [(&str, usize, usize); 6] = [
    ("dp=1", 12, 1),
    ("dp=2", 12, 1),
    ("fsdp=3", 12, 1),
    ("fsdp=2,tp=2", 12, 1),
    ("pp=2,fsdp=2", 12, 3),
    ("cp=2", 12, 1),
];

/// The same seed gives the same parameters, and a forward of them the same loss: within 1e-6, as exponentials and roots
/// are of other versions.
#[test]
fn the_first_loss_is_the_same() {
    for (mesh, rows, parts) in MESHES {
        let case = Case::tiny(mesh, [rows, 48, parts]);
        let [current, before] = LINES.map(|line| (line.losses)(case, 1)[0]);
        assert!(
            (current - before).abs() <= 1e-6,
            "{mesh}: {current} and {before}"
        );
    }
}

/// Prints the first and the twentieth loss of both lines, of tiny and of S: `--ignored --nocapture`.
#[test]
#[ignore = "figures: minutes"]
fn losses_of_twenty_steps() {
    for is_s in [false, true] {
        for (mesh, rows, parts) in MESHES {
            let sizes = if is_s {
                [rows, 64, parts]
            } else {
                [rows, 48, parts]
            };
            let case = Case {
                is_s,
                ..Case::tiny(mesh, sizes)
            };
            let [current, before] = LINES.map(|line| (line.losses)(case, 20));
            let first = [current[0], before[0]];
            let last = [current[19], before[19]];
            println!("S {is_s} {mesh}: first {first:?}, twentieth {last:?}");
            assert!((first[0] - first[1]).abs() <= 1e-6, "{mesh}: {first:?}");
        }
    }
}

/// Names an operation, with its results on both lines.
macro_rules! operations {
    ($($name:literal = $x:ident, $w:ident => $made:expr;)*) => {{
        let current = {
            use burn::tensor::{Device, Tensor, TensorData, activation};
            let device = Device::flex();
            let of = |shape: [usize; 2], salt| {
                Tensor::<2>::from_data(TensorData::new(numbers(shape, salt), shape), &device)
            };
            vec![$({
                #[allow(unused_variables, reason = "of one operand")]
                let ($x, $w) = (of([64, 128], 1), of([128, 128], 2));
                ($name, $made.into_data().iter::<f32>().collect::<Vec<_>>())
            },)*]
        };
        let before = {
            use burn_021::backend::Flex;
            use burn_021::tensor::{Tensor, TensorData, activation};
            let of = |shape: [usize; 2], salt| {
                let data = TensorData::new(numbers(shape, salt), shape);
                Tensor::<Flex, 2>::from_data(data, &Default::default())
            };
            vec![$({
                #[allow(unused_variables, reason = "of one operand")]
                let ($x, $w) = (of([64, 128], 1), of([128, 128], 2));
                ($name, $made.into_data().iter::<f32>().collect::<Vec<_>>())
            },)*]
        };
        (current, before)
    }};
}

fn numbers([rows, width]: [usize; 2], salt: usize) -> Vec<f32> {
    let value = |i: usize| ((i * 7919 + salt * 104_729) % 1009) as f32 / 504.5 - 1.0;
    (0..rows * width).map(value).collect()
}

/// Prints which operations of the model have other bits on one line than on the other, in the order in which a forward
/// comes to them: `--ignored --nocapture`.
#[test]
#[ignore = "figures"]
fn operations_that_differ() {
    let (current, before) = operations! {
        "mul" = x, w => x.clone() * x;
        "mean_dim" = x, w => x.mean_dim(1);
        "sqrt" = x, w => x.abs().sqrt();
        "div" = x, w => x.clone() / (x + 3.0);
        "matmul" = x, w => x.matmul(w);
        "matmul, one operand turned" = x, w => x.matmul(w.transpose());
        "cos" = x, w => x.cos();
        "sin" = x, w => x.sin();
        "silu" = x, w => activation::silu(x);
        "sigmoid" = x, w => activation::sigmoid(x);
        "max_dim" = x, w => x.max_dim(1);
        "exp" = x, w => x.exp();
        "sum_dim" = x, w => x.sum_dim(1);
        "log" = x, w => (x + 2.0).log();
        "mean" = x, w => x.mean();
        "sum_dim over rows" = x, w => x.sum_dim(0);
        "powf" = x, w => (x + 2.0).powf_scalar(0.5);
    };
    for ((name, one), (_, other)) in current.iter().zip(&before) {
        let pairs = one.iter().zip(other);
        let differ = pairs.filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        println!("{name}: {differ} of {} elements differ", one.len());
    }
}
