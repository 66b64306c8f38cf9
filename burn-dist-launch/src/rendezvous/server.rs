//! The connections of a rendezvous.

use super::RendezvousError;
use super::limits::SILENCE;
use super::message::{
    Answer, FRAME_BYTES_MAX, Greeted, Greeting, Hello, Id, Member, Message, Reply, Request, Role,
    STRANGER_BYTES_MAX, read_frame, truncated, write_frame,
};
use super::secure::{Open, Opened, Sealed, answer};
use super::state::{Out, State};
use super::token::{PROOF_BYTES, Token, random};
use super::until::Until;
use crate::seconds::DAY;
use burn_dist_comm::{EXIT_CONFIG, lock};
use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Connections of those who have not yet named themselves, at most.
pub const STRANGERS_MAX: usize = 64;

/// How long a message to a process may take: they are small, so that one that takes nothing is not running.
const WRITE_PATIENCE: Duration = Duration::from_secs(2);

const STACK_BYTES: usize = 256 << 10;

/// The options of a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// How many processes there are.
    pub world_size: u32,
    /// How many launchers come too, each as a [`Member::launcher`].
    pub launchers: u32,
    /// True if some of them are on other machines, which have to reach the server.
    pub several_machines: bool,
    /// How often the program has been started anew.
    pub restarts: u32,
    /// How long a process may be silent before it counts as lost, unless its own environment says
    /// ([`SILENCE_SECONDS`](super::SILENCE_SECONDS)); clients say that they are alive every second.
    pub silence: Duration,
    /// How long a stranger may take to say who it is, all in all.
    pub stranger_patience: Duration,
    /// The process that keeps the rendezvous; `None` if that is the launcher.
    pub keeper: Option<Member>,
    /// The version of this crate that all have to run.
    pub version: String,
}

impl Options {
    /// Returns the options for so many processes of this version, started for the first time.
    pub fn new(world_size: u32) -> Self {
        Self {
            world_size,
            launchers: 0,
            several_machines: false,
            restarts: 0,
            silence: SILENCE,
            stranger_patience: Duration::from_secs(5),
            keeper: None,
            version: env!("CARGO_PKG_VERSION").to_string(),
        }
    }

    /// Sets how many launchers come too, one per machine.
    pub fn launchers(mut self, launchers: u32) -> Self {
        self.launchers = launchers;
        self.several_machines |= launchers > 1;
        self
    }

    /// Sets whether other machines have to reach the server.
    pub fn several_machines(mut self, several_machines: bool) -> Self {
        self.several_machines = several_machines;
        self
    }

    /// Sets how often the program has been started anew.
    pub fn restarts(mut self, restarts: u32) -> Self {
        self.restarts = restarts;
        self
    }

    /// Sets how long a process may be silent.
    pub fn silence(mut self, silence: Duration) -> Self {
        self.silence = silence;
        self
    }

    /// Sets how long a stranger may take to say who it is.
    pub fn stranger_patience(mut self, patience: Duration) -> Self {
        self.stranger_patience = patience;
        self
    }

    /// Sets the process that keeps the rendezvous: whom the others miss if their connections end.
    pub fn keeper(mut self, keeper: Member) -> Self {
        self.keeper = Some(keeper);
        self
    }

    #[cfg(test)]
    pub(crate) fn version(mut self, version: &str) -> Self {
        self.version = version.to_string();
        self
    }
}

/// A rendezvous; ends when it is dropped, and tells those who are still there that this is no loss.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    token: Token,
    options: Options,
    state: Mutex<State>,
    changed: Condvar,
    /// How to reach those who are in.
    writers: Mutex<HashMap<Id, Arc<Mutex<Sealed<TcpStream>>>>>,
    /// A random number, the same for all who are in.
    run: u64,
    strangers: AtomicUsize,
    is_closing: AtomicBool,
}

/// Returns what is wrong with the address of a server for several machines, as it was `written`, if it is `bound` where
/// only this one gets.
fn wrong_for_others(written: &str, bound: SocketAddr) -> Option<String> {
    let (host, port) = written.rsplit_once(':')?;
    let literal = host.trim_start_matches('[').trim_end_matches(']');
    let is_meant = host.eq_ignore_ascii_case("localhost")
        || literal.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    (bound.ip().is_loopback() && !is_meant).then(|| {
        format!(
            "{host} is {} on this machine (/etc/hosts), which no other machine reaches: write its address, as in \
             10.0.0.7:{port}, or take that line out of /etc/hosts",
            bound.ip()
        )
    })
}

impl Server {
    /// Listens at an address, which has to be one of this machine: at `127.0.0.1:0`, only processes of this machine
    /// reach it, at a port that is free.
    ///
    /// # Errors
    /// [`RendezvousError::Listen`] if the name is unknown, the address is another machine's, or one that others cannot
    /// reach where they have to, or the port is taken.
    pub fn listen(address: &str, token: Token, options: Options) -> Result<Self, RendezvousError> {
        let failed = |reason: String| RendezvousError::Listen {
            address: address.to_string(),
            reason,
        };
        let found: Vec<SocketAddr> = address
            .to_socket_addrs()
            .map_err(|error| {
                failed(format!(
                    "{error}; write HOST:PORT with a name that this machine knows"
                ))
            })?
            .collect();
        let listener = TcpListener::bind(&found[..]).map_err(|error| {
            failed(match error.kind() {
                ErrorKind::AddrInUse => {
                    "another program listens at this port: choose another one, or end what an \
                    earlier run has left"
                        .into()
                }
                ErrorKind::AddrNotAvailable => {
                    "this is not an address of this machine: the process of rank 0, and \
                    `burn-dist run --node-rank 0`, have to run on the machine that has it"
                        .into()
                }
                ErrorKind::PermissionDenied => {
                    "ports below 1024 are not for everyone: choose a higher one".into()
                }
                _ => error.to_string(),
            })
        })?;
        let written = address;
        let address = listener
            .local_addr()
            .map_err(|error| failed(error.to_string()))?;
        if options.several_machines
            && let Some(reason) = wrong_for_others(written, address)
        {
            return Err(failed(reason));
        }
        let random = random().map_err(|error| failed(error.to_string()))?;
        let run = random.first_chunk().copied().map(u64::from_le_bytes);
        let shared = Arc::new(Shared {
            token,
            state: Mutex::new(State::new(
                options.world_size,
                options.launchers,
                options.restarts,
                &options.version,
            )),
            run: run.expect("a nonce has more than 8 bytes"),
            options,
            changed: Condvar::new(),
            writers: Mutex::new(HashMap::new()),
            strangers: AtomicUsize::new(0),
            is_closing: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        let accepting = spawn("rendezvous", move || accepting.accept(&listener))
            .map_err(|error| failed(error.to_string()))?;
        Ok(Self {
            shared,
            address,
            accepting: Some(accepting),
        })
    }

    /// Returns where the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until every process has come and gone, for at most so long; says whether they have.
    #[cfg(test)]
    pub(crate) fn wait(&self, patience: Duration) -> bool {
        self.wait_until(patience, |state| state.have_gone(Role::Process))
    }

    /// Waits until every launcher has come and gone, for at most so long; says whether they have. One that keeps the
    /// server says goodbye itself before.
    pub fn wait_for_launchers(&self, patience: Duration) -> bool {
        self.wait_until(patience, |state| state.have_gone(Role::Launcher))
    }

    /// Waits until nobody is there, neither process nor launcher, for at most so long; says whether that is so.
    #[cfg(test)]
    pub(crate) fn wait_empty(&self, patience: Duration) -> bool {
        self.wait_until(patience, State::is_empty)
    }

    fn wait_until(&self, patience: Duration, is_so: impl Fn(&State) -> bool) -> bool {
        let start = Instant::now();
        let mut state = lock(&self.shared.state);
        loop {
            if is_so(&state) {
                return true;
            }
            let Some(left) = patience.checked_sub(start.elapsed()) else {
                return false;
            };
            let woken = self.shared.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.is_closing.store(true, Ordering::Release);
        let writers: Vec<_> = lock(&self.shared.writers).drain().collect();
        for (_, writer) in writers {
            let mut writer = lock(&writer);
            let _ = write_frame(&mut *writer, &Reply::Closing.to_bytes());
            let _ = writer.to.shutdown(Shutdown::Both);
        }
        // Wakes the thread that accepts, which then sees that it is over. It owns the listener: once it has ended, the
        // port is free for the next start.
        let mut own = self.address;
        if own.ip().is_unspecified() {
            own.set_ip(match own.ip() {
                IpAddr::V4(_) => IpAddr::from([127, 0, 0, 1]),
                IpAddr::V6(_) => IpAddr::from(std::net::Ipv6Addr::LOCALHOST),
            });
        }
        let woken = TcpStream::connect_timeout(&own, Duration::from_secs(1));
        if let (Ok(_), Some(accepting)) = (woken, self.accepting.take()) {
            let _ = accepting.join();
        }
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    let thread = std::thread::Builder::new()
        .name(name.into())
        .stack_size(STACK_BYTES);
    thread.spawn(run)
}

impl Shared {
    fn accept(self: Arc<Self>, listener: &TcpListener) {
        loop {
            let accepted = listener.accept();
            if self.is_closing.load(Ordering::Acquire) {
                return;
            }
            let Ok((stream, from)) = accepted else {
                // Out of file descriptors, say: that may pass.
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            if self.strangers.fetch_add(1, Ordering::AcqRel) >= STRANGERS_MAX {
                self.strangers.fetch_sub(1, Ordering::AcqRel);
                continue;
            }
            let shared = Arc::clone(&self);
            if spawn("rendezvous with", move || shared.serve(stream, from)).is_err() {
                self.strangers.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    fn serve(&self, mut stream: TcpStream, from: SocketAddr) {
        let come_in = self.let_in(&mut stream, from);
        self.strangers.fetch_sub(1, Ordering::AcqRel);
        let Some((who, silence, open)) = come_in else {
            return;
        };
        let reason = self.requests(who, silence, &stream, open);
        lock(&self.writers).remove(&who);
        if let Some(reason) = reason
            && !self.is_closing.load(Ordering::Acquire)
        {
            let out = lock(&self.state).lost(who, &reason);
            self.send(out);
        }
        self.changed.notify_all();
        let _ = stream.shutdown(Shutdown::Both);
    }

    /// Finds out who connects; returns that, how long it may be silent, and what opens what it says, if it may stay.
    fn let_in(&self, stream: &mut TcpStream, from: SocketAddr) -> Option<(Id, Duration, Open)> {
        let until = Instant::now() + self.options.stranger_patience;
        let turn_away = |reason: String| {
            tracing::warn!("the rendezvous turned {from} away: {reason}");
            lock(&self.state).turn_away(format!("{from}, {reason}"));
        };
        let _ = stream.set_nodelay(true);
        stream.set_write_timeout(Some(WRITE_PATIENCE)).ok()?;
        let nonce = random().ok()?;
        let version = self.options.version.clone();
        write_frame(stream, &Greeting { version, nonce }.to_bytes()).ok()?;
        let frame = match read_frame(&mut Until(stream, until), STRANGER_BYTES_MAX) {
            Ok(frame) => frame,
            Err(error) => {
                // Whoever only knocks, to see whether the port is open, is nobody.
                if error.kind() != ErrorKind::UnexpectedEof
                    && error.kind() != ErrorKind::ConnectionReset
                {
                    turn_away(format!("which did not say who it is ({error})"));
                }
                return None;
            }
        };
        let Some((said, proof)) = frame.split_last_chunk::<PROOF_BYTES>() else {
            turn_away(format!(
                "which said {} bytes that are no hello",
                frame.len()
            ));
            return None;
        };
        let version = Hello::version(said).unwrap_or_else(|_| "unknown".into());
        let hello = Hello::read(said).ok();
        let who = match &hello {
            Some(hello) => hello.member.to_string(),
            None => "someone".into(),
        };
        if !self.token.verify("client", &[&nonce, said], proof) {
            turn_away(format!("{who}, with another token"));
            let reason = format!(
                "{who} has another token: give all processes the same {}, or start all of them with one launcher",
                super::TOKEN
            );
            let _ = write_frame(
                stream,
                &Answer::Refused {
                    reason,
                    again: false,
                    exit_code: EXIT_CONFIG,
                }
                .to_bytes(),
            );
            return None;
        }
        // One of another version says it in another way, and is refused for that.
        let sealed = hello.as_ref().and_then(|hello| {
            let context = Hello::context(&nonce, &hello.nonce);
            let (run, keeper) = (self.run, self.options.keeper.clone());
            let greeted = Greeted { run, keeper }.to_bytes();
            answer(&self.token, &context, &hello.handshake, &greeted).ok()
        });
        if hello.is_some() && sealed.is_none() {
            turn_away(format!("{who}, with a handshake that is none"));
            return None;
        }
        let to = stream.try_clone().ok()?;
        let mut state = lock(&self.state);
        let entered = state.hello(
            truncated(&version, 64),
            hello.as_ref().map(|hello| hello.member.clone()),
        );
        match (entered, hello.zip(sealed)) {
            (Ok(()), Some((hello, (handshake, keys)))) => {
                let (seal, open) = keys.split();
                let who = hello.member.id();
                let silence = hello.silence.unwrap_or(self.options.silence);
                // Its writer is there before anyone can send it anything, and held until it is welcome.
                let writer = Arc::new(Mutex::new(Sealed { to, seal }));
                let held = lock(&writer);
                lock(&self.writers).insert(who, Arc::clone(&writer));
                drop(state);
                self.changed.notify_all();
                // If that fails, reading does too, and the process is lost.
                let _ = write_frame(stream, &Answer::Welcome { handshake }.to_bytes());
                drop(held);
                Some((who, silence.min(DAY), open))
            }
            (Ok(()), None) => None,
            (Err(refusal), _) => {
                drop(state);
                let reason = refusal.reason;
                if !refusal.again {
                    turn_away(reason.clone());
                }
                let refused = Answer::Refused {
                    reason,
                    again: refusal.again,
                    exit_code: refusal.exit_code,
                };
                let _ = write_frame(stream, &refused.to_bytes());
                self.send(refusal.out);
                None
            }
        }
    }

    /// Serves a process until it goes; returns why, unless it has sent its goodbye.
    fn requests(
        &self,
        who: Id,
        silence: Duration,
        stream: &TcpStream,
        open: Open,
    ) -> Option<String> {
        let mut reader = Opened::new(stream, open);
        if let Err(error) = stream.set_read_timeout(Some(silence)) {
            return Some(error.to_string());
        }
        loop {
            let frame = match read_frame(&mut reader, FRAME_BYTES_MAX) {
                Ok(frame) => frame,
                Err(error) => {
                    return Some(match error.kind() {
                        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                            format!("nothing was heard of it for {:.1} s", silence.as_secs_f64())
                        }
                        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => {
                            "its connection ended without a goodbye".into()
                        }
                        _ => error.to_string(),
                    });
                }
            };
            let request = match Request::read(&frame) {
                Ok(request) => request,
                Err(malformed) => return Some(format!("it sent what is no request: {malformed}")),
            };
            let is_goodbye = request == Request::Goodbye;
            let out = lock(&self.state).request(who, request);
            self.send(out);
            if is_goodbye {
                return None;
            }
        }
    }

    /// Sends; a process that does not take it will be found lost by the thread that reads from it.
    fn send(&self, out: Vec<Out>) {
        for (who, reply) in out {
            let writer = lock(&self.writers).get(&who).cloned();
            let Some(writer) = writer else {
                continue;
            };
            let mut writer = lock(&writer);
            if write_frame(&mut *writer, &reply.to_bytes()).is_err() {
                let _ = writer.to.shutdown(Shutdown::Both);
            }
        }
    }
}
