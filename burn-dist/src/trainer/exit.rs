//! How a program ends: its exit codes.

use std::io::{self, ErrorKind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU8, Ordering};

use super::error::{Elsewhere, SaveFailed, TooFewRows, TooLarge, Unfit};
use super::voice;
use crate::Fault;
use crate::checkpoint::{CheckpointError, StateError};
use crate::launch::CommError;
use crate::mesh::MeshError;
use crate::parallel::DTensorError;
use crate::train::files::Unwritten;
use crate::train::metrics::MetricsError;
use crate::train::run::RunError;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It did all of its work.
    Done,
    /// Ctrl-C or SIGTERM ended it early; what it had is written. With the exit code of the signal.
    Interrupted(u8),
    /// It has shown a step that its devices cannot run.
    Unfit,
}

/// Returns the exit code of a program that has ended so; an error is printed.
pub fn exit(end: anyhow::Result<End>) -> ExitCode {
    match end {
        Ok(End::Done) => ExitCode::SUCCESS,
        Ok(End::Interrupted(code)) => ExitCode::from(code),
        // As of any configuration that cannot be.
        Ok(End::Unfit) => ExitCode::from(78),
        Err(error) => {
            voice::complain(&error);
            ExitCode::from(exit_code(&error))
        }
    }
}

/// The exit code of a run whose last checkpoint, figures, report or other files could not be written: an error of input
/// or output, as `sysexits.h` numbers it.
const UNWRITTEN: u8 = 74;

/// The exit code for the fault that ended a mesh; 1, for errors of other kinds.
static EXIT_CODE: AtomicU8 = AtomicU8::new(1);

/// Notes the fault that has ended a mesh.
pub(super) fn ended_by(fault: &Fault) {
    EXIT_CODE.store(fault.exit_code(), Ordering::Relaxed);
}

/// Returns the exit code for a run that ends with `error`: what its causes mean to a scheduler, or else the fault that
/// has ended a mesh; 1, for errors of other kinds.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    let of_cause = |cause: &(dyn std::error::Error + 'static)| {
        let call = cause.downcast_ref().map(CommError::exit_code);
        // As of any configuration that cannot be.
        let misfit = cause.is::<TooLarge>() || cause.is::<TooFewRows>() || cause.is::<Unfit>();
        let memory = misfit.then_some(78);
        // The run is over, and a file of it is not all there.
        let is_full = |error: &io::Error| {
            matches!(
                error.kind(),
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
            )
        };
        let unwritten = cause.is::<SaveFailed>()
            || cause.is::<MetricsError>()
            || cause.is::<Unwritten>()
            || cause.downcast_ref().is_some_and(is_full);
        let unwritten = unwritten.then_some(UNWRITTEN);
        // As of any configuration that cannot be.
        let folder = cause.downcast_ref().map(|_: &RunError| 78);
        let taken = match cause.downcast_ref() {
            Some(StateError::Checkpoint(CheckpointError::Taken { .. })) => Some(78),
            _ => None,
        };
        let elsewhere = cause.downcast_ref().map(|at: &Elsewhere| at.exit_code);
        let fault = cause.downcast_ref().map(Fault::exit_code);
        let mesh = match cause.downcast_ref::<MeshError>() {
            Some(MeshError::Processes { exit_code, .. }) => Some(*exit_code),
            _ => None,
        };
        let tensor = match cause.downcast_ref::<DTensorError>() {
            Some(DTensorError::Fault(fault)) => Some(fault.exit_code()),
            _ => None,
        };
        call.or(fault)
            .or(mesh)
            .or(tensor)
            .or(memory)
            .or(unwritten)
            .or(folder)
            .or(taken)
            .or(elsewhere)
    };
    let told = error.chain().find_map(of_cause);
    told.unwrap_or_else(|| EXIT_CODE.load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn the_cause_decides_the_exit_code() {
        let lost = || CommError::Connection {
            reason: "the cable was pulled".into(),
        };
        assert_eq!(exit_code(&lost().into()), 75);
        let context = anyhow::Error::from(lost()).context("step 3 failed");
        assert_eq!(exit_code(&context), 75);
        let fault = || Fault::Processes(std::sync::Arc::new(lost()));
        assert_eq!(exit_code(&fault().into()), 75);
        assert_eq!(exit_code(&DTensorError::Fault(fault()).into()), 75);
        let unreachable = MeshError::Processes {
            mesh: "fsdp=2".into(),
            reason: "nobody answers".into(),
            exit_code: 78,
        };
        let opening = anyhow::Error::from(unreachable).context("cannot open the mesh");
        assert_eq!(exit_code(&opening), 78);
        let unwritten = Unwritten(io::Error::from(ErrorKind::PermissionDenied));
        let report = anyhow::Error::from(unwritten).context("cannot write the report");
        assert_eq!(exit_code(&report), 74);
        let full = io::Error::from(ErrorKind::StorageFull);
        assert_eq!(exit_code(&anyhow::Error::from(full).context("a model")), 74);
        let unread = io::Error::from(ErrorKind::NotFound);
        assert_eq!(exit_code(&unread.into()), 1);
        assert_eq!(exit_code(&anyhow!("the loss is NaN")), 1);
    }
}
