//! The processes that this one was started with.

use super::ClusterEnv;
use burn_dist_comm::{CommError, World};
use std::sync::{Arc, OnceLock};

/// The variable that says what carries messages between processes: `mpi`, where the launcher is one of MPI's, or
/// `tcp`, for little things only, where ranks communicate with NCCL.
#[cfg(feature = "rendezvous")]
const TRANSPORT: &str = "BURN_DIST_TRANSPORT";

/// What to say where nothing carries messages.
#[cfg(not(feature = "mpi"))]
const WITHOUT_MPI: &str =
    "this program was built without MPI: turn burn-dist's feature `mpi` on, or start it alone";

/// Returns the processes that this one was started with, by `burn-dist run`, `mpirun` or another
/// [launcher](super::Launcher); `None` if it was started alone.
///
/// The first call connects them, and later ones return the same. Where the launcher is one of MPI's, messages go over
/// MPI, which is finalised when the program ends. Elsewhere, without the feature `mpi`, or with
/// `BURN_DIST_TRANSPORT=tcp`, the processes meet at a [rendezvous](super::rendezvous) and connect over TCP, which
/// carry what processes say to each other, but no tensors of more than a MiB: for ranks that each have a GPU of their
/// own and communicate with NCCL.
///
/// # Errors
/// [`CommError::World`] if there are other processes and this one cannot reach them; [`CommError::ClusterEnv`] if the
/// variables of launchers contradict each other.
pub fn world() -> Result<Option<World>, CommError> {
    static WORLD: OnceLock<Result<Option<World>, CommError>> = OnceLock::new();
    let find = || {
        let env =
            ClusterEnv::of_process().map_err(|error| CommError::ClusterEnv(Arc::new(error)))?;
        let Some(env) = env.filter(|env| env.world_size > 1) else {
            return Ok(None);
        };
        launched(&env).map(Some).map_err(|reason| CommError::World {
            variable: env.launcher.variable(),
            processes: env.world_size,
            reason,
        })
    };
    WORLD.get_or_init(find).clone()
}

#[cfg(not(feature = "rendezvous"))]
fn launched(_env: &ClusterEnv) -> Result<World, String> {
    Err(WITHOUT_MPI.into())
}

#[cfg(feature = "rendezvous")]
use connect::launched;

#[cfg(feature = "rendezvous")]
mod connect {
    use super::{ClusterEnv, TRANSPORT};
    use crate::join;
    use crate::tcp::Tcp;
    use burn_dist_comm::World;
    use std::sync::OnceLock;
    use std::time::Duration;

    pub(super) fn launched(env: &ClusterEnv) -> Result<World, String> {
        /// How long the end of the program waits for the others to take what was sent to them.
        const PATIENCE: Duration = Duration::from_secs(10);
        static ENDING: OnceLock<World> = OnceLock::new();
        extern "C" fn end() {
            if let Some(world) = ENDING.get() {
                world.finish(PATIENCE);
            }
        }
        let world = connected(env)?;
        let world = ENDING.get_or_init(|| world);
        // SAFETY: the function touches nothing that ends before it: a static, and a thread that waits for it.
        unsafe { libc::atexit(end) };
        Ok(world.clone())
    }

    /// Connects the processes over what carries messages here.
    fn connected(env: &ClusterEnv) -> Result<World, String> {
        let has_mpi = env.launcher.has_mpi();
        match std::env::var(TRANSPORT).as_deref() {
            // Launchers that say no address are those of MPI.
            Err(_) if has_mpi && (cfg!(feature = "mpi") || env.master.is_none()) => over_mpi(env),
            Ok("mpi") if has_mpi => over_mpi(env),
            Ok("mpi") => Err(format!(
                "{TRANSPORT}=mpi, but {} started no MPI: start the program with `mpirun`, `burn-dist run --transport \
                 mpi` or `srun --mpi=pmix`, or unset {TRANSPORT}",
                env.launcher
            )),
            Err(_) | Ok("tcp") => over_tcp(env),
            Ok(other) => Err(format!(
                "{TRANSPORT}={other} is no way between processes: write mpi or tcp"
            )),
        }
    }

    fn over_tcp(env: &ClusterEnv) -> Result<World, String> {
        let membership = join(env).map_err(|error| error.to_string())?;
        let (client, token) = (membership.client(), membership.token());
        let transport = Tcp::connect(client, token, membership.patience());
        let transport = transport.inspect_err(|reason| client.fail(reason))?;
        World::over(move || Ok(transport))
    }

    #[cfg(not(feature = "mpi"))]
    fn over_mpi(_env: &ClusterEnv) -> Result<World, String> {
        Err(super::WITHOUT_MPI.into())
    }

    /// Sets MPI up; ends with the name of a process that vanishes meanwhile, for which MPI would wait, if a launcher
    /// keeps a rendezvous that tells.
    #[cfg(feature = "mpi")]
    fn over_mpi(env: &ClusterEnv) -> Result<World, String> {
        use burn_dist_comm::{Mpi, Transport};
        use std::sync::mpsc::{RecvTimeoutError, channel};
        use std::time::Instant;
        /// Between looks at who has vanished.
        const LOOK: Duration = Duration::from_millis(20);
        let is_kept = |master: &crate::Master| !master.is_rank_zero;
        let membership = match env.master.as_ref().is_some_and(is_kept) {
            true => Some(join(env).map_err(|error| error.to_string())?),
            false => None,
        };
        let trouble = move || membership.and_then(|membership| membership.client().trouble());
        let (rank, size, launcher) = (env.rank, env.world_size, env.launcher);
        let (sender, started) = channel();
        let set_up = move || {
            let mpi = Mpi::init(trouble)?;
            let found = (mpi.process() as usize, mpi.num_processes());
            match found == (rank, size) {
                true => Ok(mpi),
                false => Err(format!(
                    "{launcher} says that this is process {rank} of {size}, and MPI that it is {} of {}: was the \
                     program built with the MPI that started it?",
                    found.0, found.1
                )),
            }
        };
        let starting = std::thread::Builder::new().name("setting MPI up".into());
        let start = move || {
            let _ = sender.send(World::over(set_up));
        };
        starting.spawn(start).map_err(|error| error.to_string())?;
        let began = Instant::now();
        loop {
            match started.recv_timeout(LOOK) {
                Ok(Ok(world)) => return Ok(world),
                Ok(Err(mut reason)) => {
                    if matches!(launcher, crate::Launcher::Slurm { .. }) {
                        reason += " (srun offers MPI what it asks for with `--mpi=pmix`)";
                    }
                    // The others would wait for this process.
                    if let Some(membership) = membership {
                        membership.client().fail(&reason);
                    }
                    return Err(reason);
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err("MPI could not be set up: its thread has panicked".into());
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            let Some(membership) = membership else {
                continue;
            };
            if let Some(trouble) = trouble() {
                return Err(trouble);
            }
            if began.elapsed() > membership.patience() * 3 {
                return Err(format!(
                    "MPI has not been set up within {:.0} s: does a firewall keep the processes apart?",
                    began.elapsed().as_secs_f64()
                ));
            }
        }
    }
}
