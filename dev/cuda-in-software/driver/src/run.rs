//! Kernels: the blocks of a grid on all cores, and the threads of a block as coroutines that meet at barriers.

use crate::access::{Accesses, How, Use};
use crate::fault::Fault;
use crate::memory;
use crate::module::Kernel;
use crate::setup::setup;
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// Threads of a warp.
pub(crate) const WARP: usize = 32;

/// Bytes of a thread's stack; pages that nothing touches take no memory.
const STACK: usize = 256 << 10;

/// Fewer threads than these run on one core.
const FEW: u64 = 2048;

/// `uint3` and `dim3`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Three {
    pub(crate) x: u32,
    pub(crate) y: u32,
    pub(crate) z: u32,
}

impl Three {
    pub(crate) fn count(self) -> u64 {
        u64::from(self.x) * u64::from(self.y) * u64::from(self.z)
    }

    fn at(self, linear: u64) -> Three {
        let (x, y) = (u64::from(self.x), u64::from(self.y));
        Three {
            x: (linear % x) as u32,
            y: (linear / x % y) as u32,
            z: (linear / x / y) as u32,
        }
    }
}

/// What the threads of a block have in common: as in `software.h`.
#[repr(C)]
struct Block {
    index: Three,
    dim: Three,
    grid: Three,
    shared: *mut u8,
    /// For each thread, what it hands to others of its warp.
    exchange: *mut [u64; 2],
}

/// A thread: as in `software.h`.
#[repr(C)]
pub(crate) struct Thread {
    index: Three,
    linear: u32,
    block: *const Block,
}

/// What kernels call: as in `software.h`.
#[repr(C)]
pub(crate) struct Driver {
    arena: u64,
    arena_bytes: u64,
    access: extern "C" fn(u64, u64, u32),
    meet: extern "C" fn(u32) -> u32,
}

pub(crate) fn driver() -> Driver {
    Driver {
        arena: memory::arena(),
        arena_bytes: memory::ARENA_BYTES,
        access: accesses,
        meet,
    }
}

/// Why a thread stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pause {
    AtWarp,
    AtBlock,
    /// Until others have had a turn.
    Again,
    /// For good.
    Failed,
}

/// What the threads of this core work at.
struct Context<'a> {
    accesses: &'a Accesses,
    uses: Vec<Arc<Use>>,
    /// The use that the last access was of.
    last: usize,
    fault: Option<Fault>,
    /// Of the thread that runs; the stack that it is on outlives the thread's turn.
    yielder: *const Yielder<u32, Pause>,
}

thread_local! {
    static CONTEXT: Cell<*mut Context<'static>> = const { Cell::new(std::ptr::null_mut()) };
}

/// Stops the thread that runs, and returns the threads of its warp that went on with it.
fn pause(context: *mut Context<'static>, why: Pause) -> u32 {
    // SAFETY: kernels call this while they run, so there is a context, and a yielder on the running stack. Other
    // threads of the block have their turns meanwhile, and set theirs.
    unsafe {
        let yielder = (*context).yielder;
        let met = (*yielder).suspend(why);
        (*context).yielder = yielder;
        met
    }
}

/// What kernels call at barriers, and where they wait for what other threads of the block change.
extern "C" fn meet(place: u32) -> u32 {
    let why = match place {
        0 => Pause::AtWarp,
        1 => Pause::AtBlock,
        _ => Pause::Again,
    };
    pause(CONTEXT.get(), why)
}

/// What kernels call before they use memory of the arena.
extern "C" fn accesses(address: u64, bytes: u64, how: u32) {
    let how = match how {
        0 => How::Read,
        1 => How::Write,
        _ => How::Atomic,
    };
    let pointer = CONTEXT.get();
    // SAFETY: kernels call this while they run, so there is a context, and no other reference to it in this thread.
    let context = unsafe { &mut *pointer };
    if let Err(fault) = context.touch(address, bytes, how) {
        context.fault.get_or_insert(fault);
        pause(pointer, Pause::Failed);
        unreachable!("a thread that failed goes on");
    }
}

impl Context<'_> {
    fn touch(&mut self, address: u64, bytes: u64, how: How) -> Result<(), Fault> {
        let covers = |of: &Arc<Use>| of.covers(address);
        if !self.uses.get(self.last).is_some_and(covers) {
            self.last = match self.uses.iter().position(covers) {
                Some(at) => at,
                None => {
                    self.uses.push(self.accesses.of(address, bytes, how)?);
                    self.uses.len() - 1
                }
            };
        }
        let of = &self.uses[self.last];
        self.accesses.touch(of, address, bytes, how)
    }
}

/// A grid to run.
pub(crate) struct Launch {
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) grid: Three,
    pub(crate) block: Three,
    pub(crate) shared_bytes: usize,
    /// The kernel's parameters, each in words of its own.
    pub(crate) parameters: Vec<Box<[u128]>>,
}

impl Launch {
    /// Runs all blocks.
    pub(crate) fn run(&self, accesses: &Accesses) -> Result<(), Fault> {
        let blocks = self.grid.count();
        let cores = match blocks * self.block.count() > FEW {
            true => thread::available_parallelism().map_or(1, usize::from),
            false => 1,
        };
        let next = AtomicU64::new(0);
        let fault = Mutex::new(None);
        let work = || {
            let mut core = Core::new(self, accesses);
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                if at >= blocks {
                    break;
                }
                // Which block is the first is nobody's promise.
                let reversed = setup().seed % 2 == 1;
                let block = if reversed { blocks - 1 - at } else { at };
                if let Err(failed) = core.block(self.grid.at(block), block) {
                    next.store(blocks, Ordering::Relaxed);
                    fault
                        .lock()
                        .expect("no panic in a kernel")
                        .get_or_insert(failed);
                }
            }
        };
        match cores.min(blocks as usize) {
            1 => work(),
            cores => thread::scope(|scope| {
                for _ in 0..cores {
                    scope.spawn(work);
                }
            }),
        }
        match fault.into_inner().expect("no panic in a kernel") {
            Some(fault) => Err(fault),
            None => Ok(()),
        }
    }
}

type Running = Coroutine<u32, Pause, (), DefaultStack>;

/// How far a thread is.
enum Lane {
    Waiting(Running, Pause),
    Ready(Option<Running>),
    Over,
}

/// A core, and what it keeps from block to block.
struct Core<'a> {
    launch: &'a Launch,
    context: Context<'a>,
    parameters: Vec<*mut c_void>,
    shared: Vec<u128>,
    exchange: Vec<[u64; 2]>,
    stacks: Vec<DefaultStack>,
}

impl<'a> Core<'a> {
    fn new(launch: &'a Launch, accesses: &'a Accesses) -> Self {
        let parameters = launch.parameters.iter();
        Core {
            launch,
            context: Context {
                accesses,
                uses: Vec::new(),
                last: 0,
                fault: None,
                yielder: std::ptr::null(),
            },
            parameters: parameters
                .map(|words| words.as_ptr().cast_mut().cast())
                .collect(),
            shared: vec![0; launch.shared_bytes.div_ceil(16)],
            exchange: vec![[0; 2]; launch.block.count() as usize],
            stacks: Vec::new(),
        }
    }

    /// Runs a block.
    fn block(&mut self, index: Three, number: u64) -> Result<(), Fault> {
        // What a block finds in shared memory is whatever was there.
        self.shared.fill(u128::MAX);
        let block = Block {
            index,
            dim: self.launch.block,
            grid: self.launch.grid,
            shared: self.shared.as_mut_ptr().cast(),
            exchange: self.exchange.as_mut_ptr(),
        };
        let threads: Vec<Thread> = (0..self.launch.block.count())
            .map(|linear| Thread {
                index: self.launch.block.at(linear),
                linear: linear as u32,
                block: &raw const block,
            })
            .collect();
        let mut lanes: Vec<Lane> = threads.iter().map(|_| Lane::Ready(None)).collect();
        // Of a lane that goes on, the lanes of its warp that met.
        let mut met = vec![0_u32; lanes.len()];
        let mut round = number ^ setup().seed;
        loop {
            // The order in which threads come to a barrier is nobody's promise.
            let turn = |at: usize, count: usize| match round % 2 {
                0 => at,
                _ => count - 1 - at,
            };
            for at in 0..lanes.len() {
                let at = turn(at, threads.len());
                if let Lane::Ready(running) = &mut lanes[at] {
                    let running = running.take();
                    lanes[at] = self.turn(running, &threads[at], met[at]);
                    if let Some(fault) = self.context.fault.take() {
                        self.abandon(lanes);
                        return Err(fault);
                    }
                }
            }
            if lanes.iter().all(|lane| matches!(lane, Lane::Over)) {
                return Ok(());
            }
            go_on(&mut lanes, &mut met);
            round = round.wrapping_add(1);
        }
    }

    /// Runs a thread until it stops or is over.
    fn turn(&mut self, running: Option<Running>, thread: &Thread, met: u32) -> Lane {
        let mut running = running.unwrap_or_else(|| self.start());
        let kernel = &self.launch.kernel;
        CONTEXT.set((&raw mut self.context).cast());
        // SAFETY: the thread is described until the block is over, and the kernel forgets it then.
        unsafe { (kernel.enter)(thread) };
        let stopped = running.resume(met);
        CONTEXT.set(std::ptr::null_mut());
        match stopped {
            CoroutineResult::Yield(why) => Lane::Waiting(running, why),
            CoroutineResult::Return(()) => {
                self.stacks.push(running.into_stack());
                Lane::Over
            }
        }
    }

    fn start(&mut self) -> Running {
        let stack = self
            .stacks
            .pop()
            .unwrap_or_else(|| DefaultStack::new(STACK).expect("a stack for a thread of a kernel"));
        let context: *mut Context<'static> = (&raw mut self.context).cast();
        let (run, parameters) = (self.launch.kernel.run, self.parameters.as_ptr());
        Coroutine::with_stack(stack, move |yielder, _| {
            // SAFETY: the context and the parameters are the core's, which outlives its coroutines. The yielder is on
            // this stack, and is looked at in this thread's turns only: after each stop, it is set again.
            unsafe {
                (*context).yielder = yielder;
                run(parameters);
            }
        })
    }

    /// Gives up all threads of a block. What they have on their stacks is C++ without destructors.
    fn abandon(&mut self, lanes: Vec<Lane>) {
        for lane in lanes {
            if let Lane::Waiting(mut running, _) | Lane::Ready(Some(mut running)) = lane {
                // SAFETY: nothing on the stack is to be dropped: the functions of this file that stop there hold
                // references and numbers.
                unsafe { running.force_reset() };
                self.stacks.push(running.into_stack());
            }
        }
    }
}

/// Lets threads go on that look again at what others change, and those whose warp has met; or else those whose block has.
fn go_on(lanes: &mut [Lane], met: &mut [u32]) {
    let is_at = |lane: &Lane, place: Pause| matches!(lane, Lane::Waiting(_, why) if *why == place);
    let any = |place| lanes.iter().any(|lane| is_at(lane, place));
    let place = match any(Pause::AtWarp) || any(Pause::Again) {
        true => Pause::AtWarp,
        false => Pause::AtBlock,
    };
    for (lanes, met) in lanes.chunks_mut(WARP).zip(met.chunks_mut(WARP)) {
        let there = (0..lanes.len()).filter(|at| is_at(&lanes[*at], place));
        let mask = there.fold(0, |mask, at| mask | 1 << at);
        for (at, lane) in lanes.iter_mut().enumerate() {
            let goes_on = mask >> at & 1 == 1 || is_at(lane, Pause::Again);
            if goes_on && let Lane::Waiting(running, _) = std::mem::replace(lane, Lane::Over) {
                *lane = Lane::Ready(Some(running));
                met[at] = mask;
            }
        }
    }
}
