//! What a rank need not make: pieces of a joined tensor that fall to other ranks, and what only those are made of.

use crate::ir::{Access, Op, Program, ProgramStep, Slot, Task, Tensor};

/// Returns which slots some rank reads, by the slot that stands for them; nothing if no tensor is joined in pieces.
pub(super) fn read_somewhere<O: Op>(program: &Program<O>, alias: &[Slot]) -> Option<Vec<bool>> {
    let in_pieces = program.steps.iter().any(|step| match step {
        ProgramStep::Local(step) => {
            let mut inputs = 0..step.inputs.len();
            inputs.any(|position| !step.in_pieces(position).is_empty())
        }
        _ => false,
    });
    if !in_pieces {
        return None;
    }
    let mut read = vec![false; alias.len()];
    for step in &program.steps {
        if let ProgramStep::Local(step) = step {
            for input in step.op.inputs() {
                if let Some(slot) = alias.get(input.id as usize) {
                    read[*slot as usize] = true;
                }
            }
        }
        if let ProgramStep::Move(_) | ProgramStep::Chunked(_) = step {
            for slot in step.reads() {
                read[alias[slot as usize] as usize] = true;
            }
        }
    }
    Some(read)
}

/// Removes the tasks whose results only other ranks read; `visit_of` has one entry per task.
pub(super) fn remove<O: Op>(
    tasks: &mut Vec<Task<O>>,
    visit_of: &mut Vec<u32>,
    num_slots: usize,
    read_somewhere: &[bool],
) {
    let mut read = vec![false; num_slots];
    let mut keep = vec![true; tasks.len()];
    for (task, keep) in tasks.iter().zip(&mut keep).rev() {
        if matches!(task, Task::Op(..) | Task::Upload(_) | Task::Random(_)) {
            *keep = false;
            task.accesses(|access| {
                if let Access::Makes(made) = access {
                    let slot = made.id as usize;
                    // What no rank reads is made as recorded.
                    *keep |= read[slot] || read_somewhere.get(slot) == Some(&false);
                }
            });
        }
        if *keep {
            task.accesses(|access| {
                if let Access::Reads { slot, .. } | Access::Leaves(Tensor { id: slot, .. }) = access
                {
                    read[slot as usize] = true;
                }
            });
        }
    }
    let mut kept = keep.iter();
    tasks.retain(|_| kept.next() == Some(&true));
    let mut kept = keep.iter();
    visit_of.retain(|_| kept.next() == Some(&true));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::form;
    use crate::toy::Toy;

    #[test]
    fn pieces_of_other_ranks_are_not_made() {
        let tasks = |text: &str| form::rank::<Toy>(text).expect("tasks").tasks;
        // Slot 1 is a piece that another rank uses, and nobody reads slot 3.
        let mut made = tasks(
            "upload %0 to s0 f32 [2]
             upload %1 to s1 f32 [2]
             run s2: f32 [2] = reshape [s0: f32 [2]] in 0
             upload %3 to s3 f32 [2]",
        );
        let mut visit_of = vec![0, 1, 2, 3];

        remove(&mut made, &mut visit_of, 4, &[true, true, false, false]);

        let left = tasks(
            "upload %0 to s0 f32 [2]
             run s2: f32 [2] = reshape [s0: f32 [2]] in 0
             upload %3 to s3 f32 [2]",
        );
        assert_eq!(made, left);
        assert_eq!(visit_of, [0, 2, 3]);
    }
}
