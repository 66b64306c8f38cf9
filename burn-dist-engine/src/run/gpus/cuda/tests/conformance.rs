//! Collectives between ranks with a GPU each give the bits of those through the host: within a process, and between
//! processes, each of which is threads here with a world of their own.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use burn_backend::DType;
use burn_std::future::block_on;

use crate::backend::Cuda;
use crate::burn::data::*;
use crate::comm::{CommError, Communicator, LocalOptions, World};
use crate::ops::dtype::to_burn;
use crate::ops::execute::{from_data, into_data};
use crate::plan::task::CollectiveTask;
use crate::run::bridge::{self, Groups};
use crate::run::device_comm::DeviceComm;
use crate::run::device_exchange::tests::{Results, every_task_of, values};
use crate::run::gpus::connect;
use crate::run::turn::Turn;
use burn_cubecl::cubecl::cuda::CudaDevice;
use burn_dist_gpu::{GpuTransport, Reduction};

const PATIENT: Duration = Duration::from_secs(60);

/// One test at a time: of two programs that talk with NCCL on the same GPUs, each may wait for a GPU that the other has.
static GPUS: Mutex<()> = Mutex::new(());

/// The element types of the tasks: those that kernels are compiled for. The others are moved and added up by the same
/// code.
const DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::I32];

/// Runs the tasks of all ranks of some processes, each rank on a GPU of its own.
fn run(
    tasks: &[Vec<CollectiveTask>],
    num_ranks: usize,
    processes: usize,
    transport: GpuTransport,
) -> Vec<Results> {
    let options = || LocalOptions {
        timeout: PATIENT,
        ..LocalOptions::default()
    };
    let each = num_ranks / processes;
    let worlds = World::simulated(processes).into_iter().enumerate();
    let ranks = worlds.flat_map(|(process, world)| {
        let hosts = world.connect(num_ranks, options()).expect("a world");
        let hosts = hosts.into_iter();
        let hosts: Vec<_> = hosts
            .map(|host| Arc::new(host) as Arc<dyn Communicator>)
            .collect();
        let first = process * each;
        let devices: Vec<_> = (first..first + each).map(CudaDevice::new).collect();
        let gpus: Vec<_> = match transport {
            GpuTransport::Host => (0..each).map(|_| None).collect(),
            _ => {
                let how = (transport, Reduction::InOrder);
                let gpus = connect::<Cuda>(&devices, how, PATIENT, &hosts).expect("CUDA");
                gpus.into_iter().map(Some).collect()
            }
        };
        let alone = Some(vec![true; num_ranks]);
        let turns = Turn::assign_part::<Cuda>(&devices, false, first, num_ranks, alone);
        let turns = turns.expect("a thread for a number").into_iter();
        hosts.into_iter().zip(gpus).zip(turns).zip(devices)
    });
    let ranks: Vec<_> = ranks.collect();
    std::thread::scope(|scope| {
        let ranks = ranks.into_iter().map(|(((host, gpus), turn), device)| {
            scope.spawn(move || {
                let comm = DeviceComm::<Cuda>::new(host, gpus, turn.clone(), device.clone());
                let mut groups = Groups::default();
                let mine = tasks.iter().flatten().enumerate();
                let mine = mine.filter(|(_, task)| task.group[task.index] == comm.rank());
                let results = mine.map(|(number, task)| {
                    let place = (&turn, &device);
                    let result = turn.work(|| one(task, number, &comm, &mut groups, place));
                    result.map_err(|error| {
                        comm.abort(error.clone());
                        error.to_string()
                    })
                });
                let results = results.collect();
                comm.close();
                results
            })
        });
        let ranks: Vec<_> = ranks.collect();
        let ranks = ranks.into_iter().map(|rank| rank.join().expect("no panic"));
        ranks.collect()
    })
}

/// Runs a task and returns the bytes of its result, in which one NaN is like another: CUDA and the host each have bits of
/// their own for it.
fn one(
    task: &CollectiveTask,
    number: usize,
    comm: &DeviceComm<Cuda>,
    groups: &mut Groups,
    (turn, device): (&Turn, &CudaDevice),
) -> Result<Vec<u8>, CommError> {
    let input = from_data::<Cuda>(values(task, number), device);
    let started = bridge::start::<Cuda>(task, input, comm, groups, None)?;
    let output = started.wait::<Cuda>(task, turn, device)?;
    comm.land()?;
    let shape = task.to_shape.clone().into();
    let data = block_on(into_data::<Cuda>(output, shape, to_burn(task.dtype)));
    let mut bytes = data.expect("a tensor").bytes().to_vec();
    let (size, infinity) = match to_burn(task.dtype) {
        DType::F32 => (4, f32::INFINITY.to_bits()),
        DType::BF16 => (2, f32::INFINITY.to_bits() >> 16),
        _ => return Ok(bytes),
    };
    for element in bytes.chunks_exact_mut(size) {
        let bits = element.iter().rev();
        let bits = bits.fold(0, |bits, byte| bits << 8 | u32::from(*byte));
        let sign = 1 << (8 * size - 1);
        if bits & !sign > infinity {
            element.fill(0xff);
        }
    }
    Ok(bytes)
}

/// Compares every so many of all tasks of these groups, by each transport, with the ranks in so many processes.
fn compare(num_ranks: usize, groups: &[&[u32]], every: usize, processes: &[usize]) {
    let _alone = GPUS.lock().unwrap_or_else(PoisonError::into_inner);
    let all = every_task_of(groups).into_iter();
    let all = all.filter(|tasks| DTYPES.contains(&to_burn(tasks[0].dtype)));
    let all: Vec<_> = all.step_by(every).collect();
    let host = run(&all, num_ranks, 1, GpuTransport::Host);
    let mut compared = 0;
    for transport in [
        GpuTransport::Auto,
        GpuTransport::Nccl,
        GpuTransport::Workspace,
    ] {
        for &processes in processes {
            let found = run(&all, num_ranks, processes, transport);
            for (rank, (found, host)) in found.iter().zip(&host).enumerate() {
                for (at, (found, host)) in found.iter().zip(host).enumerate() {
                    let place =
                        format!("{transport:?}, {processes} processes, rank {rank}, task {at}");
                    let host = host
                        .as_ref()
                        .unwrap_or_else(|error| panic!("{place}: {error}"));
                    assert_eq!(found.as_ref(), Ok(host), "{place}");
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 1000, "{compared}");
}

#[test]
#[ignore = "needs 2 NVIDIA GPUs and NCCL"]
fn collectives_of_two_gpus_give_the_bits_of_the_host() {
    compare(2, &[&[0, 1], &[1, 0]], 5, &[1, 2]);
}

#[test]
#[ignore = "needs 8 NVIDIA GPUs and NCCL"]
fn collectives_of_eight_gpus_give_the_bits_of_the_host() {
    let groups: [&[u32]; 4] = [
        &[0, 1, 2, 3, 4, 5, 6, 7],
        &[7, 2, 5],
        &[6, 4, 1, 3],
        &[0, 2],
    ];
    compare(8, &groups, 17, &[1, 4]);
}
