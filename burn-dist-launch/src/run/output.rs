//! The output of processes, line by line.

use burn_dist_comm::lock;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IsTerminal, PipeReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Lines that are kept of what a process has written last: a backtrace below a message is long.
const TAIL_LINES: usize = 400;
/// Longer lines are passed on in pieces.
const LINE_BYTES_MAX: usize = 64 << 10;
/// So much of a line that is kept.
const TAIL_LINE_BYTES: usize = 2 << 10;
/// How long a pipe may be silent once all processes have ended: something that has left their process groups may hold
/// it open.
const SILENCE: Duration = Duration::from_secs(1);

/// Where a process writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

/// The output that the person who started the launcher sees. Whole lines: nobody writes into another's.
pub(super) struct Screen {
    inner: Mutex<Inner>,
    is_terminal: [bool; 2],
    /// True if prefixes have a colour.
    has_colour: bool,
}

struct Inner {
    stdout: Box<dyn Write + Send>,
    stderr: Box<dyn Write + Send>,
    /// The output of process 0 after its last line, on a terminal.
    partial: Partial,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Partial {
    None,
    /// Text that stands there.
    Text,
    /// Something that is drawn again and again, such as a progress bar.
    Bar,
}

impl Screen {
    /// Returns that of this process.
    pub(super) fn of_process() -> Self {
        let is_terminal = [io::stdout().is_terminal(), io::stderr().is_terminal()];
        let has_colour = std::env::var_os("NO_COLOR").is_none();
        Self::new(
            Box::new(io::stdout()),
            Box::new(io::stderr()),
            is_terminal,
            has_colour,
        )
    }

    fn new(
        stdout: Box<dyn Write + Send>,
        stderr: Box<dyn Write + Send>,
        is_terminal: [bool; 2],
        has_colour: bool,
    ) -> Self {
        Self {
            inner: Mutex::new(Inner {
                stdout,
                stderr,
                partial: Partial::None,
            }),
            is_terminal,
            has_colour,
        }
    }

    pub(super) fn is_terminal(&self, stream: Stream) -> bool {
        self.is_terminal[stream as usize]
    }

    /// Shows a line of a process.
    fn line(&self, stream: Stream, rank: usize, line: &[u8]) {
        const COLOURS: [u8; 6] = [36, 33, 35, 32, 34, 31];
        let is_terminal = self.is_terminal(stream);
        let mut text = match is_terminal && self.has_colour {
            true => format!("\x1b[{}m[{rank}]\x1b[0m ", COLOURS[rank % COLOURS.len()]),
            false => format!("[{rank}] "),
        }
        .into_bytes();
        text.extend(line);
        text.push(b'\n');
        let mut inner = lock(&self.inner);
        if is_terminal {
            inner.clear(stream);
        }
        inner.write(stream, &text);
    }

    /// Shows what process 0 writes, as it is.
    fn raw(&self, stream: Stream, bytes: &[u8]) {
        let mut inner = lock(&self.inner);
        if self.is_terminal(stream) {
            let after = bytes.rsplit(|byte| *byte == b'\n').next().unwrap_or(bytes);
            let is_new_line = after.len() < bytes.len();
            inner.partial = match inner.partial {
                _ if is_new_line && after.is_empty() => Partial::None,
                _ if after.contains(&b'\r') || after.contains(&0x1b) => Partial::Bar,
                Partial::Bar if !is_new_line => Partial::Bar,
                _ => Partial::Text,
            };
        }
        inner.write(stream, bytes);
    }

    /// Shows a word of the launcher's own, on stderr.
    pub(super) fn say(&self, text: &str) {
        let mut inner = lock(&self.inner);
        if self.is_terminal(Stream::Stderr) {
            inner.clear(Stream::Stderr);
        }
        inner.write(Stream::Stderr, format!("{}\n", text.trim_end()).as_bytes());
    }
}

impl Inner {
    /// Makes room for a line: takes away a bar, which will be drawn again, and ends a text.
    fn clear(&mut self, stream: Stream) {
        match std::mem::replace(&mut self.partial, Partial::None) {
            Partial::None => {}
            Partial::Bar => self.write(stream, b"\r\x1b[K"),
            Partial::Text => self.write(stream, b"\n"),
        }
    }

    fn write(&mut self, stream: Stream, bytes: &[u8]) {
        let to = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        // Whoever has closed it wants no more.
        let _ = to.write_all(bytes).and_then(|()| to.flush());
    }
}

/// The last lines that a process has written.
#[derive(Debug, Default)]
pub(super) struct Tail(Mutex<VecDeque<String>>);

impl Tail {
    pub(super) fn push(&self, line: &[u8]) {
        let line = plain(line);
        let line = String::from_utf8_lossy(&line[..line.len().min(TAIL_LINE_BYTES)]).into_owned();
        let mut lines = lock(&self.0);
        if lines.len() == TAIL_LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    pub(super) fn lines(&self) -> Vec<String> {
        let lines = lock(&self.0);
        lines
            .iter()
            .filter(|line| !line.trim().is_empty())
            .cloned()
            .collect()
    }
}

/// Returns a line without colours and moves of the cursor: ESC [, parameters, and what ends them.
fn plain(line: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.windows(2).position(|pair| pair == b"\x1b[") {
        plain.extend(&rest[..at]);
        rest = &rest[at + 2..];
        let end = rest.iter().position(|byte| (0x40..=0x7e).contains(byte));
        rest = &rest[end.map_or(rest.len(), |end| end + 1)..];
    }
    plain.extend(rest);
    plain
}

/// The output of a process: all of it, until its end is closed, or until all processes have ended and nothing has come
/// for a while.
pub(super) struct Source {
    from: File,
    /// Its other end is closed when all processes have ended.
    running: Arc<PipeReader>,
    all_have_ended: bool,
}

impl Source {
    pub(super) fn new(from: File, running: Arc<PipeReader>) -> Self {
        Self {
            from,
            running,
            all_have_ended: false,
        }
    }
}

impl Read for Source {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        while !self.all_have_ended {
            match readable([self.from.as_fd(), self.running.as_fd()], None)? {
                [true, _] => return self.from.read(to),
                [false, all_have_ended] => self.all_have_ended = all_have_ended,
            }
        }
        match readable([self.from.as_fd()], Some(SILENCE))? {
            [true] => self.from.read(to),
            [false] => Ok(0),
        }
    }
}

/// Waits until one of `files` has something to read or its other end is closed, and says which.
fn readable<const N: usize>(
    files: [BorrowedFd<'_>; N],
    patience: Option<Duration>,
) -> io::Result<[bool; N]> {
    let mut polled = files.map(|file| PollFd::new(file, PollFlags::POLLIN));
    let patience = patience.map_or(PollTimeout::NONE, |patience| {
        PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX)
    });
    poll(&mut polled, patience)?;
    // What the library has no name for has happened too.
    Ok(polled.map(|file| file.any().unwrap_or(true)))
}

/// Passes on what a process writes until it closes its end; `is_raw` if as it is.
pub(super) fn forward(
    mut from: impl Read,
    screen: &Screen,
    stream: Stream,
    rank: usize,
    is_raw: bool,
    tail: Option<Arc<Tail>>,
) {
    let mut lines = Lines::default();
    let mut bytes = vec![0; 16 << 10];
    let show = |line: &[u8]| {
        if !is_raw {
            screen.line(stream, rank, line);
        }
        if let Some(tail) = &tail {
            tail.push(line);
        }
    };
    loop {
        let read = match from.read(&mut bytes) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // How a terminal ends.
            Err(_) => 0,
        };
        if read == 0 {
            break;
        }
        if is_raw {
            screen.raw(stream, &bytes[..read]);
        }
        lines.push(&bytes[..read], show);
    }
    lines.end(show);
}

/// Cuts bytes into lines.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    fn push(&mut self, bytes: &[u8], mut show: impl FnMut(&[u8])) {
        let mut pieces = bytes.split(|byte| *byte == b'\n').peekable();
        while let Some(piece) = pieces.next() {
            self.0.extend(piece);
            if pieces.peek().is_some() || self.0.len() >= LINE_BYTES_MAX {
                show(shown(&self.0));
                self.0.clear();
            }
        }
    }

    fn end(&mut self, mut show: impl FnMut(&[u8])) {
        if !self.0.is_empty() {
            show(shown(&self.0));
        }
    }
}

/// Returns what a terminal would show of a line that was written over: the last of it.
fn shown(line: &[u8]) -> &[u8] {
    let mut parts = line.rsplit(|byte| *byte == b'\r');
    parts.find(|part| !part.is_empty()).unwrap_or(&[])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;
    use std::time::Instant;

    /// Something to write to that can be looked at.
    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<Vec<u8>>>);

    impl Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            lock(&self.0).extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Paper {
        fn text(&self) -> String {
            String::from_utf8(lock(&self.0).clone()).expect("text")
        }
    }

    fn screen(is_terminal: bool) -> (Screen, Paper, Paper) {
        let (out, err) = (Paper::default(), Paper::default());
        let screen = Screen::new(
            Box::new(out.clone()),
            Box::new(err.clone()),
            [is_terminal; 2],
            false,
        );
        (screen, out, err)
    }

    /// Reads that end where the pieces do.
    struct Pieces(Vec<&'static [u8]>);

    impl Read for Pieces {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                return Ok(0);
            }
            let piece = self.0.remove(0);
            to[..piece.len()].copy_from_slice(piece);
            Ok(piece.len())
        }
    }

    #[test]
    fn lines_are_kept_whole_and_have_their_rank() {
        let (screen, out, err) = screen(false);
        let tail = Arc::new(Tail::default());
        let pieces = Pieces(vec![
            b"first\nsec",
            b"ond\n\nbar 1\rbar 2\r",
            b"bar 3\nwindows\r\nno end",
        ]);
        forward(
            pieces,
            &screen,
            Stream::Stdout,
            2,
            false,
            Some(Arc::clone(&tail)),
        );
        assert_eq!(
            out.text(),
            "[2] first\n[2] second\n[2] \n[2] bar 3\n[2] windows\n[2] no end\n"
        );
        assert_eq!(err.text(), "");
        assert_eq!(
            tail.lines(),
            ["first", "second", "bar 3", "windows", "no end"]
        );
    }

    #[test]
    fn a_line_without_end_is_passed_on_in_pieces() {
        let (screen, out, _) = screen(false);
        let endless = io::repeat(b'x').take(1 << 20);
        forward(endless, &screen, Stream::Stdout, 0, false, None);
        let text = out.text();
        assert!(text.lines().all(|line| line.len() < 2 * LINE_BYTES_MAX));
        assert_eq!(text.matches('x').count(), 1 << 20);
    }

    #[test]
    fn only_the_last_lines_are_kept() {
        let tail = Tail::default();
        for line in 0..1000 {
            tail.push(format!("{line}{}", " ".repeat(10_000)).as_bytes());
        }
        let lines = tail.lines();
        assert_eq!(lines.len(), TAIL_LINES);
        assert!(
            lines[0].starts_with("600") && lines.iter().all(|line| line.len() <= TAIL_LINE_BYTES)
        );
    }

    #[test]
    fn kept_lines_have_no_colours() {
        for (line, kept) in [
            ("plain", "plain"),
            ("\x1b[1m\x1b[31merror\x1b[0m: why", "error: why"),
            ("\x1b[2K\x1b[38;5;12mblue\x1b[m", "blue"),
            ("an array[1] of \x1b alone", "an array[1] of \x1b alone"),
            ("cut \x1b[31", "cut "),
        ] {
            let tail = Tail::default();
            tail.push(line.as_bytes());
            assert_eq!(tail.lines(), [kept]);
        }
    }

    #[test]
    fn all_that_is_in_a_pipe_is_read_however_late() {
        let (running, end) = io::pipe().expect("a pipe");
        let (from, mut to) = io::pipe().expect("a pipe");
        let mut source = Source::new(File::from(OwnedFd::from(from)), Arc::new(running));
        to.write_all(b"first").expect("an open pipe");
        let mut bytes = [0; 16];
        assert_eq!(source.read(&mut bytes).expect("it is there"), 5);
        // The process has ended, and something else holds its pipe open.
        to.write_all(b"last").expect("an open pipe");
        drop(end);
        std::thread::sleep(2 * SILENCE);
        assert_eq!(source.read(&mut bytes).expect("it is there"), 4);
        let start = Instant::now();
        assert_eq!(source.read(&mut bytes).expect("silence"), 0);
        assert!(start.elapsed() >= SILENCE, "{:?}", start.elapsed());
        drop(to);
    }

    #[test]
    fn raw_output_passes_as_it_is() {
        let (screen, out, _) = screen(false);
        forward(
            Pieces(vec![b"a\rb", b"\xff\nc"]),
            &screen,
            Stream::Stdout,
            0,
            true,
            None,
        );
        assert_eq!(*lock(&out.0), b"a\rb\xff\nc");
    }

    #[test]
    fn a_line_beside_a_progress_bar_takes_its_place_until_it_is_drawn_again() {
        let (screen, _, err) = screen(true);
        screen.raw(Stream::Stderr, b"\r[##  ]");
        screen.line(Stream::Stderr, 1, b"hello");
        screen.raw(Stream::Stderr, b"\r[### ]");
        screen.raw(Stream::Stderr, b"\r[####]\n");
        screen.line(Stream::Stderr, 1, b"done");
        screen.raw(Stream::Stderr, b"a question? ");
        screen.say("burn-dist: a word");
        assert_eq!(
            err.text(),
            "\r[##  ]\r\x1b[K[1] hello\n\r[### ]\r[####]\n[1] done\na question? \nburn-dist: a word\n"
        );
    }
}
