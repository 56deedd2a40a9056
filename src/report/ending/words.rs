//! Words for how a process ended.

use crate::lang::Text;
use crate::outcome::End;
use crate::sys::signal_name;
use crate::text;

/// `exit code 7`, `signal SIGKILL`.
pub(crate) fn describe(end: End) -> Text {
    match end {
        End::Code(code) => text!("exit code {code}", "退出码 {code}"),
        End::Signal(signal) => {
            let name = signal_name(signal);
            text!("signal {name}", "信号 {name}")
        }
    }
}
