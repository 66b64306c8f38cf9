//! The rendezvous of this process's launch.

use super::rendezvous::{
    Client, Member, Options, RendezvousError, Server, Token, TokenError, silence,
};
use super::seconds::seconds;
use super::{ClusterEnv, ClusterEnvError, restarts};
use burn_dist_comm::{EXIT_CONFIG, lock};
#[cfg(unix)]
use std::net::ToSocketAddrs;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// The variable that says for how many seconds processes wait for each other at the start, at most a day.
pub const JOIN_SECONDS: &str = "BURN_DIST_JOIN_SECONDS";

/// How long processes wait for each other at the start, unless [`JOIN_SECONDS`] says otherwise: schedulers do not start
/// all machines at once.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why this process cannot join the others.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// Variables that contradict themselves.
    #[error(transparent)]
    ClusterEnv(#[from] ClusterEnvError),
    /// A token that is none.
    #[error("{0}")]
    Token(String),
    /// No address to meet at.
    #[error(
        "{launcher} does not say where the processes meet: set MASTER_ADDR to the machine of rank 0 and MASTER_PORT to \
         a free port there, or start the program with `burn-dist run` or `mpirun` (with Slurm: `srun --mpi=pmix`)"
    )]
    Nowhere {
        /// The launcher that has started this process.
        launcher: String,
    },
    /// Processes on several machines without a token.
    #[error(
        "processes that meet at {master}, which others can reach too, need a secret to know each other by: set \
         BURN_DIST_TOKEN to the same in all of them (`openssl rand -hex 32` makes one)"
    )]
    NoToken {
        /// Where they meet.
        master: String,
    },
    /// A number of seconds that is none.
    #[error("{JOIN_SECONDS}={0} is not a number of seconds")]
    Seconds(String),
    /// The rendezvous.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
}

burn_dist_mesh::debug_by_message!(JoinError);

impl JoinError {
    /// Returns the exit code for a program that this ends: see [`CommError::exit_code`](burn_dist_comm::CommError).
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Rendezvous(error) => error.exit_code(),
            Self::ClusterEnv(_)
            | Self::Token(_)
            | Self::Nowhere { .. }
            | Self::NoToken { .. }
            | Self::Seconds(_) => EXIT_CONFIG,
        }
    }
}

impl From<TokenError> for JoinError {
    fn from(error: TokenError) -> Self {
        Self::Token(error.to_string())
    }
}

/// This process's part in the rendezvous of its launch: its client, and the server if it is kept here.
#[derive(Debug)]
pub struct Membership {
    client: Client,
    server: Mutex<Option<Server>>,
    token: Token,
    patience: Duration,
}

impl Membership {
    /// Returns this process's connection.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns what the processes know each other by.
    pub(crate) fn token(&self) -> &Token {
        &self.token
    }

    /// Returns how long processes wait for each other at the start.
    pub fn patience(&self) -> Duration {
        self.patience
    }
}

/// Joins the rendezvous of this process's launch, once; keeps it if this is the process that does. When the program
/// ends it says goodbye.
///
/// # Errors
/// If the launcher does not say where, or the others cannot be reached there; every later call returns the same.
pub fn join(env: &ClusterEnv) -> Result<&'static Membership, JoinError> {
    static MEMBERSHIP: OnceLock<Result<Membership, JoinError>> = OnceLock::new();
    extern "C" fn end() {
        if let Some(Ok(membership)) = MEMBERSHIP.get() {
            membership.client.goodbye();
            lock(&membership.server).take();
        }
    }
    let mut is_first = false;
    let joined = MEMBERSHIP.get_or_init(|| {
        is_first = true;
        connect(env)
    });
    if is_first && joined.is_ok() {
        // SAFETY: the function touches a static that is never dropped, and sockets.
        unsafe { libc::atexit(end) };
    }
    joined.as_ref().map_err(JoinError::clone)
}

fn connect(env: &ClusterEnv) -> Result<Membership, JoinError> {
    let restarts = restarts()?;
    let nowhere = || JoinError::Nowhere {
        launcher: env.launcher.to_string(),
    };
    let master = env.master.as_ref().ok_or_else(nowhere)?;
    let address = master.to_string();
    let token = match Token::of_process()? {
        Some(token) => token,
        None => default_token(&address)?,
    };
    let patience = patience()?;
    // There are at most 65,536 of them.
    let me = Member::process(env.rank as u32, env.world_size as u32, restarts);
    let server = match master.is_rank_zero && env.rank == 0 {
        true => {
            let mut options = Options::new(me.world_size)
                .restarts(restarts)
                .several_machines(env.local_size.is_some_and(|here| here < env.world_size))
                .keeper(me.clone());
            options.silence = silence()?.unwrap_or(options.silence);
            Some(Server::listen(&address, token.clone(), options)?)
        }
        false => None,
    };
    let client = Client::connect(&address, &token, me, patience)?;
    burn_dist_comm::flight::name_run(client.run());
    Ok(Membership {
        client,
        server: Mutex::new(server),
        token,
        patience,
    })
}

/// Returns how long processes wait for each other at the start.
pub(crate) fn patience() -> Result<Duration, JoinError> {
    let Some(text) = std::env::var_os(JOIN_SECONDS) else {
        return Ok(PATIENCE);
    };
    let text = text.to_string_lossy();
    seconds(&text).ok_or_else(|| JoinError::Seconds(text.into_owned()))
}

/// Returns the token where none is set. Nobody from another machine gets to its loopback address, but other users do:
/// there it is that of this user.
fn default_token(address: &str) -> Result<Token, JoinError> {
    #[cfg(unix)]
    if is_loopback(address) {
        return Ok(Token::of_user()?);
    }
    let master = address.to_string();
    Err(JoinError::NoToken { master })
}

/// Returns true if only this machine reaches an address.
#[cfg(unix)]
fn is_loopback(address: &str) -> bool {
    let found = address.to_socket_addrs();
    found.is_ok_and(|mut found| found.all(|address| address.ip().is_loopback()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_address_goes_without_a_secret() {
        #[cfg(unix)]
        for address in ["127.0.0.1:7", "[::1]:7", "localhost:7"] {
            let token = default_token(address).expect("that of the user");
            let again = default_token(address).expect("that of the user");
            assert!(token.secret().len() >= 32 && token.secret() == again.secret());
        }
        for address in ["10.0.0.7:7", "0.0.0.0:7", "[fe80::1%1]:7"] {
            let error = default_token(address).expect_err(address).to_string();
            let expected = format!("processes that meet at {address}, which others can reach too");
            assert!(error.contains(&expected), "{error}");
        }
    }
}
