//! Assembles whole lines from the parts of a stream.

/// Maximum bytes of a line that are kept.
const LONGEST: usize = 16 * 1024;

/// A line that is not complete yet.
#[derive(Debug, Default)]
pub(crate) struct Partial {
    bytes: Vec<u8>,
    /// The beginning of the line is missing, so it matches nothing.
    headless: bool,
}

impl Partial {
    /// Gives each line that `part` completes, without its end. A carriage return also ends a line: a
    /// progress bar has no other end.
    pub(crate) fn feed(&mut self, part: &[u8], mut each: impl FnMut(&[u8])) {
        let mut rest = part;
        while let Some(end) = memchr::memchr2(b'\n', b'\r', rest) {
            let (line, more) = rest.split_at(end);
            rest = more.get(1..).unwrap_or_default();
            let headless = std::mem::take(&mut self.headless);
            if self.bytes.is_empty() {
                if !headless && !line.is_empty() {
                    each(line.get(..LONGEST).unwrap_or(line));
                }
                continue;
            }
            self.keep(line);
            if !headless {
                each(&self.bytes);
            }
            self.bytes.clear();
        }
        self.keep(rest);
    }

    /// The bytes of the line that has no end yet. None if there are no bytes, or the beginning of the line is missing.
    pub(crate) fn unfinished(&self) -> Option<&[u8]> {
        (!self.headless && !self.bytes.is_empty()).then_some(self.bytes.as_slice())
    }

    fn keep(&mut self, more: &[u8]) {
        let room = LONGEST.saturating_sub(self.bytes.len()).min(more.len());
        self.bytes.extend_from_slice(more.get(..room).unwrap_or_default());
    }

    /// Bytes of the stream are missing here.
    pub(crate) fn skip(&mut self) {
        self.bytes.clear();
        self.headless = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(parts: &[&[u8]]) -> Vec<String> {
        let (mut partial, mut found) = (Partial::default(), Vec::new());
        for part in parts {
            match *part == b"SKIP" {
                true => partial.skip(),
                false => {
                    partial.feed(part, |line| found.push(String::from_utf8_lossy(line).into()))
                }
            }
        }
        found
    }

    #[test]
    fn split_input_yields_whole_lines() {
        assert_eq!(lines(&[b"a\nb\r\nc", b"d\re\n", b"f"]), ["a", "b", "cd", "e"]);
        assert_eq!(lines(&[b"a", b"SKIP", b"b\nc\n"]), ["c"], "b may be the end of another line");
        let long = vec![b'x'; 3 * LONGEST];
        let found = lines(&[&long, b"y\nz\n"]);
        assert_eq!((found[0].len(), &*found[1]), (LONGEST, "z"));
    }
}
