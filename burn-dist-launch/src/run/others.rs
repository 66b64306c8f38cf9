//! The launchers of the other machines: what fails on one machine ends all of them, and none has ended well before all
//! have.

use super::events::{Teller, What};
use super::options::Options;
use super::outcome::Heard;
use crate::rendezvous::{Client, Lost, Member, RendezvousError, Role, Token};
use crate::seconds::DAY;
use burn_dist_comm::lock;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the launcher of machine 0 may take to come.
const MEET_PATIENCE: Duration = Duration::from_secs(60);

/// How long a launcher may take to know more of a process of its own machine that is missed.
const KNOWS_MORE: Duration = Duration::from_secs(3);

/// The exit code if a machine or a process is gone: another start may help.
const GONE: u8 = 75;

/// The other launchers of one start; dropping it says goodbye.
pub(super) struct Others {
    shared: Arc<Shared>,
    machine: usize,
    num_machines: usize,
    ranks_here: Range<usize>,
}

#[derive(Default)]
struct Shared {
    /// Once the rendezvous is reached.
    client: OnceLock<Client>,
    /// The failure to report then.
    unsaid: Mutex<Option<Heard>>,
    /// When a process of this machine was first missed.
    missed: OnceLock<Instant>,
    /// True once all has ended well here.
    is_done: AtomicBool,
}

impl Others {
    /// Joins them, in a thread that tells of [`What::Trouble`] elsewhere, or of [`What::Unmet`].
    pub(super) fn join(
        options: &Options,
        address: &str,
        token: &Token,
        restart: u32,
        teller: Teller,
    ) -> Self {
        let me = Member::launcher(options.node_rank as u32, options.nnodes as u32, restart);
        let (address, token) = (address.to_string(), token.clone());
        let shared = Arc::<Shared>::default();
        let joining = Arc::clone(&shared);
        let told = teller.clone();
        let thread = std::thread::Builder::new().name("other launchers".into());
        let started =
            thread.spawn(
                move || match Client::connect(&address, &token, me, MEET_PATIENCE) {
                    Err(error) => teller.tell(What::Unmet(error)),
                    Ok(client) => {
                        let client = joining.meet(client);
                        let mut known = 0;
                        // The first of it may be what this launcher knows better, and not the last.
                        while let Some(more) = client.wait_for_more_trouble(known) {
                            known = more;
                            teller.tell(What::Trouble);
                        }
                    }
                },
            );
        tell_unstarted(started, &told);
        let first = options.first_rank();
        Self {
            shared,
            machine: options.node_rank,
            num_machines: options.nnodes,
            ranks_here: first..first + options.nproc,
        }
    }

    /// Tells them what has failed here.
    pub(super) fn fail(&self, heard: Heard) {
        // Either this sees the client, or the thread that sets it sees what is unsaid.
        let mut unsaid = lock(&self.shared.unsaid);
        match self.shared.client.get() {
            Some(client) => client.fail_with(&heard.text, heard.code),
            None => *unsaid = Some(heard),
        }
    }

    /// Returns what has failed elsewhere; `None` if only processes of this machine are missed so far, for a moment in
    /// which this launcher may come to know more of them: how they ended. One that still runs then is missed all the
    /// same, and has ended the run of the others.
    pub(super) fn heard(&self) -> Option<Heard> {
        let client = self.shared.client.get()?;
        if let Some(failure) = client.failure() {
            return Some(Heard {
                text: failure.reason,
                code: failure.exit_code,
            });
        }
        let is_done = self.shared.is_done.load(Ordering::Acquire);
        let is_known_better = |lost: &Lost| {
            let member = lost.member.as_ref();
            let is_here = member.is_some_and(|member| {
                member.role == Role::Process && self.ranks_here.contains(&(member.rank as usize))
            });
            let missed = || self.shared.missed.get_or_init(Instant::now).elapsed();
            is_here && !is_done && missed() < KNOWS_MORE
        };
        let lost = client.lost_among(|lost| !is_known_better(lost))?;
        Some(Heard {
            text: lost.to_string(),
            code: GONE,
        })
    }

    /// Says that all has ended well here; tells of [`What::AllDone`] once it has everywhere, or else of
    /// [`What::Trouble`], also where that came before, or [`What::Unmet`].
    pub(super) fn finish(&self, teller: Teller) {
        let key = |machine: usize| format!("machine {machine} is done");
        self.shared.is_done.store(true, Ordering::Release);
        let (shared, machine, num) = (Arc::clone(&self.shared), self.machine, self.num_machines);
        let told = teller.clone();
        let thread = std::thread::Builder::new().name("other launchers' ends".into());
        let started = thread.spawn(move || {
            let client = shared.client.wait();
            let said = client.set(&key(machine), b"");
            let all = said.and_then(|()| {
                (0..num).try_for_each(|other| client.get(&key(other), DAY).map(drop))
            });
            teller.tell(match all {
                Ok(()) => What::AllDone,
                // The launcher may have looked at it before it knew how all ends here.
                Err(_) if client.trouble().is_some() => What::Trouble,
                Err(error) => What::Unmet(error),
            });
        });
        tell_unstarted(started, &told);
    }
}

/// Tells of a thread that the system has not started: nobody would meet the others.
fn tell_unstarted(started: std::io::Result<JoinHandle<()>>, teller: &Teller) {
    if let Err(error) = started {
        teller.tell(What::Unmet(RendezvousError::Failed {
            what: "be reached".into(),
            reason: format!("the system starts no thread: {error}"),
        }));
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        if let Some(client) = self.shared.client.get() {
            client.goodbye();
        }
    }
}

impl Shared {
    fn meet(&self, client: Client) -> &Client {
        let mut unsaid = lock(&self.unsaid);
        let client = self.client.get_or_init(|| client);
        if let Some(heard) = unsaid.take() {
            client.fail_with(&heard.text, heard.code);
        }
        client
    }
}
