//! Several processes.

use super::prelude::*;
use super::run::*;

#[test]
fn processes_save_together_and_load_their_own() {
    let adam = || AdamWConfig::new().init();
    for (axes, other) in [
        ("fsdp=2", "fsdp=4"),
        ("pp=2,fsdp=2", "tp=2,dp=2"),
        ("dp=2,tp=2", "pp=2"),
    ] {
        let (one, several) = (directory(), directory());
        begin(axes, adam(), [one.path(), several.path()]);
        let expected = Run::start(builder(axes), one.path(), adam())
            .train(HALF)
            .save();
        let runs = in_processes(2, |world| {
            let mut run =
                Run::start(builder(axes).world(world), several.path(), adam()).train(HALF);
            let state = run.state();
            let saving = run.checkpoints.save_in_background(4, state).unwrap();
            saving.wait().unwrap();
            run.losses
        });
        assert_eq!(runs, [expected.losses.clone(), expected.losses]);
        assert_equal(several.path(), one.path(), axes);
        let found = in_processes(2, |world| {
            let run = Run::start(builder(other).world(world), several.path(), adam()).train(HALF);
            run.losses
        });
        let expected = Run::start(builder(axes), one.path(), adam())
            .train(HALF)
            .losses;
        found
            .iter()
            .for_each(|found| close(found, &expected, other));
    }
}

#[test]
fn what_one_process_cannot_write_none_has_saved() {
    let results = in_processes(2, |world| {
        let storage = MemoryStorage::new();
        let process = world.process();
        let mesh = builder("fsdp=2").world(world).build().unwrap();
        let net = Net::new(BLOCKS, &mesh.device().autodiff());
        let files = Checkpoints::on(Arc::new(storage.clone()), "/run");
        let mut checkpoints = Checkpointer::with(files, &mesh.device().autodiff()).unwrap();
        if process == 1 {
            storage.fill_at(Some(100));
        }
        let saved = checkpoints.save(1, State::new().module("model", &net));
        (
            saved.unwrap_err().to_string(),
            checkpoints.checkpoints().steps().unwrap(),
        )
    });
    let [(first, first_steps), (second, second_steps)] = &results[..] else {
        panic!("two processes");
    };
    assert!(
        first.starts_with("process 1 could not write its part of the checkpoint: "),
        "{first}"
    );
    assert!(
        second.starts_with("cannot write the file /run/.tmp-step-0000000001-"),
        "{second}"
    );
    assert!(first_steps.is_empty() && second_steps.is_empty());
}
