//! Collectives between ranks with a GPU each give the bits of those through the host, within a process and between
//! processes.

use std::sync::Arc;
use std::time::Duration;

use burn_backend::DType;
use burn_std::future::block_on;

use crate::backend::Cuda;
use crate::comm::{CommError, Communicator, LocalOptions, World};
use crate::ops::dtype::to_burn;
use crate::ops::execute::{from_data, into_data};
use crate::plan::task::CollectiveTask;
use crate::run::bridge::{self, Groups};
use crate::run::device_comm::DeviceComm;
use crate::run::device_exchange::tests::{WORLD, every_task, values};
use crate::run::gpus::connect;
use crate::run::turn::Turn;
use burn_cubecl::cubecl::cuda::CudaDevice;
use burn_dist_gpu::{GpuTransport, Reduction};

const PATIENT: Duration = Duration::from_secs(60);

/// What a kernel is compiled for; the other element types are moved and added up by the same code.
const DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::I32];

/// Of all tasks of these types, every so many.
const EVERY: usize = 7;

type Results = Vec<Result<Vec<u8>, String>>;

/// Runs the tasks of the ranks of some processes, each rank on a GPU of its own.
fn run(tasks: &[Vec<CollectiveTask>], processes: usize, transport: GpuTransport) -> Vec<Results> {
    let options = || LocalOptions {
        timeout: PATIENT,
        ..LocalOptions::default()
    };
    let worlds = World::simulated(processes).into_iter();
    let each = WORLD / processes;
    let ranks = worlds.enumerate().flat_map(|(process, world)| {
        let hosts = world
            .connect(WORLD, options())
            .expect("a world")
            .into_iter();
        let hosts = hosts.map(|host| Arc::new(host) as Arc<dyn Communicator>);
        let hosts: Vec<_> = hosts.collect();
        let first = process * each;
        let devices: Vec<_> = (first..first + each).map(CudaDevice::new).collect();
        let gpus = match transport {
            GpuTransport::Host => (0..each).map(|_| None).collect(),
            _ => {
                let how = (transport, Reduction::InOrder);
                let gpus = connect::<Cuda>(&devices, how, PATIENT, &hosts).expect("CUDA");
                gpus.into_iter().map(Some).collect::<Vec<_>>()
            }
        };
        let alone = Some(vec![true; WORLD]);
        let turns = Turn::assign_part::<Cuda>(&devices, false, first, WORLD, alone);
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
                    let result =
                        turn.work(|| one(task, number, &comm, &mut groups, (&turn, &device)));
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

/// Runs a task and returns the bytes of its result.
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
    Ok(data.expect("a tensor").bytes().to_vec())
}

#[test]
#[ignore = "needs 4 NVIDIA GPUs and NCCL"]
fn collectives_between_gpus_give_the_bits_of_the_host() {
    let all = every_task().into_iter();
    let all = all.filter(|tasks| DTYPES.contains(&to_burn(tasks[0].dtype)));
    let all: Vec<_> = all.step_by(EVERY).collect();
    let host = run(&all, 1, GpuTransport::Host);
    let compared: usize = host.iter().map(Vec::len).sum();
    assert!(compared > 500, "{compared}");
    for transport in [GpuTransport::Auto, GpuTransport::Nccl] {
        for processes in [1, WORLD] {
            let found = run(&all, processes, transport);
            for (rank, (found, host)) in found.iter().zip(&host).enumerate() {
                for (at, (found, host)) in found.iter().zip(host).enumerate() {
                    let place =
                        format!("{transport:?}, {processes} processes, rank {rank}, task {at}");
                    let host = host
                        .as_ref()
                        .unwrap_or_else(|error| panic!("{place}: {error}"));
                    assert_eq!(found.as_ref(), Ok(host), "{place}");
                }
            }
        }
    }
}
