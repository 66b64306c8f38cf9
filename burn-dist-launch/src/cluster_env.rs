//! Which of several processes this one is.
//!
//! | launcher | rank of processes | on this machine | machine |
//! | --- | --- | --- | --- |
//! | Open MPI's `mpirun` | `OMPI_COMM_WORLD_RANK` of `OMPI_COMM_WORLD_SIZE` | `OMPI_COMM_WORLD_LOCAL_RANK` of `OMPI_COMM_WORLD_LOCAL_SIZE` | |
//! | Hydra (MPICH, Intel MPI) | `PMI_RANK` of `PMI_SIZE` | `MPI_LOCALRANKID` of `MPI_LOCALNRANKS` | |
//! | torchrun, `burn-dist run` | `RANK` of `WORLD_SIZE` | `LOCAL_RANK` of `LOCAL_WORLD_SIZE` | `GROUP_RANK` |
//! | Slurm's `srun` | `SLURM_PROCID` of `SLURM_STEP_NUM_TASKS` | `SLURM_LOCALID` | `SLURM_NODEID` |
//!
//! Launchers start launchers, and the one that has started this process counts. That Slurm is the outermost is known.
//! Of an MPI launcher and torchrun it is read from what torchrun says of itself: its mark `TORCHELASTIC_RUN_ID`, and
//! with `GROUP_WORLD_SIZE` how many of it there are, which are as many as the processes of an MPI launcher that has
//! started each. Without the mark somebody has set `RANK` and `WORLD_SIZE`, who has to agree with MPI. All else is an
//! error that names both. What decides is the same in all processes, so that all decide alike.
//!
//! `srun --mpi=pmi2` sets Hydra's variables for its own tasks; where they say the same as Slurm's, they are Slurm's.
//! `SLURM_NTASKS` alone says nothing: a batch script has it too, and is one process. `RANK=-1` is what some scripts say
//! of a program that is alone.
//!
//! Where processes meet is in `BURN_DIST_RENDEZVOUS=HOST:PORT`, if the launcher keeps the rendezvous, or in
//! `MASTER_ADDR` and `MASTER_PORT`, where the process of rank 0 does.

use crate::address;
use std::fmt;

/// Which of several processes this one is, and where they meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterEnv {
    /// The launcher that says so.
    pub launcher: Launcher,
    /// The number of this process.
    pub rank: usize,
    /// How many processes there are.
    pub world_size: usize,
    /// The number of this process among those of its machine, if the launcher tells.
    pub local_rank: Option<usize>,
    /// How many processes its machine has, if the launcher tells.
    pub local_size: Option<usize>,
    /// The number of its machine, if the launcher tells.
    pub node: Option<usize>,
    /// Where the processes meet, if the launcher tells.
    pub master: Option<Master>,
}

/// The launcher that has started a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launcher {
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// Hydra: `mpiexec` of MPICH and its relatives.
    Hydra,
    /// torchrun, `burn-dist run`, or a person who sets the same variables.
    Torchrun,
    /// Slurm's `srun`.
    Slurm {
        /// True if `srun` offers PMI-2 or PMIx, with which MPI finds the other processes.
        pmi: bool,
    },
}

impl Launcher {
    /// Returns the variable that says how many processes there are.
    pub fn variable(self) -> &'static str {
        match self {
            Self::OpenMpi => "OMPI_COMM_WORLD_SIZE",
            Self::Hydra => "PMI_SIZE",
            Self::Torchrun => "WORLD_SIZE",
            Self::Slurm { .. } => "SLURM_STEP_NUM_TASKS",
        }
    }

    /// Returns the variable that says which of them this one is.
    pub(crate) fn rank_variable(self) -> &'static str {
        match self {
            Self::OpenMpi => "OMPI_COMM_WORLD_RANK",
            Self::Hydra => "PMI_RANK",
            Self::Torchrun => "RANK",
            Self::Slurm { .. } => "SLURM_PROCID",
        }
    }

    /// Returns true if MPI finds the other processes by itself.
    pub fn has_mpi(self) -> bool {
        match self {
            Self::OpenMpi | Self::Hydra => true,
            Self::Torchrun => false,
            Self::Slurm { pmi } => pmi,
        }
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpenMpi => "Open MPI",
            Self::Hydra => "MPICH",
            Self::Torchrun => "torchrun's variables",
            Self::Slurm { .. } => "Slurm",
        })
    }
}

/// Where processes meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Master {
    /// A name or an address.
    pub host: String,
    /// The TCP port.
    pub port: u16,
    /// True if the process of rank 0 listens there; else the launcher does.
    pub is_rank_zero: bool,
}

impl fmt::Display for Master {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&address::joined(&self.host, self.port))
    }
}

/// Variables that contradict themselves or each other.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterEnvError {
    /// A variable that is no number.
    #[error("{variable}={value} is not {what}: {way_out}")]
    NotANumber {
        /// Its name.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The kind of value it should have.
        what: &'static str,
        /// The remedy.
        way_out: &'static str,
    },
    /// A rank outside the world, or outside the machine.
    #[error(
        "{variable}={rank} is outside {size_variable}={size}: ranks count from 0, so the last one is {}",
        size.saturating_sub(1)
    )]
    Outside {
        /// The variable of the rank.
        variable: &'static str,
        /// Its value.
        rank: usize,
        /// The variable of the size.
        size_variable: &'static str,
        /// Its value.
        size: usize,
    },
    /// A world that cannot be.
    #[error(
        "{variable}={size} is more than {WORLD_SIZE_MAX} processes, which are the most: {UNSET}"
    )]
    TooMany {
        /// The variable of the size.
        variable: &'static str,
        /// Its value.
        size: usize,
    },
    /// A variable without one that it needs.
    #[error("{variable}={value}, but {missing} is not set: {way_out}")]
    Missing {
        /// The variable that is there.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The one that is not.
        missing: &'static str,
        /// The remedy.
        way_out: &'static str,
    },
    /// A rank that says alone, in a world of several.
    #[error(
        "{variable}=-1 says that this process is alone, and WORLD_SIZE={size} that it is one of several: set \
         {variable} to 0 or more, a number of its own in each process, or unset both to start this program alone"
    )]
    Alone {
        /// The variable of the rank.
        variable: &'static str,
        /// The value of `WORLD_SIZE`.
        size: usize,
    },
    /// MPI and torchrun, neither of which can have started the other.
    #[error(
        "{mpi} says that it has started {processes} processes ({}={processes}), and torchrun that it has \
         GROUP_WORLD_SIZE={agents} agents, which are not one for each of these: unset the variables of the one that \
         did not start this program ({}, {}, or TORCHELASTIC_RUN_ID, RANK and WORLD_SIZE)",
        mpi.variable(), mpi.rank_variable(), mpi.variable()
    )]
    Agents {
        /// The launcher of MPI's.
        mpi: Launcher,
        /// How many processes it has started.
        processes: usize,
        /// How many agents torchrun has; a question mark if it does not say.
        agents: String,
    },
    /// Two launchers that disagree.
    #[error(
        "{first} says that this is process {} of {}, and {second} that it is process {} of {} ({}={}): unset the \
         variables of the one that did not start this program",
        first_env.0, first_env.1, second_env.0, second_env.1, second.variable(), second_env.1
    )]
    TwoLaunchers {
        /// The one that is nearer.
        first: Launcher,
        /// Rank and size that it says.
        first_env: (usize, usize),
        /// The other.
        second: Launcher,
        /// Rank and size that it says.
        second_env: (usize, usize),
    },
}

burn_dist_mesh::debug_by_message!(ClusterEnvError);

/// The most processes of one program.
pub const WORLD_SIZE_MAX: usize = 1 << 16;

/// The remedy for a launcher's number that is none.
const UNSET: &str = "set it as the launcher does, or unset it to start this program alone";

/// A launcher, and rank and size that it says.
type Claim = (Launcher, (usize, usize));

/// Reads variables.
struct Variables<F>(F);

impl<F: Fn(&str) -> Option<String>> Variables<F> {
    fn text(&self, variable: &str) -> Option<String> {
        let text = (self.0)(variable)?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_string())
    }

    fn number(&self, variable: &'static str) -> Result<Option<usize>, ClusterEnvError> {
        let Some(value) = self.text(variable) else {
            return Ok(None);
        };
        match value.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(ClusterEnvError::NotANumber {
                variable,
                value,
                what: "a number of processes or of one of them",
                way_out: UNSET,
            }),
        }
    }

    /// Returns a launcher with the rank and the size it lies in, if either is there.
    fn rank(&self, launcher: Launcher) -> Result<Option<Claim>, ClusterEnvError> {
        let (variable, size_variable) = (launcher.rank_variable(), launcher.variable());
        let missing = |variable, value: usize, missing| ClusterEnvError::Missing {
            variable,
            value: value.to_string(),
            missing,
            way_out: "set both, as a launcher does, or unset both to start this program alone",
        };
        match (self.number(variable)?, self.number(size_variable)?) {
            (None, None) => Ok(None),
            (Some(rank), None) => Err(missing(variable, rank, size_variable)),
            (None, Some(size)) => Err(missing(size_variable, size, variable)),
            (Some(_), Some(size)) if size > WORLD_SIZE_MAX => Err(ClusterEnvError::TooMany {
                variable: size_variable,
                size,
            }),
            (Some(rank), Some(size)) if rank >= size => Err(ClusterEnvError::Outside {
                variable,
                rank,
                size_variable,
                size,
            }),
            (Some(rank), Some(size)) => Ok(Some((launcher, (rank, size)))),
        }
    }

    /// Returns what torchrun's variables say; nothing if they say that this process is alone by a rank of -1.
    fn torchrun(&self) -> Result<Option<Claim>, ClusterEnvError> {
        if !self.is_alone("RANK") {
            return self.rank(Launcher::Torchrun);
        }
        match self.number("WORLD_SIZE")? {
            None | Some(1) => Ok(None),
            Some(size) => Err(ClusterEnvError::Alone {
                variable: "RANK",
                size,
            }),
        }
    }

    /// Returns true if a rank of torchrun's is -1.
    fn is_alone(&self, variable: &str) -> bool {
        self.text(variable).is_some_and(|rank| rank == "-1")
    }

    /// Returns what an MPI launcher says, where it is no part of Slurm.
    fn mpi(&self, slurm: Option<Claim>) -> Result<Option<Claim>, ClusterEnvError> {
        if let found @ Some(_) = self.rank(Launcher::OpenMpi)? {
            return Ok(found);
        }
        let hydra = self.rank(Launcher::Hydra)?;
        let is_slurm = |(_, env): &Claim| slurm.is_some_and(|(_, slurm)| slurm == *env);
        Ok(hydra.filter(|hydra| !is_slurm(hydra)))
    }

    /// Returns what Slurm says of a step's task. In a batch script, which is one process, there is a `SLURM_PROCID`
    /// without a step.
    fn slurm(&self) -> Result<Option<Claim>, ClusterEnvError> {
        if self.text("SLURM_STEP_NUM_TASKS").is_none() {
            return Ok(None);
        }
        let pmi = self.text("PMIX_RANK").is_some() || self.text("PMI_RANK").is_some();
        self.rank(Launcher::Slurm { pmi })
    }

    /// Returns which of an MPI launcher and torchrun has started this process.
    fn nearer(&self, mpi: Claim, torchrun: Claim) -> Result<Claim, ClusterEnvError> {
        let ((first, first_env), (second, second_env)) = (mpi, torchrun);
        if self.text("TORCHELASTIC_RUN_ID").is_some() {
            let agents = self.number("GROUP_WORLD_SIZE")?;
            return match agents == Some(first_env.1) {
                true => Ok(torchrun),
                false => Err(ClusterEnvError::Agents {
                    mpi: first,
                    processes: first_env.1,
                    agents: agents.map_or("?".into(), |agents| agents.to_string()),
                }),
            };
        }
        match first_env == second_env {
            true => Ok(mpi),
            false => Err(ClusterEnvError::TwoLaunchers {
                first,
                first_env,
                second,
                second_env,
            }),
        }
    }

    fn local(
        &self,
        variable: &'static str,
        size_variable: &'static str,
    ) -> Result<(Option<usize>, Option<usize>), ClusterEnvError> {
        let (rank, size) = (self.number(variable)?, self.number(size_variable)?);
        match (rank, size) {
            (Some(rank), Some(size)) if rank >= size => Err(ClusterEnvError::Outside {
                variable,
                rank,
                size_variable,
                size,
            }),
            found => Ok(found),
        }
    }

    fn port(&self, variable: &'static str, value: &str) -> Result<u16, ClusterEnvError> {
        match value.parse() {
            Ok(port) if port > 0 => Ok(port),
            _ => Err(ClusterEnvError::NotANumber {
                variable,
                value: value.to_string(),
                what: "a port",
                way_out: "ports go from 1 to 65535; choose a free one, such as 29500",
            }),
        }
    }

    /// Where processes meet; `None` if nothing says so.
    fn master(&self) -> Result<Option<Master>, ClusterEnvError> {
        if let Some(address) = self.text(RENDEZVOUS) {
            let parts = address::host_and_port(&address).filter(|(_, port)| *port > 0);
            let Some((host, port)) = parts else {
                return Err(ClusterEnvError::NotANumber {
                    variable: RENDEZVOUS,
                    value: address,
                    what: "HOST:PORT",
                    way_out: "write it as node7:29500, or [::1]:29500",
                });
            };
            return Ok(Some(Master {
                host: host.to_string(),
                port,
                is_rank_zero: false,
            }));
        }
        let (host, port) = (self.text("MASTER_ADDR"), self.text("MASTER_PORT"));
        let missing = |variable, value: &str, missing| ClusterEnvError::Missing {
            variable,
            value: value.to_string(),
            missing,
            way_out: "MASTER_ADDR is the machine of rank 0 and MASTER_PORT a free port there, the same for all \
                processes",
        };
        let (host, port) = match (host, port) {
            (None, None) => return Ok(None),
            (Some(host), None) => return Err(missing("MASTER_ADDR", &host, "MASTER_PORT")),
            (None, Some(port)) => return Err(missing("MASTER_PORT", &port, "MASTER_ADDR")),
            (Some(host), Some(port)) => (host, port),
        };
        let mut port = self.port("MASTER_PORT", &port)?;
        let Some(host) = address::host(&host).map(String::from) else {
            return Err(ClusterEnvError::NotANumber {
                variable: "MASTER_ADDR",
                value: host,
                what: "a name or an address without a port",
                way_out: "the port is for MASTER_PORT; write node7, 10.0.0.7, fe80::1 or [fe80::1], and the network \
                    interface of such an address as its number (fe80::1%2)",
            });
        };
        // torchrun's agent listens at the port that it names: ours is the next one, unless BURN_DIST_PORT says
        // otherwise.
        let has_agent = self.text("TORCHELASTIC_USE_AGENT_STORE");
        if let Some(own) = self.text("BURN_DIST_PORT") {
            port = self.port("BURN_DIST_PORT", &own)?;
        } else if has_agent.is_some_and(|agent| agent.eq_ignore_ascii_case("true")) {
            port = port.checked_add(1).unwrap_or(port - 1);
        }
        Ok(Some(Master {
            host,
            port,
            is_rank_zero: true,
        }))
    }
}

/// The variable that says where a launcher keeps the rendezvous.
pub const RENDEZVOUS: &str = "BURN_DIST_RENDEZVOUS";

impl ClusterEnv {
    /// Returns what the environment says of this process; `None` if it was started alone.
    ///
    /// # Errors
    /// Variables that contradict themselves or each other.
    pub fn of_process() -> Result<Option<Self>, ClusterEnvError> {
        Self::find(|variable| std::env::var(variable).ok())
    }

    /// Returns what variables say; `None` if they tell of no launcher.
    ///
    /// ```
    /// use burn_dist_launch::ClusterEnv;
    ///
    /// let variables = [("RANK", "1"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "node7"), ("MASTER_PORT", "29500")];
    /// let find = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string());
    /// let env = ClusterEnv::find(find)?.expect("torchrun's variables");
    /// assert_eq!((env.rank, env.world_size), (1, 4));
    /// assert_eq!(env.master.expect("both are set").to_string(), "node7:29500");
    /// # Ok::<(), burn_dist_launch::ClusterEnvError>(())
    /// ```
    ///
    /// # Errors
    /// As [`ClusterEnv::of_process`].
    pub fn find(read: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, ClusterEnvError> {
        let variables = Variables(read);
        let (slurm, torchrun) = (variables.slurm()?, variables.torchrun()?);
        let found = match (variables.mpi(slurm)?, torchrun) {
            (Some(mpi), Some(torchrun)) => Some(variables.nearer(mpi, torchrun)?),
            (mpi, torchrun) => mpi.or(torchrun).or(slurm),
        };
        let Some((launcher, (rank, world_size))) = found else {
            return Ok(None);
        };
        let (local_rank, local_size) = match launcher {
            Launcher::OpenMpi => {
                variables.local("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")?
            }
            Launcher::Hydra => variables.local("MPI_LOCALRANKID", "MPI_LOCALNRANKS")?,
            Launcher::Torchrun if variables.is_alone("LOCAL_RANK") => match world_size {
                1 => (None, None),
                size => {
                    let variable = "LOCAL_RANK";
                    return Err(ClusterEnvError::Alone { variable, size });
                }
            },
            Launcher::Torchrun => variables.local("LOCAL_RANK", "LOCAL_WORLD_SIZE")?,
            Launcher::Slurm { .. } => (variables.number("SLURM_LOCALID")?, None),
        };
        let node = match launcher {
            Launcher::Torchrun => variables.number("GROUP_RANK")?,
            Launcher::Slurm { .. } => variables.number("SLURM_NODEID")?,
            Launcher::OpenMpi | Launcher::Hydra => None,
        };
        let master = match world_size > 1 {
            true => variables.master()?,
            false => None,
        };
        if launcher == Launcher::Torchrun && world_size > 1 && master.is_none() {
            return Err(ClusterEnvError::Missing {
                variable: "WORLD_SIZE",
                value: world_size.to_string(),
                missing: "MASTER_ADDR",
                way_out: "set it to the machine of rank 0, and MASTER_PORT to a free port there",
            });
        }
        Ok(Some(Self {
            launcher,
            rank,
            world_size,
            local_rank,
            local_size,
            node,
            master,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Variables as text, `NAME=VALUE NAME=VALUE`.
    fn find(text: &str) -> Result<Option<ClusterEnv>, ClusterEnvError> {
        ClusterEnv::find(|name| {
            let pairs = text
                .split_whitespace()
                .filter_map(|pair| pair.split_once('='));
            pairs
                .filter(|pair| pair.0 == name)
                .map(|pair| pair.1.to_string())
                .next()
        })
    }

    /// Its text: launcher, rank/size, local rank/size, machine, master.
    fn text(env: &ClusterEnv) -> String {
        let number = |number: Option<usize>| number.map_or("-".into(), |number| number.to_string());
        let master = env.master.as_ref().map_or("-".into(), |master| {
            format!(
                "{master}{}",
                if master.is_rank_zero {
                    ""
                } else {
                    " (launcher)"
                }
            )
        });
        format!(
            "{:?} {}/{} {}/{} {} {master}",
            env.launcher,
            env.rank,
            env.world_size,
            number(env.local_rank),
            number(env.local_size),
            number(env.node),
        )
    }

    #[test]
    fn launchers_are_found() {
        for (variables, expected) in [
            (
                "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 \
                 OMPI_COMM_WORLD_LOCAL_SIZE=2",
                "OpenMpi 1/4 1/2 - -",
            ),
            (
                "PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2",
                "Hydra 3/4 1/2 - -",
            ),
            (
                "RANK=2 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 MASTER_ADDR=n0 MASTER_PORT=29500",
                "Torchrun 2/4 0/2 1 n0:29500",
            ),
            (
                "RANK=2 WORLD_SIZE=4 MASTER_ADDR=::1 MASTER_PORT=7",
                "Torchrun 2/4 -/- - [::1]:7",
            ),
            (
                "RANK=2 WORLD_SIZE=4 MASTER_ADDR=[fe80::1] MASTER_PORT=7",
                "Torchrun 2/4 -/- - [fe80::1]:7",
            ),
            (
                "RANK=2 WORLD_SIZE=4 MASTER_ADDR=fe80::1%2 MASTER_PORT=7",
                "Torchrun 2/4 -/- - [fe80::1%2]:7",
            ),
            (
                "RANK=65535 WORLD_SIZE=65536 MASTER_ADDR=n0 MASTER_PORT=7",
                "Torchrun 65535/65536 -/- - n0:7",
            ),
            // A world of one needs nowhere to meet.
            ("RANK=0 WORLD_SIZE=1", "Torchrun 0/1 -/- - -"),
            // The agent of torchrun listens at the port it names.
            (
                "RANK=0 WORLD_SIZE=2 MASTER_ADDR=n0 MASTER_PORT=29500 TORCHELASTIC_USE_AGENT_STORE=True",
                "Torchrun 0/2 -/- - n0:29501",
            ),
            (
                "RANK=0 WORLD_SIZE=2 MASTER_ADDR=n0 MASTER_PORT=29500 TORCHELASTIC_USE_AGENT_STORE=True \
                 BURN_DIST_PORT=5",
                "Torchrun 0/2 -/- - n0:5",
            ),
            // The launcher keeps the rendezvous, also under mpirun.
            (
                "RANK=0 WORLD_SIZE=2 MASTER_ADDR=x MASTER_PORT=1 BURN_DIST_RENDEZVOUS=[::1]:7",
                "Torchrun 0/2 -/- - [::1]:7 (launcher)",
            ),
            (
                "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 BURN_DIST_RENDEZVOUS=127.0.0.1:7",
                "OpenMpi 0/2 -/- - 127.0.0.1:7 (launcher)",
            ),
            (
                "SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=8 SLURM_NTASKS=8 SLURM_LOCALID=1 SLURM_NODEID=2",
                "Slurm { pmi: false } 5/8 1/- 2 -",
            ),
            (
                "SLURM_PROCID=5 SLURM_STEP_NUM_TASKS=8 PMIX_RANK=5",
                "Slurm { pmi: true } 5/8 -/- - -",
            ),
            // torchrun in each of two Slurm tasks, and mpirun in one.
            (
                "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 RANK=9 WORLD_SIZE=16 MASTER_ADDR=n0 MASTER_PORT=1",
                "Torchrun 9/16 -/- - n0:1",
            ),
            (
                "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4",
                "OpenMpi 1/4 -/- - -",
            ),
            // One torchrun for each task of an MPI launcher, whatever numbers these have: the agents choose their own.
            (
                "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 RANK=3 WORLD_SIZE=16 LOCAL_RANK=3 LOCAL_WORLD_SIZE=8 \
                 GROUP_RANK=0 GROUP_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=none MASTER_ADDR=n0 MASTER_PORT=1",
                "Torchrun 3/16 3/8 0 n0:1",
            ),
            (
                "PMI_RANK=1 PMI_SIZE=2 RANK=1 WORLD_SIZE=2 GROUP_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=none MASTER_ADDR=n0 \
                 MASTER_PORT=1",
                "Torchrun 1/2 -/- - n0:1",
            ),
            // `srun --mpi=pmi2`, alone and with torchrun in each task, as many machines as each of them may have.
            (
                "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 SLURM_NODEID=1 PMI_RANK=1 PMI_SIZE=2",
                "Slurm { pmi: true } 1/2 0/- 1 -",
            ),
            (
                "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 PMI_RANK=1 PMI_SIZE=2 RANK=9 WORLD_SIZE=16 GROUP_RANK=1 \
                 GROUP_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=7 MASTER_ADDR=n0 MASTER_PORT=1",
                "Torchrun 9/16 -/- 1 n0:1",
            ),
            (
                "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 PMI_RANK=1 PMI_SIZE=2 RANK=0 WORLD_SIZE=4 GROUP_WORLD_SIZE=1 \
                 TORCHELASTIC_RUN_ID=7 MASTER_ADDR=n0 MASTER_PORT=1",
                "Torchrun 0/4 -/- - n0:1",
            ),
            // Hydra in an allocation of Slurm, which starts its agents as tasks.
            (
                "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 PMI_RANK=5 PMI_SIZE=8",
                "Hydra 5/8 -/- - -",
            ),
            // Rank -1 is no rank: some scripts say so of a program that is alone.
            (
                "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 RANK=-1 WORLD_SIZE=1",
                "OpenMpi 1/4 -/- - -",
            ),
            ("RANK=0 WORLD_SIZE=1 LOCAL_RANK=-1", "Torchrun 0/1 -/- - -"),
            // Launchers that agree.
            (
                "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 RANK=1 WORLD_SIZE=4",
                "OpenMpi 1/4 -/- - -",
            ),
        ] {
            let env = find(variables).expect(variables).expect(variables);
            assert_eq!(text(&env), expected, "{variables}");
        }
    }

    #[test]
    fn a_process_may_be_alone() {
        for variables in [
            "",
            "MASTER_ADDR=n0",
            // A Slurm batch script.
            "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0",
            "RANK= WORLD_SIZE=",
            "RANK=-1 WORLD_SIZE=1",
            "RANK=-1 WORLD_SIZE=1 LOCAL_RANK=-1 MASTER_ADDR=n0 MASTER_PORT=1",
            "RANK=-1",
        ] {
            assert_eq!(find(variables), Ok(None), "{variables}");
        }
    }

    #[test]
    fn contradictions_are_named() {
        let torchrun = "RANK=1 WORLD_SIZE=2";
        for (variables, expected) in [
            (
                "RANK=4 WORLD_SIZE=4",
                "RANK=4 is outside WORLD_SIZE=4: ranks count from 0, so the last one is 3",
            ),
            ("RANK=0 WORLD_SIZE=0", "RANK=0 is outside WORLD_SIZE=0"),
            ("RANK=one WORLD_SIZE=4", "RANK=one is not a number"),
            (
                "RANK=-1 WORLD_SIZE=4",
                "RANK=-1 says that this process is alone, and WORLD_SIZE=4 that it is one of several: set RANK to 0",
            ),
            (
                "RANK=0 WORLD_SIZE=4 LOCAL_RANK=-1 MASTER_ADDR=n0 MASTER_PORT=1",
                "LOCAL_RANK=-1 says that this process is alone, and WORLD_SIZE=4",
            ),
            ("RANK=-2 WORLD_SIZE=1", "RANK=-2 is not a number"),
            (
                "SLURM_PROCID=-1 SLURM_STEP_NUM_TASKS=1",
                "SLURM_PROCID=-1 is not a number",
            ),
            ("RANK=1", "RANK=1, but WORLD_SIZE is not set"),
            ("WORLD_SIZE=2", "WORLD_SIZE=2, but RANK is not set"),
            (
                torchrun,
                "WORLD_SIZE=2, but MASTER_ADDR is not set: set it to the machine of rank 0",
            ),
            (
                "RANK=1 WORLD_SIZE=2 MASTER_ADDR=n0",
                "MASTER_ADDR=n0, but MASTER_PORT is not set",
            ),
            (
                "RANK=1 WORLD_SIZE=2 MASTER_PORT=1",
                "MASTER_PORT=1, but MASTER_ADDR is not set",
            ),
            (
                "RANK=1 WORLD_SIZE=2 MASTER_ADDR=n0 MASTER_PORT=99999",
                "MASTER_PORT=99999 is not a port: ports go from 1 to 65535",
            ),
            (
                "RANK=1 WORLD_SIZE=2 MASTER_ADDR=n0 MASTER_PORT=0",
                "MASTER_PORT=0 is not a port",
            ),
            (
                "RANK=1 WORLD_SIZE=2 BURN_DIST_RENDEZVOUS=n0",
                "BURN_DIST_RENDEZVOUS=n0 is not HOST:PORT",
            ),
            (
                "RANK=1 WORLD_SIZE=2 BURN_DIST_RENDEZVOUS=[n0:29500]:29500",
                "BURN_DIST_RENDEZVOUS=[n0:29500]:29500 is not HOST:PORT",
            ),
            (
                "RANK=1 WORLD_SIZE=2 BURN_DIST_RENDEZVOUS=::1:29500",
                "BURN_DIST_RENDEZVOUS=::1:29500 is not HOST:PORT: write it as node7:29500, or [::1]:29500",
            ),
            (
                "RANK=1 WORLD_SIZE=2 MASTER_ADDR=n0:29500 MASTER_PORT=29500",
                "MASTER_ADDR=n0:29500 is not a name or an address without a port: the port is for MASTER_PORT",
            ),
            (
                "RANK=1 WORLD_SIZE=2 MASTER_ADDR=[n0:29500] MASTER_PORT=29500",
                "MASTER_ADDR=[n0:29500] is not a name or an address without a port",
            ),
            (
                "RANK=1 WORLD_SIZE=2 MASTER_ADDR=[::1]:29500 MASTER_PORT=29500",
                "MASTER_ADDR=[::1]:29500 is not a name or an address without a port",
            ),
            (
                "RANK=0 WORLD_SIZE=2 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2",
                "LOCAL_RANK=2 is outside LOCAL_WORLD_SIZE=2",
            ),
            // Cut to 32 bits, this would be a world of 2.
            (
                "RANK=1 WORLD_SIZE=4294967298 MASTER_ADDR=n0 MASTER_PORT=1",
                "WORLD_SIZE=4294967298 is more than 65536 processes, which are the most",
            ),
            (
                "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=65537",
                "SLURM_STEP_NUM_TASKS=65537 is more than 65536 processes",
            ),
            (
                "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=2",
                "OMPI_COMM_WORLD_RANK=2 is outside OMPI_COMM_WORLD_SIZE=2",
            ),
            ("PMI_RANK=0 PMI_SIZE=x", "PMI_SIZE=x is not a number"),
            (
                "SLURM_PROCID=8 SLURM_STEP_NUM_TASKS=8",
                "SLURM_PROCID=8 is outside SLURM_STEP_NUM_TASKS=8",
            ),
            (
                "SLURM_STEP_NUM_TASKS=8",
                "SLURM_STEP_NUM_TASKS=8, but SLURM_PROCID is not set",
            ),
            (
                "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 RANK=0 WORLD_SIZE=2",
                "Open MPI says that this is process 1 of 4, and torchrun's variables that it is process 0 of 2 \
                 (WORLD_SIZE=2): unset",
            ),
            // A torchrun of its own in each of two tasks, or `mpirun -n 2` by a process of torchrun's.
            (
                "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 RANK=1 WORLD_SIZE=2 GROUP_WORLD_SIZE=1 \
                 TORCHELASTIC_RUN_ID=none MASTER_ADDR=n0 MASTER_PORT=1",
                "Open MPI says that it has started 2 processes (OMPI_COMM_WORLD_SIZE=2), and torchrun that it has \
                 GROUP_WORLD_SIZE=1 agents",
            ),
            (
                "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 PMI_RANK=1 PMI_SIZE=4 RANK=9 WORLD_SIZE=16",
                "MPICH says that this is process 1 of 4, and torchrun's variables",
            ),
        ] {
            let error = find(variables).expect_err(variables).to_string();
            assert!(error.contains(expected), "{variables}: {error}");
        }
    }
}
