//! A program that records with what is registered, without planner and ranks, as a carrier below Burn has it.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use burn_backend::ops::{FloatTensorOps, IntTensorOps};
use burn_backend::{Backend, DType, DTypeUsageSet, TensorData};
use burn_dist_mesh::MeshShape;
use burn_ir::{OperationIr, TensorId, TensorIr};
use burn_std::future::block_on;

use crate::{
    Dist, Engine, Mesh, MeshDevice, Nonce, Origin, Queue, Recorder, Registered, Ticket, giving,
    register, taking,
};

type B = Dist<Registered>;

/// Calls that a recorder has noted.
#[derive(Default)]
struct Noted {
    ops: Vec<OperationIr>,
    dropped: Vec<TensorId>,
    constants: usize,
    closed: bool,
}

/// Notes everything, and knows the content of data alone.
struct Notes {
    mesh: String,
    noted: Arc<Mutex<Noted>>,
    data: HashMap<TensorId, TensorData>,
}

fn lock(noted: &Mutex<Noted>) -> MutexGuard<'_, Noted> {
    noted.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Recorder for Notes {
    fn record(&mut self, op: OperationIr) {
        lock(&self.noted).ops.push(op);
    }

    fn drop_tensor(&mut self, id: TensorId) {
        lock(&self.noted).dropped.push(id);
    }

    fn enter(&mut self, id: TensorId, data: TensorData, origin: Origin) {
        lock(&self.noted).constants += usize::from(origin == Origin::Constants);
        self.data.insert(id, data);
    }

    fn read(&mut self, tensors: Vec<TensorIr>) -> Vec<Ticket<TensorData>> {
        let answer = |tensor: TensorIr| -> Ticket<TensorData> {
            let data = self.data.get(&tensor.id).cloned();
            Box::new(move || data.ok_or_else(|| "it has not run".to_string()))
        };
        tensors.into_iter().map(answer).collect()
    }

    fn sync(&mut self) -> Ticket<()> {
        Box::new(|| Ok(()))
    }

    fn seed(&mut self, _seed: u64) {}

    fn dtype_usage(&self, _dtype: DType) -> DTypeUsageSet {
        DTypeUsageSet::default()
    }

    fn path_of(&self, _tensor: &TensorIr) -> Option<String> {
        Some(format!("a parameter of {}", self.mesh))
    }

    fn stopped(&self) -> Option<String> {
        None
    }

    fn queue(&self) -> Arc<Queue> {
        Queue::new(1 << 20, Duration::from_secs(1))
    }

    fn close(&mut self) -> Box<dyn Any + Send> {
        lock(&self.noted).closed = true;
        Box::new(())
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

type Details = Arc<Mutex<Noted>>;

/// Returns a mesh whose recorder notes what a program does.
pub(crate) fn mesh() -> Arc<Mesh> {
    register(Engine {
        open: |device| {
            let mesh = device.mesh().expect("it lives");
            Box::new(Notes {
                mesh: mesh.shape().to_string(),
                noted: mesh.details(Details::default).clone(),
                data: HashMap::new(),
            })
        },
        settings: crate::burn::host_settings,
    });
    let shape = MeshShape::parse("dp=2").expect("a mesh");
    Mesh::new(shape, Details::default()).expect("a mesh more")
}

fn message(panic: Box<dyn Any + Send>) -> String {
    panic.downcast_ref::<String>().cloned().unwrap_or_default()
}

#[test]
fn a_program_reaches_what_is_registered() {
    let mesh = mesh();
    let noted = mesh.details(Details::default).clone();
    let device = MeshDevice::from(mesh);
    let data = TensorData::from([1.0f32, 2.0]);
    let x = B::float_from_data(data.clone(), &device);
    let read = block_on(B::float_into_data(x.clone())).expect("it is data");
    assert_eq!(read, data);
    let y = B::float_add(x.clone(), x);
    assert_eq!(lock(&noted).ops.len(), 1);
    let error = block_on(B::float_into_data(y)).expect_err("nothing runs here");
    assert!(error.to_string().contains("it has not run"), "{error}");
    B::int_arange(0..3, &device, DType::I64.into());
    assert_eq!(lock(&noted).constants, 1);
    assert_eq!(lock(&noted).dropped.len(), 1);
    B::sync(&device).expect("nothing fails");
    assert!(!lock(&noted).closed);
    drop(device);
    assert!(lock(&noted).closed);
}

#[test]
fn tensors_of_two_meshes_are_refused() {
    let ones = || {
        let device = MeshDevice::from(mesh());
        let ones = B::float_ones([2].into(), &device, DType::F32.into());
        (device, ones)
    };
    let ((_here, x), (_there, y)) = (ones(), ones());
    let mixed = std::panic::catch_unwind(|| B::float_add(x, y)).expect_err("two meshes");
    let text = message(mixed);
    assert!(
        text.contains("`add` was given tensors of two meshes"),
        "{text}"
    );
}

#[test]
fn a_linear_layer_names_the_parameter_that_does_not_fit() {
    use burn_backend::ops::ModuleOps;
    let device = MeshDevice::from(mesh());
    let ones = |shape: [usize; 2]| B::float_ones(shape.into(), &device, DType::F32.into());
    let (x, weight) = (ones([4, 3]), ones([2, 5]));
    let wrong = std::panic::catch_unwind(|| B::linear(x, weight, None)).expect_err("3 is not 2");
    let text = message(wrong);
    assert!(
        text.starts_with("a parameter of dp=2: its shape is [2, 5]"),
        "{text}"
    );
}

#[test]
fn a_thread_takes_tensors_in_place_of_data_and_gives_them() {
    let mesh = mesh();
    let noted = mesh.details(Details::default).clone();
    let device = MeshDevice::from(mesh);
    let x = B::float_ones([2, 3].into(), &device, DType::F32.into());
    let id = x.clone().into_ir().id;
    let (token, nonce, taken) = taking(|| block_on(B::float_into_data(x)));
    let token = token.expect("it is not read");
    assert_eq!((nonce.index(&token), taken.len()), (Some(0), 1));
    let same = giving(taken, |nonce: Nonce| {
        B::float_from_data(nonce.token(0, 2), &device)
    });
    assert_eq!(same.into_ir().id, id);
    assert_eq!(lock(&noted).ops.len(), 1);
}
