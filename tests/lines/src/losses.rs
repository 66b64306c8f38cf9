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
