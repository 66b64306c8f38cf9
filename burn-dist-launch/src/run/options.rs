//! The options of the launcher.

use crate::rendezvous::{RendezvousError, Token, TokenError};
use crate::seconds::DAY;
use crate::{RESTART, address, cluster_env, rendezvous};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Processes on all machines, at most.
const WORLD_SIZE_MAX: usize = 1 << 16;

/// How processes are started, and thereby what carries their messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// By `mpirun`, on this machine.
    Mpi,
    /// Directly, with torchrun's variables: the processes meet at the rendezvous and connect over TCP.
    Tcp,
}

/// The options of `burn-dist run`.
#[derive(Clone, Debug)]
pub struct Options {
    /// Processes on this machine.
    pub nproc: usize,
    /// Machines; the launcher runs on each.
    pub nnodes: usize,
    /// The number of this one.
    pub node_rank: usize,
    /// Where the launcher of machine 0 keeps the rendezvous, as HOST:PORT; a free port of the loopback interface if it
    /// is not set.
    pub rendezvous: Option<String>,
    /// How processes are started: by `mpirun` if there is one machine and nothing else is asked for.
    pub transport: Option<Transport>,
    /// How often all processes are started anew after a failure.
    pub max_restarts: u32,
    /// A file with the token, which only its owner can read.
    pub token_file: Option<PathBuf>,
    /// True if the output of process 0 passes as it is, also into files and pipes.
    pub quiet_prefix: bool,
    /// How long the others have to end by themselves once a process has failed: a day at most.
    pub linger: Duration,
    /// How long they have after SIGTERM: a day at most.
    pub grace: Duration,
    /// The program and its arguments.
    pub program: Vec<OsString>,
}

/// Why nothing was started, or not all of it.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// No processes to start.
    #[error("--{option} 0 starts nothing: give at least 1")]
    Nothing {
        /// The option.
        option: &'static str,
    },
    /// More processes than there may be.
    #[error(
        "--nproc {nproc} on each of --nnodes {nnodes} machines is more than {} processes: give fewer",
        WORLD_SIZE_MAX
    )]
    TooMany {
        /// Processes on each machine.
        nproc: usize,
        /// Machines.
        nnodes: usize,
    },
    /// A wait that nobody wants.
    #[error(
        "--{option} {} is more than a day: give at most {} seconds",
        asked.as_secs(),
        DAY.as_secs()
    )]
    Patience {
        /// The option.
        option: &'static str,
        /// The time that it asks for.
        asked: Duration,
    },
    /// No program to start.
    #[error(
        "there is no program to start: write it after --, as in `burn-dist run --nproc 4 -- target/release/llama \
         pretrain`"
    )]
    NoProgram,
    /// A machine outside the machines.
    #[error("--node-rank {node_rank} is outside --nnodes {nnodes}: machines count from 0, so the last one is {}", nnodes - 1)]
    Node {
        /// Which was asked.
        node_rank: usize,
        /// How many there are.
        nnodes: usize,
    },
    /// Several machines that do not know where to meet.
    #[error(
        "--nnodes {0} needs --rendezvous HOST:PORT: the name of machine 0, and a free port there, the same for all \
         machines"
    )]
    NoRendezvous(usize),
    /// A rendezvous that is no address.
    #[error("--rendezvous {0} is not HOST:PORT: write it as node7:29500, or [::1]:29500")]
    Rendezvous(String),
    /// Several machines without a token.
    #[error(
        "--nnodes {0} needs a secret by which the machines know each other: `openssl rand -hex 32 > token; chmod 600 \
         token`, the same file on all of them, and --token-file token (or BURN_DIST_TOKEN)"
    )]
    NoToken(usize),
    /// `mpirun` on several machines.
    #[error(
        "--transport mpi starts processes by the mpirun of one machine: leave it away with --nnodes {0}, and messages \
         between processes go over TCP; for MPI between machines, start the program with mpirun or srun, which know \
         all of them"
    )]
    ManyMachines(usize),
    /// A token that is none.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The rendezvous cannot be kept.
    #[error(transparent)]
    Listen(#[from] RendezvousError),
    /// No `mpirun`.
    #[error(
        "cannot start mpirun ({0}): install Open MPI or MPICH (Debian: openmpi-bin), or start the processes directly \
         with --transport tcp"
    )]
    NoMpirun(std::io::Error),
    /// `mpirun` ended before it had started everything.
    #[error(
        "mpirun started {connected} of {nproc} processes and ended with {status}; it said:\n{said}"
    )]
    Mpirun {
        /// Processes that were started.
        connected: usize,
        /// Processes asked for.
        nproc: usize,
        /// Its exit status.
        status: String,
        /// Its last lines.
        said: String,
    },
    /// A process that did not come up.
    #[error("process {rank} was not started: its supervisor ended with {status}")]
    Supervisor {
        /// Which.
        rank: usize,
        /// How its supervisor ended.
        status: String,
    },
    /// The processes were not up in time.
    #[error("after {} s, {connected} of {nproc} processes are up: is this machine very busy?", waited.as_secs())]
    Late {
        /// Processes that are up.
        connected: usize,
        /// Processes asked for.
        nproc: usize,
        /// How long was waited.
        waited: Duration,
    },
    /// The system refuses something.
    #[error("cannot {what}: {source}")]
    System {
        /// The call that was tried.
        what: &'static str,
        /// Why not.
        source: std::io::Error,
    },
}

burn_dist_mesh::debug_by_message!(RunError);

impl RunError {
    /// Returns the exit code of a launcher that ends with this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Nothing { .. }
            | Self::TooMany { .. }
            | Self::Patience { .. }
            | Self::NoProgram
            | Self::Node { .. }
            | Self::NoRendezvous(_)
            | Self::Rendezvous(_)
            | Self::NoToken(_)
            | Self::ManyMachines(_)
            | Self::Token(_) => 2,
            _ => 125,
        }
    }
}

impl Options {
    /// Returns the options for so many processes of a program on this machine.
    pub fn new(nproc: usize, program: Vec<OsString>) -> Self {
        Self {
            nproc,
            nnodes: 1,
            node_rank: 0,
            rendezvous: None,
            transport: None,
            max_restarts: 0,
            token_file: None,
            quiet_prefix: false,
            linger: Duration::from_secs(3),
            grace: Duration::from_secs(5),
            program,
        }
    }

    /// Returns what is wrong with them.
    ///
    /// # Errors
    /// The first thing.
    pub fn check(&self) -> Result<(), RunError> {
        for (option, number) in [("nproc", self.nproc), ("nnodes", self.nnodes)] {
            if number == 0 {
                return Err(RunError::Nothing { option });
            }
        }
        match self.nproc.checked_mul(self.nnodes) {
            Some(..=WORLD_SIZE_MAX) => {}
            _ => {
                return Err(RunError::TooMany {
                    nproc: self.nproc,
                    nnodes: self.nnodes,
                });
            }
        }
        for (option, asked) in [("linger", self.linger), ("grace", self.grace)] {
            if asked > DAY {
                return Err(RunError::Patience { option, asked });
            }
        }
        if self.program.is_empty() {
            return Err(RunError::NoProgram);
        }
        if self.node_rank >= self.nnodes {
            return Err(RunError::Node {
                node_rank: self.node_rank,
                nnodes: self.nnodes,
            });
        }
        if self.nnodes > 1 && self.transport == Some(Transport::Mpi) {
            return Err(RunError::ManyMachines(self.nnodes));
        }
        match &self.rendezvous {
            None if self.nnodes > 1 => Err(RunError::NoRendezvous(self.nnodes)),
            None => Ok(()),
            Some(address) => {
                // A port that the system chooses is known to this machine only.
                match address::host_and_port(address).map(|(_, port)| port) {
                    Some(port) if port > 0 || self.nnodes == 1 => Ok(()),
                    _ => Err(RunError::Rendezvous(address.clone())),
                }
            }
        }
    }

    /// Returns how processes are started.
    pub fn transport(&self) -> Transport {
        match (self.transport, self.nnodes) {
            (Some(transport), _) => transport,
            (None, 1) => Transport::Mpi,
            (None, _) => Transport::Tcp,
        }
    }

    /// Returns how many processes there are on all machines.
    pub fn world_size(&self) -> usize {
        self.nproc * self.nnodes
    }

    /// Returns the rank of the first process of this machine.
    pub fn first_rank(&self) -> usize {
        self.nproc * self.node_rank
    }

    /// Returns the token: of the file, of the environment, or a new one.
    ///
    /// # Errors
    /// If it is no secret, or machines would not share it.
    pub fn token(&self) -> Result<Token, RunError> {
        if let Some(file) = &self.token_file {
            return Ok(Token::from_file(file)?);
        }
        match Token::of_process()? {
            Some(token) => Ok(token),
            None if self.nnodes > 1 => Err(RunError::NoToken(self.nnodes)),
            None => Token::random().map_err(|source| RunError::System {
                what: "make a random token",
                source,
            }),
        }
    }

    /// Returns what all processes have in their environment.
    pub fn shared_environment(
        &self,
        rendezvous: &str,
        token: &Token,
        restart: u32,
    ) -> Vec<(&'static str, String)> {
        vec![
            (cluster_env::RENDEZVOUS, rendezvous.to_string()),
            (rendezvous::TOKEN, token.secret().to_string()),
            (RESTART, restart.to_string()),
        ]
    }

    /// Returns what one process has in its environment beyond that, if it is started directly.
    pub fn environment(&self, local_rank: usize, rendezvous: &str) -> Vec<(&'static str, String)> {
        // It was checked, or is where the server listens.
        let (host, port) = address::host_and_port(rendezvous).unwrap_or((rendezvous, 0));
        vec![
            ("RANK", (self.first_rank() + local_rank).to_string()),
            ("WORLD_SIZE", self.world_size().to_string()),
            ("LOCAL_RANK", local_rank.to_string()),
            ("LOCAL_WORLD_SIZE", self.nproc.to_string()),
            ("GROUP_RANK", self.node_rank.to_string()),
            ("MASTER_ADDR", host.to_string()),
            ("MASTER_PORT", port.to_string()),
        ]
    }

    /// Returns what makes `mpirun` start processes on this machine and no other, also where it has fewer cores than
    /// they are, and for root too; and what keeps Open MPI's messages in shared memory, where this process has set
    /// nothing else for them: in files of the folder `memory`, which goes with the launcher, as a `mpirun` that is killed
    /// leaves them.
    pub fn mpirun_environment(&self, memory: Option<&Path>) -> Vec<(&'static str, String)> {
        let mut variables: Vec<(&'static str, String)> = [
            ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
            ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
            // In an allocation of several machines it would use them all. Open MPI 4 has a component that starts
            // nothing elsewhere; 5 (PRRTE) does not, and does not read its name.
            ("OMPI_MCA_plm", "isolated"),
            // Names that a build does not have may be left out all the same: PRRTE has renamed tm to pbs.
            ("OMPI_MCA_ras", "^slurm,tm,lsf,gridengine"),
            ("PRTE_MCA_ras", "^slurm,tm,pbs,lsf,gridengine,flux"),
            // MPICH.
            ("HYDRA_LAUNCHER", "fork"),
            ("HYDRA_RMK", "user"),
        ]
        .map(|(name, value)| (name, String::from(value)))
        .into();
        // Open MPI would open a port in each process on all interfaces. Ways to other machines are left out, whatever
        // a build calls the one through shared memory; `ob1` takes messages by these ways alone.
        let inside = [
            ("OMPI_MCA_pml", "ob1"),
            ("OMPI_MCA_btl", "^tcp,openib,usnic,ofi,ugni,portals4,uct"),
            // Where mpirun says that it can be reached. Open MPI 4 listens on all interfaces all the same.
            ("OMPI_MCA_oob_tcp_if_include", "127.0.0.0/8"),
            ("PRTE_MCA_prte_if_include", "127.0.0.0/8"),
        ];
        let memory = memory.and_then(Path::to_str).into_iter();
        // By the names that Open MPI 4 and 5 have for the way through shared memory.
        let memory = memory.flat_map(|memory| {
            [
                ("OMPI_MCA_btl_vader_backing_directory", memory),
                ("OMPI_MCA_btl_sm_backing_directory", memory),
            ]
        });
        let unset = inside
            .into_iter()
            .chain(memory)
            .filter(|(name, _)| std::env::var_os(name).is_none());
        variables.extend(unset.map(|(name, value)| (name, String::from(value))));
        // Whoever is root here has decided to be.
        for name in [
            "OMPI_ALLOW_RUN_AS_ROOT",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
            "PRTE_ALLOW_RUN_AS_ROOT",
            "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM",
        ] {
            if nix::unistd::geteuid().is_root() {
                variables.push((name, "1".into()));
            }
        }
        variables
    }
}

/// Returns true if a variable tells of another launcher, further out, that a program started here would mistake for its
/// own.
pub(super) fn is_foreign(variable: &str, transport: Transport) -> bool {
    let torchrun = [
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
    ];
    // What torchrun says besides, and nothing that is started here.
    let of_torchrun = variable.starts_with("TORCHELASTIC_")
        || ["GROUP_WORLD_SIZE", "BURN_DIST_PORT"].contains(&variable);
    let mpi = [
        "OMPI_COMM_WORLD_",
        "OMPI_UNIVERSE_",
        "PMI_",
        "PMIX_",
        "MPI_LOCAL",
        "OMPI_MCA_orte_",
        "OMPI_MCA_ess",
    ];
    let is_other = of_torchrun || mpi.iter().any(|prefix| variable.starts_with(prefix));
    match transport {
        Transport::Mpi => torchrun.contains(&variable) || is_other,
        Transport::Tcp => is_other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(change: impl FnOnce(&mut Options)) -> Options {
        let mut options = Options::new(2, vec!["program".into()]);
        change(&mut options);
        options
    }

    #[test]
    fn options_that_cannot_be_are_named() {
        let at = |address: &str| Some(address.to_string());
        for (options, expected) in [
            (options(|o| o.nproc = 0), "--nproc 0 starts nothing"),
            (options(|o| o.nnodes = 0), "--nnodes 0 starts nothing"),
            (
                options(|o| (o.nproc, o.nnodes) = (300, 300)),
                "--nproc 300 on each of --nnodes 300 machines is more than 65536 processes",
            ),
            (
                options(|o| (o.nproc, o.nnodes) = (usize::MAX, usize::MAX)),
                "is more than 65536 processes",
            ),
            (
                options(|o| o.grace = Duration::from_secs(86_401)),
                "--grace 86401 is more than a day: give at most 86400 seconds",
            ),
            (
                options(|o| o.linger = Duration::MAX),
                "is more than a day: give at most 86400 seconds",
            ),
            (
                options(|o| o.program.clear()),
                "there is no program to start: write it after --",
            ),
            (
                options(|o| (o.nnodes, o.node_rank) = (2, 2)),
                "--node-rank 2 is outside --nnodes 2: machines count from 0, so the last one is 1",
            ),
            (
                options(|o| o.nnodes = 2),
                "--nnodes 2 needs --rendezvous HOST:PORT",
            ),
            (
                options(|o| (o.nnodes, o.rendezvous) = (2, at("node7"))),
                "--rendezvous node7 is not HOST:PORT",
            ),
            (
                options(|o| (o.nnodes, o.rendezvous) = (2, at("[node7:29500]:29500"))),
                "--rendezvous [node7:29500]:29500 is not HOST:PORT",
            ),
            (
                options(|o| o.rendezvous = at("::1:29500")),
                "--rendezvous ::1:29500 is not HOST:PORT",
            ),
            (
                options(|o| (o.nnodes, o.rendezvous) = (2, at("node7:0"))),
                "--rendezvous node7:0 is not HOST:PORT",
            ),
            (
                options(|o| (o.nnodes, o.transport) = (2, Some(Transport::Mpi))),
                "--transport mpi starts processes by the mpirun of one machine",
            ),
        ] {
            let error = options.check().expect_err(expected);
            assert!(error.to_string().contains(expected), "{error}");
            assert_eq!(error.exit_code(), 2);
        }
        options(|_| ()).check().expect("these can be");
        options(|o| (o.nproc, o.grace) = (WORLD_SIZE_MAX, DAY))
            .check()
            .expect("these can be");
        options(|o| (o.nnodes, o.node_rank, o.rendezvous) = (2, 1, at("[::1]:29500")))
            .check()
            .expect("these can be");
    }

    #[test]
    fn processes_find_their_rank_in_their_environment() {
        let options = options(|o| (o.nproc, o.nnodes, o.node_rank) = (4, 2, 1));
        let token = Token::random().expect("random");
        let mut variables = options.shared_environment("[::1]:29500", &token, 3);
        variables.extend(options.environment(2, "[::1]:29500"));
        let read = |name: &str| {
            variables
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value.clone())
        };
        let env = crate::ClusterEnv::find(read)
            .expect("no contradiction")
            .expect("several processes");
        assert_eq!(
            (
                env.rank,
                env.world_size,
                env.local_rank,
                env.local_size,
                env.node
            ),
            (6, 8, Some(2), Some(4), Some(1))
        );
        let master = env.master.expect("a rendezvous");
        assert_eq!(
            (master.to_string().as_str(), master.is_rank_zero),
            ("[::1]:29500", false)
        );
    }

    #[test]
    fn what_launchers_further_out_say_is_none_of_a_process_that_is_started_here() {
        let outer = "RANK=9 WORLD_SIZE=16 LOCAL_RANK=1 LOCAL_WORLD_SIZE=8 GROUP_RANK=1 GROUP_WORLD_SIZE=2 \
            MASTER_ADDR=x MASTER_PORT=1 TORCHELASTIC_RUN_ID=7 TORCHELASTIC_USE_AGENT_STORE=True BURN_DIST_PORT=5 PMI_RANK=3 \
            PMI_SIZE=5 OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=3 SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2";
        let options = options(|_| ());
        let token = Token::random().expect("random");
        for (transport, started) in [
            (Transport::Tcp, options.environment(1, "127.0.0.1:7")),
            (
                Transport::Mpi,
                [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")]
                    .map(|(name, value)| (name, value.to_string()))
                    .into(),
            ),
        ] {
            let mut variables = options.shared_environment("127.0.0.1:7", &token, 0);
            variables.extend(started);
            let kept = outer
                .split_whitespace()
                .filter_map(|pair| pair.split_once('='));
            let kept = kept.filter(|(name, _)| !is_foreign(name, transport));
            variables.extend(kept.map(|(name, value)| (name, value.to_string())));
            let read = |name: &str| {
                let found = variables.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| value.clone())
            };
            let env = crate::ClusterEnv::find(read).expect("no contradiction");
            let env = env.expect("several processes");
            assert_eq!((env.rank, env.world_size), (1, 2), "{transport:?}");
            let master = env.master.expect("a rendezvous").to_string();
            assert_eq!(master, "127.0.0.1:7");
        }
    }
}
