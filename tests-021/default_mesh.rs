//! The default mesh, which the environment names: of a device of Burn 0.21 alone.

use burn::backend::Flex;
use burn::tensor::{Int, Tensor, TensorData};
use burn_dist::{DTensor, DeviceMesh, Dist, MeshDevice};

use crate::in_a_process;

type B = Dist<Flex>;

fn grid(shape: [usize; 2], salt: usize) -> TensorData {
    let values: Vec<f32> = (0..shape[0] * shape[1])
        .map(|i| ((i * 37 + salt * 101) % 257) as f32 / 64.0 - 2.0)
        .collect();
    TensorData::new(values, shape)
}

/// Says what the default mesh is; the tests below run it with an environment.
#[test]
#[ignore = "a child process of the tests of the environment"]
fn child() {
    let device = MeshDevice::default();
    println!(
        "axes: {:?}",
        device.shape().expect("it is alive").to_string()
    );
    let layouts: Vec<String> = (0..12)
        .map(|salt| {
            Tensor::<B, 2>::from_data(grid([4, 6], salt), &device)
                .layout_text()
                .expect("a layout")
        })
        .collect();
    println!("layouts: {layouts:?}");
    let x = Tensor::<B, 2>::from_data([[1.0, 2.0], [3.0, 4.0]], &device);
    println!("sum: {}", x.sum().into_scalar());
}

/// Returns what the child says, and whether it succeeds.
fn in_environment(variables: &[(&str, &str)]) -> (String, bool) {
    let mut command = crate::child("default_mesh::child");
    command
        .env_remove("BURN_DIST_MESH")
        .env_remove("BURN_DIST_FUZZ_LAYOUTS")
        .envs(variables.iter().copied());
    crate::outcome(command)
}

fn line<'a>(text: &'a str, start: &str) -> &'a str {
    text.lines()
        .find(|line| line.starts_with(start))
        .unwrap_or_else(|| panic!("no line `{start}` in: {text}"))
}

#[test]
fn the_default_mesh_is_one_rank() {
    let (text, success) = in_environment(&[]);
    assert!(success, "{text}");
    assert_eq!(line(&text, "axes"), "axes: \"1\"");
    assert_eq!(line(&text, "sum"), "sum: 10");
}

#[test]
fn the_environment_gives_the_default_mesh() {
    let (text, success) = in_environment(&[("BURN_DIST_MESH", "fsdp=2,tp=2")]);
    assert!(success, "{text}");
    assert_eq!(line(&text, "axes"), "axes: \"fsdp=2,tp=2\"");
    let all: Vec<&str> = vec!["[{fsdp}, -]"; 12];
    assert_eq!(line(&text, "layouts"), format!("layouts: {all:?}"));
    assert_eq!(line(&text, "sum"), "sum: 10");
}

#[test]
fn the_environment_gives_random_layouts() {
    let variables = |seed| {
        [
            ("BURN_DIST_MESH", "fsdp=2,tp=2"),
            ("BURN_DIST_FUZZ_LAYOUTS", seed),
        ]
    };
    let (first, success) = in_environment(&variables("5"));
    assert!(success, "{first}");
    let (same, _) = in_environment(&variables("5"));
    let (other, _) = in_environment(&variables("500"));
    assert_eq!(line(&first, "layouts"), line(&same, "layouts"));
    assert_ne!(line(&first, "layouts"), line(&other, "layouts"));
    assert_eq!(line(&first, "sum"), "sum: 10");
    assert_eq!(line(&other, "sum"), "sum: 10");
}

#[test]
fn a_wrong_environment_is_named() {
    let (text, success) = in_environment(&[("BURN_DIST_MESH", "fsdp=2,fsdp=3")]);
    assert!(!success);
    assert!(
        text.contains("the default mesh cannot be made: axis `fsdp` appears twice"),
        "{text}"
    );
    let (text, success) = in_environment(&[("BURN_DIST_FUZZ_LAYOUTS", "much")]);
    assert!(!success);
    assert!(
        text.contains("BURN_DIST_FUZZ_LAYOUTS is `much`: give a whole number"),
        "{text}"
    );
    let (text, success) = in_environment(&[("BURN_DIST_REGIONS", "much")]);
    assert!(!success);
    assert!(
        text.contains("BURN_DIST_REGIONS is `much`: give on, off or flex"),
        "{text}"
    );
}

#[test]
#[ignore = "a child process: other tests use the default mesh"]
fn a_program_after_a_fault() {
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
    in_a_process("default_mesh::a_program_after_a_fault");
}
