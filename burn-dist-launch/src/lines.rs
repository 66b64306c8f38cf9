//! Lines over TCP between processes whose ranks communicate by themselves: GPUs with NCCL, in a program without MPI.
//!
//! What processes have to say to each other is little: what they run, what they read, who stops. That goes over a line
//! between each two of them; where, is said at the [rendezvous](super::rendezvous), and both ends of a line
//! prove that they know its token. This is no transport for tensors: a message with more than [`BODY_BYTES_MAX`] bytes
//! is an error that says what to do instead.

use super::rendezvous::{Client, NONCE_BYTES, PROOF_BYTES, RendezvousError, Token, Until, random};
use burn_dist_comm::{Block, Carrier, Parcel, Placing, Pool};
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

/// The lines of one process; `C` is its connection to the rendezvous.
pub(super) struct Lines<C> {
    client: C,
    /// By process; `None` for this one, and for those that have hung up.
    lines: Vec<Option<Line>>,
    /// The process whose line is looked at first.
    next: usize,
    /// Where what comes is read into first, from whichever line.
    scratch: Box<[u8]>,
    pool: Arc<Pool>,
    failed: Option<String>,
}

struct Line {
    stream: TcpStream,
    /// What is still to be sent.
    out: Vec<u8>,
    /// What has come, and is not a whole message yet.
    into: Vec<u8>,
}

/// Head and body.
type Message = (Vec<u8>, Vec<u8>);

/// Why a line is of no use any more.
enum Broken {
    HungUp,
    Malformed(String),
}

impl Line {
    fn new(stream: TcpStream) -> std::io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(None)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            out: Vec::new(),
            into: Vec::new(),
        })
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
    fn receive(&mut self, scratch: &mut [u8]) -> Result<Option<Message>, Broken> {
        if let Some(message) = take_message(&mut self.into)? {
            return Ok(Some(message));
        }
        match self.stream.read(scratch) {
            Ok(0) => Err(Broken::HungUp),
            Ok(bytes) => {
                self.into.extend_from_slice(&scratch[..bytes]);
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
fn take_message(into: &mut Vec<u8>) -> Result<Option<Message>, Broken> {
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

impl<C: Deref<Target = Client> + Send> Lines<C> {
    /// Draws the lines to all others, at most for `patience`.
    ///
    /// # Errors
    /// Who is missing, or why the system gives no line.
    pub fn connect(client: C, token: &Token, patience: Duration) -> Result<Self, String> {
        let (rank, size) = (client.me().rank, client.me().world_size);
        let said = |error: RendezvousError| error.to_string();
        let failed = |error: std::io::Error| format!("cannot listen for other processes: {error}");
        // The address by which the rendezvous is reached is one by which the others reach this machine.
        let listener =
            TcpListener::bind((client.local_ip().map_err(failed)?, 0)).map_err(failed)?;
        let here = listener.local_addr().map_err(failed)?;
        client
            .set(&key(rank), here.to_string().as_bytes())
            .map_err(said)?;
        client
            .barrier("lines: all are there", patience)
            .map_err(said)?;
        let mut lines: Vec<Option<Line>> = (0..size).map(|_| None).collect();
        // Those before this one are called; those after it call.
        for other in 0..rank {
            let address = client.get(&key(other), patience).map_err(said)?;
            let address: SocketAddr = String::from_utf8_lossy(&address)
                .parse()
                .map_err(|_| format!("process {other} says of its line what is no address"))?;
            let line = call(address, token, rank, patience).map_err(|error| {
                format!("cannot reach process {other} at {address}: {error}; does a firewall keep the machines apart?")
            })?;
            lines[other as usize] = Some(line);
        }
        let door = Door {
            listener,
            token,
            rank,
            patience,
            stranger_patience: STRANGER_PATIENCE,
        };
        door.answer_all(&mut lines, || client.trouble())?;
        Ok(Self {
            client,
            lines,
            next: 0,
            scratch: vec![0; READ_BYTES].into_boxed_slice(),
            pool: Pool::new(BODY_BYTES_MAX),
            failed: None,
        })
    }

    fn fail(&mut self, reason: String) {
        self.failed.get_or_insert(reason);
    }

    /// Puts a line away that is of no use any more. Who has hung up has ended: if it was too early, the rendezvous
    /// tells.
    fn hang_up(&mut self, process: usize, broken: Broken) {
        self.lines[process] = None;
        if let Broken::Malformed(what) = broken {
            self.fail(format!(
                "process {process} sent {what}: do all processes run the same version?"
            ));
        }
    }
}

/// Where a process is called.
struct Door<'a> {
    listener: TcpListener,
    token: &'a Token,
    /// The process.
    rank: u32,
    /// How long all callers may take.
    patience: Duration,
    /// How long one of them may take to say who it is.
    stranger_patience: Duration,
}

impl Door<'_> {
    /// Waits for the calls of all processes after this one, and puts their lines into their places. Each caller is
    /// answered by a thread of its own: one that says nothing keeps no other one waiting.
    ///
    /// # Errors
    /// Who is missing, the `trouble` that the others have, or why the system answers nobody.
    fn answer_all(
        &self,
        lines: &mut [Option<Line>],
        trouble: impl Fn() -> Option<String>,
    ) -> Result<(), String> {
        /// Between looks at who calls.
        const LOOK: Duration = Duration::from_millis(1);
        let failed = |error: std::io::Error| format!("cannot answer other processes: {error}");
        let (start, first) = (Instant::now(), self.rank as usize + 1);
        self.listener.set_nonblocking(true).map_err(failed)?;
        let (sender, answered) = channel();
        let mut num_callers = 0;
        while let Some(missing) = (first..lines.len()).find(|other| lines[*other].is_none()) {
            if let Some(trouble) = trouble() {
                return Err(trouble);
            }
            if start.elapsed() > self.patience {
                let here = self.listener.local_addr().map_err(failed)?;
                return Err(format!(
                    "process {missing} has not called this one at {here} for {:.0} s: does a firewall keep the \
                     machines apart?",
                    self.patience.as_secs_f64()
                ));
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
            if let Ok((caller, line)) = caller
                && caller > self.rank
                && let Some(place @ None) = lines.get_mut(caller as usize)
            {
                *place = Some(line);
            }
        }
        Ok(())
    }
}

fn key(rank: u32) -> String {
    format!("lines: address of {rank}")
}

/// Calls another process, as `rank`.
fn call(
    address: SocketAddr,
    token: &Token,
    rank: u32,
    patience: Duration,
) -> std::io::Result<Line> {
    let until = Instant::now() + patience;
    let mut stream = TcpStream::connect_timeout(&address, patience)?;
    let (mut theirs, mine) = ([0; NONCE_BYTES], random()?);
    Until(&stream, until).read_exact(&mut theirs)?;
    let rank = rank.to_le_bytes();
    stream.write_all(&rank)?;
    stream.write_all(&mine)?;
    stream.write_all(&token.prove("line, who calls", &[&theirs, &rank, &mine]))?;
    let mut proof = [0; PROOF_BYTES];
    Until(&stream, until).read_exact(&mut proof)?;
    match token.verify("line, who is called", &[&theirs, &mine], &proof) {
        true => Line::new(stream),
        false => Err(std::io::Error::other("who answers there has another token")),
    }
}

/// Answers a call, and takes no longer for it than `patience`, however slowly the caller speaks; returns who calls.
fn answer(
    mut stream: TcpStream,
    token: &Token,
    patience: Duration,
) -> std::io::Result<(u32, Line)> {
    let until = Instant::now() + patience;
    stream.set_nonblocking(false)?;
    let mine = random()?;
    stream.write_all(&mine)?;
    let (mut rank, mut theirs, mut proof) = ([0; 4], [0; NONCE_BYTES], [0; PROOF_BYTES]);
    let mut caller = Until(&stream, until);
    caller.read_exact(&mut rank)?;
    caller.read_exact(&mut theirs)?;
    caller.read_exact(&mut proof)?;
    if !token.verify("line, who calls", &[&mine, &rank, &theirs], &proof) {
        return Err(std::io::Error::other("another token"));
    }
    stream.write_all(&token.prove("line, who is called", &[&mine, &theirs]))?;
    Ok((u32::from_le_bytes(rank), Line::new(stream)?))
}

impl<C: Deref<Target = Client> + Send> Carrier for Lines<C> {
    fn is_for_all_threads(&self) -> bool {
        true
    }

    fn process(&self) -> u32 {
        self.client.me().rank
    }

    fn num_processes(&self) -> usize {
        self.lines.len()
    }

    fn send(&mut self, parcel: Parcel) {
        let Parcel {
            process,
            head,
            body,
        } = parcel;
        if body.len() > BODY_BYTES_MAX {
            self.fail(format!(
                "{} bytes are to go to process {process}, and without MPI processes tell each other no more than \
                 {BODY_BYTES_MAX} at once: build with burn-dist's feature `mpi` and start the program with `mpirun`, or \
                 give every rank a GPU of its own, so that NCCL moves them",
                body.len()
            ));
            return;
        }
        let process = process as usize;
        // One that has ended needs nothing any more.
        let Some(line) = &mut self.lines[process] else {
            return;
        };
        line.out.extend((head.len() as u32).to_le_bytes());
        line.out.extend((body.len() as u32).to_le_bytes());
        line.out.extend(head);
        line.out.extend_from_slice(body.as_slice());
        if let Err(broken) = line.flush() {
            self.hang_up(process, broken);
        }
    }

    fn receive(&mut self, _: Placing) -> Result<Option<Parcel>, String> {
        if let Some(trouble) = self.client.trouble() {
            self.fail(trouble);
        }
        let processes = self.lines.len();
        for offset in 0..processes {
            let from = (self.next + offset) % processes;
            let Some(line) = &mut self.lines[from] else {
                continue;
            };
            match line.receive(&mut self.scratch) {
                Ok(Some((head, body))) => {
                    self.next = (from + 1) % processes;
                    return Ok(Some(Parcel {
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

    fn is_sending(&mut self) -> bool {
        let mut is_sending = false;
        for process in 0..self.lines.len() {
            let Some(line) = &mut self.lines[process] else {
                continue;
            };
            match line.flush() {
                Ok(()) => is_sending |= !line.out.is_empty(),
                Err(broken) => self.hang_up(process, broken),
            }
        }
        is_sending
    }

    fn is_receiving(&self) -> bool {
        self.lines
            .iter()
            .flatten()
            .any(|line| !line.into.is_empty())
    }
}
