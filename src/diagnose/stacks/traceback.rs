//! The stacks of a process in the form of Python's faulthandler.
//!
//! Blocks of lines `  File "NAME", line N in FUNCTION`, the innermost frame first. There is one block for each
//! thread, the newest thread first: the last block belongs to the thread that runs the program. Nobody checks the
//! content of the file, so a line that is not understood is left out.

use super::collect::RankStacks;
use super::process::{PythonStack, ThreadStack};
use super::python::Frame;

/// End of the first line of each block: `Thread 0x00007f… (most recent call first):`.
const BEGINS: &str = "(most recent call first):";

/// One thread.
#[derive(Debug, Default)]
struct Block {
    frames: Vec<Frame>,
    cut: bool,
}

impl RankStacks {
    /// Takes the stacks from the text of faulthandler. The reason why they could not be read from memory remains.
    pub fn take_traceback(&mut self, words: &str) {
        let mut blocks = blocks(words);
        let Some(first) = blocks.pop() else { return };
        let python = |Block { frames, cut }| PythonStack {
            interpreter: 0,
            holds_gil: None,
            frames,
            cut,
            moving: false,
            unread: None,
        };
        let threads = &mut self.process.threads;
        match threads.first_mut() {
            Some(thread) => thread.python = Some(python(first)),
            None => threads.push(unmatched(python(first))),
        }
        threads.extend(blocks.into_iter().map(|block| unmatched(python(block))));
    }
}

/// faulthandler names threads by an address that the kernel does not know.
fn unmatched(python: PythonStack) -> ThreadStack {
    ThreadStack { tid: None, kernel: None, python: Some(python) }
}

fn blocks(words: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    // `lines` would take a carriage return as part of the line end, each time that the text is read again.
    for line in words.split('\n') {
        if line.ends_with(BEGINS) && !line.starts_with(' ') {
            found.push(Block::default());
        } else if let Some(block) = found.last_mut() {
            block.cut |= line == "  ...";
            block.frames.extend(frame(line));
        }
    }
    found
}

/// A line number that the interpreter does not know is `???`.
fn frame(line: &str) -> Option<Frame> {
    let (file, rest) = line.strip_prefix("  File \"")?.rsplit_once("\", line ")?;
    let (line, function) = rest.split_once(" in ")?;
    let line = line.parse().ok();
    Some(Frame {
        function: function.to_owned(),
        file: file.to_owned(),
        line,
        first_line: line.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stacks::process::ProcessStacks;
    use crate::stacks::unread::Unread;
    use text::rank::{GlobalRank, LocalRank};

    fn stacks() -> RankStacks {
        RankStacks {
            rank: GlobalRank(0),
            local_rank: LocalRank(0),
            process: ProcessStacks::unread(7, Unread::Denied { errno: 13 }),
            children: Vec::new(),
            children_left_out: 0,
        }
    }

    fn lines(stacks: &RankStacks) -> Vec<Vec<String>> {
        let shown = |frame: &Frame| format!("{}:{:?} {}", frame.file, frame.line, frame.function);
        let python = |thread: &ThreadStack| {
            thread.python.iter().flat_map(|python| &python.frames).map(shown).collect()
        };
        stacks.process.threads.iter().map(python).collect()
    }

    #[test]
    fn the_last_block_is_the_first_thread() {
        let mut found = stacks();
        found.take_traceback(
            "Thread 0x00007f81 [worker] (most recent call first):\n  File \"/usr/lib/queue.py\", line 171 in get\n  ...\n\n\
             Current thread 0x00007f82 (most recent call first):\n  File \"/job/a \", line 3.py\", line 9 in load\n  File \"/job/a.py\", line ??? in <module>\n",
        );
        assert_eq!(
            lines(&found),
            [
                vec!["/job/a \", line 3.py:Some(9) load", "/job/a.py:None <module>"],
                vec!["/usr/lib/queue.py:Some(171) get"],
            ]
        );
        let python = found.process.threads[1].python.as_ref().expect("a stack");
        assert!(python.cut);
        assert_eq!(found.process.unread, Some(Unread::Denied { errno: 13 }));
    }

    /// A build without GIL shows the thread that takes the signal.
    #[test]
    fn a_single_thread_is_the_first_one() {
        let mut found = stacks();
        found.take_traceback(
            "  <Cannot show all threads while the GIL is disabled>\nStack (most recent call first):\n  File \"a.py\", line 1 in f\n",
        );
        assert_eq!(lines(&found), [["a.py:Some(1) f"]]);
    }

    #[test]
    fn text_without_traceback_changes_nothing() {
        for words in ["", "\n", "  File \"a\", line 1 in f\n", "garbage (most recent call first)"] {
            let mut found = stacks();
            found.take_traceback(words);
            assert_eq!(found, stacks(), "{words}");
        }
        let mut odd = stacks();
        odd.take_traceback(
            "X (most recent call first):\n  File \"\n  File \"a\", line\n\u{fffd}\n",
        );
        assert_eq!(lines(&odd), [[""; 0]]);
    }

    #[test]
    fn a_carriage_return_belongs_to_the_name() {
        let block = "Thread 0x1 (most recent call first):\n  File \"a.py\", line 1 in f\r\n";
        assert_eq!(blocks(block)[0].frames[0].function, "f\r");
    }
}
