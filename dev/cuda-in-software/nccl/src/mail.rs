//! Letters between members of several processes: what one brings to a meeting goes to all others of it.

use crate::hub::{Member, array};
use crate::moves::{self, Fold, Kind, Letter, Op, What, deliver};
use software_meeting::{Check, Memory};
use std::collections::HashMap;
use std::ffi::c_void;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// Which meeting of a communicator: the members that meet (one another, or all), and how many they had before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Which {
    pub(crate) pair: Option<(usize, usize)>,
    pub(crate) number: u64,
}

/// Letters that have come, by meeting and sender.
type Inbox = Mutex<HashMap<(Which, usize), Letter>>;

/// What a member sends letters by, and gets them.
pub(crate) struct Mail {
    rank: usize,
    members: Vec<Member>,
    inbox: Arc<Inbox>,
    /// To whom a way is open.
    open: Mutex<HashMap<usize, UnixStream>>,
}

impl Mail {
    /// Takes letters from a listener, in threads of its own.
    pub(crate) fn new(
        rank: usize,
        members: Vec<Member>,
        listener: UnixListener,
    ) -> io::Result<Self> {
        let inbox = Arc::new(Inbox::default());
        let taken = Arc::clone(&inbox);
        let others = members.len() - 1;
        thread::Builder::new()
            .name("NCCL's letters".into())
            .spawn(move || {
                for stream in listener.incoming().take(others).flatten() {
                    let inbox = Arc::clone(&taken);
                    // A member that is gone sends nothing more: whoever needs its letters waits for ever, as NCCL does.
                    thread::spawn(move || drop(take_in(stream, &inbox)));
                }
            })?;
        Ok(Mail {
            rank,
            members,
            inbox,
            open: Mutex::default(),
        })
    }

    /// The members of a meeting.
    fn met(&self, which: Which) -> Vec<usize> {
        match which.pair {
            None => (0..self.members.len()).collect(),
            Some((one, other)) if one == other => vec![one],
            Some((one, other)) => vec![one, other],
        }
    }

    fn post(&self, which: Which, letter: Letter) -> io::Result<()> {
        let bytes = written(which, self.rank, &letter);
        for to in self.met(which) {
            if to == self.rank {
                continue;
            }
            let mut open = self.open.lock().expect("no panic in the mail");
            let stream = match open.get_mut(&to) {
                Some(stream) => stream,
                None => {
                    let stream = UnixStream::connect_addr(&self.members[to].address()?)?;
                    open.entry(to).or_insert(stream)
                }
            };
            stream.write_all(&bytes)?;
        }
        let mut inbox = self.inbox.lock().expect("no panic in the mail");
        inbox.insert((which, self.rank), letter);
        Ok(())
    }
}

/// A member's part in a meeting of several processes.
pub(crate) struct Posted {
    pub(crate) mail: Arc<Mail>,
    pub(crate) which: Which,
    pub(crate) ops: Vec<Op>,
}

/// Codes of the bodies below.
const NO_WAY: u32 = 4;

/// What the driver calls when this member's stream has come: it sends the letters.
///
/// # Safety
/// The first pointer is to a [`Posted`], and the last is the check's.
pub(crate) unsafe extern "C" fn post(
    posted: *const c_void,
    check: Check,
    context: *const c_void,
) -> u32 {
    // SAFETY: the caller's promise.
    let of = unsafe { &*posted.cast::<Posted>() };
    let (mail, memory) = (&of.mail, Memory { check, context });
    let members = mail.met(of.which);
    let me = members.iter().position(|member| *member == mail.rank);
    let letter = moves::letter(
        &memory,
        of.ops.clone(),
        me.unwrap_or_default(),
        members.len(),
    );
    let sent = letter.map(|letter| mail.post(of.which, letter));
    match sent {
        Ok(Ok(())) => 0,
        // A member that is gone takes no letters; what waits for one of its own waits for ever.
        Ok(Err(error)) if is_gone(&error) => 0,
        Ok(Err(_)) => NO_WAY,
        Err(code) => code,
    }
}

fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset};
    matches!(
        error.kind(),
        BrokenPipe | ConnectionRefused | ConnectionReset
    )
}

/// Whether the letters of all have come.
///
/// # Safety
/// The pointer is to a [`Posted`].
pub(crate) unsafe extern "C" fn have_come(posted: *const c_void) -> u32 {
    // SAFETY: the caller's promise.
    let of = unsafe { &*posted.cast::<Posted>() };
    let inbox = of.mail.inbox.lock().expect("no panic in the mail");
    let mut members = of.mail.met(of.which).into_iter();
    members
        .all(|from| inbox.contains_key(&(of.which, from)))
        .into()
}

/// What the driver calls then: it writes what this member receives.
///
/// # Safety
/// The first pointer is to a [`Posted`], and the last is the check's.
pub(crate) unsafe extern "C" fn receive(
    posted: *const c_void,
    check: Check,
    context: *const c_void,
) -> u32 {
    // SAFETY: the caller's promise.
    let of = unsafe { &*posted.cast::<Posted>() };
    let members = of.mail.met(of.which);
    let mut inbox = of.mail.inbox.lock().expect("no panic in the mail");
    let letters = members.iter().map(|from| inbox.remove(&(of.which, *from)));
    let letters = letters.collect::<Option<Vec<Letter>>>();
    drop(inbox);
    let me = members.iter().position(|member| *member == of.mail.rank);
    match (letters, me) {
        (Some(letters), Some(me)) => {
            let done = deliver(&letters, me..me + 1, &Memory { check, context });
            done.err().unwrap_or(0)
        }
        _ => NO_WAY,
    }
}

/// A letter as bytes: numbers of 64 bits, and what is sent.
fn written(which: Which, from: usize, letter: &Letter) -> Vec<u8> {
    let mut out = Vec::new();
    let mut put = |numbers: [u64; 5]| {
        out.extend(numbers.into_iter().flat_map(u64::to_le_bytes));
    };
    let (low, high) = which.pair.unwrap_or((usize::MAX, usize::MAX));
    let num = letter.ops.len() as u64;
    put([low as u64, high as u64, which.number, from as u64, num]);
    for op in &letter.ops {
        let (what, fold, root) = match op.what {
            What::AllGather => (0, 0, 0),
            What::Broadcast(root) => (1, 0, root),
            What::AllReduce(fold) => (2, fold.0, 0),
            What::ReduceScatter(fold) => (3, fold.0, 0),
            What::Reduce(fold, root) => (4, fold.0, root),
            What::Send => (5, 0, 0),
            What::Receive => (6, 0, 0),
        };
        let (fold, kind) = (fold as u64, op.kind.0 as u64);
        put([what, fold, root as u64, op.count as u64, kind]);
    }
    for bytes in &letter.bytes {
        out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        out.extend_from_slice(bytes);
    }
    out
}

/// Takes letters from a member until it is gone.
fn take_in(stream: UnixStream, inbox: &Inbox) -> io::Result<()> {
    let mut from = BufReader::new(stream);
    loop {
        let (which, sender, letter) = read(&mut from)?;
        let mut inbox = inbox.lock().expect("no panic in the mail");
        inbox.insert((which, sender), letter);
    }
}

fn read(from: &mut impl Read) -> io::Result<(Which, usize, Letter)> {
    fn number(from: &mut impl Read) -> io::Result<u64> {
        Ok(u64::from_le_bytes(array(from)?))
    }
    let (low, high) = (number(from)?, number(from)?);
    let which = Which {
        pair: (low != u64::MAX).then_some((low as usize, high as usize)),
        number: number(from)?,
    };
    let (sender, count) = (number(from)? as usize, number(from)?);
    let mut letter = Letter::default();
    for _ in 0..count {
        let what = number(from)?;
        let (fold, root) = (Fold(number(from)? as i32), number(from)? as usize);
        letter.ops.push(Op {
            what: match what {
                0 => What::AllGather,
                1 => What::Broadcast(root),
                2 => What::AllReduce(fold),
                3 => What::ReduceScatter(fold),
                4 => What::Reduce(fold, root),
                5 => What::Send,
                6 => What::Receive,
                _ => return Err(io::ErrorKind::InvalidData.into()),
            },
            send: 0,
            recv: 0,
            count: number(from)? as usize,
            kind: Kind(number(from)? as i32),
        });
    }
    for _ in 0..count {
        let mut bytes = vec![0; number(from)? as usize];
        from.read_exact(&mut bytes)?;
        letter.bytes.push(bytes);
    }
    Ok((which, sender, letter))
}
