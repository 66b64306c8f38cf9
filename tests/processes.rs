//! The same program in several processes: each records it, and runs its own ranks.
//!
//! Processes are threads with a world each ([`World::simulated`]); their messages take the way of those between real
//! ones, but for the last step.

use burn::tensor::{Tensor, TensorData};
use burn_dist::LocalParts;
use burn_dist::launch::World;

use promises::transformer::run::{STEPS, assert_alike, builder, train};
use promises::transformer::sequence_parallel;
use promises::transformer::worlds::in_processes;

one_thread::one_thread!();

#[test]
fn processes_have_the_bits_of_one() {
    for (axes, processes) in [
        ("fsdp=4", [2, 4].as_slice()),
        ("fsdp=2,tp=2", &[2, 4]),
        ("dp=3", &[3]),
    ] {
        let expected = train(builder(axes), &sequence_parallel());
        assert!(expected.losses[STEPS - 1] < 0.95 * expected.losses[0]);
        for &num in processes {
            let runs = in_processes(num, |world| {
                train(builder(axes).world(world), &sequence_parallel())
            });
            for (process, run) in runs.iter().enumerate() {
                let what = format!("{axes} in process {process} of {num}");
                assert_alike(run, &expected, &what);
            }
        }
    }
}

/// Stages in processes of their own: what one sends crosses between processes, and all learn what is read.
#[test]
fn stages_in_processes_have_the_bits_of_one() {
    let plan = || {
        let plan = sequence_parallel().first("embedding").stages("blocks");
        plan.last("norm").last("output")
    };
    let expected = train(builder("fsdp=2"), &plan());
    for num in [2, 4] {
        let runs = in_processes(num, |world| {
            train(builder("pp=2,fsdp=2").world(world), &plan())
        });
        for (process, run) in runs.iter().enumerate() {
            let what = format!("process {process} of {num}");
            assert_alike(run, &expected, &what);
        }
    }
}

#[test]
fn parts_are_those_of_the_ranks_here() {
    in_processes(2, |world| {
        let first = 2 * world.process() as u32;
        let mesh = builder("fsdp=4").world(world).build().expect("a mesh");
        let device = mesh.device().autodiff();
        let part = |rank: u32| TensorData::from([rank as f32; 2]);
        let parts = vec![part(first), part(first + 1)];
        let x =
            Tensor::<1>::from_local(parts, &[8], "[{fsdp}]", &device).expect("two parts of four");
        let sum: f32 = x.clone().sum().into_scalar();
        assert_eq!(sum, 12.0);
        let mine = x
            .to_local(burn_dist::mesh::Rank(first + 1))
            .expect("it lives here");
        assert_eq!(mine, TensorData::from([first as f32 + 1.0; 2]));
        let error = x
            .to_local(burn_dist::mesh::Rank((first + 2) % 4))
            .expect_err("it lives elsewhere");
        assert!(error.to_string().contains("another process"), "{error}");
        // The other process may still need what is here.
        let _ = x.into_data();
    });
}

#[test]
fn programs_that_diverge_end_with_both_names() {
    let errors = in_processes(2, |world| {
        let process = world.process();
        let mesh = builder("dp=2").world(world).build().expect("a mesh");
        let x = Tensor::<2>::ones([4, 6], &mesh.device().autodiff());
        // One process sums what the other multiplies.
        let result = match process {
            0 => x.sum().try_into_data(),
            _ => x.prod().try_into_data(),
        };
        result.expect_err("the programs differ").to_string()
    });
    for error in errors {
        assert!(error.contains("sum") && error.contains("prod"), "{error}");
    }
}

#[test]
fn processes_that_read_other_tensors_of_one_shape_are_told() {
    let errors = in_processes(2, |world| {
        let process = world.process();
        let mesh = builder("dp=2").world(world).build().expect("a mesh");
        let x = Tensor::<2>::ones([4, 6], &mesh.device().autodiff());
        let both = [x.clone() + 1.0, x + 2.0];
        let total = (both[0].clone() + both[1].clone()).sum();
        assert_eq!(total.into_scalar::<f32>(), 5.0 * 24.0);
        // As Burn does with what it keeps in a hash map.
        let read = both[process].clone().try_into_data();
        read.expect_err("the programs differ").to_string()
    });
    for error in errors {
        assert!(error.contains("data or tensors"), "{error}");
    }
}

#[test]
fn ranks_that_cannot_be_shared_out_are_an_error() {
    for world in World::simulated(2) {
        let error = builder("fsdp=3")
            .world(world)
            .build()
            .expect_err("3 over 2")
            .to_string();
        assert!(
            error.contains("fsdp=3") && error.contains("2 processes"),
            "{error}"
        );
    }
}
