//! The command line that `plan` prints, as the engine's own parser reads it: a word of the program is never an option of
//! the engine.

use std::io::Write;
use std::process::{Command, Stdio};

use harness::{Launcher, python};
use serde_json::{Value, json};

/// Reads command lines, one list for each, and prints the program's words and how it is started.
const PARSER: &str = "\
import json, sys
torchrun, accelerate = json.load(sys.stdin)
from torch.distributed.run import get_args_parser
from accelerate.commands.launch import launch_command_parser
def read(parser, line):
    read = parser.parse_args(line[3:])
    return [bool(read.module), bool(read.no_python), [read.training_script, *read.training_script_args]]
print(json.dumps([
    [read(get_args_parser(), line) for line in torchrun],
    [read(launch_command_parser(), line) for line in accelerate],
]))
";

/// Words of programs, of which each is an option of an engine, or an abbreviation of one.
const WORDS: &[&[&str]] = &[
    &["--run=x", "-r", "3", "--nnodes", "7", "--standalone", "-t3", "-m", "--module"],
    &["--", "--no-python", "--no_python", "-h", "--node", "--mixed=no", "--"],
];

fn printed(engine: &str, program: &[&str]) -> Vec<String> {
    let words = ["plan", "--format", "json", "--device", "cpu", "--engine", engine, "--python"];
    let launcher = Launcher::new(words).args([python()]).args(program);
    std::fs::write(launcher.folder().join("t.py"), "").expect("written");
    let ended = launcher.run().expect_code(0);
    let plan: Value = serde_json::from_str(&ended.out).expect("JSON");
    serde_json::from_value(plan["argv"].clone()).expect("words")
}

#[test]
fn printed_line_gives_the_engine_the_same_program() {
    let starts: [(&[&str], Value); 3] = [
        (&["t.py"], json!([false, false, ["t.py"]])),
        (&["-m", "json.tool"], json!([true, false, ["json.tool"]])),
        (&["--", "true"], json!([false, true, ["true"]])),
    ];
    let mut lines = Vec::new();
    let mut expected = Vec::new();
    for engine in ["torchrun", "accelerate"] {
        let mut of_engine = Vec::new();
        for (start, read) in &starts {
            for words in WORDS {
                // The separator behind a module is not one of its words.
                let behind: &[&str] = if start[0] == "-m" { &["--"] } else { &[] };
                lines.push(printed(engine, &[start, behind, words].concat()));
                let mut read = read.clone();
                read[2].as_array_mut().expect("words").extend(words.iter().map(|word| json!(word)));
                of_engine.push(read);
            }
        }
        expected.push(of_engine);
    }
    let accelerate = lines.split_off(lines.len() / 2);
    let mut parser = Command::new(python());
    parser.args(["-c", PARSER]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut parser = parser.spawn().expect("python runs");
    let input = json!([lines, accelerate]).to_string();
    parser.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("written");
    let output = parser.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{lines:?}");
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(found, json!(expected));
}
