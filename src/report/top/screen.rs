//! The terminal: raw mode, the alternate screen, and what ratatui draws.
//!
//! Owns the original state of the terminal, and restores it at every end of this process that the
//! process sees. Writes only the drawn picture.

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
