//! Communicators: who is a member, and how far each has come.

use crate::hub::{self, Id, Member, number};
use crate::mail::{self, Mail, Posted, Which};
use crate::moves::{self, Op, Round};
use software_meeting::{Gpu, Part};
use std::collections::HashMap;
use std::io;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

/// What the members of a communicator of one process have in common.
#[derive(Default)]
struct Shared {
    rounds: Mutex<HashMap<Which, (u64, Arc<Round>)>>,
}

/// How members meet.
enum Way {
    /// All are of this process.
    Within(Arc<Shared>),
    /// Some are of another.
    Between(Arc<Mail>),
}

/// What is known when all have joined.
struct Joined {
    members: Vec<Member>,
    way: Way,
}

/// One member's handle.
pub(crate) struct Communicator {
    pub(crate) rank: usize,
    pub(crate) num: usize,
    joined: Arc<OnceLock<Option<Joined>>>,
    /// How many meetings it has had with whom.
    counts: Mutex<HashMap<Option<(usize, usize)>, u64>>,
    /// The keys of its meetings, and its number in each.
    met: Mutex<Vec<(u64, usize)>>,
}

/// By identity.
static ALL: Mutex<Option<HashMap<Id, Arc<Shared>>>> = Mutex::new(None);

/// Waits for all members.
fn join(id: &Id, num: usize, rank: usize, gpu: Gpu) -> io::Result<Joined> {
    let process = std::process::id();
    let this = Member {
        gpu,
        process,
        number: number(),
    };
    let listener = UnixListener::bind_addr(&this.address()?)?;
    let members = hub::join(id, num, rank, &this)?;
    let is_here = |member: &Member| member.process == process;
    let way = match members.iter().all(is_here) {
        true => {
            let mut all = ALL.lock().expect("no panic among communicators");
            Way::Within(Arc::clone(
                all.get_or_insert_default().entry(*id).or_default(),
            ))
        }
        false => Way::Between(Arc::new(Mail::new(rank, members.clone(), listener)?)),
    };
    Ok(Joined { members, way })
}

impl Communicator {
    /// Joins a communicator, in a thread of its own.
    pub(crate) fn join(id: Id, num: usize, rank: usize, gpu: Gpu) -> Self {
        let joined: Arc<OnceLock<Option<Joined>>> = Arc::default();
        let to_set = Arc::clone(&joined);
        thread::spawn(move || {
            let found = join(&id, num, rank, gpu);
            let said = found.map_err(|error| eprintln!("CUDA in software: NCCL: {error}"));
            to_set.get_or_init(|| said.ok());
        });
        Communicator {
            rank,
            num,
            joined,
            counts: Mutex::default(),
            met: Mutex::default(),
        }
    }

    /// Waits until all have joined, or one cannot.
    pub(crate) fn wait(&self) {
        self.joined.wait();
    }

    /// Whether all have joined; `None` if this member cannot.
    pub(crate) fn is_ready(&self) -> Option<bool> {
        match self.joined.get() {
            None => Some(false),
            Some(joined) => joined.as_ref().map(|_| true),
        }
    }

    /// Whether two members are on one GPU, which NCCL refuses.
    pub(crate) fn has_twins(&self) -> bool {
        let Some(Some(joined)) = self.joined.get() else {
            return false;
        };
        let gpus = joined.members.iter().map(|member| member.gpu);
        let gpus: Vec<Gpu> = gpus.collect();
        (1..gpus.len()).any(|at| gpus[..at].contains(&gpus[at]))
    }

    /// Returns the parts that this member takes in its next meeting with some: those that come one after the other.
    pub(crate) fn parts(&self, pair: Option<(usize, usize)>, ops: Vec<Op>) -> Vec<Part> {
        let mut counts = self.counts.lock().expect("no panic in a communicator");
        let count = counts.entry(pair).or_default();
        let which = Which {
            pair,
            number: *count,
        };
        *count += 1;
        drop(counts);
        let parts = match self.joined.get() {
            Some(Some(Joined { way, .. })) => match way {
                Way::Within(shared) => vec![self.within(shared, which, ops)],
                Way::Between(mail) => between(mail, which, ops),
            },
            _ => Vec::new(),
        };
        let mut met = self.met.lock().expect("no panic in a communicator");
        met.extend(parts.iter().map(|part| (part.key, part.member as usize)));
        parts
    }

    /// A part in a meeting of one process.
    fn within(&self, shared: &Shared, which: Which, ops: Vec<Op>) -> Part {
        let (member, members) = match which.pair {
            None => (self.rank, self.num),
            Some((one, other)) if one == other => (0, 1),
            Some((_, high)) => (usize::from(self.rank == high), 2),
        };
        let mut rounds = shared.rounds.lock().expect("no panic in a communicator");
        let new = || (number(), Arc::new(Round::new(members)));
        let (key, round) = rounds.entry(which).or_insert_with(new);
        let (key, round) = (*key, Arc::clone(round));
        if round.is_last() {
            rounds.remove(&which);
        }
        round.bring(member, ops);
        Part {
            key,
            member: member as u32,
            members: members as u32,
            body: moves::run,
            ready: None,
            brought: kept(round),
        }
    }

    /// The keys of its meetings, and its number in each.
    pub(crate) fn met(&self) -> Vec<(u64, usize)> {
        self.met.lock().expect("no panic in a communicator").clone()
    }
}

/// The parts in a meeting of several processes: this member alone sends, and then waits for what the others send.
fn between(mail: &Arc<Mail>, which: Which, ops: Vec<Op>) -> Vec<Part> {
    let posted = Arc::new(Posted {
        mail: Arc::clone(mail),
        which,
        ops,
    });
    let part = |body, ready| Part {
        key: number(),
        member: 0,
        members: 1,
        body,
        ready,
        brought: kept(Arc::clone(&posted)),
    };
    vec![
        part(mail::post, None),
        part(mail::receive, Some(mail::have_come)),
    ]
}

/// Keeps what the driver may come to at any time: it is never released.
fn kept<T>(of: Arc<T>) -> usize {
    Arc::into_raw(of) as usize
}
