//! The law of the text form on random programs: what there is of a window after each pass is read as it was, and the
//! other passes make the same plan of it.

use burn_dist_door::Registered;

use super::Nameless;
use super::regions::{MESHES, device, program};
use crate::plan::explain::Ask;
use crate::plan::{PASSES, Regions};
use crate::record::{explained, start_explaining};

#[test]
#[cfg_attr(burn_021, ignore = "long, and the same source on the current line")]
fn windows_are_read_as_they_were() {
    for seed in 0..16 {
        let axes = MESHES[seed as usize % MESHES.len()];
        let regions = [Regions::On, Regions::Off, Regions::Flex][seed as usize % 3];
        let device = device(axes, (seed % 2 > 0).then_some(seed), regions);
        let ask = Ask {
            checks_form: true,
            ..Ask::default()
        };
        start_explaining::<Registered>(&device, ask);
        program::<Nameless>(seed, &device);
        let texts = explained::<Registered>(&device).after;
        let count = texts.len();
        assert!(
            count >= PASSES.len() && count.is_multiple_of(PASSES.len()),
            "program {seed}: {count}"
        );
    }
}
