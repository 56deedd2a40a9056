//! CUDA_VISIBLE_DEVICES is parsed as by torch: compares thousands of lists with the installed
//! torch, which counts the GPUs of the fake driver library.

use std::io::Write as _;
use std::process::{Command, Stdio};

use harness::chance::Chance;
use harness::fake_nvml::FakeNvml;
use node::observe::Gpu;
use node::observe::gpu::visible;
use serde::Deserialize;
use serde_json::json;

/// Number of lists; `VISIBLE_ROUNDS` and `VISIBLE_SEED` change a run.
const ROUNDS: u64 = 5000;

/// torch's interpretation of the lists that it is given, one answer each.
const TORCH: &str = "
import json, os, sys
import torch.cuda as c
def ask(gpus, value):
    os.environ['FAKE_NVML_GPUS'] = str(gpus)
    os.environ['CUDA_VISIBLE_DEVICES'] = value
    count = c._device_count_nvml()
    seen = c._parse_visible_devices()
    if seen and type(seen[0]) is str:
        if seen[0].startswith('MIG-'):
            return count, None
        seen = c._transform_uuid_to_ordinals(seen, c._raw_device_uuid_nvml())
    return count, seen[:count]
answers = []
for gpus, value in json.load(sys.stdin):
    parts, broken = value.split(','), False
    while True:
        try:
            count, seen = ask(gpus, ','.join(parts)) if parts else (0, [])
            break
        except ValueError:
            broken = True
            parts.pop()
    answers.append({'count': count, 'seen': seen, 'broken': broken})
json.dump(answers, sys.stdout)
";

/// `count` is -1 if torch leaves a MIG list to the CUDA runtime. `broken`: it raised, and the
/// other values are for the list before that element.
#[derive(Debug, Deserialize)]
struct Torch {
    count: i64,
    seen: Option<Vec<usize>>,
    broken: bool,
}

/// UUIDs as in the fake library: two are equal up to the last digit of the first group.
fn uuid(index: usize) -> String {
    format!("GPU-{:08x}-0000-4000-8000-00000000{index:04x}", 0xfa4e_0000_u32 + index as u32)
}

#[rustfmt::skip]
const ODD: &[&str] = &[
    "", " ", "-", "+", "--1", "+-1", "-+1", "- 1", "+ 2", "0x", "0x1", "0X2", "1e3", "1.5", ".5",
    "1_0", "_1", "one", "all", "none", "void", "NoDevFiles", "cuda:0", "2abc", "1gpu", "-0", "-00",
    "+0", "007", "0001", "1 2", "1\t", "\u{b}2", "\u{1c}3", "\u{a0}1", "1\u{3000}", "\u{2003}0",
    "4294967295", "4294967296", "18446744073709551615", "18446744073709551616",
    "99999999999999999999999", "99999999999999999999998", "340282366920938463463374607431768211456",
    "\u{663}", "\u{ff11}", "1\u{662}", "\u{b2}", "2\u{b9}", "\u{bd}", "-\u{661}", "\u{1d7d9}", "é",
    "'0'", "\"1\"", "[0]", "0;1", "0:1", "gpu-", "GPU", "GPU-", "gpu-fa4e0000", "MIG", "MIG-", "Mig-1",
];

fn element(dice: &mut Chance, gpus: usize) -> String {
    match dice.below(12) {
        0..=3 => dice.below(gpus + 1).to_string(),
        4 => format!("{}{}", dice.of(&["+", "-", " ", "0", "00"]), dice.below(gpus + 2)),
        5 => {
            format!("{}{}", dice.below(gpus), dice.of(&[" ", "x", "\t", ".0", "gpu", "\u{a0}"]))
        }
        6 | 7 => uuid(dice.below(gpus + 1)),
        8 => {
            let whole = uuid(dice.below(gpus));
            whole[..4 + dice.below(whole.len() - 3)].to_owned()
        }
        9 => {
            let whole = uuid(dice.below(gpus));
            match dice.below(3) {
                0 => whole.to_uppercase(),
                1 => format!(" {whole}"),
                _ => format!("{whole}0"),
            }
        }
        10 => match dice.below(3) {
            0 => format!("MIG-{}/{}/0", uuid(dice.below(gpus)), dice.below(7)),
            1 => format!("MIG-{:08x}-0000-4000-8000-000000000000", dice.below(3)),
            _ => dice.of(&["MIG-", "mig-1", "MIG-GPU-"]).to_owned(),
        },
        _ => dice.of(ODD).to_owned(),
    }
}

/// A list of some kind, then perhaps a change to some character of it.
fn list(dice: &mut Chance, gpus: usize) -> String {
    let mut parts: Vec<String> = match dice.below(4) {
        // Lists of one kind, as people write them; otherwise of all kinds.
        0 => (0..dice.below(gpus + 2)).map(|_| dice.below(gpus + 1).to_string()).collect(),
        1 => (0..dice.below(gpus + 2)).map(|_| uuid(dice.below(gpus))).collect(),
        _ => (0..dice.below(6)).map(|_| element(dice, gpus)).collect(),
    };
    if dice.below(6) == 0 && !parts.is_empty() {
        let twice = parts[dice.below(parts.len())].clone();
        parts.push(twice);
    }
    let mut text = parts.join(if dice.below(8) == 0 { ", " } else { "," });
    if dice.below(10) == 0 {
        text.push(',');
    }
    if dice.below(4) == 0 && !text.is_empty() {
        let places: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        let at = places[dice.below(places.len())];
        match dice.below(3) {
            0 => drop(text.remove(at)),
            1 => text.insert_str(at, dice.of(ODD)),
            _ => text.insert_str(at, dice.of(&[",", " ", "+", "-", "0", "9", "G", "M"])),
        }
    }
    text
}

#[test]
fn thousands_of_device_lists_match_torch() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("VISIBLE_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |since| since.as_nanos() as u64)
    });
    let python = std::env::var_os("RANKLAUNCH_TEST_PYTHON").map_or_else(
        || std::env::home_dir().unwrap_or_default().join(".cache/ranklaunch/venv/bin/python"),
        Into::into,
    );
    if !python.exists() {
        let shown = python.display();
        harness::skipped(format_args!("no python with torch at {shown} (make test installs one)"));
        return;
    }
    println!("VISIBLE_SEED={seed}");
    let mut dice = Chance::new(seed, 0);
    let mut lists: Vec<(usize, String)> = ODD.iter().map(|odd| (8, (*odd).to_owned())).collect();
    lists.extend(ODD.iter().map(|odd| (8, format!("0,{odd},1"))));
    lists.extend([4300, 4301].map(|digits| (8, format!("1,{}", "0".repeat(digits)))));
    for _ in 0..number("VISIBLE_ROUNDS").unwrap_or(ROUNDS) {
        let gpus = [1, 2, 4, 8, 16][dice.below(5)];
        lists.push((gpus, list(&mut dice, gpus)));
    }

    let fake = FakeNvml::new(&[]);
    let mut child = Command::new(&python)
        .args(["-c", TORCH])
        .env("LD_LIBRARY_PATH", fake.library().parent().expect("a folder"))
        .env("PYTHONUTF8", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(json!(lists).to_string().as_bytes()).expect("python reads");
    drop(stdin);
    let output = child.wait_with_output().expect("python ends");
    assert!(output.status.success(), "torch counts GPUs through a fake driver library");
    let answers: Vec<Torch> = serde_json::from_slice(&output.stdout).expect("answers");
    assert_eq!(answers.len(), lists.len());

    let (mut counted, mut broken, mut mig, mut foreign) = (0, 0, 0, 0);
    for ((gpus, value), torch) in lists.iter().zip(&answers) {
        let known: Vec<Gpu> = (0..*gpus)
            .map(|at| Gpu { index: at as u32, uuid: Some(uuid(at)), ..Gpu::default() })
            .collect();
        let ours: Vec<usize> = visible(Some(value), &known).iter().map(|seen| seen.gpu).collect();
        let context = format!(
            "{gpus} GPUs, CUDA_VISIBLE_DEVICES={value:?}: torch {torch:?}, here {ours:?}; \
             VISIBLE_SEED={seed}"
        );
        broken += usize::from(torch.broken);
        let Some(seen) = &torch.seen else {
            mig += 1;
            assert_eq!((torch.count, ours.len()), (-1, 1), "{context}");
            continue;
        };
        assert_eq!(usize::try_from(torch.count), Ok(seen.len()), "{context}");
        // Digits of other scripts are numbers to torch; CUDA ends the list there.
        if value.chars().any(|letter| !letter.is_ascii() && letter.is_numeric()) {
            foreign += 1;
            assert!(seen.starts_with(&ours) || seen.is_empty(), "{context}");
        } else {
            counted += 1;
            assert_eq!(*seen, ours, "{context}");
        }
    }
    println!(
        "{counted} lists are read alike, {mig} are MIG's, {foreign} have foreign digits; \
         torch raised on {broken}"
    );
    assert!(counted > lists.len() / 2 && mig > 0 && broken > 0, "the generator lost its aim");
}
