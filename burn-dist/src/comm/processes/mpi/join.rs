//! Processes that no MPI launcher has started come together.
//!
//! Each sets MPI up alone. Then they join one after the other: those that are together accept the next one
//! (`MPI_Comm_accept`, `MPI_Comm_connect`, `MPI_Intercomm_merge`), so that ranks have the order of [`Place::rank`].
//! What has to be known first, the name of a port, goes through the [rendezvous](crate::launch::rendezvous). Open MPI
//! needs one thing more: a server, in which processes of different launches find each other. Process 0 starts it
//! (`ompi-server`, which comes with Open MPI's `mpirun`), and it ends with process 0.

use crate::comm::processes::engine::Engine;
use crate::launch::folder::Folder;
use crate::launch::meet::Meeting;
use crate::launch::rendezvous::{RendezvousError, TOKEN};
use crate::launch::{Launcher, Place};
use mpi::ffi;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::raw::{c_char, c_int};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long `ompi-server` may take to say where it is.
const SERVER_PATIENCE: Duration = Duration::from_secs(20);

/// How Open MPI is told of its server. Read when MPI is set up.
const SERVER_VARIABLE: &str = "OMPI_MCA_pmix_server_uri";

/// Starts the engine over MPI; ends with the name of a process that vanishes meanwhile, for which MPI would wait.
///
/// # Errors
/// Why there is no MPI.
pub(in super::super) fn start(
    place: Place,
    meeting: Option<&'static Meeting>,
) -> Result<Engine, String> {
    /// Between looks at who has vanished.
    const LOOK: Duration = Duration::from_millis(20);
    let (sender, started) = channel();
    let starting = std::thread::Builder::new().name("setting MPI up".into());
    let start = move || {
        let _ = sender.send(Engine::start(move || super::connect(&place, meeting)));
    };
    starting.spawn(start).map_err(|error| error.to_string())?;
    let began = Instant::now();
    loop {
        match started.recv_timeout(LOOK) {
            Ok(Ok(engine)) => return Ok(engine),
            Ok(Err(reason)) => {
                // The others would wait for this process.
                if let Some(meeting) = meeting {
                    meeting.client().fail(&reason);
                }
                return Err(reason);
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err("MPI could not be set up: its thread has panicked".into());
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        let Some(meeting) = meeting else { continue };
        if let Some(trouble) = meeting.client().trouble() {
            return Err(trouble);
        }
        // Waiting for all, and for each step of joining.
        if began.elapsed() > meeting.patience() * 3 {
            return Err(format!(
                "MPI has not been set up within {:.0} s: does a firewall keep the processes apart?",
                began.elapsed().as_secs_f64()
            ));
        }
    }
}

/// Open MPI's server, while it is needed; ended when dropped.
pub(super) struct OmpiServer {
    child: Child,
}

impl Drop for OmpiServer {
    fn drop(&mut self) {
        // SIGTERM lets it take its files away.
        // SAFETY: a system call; the child has not been waited for.
        unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGTERM) };
        for _ in 0..100 {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(10)),
                _ => break,
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until all processes are there and makes ready for `MPI_Init`, which comes next.
///
/// # Errors
/// Who is missing; that there is no `ompi-server`.
pub(super) fn prepare(place: &Place, meeting: &Meeting) -> Result<Option<OmpiServer>, String> {
    let (client, patience) = (meeting.client(), meeting.patience());
    let said = |error: RendezvousError| error.to_string();
    client
        .barrier("mpi: all are there", patience)
        .map_err(said)?;
    let version = mpi::environment::library_version().unwrap_or_default();
    if !version.contains("Open MPI") {
        return Ok(None);
    }
    let server = match place.rank {
        0 => {
            let (server, uri) = start_server()?;
            client.set("mpi: server", uri.as_bytes()).map_err(said)?;
            Some(server)
        }
        _ => None,
    };
    let uri = client.get("mpi: server", patience).map_err(said)?;
    let uri = String::from_utf8(uri).map_err(|error| error.to_string())?;
    // SAFETY: Rust's own readers and writers of the environment exclude each other, and C code that reads it at this
    // moment would have to be another user of MPI, which is not set up yet.
    unsafe { std::env::set_var(SERVER_VARIABLE, uri) };
    Ok(server)
}

/// What to do when an MPI does not know the processes of its launcher.
pub(super) fn way_out(launcher: Launcher) -> &'static str {
    match launcher {
        Launcher::Slurm { .. } => {
            " Let srun offer it what it asks for (`srun --mpi=pmix`), or set MASTER_ADDR and MASTER_PORT."
        }
        _ => "",
    }
}

fn start_server() -> Result<(OmpiServer, String), String> {
    // Where it says where it is: it does not say so to a pipe before it ends.
    let folder = Folder::new("burn-dist-ompi").map_err(|error| {
        format!(
            "cannot make a folder in {}: {error}",
            std::env::temp_dir().display()
        )
    })?;
    let file = folder.path().join("uri");
    let mut command = Command::new("ompi-server");
    command.args(["--no-daemonize", "--report-uri"]).arg(&file);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // The token is none of its business.
    command.env_remove(TOKEN);
    // Signals from a terminal are for the program.
    command.process_group(0);
    #[cfg(target_os = "linux")]
    // SAFETY: one system call, which may be made between fork and exec. The thread that starts the server is the one
    // that uses MPI, so it lives as long.
    unsafe {
        command.pre_exec(
            || match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            },
        );
    }
    let child = command.spawn().map_err(|error| {
        format!(
            "cannot start ompi-server ({error}), through which Open MPI joins processes that its mpirun has not \
             started: install it (Debian: openmpi-bin), or start the program with mpirun"
        )
    })?;
    let mut server = OmpiServer { child };
    let began = Instant::now();
    loop {
        let said = std::fs::read_to_string(&file).unwrap_or_default();
        // The second line is its process id: the first is whole.
        if let Some((uri, _)) = said.split_once('\n')
            && !uri.trim().is_empty()
        {
            return Ok((server, uri.trim().to_string()));
        }
        if let Ok(Some(status)) = server.child.try_wait() {
            return Err(format!(
                "ompi-server ended with {status}: does `ompi-server --no-daemonize -r FILE` work here?"
            ));
        }
        if began.elapsed() > SERVER_PATIENCE {
            return Err(format!(
                "ompi-server has not said where it is for {} s",
                SERVER_PATIENCE.as_secs()
            ));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn check(what: &str, code: c_int) -> Result<(), String> {
    match code == ffi::MPI_SUCCESS as c_int {
        true => Ok(()),
        false => Err(format!(
            "MPI failed in {what} with code {code} while the processes joined"
        )),
    }
}

/// Returns a communicator of all processes, with ranks as in their places. MPI has just been set up.
///
/// # Errors
/// What MPI or the rendezvous says.
pub(super) fn join(place: &Place, meeting: &Meeting) -> Result<ffi::MPI_Comm, String> {
    let (client, patience) = (meeting.client(), meeting.patience());
    let said = |error: RendezvousError| error.to_string();
    let (rank, size) = (place.rank, place.world_size);
    let mut port = [0 as c_char; ffi::MPI_MAX_PORT_NAME as usize];
    // SAFETY: constants of MPI, which is set up.
    let (myself, no_info) = unsafe { (ffi::RSMPI_COMM_SELF, ffi::RSMPI_INFO_NULL) };
    let return_errors = |comm| {
        // SAFETY: a communicator that MPI has given, and a handler of its own.
        unsafe { ffi::MPI_Comm_set_errhandler(comm, ffi::RSMPI_ERRORS_RETURN) };
    };
    return_errors(myself);
    if rank == 0 {
        // SAFETY: the buffer is as long as MPI asks for.
        check("MPI_Open_port", unsafe {
            ffi::MPI_Open_port(no_info, port.as_mut_ptr())
        })?;
        // SAFETY: MPI has ended it with a zero.
        let name = unsafe { CStr::from_ptr(port.as_ptr()) };
        client.set("mpi: port", name.to_bytes()).map_err(said)?;
    } else {
        let name = client.get("mpi: port", patience).map_err(said)?;
        if name.len() >= port.len() {
            return Err(format!(
                "process 0 has a port with a name of {} bytes, where this MPI has {} at most: use the same MPI \
                 everywhere",
                name.len(),
                port.len() - 1
            ));
        }
        for (to, byte) in port.iter_mut().zip(name) {
            *to = byte as c_char;
        }
    }
    let mut together = myself;
    for newcomer in rank.max(1)..size {
        let turn = format!("mpi: turn of {newcomer}");
        let mut between = MaybeUninit::uninit();
        // SAFETY: the port's name ends with a zero, the communicators are MPI's, and the result is written to a place
        // of its type.
        let code = match rank < newcomer {
            true => {
                if rank == 0 {
                    client.set(&turn, b"").map_err(said)?;
                }
                unsafe {
                    ffi::MPI_Comm_accept(port.as_ptr(), no_info, 0, together, between.as_mut_ptr())
                }
            }
            false => {
                client.get(&turn, patience).map_err(said)?;
                unsafe {
                    ffi::MPI_Comm_connect(port.as_ptr(), no_info, 0, myself, between.as_mut_ptr())
                }
            }
        };
        check(
            if rank < newcomer {
                "MPI_Comm_accept"
            } else {
                "MPI_Comm_connect"
            },
            code,
        )?;
        // SAFETY: MPI has set it.
        let mut between = unsafe { between.assume_init() };
        let mut merged = MaybeUninit::uninit();
        // The newcomer comes last.
        // SAFETY: as above.
        check("MPI_Intercomm_merge", unsafe {
            ffi::MPI_Intercomm_merge(between, (rank == newcomer).into(), merged.as_mut_ptr())
        })?;
        // SAFETY: MPI has set it, and what it replaces is used no more.
        unsafe {
            ffi::MPI_Comm_free(&mut between);
            if newcomer > rank.max(1) {
                ffi::MPI_Comm_free(&mut together);
            }
            together = merged.assume_init();
        }
        return_errors(together);
    }
    if rank == 0 {
        // SAFETY: the name is that of the port that is open.
        unsafe { ffi::MPI_Close_port(port.as_ptr()) };
    }
    let (mut found, mut count) = (-1, -1);
    // SAFETY: a communicator that MPI has given, and places of the right type.
    unsafe {
        ffi::MPI_Comm_rank(together, &mut found);
        ffi::MPI_Comm_size(together, &mut count);
    }
    match (found as usize, count as usize) == (rank, size) {
        true => Ok(together),
        false => Err(format!(
            "process {rank} of {size} became process {found} of {count} when the processes joined: that is a bug of \
             burn-dist or of this MPI"
        )),
    }
}
