//! The launchers of the other machines: what fails on one machine ends all of them, and none has ended well before all
//! have.

use super::events::{Teller, What};
use super::options::Options;
use super::outcome::Heard;
use crate::rendezvous::{Client, Member, RendezvousError, Role, Token};
use crate::seconds::DAY;
use burn_dist_comm::lock;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long the launcher of machine 0 may take to come.
const MEET_PATIENCE: Duration = Duration::from_secs(60);

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
                        if client.wait_for_trouble().is_some() {
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

    /// Returns what has failed elsewhere; `None` if only processes of this machine are missed so far, of which this
    /// launcher knows more.
    pub(super) fn heard(&self) -> Option<Heard> {
        let client = self.shared.client.get()?;
        if let Some(failure) = client.failure() {
            return Some(Heard {
                text: failure.reason,
                code: failure.exit_code,
            });
        }
        let lost = client.lost()?;
        let is_here = lost.member.as_ref().is_some_and(|member| {
            member.role == Role::Process && self.ranks_here.contains(&(member.rank as usize))
        });
        (!is_here).then(|| Heard {
            text: lost.to_string(),
            code: GONE,
        })
    }

    /// Says that all has ended well here; tells of [`What::AllDone`] once it has everywhere.
    pub(super) fn finish(&self, teller: Teller) {
        let key = |machine: usize| format!("machine {machine} is done");
        let (shared, machine, num) = (Arc::clone(&self.shared), self.machine, self.num_machines);
        let told = teller.clone();
        let thread = std::thread::Builder::new().name("other launchers' ends".into());
        let started = thread.spawn(move || {
            let client = shared.client.wait();
            let is_said = client.set(&key(machine), b"").is_ok();
            // Whatever else ends the wait is trouble, of which the other thread tells.
            if is_said && (0..num).all(|other| client.get(&key(other), DAY).is_ok()) {
                teller.tell(What::AllDone);
            }
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
