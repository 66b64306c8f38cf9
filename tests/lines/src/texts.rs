//! The law of the text form on a decoder: what there is of a step after each pass is read as it was, and the other passes
//! make the same plan of it.

use burn_dist::explanation::PASSES;
use burn_dist::schedule::ScheduleKind;

use super::decoder::{Case, LINES};

#[test]
fn a_step_is_read_as_it_was_after_every_pass() {
    let block = |mesh| Case {
        layers: Some(1),
        ..Case::tiny(mesh, [8, 16, 1])
    };
    let pipeline = |schedule| Case {
        schedule,
        ..Case::tiny("pp=2", [8, 16, 4])
    };
    for case in [
        block("fsdp=2"),
        block("dp=2,fsdp=2"),
        Case {
            asks_async_tp: true,
            ..block("fsdp=2,tp=2")
        },
        Case {
            per_node: Some(2),
            ..block("fsdp=4")
        },
        block("cp=2"),
        pipeline(ScheduleKind::OneFOneB),
        pipeline(ScheduleKind::ZbH1),
    ] {
        for line in LINES {
            let texts = (line.texts)(case);
            let what = format!("{} on {case:?}", line.name);
            assert_eq!(texts.len(), PASSES.len(), "{what}: a step is one window");
            let last = texts.last().expect("there are passes");
            assert!(last.contains("run [s"), "{what}: a rank computes");
        }
    }
}
