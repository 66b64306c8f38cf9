//! TCP between processes: how they are connected for burn-dist-comm's [`Tcp`], which carries what they say.
//!
//! They find each other's addresses at the [rendezvous](super::rendezvous); both ends of a connection prove that they
//! know its token, and belong to the same run. What goes over it is sealed then, unless both ends are on one machine,
//! or [`SEAL`] says otherwise: a seal costs the time of a cipher for each byte, at both ends.

use super::rendezvous::{
    Calling, Client, HANDSHAKE_BYTES, Keys, NONCE_BYTES, Open, RendezvousError, Seal, Token, Until,
    answer as answered, random,
};
use burn_dist_comm::{Connection, Opening, Peer, Sealing, StartError, Tcp};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Deref;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

#[cfg(test)]
mod tests;

/// The variable that says what is sealed of connections over TCP: `on`, all of them; `off`, none; and if it is not set,
/// those between machines.
pub(crate) const SEAL: &str = "BURN_DIST_SEAL";

/// How long a stranger may take to prove that it is none, all in all.
const STRANGER_PATIENCE: Duration = Duration::from_secs(5);

/// Callers that are answered at the same time, at most; the others wait.
const CALLERS_MAX: usize = 64;

/// The connections that this process seals; one is sealed if either end asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seals {
    All,
    BetweenMachines,
    Nothing,
}

impl Seals {
    /// Returns the choice of [`SEAL`].
    ///
    /// # Errors
    /// It is no choice.
    pub(crate) fn of_process() -> Result<Self, StartError> {
        match std::env::var(SEAL).as_deref() {
            Err(std::env::VarError::NotPresent) => Ok(Self::BetweenMachines),
            Ok("on") => Ok(Self::All),
            Ok("off") => Ok(Self::Nothing),
            Ok(other) => Err(StartError::config(format!(
                "{SEAL}={other} does not say what to seal: write on or off, or unset it to seal what goes between \
                 machines"
            ))),
            Err(error) => Err(StartError::config(format!("{SEAL}: {error}"))),
        }
    }

    /// Returns whether this end asks for a seal.
    fn asks(self, stream: &TcpStream) -> std::io::Result<bool> {
        Ok(match self {
            Self::All => true,
            Self::BetweenMachines => !is_within_machine(stream)?,
            Self::Nothing => false,
        })
    }
}

/// Returns whether both ends are on this machine: one that speaks to its own address speaks to itself.
fn is_within_machine(stream: &TcpStream) -> std::io::Result<bool> {
    let (here, there) = (stream.local_addr()?.ip(), stream.peer_addr()?.ip());
    Ok(here == there || here.is_loopback() && there.is_loopback())
}

impl Sealing for Seal {
    fn append(&mut self, content: &[u8], records: &mut Vec<u8>) -> std::io::Result<()> {
        Self::append(self, content, records)
    }
}

impl Opening for Open {
    fn take(&mut self, records: &mut Vec<u8>, content: &mut Vec<u8>) -> std::io::Result<()> {
        Self::take(self, records, content)
    }
}

/// The knowledge that both ends of a connection have to share.
#[derive(Clone)]
struct Secret {
    token: Token,
    /// The number of the run: one that is over has the same token, if the user has set it.
    run: u64,
    seals: Seals,
}

impl Secret {
    /// Returns what a handshake belongs to: what the one who is called has drawn for it, and who calls.
    fn context(&self, nonce: &[u8; NONCE_BYTES], caller: &[u8; CALLER_BYTES]) -> Vec<u8> {
        [&b"tcp"[..], &self.run.to_le_bytes(), nonce, caller].concat()
    }
}

/// The rank of a caller, and whether it asks for a seal.
const CALLER_BYTES: usize = 5;

/// A stream to another process, both of which have proved themselves; the keys, if what goes over it is sealed.
struct Proven(TcpStream, Option<Keys>);

impl Proven {
    fn connection(self, name: &str) -> std::io::Result<Connection> {
        let Self(stream, keys) = self;
        match keys {
            Some(keys) => {
                let (seal, open) = keys.split();
                Connection::sealed(stream, name, Box::new(seal), Box::new(open))
            }
            None if is_within_machine(&stream)? => Connection::within_machine(stream, name),
            None => Connection::plain(stream, name),
        }
    }
}

/// Where a process listens, and who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    address: SocketAddr,
    peer: Peer,
}

impl Line {
    fn to_bytes(&self) -> Vec<u8> {
        let Peer { host, pid } = &self.peer;
        format!("{} {pid} {host}", self.address).into_bytes()
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(bytes).ok()?.splitn(3, ' ');
        let address = words.next()?.parse().ok()?;
        let pid = words.next()?.parse().ok()?;
        let host = words.next()?.into();
        Some(Self {
            address,
            peer: Peer { host, pid },
        })
    }

    /// The process, for people.
    fn name(&self, rank: usize) -> String {
        format!("process {rank} ({})", self.peer)
    }
}

/// Connects to all others, and waits for them at most for `patience`. What ends the rendezvous of `client` ends the
/// transport.
///
/// # Errors
/// Who is missing, or what the system refuses.
pub(super) fn connect<C: Deref<Target = Client> + Send + 'static>(
    client: C,
    token: &Token,
    seals: Seals,
    patience: Duration,
) -> Result<Tcp, StartError> {
    let (rank, size) = (client.me().rank, client.me().world_size);
    let met = |error: RendezvousError| StartError::relayed(error.to_string(), error.exit_code());
    let failed = |error: std::io::Error| {
        StartError::temporary(format!("cannot listen for other processes: {error}"))
    };
    // The address by which the rendezvous is reached is one by which the others reach this machine.
    let listener = TcpListener::bind((client.local_ip().map_err(failed)?, 0)).map_err(failed)?;
    Connection::prepare(&listener);
    let here = Line {
        address: listener.local_addr().map_err(failed)?,
        peer: Peer::this(),
    };
    client.set(&key(rank), &here.to_bytes()).map_err(met)?;
    client
        .barrier("tcp: all are there", patience)
        .map_err(met)?;
    let line = |other: u32| {
        let line = client.get(&key(other), patience).map_err(met)?;
        Line::parse(&line)
            .ok_or_else(|| StartError::config(format!("process {other} says what is no address")))
    };
    let lines: Vec<Line> = (0..size).map(line).collect::<Result<_, _>>()?;
    reach_each_other(&lines)?;
    let secret = Secret {
        token: token.clone(),
        run: client.run(),
        seals,
    };
    let mut connections: Vec<Option<Connection>> = lines.iter().map(|_| None).collect();
    // Those before this one are called; those after it call.
    for (other, line) in lines.iter().enumerate().take(rank as usize) {
        let called = call(line.address, &secret, rank, patience);
        let connection = called.and_then(|proven| proven.connection(&line.name(other)));
        let connection = connection.map_err(|error| {
            StartError::temporary(format!(
                "cannot reach {} at {}: {error}; does a firewall keep the machines apart?",
                line.name(other),
                line.address
            ))
        })?;
        connections[other] = Some(connection);
    }
    let acceptor = Acceptor {
        listener,
        secret,
        rank,
        lines: &lines,
        patience,
        stranger_patience: STRANGER_PATIENCE,
    };
    acceptor.answer_all(&mut connections, || client.start_trouble())?;
    Ok(Tcp::new(rank, connections, move || client.trouble()))
}

fn key(rank: u32) -> String {
    format!("tcp: address of {rank}")
}

/// Checks that no process listens where only its own machine hears it while another one is elsewhere.
fn reach_each_other(lines: &[Line]) -> Result<(), StartError> {
    let is_inside = |line: &Line| line.address.ip().is_loopback();
    let find = |inside: bool| (0..).zip(lines).find(|(_, line)| is_inside(line) == inside);
    let (Some((inside, at)), Some((outside, from))) = (find(true), find(false)) else {
        return Ok(());
    };
    Err(StartError::config(format!(
        "{} listens at {}, which only its own machine reaches, and {} is at {}: name the rendezvous by an address of \
         its machine that the others reach too (on that machine its name may stand for a loopback address, in \
         /etc/hosts)",
        at.name(inside),
        at.address,
        from.name(outside),
        from.address
    )))
}

/// Where other processes connect.
struct Acceptor<'a> {
    listener: TcpListener,
    secret: Secret,
    /// The process.
    rank: u32,
    /// The processes, by rank.
    lines: &'a [Line],
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
                    "{} has not called this one at {here} for {:.0} s: does a firewall keep the machines apart?",
                    self.lines[missing].name(missing),
                    self.patience.as_secs_f64()
                )));
            }
            while num_callers < CALLERS_MAX
                && let Ok((stream, _)) = self.listener.accept()
            {
                let (sender, secret, patience) =
                    (sender.clone(), self.secret.clone(), self.stranger_patience);
                let thread = std::thread::Builder::new().name("answering a call".into());
                let run = move || {
                    let _ = sender.send(answer(stream, &secret, patience));
                };
                thread.spawn(run).map_err(failed)?;
                num_callers += 1;
            }
            let Ok(caller) = answered.recv_timeout(LOOK) else {
                continue;
            };
            num_callers -= 1;
            // A stranger is nobody, and ends nothing.
            if let Ok((caller, proven)) = caller
                && caller > self.rank
                && let Some(place @ None) = connections.get_mut(caller as usize)
            {
                let caller = caller as usize;
                let name = self.lines[caller].name(caller);
                *place = Some(proven.connection(&name).map_err(failed)?);
            }
        }
        Ok(())
    }
}

/// Calls another process, as `rank`.
fn call(
    address: SocketAddr,
    secret: &Secret,
    rank: u32,
    patience: Duration,
) -> std::io::Result<Proven> {
    let until = Instant::now() + patience;
    let mut stream = Connection::stream_to(address, patience)?;
    let mut theirs = [0; NONCE_BYTES];
    Until(&stream, until).read_exact(&mut theirs)?;
    let asks = secret.seals.asks(&stream)?;
    let [a, b, c, d] = rank.to_le_bytes();
    let caller = [a, b, c, d, asks.into()];
    let (calling, first) = Calling::begin(&secret.token, &secret.context(&theirs, &caller))?;
    stream.write_all(&[&caller[..], &first].concat())?;
    let mut answer = [0; HANDSHAKE_BYTES + 1];
    Until(&stream, until).read_exact(&mut answer)?;
    match calling.finish(&answer) {
        Ok((content, keys)) => {
            let is_sealed = asks || content != [0];
            Ok(Proven(stream, is_sealed.then_some(keys)))
        }
        Err(_) => Err(std::io::Error::other(
            "who answers there has another token, or is of another run",
        )),
    }
}

/// Answers a call, and takes no longer for it than `patience`, however slowly the caller speaks; returns who calls.
fn answer(
    mut stream: TcpStream,
    secret: &Secret,
    patience: Duration,
) -> std::io::Result<(u32, Proven)> {
    let until = Instant::now() + patience;
    stream.set_nonblocking(false)?;
    let mine = random()?;
    stream.write_all(&mine)?;
    let (mut caller, mut first) = ([0; CALLER_BYTES], [0; HANDSHAKE_BYTES]);
    let mut calls = Until(&stream, until);
    calls.read_exact(&mut caller)?;
    calls.read_exact(&mut first)?;
    let asks = secret.seals.asks(&stream)?;
    let context = secret.context(&mine, &caller);
    let (answer, keys) = answered(&secret.token, &context, &first, &[asks.into()])?;
    stream.write_all(&answer)?;
    let [a, b, c, d, they_ask] = caller;
    let is_sealed = asks || they_ask != 0;
    let rank = u32::from_le_bytes([a, b, c, d]);
    Ok((rank, Proven(stream, is_sealed.then_some(keys))))
}
