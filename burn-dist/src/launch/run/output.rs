//! What processes write, line by line.

use std::collections::VecDeque;
use std::io::{IsTerminal, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Lines that are kept of what a process has written last.
const TAIL_LINES: usize = 40;
/// Longer lines are passed on in pieces.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Of a line that is kept, so much.
const TAIL_LINE_BYTES: usize = 2 << 10;

/// Where a process writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is shown to the person who started the launcher. Whole lines: nobody writes into another's.
pub(super) struct Screen {
    inner: Mutex<Inner>,
    is_terminal: [bool; 2],
    /// Whether prefixes have a colour.
    has_colour: bool,
}

struct Inner {
    stdout: Box<dyn Write + Send>,
    stderr: Box<dyn Write + Send>,
    /// What process 0 has written after its last line, on a terminal.
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
    pub fn of_process() -> Self {
        let is_terminal = [
            std::io::stdout().is_terminal(),
            std::io::stderr().is_terminal(),
        ];
        let has_colour = std::env::var_os("NO_COLOR").is_none();
        Self::new(
            Box::new(std::io::stdout()),
            Box::new(std::io::stderr()),
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

    pub fn is_terminal(&self, stream: Stream) -> bool {
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
    pub fn say(&self, text: &str) {
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
    pub fn push(&self, line: &[u8]) {
        let line = String::from_utf8_lossy(&line[..line.len().min(TAIL_LINE_BYTES)]).into_owned();
        let mut lines = lock(&self.0);
        if lines.len() == TAIL_LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    pub fn lines(&self) -> Vec<String> {
        let lines = lock(&self.0);
        lines
            .iter()
            .filter(|line| !line.trim().is_empty())
            .cloned()
            .collect()
    }
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
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
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

/// What a terminal would show of a line that was written over: the last of it.
fn shown(line: &[u8]) -> &[u8] {
    let mut parts = line.rsplit(|byte| *byte == b'\r');
    parts.find(|part| !part.is_empty()).unwrap_or(&[])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Something to write to that can be looked at.
    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<Vec<u8>>>);

    impl Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            lock(&self.0).extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
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
        fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
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
        let endless = std::io::repeat(b'x').take(1 << 20);
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
            lines[0].starts_with("960") && lines.iter().all(|line| line.len() <= TAIL_LINE_BYTES)
        );
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
