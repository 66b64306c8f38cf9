//! Windows are planned outside of the lock, and apart from the program where nobody waits for them.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use burn_backend::tensor::FloatTensor;

use super::*;

/// Called when a rule is asked for.
type Hook = Arc<dyn Fn() + Send + Sync>;

static HOOKS: Mutex<BTreeMap<u32, Hook>> = Mutex::new(BTreeMap::new());

fn hooks() -> std::sync::MutexGuard<'static, BTreeMap<u32, Hook>> {
    HOOKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Its input. Its rule, which the planner asks for, calls the hook of a test.
#[derive(Clone, Debug, PartialEq, Hash)]
struct Hooked {
    test: u32,
}

impl CustomOp for Hooked {
    const ID: &'static str = "tests.hooked";

    fn outputs(&self, inputs: &[TensorInfo]) -> Vec<TensorInfo> {
        inputs.to_vec()
    }

    fn rule(&self, shapes: &Shapes<'_>) -> OpRule {
        let hook = hooks().get(&self.test).cloned();
        hook.expect("the test has one")();
        RuleBuilder::uniform(shapes, "...").elementwise().build()
    }
}

impl Execute<Flex> for Hooked {
    fn execute(
        &self,
        inputs: Vec<CustomTensor<Flex>>,
        _: &burn_flex::FlexDevice,
    ) -> Vec<CustomTensor<Flex>> {
        inputs
    }
}

impl WithKernels for Hooked {
    fn kernels() -> Kernels<Self> {
        Kernels::of::<Flex>()
    }
}

/// Returns twice the numbers of `data`, with `hook` called when that is planned.
fn hooked(
    test: u32,
    device: &MeshDevice,
    hook: impl Fn() + Send + Sync + 'static,
) -> FloatTensor<Nameless> {
    hooks().insert(test, Arc::new(hook));
    let x = Nameless::float_from_data(TensorData::from([1.0_f32, 2.0]), device);
    let x = Nameless::float_mul_scalar(x, 2.into());
    let made = call(Hooked { test }, vec![CustomTensor::<Nameless>::Float(x)]).unwrap();
    made.into_iter().next().unwrap().into_float()
}

/// Adds up more short operations than a window of one rank has before it ends early.
fn lengthened(mut x: FloatTensor<Nameless>) -> FloatTensor<Nameless> {
    for _ in 0..2000 {
        x = Nameless::float_add_scalar(x, 1.into());
    }
    x
}

fn read(x: FloatTensor<Nameless>) -> Result<TensorData, String> {
    block_on(Nameless::float_into_data(x)).map_err(|error| error.to_string())
}

/// A loader makes its batch while another thread plans a step.
#[test]
fn threads_record_while_another_plans() {
    let patience = Duration::from_secs(60);
    for ranks in [1, 2] {
        let device = mesh(ranks).device();
        let ((begins, begun), (go_on, gate)) = (channel(), channel::<()>());
        let gate = Mutex::new(Some((begins, gate)));
        let x = hooked(1, &device, move || {
            if let Some((begins, gate)) = gate.lock().unwrap().take() {
                begins.send(()).unwrap();
                gate.recv().unwrap();
            }
        });
        std::thread::scope(|scope| {
            let reads = scope.spawn(|| read(x).unwrap());
            begun.recv_timeout(patience).expect("it is planned");
            let (done, is_done) = channel();
            let beside = scope.spawn({
                let device = device.clone();
                move || {
                    let x = Nameless::float_from_data(TensorData::from([5.0_f32]), &device);
                    let x = Nameless::float_add_scalar(x, 1.into());
                    done.send(()).unwrap();
                    x
                }
            });
            let is_done = is_done.recv_timeout(patience);
            go_on.send(()).unwrap();
            is_done.expect("no lock is held while a window is planned");
            assert_eq!(reads.join().unwrap(), TensorData::from([2.0_f32, 4.0]));
            let beside = read(beside.join().unwrap()).unwrap();
            assert_eq!(beside, TensorData::from([6.0_f32]));
        });
    }
}

/// A hook that tells which thread plans.
fn tells(names: Sender<Option<String>>) -> impl Fn() + Send + Sync {
    move || {
        let name = std::thread::current().name().map(str::to_string);
        // The test may have heard enough.
        let _ = names.send(name);
    }
}

#[test]
fn plans_that_nobody_waits_for_are_made_by_a_thread_of_their_own() {
    let device = mesh(1).device();
    let (names, planned_by) = channel();
    let x = hooked(2, &device, tells(names));
    let sums = read(lengthened(x)).unwrap();
    assert_eq!(sums, TensorData::from([2002.0_f32, 2004.0]));
    assert_eq!(planned_by.recv().unwrap().as_deref(), Some("planner"));
}

#[test]
fn plans_that_a_thread_waits_for_are_made_by_it() {
    let device = mesh(1).device();
    let (names, planned_by) = channel();
    let x = hooked(3, &device, tells(names));
    read(x).unwrap();
    let here = std::thread::current().name().map(str::to_string);
    assert_eq!(planned_by.recv().unwrap(), here);
}

#[test]
fn a_panic_where_plans_are_made_apart_is_a_fault() {
    let device = mesh(1).device();
    let x = hooked(4, &device, || panic!("a rule that panics"));
    let error = read(lengthened(x)).expect_err("nothing is planned");
    assert!(error.contains("the planner panicked"), "{error}");
}

/// It would wait for itself.
#[test]
fn a_rule_that_reads_a_tensor_of_its_mesh_is_named() {
    let device = mesh(1).device();
    let x = Nameless::float_from_data(TensorData::from([1.0_f32]), &device);
    let made = Mutex::new(Some(Nameless::float_add_scalar(x, 1.into())));
    let x = hooked(5, &device, move || {
        if let Some(made) = made.lock().unwrap().take() {
            let _ = read(made);
        }
    });
    let panic = catch_unwind(AssertUnwindSafe(|| read(x))).expect_err("it panics");
    let text = panic.downcast_ref::<&str>().copied().unwrap_or_default();
    assert!(text.contains("a rule of a custom operation"), "{text}");
}

/// Reads a tensor when it is dropped.
struct ReadsAtLast(Option<FloatTensor<Nameless>>, Sender<TensorData>);

impl Drop for ReadsAtLast {
    fn drop(&mut self) {
        if let Some(x) = self.0.take() {
            self.1.send(read(x).unwrap()).unwrap();
        }
    }
}

#[test]
fn a_read_in_a_panic_is_answered() {
    let device = mesh(2).device();
    let x = Nameless::float_from_data(TensorData::from([1.0_f32]), &device);
    let x = Nameless::float_add_scalar(x, 1.into());
    let (answer, answered) = channel();
    let panics = std::thread::spawn(move || {
        let _reads = ReadsAtLast(Some(x), answer);
        panic!("something else");
    });
    let answer = answered.recv_timeout(Duration::from_secs(60));
    assert_eq!(answer, Ok(TensorData::from([2.0_f32])));
    assert!(panics.join().is_err());
}
