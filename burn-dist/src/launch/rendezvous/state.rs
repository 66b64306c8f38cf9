//! Who is there, keys and barriers: what each message changes. Knows no socket and no clock.

use super::message::{Member, Reply, Request, truncated};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Write;

/// Keys that a rendezvous keeps, at most.
pub const KEYS_MAX: usize = 16 << 10;
/// Bytes of a key, at most.
pub const KEY_BYTES_MAX: usize = 256;
/// Bytes of all values together, at most.
pub const STORED_BYTES_MAX: usize = 16 << 20;
/// Requests of one process that wait, at most.
const WAITING_MAX: usize = 64;
/// Who was turned away: the last ones.
const TURNED_AWAY_MAX: usize = 8;
/// Ranks that a text names one by one.
const NAMED_MAX: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Status {
    Here,
    /// Has said goodbye.
    Left,
    /// Has not.
    Lost,
}

/// What is sent to whom.
pub(super) type Out = (u32, Reply);

/// Why someone is not let in.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub reason: String,
    /// Whether it may be different in a moment.
    pub again: bool,
    /// What the others are told.
    pub out: Vec<Out>,
}

#[derive(Debug)]
pub(super) struct State {
    world_size: u32,
    restarts: u32,
    version: String,
    members: BTreeMap<u32, (Member, Status)>,
    values: HashMap<String, Vec<u8>>,
    stored_bytes: usize,
    /// Who waits for a key: rank, request, key.
    getting: Vec<(u32, u64, String)>,
    /// Who is at a barrier, with their requests.
    barriers: BTreeMap<String, BTreeMap<u32, u64>>,
    turned_away: VecDeque<String>,
    broken: Option<String>,
}

impl State {
    pub fn new(world_size: u32, restarts: u32, version: &str) -> Self {
        Self {
            world_size,
            restarts,
            version: version.to_string(),
            members: BTreeMap::new(),
            values: HashMap::new(),
            stored_bytes: 0,
            getting: Vec::new(),
            barriers: BTreeMap::new(),
            turned_away: VecDeque::new(),
            broken: None,
        }
    }

    /// Whether every process has been here and none is any more.
    pub fn is_over(&self) -> bool {
        let is_away = |(_, status): &(Member, Status)| *status != Status::Here;
        self.is_complete() && self.members.values().all(is_away)
    }

    /// Whether everyone who has come has gone again.
    pub fn is_empty(&self) -> bool {
        self.members
            .values()
            .all(|(_, status)| *status != Status::Here)
    }

    fn is_complete(&self) -> bool {
        self.members.len() == self.world_size as usize
    }

    fn here(&self) -> impl Iterator<Item = u32> {
        let here = self
            .members
            .iter()
            .filter(|(_, (_, status))| *status == Status::Here);
        here.map(|(rank, _)| *rank)
    }

    /// Notes a stranger.
    pub fn turn_away(&mut self, who: String) {
        if self.turned_away.len() == TURNED_AWAY_MAX {
            self.turned_away.pop_front();
        }
        self.turned_away.push_back(who);
    }

    /// Lets a process in that has proved to hold the token.
    pub fn hello(&mut self, version: &str, member: Option<Member>) -> Result<(), Refusal> {
        if let Some(reason) = &self.broken {
            return Err(Refusal {
                reason: reason.clone(),
                again: false,
                out: Vec::new(),
            });
        }
        let who = member
            .as_ref()
            .map_or("a process".into(), Member::to_string);
        if version != self.version {
            return Err(self.wrong(format!(
                "{who} runs version {version} of burn-dist, and the others {}: build all of them from the same sources",
                self.version
            )));
        }
        let Some(member) = member else {
            return Err(self.wrong("a process said hello in a way that its version does not have: build all processes from the same sources".into()));
        };
        if member.restarts != self.restarts {
            let reason = format!(
                "{who} is of start {}, and the rendezvous of start {}",
                member.restarts, self.restarts
            );
            // Launchers of several machines do not start anew at the same moment.
            let again = member.restarts > self.restarts;
            return Err(Refusal {
                reason,
                again,
                out: Vec::new(),
            });
        }
        if member.world_size != self.world_size {
            return Err(self.wrong(format!(
                "{who} was started as one of {} processes, and the rendezvous is for {}: start all of them with the same world size",
                member.world_size, self.world_size
            )));
        }
        if member.rank >= self.world_size {
            return Err(self.wrong(format!(
                "{who} is outside the world of {} processes",
                self.world_size
            )));
        }
        if let Some((first, status)) = self.members.get(&member.rank) {
            let reason = match status {
                Status::Here => format!(
                    "two processes are rank {}: {} (pid {}) and {} (pid {}); give each its own rank, and end what an earlier run has left",
                    member.rank, first.host, first.pid, member.host, member.pid
                ),
                Status::Left | Status::Lost => format!(
                    "rank {} has been here already ({}, pid {}), and does not come twice: start all processes anew",
                    member.rank, first.host, first.pid
                ),
            };
            return Err(self.wrong(reason));
        }
        self.members.insert(member.rank, (member, Status::Here));
        Ok(())
    }

    /// Refuses someone who holds the token; while the processes gather, that is the end for all of them.
    fn wrong(&mut self, reason: String) -> Refusal {
        let mut out = Vec::new();
        if !self.is_complete() {
            self.broken = Some(reason.clone());
            let broken = Reply::Broken {
                reason: reason.clone(),
            };
            out.extend(self.here().map(|rank| (rank, broken.clone())));
        }
        Refusal {
            reason,
            again: false,
            out,
        }
    }

    /// A process cannot go on, so nobody can.
    fn fail(&mut self, rank: u32, reason: &str) -> Vec<Out> {
        let who = self
            .members
            .get(&rank)
            .map(|(member, _)| member.to_string());
        let reason = format!(
            "{} cannot go on: {}",
            who.unwrap_or_default(),
            truncated(reason, 16 << 10)
        );
        let broken = Reply::Broken {
            reason: reason.clone(),
        };
        let others = self.here().filter(|other| *other != rank);
        let out = others.map(|other| (other, broken.clone())).collect();
        self.broken.get_or_insert(reason);
        out
    }

    /// What a request of a process leads to.
    pub fn request(&mut self, rank: u32, request: Request) -> Vec<Out> {
        match request {
            Request::Set { id, key, value } => self.set(rank, id, key, value),
            Request::Get { id, key } => match self.values.get(&key) {
                Some(value) => {
                    let value = value.clone();
                    vec![(rank, Reply::Done { id, value })]
                }
                None => match self.may_wait(rank, &key) {
                    Err(reason) => vec![(rank, Reply::Failed { id, reason })],
                    Ok(()) => {
                        self.getting.push((rank, id, key));
                        Vec::new()
                    }
                },
            },
            Request::Barrier { id, name } => self.barrier(rank, id, name),
            Request::GiveUp { id, waiting } => self.give_up(rank, id, waiting),
            Request::Alive => Vec::new(),
            Request::Goodbye => self.leave(rank, Status::Left),
            Request::Fail { reason } => self.fail(rank, &reason),
        }
    }

    fn set(&mut self, rank: u32, id: u64, key: String, value: Vec<u8>) -> Vec<Out> {
        let failed = |reason: String| vec![(rank, Reply::Failed { id, reason })];
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return failed(format!(
                "a key has 1 to {KEY_BYTES_MAX} bytes, this one {}",
                key.len()
            ));
        }
        match self.values.get(&key) {
            Some(old) if *old == value => {}
            Some(_) => {
                return failed("it is set to something else already: use another key".into());
            }
            None if self.values.len() == KEYS_MAX => {
                return failed(format!("{KEYS_MAX} keys are the most"));
            }
            None if self.stored_bytes + value.len() > STORED_BYTES_MAX => {
                return failed(format!(
                    "{STORED_BYTES_MAX} bytes in all values are the most"
                ));
            }
            None => {
                self.stored_bytes += value.len();
                self.values.insert(key.clone(), value.clone());
            }
        }
        let mut out = vec![(
            rank,
            Reply::Done {
                id,
                value: Vec::new(),
            },
        )];
        self.getting.retain(|(waiter, id, wanted)| {
            if *wanted == key {
                let value = value.clone();
                out.push((*waiter, Reply::Done { id: *id, value }));
            }
            *wanted != key
        });
        out
    }

    fn may_wait(&self, rank: u32, name: &str) -> Result<(), String> {
        if name.is_empty() || name.len() > KEY_BYTES_MAX {
            return Err(format!(
                "a name has 1 to {KEY_BYTES_MAX} bytes, this one {}",
                name.len()
            ));
        }
        let gets = self
            .getting
            .iter()
            .filter(|(waiter, ..)| *waiter == rank)
            .count();
        let barriers = self
            .barriers
            .values()
            .filter(|at| at.contains_key(&rank))
            .count();
        match gets + barriers < WAITING_MAX {
            true => Ok(()),
            false => Err(format!(
                "this process waits for {WAITING_MAX} other things already, which are the most"
            )),
        }
    }

    fn barrier(&mut self, rank: u32, id: u64, name: String) -> Vec<Out> {
        let failed = |reason: String| vec![(rank, Reply::Failed { id, reason })];
        if let Err(reason) = self.may_wait(rank, &name) {
            return failed(reason);
        }
        let at = self.barriers.entry(name.clone()).or_default();
        if at.contains_key(&rank) {
            return failed("this process waits there already".into());
        }
        at.insert(rank, id);
        if at.len() < self.world_size as usize {
            return self.fail_barriers();
        }
        let at = self.barriers.remove(&name).unwrap_or_default();
        let done = |(rank, id)| {
            (
                rank,
                Reply::Done {
                    id,
                    value: Vec::new(),
                },
            )
        };
        at.into_iter().map(done).collect()
    }

    /// Ends barriers to which someone will not come.
    fn fail_barriers(&mut self) -> Vec<Out> {
        let mut out = Vec::new();
        let members = &self.members;
        self.barriers.retain(|_, at| {
            let away = members
                .iter()
                .find(|(rank, (_, status))| *status != Status::Here && !at.contains_key(rank));
            let Some((_, (member, status))) = away else {
                return true;
            };
            let how = match status {
                Status::Lost => "vanished",
                Status::Here | Status::Left => "ended",
            };
            for (rank, id) in at {
                let reason = format!("{member} has {how} before it came there");
                out.push((*rank, Reply::Failed { id: *id, reason }));
            }
            false
        });
        out
    }

    /// Gives a request up, and says what it still waited for.
    fn give_up(&mut self, rank: u32, id: u64, waiting: u64) -> Vec<Out> {
        let mut text = String::new();
        let barrier = self
            .barriers
            .iter_mut()
            .find(|(_, at)| at.get(&rank) == Some(&waiting));
        if let Some((name, at)) = barrier {
            let name = name.clone();
            let there: Vec<u32> = at.keys().copied().collect();
            at.remove(&rank);
            if at.is_empty() {
                self.barriers.remove(&name);
            }
            text = self.missing(&there);
        } else if self
            .getting
            .iter()
            .any(|(waiter, id, _)| (*waiter, *id) == (rank, waiting))
        {
            self.getting
                .retain(|(waiter, id, _)| (*waiter, *id) != (rank, waiting));
            text.push_str("nobody has set it");
            let there: Vec<u32> = self.members.keys().copied().collect();
            if !self.is_complete() {
                text = format!("{text}; {}", self.missing(&there));
            }
        } else {
            text.push_str("it came at the last moment");
        }
        for who in &self.turned_away {
            let _ = write!(text, "; turned away: {who}");
        }
        let reason = truncated(&text, 8 << 10).to_string();
        vec![(rank, Reply::Failed { id, reason })]
    }

    /// Says of the ranks that are not at a barrier where they are.
    fn missing(&self, there: &[u32]) -> String {
        let mut text = String::new();
        let missing: Vec<u32> = (0..self.world_size)
            .filter(|rank| !there.contains(rank))
            .collect();
        for rank in missing.iter().take(NAMED_MAX) {
            let separator = if text.is_empty() { "" } else { ", " };
            let _ = match self.members.get(rank) {
                None => write!(text, "{separator}rank {rank} has not said hello"),
                Some((member, Status::Here)) => write!(
                    text,
                    "{separator}{member} is there, but has not come so far"
                ),
                Some((member, Status::Left)) => write!(text, "{separator}{member} has ended"),
                Some((member, Status::Lost)) => write!(text, "{separator}{member} has vanished"),
            };
        }
        if missing.len() > NAMED_MAX {
            let _ = write!(text, ", and {} more", missing.len() - NAMED_MAX);
        }
        text
    }

    /// A process whose connection has ended without a goodbye.
    pub fn lost(&mut self, rank: u32, reason: &str) -> Vec<Out> {
        match self.members.get(&rank) {
            Some((member, Status::Here)) => {
                let lost = Reply::Lost {
                    member: member.clone(),
                    reason: truncated(reason, 256).to_string(),
                };
                let mut out: Vec<Out> = self
                    .here()
                    .filter(|other| *other != rank)
                    .map(|other| (other, lost.clone()))
                    .collect();
                out.extend(self.leave(rank, Status::Lost));
                out
            }
            _ => Vec::new(),
        }
    }

    fn leave(&mut self, rank: u32, status: Status) -> Vec<Out> {
        if let Some((_, old)) = self.members.get_mut(&rank) {
            *old = status;
        }
        self.getting.retain(|(waiter, ..)| *waiter != rank);
        for at in self.barriers.values_mut() {
            at.remove(&rank);
        }
        self.barriers.retain(|_, at| !at.is_empty());
        self.fail_barriers()
    }
}
