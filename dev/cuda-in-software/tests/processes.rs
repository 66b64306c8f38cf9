//! NCCL between processes: each has a GPU of its own, and all collectives give what they are to give.
//!
//! The program starts itself once for each member, and says by the environment who is who.

use cuda_in_software::{Gpu, devices, filled, floats, new_stream, read};
use cudarc::driver::result::stream;
use cudarc::nccl::sys::{self, ncclComm_t, ncclUniqueId};
use std::env;
use std::mem::MaybeUninit;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Floats of each part.
const COUNT: usize = 300;

/// How often each collective runs.
const ROUNDS: usize = 5;

type Program = fn(&Member);

/// What a member does.
const PROGRAMS: &[(&str, Program)] = &[
    ("collectives", collectives),
    ("a member that is killed", killed),
];

struct Member {
    comm: ncclComm_t,
    rank: usize,
    num: usize,
}

/// Fails unless a call went well.
fn well(result: sys::ncclResult_t) {
    assert_eq!(result, sys::ncclResult_t::ncclSuccess);
}

/// What a member brings in a round.
fn values(rank: usize, round: usize, count: usize) -> Vec<f32> {
    let value = |at: usize| ((at * 7 + rank * 31 + round * 13) % 101) as f32;
    (0..count).map(value).collect()
}

fn collectives(of: &Member) {
    let Member { comm, rank, num } = *of;
    let queue = new_stream();
    let raw = queue.cast();
    let (float, sum) = (sys::ncclDataType_t::ncclFloat32, sys::ncclRedOp_t::ncclSum);
    let all = |round: usize, count| (0..num).map(move |rank| values(rank, round, count));
    let sums = |round: usize, count| {
        let added = all(round, count).reduce(|x, y| x.iter().zip(y).map(|(x, y)| x + y).collect());
        added.expect("a member")
    };
    for round in 0..ROUNDS {
        let mine = filled(&values(rank, round, COUNT)) as *const _;
        let wide = filled(&values(rank, round, COUNT * num)) as *const _;
        let [part, whole] = [floats(COUNT), floats(COUNT * num)];
        let done = |of, expected: Vec<f32>| {
            // SAFETY: the stream is there.
            unsafe { stream::synchronize(queue) }.expect("no fault");
            assert_eq!(read(of, expected.len()), Ok(expected), "round {round}");
        };
        let root = (round % num) as i32;
        // SAFETY: the memory is as long as the calls say, and lives.
        unsafe {
            well(sys::ncclAllReduce(
                mine, part as _, COUNT, float, sum, comm, raw,
            ));
            done(part, sums(round, COUNT));
            well(sys::ncclAllGather(
                mine, whole as _, COUNT, float, comm, raw,
            ));
            done(whole, all(round, COUNT).flatten().collect());
            well(sys::ncclReduceScatter(
                wide, part as _, COUNT, float, sum, comm, raw,
            ));
            let parts = sums(round, COUNT * num);
            done(part, parts[rank * COUNT..(rank + 1) * COUNT].to_vec());
            well(sys::ncclBroadcast(
                mine, part as _, COUNT, float, root, comm, raw,
            ));
            done(part, values(root as usize, round, COUNT));
            let (next, before) = ((rank + 1) % num, (rank + num - 1) % num);
            well(sys::ncclGroupStart());
            well(sys::ncclSend(mine, COUNT, float, next as i32, comm, raw));
            well(sys::ncclRecv(
                part as _,
                COUNT,
                float,
                before as i32,
                comm,
                raw,
            ));
            well(sys::ncclGroupEnd());
            done(part, values(before, round, COUNT));
        }
    }
}

/// The last member ends before its call: the others' streams wait until they give the communicator up.
fn killed(of: &Member) {
    let Member { comm, rank, num } = *of;
    if rank == num - 1 {
        std::process::abort();
    }
    let queue = new_stream();
    let (mine, whole) = (filled(&values(rank, 0, COUNT)), floats(COUNT * num));
    let float = sys::ncclDataType_t::ncclFloat32;
    // SAFETY: the memory is as long as the call says, and lives; the communicator is given up once.
    unsafe {
        well(sys::ncclAllGather(
            mine as _,
            whole as _,
            COUNT,
            float,
            comm,
            queue.cast(),
        ));
        sleep(Duration::from_millis(300));
        let waits = cudarc::driver::sys::cuStreamQuery(queue);
        assert_eq!(waits, cudarc::driver::sys::CUresult::CUDA_ERROR_NOT_READY);
        well(sys::ncclCommAbort(comm));
        stream::synchronize(queue).expect("no fault");
    }
}

/// Joins the communicator that the environment names, and does what it says.
fn member(program: &str) {
    let number = |name: &str| -> usize {
        let text = env::var(name).expect("what the parent has set");
        text.parse().expect("a number")
    };
    let (rank, num) = (number("RANK"), number("NUM"));
    let text = env::var("ID").expect("an identity");
    let mut id = ncclUniqueId { internal: [0; 128] };
    for (byte, two) in id.internal.iter_mut().zip(text.as_bytes().chunks(2)) {
        let two = str::from_utf8(two).expect("digits");
        *byte = u8::from_str_radix(two, 16).expect("digits") as _;
    }
    Gpu::open(rank as i32);
    let mut comm = MaybeUninit::uninit();
    // SAFETY: the pointer is to a handle.
    let comm = unsafe {
        well(sys::ncclCommInitRank(
            comm.as_mut_ptr(),
            num as i32,
            id,
            rank as i32,
        ));
        comm.assume_init()
    };
    let (_, body) = PROGRAMS
        .iter()
        .find(|(name, _)| *name == program)
        .expect("a program");
    body(&Member { comm, rank, num });
}

/// Runs a program with a process for each member, and says whether all ended as they are to.
fn run(name: &str, num: i32) -> bool {
    let mut id = MaybeUninit::<ncclUniqueId>::uninit();
    // SAFETY: the pointer is to an identity.
    let id = unsafe {
        well(sys::ncclGetUniqueId(id.as_mut_ptr()));
        id.assume_init()
    };
    let id: String = id
        .internal
        .iter()
        .map(|byte| format!("{:02x}", *byte as u8))
        .collect();
    let start = |rank: i32| {
        let mut program = Command::new(env::current_exe().expect("this program"));
        program
            .env("PROGRAM", name)
            .env("ID", &id)
            .stdin(Stdio::null());
        program
            .env("RANK", rank.to_string())
            .env("NUM", num.to_string());
        program.spawn().expect("a process")
    };
    let mut members: Vec<Child> = (0..num).map(start).collect();
    let begun = Instant::now();
    let mut all_well = true;
    for (rank, member) in members.iter_mut().enumerate() {
        let status = loop {
            match member.try_wait().expect("a process") {
                Some(status) => break Some(status),
                None if begun.elapsed() > Duration::from_secs(60) => break None,
                None => sleep(Duration::from_millis(5)),
            }
        };
        let is_killed = name.contains("killed") && rank as i32 == num - 1;
        match status {
            Some(status) if status.success() != is_killed => {}
            Some(status) => {
                eprintln!("{name}: member {rank} of {num}: {status}");
                all_well = false;
            }
            None => {
                eprintln!("{name}: member {rank} of {num} does not end");
                member.kill().expect("a process");
                all_well = false;
            }
        }
    }
    all_well
}

fn main() -> ExitCode {
    if let Ok(program) = env::var("PROGRAM") {
        member(&program);
        return ExitCode::SUCCESS;
    }
    let num = devices();
    let mut all_well = true;
    for (name, _) in PROGRAMS {
        // Alone, a member has nobody to be killed.
        let went_well = num < 2 && name.contains("killed") || run(name, num);
        let how = if went_well { "ok" } else { "failed" };
        println!("{num} processes, {name}: {how}");
        all_well &= went_well;
    }
    match all_well {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
