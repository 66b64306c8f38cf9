//! TCP between processes whose ranks communicate by themselves: GPUs with NCCL, in a program without MPI.
//!
//! Such processes tell each other little: what they run, what they read, who stops. Each two of them have a connection
//! for that. They find each other's addresses at the [rendezvous](super::rendezvous); both ends prove that they know
//! its token, and seal what they say. This is no transport for tensors: a message with more than [`BODY_BYTES_MAX`]
//! bytes is an error that says what to do instead.

use super::rendezvous::{
    Calling, Client, HANDSHAKE_BYTES, Keys, NONCE_BYTES, Open, RendezvousError, Seal, Token, Until,
    answer as answered, random,
};
use burn_dist_comm::{Block, Matcher, Message, Pool, StartError, Transport};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

#[cfg(test)]
mod tests;

/// The most bytes that a message carries besides its head.
const BODY_BYTES_MAX: usize = 1 << 20;

/// The longest head; the engine's are shorter.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// How long a stranger may take to prove that it is none, all in all.
const STRANGER_PATIENCE: Duration = Duration::from_secs(5);

/// Callers that are answered at the same time, at most; the others wait.
const CALLERS_MAX: usize = 64;

/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;

/// The connections of one process to all others; `C` is that to the rendezvous.
pub(super) struct Tcp<C> {
    client: C,
    /// By process; `None` for this one, and for those that have hung up.
    connections: Vec<Option<Connection>>,
    /// The process whose connection is looked at first.
    next: usize,
    /// Where what comes is read into first, from whichever connection.
    scratch: Box<[u8]>,
    pool: Arc<Pool>,
    failed: Option<String>,
}

struct Connection {
    stream: TcpStream,
    /// Seals what is sent.
    seal: Seal,
    /// What is still to be sent.
    out: Vec<u8>,
    /// Opens what has come.
    open: Open,
    /// What has come, and is not a whole record yet.
    sealed: Vec<u8>,
    /// What was in records, and is not a whole message yet.
    into: Vec<u8>,
}

type HeadAndBody = (Vec<u8>, Vec<u8>);

/// Why a connection is of no use any more.
enum Broken {
    HungUp,
    Malformed(String),
}

impl Connection {
    fn new(stream: TcpStream, keys: Keys) -> std::io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(None)?;
        stream.set_nonblocking(true)?;
        let (seal, open) = keys.split();
        Ok(Self {
            stream,
            seal,
            out: Vec::new(),
            open,
            sealed: Vec::new(),
            into: Vec::new(),
        })
    }

    /// Adds a message to what is to be sent.
    fn push(&mut self, head: &[u8], body: &[u8]) -> Result<(), Broken> {
        let lengths = [head.len(), body.len()].map(|len| (len as u32).to_le_bytes());
        let message = [&lengths[0][..], &lengths[1], head, body].concat();
        let sealed = self.seal.append(&message, &mut self.out);
        sealed.map_err(|error| Broken::Malformed(error.to_string()))
    }

    /// Sends what can be sent without waiting.
    fn flush(&mut self) -> Result<(), Broken> {
        let mut sent = 0;
        while sent < self.out.len() {
            match self.stream.write(&self.out[sent..]) {
                Ok(0) => return Err(Broken::HungUp),
                Ok(bytes) => sent += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(Broken::HungUp),
            }
        }
        self.out.drain(..sent);
        Ok(())
    }

    /// Returns the next message, if all of it has come.
    fn receive(&mut self, scratch: &mut [u8]) -> Result<Option<HeadAndBody>, Broken> {
        if let Some(message) = take_message(&mut self.into)? {
            return Ok(Some(message));
        }
        match self.stream.read(scratch) {
            Ok(0) => Err(Broken::HungUp),
            Ok(bytes) => {
                self.sealed.extend_from_slice(&scratch[..bytes]);
                let taken = self.open.take(&mut self.sealed, &mut self.into);
                taken.map_err(|error| Broken::Malformed(error.to_string()))?;
                take_message(&mut self.into)
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                Ok(None)
            }
            Err(_) => Err(Broken::HungUp),
        }
    }
}

/// Cuts a message off the front of what has come: lengths of head and body, and both.
fn take_message(into: &mut Vec<u8>) -> Result<Option<HeadAndBody>, Broken> {
    let length = |at: usize| -> Option<usize> {
        let bytes = into.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    let (Some(head), Some(body)) = (length(0), length(4)) else {
        return Ok(None);
    };
    if head > HEAD_BYTES_MAX || body > BODY_BYTES_MAX {
        return Err(Broken::Malformed(format!(
            "a message with a head of {head} and a body of {body} bytes, where {HEAD_BYTES_MAX} and {BODY_BYTES_MAX} \
             are the most"
        )));
    }
    let whole = 8 + head + body;
    if into.len() < whole {
        return Ok(None);
    }
    let message = (into[8..8 + head].to_vec(), into[8 + head..whole].to_vec());
    into.drain(..whole);
    Ok(Some(message))
}

impl<C: Deref<Target = Client> + Send> Tcp<C> {
    /// Connects to all others, and waits for them at most for `patience`.
    ///
    /// # Errors
    /// Who is missing, or what the system refuses.
    pub(crate) fn connect(
        client: C,
        token: &Token,
        patience: Duration,
    ) -> Result<Self, StartError> {
        let (rank, size) = (client.me().rank, client.me().world_size);
        let met =
            |error: RendezvousError| StartError::relayed(error.to_string(), error.exit_code());
        let failed = |error: std::io::Error| {
            StartError::temporary(format!("cannot listen for other processes: {error}"))
        };
        // The address by which the rendezvous is reached is one by which the others reach this machine.
        let listener =
            TcpListener::bind((client.local_ip().map_err(failed)?, 0)).map_err(failed)?;
        let here = listener.local_addr().map_err(failed)?;
        client
            .set(&key(rank), here.to_string().as_bytes())
            .map_err(met)?;
        client
            .barrier("tcp: all are there", patience)
            .map_err(met)?;
        let mut connections: Vec<Option<Connection>> = (0..size).map(|_| None).collect();
        // Those before this one are called; those after it call.
        for other in 0..rank {
            let address = client.get(&key(other), patience).map_err(met)?;
            let address: SocketAddr = String::from_utf8_lossy(&address).parse().map_err(|_| {
                StartError::config(format!("process {other} says what is no address"))
            })?;
            let connection = call(address, token, rank, patience).map_err(|error| {
                StartError::temporary(format!(
                    "cannot reach process {other} at {address}: {error}; does a firewall keep the machines apart?"
                ))
            })?;
            connections[other as usize] = Some(connection);
        }
        let acceptor = Acceptor {
            listener,
            token,
            rank,
            patience,
            stranger_patience: STRANGER_PATIENCE,
        };
        acceptor.answer_all(&mut connections, || client.start_trouble())?;
        Ok(Self {
            client,
            connections,
            next: 0,
            scratch: vec![0; READ_BYTES].into_boxed_slice(),
            pool: Pool::new(BODY_BYTES_MAX),
            failed: None,
        })
    }

    fn fail(&mut self, reason: String) {
        self.failed.get_or_insert(reason);
    }

    /// Puts a connection away that is of no use any more. Who has hung up has ended: if it was too early, the
    /// rendezvous tells.
    fn hang_up(&mut self, process: usize, broken: Broken) {
        self.connections[process] = None;
        if let Broken::Malformed(what) = broken {
            self.fail(format!(
                "process {process} sent {what}: do all processes run the same version?"
            ));
        }
    }
}

/// Where other processes connect.
struct Acceptor<'a> {
    listener: TcpListener,
    token: &'a Token,
    /// The process.
    rank: u32,
    /// How long all callers may take.
    patience: Duration,
    /// How long one of them may take to say who it is.
    stranger_patience: Duration,
}

impl Acceptor<'_> {
    /// Waits for the calls of all processes after this one, and puts their connections into their places. Each caller
    /// is answered by a thread of its own: one that says nothing keeps no other one waiting.
    ///
    /// # Errors
    /// Who is missing, the `trouble` that the others have, or why the system answers nobody.
    fn answer_all(
        &self,
        connections: &mut [Option<Connection>],
        trouble: impl Fn() -> Option<StartError>,
    ) -> Result<(), StartError> {
        /// Between looks at who calls.
        const LOOK: Duration = Duration::from_millis(1);
        let failed = |error: std::io::Error| {
            StartError::temporary(format!("cannot answer other processes: {error}"))
        };
        let (start, first) = (Instant::now(), self.rank as usize + 1);
        self.listener.set_nonblocking(true).map_err(failed)?;
        let (sender, answered) = channel();
        let mut num_callers = 0;
        while let Some(missing) =
            (first..connections.len()).find(|other| connections[*other].is_none())
        {
            if let Some(trouble) = trouble() {
                return Err(trouble);
            }
            if start.elapsed() > self.patience {
                let here = self.listener.local_addr().map_err(failed)?;
                return Err(StartError::temporary(format!(
                    "process {missing} has not called this one at {here} for {:.0} s: does a firewall keep the \
                     machines apart?",
                    self.patience.as_secs_f64()
                )));
            }
            while num_callers < CALLERS_MAX
                && let Ok((stream, _)) = self.listener.accept()
            {
                let (sender, token, patience) =
                    (sender.clone(), self.token.clone(), self.stranger_patience);
                let thread = std::thread::Builder::new().name("answering a call".into());
                let run = move || {
                    let _ = sender.send(answer(stream, &token, patience));
                };
                thread.spawn(run).map_err(failed)?;
                num_callers += 1;
            }
            let Ok(caller) = answered.recv_timeout(LOOK) else {
                continue;
            };
            num_callers -= 1;
            // A stranger is nobody, and ends nothing.
            if let Ok((caller, connection)) = caller
                && caller > self.rank
                && let Some(place @ None) = connections.get_mut(caller as usize)
            {
                *place = Some(connection);
            }
        }
        Ok(())
    }
}

fn key(rank: u32) -> String {
    format!("tcp: address of {rank}")
}

/// Calls another process, as `rank`.
fn call(
    address: SocketAddr,
    token: &Token,
    rank: u32,
    patience: Duration,
) -> std::io::Result<Connection> {
    let until = Instant::now() + patience;
    let mut stream = TcpStream::connect_timeout(&address, patience)?;
    let mut theirs = [0; NONCE_BYTES];
    Until(&stream, until).read_exact(&mut theirs)?;
    let rank = rank.to_le_bytes();
    let (calling, first) = Calling::begin(token, &context(&theirs, &rank))?;
    stream.write_all(&[&rank[..], &first].concat())?;
    let mut answer = [0; HANDSHAKE_BYTES];
    Until(&stream, until).read_exact(&mut answer)?;
    match calling.finish(&answer) {
        Ok((_, keys)) => Connection::new(stream, keys),
        Err(_) => Err(std::io::Error::other("who answers there has another token")),
    }
}

/// Returns what a handshake belongs to: what the one who is called has drawn for it, and who calls.
fn context(nonce: &[u8; NONCE_BYTES], rank: &[u8; 4]) -> Vec<u8> {
    [&b"tcp"[..], nonce, rank].concat()
}

/// Answers a call, and takes no longer for it than `patience`, however slowly the caller speaks; returns who calls.
fn answer(
    mut stream: TcpStream,
    token: &Token,
    patience: Duration,
) -> std::io::Result<(u32, Connection)> {
    let until = Instant::now() + patience;
    stream.set_nonblocking(false)?;
    let mine = random()?;
    stream.write_all(&mine)?;
    let (mut rank, mut first) = ([0; 4], [0; HANDSHAKE_BYTES]);
    let mut caller = Until(&stream, until);
    caller.read_exact(&mut rank)?;
    caller.read_exact(&mut first)?;
    let (answer, keys) = answered(token, &context(&mine, &rank), &first, &[])?;
    stream.write_all(&answer)?;
    Ok((u32::from_le_bytes(rank), Connection::new(stream, keys)?))
}

impl<C: Deref<Target = Client> + Send> Transport for Tcp<C> {
    fn is_for_all_threads(&self) -> bool {
        true
    }

    fn process(&self) -> u32 {
        self.client.me().rank
    }

    fn num_processes(&self) -> usize {
        self.connections.len()
    }

    fn send(&mut self, message: Message) {
        let Message {
            process,
            head,
            body,
        } = message;
        if body.len() > BODY_BYTES_MAX {
            self.fail(format!(
                "{} bytes are to go to process {process}, and without MPI processes tell each other no more than \
                 {BODY_BYTES_MAX} at once: build with burn-dist's feature `mpi` and start the program with `mpirun`, \
                 or give every rank a GPU of its own, so that NCCL moves them",
                body.len()
            ));
            return;
        }
        let process = process as usize;
        // One that has ended needs nothing any more.
        let Some(connection) = &mut self.connections[process] else {
            return;
        };
        let pushed = connection.push(&head, body.as_slice());
        if let Err(broken) = pushed.and_then(|()| connection.flush()) {
            self.hang_up(process, broken);
        }
    }

    fn receive(&mut self, _: Matcher) -> Result<Option<Message>, String> {
        if let Some(trouble) = self.client.trouble() {
            self.fail(trouble);
        }
        let processes = self.connections.len();
        for offset in 0..processes {
            let from = (self.next + offset) % processes;
            let Some(connection) = &mut self.connections[from] else {
                continue;
            };
            match connection.receive(&mut self.scratch) {
                Ok(Some((head, body))) => {
                    self.next = (from + 1) % processes;
                    return Ok(Some(Message {
                        process: from as u32,
                        head,
                        body: Block::from(self.pool.copy_of(&body)),
                    }));
                }
                Ok(None) => {}
                Err(broken) => self.hang_up(from, broken),
            }
        }
        match &self.failed {
            Some(reason) => Err(reason.clone()),
            None => Ok(None),
        }
    }

    fn unsent_bytes(&mut self) -> usize {
        let mut unsent = 0;
        for process in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[process] else {
                continue;
            };
            match connection.flush() {
                Ok(()) => unsent += connection.out.len(),
                Err(broken) => self.hang_up(process, broken),
            }
        }
        unsent
    }

    fn is_receiving(&self) -> bool {
        self.connections
            .iter()
            .flatten()
            .any(|connection| !connection.sealed.is_empty() || !connection.into.is_empty())
    }
}
