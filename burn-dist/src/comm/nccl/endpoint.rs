//! A communicator of host blocks over NCCL: staged through device memory.
//!
//! Which bytes go where is what the transport between processes uses (the [`Geometry`] of a collective, packed per
//! receiver); NCCL carries them, as bytes, in grouped sends and receives, and the host folds them in the order of the
//! group. So results are bitwise those of every other transport. Plans do not come this way: they keep tensors on the
//! device.
//!
//! Groups and lanes are independent of each other: each has a thread, a stream and a communicator of its own. Where
//! kernels of several communicators wait for each other's room on the device, NCCL may block; see the NCCL user guide,
//! "Using multiple NCCL communicators concurrently".

use super::api::{Address, DeviceError, Element, Gpu, Nccl};
use super::collectives;
use super::groups::Channels;
use crate::comm::buffer::{Buffer, Work};
use crate::comm::collective::{Collective, Strided};
use crate::comm::geometry::Geometry;
use crate::comm::info::{CallInfo, What};
use crate::comm::local::prepare_block;
use crate::comm::processes::call::chunks;
use crate::comm::processes::share::{boxes, is_reduction, localized, pack, wanted};
use crate::comm::sync::{AtomicU64, Condvar, Mutex, OnceLock, lock};
use crate::comm::{
    Block, Call, CommError, Communicator, Exchange, Group, Lane, LocalComm, Payload, Pending,
    PendingCall, Stats,
};
use crate::mesh::DType;
use crate::mesh::Rank;
use crate::mesh::ReduceOp;
use burn_std::Bytes;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Lanes of ids for transfers, which are a sequence of their own beside the collectives of the same group and lane.
const TRANSFERS: u16 = 1 << 14;

#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    group: Group,
    lane: Lane,
    is_transfer: bool,
}

struct Lines {
    /// Calls made so far.
    calls: u64,
    jobs: Sender<Job>,
    thread: JoinHandle<()>,
}

struct Job {
    info: Arc<CallInfo>,
    input: Option<Block>,
    answer: Arc<Answer>,
}

/// Where the result of a call is put.
#[derive(Default)]
struct Answer {
    result: Mutex<Option<Result<Arc<Bytes>, CommError>>>,
    ready: Condvar,
}

/// The endpoint of one rank with a GPU of its own: a [`Communicator`] whose blocks NCCL carries, staged through device
/// memory.
///
/// Results are bitwise those of a [`LocalHub`](crate::comm::LocalHub). A mesh does not need it: it keeps tensors on
/// their devices ([`GpuTransport`](crate::comm::GpuTransport)).
///
/// # Order
/// Each group and lane has a communicator of NCCL's, a stream and a thread of its own. Calls of several of them that
/// are under way at once need room for all of their kernels on each GPU; where there is none, kernels that came first
/// wait for peers whose GPUs are taken by others, until the time-out. So ranks that are members of several groups, or
/// use several lanes, make their calls in one order, the same everywhere, and wait for a call before they make the
/// next. (NCCL user guide: "Using multiple NCCL communicators concurrently".)
///
/// # Memory
/// Blocks are staged in device memory. Each group and lane keeps what its largest calls needed: the bytes sent and the
/// bytes received, each rounded up to a power of two. A call that needs more than any before waits for what the GPU
/// runs, because the driver does where it allocates.
///
/// # Processes
/// One process per GPU is the recommended shape. Ranks of one process wait for each other before and after each launch,
/// because CUDA makes their GPUs wait for each other's allocations.
pub struct NcclComm {
    /// Hands out ids, counts, records, and carries faults.
    host: Arc<LocalComm>,
    nccl: Arc<dyn Nccl>,
    gpu: Arc<dyn Gpu>,
    timeout: Duration,
    lines: Mutex<FxHashMap<Key, Lines>>,
}

#[cfg(feature = "cuda")]
impl NcclComm {
    /// Returns endpoints of ranks on GPUs with these numbers, one per rank of this process. `hosts`, their endpoints on
    /// the host, hand out ids, count, record and carry faults.
    ///
    /// # Communication
    /// None; a group meets when it first makes a call.
    /// # Errors
    /// [`CommError::NcclMissing`], [`CommError::NcclUnusable`] and [`CommError::Cuda`].
    pub fn connect(
        hosts: Vec<LocalComm>,
        gpus: &[usize],
        timeout: Duration,
    ) -> Result<Vec<Self>, CommError> {
        let nccl = super::ffi::nccl()?;
        hosts
            .into_iter()
            .zip(gpus)
            .map(|(host, &device)| {
                let gpu = super::driver::open(device).map_err(|error| CommError::Cuda {
                    device,
                    reason: format!("{} failed: {}", error.function, error.reason),
                })?;
                Ok(Self::new(host, nccl.clone(), gpu, timeout))
            })
            .collect()
    }
}

impl NcclComm {
    /// Returns the endpoint of `host`'s rank, whose blocks are staged on `gpu`.
    pub(crate) fn new(
        host: LocalComm,
        nccl: Arc<dyn Nccl>,
        gpu: Arc<dyn Gpu>,
        timeout: Duration,
    ) -> Self {
        Self {
            host: Arc::new(host),
            nccl,
            gpu,
            timeout,
            lines: Mutex::default(),
        }
    }

    fn try_start(&self, call: Call) -> Result<Pending<Arc<Bytes>>, CommError> {
        let Call {
            group,
            lane,
            label,
            dtype,
            collective,
            mut input,
            axes,
            counted: _,
        } = call;
        let rank = self.host.rank();
        let is_send = matches!(collective, Collective::Send { .. });
        let is_transfer = is_send || matches!(collective, Collective::Recv { .. });
        let what = What::Collective(dtype, collective, axes);
        let Some(member) = group.member(rank) else {
            let what = what.to_string();
            return Err(CommError::NotAMember { rank, group, what });
        };
        let num_ranks = self.host.num_ranks();
        if let Some(&rank) = group.ranks().iter().find(|r| r.0 as usize >= num_ranks) {
            return Err(CommError::NoSuchRank { rank, num_ranks });
        }
        let key = Key {
            group: group.clone(),
            lane,
            is_transfer,
        };
        let mut all = lock(&self.lines);
        let lines = all
            .entry(key.clone())
            .or_insert_with(|| self.open(&key, member));
        let info = Arc::new(CallInfo {
            rank,
            group,
            lane,
            sequence: lines.calls,
            label,
            what,
            started: Instant::now(),
            elapsed_ns: AtomicU64::new(0),
            transfer: OnceLock::new(),
        });
        lines.calls += 1;
        let (pool, _) = self.host.hub().buffers();
        let prepared = prepare_block(&info, member, &mut input, pool);
        self.host.record(&info, *prepared.as_ref().unwrap_or(&0))?;
        prepared?;
        let answer = Arc::<Answer>::default();
        let job = Job {
            info: Arc::clone(&info),
            input,
            answer: Arc::clone(&answer),
        };
        // The thread ends when the endpoint is dropped, not before.
        let _ = lines.jobs.send(job);
        drop(all);
        Ok(Pending::new(StagedCall {
            info,
            answer,
            host: Arc::clone(&self.host),
            is_send,
        }))
    }

    /// Starts the thread of a group and lane.
    fn open(&self, key: &Key, member: usize) -> Lines {
        let (jobs, queue) = channel::<Job>();
        let host = Arc::clone(&self.host);
        let offset = if key.is_transfer { TRANSFERS } else { 0 };
        let channels = Channels::new(self.nccl.clone(), self.gpu.clone(), self.timeout);
        let mut line = Line {
            channels: channels.with_id_offset(offset),
            host,
            member,
            packed: Staging::new(&self.gpu),
            arrived: Staging::new(&self.gpu),
        };
        let thread = std::thread::Builder::new()
            .name(format!("nccl {} lane {}", key.group, key.lane.0))
            .spawn(move || {
                for Job {
                    info,
                    input,
                    answer,
                } in queue
                {
                    let result = line.run(&info, input);
                    let has_failed = result.is_err();
                    match &result {
                        Ok(_) => Channels::over(&info),
                        Err(error) => line.host.abort(error.clone()),
                    }
                    *lock(&answer.result) = Some(result);
                    answer.ready.notify_all();
                    if has_failed {
                        // At last: it waits for the others, who have to know by then.
                        line.stop();
                    }
                }
                line.channels.close(line.host.as_ref());
            })
            .expect("the system can start a thread per group and lane");
        Lines {
            calls: 0,
            jobs,
            thread,
        }
    }
}

impl Drop for NcclComm {
    fn drop(&mut self) {
        // Calls that nobody waits for still take place.
        let lines = std::mem::take(&mut *lock(&self.lines));
        let threads: Vec<_> = lines.into_values().map(|lines| lines.thread).collect();
        for thread in threads {
            let _ = thread.join();
        }
    }
}

/// What the thread of a group and lane has.
struct Line {
    channels: Channels,
    host: Arc<LocalComm>,
    member: usize,
    /// What is sent.
    packed: Staging,
    /// What arrives.
    arrived: Staging,
}

impl Drop for Line {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Device memory that is kept from call to call and grows with the largest, because the driver waits for the whole
/// device where memory is allocated and freed.
struct Staging {
    gpu: Arc<dyn Gpu>,
    /// Where it is, and its bytes.
    memory: Option<(Address, usize)>,
}

impl Staging {
    fn new(gpu: &Arc<dyn Gpu>) -> Self {
        Self {
            gpu: Arc::clone(gpu),
            memory: None,
        }
    }

    /// Returns memory with room for `bytes`. What was there before is gone.
    fn room(&mut self, bytes: usize) -> Result<Address, DeviceError> {
        if bytes == 0 {
            return Ok(Address(0));
        }
        if let Some((address, room)) = self.memory
            && room >= bytes
        {
            return Ok(address);
        }
        self.free();
        let room = bytes.next_power_of_two();
        let address = self.gpu.alloc(room)?;
        self.memory = Some((address, room));
        Ok(address)
    }

    fn free(&mut self) {
        if let Some((address, _)) = self.memory.take() {
            // SAFETY: allocated by `room`. Calls that used it have been waited for; where they have been aborted and
            // may go on, it was left to the device.
            unsafe { self.gpu.free(address) };
        }
    }

    /// Leaves the memory to a device that may still use it.
    fn leave(&mut self) {
        if let Some((_, bytes)) = self.memory.take() {
            tracing::warn!(
                bytes,
                "a GPU may still use memory of a call that was aborted: it is not given back"
            );
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        self.free();
    }
}

impl Line {
    /// Ends the communicator; memory that the device may still use is left to it.
    fn stop(&mut self) {
        if !self.channels.abort() {
            self.packed.leave();
            self.arrived.leave();
        }
    }

    fn run(&mut self, info: &Arc<CallInfo>, input: Option<Block>) -> Result<Arc<Bytes>, CommError> {
        if let Some(fault) = self.host.fault() {
            return Err(fault);
        }
        let What::Collective(dtype, collective, axes) = &info.what else {
            unreachable!("only collectives are given to a line")
        };
        let k = info.group.len();
        self.channels.join(self.host.as_ref(), info)?;
        let reduction = collective
            .reduce_op()
            .map(|op| (*dtype, op, Arc::clone(axes)));
        match collective {
            Collective::AllReduce { bytes, .. } if k > 1 => {
                let parts = chunks(*bytes, *dtype, k);
                let scatter = Geometry::reduce_scattered(&parts);
                let chunk = self.round(info, &scatter, input, 0, reduction)?;
                let gather = Geometry::new(&Collective::AllGather(parts), &info.group);
                self.round(info, &gather, Some(Block::from(chunk)), 0, None)
            }
            Collective::Barrier => {
                let one = Collective::AllGather(Strided::flat(vec![1; k]));
                let mine = Block::from(Bytes::from_elems(vec![1_u8]));
                self.round(info, &Geometry::new(&one, &info.group), Some(mine), 0, None)?;
                Ok(Arc::clone(self.host.hub().buffers().1))
            }
            collective => {
                // Inputs that are handed on whole.
                let whole = match collective {
                    Collective::Broadcast { bytes, .. }
                    | Collective::Send { bytes }
                    | Collective::Recv { bytes } => *bytes,
                    _ => 0,
                };
                let geometry = Geometry::new(collective, &info.group);
                self.round(info, &geometry, input, whole, reduction)
            }
        }
    }

    /// Sends every other member what it needs of `input`, and makes this rank's output of what arrives.
    fn round(
        &mut self,
        info: &Arc<CallInfo>,
        geometry: &Geometry,
        input: Option<Block>,
        whole: usize,
        reduction: Option<(DType, ReduceOp, Arc<[usize]>)>,
    ) -> Result<Arc<Bytes>, CommError> {
        let (k, me) = (info.group.len(), self.member);
        let hub = Arc::clone(self.host.hub());
        let (pool, empty) = hub.buffers();
        let only = |member: usize| (0..k).map(|i| i == member).collect::<Vec<bool>>();
        let mine = wanted(geometry, &only(me));
        let mut inputs: Vec<Option<Block>> = vec![None; k];
        let mut packed = Vec::new();
        let (mut sends, mut recvs) = (vec![0; k], vec![0; k]);
        for other in (0..k).filter(|other| *other != me) {
            if let Some(input) = &input {
                let wanted = wanted(geometry, &only(other));
                let boxes = boxes(geometry, &wanted, me, input.len());
                let part = pack(&boxes, input, pool, empty);
                sends[other] = part.len();
                packed.extend_from_slice(part.as_slice());
            }
            let boxes = boxes(geometry, &mine, other, whole);
            recvs[other] = boxes.iter().map(|step| step.bytes()).sum();
        }
        let arrived = self.carry(info, &packed, &sends, &recvs)?;
        let mut at = 0;
        for other in (0..k).filter(|other| *other != me) {
            let bytes = &arrived[at..at + recvs[other]];
            at += bytes.len();
            inputs[other] = Some(Block::from(Buffer::copy_of(pool, bytes)));
        }
        inputs[me] = input.map(|input| match is_reduction(geometry) && k > 1 {
            true => pack(
                &boxes(geometry, &mine, me, input.len()),
                &input,
                pool,
                empty,
            ),
            false => input,
        });
        let here = localized(geometry, &only(me));
        let work = Work::new(here, reduction, inputs, pool, empty);
        while work.run_next().is_some() {}
        let output = work.output(me).expect("all of its units have run");
        Ok(Arc::clone(output))
    }

    /// Moves bytes between the members: to each its part of `packed`; returns what comes from each.
    fn carry(
        &mut self,
        info: &Arc<CallInfo>,
        packed: &[u8],
        sends: &[usize],
        recvs: &[usize],
    ) -> Result<Vec<u8>, CommError> {
        let failed = |error: DeviceError| CommError::Gpu {
            call: Arc::clone(info),
            function: error.function,
            reason: error.reason,
        };
        let mut arrived = vec![0; recvs.iter().sum()];
        let gpu = Arc::clone(self.channels.gpu());
        gpu.attach().map_err(failed)?;
        let from = self.packed.room(packed.len()).map_err(failed)?;
        let into = self.arrived.room(arrived.len()).map_err(failed)?;
        // SAFETY: there is room for as many bytes, and nobody else knows it.
        unsafe { gpu.upload(from, packed) }.map_err(failed)?;
        let ops = collectives::exchange(from, sends, into, recvs, self.member, Element::U8);
        let host = self.host.as_ref();
        // SAFETY: the memory is kept until the call has been waited for, or `stop` has ended it.
        let launched = unsafe { self.channels.launch(host, info, Element::U8, &ops) }?;
        self.channels.finish(host, launched)?;
        // SAFETY: as above, and the call is over.
        unsafe { gpu.download(into, &mut arrived) }.map_err(failed)?;
        Ok(arrived)
    }
}

impl Communicator for NcclComm {
    fn rank(&self) -> Rank {
        self.host.rank()
    }

    fn num_ranks(&self) -> usize {
        self.host.num_ranks()
    }

    fn start(&self, call: Call) -> Result<Pending<Arc<Bytes>>, CommError> {
        if let Some(fault) = self.host.fault() {
            return Err(fault);
        }
        self.try_start(call).map_err(|error| {
            self.host.abort(error.clone());
            self.host.fault().unwrap_or(error)
        })
    }

    fn exchange(
        &self,
        exchange: Exchange,
        payload: Payload,
    ) -> Result<Pending<Arc<[Payload]>>, CommError> {
        self.host.exchange(exchange, payload)
    }

    fn abort(&self, error: CommError) {
        self.host.abort(error);
    }

    fn fault(&self) -> Option<CommError> {
        self.host.fault()
    }

    fn stats(&self) -> Stats {
        self.host.stats()
    }

    fn recent_calls(&self) -> Vec<Arc<CallInfo>> {
        self.host.recent_calls()
    }

    fn record(&self, call: &Arc<CallInfo>, received: usize) -> Result<(), CommError> {
        self.host.record(call, received)
    }

    fn behind(&self, call: &CallInfo) -> Vec<Rank> {
        self.host.behind(call)
    }
}

/// A started call.
struct StagedCall {
    info: Arc<CallInfo>,
    answer: Arc<Answer>,
    host: Arc<LocalComm>,
    is_send: bool,
}

impl PendingCall<Arc<Bytes>> for StagedCall {
    fn info(&self) -> &Arc<CallInfo> {
        &self.info
    }

    fn is_ready(&self) -> bool {
        self.is_send || self.host.fault().is_some() || lock(&self.answer.result).is_some()
    }

    fn wait(self: Box<Self>) -> Result<Arc<Bytes>, CommError> {
        if self.is_send {
            // Goes on by itself: a send does not wait for its receiver.
            return match self.host.fault() {
                Some(fault) => Err(fault),
                None => Ok(Arc::clone(self.host.hub().buffers().1)),
            };
        }
        let mut result = lock(&self.answer.result);
        loop {
            match result.take() {
                // The first fault is everyone's.
                Some(Err(error)) => return Err(self.host.fault().unwrap_or(error)),
                Some(output) => return output,
                None => {
                    let waited = self.answer.ready.wait(result);
                    result = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
                }
            }
        }
    }
}
