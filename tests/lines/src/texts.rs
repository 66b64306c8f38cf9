//! The law of the text form on a decoder: what there is of a step after each pass is read as it was, and the other
//! passes make the same plan of it.

use burn_dist::explanation::PASSES;

use super::decoder::{Case, LINES};

#[test]
fn a_step_is_read_as_it_was_after_every_pass() {
    let case = Case {
        layers: Some(2),
        ..Case::tiny("fsdp=2", [2, 8, 1])
    };
    for line in LINES {
        let texts = (line.texts)(case);
        let name = line.name;
        assert_eq!(texts.len(), PASSES.len(), "{name}: a step is one window");
        let last = texts.last().expect("there are passes");
        assert!(last.contains("run [s"), "{name}: a rank computes");
    }
}
