//! Text within the workflow commands of GitHub, escaped as their runner reads it
//! (actions/toolkit, command.ts).

/// The message of a command.
pub fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// The value of a property, such as `file`.
pub fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}
