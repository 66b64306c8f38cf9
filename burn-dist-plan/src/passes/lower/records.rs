//! Records of the collectives and transfers of a program, for people and for accounts.

use super::Lowering;
use crate::ir::{CollectiveRecord, Move, OnNodes, Op, ProgramStep, Transfer, collective};
use crate::mesh::Rank;
use crate::mesh::collective::Kind;

impl<O: Op> Lowering<'_, O> {
    /// Describes the collectives of the program, in order.
    pub(crate) fn records(&self) -> Vec<CollectiveRecord> {
        let steps = self.program.steps.iter();
        let mut shifts = self.expected.iter();
        let mut launch = self.first_launch;
        let records = steps.flat_map(|common| match common {
            common if common.may_shift() => {
                let launches = shifts.next().expect("those of all steps were found");
                let first = launch;
                launch += launches.len() as u32;
                self.shift_records(common, launches, first)
            }
            ProgramStep::Move(step) => self.record(step, None).into_iter().collect(),
            ProgramStep::Launch { group, moves } => {
                let records = moves.iter().map(|step| self.record(step, Some(*group)));
                records.flatten().collect()
            }
            ProgramStep::Send(transfer) => {
                vec![self.transfer_record(transfer, Kind::Send)]
            }
            ProgramStep::Receive(transfer) => {
                vec![self.transfer_record(transfer, Kind::Recv)]
            }
            _ => Vec::new(),
        });
        records.collect()
    }

    /// Describes a collective, or a stage of one.
    fn record(&self, moved: &Move, launch: Option<u32>) -> Option<CollectiveRecord> {
        let whole = self.whole_record(moved, launch)?;
        let split = match moved.on_nodes {
            OnNodes::OneLevel => return Some(whole),
            OnNodes::Flat(why) => {
                return Some(CollectiveRecord {
                    reason: format!("{}; flat over nodes: {why}", whole.reason),
                    spans_nodes: true,
                    ..whole
                });
            }
            OnNodes::Stage { split, .. } => split,
        };
        // Ranks differ by a chunk that is not whole: those of a node inside it, and between nodes the first is the
        // longest.
        let first = self.collective(Rank(0), moved, 0);
        let group = self.group(Rank(0), moved);
        let bytes = group
            .iter()
            .take(split.per_node)
            .map(|&rank| self.collective(rank, moved, 0).bytes());
        let spans_nodes = self.topology.spans(&first.group);
        let place = if spans_nodes { "between" } else { "inside" };
        Some(CollectiveRecord {
            kind: first.kind(),
            axes: self.topology.axes_text(self.mesh, &first.group),
            reason: format!(
                "{}; {} over {split}: {place} nodes",
                whole.reason,
                whole.kind.name()
            ),
            bytes: bytes.max().unwrap_or(0),
            members: first.group.len(),
            spans_nodes,
            ..whole
        })
    }

    /// Describes the collective that a move is, or is a stage of.
    fn whole_record(&self, moved: &Move, launch: Option<u32>) -> Option<CollectiveRecord> {
        let step = &moved.step;
        let (kind, axes) = collective(&step.kind)?;
        let dtype = self.program.slots[moved.to as usize].dtype;
        let bytes = step.bytes_max(self.mesh, dtype.size());
        let names: Vec<&str> = axes.iter().map(|&axis| self.mesh.name(axis)).collect();
        Some(CollectiveRecord {
            kind,
            axes: names.join(","),
            reason: moved.reason.to_string(),
            path: moved.path.clone(),
            shape: step.from.shape(),
            dtype,
            layouts: (
                step.from.display(self.mesh).to_string(),
                step.to.display(self.mesh).to_string(),
            ),
            bytes,
            members: self.mesh.group_size(&axes),
            spans_nodes: self.topology.spans(&self.mesh.group_of(Rank(0), &axes)),
            launch,
        })
    }

    /// Describes a transfer between two coordinates; it is the receiver that counts bytes.
    fn transfer_record(&self, transfer: &Transfer, kind: Kind) -> CollectiveRecord {
        let info = &self.program.slots[transfer.slot as usize];
        let text = info.layout.display(self.mesh).to_string();
        let bytes = info.layout.local_numel_max(self.mesh) * info.dtype.size();
        let coord = |coord: u32| self.mesh.with_coord(Rank(0), transfer.axis, coord as usize);
        let pair = [coord(transfer.from), coord(transfer.to)];
        CollectiveRecord {
            kind,
            axes: self.mesh.name(transfer.axis).to_string(),
            reason: format!("from stage rank {} to {}", transfer.from, transfer.to),
            path: transfer.path.clone(),
            shape: info.layout.shape(),
            dtype: info.dtype,
            layouts: (text.clone(), text),
            bytes: match kind {
                Kind::Recv => bytes as u64,
                _ => 0,
            },
            members: 2,
            spans_nodes: self.topology.spans(&pair),
            launch: None,
        }
    }
}
