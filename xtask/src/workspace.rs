//! Where the workspace is, and programs that are run in it.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the folder of the workspace.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("this crate is in a folder of the workspace")
}

/// Returns the target folder that Cargo uses.
pub(crate) fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Returns the Cargo that runs this program, in the workspace.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root());
    cargo
}

/// Returns the option of a Cargo whose programs find CUDA's headers at `folder`. Cargo itself does not get it: cudarc's
/// build script looks at the same variable, and with it all that is made of CubeCL would be compiled anew.
pub(crate) fn cuda_path_of_programs(folder: &Path) -> String {
    let folder = folder.display();
    format!("target.'cfg(all())'.runner = ['env', 'CUDA_PATH={folder}']")
}

/// Runs a program to its end.
///
/// # Errors
/// It cannot be started, or fails.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name} ended with {status}")),
        Err(error) => Err(format!("{name} cannot be run: {error}")),
    }
}
