//! `burn-dist run`, and the supervisors that it starts.

use crate::run::{Options, Transport, run, supervise};
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Start a program in several processes, and stay with them to their end
///
/// Output has the rank of its process before every line; that of process 0 passes as it is on a terminal, where a
/// progress bar may be. When a process fails the others are ended, and its error comes last. SIGINT, SIGTERM and SIGHUP
/// are passed on, and the processes may take their time to end; a second one, at least a second later, kills them, and
/// a third leaves.
///
/// Exit codes: 0 if all ended with 0; else that of the process that failed first, or 128 + S if signal S killed it, or
/// ended all before they had started; 2: options that cannot be; 125: the launcher failed, or mpirun ended under the
/// processes; 126 and 127: the program cannot be run, is not there.
#[derive(Args)]
pub struct Run {
    /// Processes on this machine
    #[arg(long, value_name = "N")]
    nproc: usize,
    /// Machines; this command runs on each
    #[arg(long, value_name = "M", default_value_t = 1)]
    nnodes: usize,
    /// The number of this machine, from 0
    #[arg(long, value_name = "K", default_value_t = 0)]
    node_rank: usize,
    /// Where the processes meet: a name of machine 0 and a free port there [default: this machine only, any port]
    #[arg(long, value_name = "HOST:PORT")]
    rendezvous: Option<String>,
    /// How processes are started, and so what carries their messages [default: mpi on one machine, tcp on several]
    #[arg(long, value_enum)]
    transport: Option<How>,
    /// How often all processes are started anew after a failure, 1 s, 2 s, 4 s and at most 30 s later; not if the exit
    /// code says that the program cannot run as it was asked (2, 64, 65, 78, 126, 127). They read how often that was in
    /// BURN_DIST_RESTART
    #[arg(long, value_name = "R", default_value_t = 0)]
    max_restarts: u32,
    /// A file with the secret by which machines know each other [default: BURN_DIST_TOKEN, or a random one]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Pass the output of process 0 as it is, also into files and pipes
    #[arg(long)]
    quiet_prefix: bool,
    /// Seconds between SIGTERM and SIGKILL for processes that do not end after a failure
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    grace: u64,
    /// The program and its arguments, after --
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

#[derive(Clone, Copy, ValueEnum)]
enum How {
    /// By mpirun: MPI
    Mpi,
    /// Directly, with torchrun's variables: TCP
    #[value(alias = "direct")]
    Tcp,
}

impl Run {
    pub fn run(self) -> ExitCode {
        let mut options = Options::new(self.nproc, self.program);
        options.nnodes = self.nnodes;
        options.node_rank = self.node_rank;
        options.rendezvous = self.rendezvous;
        options.transport = self.transport.map(|how| match how {
            How::Mpi => Transport::Mpi,
            How::Tcp => Transport::Tcp,
        });
        options.max_restarts = self.max_restarts;
        options.token_file = self.token_file;
        options.quiet_prefix = self.quiet_prefix;
        options.grace = Duration::from_secs(self.grace);
        match run(&options) {
            Ok(code) => ExitCode::from(code),
            Err(error) => {
                // Whoever has closed it does not read it.
                let _ = writeln!(io::stderr(), "burn-dist: {error}");
                ExitCode::from(error.exit_code())
            }
        }
    }
}

/// One process of `run`
#[derive(Args)]
pub struct Supervise {
    socket: PathBuf,
    #[arg(last = true, required = true)]
    program: Vec<OsString>,
}

impl Supervise {
    pub fn run(self) -> ExitCode {
        match supervise(&self.socket, &self.program) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                let _ = writeln!(io::stderr(), "burn-dist supervise: {error}");
                ExitCode::from(125)
            }
        }
    }
}
