//! Words for the end of a process.

use linux::sys::signal_name;
use text::lang::Text;
use text::text;
use verdict::outcome::End;

/// `exit code 7`, `signal SIGKILL`.
pub fn describe(end: End) -> Text {
    match end {
        End::Code(code) => text!("exit code {code}", "退出码 {code}"),
        End::Signal(signal) => {
            let name = signal_name(signal);
            text!("signal {name}", "信号 {name}")
        }
    }
}
