//! Results that are not there yet.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use burn_backend::TensorData;
use burn_ir::BackendIr;

use super::Fault;
use super::fault_cell::FaultCell;
use super::host::assemble;
use super::stats::RankStats;
use crate::comm::Agreed;
use crate::mesh::{MeshShape, Rank};
use crate::plan::task::ReadPlan;

/// The content of a tensor, in transfer to the host.
#[must_use]
pub(crate) struct ReadTicket(Inner);

enum Inner {
    Done(Result<TensorData, Fault>),
    /// The ticket that there is once the window is planned.
    ToCome(Receiver<ReadTicket>),
    Pending {
        parts: Receiver<(Rank, Result<TensorData, Fault>)>,
        plan: ReadPlan,
        mesh: Arc<MeshShape>,
        agreed: Option<(Agreed, FaultCell)>,
    },
}

impl ReadTicket {
    pub(crate) fn ready(data: TensorData) -> Self {
        Self(Inner::Done(Ok(data)))
    }

    pub(crate) fn failed(fault: Fault) -> Self {
        Self(Inner::Done(Err(fault)))
    }

    /// A ticket that its window is still to be planned for.
    pub(crate) fn to_come(ticket: Receiver<ReadTicket>) -> Self {
        Self(Inner::ToCome(ticket))
    }

    pub(crate) fn pending(
        parts: Receiver<(Rank, Result<TensorData, Fault>)>,
        plan: ReadPlan,
        mesh: Arc<MeshShape>,
        agreed: Option<(Agreed, FaultCell)>,
    ) -> Self {
        Self(Inner::Pending {
            parts,
            plan,
            mesh,
            agreed,
        })
    }

    /// Waits for all parts and puts them together.
    pub(crate) fn wait(self) -> Result<TensorData, Fault> {
        match self.0 {
            Inner::Done(result) => result,
            Inner::ToCome(ticket) => match ticket.recv() {
                Ok(ticket) => ticket.wait(),
                Err(_) => Err(Fault::bug("the planner ended without an answer")),
            },
            Inner::Pending {
                parts,
                plan,
                mesh,
                agreed,
            } => {
                if let Some((agreed, fault)) = agreed {
                    let first = plan.senders.first().copied().unwrap_or(Rank(0));
                    agreed
                        .wait()
                        .map_err(|error| fault.set(first, Fault::Processes(Arc::new(error))))?;
                }
                let mut received = Vec::with_capacity(plan.senders.len());
                for _ in 0..plan.senders.len() {
                    let (rank, part) = parts
                        .recv()
                        .map_err(|_| Fault::bug("a worker ended without an answer"))?;
                    received.push((rank, part?));
                }
                Ok(assemble(&plan, &mesh, received))
            }
        }
    }
}

/// The end of all work handed out so far.
#[must_use]
pub(crate) struct SyncTicket(Result<(Receiver<Result<(), Fault>>, usize), Fault>);

impl SyncTicket {
    pub(crate) fn failed(fault: Fault) -> Self {
        Self(Err(fault))
    }

    pub(crate) fn pending(answers: Receiver<Result<(), Fault>>, ranks: usize) -> Self {
        Self(Ok((answers, ranks)))
    }

    /// Waits for every local rank.
    pub(crate) fn wait(self) -> Result<(), Fault> {
        let (answers, ranks) = self.0?;
        let mut first = Ok(());
        for _ in 0..ranks {
            let answer = answers
                .recv()
                .map_err(|_| Fault::bug("a worker ended without an answer"))?;
            if first.is_ok() {
                first = answer;
            }
        }
        first
    }
}

/// One rank's part of a tensor, in transfer.
#[must_use]
pub(crate) struct LocalTicket<B: BackendIr>(Result<Receiver<Result<B::Handle, Fault>>, Fault>);

impl<B: BackendIr> LocalTicket<B> {
    pub(crate) fn failed(fault: Fault) -> Self {
        Self(Err(fault))
    }

    pub(crate) fn pending(answer: Receiver<Result<B::Handle, Fault>>) -> Self {
        Self(Ok(answer))
    }

    /// Waits for the rank.
    pub(crate) fn wait(self) -> Result<B::Handle, Fault> {
        self.0?
            .recv()
            .map_err(|_| Fault::bug("a worker ended without an answer"))?
    }
}

/// Answers of the workers, not yet received.
pub struct StatsTicket {
    answers: Receiver<RankStats>,
    asked: usize,
}

impl StatsTicket {
    pub(crate) fn pending(answers: Receiver<RankStats>, asked: usize) -> Self {
        Self { answers, asked }
    }

    /// Waits for every local rank; in rank order.
    pub(crate) fn wait(self) -> Vec<RankStats> {
        let mut ranks: Vec<RankStats> = self.answers.iter().take(self.asked).collect();
        ranks.sort_by_key(|rank| rank.rank);
        ranks
    }
}
