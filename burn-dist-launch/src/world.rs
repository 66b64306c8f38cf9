//! The processes that this one was started with.

use super::ClusterEnv;
#[cfg(not(feature = "rendezvous"))]
use burn_dist_comm::StartError;
use burn_dist_comm::{CommError, World};
use std::sync::{Arc, OnceLock};

/// The variable that says what carries messages between processes: `mpi`, where the launcher is one of MPI's, or `tcp`.
#[cfg(feature = "rendezvous")]
const TRANSPORT: &str = "BURN_DIST_TRANSPORT";

/// The error's text where nothing carries messages.
#[cfg(not(feature = "mpi"))]
const WITHOUT_MPI: &str = "this program was built without MPI: turn burn-dist's feature `mpi` on, or its feature `tcp` and start it by \
     `burn-dist run --transport tcp`, or start it alone";

/// Returns the processes that this one was started with, by `burn-dist run`, `mpirun` or another
/// [launcher](super::Launcher); `None` if it was started alone.
///
/// The first call connects them, and later ones return the same. Where the launcher is one of MPI's, messages go over
/// MPI, which is finalised when the program ends: together with the others, whose programs it waits for. If one of them
/// is silent for 30 s then, stderr says so, and the program ends with 75. Elsewhere, without the feature `mpi`, or with
/// `BURN_DIST_TRANSPORT=tcp`, the processes meet at a [rendezvous](super::rendezvous) and connect over TCP.
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
fn launched(_env: &ClusterEnv) -> Result<World, StartError> {
    Err(StartError::config(WITHOUT_MPI))
}

#[cfg(feature = "rendezvous")]
use connect::launched;

#[cfg(feature = "rendezvous")]
mod connect {
    use super::{ClusterEnv, TRANSPORT};
    use crate::at_end::at_end;
    use crate::join;
    use crate::join::JoinError;
    use crate::tcp::{self, Seals};
    use burn_dist_comm::{StartError, World};
    use std::io::Write;
    use std::sync::OnceLock;
    use std::time::Duration;

    pub(super) fn launched(env: &ClusterEnv) -> Result<World, StartError> {
        /// How long another process may be silent once the program of this one has ended: as a collective may take.
        const PATIENCE: Duration = Duration::from_secs(30);
        static ENDING: OnceLock<World> = OnceLock::new();
        fn end() -> Option<u8> {
            let error = ENDING.get()?.finish(PATIENCE).err()?;
            // Whoever has closed it does not read it.
            let _ = writeln!(
                std::io::stderr(),
                "error: at the end of the program: {error}"
            );
            Some(error.exit_code())
        }
        let world = connected(env)?;
        let world = ENDING.get_or_init(|| world);
        at_end!(end);
        Ok(world.clone())
    }

    /// Connects the processes over what carries messages here.
    fn connected(env: &ClusterEnv) -> Result<World, StartError> {
        let has_mpi = env.launcher.has_mpi();
        match std::env::var(TRANSPORT).as_deref() {
            // Launchers that say no address are those of MPI.
            Err(_) if has_mpi && (cfg!(feature = "mpi") || env.master.is_none()) => over_mpi(env),
            Ok("mpi") if has_mpi => over_mpi(env),
            Ok("mpi") => Err(StartError::config(format!(
                "{TRANSPORT}=mpi, but {} started no MPI: start the program with `mpirun`, `burn-dist run --transport \
                 mpi` or `srun --mpi=pmix`, or unset {TRANSPORT}",
                env.launcher
            ))),
            Err(_) | Ok("tcp") => over_tcp(env),
            Ok(other) => Err(StartError::config(format!(
                "{TRANSPORT}={other} is no way between processes: write mpi or tcp"
            ))),
        }
    }

    fn not_joined(error: JoinError) -> StartError {
        StartError::relayed(error.to_string(), error.exit_code())
    }

    fn over_tcp(env: &ClusterEnv) -> Result<World, StartError> {
        let membership = join(env).map_err(not_joined)?;
        let (client, token) = (membership.client(), membership.token());
        let connect = |seals| tcp::connect(client, token, seals, membership.patience());
        let transport = Seals::of_process().and_then(connect);
        let transport = transport
            .inspect_err(|error| client.fail_with(&error.to_string(), error.exit_code()))?;
        World::over(move || Ok(transport))
    }

    #[cfg(not(feature = "mpi"))]
    fn over_mpi(_env: &ClusterEnv) -> Result<World, StartError> {
        Err(StartError::config(super::WITHOUT_MPI))
    }

    /// Sets MPI up; ends with the name of a process that vanishes meanwhile, for which MPI would wait, if a launcher
    /// keeps a rendezvous that tells; else after the time of the start.
    #[cfg(feature = "mpi")]
    fn over_mpi(env: &ClusterEnv) -> Result<World, StartError> {
        use crate::join::patience;
        use burn_dist_comm::{Mpi, Transport};
        use std::sync::mpsc::channel;
        let is_kept = |master: &crate::Master| !master.is_rank_zero;
        let membership = match env.master.as_ref().is_some_and(is_kept) {
            true => Some(join(env).map_err(not_joined)?),
            false => None,
        };
        // Those who have met at a rendezvous are all there, and only MPI may need more time.
        let patience = match membership {
            Some(membership) => membership.patience() * 3,
            None => patience().map_err(not_joined)?,
        };
        let trouble = move || membership.and_then(|membership| membership.client().trouble());
        let (rank, size, launcher) = (env.rank, env.world_size, env.launcher);
        let (sender, started) = channel();
        let set_up = move || {
            let mpi = Mpi::init(trouble)?;
            let found = (mpi.process() as usize, mpi.num_processes());
            match found == (rank, size) {
                true => Ok(mpi),
                false => Err(StartError::config(format!(
                    "{launcher} says that this is process {rank} of {size}, and MPI that it is {} of {}: was the \
                     program built with the MPI that started it?",
                    found.0, found.1
                ))),
            }
        };
        let starting = std::thread::Builder::new().name("setting MPI up".into());
        let start = move || {
            let _ = sender.send(World::over(set_up));
        };
        starting.spawn(start).map_err(|error| {
            StartError::temporary(format!(
                "the system starts no thread to set MPI up: {error}"
            ))
        })?;
        let trouble = move || membership?.client().start_trouble();
        let set_up = wait(&started, patience, trouble)?;
        set_up.map_err(|error| {
            let error = match launcher {
                crate::Launcher::Slurm { .. } => StartError::relayed(
                    format!("{error} (srun offers MPI what it asks for with `--mpi=pmix`)"),
                    error.exit_code(),
                ),
                _ => error,
            };
            // The others would wait for this process.
            if let Some(membership) = membership {
                let client = membership.client();
                client.fail_with(&error.to_string(), error.exit_code());
            }
            error
        })
    }

    /// Waits for the thread that sets MPI up: MPI itself waits for all processes, and for ever.
    ///
    /// # Errors
    /// The `trouble` that the others have; that MPI is not set up in time.
    #[cfg(any(feature = "mpi", test))]
    fn wait<T>(
        started: &std::sync::mpsc::Receiver<T>,
        patience: Duration,
        trouble: impl Fn() -> Option<StartError>,
    ) -> Result<T, StartError> {
        use std::sync::mpsc::RecvTimeoutError;
        /// Between looks at who has vanished.
        const LOOK: Duration = Duration::from_millis(20);
        let began = std::time::Instant::now();
        loop {
            match started.recv_timeout(LOOK) {
                Ok(set_up) => return Ok(set_up),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(StartError::config(
                        "MPI could not be set up: its thread has panicked",
                    ));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Some(trouble) = trouble() {
                return Err(trouble);
            }
            if began.elapsed() > patience {
                return Err(StartError::temporary(format!(
                    "MPI has not been set up within {:.0} s, for which it waits for all processes: do all of them \
                     run, and come here, or does a firewall keep them apart? (more time: {})",
                    patience.as_secs_f64(),
                    crate::join::JOIN_SECONDS
                )));
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use std::sync::mpsc::channel;

        #[test]
        fn whoever_waits_for_mpi_hears_how_it_ended() {
            let (sender, started) = channel::<u8>();
            let code = |error: StartError| error.exit_code();
            // Nobody has come, and there is no more time.
            let late = wait(&started, Duration::ZERO, || None).unwrap_err();
            assert!(
                late.to_string().contains("BURN_DIST_JOIN_SECONDS"),
                "{late}"
            );
            assert_eq!(code(late), 75);
            // Another process has told of what ended it.
            let told = || Some(StartError::relayed("rank 1 cannot go on", 70));
            assert_eq!(wait(&started, Duration::MAX, told).map_err(code), Err(70));
            sender.send(3).unwrap();
            assert_eq!(wait(&started, Duration::ZERO, || None), Ok(3));
            drop(sender);
            let ended = wait(&started, Duration::MAX, || None);
            assert_eq!(ended.map_err(code), Err(78));
        }
    }
}
