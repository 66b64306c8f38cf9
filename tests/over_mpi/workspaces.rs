//! Workspaces between real processes, of GPUs that each of them simulates for itself: descriptors, sockets, pages and
//! words are what they are between GPUs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use burn_dist::launch;
use burn_dist::mesh::DType;
use burn_dist_comm::{
    Call, Collective, CommError, Communicator, Group, LocalComm, LocalOptions, Strided,
};
use burn_dist_gpu::nccl::api::{Element, Gpu, Nccl, Op};
use burn_dist_gpu::nccl::collectives;
use burn_dist_gpu::nccl::fake::{Fake, FakeNccl};
use burn_dist_gpu::nccl::groups::Channels;
use burn_dist_gpu::peer::api::Copies;
use burn_dist_gpu::streams::machine::{Machine, SimulatedGpu};
use burn_dist_gpu::symmetric::api::Symmetric;

use super::{Records, mpirun, process, said, with_signal};

/// Bytes of a slot: calls take several rounds.
const SLOT: usize = 100;

/// How long a rank waits.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A rank, in a process of its own.
struct Ranked {
    comm: LocalComm,
    gpu: Arc<SimulatedGpu>,
    channels: Channels,
    world: Group,
}

impl Ranked {
    fn new() -> Self {
        let world = launch::world().expect("MPI").expect("several processes");
        let options = LocalOptions {
            timeout: TIMEOUT,
            ..LocalOptions::default()
        };
        let num = world.num_processes();
        let comm = world.connect(num, options).expect("a rank").remove(0);
        let machine = Machine::new(world.process() as u64);
        machine.has_neighbours.store(true, Ordering::SeqCst);
        let gpu = machine.gpu(world.process());
        gpu.attach().expect("a device");
        let nccl = Arc::new(FakeNccl(Fake::on(machine), 0)) as Arc<dyn Nccl>;
        let channels = Channels::new(nccl, gpu.clone() as Arc<dyn Gpu>, TIMEOUT)
            .copying(gpu.clone() as Arc<dyn Copies>)
            .ordered(gpu.signals().expect("a driver with everything"))
            .expect("a page of words")
            .in_process(world.process() as u8, SLOT)
            .sharing(gpu.clone() as Arc<dyn Symmetric>)
            .expect("Linux");
        Self {
            comm,
            gpu,
            channels,
            world: Group::world(num).expect("ranks"),
        }
    }

    /// Makes a call on device memory, and compares what it brings with its definition.
    fn turn(&mut self, turn: usize) -> Result<(), CommError> {
        let (num, me) = (self.world.len(), self.comm.rank().0 as usize);
        let sizes: Vec<usize> = (0..num).map(|of| (of * 90 + turn * 37) % 333).collect();
        let of = |rank: usize| -> Vec<u8> {
            let byte = |at: usize| (at * 7 + rank * 61 + turn * 29) as u8;
            (0..sizes[rank]).map(byte).collect()
        };
        let gathers = turn.is_multiple_of(2);
        let expected = match gathers {
            true => (0..num).flat_map(of).collect(),
            false => of((me + num - 1) % num),
        };
        let [send, recv] = [sizes[me], expected.len()].map(|bytes| self.gpu.alloc(bytes));
        let (send, recv) = (send.expect("memory"), recv.expect("memory"));
        // SAFETY: there is room for as many bytes, and nobody else uses them.
        unsafe { self.gpu.upload(send, &of(me)) }.expect("a copy");
        let ops = match gathers {
            true => collectives::gather(send, recv, &sizes, me, Element::U8),
            false => collectives::shift(send, recv, &sizes, 1, me),
        };
        self.call(&ops)?;
        let mut found = vec![0; expected.len()];
        // SAFETY: as above, and the call is over.
        unsafe { self.gpu.download(recv, &mut found) }.expect("a copy");
        assert_eq!(found, expected, "turn {turn}");
        for memory in [send, recv] {
            // SAFETY: the call is over.
            unsafe { self.gpu.free(memory) };
        }
        Ok(())
    }

    fn call(&mut self, ops: &[Op]) -> Result<(), CommError> {
        let parts = Strided::flat(vec![1; self.world.len()]);
        let call = Call::new(&self.world, DType::U8, Collective::AllGather(parts), None);
        let (info, element) = self.channels.record(&self.comm, call)?;
        // SAFETY: the memory is freed when the call is over, and else never.
        let launched = unsafe { self.channels.launch(&self.comm, &info, element, ops) }?;
        self.channels.finish(&self.comm, launched)
    }
}

/// Makes as many calls as `MESH` says, or calls until one fails.
#[test]
#[ignore = "a program that the tests start"]
fn program_copies_through_workspaces() {
    let turns = std::env::var("MESH")
        .ok()
        .and_then(|text| text.parse().ok());
    let mut rank = Ranked::new();
    for turn in 0..turns.unwrap_or(usize::MAX) {
        if turn == 10 {
            println!("READY {} {}", process(), std::process::id());
        }
        if let Err(error) = rank.turn(turn) {
            rank.comm.abort(error);
            let is_free = rank.channels.abort();
            let fault = rank.comm.fault().expect("published above");
            let (code, text) = (fault.exit_code(), fault.to_string().replace('\n', " "));
            println!("RESULT {} EXIT {code} free {is_free} {text}", process());
            std::process::exit(code.into());
        }
    }
    rank.channels.close(&rank.comm);
    println!("RESULT {} of {}", process(), rank.world.len());
}

#[test]
fn processes_copy_through_workspaces() {
    for processes in [2, 3] {
        let output = mpirun(
            processes,
            "workspaces::program_copies_through_workspaces",
            "60",
        );
        let said = said(&output);
        assert!(output.status.success(), "{said}");
        assert_eq!(said.matches("RESULT ").count(), processes, "{said}");
    }
}

/// No stream waits for what a process would have set: what the others hold is free soon.
#[test]
fn a_process_that_is_killed_leaves_no_stream_waiting() {
    let records = Records::new("workspaces");
    let program = "workspaces::program_copies_through_workspaces";
    let (said, elapsed) = with_signal(program, "-KILL", &records);
    assert!(elapsed < TIMEOUT, "before the time is over: {elapsed:?}");
    assert!(said.contains("has ended without a word"), "{said}");
    assert_eq!(said.matches("EXIT 75 free true").count(), 2, "{said}");
}
