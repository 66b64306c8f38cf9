//! A worker at its queue: it does one job after the other, and answers.

use std::sync::mpsc::Receiver;
use std::time::Instant;

use burn_backend::StreamId;
use burn_ir::BackendIr;

use super::bridge;
use super::gpus;
use super::job::Job;
use super::stats::RankStats;
use super::threads::Threads;
use super::worker::Worker;
use super::{Fault, tensors::Tensors};
use crate::plan::memory::MemoryClass;

impl<B: BackendIr> Worker<B> {
    /// Works until the queue is closed.
    pub(super) fn work(&mut self, threads: &Threads, queue: &Receiver<Job<B>>) {
        let turn = self.turn.clone();
        while let Ok(job) = queue.recv() {
            turn.work(|| threads.work(|| self.job(job)));
        }
        // Tensors are given back as they were made: in turn.
        turn.work(|| {
            self.tensors.clear();
            self.comm.close();
        });
    }

    fn job(&mut self, job: Job<B>) {
        // Whoever has stopped waiting for an answer does not need it.
        match job {
            Job::Run(run) => {
                let began = Instant::now();
                self.run(&run);
                self.tensors.observers.worked(began.elapsed());
            }
            Job::Sync(answer) => {
                let _ = answer.send(self.fault.get().map_or_else(|| self.sync(), Err));
            }
            Job::Local(id, stream, answer) => {
                // The handle leaves this rank's stream.
                let synced = match self.turn.is_queued() {
                    true => self.sync(),
                    false => Ok(()),
                };
                let local = || self.crossed(synced.and_then(|()| self.tensors.local(id))?, stream);
                let _ = answer.send(self.fault.get().map_or_else(local, Err));
            }
            Job::Put(id, handle, bytes) => match self.crossed(handle, StreamId::current()) {
                Ok(handle) => (self.tensors).keep(id, handle, bytes, MemoryClass::Other, None),
                Err(fault) => drop(self.fault.set(self.rank, fault)),
            },
            Job::Stats(answer) => {
                let _ = answer.send(self.stats());
            }
        }
    }

    /// Returns a tensor that another stream may use, and give up, without regard to the one that has made it.
    fn crossed(&self, handle: B::Handle, to: StreamId) -> Result<B::Handle, Fault> {
        gpus::crossed::<B>(handle, to).map_err(|message| Fault::Op {
            rank: self.rank,
            op: "the copy of a tensor for another stream".into(),
            path: None,
            message,
        })
    }

    fn stats(&self) -> RankStats {
        let Tensors { observers, .. } = &self.tensors;
        let (account, clock) = (observers.account.as_ref(), &observers.clock);
        RankStats {
            rank: self.rank.0,
            resident_bytes: self.tensors.kept_bytes(),
            predicted_peak_bytes: self.peak_bytes,
            peak_bytes: account.map_or(self.peak_bytes, |account| account.peak_bytes()),
            host_bytes: self.tensors.host().bytes(),
            host_peak_bytes: self.tensors.host().peak_bytes(),
            accounted: account.map(|account| account.memory()),
            at_rest_bytes: self.tensors.kept_bytes(),
            received: bridge::received(self.comm.as_ref()),
            busy: clock.busy(),
            times: clock.times(),
        }
    }

    fn sync(&self) -> Result<(), Fault> {
        self.land()?;
        B::sync(&self.tensors.device).map_err(|error| Fault::Op {
            rank: self.rank,
            op: "sync".into(),
            path: None,
            message: error.to_string(),
        })
    }
}
