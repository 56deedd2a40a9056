//! The terminal: raw mode, the alternate screen, and what ratatui draws.
//!
//! Owns the original state of the terminal, and restores it at every end of this process that the
//! process sees. Writes only the drawn picture.
//!
//! The keys of a terminal in raw mode, from the bytes that it sends.

use std::fmt::Write as _;
use std::io::{self, Write};

use ratatui::backend::{ClearType, WindowSize};
use ratatui::buffer::Cell;
use ratatui::layout::{Position, Size};
use ratatui::style::{Color, Modifier};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// Alternate screen, cursor off, no wrapping.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";
/// The reverse, with colours off.
const LEAVE: &str = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";

/// Whether colours are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colours {
    On,
    /// Only bold, dim and reversed text.
    Off,
}

/// The original state of the terminal.
#[derive(Debug, Clone)]
pub struct Saved(Termios);

impl Saved {
    /// # Errors
    /// If standard input or output is not a terminal.
    pub fn of_terminal() -> io::Result<Saved> {
        tcgetwinsize(io::stdout())?;
        Ok(Saved(tcgetattr(io::stdin())?))
    }

    /// Restores the original state of the terminal. A terminal that cannot be restored is gone.
    pub fn restore(&self) {
        let mut out = io::stdout().lock();
        let _ = out.write_all(LEAVE.as_bytes()).and_then(|()| out.flush());
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}

/// The terminal while the view is shown; restored when this is dropped.
#[derive(Debug)]
pub struct Screen(Saved);

impl Screen {
    /// # Errors
    /// If this process may not set the terminal.
    pub fn enter(saved: Saved) -> io::Result<Screen> {
        let mut raw = saved.0.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        let screen = Screen(saved);
        let mut out = io::stdout().lock();
        out.write_all(ENTER.as_bytes())?;
        out.flush()?;
        Ok(screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.0.restore();
    }
}

/// The backend on which ratatui draws: sequences that every terminal since the VT100 understands, and
/// colours of xterm.
#[derive(Debug)]
pub struct Backend {
    out: String,
    colours: Colours,
}

impl Backend {
    pub fn new(colours: Colours) -> Backend {
        Backend { out: String::new(), colours }
    }

    fn style(&mut self, cell: &Cell) {
        self.out.push_str("\x1b[0");
        for (modifier, code) in [
            (Modifier::BOLD, ";1"),
            (Modifier::DIM, ";2"),
            (Modifier::UNDERLINED, ";4"),
            (Modifier::REVERSED, ";7"),
        ] {
            if cell.modifier.contains(modifier) {
                self.out.push_str(code);
            }
        }
        if self.colours == Colours::On {
            if let Some(code) = code(cell.fg) {
                let _ = write!(self.out, ";{}", 30 + code);
            }
            if let Some(code) = code(cell.bg) {
                let _ = write!(self.out, ";{}", 40 + code);
            }
        }
        self.out.push('m');
    }
}

/// The eight colours that a person's own scheme sets.
fn code(colour: Color) -> Option<u8> {
    Some(match colour {
        Color::Black => 0,
        Color::Red => 1,
        Color::Green => 2,
        Color::Yellow => 3,
        Color::Blue => 4,
        Color::Magenta => 5,
        Color::Cyan => 6,
        Color::Gray => 7,
        _ => return None,
    })
}

impl ratatui::backend::Backend for Backend {
    type Error = io::Error;

    fn draw<'a, I>(&mut self, content: I) -> io::Result<()>
    where
        I: Iterator<Item = (u16, u16, &'a Cell)>,
    {
        let mut next = None;
        let mut styled: Option<(Color, Color, Modifier)> = None;
        for (x, y, cell) in content {
            if next != Some((x, y)) {
                let _ = write!(self.out, "\x1b[{};{}H", y + 1, x + 1);
            }
            let style = (cell.fg, cell.bg, cell.modifier);
            if styled != Some(style) {
                self.style(cell);
                styled = Some(style);
            }
            self.out.push_str(cell.symbol());
            // After a wide letter the position is sent again.
            next = cell.symbol().is_ascii().then_some((x + 1, y));
        }
        if styled.is_some() {
            self.out.push_str("\x1b[0m");
        }
        Ok(())
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        self.out.push_str("\x1b[?25l");
        Ok(())
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        self.out.push_str("\x1b[?25h");
        Ok(())
    }

    /// Nobody requests the cursor on the alternate screen.
    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Ok(Position::ORIGIN)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        let Position { x, y } = position.into();
        let _ = write!(self.out, "\x1b[{};{}H", y + 1, x + 1);
        Ok(())
    }

    fn clear(&mut self) -> io::Result<()> {
        self.out.push_str("\x1b[0m\x1b[2J");
        Ok(())
    }

    fn clear_region(&mut self, _: ClearType) -> io::Result<()> {
        self.clear()
    }

    fn size(&self) -> io::Result<Size> {
        let size = tcgetwinsize(io::stdout())?;
        // A terminal of unknown size counts as 80 by 24.
        let known = |cells: u16, usual| if cells == 0 { usual } else { cells };
        Ok(Size::new(known(size.ws_col, 80), known(size.ws_row, 24)))
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        Ok(WindowSize { columns_rows: self.size()?, pixels: Size::default() })
    }

    fn flush(&mut self) -> io::Result<()> {
        let out = std::mem::take(&mut self.out);
        let mut stdout = io::stdout().lock();
        stdout.write_all(out.as_bytes())?;
        stdout.flush()
    }
}

/// A key that a person pressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    Letter(char),
    Enter,
    Escape,
    Backspace,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    /// Ctrl-C, or the end of the input.
    Quit,
}

/// Maximum bytes of a sequence after `ESC [`. No terminal sends a longer one.
const LONGEST: usize = 32;

/// Bytes that are not a whole key yet.
#[derive(Debug, Default)]
pub struct Keys {
    rest: Vec<u8>,
}

impl Keys {
    /// The keys in `bytes`. A lone ESC may begin a sequence: it is a key when [`Keys::pause`] says
    /// that nothing followed.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<Key> {
        self.rest.extend_from_slice(bytes);
        let mut keys = Vec::new();
        while let Some((key, length)) = first(&self.rest) {
            keys.extend(key);
            self.rest.drain(..length);
        }
        keys
    }

    /// Nothing came for a moment.
    pub fn pause(&mut self) -> Option<Key> {
        let escaped = self.rest.first() == Some(&0x1b);
        self.rest.clear();
        escaped.then_some(Key::Escape)
    }

    /// Number of bytes that wait for more.
    #[cfg(any(test, feature = "fixtures"))]
    pub(super) fn held(&self) -> usize {
        self.rest.len()
    }

    /// Whether a sequence has begun.
    pub fn is_waiting(&self) -> bool {
        !self.rest.is_empty()
    }
}

/// The first key and its length; None before it is whole.
fn first(bytes: &[u8]) -> Option<(Option<Key>, usize)> {
    let key = match bytes.first()? {
        0x1b => return sequence(bytes),
        b'\r' | b'\n' => Key::Enter,
        0x7f | 0x08 => Key::Backspace,
        0x03 | 0x04 => Key::Quit,
        // Emacs' and less' way to move.
        0x0e => Key::Down,
        0x10 => Key::Up,
        byte if *byte < 0x20 => return Some((None, 1)),
        _ => return letter(bytes),
    };
    Some((Some(key), 1))
}

fn letter(bytes: &[u8]) -> Option<(Option<Key>, usize)> {
    let head = bytes.get(..bytes.len().min(4))?;
    let valid = match std::str::from_utf8(head) {
        Ok(text) => text,
        Err(error) if error.valid_up_to() > 0 => {
            std::str::from_utf8(head.get(..error.valid_up_to())?).ok()?
        }
        // The bytes are cut in the middle of a letter, or are not UTF-8.
        Err(error) => return error.error_len().map(|length| (None, length)),
    };
    let letter = valid.chars().next()?;
    Some((Some(Key::Letter(letter)), letter.len_utf8()))
}

/// ECMA-48: `ESC [ parameters final`, and `ESC O final` of the application mode.
fn sequence(bytes: &[u8]) -> Option<(Option<Key>, usize)> {
    match bytes.get(1)? {
        b'[' => {}
        b'O' => return Some((moved(*bytes.get(2)?, b""), 3)),
        // Alt and a key: ESC, then that key.
        _ => return Some((Some(Key::Escape), 1)),
    }
    let body = bytes.get(2..)?;
    let head = body.get(..body.len().min(LONGEST))?;
    let Some(end) = head.iter().position(|byte| (0x40..=0x7e).contains(byte)) else {
        // A fixed number of bytes is dropped, so that the result is the same however the bytes
        // arrive.
        return (head.len() == LONGEST).then_some((None, LONGEST + 2));
    };
    Some((moved(*body.get(end)?, body.get(..end)?), end + 3))
}

fn moved(last: u8, parameters: &[u8]) -> Option<Key> {
    Some(match (last, parameters) {
        (b'A', _) => Key::Up,
        (b'B', _) => Key::Down,
        (b'H', _) | (b'~', b"1" | b"7") => Key::Home,
        (b'F', _) | (b'~', b"4" | b"8") => Key::End,
        (b'~', b"5") => Key::PageUp,
        (b'~', b"6") => Key::PageDown,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_whole_and_in_pieces() {
        let sent = "q\x1b[A\x1bOB\x1b[5~\x1b[1;5H文\r\x7f\x03".as_bytes();
        let expected = [
            Key::Letter('q'),
            Key::Up,
            Key::Down,
            Key::PageUp,
            Key::Home,
            Key::Letter('文'),
            Key::Enter,
            Key::Backspace,
            Key::Quit,
        ];
        assert_eq!(Keys::default().feed(sent), expected);
        let mut keys = Keys::default();
        let one_by_one: Vec<Key> =
            sent.iter().flat_map(|byte| keys.feed(std::slice::from_ref(byte))).collect();
        assert_eq!(one_by_one, expected);
    }

    #[test]
    fn escape_needs_a_pause_and_garbage_is_skipped() {
        let mut keys = Keys::default();
        assert_eq!(keys.feed(b"\x1b"), []);
        assert!(keys.is_waiting());
        assert_eq!(keys.pause(), Some(Key::Escape));
        assert_eq!(keys.pause(), None);
        for byte in 0..=255_u8 {
            let mut keys = Keys::default();
            keys.feed(&[byte, 0xff, byte, b'[', byte]);
            keys.pause();
            assert_eq!(keys.feed(b"a"), [Key::Letter('a')]);
        }
        let mut keys = Keys::default();
        keys.feed(&[b"\x1b[".as_slice(), &[b'1'; 100]].concat());
        assert!(!keys.is_waiting());
        // The same with an end.
        let sent = [b"\x1b[1;5".as_slice(), &[b'('; 100], b"Hq"].concat();
        let mut keys = Keys::default();
        let in_pieces: Vec<Key> = sent.chunks(3).flat_map(|piece| keys.feed(piece)).collect();
        assert_eq!(in_pieces, Keys::default().feed(&sent));
    }
}
