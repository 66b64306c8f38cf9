//! Several processes in one.

use burn_dist::launch::World;

/// Runs `program` once per process and returns what each gives.
pub fn in_processes<T: Send>(num: usize, program: impl Fn(World) -> T + Sync) -> Vec<T> {
    let program = &program;
    std::thread::scope(|scope| {
        let threads: Vec<_> = World::simulated(num)
            .into_iter()
            .map(|world| scope.spawn(move || program(world)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no process panics"))
            .collect()
    })
}
