//! Who speaks where several processes run the same program: the first.

use burn_dist::comm::World;

/// Whether this process prints, draws and writes files; all of them compute.
pub fn speaks() -> bool {
    // A world that cannot be reached is an error of the mesh, which says so.
    let world = World::of_launcher().ok().flatten();
    world.is_none_or(|world| world.process() == 0)
}

/// Prints a line, in the process that speaks.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => {
        if $crate::voice::speaks() {
            println!($($text)*);
        }
    };
}
