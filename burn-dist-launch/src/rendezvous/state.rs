//! State of a rendezvous: its members, keys and barriers, and what each message changes. Knows no socket and no clock.

use super::message::{Id, Member, Reply, Request, Role, truncated};
use burn_dist_comm::{EXIT_CONFIG, EXIT_TEMPORARY};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Write;

/// Keys that a rendezvous keeps, at most.
pub const KEYS_MAX: usize = 16 << 10;
/// Bytes of a key, at most.
pub const KEY_BYTES_MAX: usize = 256;
/// Bytes of all values together, at most.
pub const STORED_BYTES_MAX: usize = 16 << 20;
/// Requests of one process or launcher that wait, at most.
pub(super) const WAITING_MAX: usize = 64;
/// So many of those that were turned away are remembered: the last ones.
const TURNED_AWAY_MAX: usize = 8;
/// Ranks that a text names one by one.
const NAMED_MAX: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Status {
    Here,
    /// Has sent its goodbye.
    Left,
    /// Has not.
    Lost,
}

/// A message, and the one it is sent to.
pub(super) type Out = (Id, Reply);

/// Why someone is not let in.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub reason: String,
    /// True if it may be different in a moment.
    pub again: bool,
    pub exit_code: u8,
    /// Messages to the others.
    pub out: Vec<Out>,
}

#[derive(Debug)]
pub(super) struct State {
    world_size: u32,
    num_launchers: u32,
    restarts: u32,
    version: String,
    /// All processes, then all launchers.
    members: BTreeMap<Id, (Member, Status)>,
    values: HashMap<String, Vec<u8>>,
    stored_bytes: usize,
    /// The members that wait for a key: each with the request, and the key.
    getting: Vec<(Id, u64, String)>,
    /// Which processes are at a barrier, with their requests.
    barriers: BTreeMap<String, BTreeMap<Id, u64>>,
    turned_away: VecDeque<String>,
    /// Why they cannot come together, and the exit code of that.
    broken: Option<(String, u8)>,
}

impl State {
    pub(super) fn new(world_size: u32, num_launchers: u32, restarts: u32, version: &str) -> Self {
        Self {
            world_size,
            num_launchers,
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

    /// Returns true if every process, or launcher, has been here and none is any more.
    pub(super) fn have_gone(&self, role: Role) -> bool {
        let is_away = |(_, (_, status)): (&Id, &(Member, Status))| *status != Status::Here;
        self.have_come(role) && self.those(role).all(is_away)
    }

    /// Returns true if everyone who has come has gone again.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.members
            .values()
            .all(|(_, status)| *status != Status::Here)
    }

    /// How many processes, or launchers, there are to be.
    fn num(&self, role: Role) -> u32 {
        match role {
            Role::Process => self.world_size,
            Role::Launcher => self.num_launchers,
        }
    }

    /// All processes, or launchers, that have come.
    fn those(&self, role: Role) -> impl Iterator<Item = (&Id, &(Member, Status))> {
        self.members.range((role, 0)..=(role, u32::MAX))
    }

    fn have_come(&self, role: Role) -> bool {
        self.those(role).count() == self.num(role) as usize
    }

    /// Returns true if all processes have come.
    fn is_complete(&self) -> bool {
        self.have_come(Role::Process)
    }

    fn here(&self) -> impl Iterator<Item = Id> {
        let here = self
            .members
            .iter()
            .filter(|(_, (_, status))| *status == Status::Here);
        here.map(|(who, _)| *who)
    }

    /// Notes a stranger.
    pub(super) fn turn_away(&mut self, who: String) {
        if self.turned_away.len() == TURNED_AWAY_MAX {
            self.turned_away.pop_front();
        }
        self.turned_away.push_back(who);
    }

    /// Lets a process or a launcher in that has proved to hold the token.
    pub(super) fn hello(&mut self, version: &str, member: Option<Member>) -> Result<(), Refusal> {
        if let Some((reason, exit_code)) = &self.broken {
            return Err(Refusal {
                reason: reason.clone(),
                again: false,
                exit_code: *exit_code,
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
            return Err(self.wrong("a process said hello in a way that its version does not have: build all processes \
                from the same sources".into()));
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
                exit_code: EXIT_TEMPORARY,
                out: Vec::new(),
            });
        }
        let (those, number, way_out) = match member.role {
            Role::Process => ("processes", "rank", "the same world size"),
            Role::Launcher => ("launchers", "the launcher of machine", "the same --nnodes"),
        };
        let num = self.num(member.role);
        if member.world_size != num {
            return Err(self.wrong(format!(
                "{who} was started as one of {} {those}, and the rendezvous is for {num}: start all of them with \
                 {way_out}",
                member.world_size
            )));
        }
        if member.rank >= num {
            return Err(self.wrong(format!("{who} is outside the world of {num} {those}")));
        }
        if let Some((first, status)) = self.members.get(&member.id()) {
            let reason = match status {
                Status::Here => format!(
                    "two {those} are {number} {}: {} (pid {}) and {} (pid {}); give each its own number, and end what \
                     an earlier run has left",
                    member.rank, first.host, first.pid, member.host, member.pid
                ),
                Status::Left | Status::Lost => format!(
                    "{number} {} has been here already ({}, pid {}), and does not come twice: start all processes anew",
                    member.rank, first.host, first.pid
                ),
            };
            return Err(self.wrong(reason));
        }
        self.members.insert(member.id(), (member, Status::Here));
        Ok(())
    }

    /// Refuses someone who holds the token; while the processes gather, that is the end for all of them.
    fn wrong(&mut self, reason: String) -> Refusal {
        let mut out = Vec::new();
        if !self.is_complete() {
            self.broken = Some((reason.clone(), EXIT_CONFIG));
            let broken = Reply::Broken {
                reason: reason.clone(),
                exit_code: EXIT_CONFIG,
            };
            out.extend(self.here().map(|who| (who, broken.clone())));
        }
        Refusal {
            reason,
            again: false,
            exit_code: EXIT_CONFIG,
            out,
        }
    }

    /// A process cannot go on, so nobody can.
    fn fail(&mut self, who: Id, reason: &str, exit_code: u8) -> Vec<Out> {
        let reason = truncated(reason, 16 << 10);
        let reason = match self.members.get(&who) {
            Some((member, _)) if member.role == Role::Process => {
                format!("{member} cannot go on: {reason}")
            }
            // A launcher speaks of a process, and names it.
            _ => reason.to_string(),
        };
        let broken = Reply::Broken {
            reason: reason.clone(),
            exit_code,
        };
        let others = self.here().filter(|other| *other != who);
        let out = others.map(|other| (other, broken.clone())).collect();
        self.broken.get_or_insert((reason, exit_code));
        out
    }

    /// Handles a request of a process or a launcher; returns the messages that it leads to.
    pub(super) fn request(&mut self, who: Id, request: Request) -> Vec<Out> {
        match request {
            Request::Set { id, key, value } => self.set(who, id, key, value),
            Request::Get { id, key } => match self.values.get(&key) {
                Some(value) => {
                    let value = value.clone();
                    vec![(who, Reply::Done { id, value })]
                }
                None => match self.may_wait(who, &key) {
                    Err(reason) => vec![(who, Reply::Failed { id, reason })],
                    Ok(()) => {
                        self.getting.push((who, id, key));
                        Vec::new()
                    }
                },
            },
            Request::Barrier { id, name } => self.barrier(who, id, name),
            Request::GiveUp { id, waiting } => self.give_up(who, id, waiting),
            Request::Alive => Vec::new(),
            Request::Goodbye => self.leave(who, Status::Left),
            Request::Fail { reason, exit_code } => self.fail(who, &reason, exit_code),
        }
    }

    fn set(&mut self, who: Id, id: u64, key: String, value: Vec<u8>) -> Vec<Out> {
        let failed = |reason: String| vec![(who, Reply::Failed { id, reason })];
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
            who,
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

    fn may_wait(&self, who: Id, name: &str) -> Result<(), String> {
        if name.is_empty() || name.len() > KEY_BYTES_MAX {
            return Err(format!(
                "a name has 1 to {KEY_BYTES_MAX} bytes, this one {}",
                name.len()
            ));
        }
        match self.num_waiting(who) < WAITING_MAX {
            true => Ok(()),
            false => Err(format!(
                "this process waits for {WAITING_MAX} other things already, which are the most"
            )),
        }
    }

    /// How many requests of a process or a launcher wait.
    pub(super) fn num_waiting(&self, who: Id) -> usize {
        let gets = self.getting.iter().filter(|(waiter, ..)| *waiter == who);
        let barriers = self.barriers.values().filter(|at| at.contains_key(&who));
        gets.count() + barriers.count()
    }

    #[cfg(test)]
    pub(super) fn num_waiting_in_all(&self) -> usize {
        let at_barriers: usize = self.barriers.values().map(BTreeMap::len).sum();
        self.getting.len() + at_barriers
    }

    fn barrier(&mut self, who: Id, id: u64, name: String) -> Vec<Out> {
        let failed = |reason: String| vec![(who, Reply::Failed { id, reason })];
        if who.0 != Role::Process {
            return failed("only processes wait for each other there".into());
        }
        if let Err(reason) = self.may_wait(who, &name) {
            return failed(reason);
        }
        let at = self.barriers.entry(name.clone()).or_default();
        if at.contains_key(&who) {
            return failed("this process waits there already".into());
        }
        at.insert(who, id);
        if at.len() < self.world_size as usize {
            return self.fail_barriers();
        }
        let at = self.barriers.remove(&name).unwrap_or_default();
        let done = |(who, id)| {
            (
                who,
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
            let away = members.iter().find(|(who, (_, status))| {
                who.0 == Role::Process && *status != Status::Here && !at.contains_key(*who)
            });
            let Some((_, (member, status))) = away else {
                return true;
            };
            let how = match status {
                Status::Lost => "vanished",
                Status::Here | Status::Left => "ended",
            };
            for (who, id) in at {
                let reason = format!("{member} has {how} before it came there");
                out.push((*who, Reply::Failed { id: *id, reason }));
            }
            false
        });
        out
    }

    /// Gives a request up, and says what it still waited for.
    fn give_up(&mut self, who: Id, id: u64, waiting: u64) -> Vec<Out> {
        let mut text = String::new();
        let barrier = self
            .barriers
            .iter_mut()
            .find(|(_, at)| at.get(&who) == Some(&waiting));
        if let Some((name, at)) = barrier {
            let name = name.clone();
            let there: Vec<u32> = at.keys().map(|(_, rank)| *rank).collect();
            at.remove(&who);
            if at.is_empty() {
                self.barriers.remove(&name);
            }
            text = self.missing(&there);
        } else if self
            .getting
            .iter()
            .any(|(waiter, id, _)| (*waiter, *id) == (who, waiting))
        {
            self.getting
                .retain(|(waiter, id, _)| (*waiter, *id) != (who, waiting));
            text.push_str("nobody has set it");
            if !self.is_complete() {
                let processes = self.those(Role::Process);
                let there: Vec<u32> = processes.map(|((_, rank), _)| *rank).collect();
                text = format!("{text}; {}", self.missing(&there));
            }
        } else {
            text.push_str("it came at the last moment");
        }
        for stranger in &self.turned_away {
            let _ = write!(text, "; turned away: {stranger}");
        }
        let reason = truncated(&text, 8 << 10).to_string();
        vec![(who, Reply::Failed { id, reason })]
    }

    /// Says of the ranks that are not `there`, which are in order, where they are.
    fn missing(&self, there: &[u32]) -> String {
        let mut text = String::new();
        let missing = (0..self.world_size).filter(|rank| there.binary_search(rank).is_err());
        for rank in missing.take(NAMED_MAX) {
            let separator = if text.is_empty() { "" } else { ", " };
            let _ = match self.members.get(&(Role::Process, rank)) {
                None => write!(text, "{separator}rank {rank} has not said hello"),
                Some((member, Status::Here)) => write!(
                    text,
                    "{separator}{member} is there, but has not come so far"
                ),
                Some((member, Status::Left)) => write!(text, "{separator}{member} has ended"),
                Some((member, Status::Lost)) => write!(text, "{separator}{member} has vanished"),
            };
        }
        let more = (self.world_size as usize).saturating_sub(there.len() + NAMED_MAX);
        if more > 0 {
            let _ = write!(text, ", and {more} more");
        }
        text
    }

    /// A process or a launcher whose connection has ended without a goodbye.
    pub(super) fn lost(&mut self, who: Id, reason: &str) -> Vec<Out> {
        match self.members.get(&who) {
            Some((member, Status::Here)) => {
                let lost = Reply::Lost {
                    member: member.clone(),
                    reason: truncated(reason, 256).to_string(),
                };
                let mut out: Vec<Out> = self
                    .here()
                    .filter(|other| *other != who)
                    .map(|other| (other, lost.clone()))
                    .collect();
                out.extend(self.leave(who, Status::Lost));
                out
            }
            _ => Vec::new(),
        }
    }

    fn leave(&mut self, who: Id, status: Status) -> Vec<Out> {
        if let Some((_, old)) = self.members.get_mut(&who) {
            *old = status;
        }
        self.getting.retain(|(waiter, ..)| *waiter != who);
        for at in self.barriers.values_mut() {
            at.remove(&who);
        }
        self.barriers.retain(|_, at| !at.is_empty());
        self.fail_barriers()
    }
}
