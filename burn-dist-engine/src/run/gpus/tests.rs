//! Collectives between GPUs give the bits of those through the host: on simulated ones, whose memory is Flex's.

use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::burn::data::*;
use crate::ops::dtype::{of_burn, to_burn};
use burn_backend::{DType, Shape};
use burn_flex::{Flex, FlexDevice, FlexTensor, Layout};
use burn_std::Bytes;
use burn_std::future::block_on;

use super::Gpus;
use crate::comm::{Call, Collective, CommError, Communicator, Group, Kind, Stats, Strided};
use crate::mesh;
use crate::mesh::{Rank, ReduceOp};
use crate::ops::execute::{from_data, into_data};
use crate::plan::task::CollectiveTask;
use crate::run::bridge::{self, Groups, from_flex, into_fault, to_flex};
use crate::run::device_comm::DeviceComm;
use crate::run::device_exchange::failed;
use crate::run::device_exchange::tests::{
    Moves, Results, WORLD, assert_same, every_task, tasks, values, world,
};
use crate::run::turn::Turn;
use burn_dist_gpu::Reduction;
use burn_dist_gpu::endpoint::{Memory, Placed};
use burn_dist_gpu::nccl::api::Address;
use burn_dist_gpu::nccl::fake::{Fake, Faults};
use burn_dist_gpu::nccl::groups::Channels;
use burn_dist_gpu::nccl::library;
use burn_dist_gpu::peer::api::Copies;
use burn_dist_gpu::streams::api::FlagWait;
use burn_dist_gpu::streams::machine::Machine;
use burn_dist_gpu::symmetric::api::Symmetric;

type Handle = <Flex as burn_ir::BackendIr>::Handle;

/// Flex's buffers, as device memory; its stream is the thread that computes.
struct FlexMemory {
    machine: Arc<Machine>,
    /// Tensors that calls have received.
    made: Arc<Mutex<Vec<Weak<Bytes>>>>,
}

impl FlexMemory {
    fn of(fake: &Fake) -> Self {
        Self {
            machine: fake.machine().clone(),
            made: Arc::default(),
        }
    }

    fn placed(&self, tensor: FlexTensor, dtype: DType) -> Placed<Handle> {
        let bytes = tensor.data_arc();
        let elements = tensor.layout().shape().num_elements();
        let start = tensor.layout().start_offset() * dtype.size();
        let at = Address(bytes.as_ptr().expose_provenance() as u64).plus(start);
        let held = Held {
            machine: self.machine.clone(),
            memory: at.0..at.0 + (elements * dtype.size()) as u64,
            _bytes: bytes,
        };
        Placed {
            tensor: from_flex::<Flex>(tensor, dtype).expect("it came from Flex"),
            at,
            hold: Box::new(held),
        }
    }
}

/// Stops the test if memory is let go of while a stream uses it.
struct Held {
    machine: Arc<Machine>,
    memory: Range<u64>,
    _bytes: Arc<Bytes>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let what = "a call let go of a tensor";
            self.machine.assert_unused(&self.memory, what);
        }
    }
}

impl Memory<Handle> for FlexMemory {
    fn pinned(
        &self,
        tensor: Handle,
        elements: usize,
        dtype: mesh::DType,
    ) -> Result<Placed<Handle>, CommError> {
        let dtype = to_burn(dtype);
        let tensor = to_flex::<Flex>(tensor, &[elements], dtype)
            .unwrap_or_else(|_| panic!("Flex has Flex's tensors"));
        let tensor = tensor.to_contiguous();
        assert_eq!(tensor.layout().shape().num_elements(), elements);
        Ok(self.placed(tensor, dtype))
    }

    fn fresh(&self, elements: usize, dtype: mesh::DType) -> Result<Placed<Handle>, CommError> {
        let dtype = to_burn(dtype);
        let words = vec![u128::MAX; (elements * dtype.size()).div_ceil(16)];
        let bytes = Arc::new(Bytes::from_elems(words));
        let made = &mut self.made.lock().expect("no panic");
        made.push(Arc::downgrade(&bytes));
        let layout = Layout::contiguous(Shape::from([elements]));
        Ok(self.placed(FlexTensor::from_arc(bytes, layout, dtype), dtype))
    }

    fn submit(&self) -> Result<(), CommError> {
        Ok(())
    }

    fn settle(&self) -> Result<(), CommError> {
        super::settle::<Flex>(&FlexDevice)
    }

    fn wait(&self, wait: FlagWait) -> Result<(), CommError> {
        self.machine.wait_here(wait);
        Ok(())
    }
}

/// How ranks use their GPUs.
#[derive(Clone, Copy, Debug)]
struct Use {
    /// True if the device orders calls.
    ordered: bool,
    copies: bool,
    /// True if each rank lives in a process of its own, all of which share memory.
    apart: bool,
}

const PLAIN: Use = Use {
    ordered: false,
    copies: false,
    apart: false,
};

const USES: [Use; 5] = [
    PLAIN,
    Use {
        copies: true,
        ..PLAIN
    },
    Use {
        ordered: true,
        ..PLAIN
    },
    Use {
        ordered: true,
        copies: true,
        ..PLAIN
    },
    Use {
        ordered: true,
        copies: true,
        apart: true,
    },
];

/// Bytes of a workspace: small, so that calls take several rounds.
const SLOT: usize = 40;

fn channels(fake: &Arc<Fake>, rank: Rank, timeout: Duration, by: Use) -> Channels {
    let gpu = fake.machine().gpu(rank.0 as usize);
    let process = if by.apart { rank.0 as usize } else { 0 };
    let mut channels = fake.channels(gpu.clone(), process, timeout);
    if by.copies {
        channels = channels.copying(gpu.clone() as Arc<dyn Copies>);
    }
    if by.ordered {
        let signals = gpu.signals().expect("a driver with everything");
        channels = channels.ordered(signals).expect("a page of words");
    }
    if by.apart {
        let shared = channels.in_process(process as u8, SLOT);
        let shared = shared.sharing(gpu.clone() as Arc<dyn Symmetric>);
        channels = shared.expect("Linux");
    }
    channels
}

fn gpus(
    comm: &Arc<dyn Communicator>,
    memory: FlexMemory,
    fake: &Arc<Fake>,
    (reduction, timeout, by): (Reduction, Duration, Use),
) -> Gpus<Flex> {
    let (fake, rank) = (fake.clone(), comm.rank());
    let open = move || Ok(channels(&fake, rank, timeout, by));
    Gpus::<Flex>::new(memory, open, reduction, comm.clone())
}

fn device_comm(
    comm: &Arc<dyn Communicator>,
    gpus: Option<Gpus<Flex>>,
    turn: &Turn,
) -> DeviceComm<Flex> {
    DeviceComm::new(comm.clone(), gpus, turn.clone(), FlexDevice)
}

/// The hardware that ranks run on.
#[derive(Clone, Copy)]
enum Hardware<'a> {
    Host,
    Gpus(&'a Arc<Fake>, Reduction, Use),
}

/// Runs every task of every rank; of two tasks of a group, all ranks start both before they wait for the first.
fn run(
    tasks: &[Vec<CollectiveTask>],
    hardware: Hardware,
    timeout: Duration,
) -> (Vec<Results>, Vec<Stats>) {
    let turns = Turn::assign_part::<Flex>(
        &[FlexDevice; WORLD],
        true,
        0,
        WORLD,
        Some(vec![true; WORLD]),
    );
    let turns = turns.expect("no thread is needed");
    let comms = world(WORLD);
    let results = std::thread::scope(|scope| {
        let ranks: Vec<_> = comms
            .iter()
            .zip(&turns)
            .map(|(comm, turn)| {
                let gpus = match hardware {
                    Hardware::Host => None,
                    Hardware::Gpus(fake, reduction, by) => {
                        let memory = FlexMemory::of(fake);
                        Some(gpus(comm, memory, fake, (reduction, timeout, by)))
                    }
                };
                scope.spawn(move || {
                    let mut groups = Groups::default();
                    let comm = &device_comm(comm, gpus, turn);
                    let mut results = Results::new();
                    let mut number = 0;
                    for pair in tasks.chunks(2) {
                        let mut started = Vec::new();
                        for task in pair.iter().flatten() {
                            number += 1;
                            if task.group[task.index] != comm.rank() {
                                continue;
                            }
                            let input = from_data::<Flex>(values(task, number), &FlexDevice);
                            let call = bridge::start::<Flex>(task, input, comm, &mut groups, None);
                            started.push((task, call));
                        }
                        for (task, started) in started {
                            let output = started
                                .and_then(|started| started.wait::<Flex>(task, turn, &FlexDevice));
                            if let (Ok(_), Err(fault)) = (&output, comm.land()) {
                                panic!("a result that has not come: {fault}");
                            }
                            results.push(read(output, task, comm));
                        }
                    }
                    comm.close();
                    results
                })
            })
            .collect();
        ranks
            .into_iter()
            .map(|rank| rank.join().expect("no panic"))
            .collect()
    });
    (results, comms.iter().map(|comm| comm.stats()).collect())
}

fn read(
    output: Result<Handle, CommError>,
    task: &CollectiveTask,
    comm: &dyn Communicator,
) -> Result<Vec<u8>, String> {
    let output = output.map_err(|error| {
        let fault = into_fault(error, comm.rank(), task.kind().name(), None);
        comm.abort(fault.for_others(comm.rank()));
        fault.to_string()
    })?;
    let shape = task.to_shape.clone().into();
    let data: TensorData = block_on(into_data::<Flex>(output, shape, to_burn(task.dtype)))
        .map_err(|error| error.to_string())?;
    assert_eq!(data.shape().to_vec(), task.to_shape);
    assert_eq!(of_burn(data.dtype()), task.dtype);
    Ok(data.bytes().to_vec())
}

const PATIENT: Duration = Duration::from_secs(20);

#[test]
#[cfg_attr(burn_021, ignore = "long, and the same source on the current line")]
fn in_order_gives_the_bits_of_the_host_and_counts_alike() {
    // All tasks on one use of GPUs, and on each other use every second pair of them, so that each has both ways to
    // reduce by an operation or none, and each pair two of the other uses.
    let all = every_task();
    let halves = [0, 1].map(|half| {
        let pairs = all.chunks(2).skip(half).step_by(2);
        pairs.flatten().cloned().collect::<Vec<_>>()
    });
    let [whole, even, odd] = [&all, &halves[0], &halves[1]].map(|tasks| {
        let (host, counted) = run(tasks, Hardware::Host, PATIENT);
        (tasks, host, counted)
    });
    for (by, (tasks, host, counted)) in USES.into_iter().zip([&whole, &even, &odd, &odd, &even]) {
        let fake = Fake::new();
        let (gpus, counted_here) = run(
            tasks,
            Hardware::Gpus(&fake, Reduction::InOrder, by),
            PATIENT,
        );
        assert_same(tasks, host, &gpus);
        for (here, there) in counted_here.iter().zip(counted) {
            for kind in Kind::ALL {
                assert_eq!(here.get(kind), there.get(kind), "{} {by:?}", kind.name());
            }
        }
        let open = (
            fake.open_comms(),
            fake.open_events(),
            fake.machine().open_pages(),
        );
        assert_eq!(open, (0, 0, 0), "{by:?}");
        // Only what no order of terms changes is left to NCCL.
        let calls = fake.calls_of(0);
        let moves = |call: &&String| {
            let moves = ["ncclSend", "ncclRecv", "ncclAllGather", "ncclBroadcast"];
            moves.iter().any(|name| call.starts_with(name))
        };
        assert_eq!(calls.iter().any(|call| moves(&call)), !by.copies, "{by:?}");
    }
}

#[test]
fn fast_leaves_sums_of_floats_to_nccl() {
    let group = [0, 1, 2];
    let mut all = Vec::new();
    for op in [ReduceOp::Sum, ReduceOp::Max] {
        for (kind, sizes) in [
            (Moves::Reduce(op), [2, 2, 2]),
            (Moves::Scatter(op), [2, 2, 2]),
            (Moves::Scatter(op), [3, 1, 2]),
        ] {
            all.push(tasks(kind, DType::F32, &group, &sizes, &[]));
        }
    }
    let called = |reduction| {
        let fake = Fake::new();
        let (results, _) = run(&all, Hardware::Gpus(&fake, reduction, PLAIN), PATIENT);
        assert!(results.iter().flatten().all(Result::is_ok), "{results:?}");
        let calls = fake.calls_of(0);
        let count = |name: &str| calls.iter().filter(|call| call.starts_with(name)).count();
        [
            "ncclAllReduce F32",
            "ncclReduceScatter F32",
            "ncclReduce F32",
        ]
        .map(count)
    };
    // Each task comes twice; uneven pieces are a reduction to each of three members. Extremes are folded in order
    // either way.
    assert_eq!(called(Reduction::Fast), [2, 2, 6]);
    assert_eq!(called(Reduction::InOrder), [0, 0, 0]);
}

#[test]
fn a_missing_library_is_the_ranks_error() {
    let turns = Turn::assign_part::<Flex>(&[FlexDevice; 2], true, 0, 2, Some(vec![true; 2]))
        .expect("no thread is needed");
    let comms = world(2);
    let kind = Moves::Reduce(ReduceOp::Sum);
    let all = tasks(kind, DType::F32, &[0, 1], &[1, 1], &[]);
    let task = &all[0];
    let missing = || library::find(|_| None, |_| Err("no such file".to_string()));
    let open = move || match missing() {
        Ok((_, nothing)) => {
            let nothing: std::convert::Infallible = nothing;
            match nothing {}
        }
        Err(error) => Err(CommError::from(error)),
    };
    let memory = FlexMemory::of(&Fake::new());
    let gpus = Gpus::<Flex>::new(memory, open, Reduction::InOrder, comms[0].clone());
    let comm = device_comm(&comms[0], Some(gpus), &turns[0]);
    let mut groups = Groups::default();
    // Of a later call too.
    for _ in 0..2 {
        let input = from_data::<Flex>(values(task, 0), &FlexDevice);
        let started = bridge::start::<Flex>(task, input, &comm, &mut groups, None);
        let output = started.and_then(|_| Err(failed("it started".into())));
        let error = read(output, task, &comm).expect_err("nothing to load");
        for part in [
            "rank 0 failed",
            "libnccl.so.2 (no such file)",
            "BURN_DIST_NCCL",
        ] {
            assert!(error.contains(part), "{error}");
        }
    }
    // And everyone else's.
    let fault = comms[1].fault().expect("a fault").to_string();
    assert!(fault.contains("libnccl.so.2"), "{fault}");
}

/// A call whose peer launches nothing fails. Its memory stays until the fault is known and communicators are aborted,
/// and for ever where they cannot be.
#[test]
fn memory_of_a_call_that_fails_is_released_when_the_device_has_stopped() {
    for hangs in [None, Some(("ncclCommAbort", 0))] {
        let fake = Fake::new();
        *fake.faults.lock().expect("no panic") = Faults {
            hangs,
            ..Faults::default()
        };
        let turns = Turn::assign_part::<Flex>(&[FlexDevice; 2], true, 0, 2, Some(vec![true; 2]))
            .expect("no thread is needed");
        let comms = world(2);
        let dtype = DType::F32;
        let all = tasks(Moves::Gather, dtype, &[0, 1], &[2, 2], &[]);
        let task = &all[0];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut channels = channels(&fake, Rank(1), PATIENT, PLAIN);
                let (comm, world) = (&*comms[1], Group::world(2).expect("two ranks"));
                let parts = Collective::AllGather(Strided::flat(vec![8; 2]));
                let call = Call::new(&world, of_burn(dtype), parts, None);
                let recorded = channels.record(comm, call);
                let (info, element) = recorded.expect("both are there");
                // SAFETY: no memory is used.
                let launched = unsafe { channels.launch(comm, &info, element, &[]) };
                channels.give_up(launched.expect("both are there"));
                while comm.fault().is_none() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                assert!(channels.abort(), "nothing was under way");
            });
            let memory = FlexMemory::of(&fake);
            let made = memory.made.clone();
            let how = (Reduction::InOrder, Duration::from_secs(2), PLAIN);
            let gpus = gpus(&comms[0], memory, &fake, how);
            let mut groups = Groups::default();
            let is_held = || {
                let made = made.lock().expect("no panic");
                assert_eq!(made.len(), 1);
                made[0].upgrade().is_some()
            };
            let input = from_data::<Flex>(values(task, 0), &FlexDevice);
            let turn = &turns[0];
            let comm = &device_comm(&comms[0], Some(gpus), turn);
            let started = bridge::start::<Flex>(task, input, comm, &mut groups, None);
            let output = started.and_then(|started| started.wait::<Flex>(task, turn, &FlexDevice));
            assert!(output.is_err() && comm.fault().is_none());
            assert!(is_held());
            let calls = fake.calls_of(0);
            assert!(!calls.iter().any(|call| call == "abort"), "{calls:?}");
            // Tells everyone.
            let error = read(output, task, comm).expect_err("the other one sends nothing");
            assert!(error.contains("their GPUs did not finish it"), "{error}");
            comm.end_on_device();
            assert_eq!(is_held(), hangs.is_some());
        });
        assert_eq!(fake.open_comms(), usize::from(hangs.is_some()));
    }
}

/// A peer launches nothing, and the backend of the rank that waits for it stands still. It is freed by name, in time,
/// and what it has read is no result.
#[test]
fn a_backend_that_waits_for_a_call_which_never_ends_is_freed() {
    let fake = Fake::new();
    let by = Use {
        ordered: true,
        ..PLAIN
    };
    let turns = Turn::assign_part::<Flex>(&[FlexDevice; 2], true, 0, 2, Some(vec![true; 2]))
        .expect("no thread is needed");
    let comms = world(2);
    let dtype = DType::F32;
    let all = tasks(Moves::Gather, dtype, &[0, 1], &[2, 2], &[]);
    let task = &all[0];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut channels = channels(&fake, Rank(1), PATIENT, by);
            let (comm, world) = (&*comms[1], Group::world(2).expect("two ranks"));
            let parts = Collective::AllGather(Strided::flat(vec![8; 2]));
            let call = Call::new(&world, of_burn(dtype), parts, None);
            let recorded = channels.record(comm, call);
            let (info, element) = recorded.expect("both are there");
            // SAFETY: no memory is used.
            let launched = unsafe { channels.launch(comm, &info, element, &[]) };
            channels.give_up(launched.expect("both are there"));
            while comm.fault().is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(channels.abort(), "nothing was under way");
        });
        let how = (Reduction::InOrder, Duration::from_secs(1), by);
        let gpus = gpus(&comms[0], FlexMemory::of(&fake), &fake, how);
        let mut groups = Groups::default();
        let input = from_data::<Flex>(values(task, 0), &FlexDevice);
        let turn = &turns[0];
        let comm = &device_comm(&comms[0], Some(gpus), turn);
        let started = bridge::start::<Flex>(task, input, comm, &mut groups, None);
        let output = started.and_then(|started| started.wait::<Flex>(task, turn, &FlexDevice));
        // The wait on the device has ended, by the abort of the thread beside this one.
        assert!(output.is_ok());
        let error = comm.land().expect_err("nothing has come");
        let text = error.to_string();
        assert!(text.contains("rank 0 called all_gather"), "{text}");
        assert!(text.contains("their GPUs did not finish it"), "{text}");
        comm.end_on_device();
    });
    assert_eq!((fake.open_comms(), fake.open_events()), (0, 0));
}
