//! Where the time of a rank goes: computing, communicating, waiting for communication.

use std::sync::Arc;
use std::time::{Duration, Instant};

use burn_ir::BackendIr;
use rustc_hash::FxHashMap;

use super::observer::{Observer, TaskPart};
use crate::comm::CallInfo;
use crate::mesh::{MeshShape, Rank, Topology};
use crate::plan::task::{CollectiveTask, TransferTask};

/// How a rank spent its time since the mesh was made; [`RankTimes::since`] gives that of a step.
///
/// On a backend that only queues its operations (burn-wgpu, burn-cuda), computing is the time to queue them, and a rank
/// that waits for a value waits for both.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankTimes {
    /// In tasks other than collectives.
    pub compute: Duration,
    /// In which data of this rank's collectives moved ([`Transfer`](crate::comm::Transfer)): the modelled time, if the
    /// mesh has links. Those over different axes may move at once; each counts.
    pub comm: Duration,
    /// In which this rank's thread launched collectives, waited for them or worked on them, instead of computing.
    pub exposed: Duration,
    /// The part of `exposed` in which another member had not launched the collective yet.
    pub late: Duration,
    /// The part of `exposed` in which all members had launched the collective and its data had not arrived: what a
    /// faster network would take away. What remains of `exposed` is copying, and waiting for a core where ranks have
    /// none of their own.
    pub on_wire: Duration,
    /// `comm` and `exposed` (without launches) by the mesh axes that a collective goes over.
    pub by_axes: Vec<AxesTimes>,
}

/// Communication over some axes of the mesh; see [`RankTimes`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AxesTimes {
    /// Names of the axes, joined by commas; with ` inside` or ` between` for the stages of a collective over several
    /// nodes.
    pub axes: String,
    /// Number of collectives.
    pub calls: u64,
    /// In which data moved.
    pub comm: Duration,
    /// In which this rank's thread was kept from computing.
    pub exposed: Duration,
}

impl RankTimes {
    /// Returns what was added since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let by_axes = self.by_axes.iter().map(|now| {
            let then = earlier.by_axes.iter().find(|then| then.axes == now.axes);
            let then = then.cloned().unwrap_or_default();
            AxesTimes {
                axes: now.axes.clone(),
                calls: now.calls.saturating_sub(then.calls),
                comm: now.comm.saturating_sub(then.comm),
                exposed: now.exposed.saturating_sub(then.exposed),
            }
        });
        Self {
            compute: self.compute.saturating_sub(earlier.compute),
            comm: self.comm.saturating_sub(earlier.comm),
            exposed: self.exposed.saturating_sub(earlier.exposed),
            late: self.late.saturating_sub(earlier.late),
            on_wire: self.on_wire.saturating_sub(earlier.on_wire),
            by_axes: by_axes.filter(|axes| axes.calls > 0).collect(),
        }
    }
}

/// The clock of one rank.
pub(super) struct Clock {
    mesh: Arc<MeshShape>,
    topology: Topology,
    times: RankTimes,
    busy: Duration,
    /// Index into `times.by_axes` of each group.
    groups: FxHashMap<Arc<[Rank]>, usize>,
}

impl Clock {
    pub(super) fn new(mesh: Arc<MeshShape>, topology: Topology) -> Self {
        Self {
            mesh,
            topology,
            times: RankTimes::default(),
            busy: Duration::ZERO,
            groups: FxHashMap::default(),
        }
    }

    /// Returns how long the rank has worked.
    pub(super) fn busy(&self) -> Duration {
        self.busy
    }

    /// Returns what it did then.
    pub(super) fn times(&self) -> RankTimes {
        RankTimes {
            compute: self.busy.saturating_sub(self.times.exposed),
            ..self.times.clone()
        }
    }

    fn index(&mut self, group: &Arc<[Rank]>) -> usize {
        if let Some(&index) = self.groups.get(group) {
            return index;
        }
        let axes = self.topology.axes_text(&self.mesh, group);
        let all = &mut self.times.by_axes;
        let index = all.iter().position(|known| known.axes == axes);
        let index = index.unwrap_or_else(|| {
            all.push(AxesTimes {
                axes,
                ..AxesTimes::default()
            });
            all.len() - 1
        });
        self.groups.insert(group.clone(), index);
        index
    }
}

impl Observer for Clock {
    fn worked(&mut self, busy: Duration) {
        self.busy += busy;
    }

    fn collective_started(&mut self, _: TaskPart, began: Instant, ended: Instant) {
        self.times.exposed += ended - began;
    }

    fn collective_finished<B: BackendIr>(
        &mut self,
        _: TaskPart,
        task: &CollectiveTask,
        _: &B::Handle,
        info: &CallInfo,
        began: Instant,
        ended: Instant,
    ) {
        self.waited(&task.group, info, began, ended);
    }

    fn received<B: BackendIr>(
        &mut self,
        _: TaskPart,
        _: &TransferTask,
        _: &B::Handle,
        info: &CallInfo,
        began: Instant,
        ended: Instant,
    ) {
        let group: Arc<[Rank]> = info.group().ranks().into();
        self.waited(&group, info, began, ended);
    }
}

impl Clock {
    /// Adds what was waited for between `began` and `ended`.
    fn waited(&mut self, group: &Arc<[Rank]>, info: &CallInfo, began: Instant, ended: Instant) {
        self.times.exposed += ended - began;
        let index = self.index(group);
        let axes = &mut self.times.by_axes[index];
        axes.calls += 1;
        axes.exposed += ended - began;
        let Some(transfer) = info.transfer() else {
            return;
        };
        axes.comm += transfer.duration();
        self.times.comm += transfer.duration();
        self.times.late += transfer.launched.saturating_duration_since(began);
        self.times.on_wire += transfer
            .end
            .saturating_duration_since(transfer.launched.max(began));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_the_difference() {
        let ms = Duration::from_millis;
        let axes = |axes: &str, calls, comm| AxesTimes {
            axes: axes.into(),
            calls,
            comm: ms(comm),
            exposed: ms(1),
        };
        let before = RankTimes {
            compute: ms(10),
            comm: ms(5),
            exposed: ms(1),
            late: ms(1),
            on_wire: ms(0),
            by_axes: vec![axes("tp", 2, 5), axes("dp", 1, 0)],
        };
        let after = RankTimes {
            compute: ms(30),
            comm: ms(12),
            exposed: ms(4),
            late: ms(1),
            on_wire: ms(2),
            by_axes: vec![axes("tp", 5, 9), axes("dp", 1, 0), axes("fsdp", 1, 3)],
        };
        let step = after.since(&before);
        assert_eq!(
            (
                step.compute,
                step.comm,
                step.exposed,
                step.late,
                step.on_wire
            ),
            (ms(20), ms(7), ms(3), ms(0), ms(2))
        );
        let calls: Vec<_> = step
            .by_axes
            .iter()
            .map(|axes| (axes.axes.as_str(), axes.calls, axes.comm))
            .collect();
        assert_eq!(calls, [("tp", 3, ms(4)), ("fsdp", 1, ms(3))]);
    }
}
