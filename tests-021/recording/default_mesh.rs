//! A fault ends a mesh, not the process: the default device is a new mesh then.

use burn::tensor::{Int, Tensor};
use burn_dist::{DeviceMesh, MeshDevice};

use super::B;
use crate::in_a_process;

#[test]
#[ignore = "a child process: other tests use the default mesh"]
fn child() {
    let old = MeshDevice::default();
    let kept = Tensor::<B, 1>::from_floats([1.0, 2.0], &old) * 2.0;
    let wrong = kept
        .clone()
        .select(0, Tensor::<B, 1, Int>::from_ints([0, 99], &old));
    let fault = wrong
        .try_into_data()
        .expect_err("index 99 of 2")
        .to_string();
    for _ in 0..3 {
        let new = MeshDevice::default();
        assert_ne!(new, old);
        assert_eq!(new, MeshDevice::default(), "one new mesh, not one per call");
        let x = Tensor::<B, 1>::from_floats([1.0, 2.0], &new) * 3.0;
        assert_eq!(x.sum().into_scalar(), 9.0);
    }
    // What is on the old mesh still says why it stopped, also once its last device is gone.
    assert_eq!(
        kept.clone()
            .try_into_data()
            .expect_err("the fault")
            .to_string(),
        fault
    );
    drop(old);
    assert_eq!(
        kept.clone()
            .try_into_data()
            .expect_err("the fault")
            .to_string(),
        fault
    );
    let fresh = Tensor::<B, 1>::from_floats([1.0, 2.0], &MeshDevice::default());
    let mixed =
        std::panic::catch_unwind(|| Tensor::cat(vec![kept, fresh], 0)).expect_err("two meshes");
    let text = mixed.downcast_ref::<String>().expect("a message");
    assert!(
        text.contains("has stopped: rank 0 failed in select"),
        "{text}"
    );
    // A mesh that the user made is the user's: it stays stopped.
    let mesh = DeviceMesh::parse("tp=2").expect("a mesh");
    let x = Tensor::<B, 1>::from_floats([1.0, 2.0], &mesh.device());
    let wrong = x.select(0, Tensor::<B, 1, Int>::from_ints([0, 99], &mesh.device()));
    let fault = wrong
        .try_into_data()
        .expect_err("index 99 of 2")
        .to_string();
    let again = Tensor::<B, 1>::from_floats([1.0], &mesh.device()) + 1.0;
    assert_eq!(
        again.try_into_data().expect_err("the fault").to_string(),
        fault
    );
}

#[test]
fn a_default_mesh_that_a_fault_has_stopped_is_replaced() {
    in_a_process("recording::default_mesh::child");
}
