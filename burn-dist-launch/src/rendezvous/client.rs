//! One process at a rendezvous.

use super::RendezvousError;
use super::message::{
    Answer, FRAME_BYTES_MAX, Greeted, Greeting, Hello, Member, Message, Reply, Request,
    STRANGER_BYTES_MAX, read_frame, truncated, write_frame,
};
use super::secure::{Calling, Opened, Sealed};
use super::silence::silence;
use super::token::{Token, random};
use super::trouble::{Failure, Lost, Trouble};
use super::until::Until;
use burn_dist_comm::lock;
use burn_dist_comm::{EXIT_CONFIG, EXIT_TEMPORARY, StartError};
use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a client says that it is alive.
const ALIVE: Duration = Duration::from_secs(1);

/// How long a server may take to answer a hello.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);

/// How long one may take to say who is missing.
const LAST_WORD: Duration = Duration::from_secs(2);

/// Between attempts to reach a server that is not there yet.
const RETRY: Duration = Duration::from_millis(50);

/// One process, or one launcher, at a rendezvous; dropping it says goodbye.
///
/// A launcher that comes as [`Member::launcher`] hears what the processes hear, and of the failures that other
/// launchers have seen ([`Client::wait_for_trouble`], [`Client::failure`]); it can set and get keys, and has no part in
/// barriers.
///
/// ```
/// use burn_dist_launch::rendezvous::{Client, Member, Options, Server, Token};
/// use std::time::Duration;
///
/// let (token, patience) = (Token::random()?, Duration::from_secs(10));
/// let server = Server::listen("127.0.0.1:0", token.clone(), Options::new(1))?;
/// let me = Member::process(0, 1, 0);
/// let client = Client::connect(&server.address().to_string(), &token, me, patience)?;
/// client.set("id", b"abc")?;
/// assert_eq!(client.get("id", patience)?, b"abc");
/// client.barrier("everyone is here", patience)?;
/// assert!(client.lost().is_none());
/// client.goodbye();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Client {
    address: String,
    me: Member,
    run: u64,
    next: AtomicU64,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    writer: Mutex<Sealed<TcpStream>>,
    inbox: Mutex<Inbox>,
    arrived: Condvar,
    /// True if `inbox` knows of trouble: looked at often.
    is_troubled: AtomicBool,
    has_left: AtomicBool,
}

#[derive(Debug, Default)]
struct Inbox {
    /// Answers that nobody has taken yet.
    answers: HashMap<u64, Result<Vec<u8>, String>>,
    /// Requests that still wait for one.
    open: Vec<u64>,
    /// All losses and the first failure, as they came: each process and launcher is lost once at most.
    troubles: Vec<Trouble>,
    is_closed: bool,
}

/// Why an attempt to come in failed, and whether another one may not.
struct Attempt {
    error: RendezvousError,
    again: bool,
}

impl Client {
    /// Comes in, as `me`; tries for so long if there is nobody yet.
    ///
    /// # Errors
    /// If nobody listens there, or someone else does, or the server refuses this process; [`RendezvousError::Silence`].
    pub fn connect(
        address: &str,
        token: &Token,
        me: Member,
        patience: Duration,
    ) -> Result<Self, RendezvousError> {
        let (start, silence) = (Instant::now(), silence()?);
        loop {
            let attempt = match Self::attempt(address, token, &me, silence) {
                Ok(client) => return Ok(client),
                Err(attempt) => attempt,
            };
            if !attempt.again || start.elapsed() >= patience {
                return Err(match attempt.error {
                    RendezvousError::Unreachable {
                        address, reason, ..
                    } => RendezvousError::Unreachable {
                        address,
                        reason,
                        waited: start.elapsed(),
                    },
                    error => error,
                });
            }
            std::thread::sleep(RETRY);
        }
    }

    fn attempt(
        address: &str,
        token: &Token,
        me: &Member,
        silence: Option<Duration>,
    ) -> Result<Self, Attempt> {
        let unreachable = |reason: String| Attempt {
            error: RendezvousError::Unreachable {
                address: address.to_string(),
                reason,
                waited: Duration::ZERO,
            },
            again: true,
        };
        let impostor = |reason: String| Attempt {
            error: RendezvousError::Impostor {
                address: address.to_string(),
                reason,
            },
            again: false,
        };
        let broke = |error: std::io::Error| match error.kind() {
            ErrorKind::InvalidData => impostor(error.to_string()),
            ErrorKind::WouldBlock | ErrorKind::TimedOut => impostor(format!(
                "it says nothing for {} s",
                ANSWER_PATIENCE.as_secs()
            )),
            // It may just be ending.
            _ => unreachable(error.to_string()),
        };
        let mut found = address
            .to_socket_addrs()
            .map_err(|error| unreachable(error.to_string()))?;
        let mut connected = Err(unreachable("the name has no address".into()));
        while let (Err(_), Some(at)) = (&connected, found.next()) {
            connected = TcpStream::connect_timeout(&at, ANSWER_PATIENCE)
                .map_err(|error| unreachable(error.to_string()));
        }
        let mut stream = connected?;
        let set = |stream: &TcpStream| {
            stream.set_nodelay(true)?;
            stream.set_write_timeout(Some(ANSWER_PATIENCE))
        };
        set(&stream).map_err(broke)?;
        let until = Instant::now() + ANSWER_PATIENCE;
        let greeting = read_frame(&mut Until(&stream, until), STRANGER_BYTES_MAX).map_err(broke)?;
        let greeting =
            Greeting::read(&greeting).map_err(|malformed| impostor(malformed.to_string()))?;
        let nonce = random().map_err(broke)?;
        let context = Hello::context(&greeting.nonce, &nonce);
        let (calling, handshake) = Calling::begin(token, &context).map_err(broke)?;
        let said = Hello {
            version: env!("CARGO_PKG_VERSION").to_string(),
            nonce,
            member: me.clone(),
            silence,
            handshake,
        }
        .to_bytes();
        let proof = token.prove("client", &[&greeting.nonce, &said]);
        write_frame(&mut stream, &[&said[..], &proof].concat()).map_err(broke)?;
        let answer = read_frame(&mut Until(&stream, until), FRAME_BYTES_MAX).map_err(broke)?;
        let answer = Answer::read(&answer).map_err(|malformed| {
            match greeting.version == env!("CARGO_PKG_VERSION") {
                true => impostor(malformed.to_string()),
                false => impostor(format!(
                    "it runs version {} of burn-dist, and this process {}",
                    greeting.version,
                    env!("CARGO_PKG_VERSION")
                )),
            }
        })?;
        let handshake = match answer {
            Answer::Refused {
                reason,
                again,
                exit_code,
            } => {
                return Err(Attempt {
                    error: RendezvousError::Refused {
                        address: address.to_string(),
                        reason,
                        exit_code,
                    },
                    again,
                });
            }
            Answer::Welcome { handshake } => handshake,
        };
        let (greeted, keys) = calling
            .finish(&handshake)
            .map_err(|_| impostor("it does not know the token".into()))?;
        let Greeted { run, keeper } =
            Greeted::read(&greeted).map_err(|malformed| impostor(malformed.to_string()))?;
        let (seal, open) = keys.split();
        stream.set_read_timeout(None).map_err(broke)?;
        let to = stream.try_clone().map_err(broke)?;
        let reader = Opened::new(stream, open);
        let shared = Arc::new(Shared {
            writer: Mutex::new(Sealed { to, seal }),
            inbox: Mutex::new(Inbox::default()),
            arrived: Condvar::new(),
            is_troubled: AtomicBool::new(false),
            has_left: AtomicBool::new(false),
        });
        let (reading, living) = (Arc::clone(&shared), Arc::downgrade(&shared));
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new()
                .name(name.into())
                .stack_size(256 << 10)
                .spawn(run)
        };
        spawn(
            "rendezvous in",
            Box::new(move || reading.read(reader, keeper)),
        )
        .map_err(broke)?;
        let alive = move || {
            // A send now and then, until the client is gone.
            loop {
                std::thread::sleep(ALIVE);
                match living.upgrade() {
                    Some(shared) if !shared.has_left.load(Ordering::Acquire) => {
                        let _ = shared.send(&Request::Alive);
                    }
                    _ => return,
                }
            }
        };
        spawn("rendezvous out", Box::new(alive)).map_err(broke)?;
        Ok(Self {
            address: address.to_string(),
            me: me.clone(),
            run,
            next: AtomicU64::new(0),
            shared,
        })
    }

    /// Returns who this process is, as it has described itself to the server.
    pub fn me(&self) -> &Member {
        &self.me
    }

    /// Returns a random number that the server has drawn, the same for all who are in.
    pub fn run(&self) -> u64 {
        self.run
    }

    /// Returns where the server is.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the address of this machine by which it reaches the server.
    pub(crate) fn local_ip(&self) -> std::io::Result<std::net::IpAddr> {
        Ok(lock(&self.shared.writer).to.local_addr()?.ip())
    }

    /// Sets a key, once: setting it again to another value is an error.
    ///
    /// # Errors
    /// If it is set already, or larger than allowed, or the rendezvous is over.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<(), RendezvousError> {
        // Room for what is around the value in its frame.
        let most = FRAME_BYTES_MAX - 1024;
        if value.len() > most {
            return Err(RendezvousError::Failed {
                what: format!("set `{key}`"),
                reason: format!("a value has at most {most} bytes, this one {}", value.len()),
            });
        }
        let set = |id| Request::Set {
            id,
            key: key.to_string(),
            value: value.to_vec(),
        };
        self.ask(&format!("set `{key}`"), ANSWER_PATIENCE, set)
            .map(drop)
    }

    /// Returns the value of a key, once someone has set it.
    ///
    /// # Errors
    /// If nobody has after so long, or a process has vanished, or the rendezvous is over.
    pub fn get(&self, key: &str, patience: Duration) -> Result<Vec<u8>, RendezvousError> {
        self.ask(&format!("the key `{key}`"), patience, |id| Request::Get {
            id,
            key: key.to_string(),
        })
    }

    /// Waits until every process waits at the barrier of this name.
    ///
    /// # Errors
    /// If someone has not come after so long, who is named, or one has ended, or the rendezvous is over.
    pub fn barrier(&self, name: &str, patience: Duration) -> Result<(), RendezvousError> {
        let barrier = |id| Request::Barrier {
            id,
            name: name.to_string(),
        };
        self.ask(
            &format!("all {} processes at `{name}`", self.me.world_size),
            patience,
            barrier,
        )
        .map(drop)
    }

    /// Returns the first process or launcher that has vanished without a goodbye, if any has. Costs a load.
    pub fn lost(&self) -> Option<Lost> {
        self.lost_among(|_| true)
    }

    /// Returns the first that has vanished of those of which `counts` says so.
    pub(crate) fn lost_among(&self, counts: impl Fn(&Lost) -> bool) -> Option<Lost> {
        self.first(|trouble| match trouble {
            Trouble::Lost(lost) if counts(lost) => Some(lost.clone()),
            Trouble::Lost(_) | Trouble::Failed(_) => None,
        })
    }

    /// Returns the first failure that another process or launcher has reported, if any has. Costs a load.
    pub fn failure(&self) -> Option<Failure> {
        self.first(|trouble| match trouble {
            Trouble::Lost(_) => None,
            Trouble::Failed(failure) => Some(failure.clone()),
        })
    }

    /// Returns why the processes cannot go on together, if they cannot: one has vanished, or failed, or does not fit;
    /// what was heard first. Costs a load.
    pub fn trouble(&self) -> Option<String> {
        self.first(|trouble| Some(trouble.to_string()))
    }

    /// Returns the same as [`Client::trouble`], with the exit code to end with.
    pub(crate) fn start_trouble(&self) -> Option<StartError> {
        self.first(|trouble| {
            Some(match trouble {
                Trouble::Lost(lost) => StartError::temporary(lost.to_string()),
                Trouble::Failed(failure) => {
                    StartError::relayed(failure.reason.as_str(), failure.exit_code)
                }
            })
        })
    }

    fn first<T>(&self, wanted: impl FnMut(&Trouble) -> Option<T>) -> Option<T> {
        match self.shared.is_troubled.load(Ordering::Acquire) {
            true => lock(&self.shared.inbox).troubles.iter().find_map(wanted),
            false => None,
        }
    }

    /// Waits for [trouble](Self::trouble) and returns it; `None` once the rendezvous is over, or this client has sent
    /// its goodbye, without any.
    pub fn wait_for_trouble(&self) -> Option<String> {
        self.wait_for_more_trouble(0)?;
        self.trouble()
    }

    /// Waits until there are more than `known` pieces of trouble; returns how many there are then, and `None` once no
    /// more can come.
    pub(crate) fn wait_for_more_trouble(&self, known: usize) -> Option<usize> {
        let mut inbox = lock(&self.shared.inbox);
        loop {
            if inbox.troubles.len() > known {
                return Some(inbox.troubles.len());
            }
            if inbox.is_closed || self.shared.has_left.load(Ordering::Acquire) {
                return None;
            }
            let woken = self.shared.arrived.wait(inbox);
            inbox = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Tells all processes, those still to come too, and all launchers that this process cannot go on: whatever they
    /// wait for here ends with the reason, and the exit code of what cannot be set up. [`Client::fail_with`] takes that
    /// of another failure.
    pub fn fail(&self, reason: &str) {
        self.fail_with(reason, EXIT_CONFIG);
    }

    /// Does the same as [`Client::fail`], with the exit code of what failed. What a launcher says is passed on word for
    /// word: it names the process that it speaks of.
    pub fn fail_with(&self, reason: &str, exit_code: u8) {
        let reason = truncated(reason, 8 << 10).to_string();
        let _ = self.shared.send(&Request::Fail { reason, exit_code });
    }

    /// Says goodbye: that this process ends is no loss. Nothing can be asked afterwards.
    pub fn goodbye(&self) {
        if !self.shared.has_left.swap(true, Ordering::AcqRel) {
            let _ = self.shared.send(&Request::Goodbye);
            let _ = lock(&self.shared.writer).to.shutdown(Shutdown::Write);
            // Whoever has just seen that it had not left waits by now, and is woken.
            drop(lock(&self.shared.inbox));
            self.shared.arrived.notify_all();
        }
    }

    fn ask(
        &self,
        what: &str,
        patience: Duration,
        request: impl FnOnce(u64) -> Request,
    ) -> Result<Vec<u8>, RendezvousError> {
        let id = self.send(request)?;
        match self.answer(id, patience)? {
            Some(answer) => answer.map_err(|reason| RendezvousError::Failed {
                what: format!("wait for {what}").replace("wait for set", "set"),
                reason,
            }),
            None => {
                let waiting = id;
                let id = self.send(|id| Request::GiveUp { id, waiting })?;
                let reason = match self.answer(id, LAST_WORD)? {
                    Some(Err(reason)) => reason,
                    _ => "the rendezvous does not say why".into(),
                };
                Err(RendezvousError::Timeout {
                    what: what.to_string(),
                    reason,
                    waited: patience,
                })
            }
        }
    }

    fn send(&self, request: impl FnOnce(u64) -> Request) -> Result<u64, RendezvousError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.shared.inbox).open.push(id);
        if self.shared.send(&request(id)).is_err() {
            // Why that is so, the thread that reads finds out.
            tracing::debug!(
                "the connection to the rendezvous at {} has ended",
                self.address
            );
        }
        Ok(id)
    }

    /// Waits for an answer; `None` if it has not come in time.
    fn answer(
        &self,
        id: u64,
        patience: Duration,
    ) -> Result<Option<Result<Vec<u8>, String>>, RendezvousError> {
        let start = Instant::now();
        let mut inbox = lock(&self.shared.inbox);
        loop {
            if let Some(answer) = inbox.answers.remove(&id) {
                return Ok(Some(answer));
            }
            let end = match inbox.troubles.first() {
                Some(Trouble::Failed(failure)) => Some(RendezvousError::Broken {
                    reason: failure.reason.clone(),
                    exit_code: failure.exit_code,
                }),
                Some(Trouble::Lost(lost)) => Some(RendezvousError::Lost(lost.clone())),
                None if inbox.is_closed => Some(RendezvousError::Broken {
                    reason: format!(
                        "the rendezvous at {} is over: its process has ended",
                        self.address
                    ),
                    exit_code: EXIT_TEMPORARY,
                }),
                None => None,
            };
            let left = patience.checked_sub(start.elapsed());
            if end.is_some() || left.is_none() {
                inbox.open.retain(|open| *open != id);
            }
            if let Some(end) = end {
                return Err(end);
            }
            let Some(left) = left else {
                return Ok(None);
            };
            let woken = self.shared.arrived.wait_timeout(inbox, left);
            inbox = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.goodbye();
    }
}

impl Shared {
    fn send(&self, request: &Request) -> std::io::Result<()> {
        write_frame(&mut *lock(&self.writer), &request.to_bytes())
    }

    /// Reads what the server says until it says no more.
    fn read(&self, mut reader: Opened<TcpStream>, keeper: Option<Member>) {
        loop {
            let reply =
                read_frame(&mut reader, FRAME_BYTES_MAX).map_err(|error| match error.kind() {
                    ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => {
                        "its connection ended without a goodbye".to_string()
                    }
                    _ => error.to_string(),
                });
            let reply = reply.and_then(|frame| {
                Reply::read(&frame)
                    .map_err(|malformed| format!("it sent what is no reply: {malformed}"))
            });
            let mut inbox = lock(&self.inbox);
            let is_end = match reply {
                Ok(Reply::Done { id, value }) => inbox.answer(id, Ok(value)),
                Ok(Reply::Failed { id, reason }) => inbox.answer(id, Err(reason)),
                Ok(Reply::Lost { member, reason }) => {
                    let member = Some(member);
                    self.trouble(&mut inbox, Trouble::Lost(Lost { member, reason }));
                    false
                }
                Ok(Reply::Broken { reason, exit_code }) => {
                    let failure = Failure { reason, exit_code };
                    self.trouble(&mut inbox, Trouble::Failed(failure));
                    false
                }
                Ok(Reply::Closing) => {
                    inbox.is_closed = true;
                    true
                }
                Err(reason) => {
                    inbox.is_closed = true;
                    if !self.has_left.load(Ordering::Acquire) {
                        let member = keeper.clone();
                        self.trouble(&mut inbox, Trouble::Lost(Lost { member, reason }));
                    }
                    true
                }
            };
            drop(inbox);
            self.arrived.notify_all();
            if is_end {
                return;
            }
        }
    }

    /// Keeps trouble; of failures, the first.
    fn trouble(&self, inbox: &mut Inbox, trouble: Trouble) {
        let is_failure = |trouble: &Trouble| matches!(trouble, Trouble::Failed(_));
        if !is_failure(&trouble) || !inbox.troubles.iter().any(is_failure) {
            inbox.troubles.push(trouble);
        }
        self.is_troubled.store(true, Ordering::Release);
    }
}

impl Inbox {
    /// Keeps an answer that someone waits for.
    fn answer(&mut self, id: u64, answer: Result<Vec<u8>, String>) -> bool {
        let before = self.open.len();
        self.open.retain(|open| *open != id);
        if self.open.len() < before {
            self.answers.insert(id, answer);
        }
        false
    }
}
