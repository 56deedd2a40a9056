//! Explanations of exit codes, and the ids that belong to each.

use std::str::FromStr;

use super::library::{self, Explanation};
use super::{Exit, Id};
use linux::sys::signal_name;
use text::lang::Text;
use verdict::Verdict;

/// An exit code as a shell shows it, 0 to 255.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExitCode(u8);

/// Codes above this are 128 plus a signal.
const SIGNALS: u8 = 128;
/// The highest signal of Linux.
const LAST_SIGNAL: u8 = 64;

/// The text is not an exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoCode;

impl FromStr for ExitCode {
    type Err = NoCode;

    /// `86`, `137` or `128+9`.
    fn from_str(word: &str) -> Result<ExitCode, NoCode> {
        let number = |text: &str| text.parse::<u8>().map_err(|_| NoCode);
        match word.split_once('+') {
            Some(("128", signal)) => {
                let signal = number(signal)?;
                (1..=LAST_SIGNAL)
                    .contains(&signal)
                    .then(|| ExitCode(SIGNALS + signal))
                    .ok_or(NoCode)
            }
            _ => number(word).map(ExitCode),
        }
    }
}

impl ExitCode {
    /// The codes that this program defines, in order.
    pub fn all() -> Vec<ExitCode> {
        let fixed = [0, 1, 126, 127, 130, 137, 143];
        let verdicts = Verdict::ALL.iter().filter_map(|one| u8::try_from(one.code()).ok());
        let mut all: Vec<ExitCode> = fixed.into_iter().chain(verdicts).map(ExitCode).collect();
        all.sort_unstable();
        all
    }

    pub fn number(self) -> i32 {
        self.0.into()
    }

    /// The verdict with this code, which `[exit]` of a profile can remap.
    pub fn verdict(self) -> Option<Verdict> {
        Verdict::ALL.iter().copied().find(|verdict| verdict.code() == self.number())
    }

    fn signal(self) -> Option<i32> {
        self.0
            .checked_sub(SIGNALS)
            .filter(|signal| (1..=LAST_SIGNAL).contains(signal))
            .map(i32::from)
    }

    pub fn explanation(self) -> Explanation {
        let number = self.number().to_string();
        let signal = self.signal().map(signal_name);
        let else_key = if signal.is_some() { "128+n" } else { "own" };
        let mut found = library::entry(&[&number, else_key]);
        if found.off.en.is_empty() {
            let kind = if self.verdict().is_some() { "code" } else { "other-code" };
            found.off = library::usual_off(kind, "{code}", &number);
        }
        let signal = signal.unwrap_or_default();
        let fill = |text: Text| {
            let one = |text: &str| text.replace("{code}", &number).replace("{signal}", &signal);
            Text::new(one(&text.en), one(&text.zh))
        };
        let Explanation { what, why, mend, off } = found;
        Explanation { what: fill(what), why: fill(why), mend: fill(mend), off }
    }

    /// The ids with this code. Ids that take over the code of a rank or an engine are listed
    /// only for codes without an id of their own.
    pub fn ids(self) -> Vec<Id> {
        let is = |exit: &Exit| match exit {
            Exit::Verdict(verdict) => verdict.code() == self.number(),
            Exit::Code(code) => *code == self.number(),
            Exit::NotExecuted => matches!(self.0, 126 | 127),
            Exit::Signal => self.signal().is_some(),
            Exit::Own => false,
        };
        let with = |is: &dyn Fn(&Exit) -> bool| -> Vec<Id> {
            Id::ALL.iter().copied().filter(|id| id.codes().iter().any(is)).collect()
        };
        let found = with(&is);
        let is_own = found.is_empty() && self.verdict().is_none();
        if is_own { with(&|exit| *exit == Exit::Own) } else { found }
    }
}
