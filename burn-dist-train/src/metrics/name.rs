//! Names of figures, each in a group, by which TensorBoard shows them, and with its unit last.

/// The loss of a step's rows, the mean over the positions that are learnt, before the step.
pub const TRAIN_LOSS: &str = "train/loss";
/// The loss of the rows that are held out, the mean over all of their positions that are learnt, after the step.
pub const VALIDATION_LOSS: &str = "validation/loss";
/// The L2 norm of all gradients of a step together, before they are clipped.
pub const GRADIENT_NORM: &str = "train/gradient_norm";
/// The learning rate of a step.
pub const LEARNING_RATE: &str = "train/learning_rate";
/// Positions of a step's rows, over the time of the step.
pub const TOKENS_PER_SECOND: &str = "time/tokens_per_second";
/// Flops of the model's products in a step, each counted once, as a share of what all devices do in its time at their
/// peak.
pub const MFU_PERCENT: &str = "time/mfu_percent";
/// The same flops over the time of the step, in all ranks together.
pub const MODEL_TFLOPS: &str = "time/model_tflops_per_second";
/// From the batch to the loss on the host.
pub const STEP_MS: &str = "time/step_ms";
/// The part of it that a rank spends in operations: the mean over ranks.
pub const COMPUTING_MS: &str = "time/computing_ms";
/// In which data of a rank's collectives moves: the mean over ranks.
pub const COMMUNICATING_MS: &str = "time/communicating_ms";
/// In which communication keeps a rank from computing: the mean over ranks.
pub const EXPOSED_MS: &str = "time/exposed_ms";
/// In which the program waits for the next batch.
pub const WAITING_FOR_DATA_MS: &str = "time/waiting_for_data_ms";
/// The time of validation.
pub const VALIDATION_MS: &str = "time/validation_ms";
/// The most that a rank has held at once so far: of the fullest rank.
pub const PEAK_BYTES: &str = "memory/peak_bytes";
/// The most host memory that offloaded tensors of a rank have taken so far.
pub const HOST_PEAK_BYTES: &str = "memory/host_peak_bytes";

/// The most of a class of memory that the fullest rank has held so far: `memory/optimizer_bytes`.
pub fn memory_bytes(class: &str) -> String {
    format!("memory/{class}_bytes")
}

/// The share of the work of a step that ranks along an axis do more than once: `redundancy/tp_percent`.
pub fn redundancy_percent(axis: &str) -> String {
    format!("redundancy/{axis}_percent")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Groups, each a section of TensorBoard.
    const GROUPS: [&str; 5] = ["train", "validation", "time", "memory", "redundancy"];

    #[test]
    fn every_figure_has_a_group() {
        // All constants of this file: a new one is here without anybody's doing.
        let source = include_str!("name.rs");
        let constants = source.lines().filter(|line| line.starts_with("pub const "));
        let text = |line: &str| line.split('"').nth(1).map(String::from);
        let mut names: Vec<String> = constants.map(|line| text(line).expect("a text")).collect();
        assert!(names.contains(&TRAIN_LOSS.to_string()), "{names:?}");
        names.extend([memory_bytes("other"), redundancy_percent("tp")]);
        for name in names {
            let (group, figure) = name.split_once('/').unwrap_or_default();
            assert!(GROUPS.contains(&group), "{name}");
            assert!(!figure.is_empty() && !figure.contains('/'), "{name}");
        }
    }
}
