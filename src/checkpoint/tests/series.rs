//! Series of checkpoints: what is no member of one, and what each member has.

use super::*;
use crate::tests::layouts::{named, names};
use crate::tests::programs::{sized, write_dcp};

/// Names that say how many files there are.
#[test]
fn parts_are_as_many_as_their_names_say() {
    for (layout, first) in [
        ("step#_0000$-of-00004.pt", 1),
        ("step#_0000$-of-00004.pt", 0),
        ("step#-shard$of4.pt", 0),
        ("step_#/tp-$-of-4.pt", 0),
        ("step_#/optimizer/optimizer_tp-$-of-4.pt", 1),
        ("checkpoint_#_part$of4.pth", 1),
    ] {
        let of = |step: u32| {
            let name = |part: u32| layout.replace('$', &part.to_string());
            (first..first + 4).map(move |part| name(part).replace('#', &step.to_string()))
        };
        let all: Vec<String> = of(100).chain(of(200)).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let whole = names(&all);
        assert!(whole.len() == 2 && !whole.iter().any(|name| name.contains(": ")), "{whole:?}");
        for missing in 0..4 {
            let mut files = all.clone();
            files.remove(4 + missing);
            let torn = names(&files);
            assert!(torn[0].contains(": ") && torn[1] == whole[1], "{layout}: {torn:?}");
            // Without one before it.
            let torn = names(files.get(4..).expect("those of the second"));
            assert!(torn[0].contains(": "), "{layout}: {torn:?}");
        }
    }
}

/// What public programs write last: LeRobot, nanotron, lingua, ColossalAI, OLMo-core, OneTrainer, and loops of their own.
#[test]
fn file_that_all_before_have_is_missed_whatever_its_ending() {
    let dcp: &[&str] = &["__0_0.distcp", ".metadata"];
    let index = "model/model.safetensors.index.json";
    for (name, files, last) in [
        ("step-#", &["model.pt", "optimizer.pt"][..], &["state.json"][..]),
        ("step-#", &["model.pt"], &["state.json", "state.pkl"]),
        (
            "checkpoints/000#",
            &["a/model.safetensors", "b/optimizer.safetensors"],
            &["b/group.json"],
        ),
        ("#", &["model/a/weight.safetensors", "optimizer/o.pt"], &["meta.yaml", "meta.json"]),
        ("0000#", dcp, &["params.json", "train_state_00000.json", "train_state_00001.json"]),
        ("epoch0-step#", &[index, "ema.pt"], &["lr_scheduler", "running_states.json"]),
        ("step#", &["train/rank0.pt", "x/__0_0.distcp", "x/.metadata"], &[".metadata.json"]),
        ("2024-05-01_12-#-backup-#-5-0", &["lora/lora.safetensors", "o/o.pt"], &["meta.json"]),
    ] {
        let of = |number: u32| {
            let all = files.iter().chain(last);
            all.map(move |file| format!("{}/{file}", name.replace('#', &number.to_string())))
        };
        let all: Vec<String> = (10..14).flat_map(of).collect();
        for kept in 0..=last.len() {
            let count = all.len() - last.len() + kept;
            let found = names_with_dcp(&all[..count]);
            let lacks = found[0].contains("is missing");
            assert_eq!((found.len(), lacks), (4, kept < last.len()), "{name} {kept}: {found:?}");
            assert!(!found[1].contains(": "), "{found:?}");
            // A first one and its next are no measure.
            let first = files.len() + last.len();
            let few = names_with_dcp(all.get(2 * first..count).expect("two"));
            assert!(!few[0].contains("is missing"), "{few:?}");
        }
    }
}

/// The same of files with metadata of torch.distributed.checkpoint, and an index of one shard.
fn names_with_dcp(files: &[String]) -> Vec<String> {
    let folder = made(&files.iter().map(String::as_str).collect::<Vec<_>>());
    for file in files.iter().filter(|file| file.ends_with("/.metadata")) {
        write_dcp(folder.path().join(file).parent().expect("one"));
    }
    whole::sharded(&folder, files);
    named(&folder)
}

#[test]
fn content_that_all_before_have_is_missed() {
    let json: &[u8] = br#"{"a": 1}"#;
    let pickle: &[u8] = b"\x80\x04\x95\x0a\0\0\0\0\0\0\0}\x94\x8c\x01a\x94K\x01s.";
    for (file, whole) in [("state.json", json), ("state.pkl", pickle), ("a/scheduler", pickle)] {
        for torn in [&[][..], whole.get(..whole.len() - 1).expect("it is longer")] {
            let of = |step: u32| ["model.pt", file].map(|file| format!("step-{step}/{file}"));
            let files: Vec<String> = [of(1), of(2), of(3)].concat();
            let folder = made(&files.iter().map(String::as_str).collect::<Vec<_>>());
            let write = |step: u32, content: &[u8]| {
                let path = folder.path().join(format!("step-{step}")).join(file);
                std::fs::write(path, content).expect("it is written");
            };
            (1..=3).for_each(|step| write(step, whole));
            assert!(!named(&folder)[0].contains(": "), "{:?}", named(&folder));
            write(3, torn);
            assert!(named(&folder)[0].contains(file), "{:?}", named(&folder));
            // All markers are empty.
            (1..=3).for_each(|step| write(step, b""));
            assert!(!named(&folder)[0].contains(": "), "{:?}", named(&folder));
        }
    }
}

/// Ranks, dates, events, samples and the best one differ from step to step, and what comes now and then is optional.
#[test]
fn files_that_not_all_have_make_nothing_torn() {
    let base = ["model.pt", "optimizer.pt"];
    for more in [
        [&["eval.json"][..], &[], &["eval.json"], &[], &[]],
        [&[], &["eval.json"], &[], &["eval.json"], &[]],
        [&["best.json"], &["best.json"], &["best.json"], &["best.json"], &[]],
        [&["events.17.a"], &["events.18.a"], &["events.19.a"], &["events.2.a"], &["events.3.a"]],
        [
            &["log_1.txt"],
            &["log_1.txt", "log_2.txt"],
            &["log_2.txt"],
            &["log_3.txt"],
            &["log_4.txt"],
        ],
        [
            &["w-1-of-2.json", "w-2-of-2.json"],
            &["w-1-of-2.json", "w-2-of-2.json"],
            &["w-1-of-2.json", "w-2-of-2.json"],
            &["w-1-of-1.json"],
            &["w-1-of-1.json"],
        ],
    ] {
        let of = |(step, more): (u32, &&[&str])| -> Vec<String> {
            base.iter().chain(*more).map(|file| format!("step-{step}/{file}")).collect()
        };
        let files: Vec<String> = (1..).zip(&more).flat_map(of).collect();
        let found = names(&files.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(!found[0].contains(": "), "{found:?}");
    }
    // Samples, of which there is another number in each.
    let of = |(step, samples): (u32, u32)| {
        let names = (0..samples).map(move |one| format!("step-{step}/samples/{one}.png"));
        names.chain([format!("step-{step}/model.pt")])
    };
    let files: Vec<String> = (1..).zip([5, 4, 6, 3, 1]).flat_map(of).collect();
    let found = names(&files.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(!found[0].contains(": "), "{found:?}");
    // A program that saves fewer has two that look torn, and then whole ones.
    let of = |step: u32| {
        let more: &[&str] = if step < 4 { &["state.json"] } else { &[] };
        base.iter().chain(more).map(move |file| format!("step-{step}/{file}"))
    };
    let files: Vec<String> = (1..7).flat_map(of).collect();
    let found = names(&files.iter().map(String::as_str).collect::<Vec<_>>());
    let are_torn: Vec<bool> = found.iter().map(|name| name.contains(": ")).collect();
    assert_eq!(are_torn, [false, true, true, false, false, false], "{found:?}");
}

/// nanotron has a folder for each module.
#[test]
fn files_of_a_step_are_seen_at_any_depth() {
    let of = |step: u32| {
        ["model/model/decoder/0/block/attn/proj/weight.safetensors", "optimizer/optimizer.pt"]
            .map(|file| format!("{step}/{file}"))
    };
    let files: Vec<String> = [of(1000), of(2000), of(3000)].concat();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    assert_eq!(names(&files), ["3000", "2000", "1000"]);
    let folder = made(&files);
    std::fs::write(folder.path().join(files[4]), "").expect("it is written");
    assert!(named(&folder)[0].contains("weight.safetensors is empty"), "{:?}", named(&folder));
    std::fs::remove_file(folder.path().join(files[4])).expect("it is removed");
    assert!(named(&folder)[0].contains("weight.safetensors is missing"), "{:?}", named(&folder));
}

/// A run whose name ends as a file of Lightning does.
#[test]
fn folder_of_a_run_is_no_checkpoint_by_its_ending() {
    for file in ["step_200/model.pt", "epoch=1-step=200.ckpt", "step-200/.metadata"] {
        let file = format!("x.ckpt/{file}");
        let found = found(&made(&[&file]));
        assert_eq!(found.iter().map(|one| one.step).collect::<Vec<_>>(), [Some(200)], "{file}");
    }
}

/// Many runs, each with an optimizer that was cut off. Comparing each with all others would take minutes.
#[test]
fn torn_optimizers_of_many_runs_take_linear_time() {
    let folder = made(&["model.pt", "optimizer.pt"]);
    std::fs::write(folder.path().join("optimizer.pt"), "").expect("it is written");
    let budget = Budget::new(10);
    let files = Folder::read(folder.path(), &budget).expect("it is read");
    let files = formats::of_files(&files, Told::default());
    let of_run = |run: u32| {
        files.clone().into_iter().map(move |one| {
            let path = Path::new("/runs").join(run.to_string()).join(one.own_name().as_ref());
            Checkpoint { path, ..one }
        })
    };
    let mut found: Vec<Checkpoint> = (0..20_000).flat_map(of_run).collect();
    let begun = std::time::Instant::now();
    several::join_torn(&mut found);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    assert_eq!(found.len(), 20_000);
    assert!(found.iter().all(|one| one.lacks == [Lack::Empty("optimizer.pt".to_owned())]));
}

/// Numbers that are larger than those of a series, and are none of its steps. The last of each is the newest.
#[test]
fn stray_number_is_not_chosen_before_a_series() {
    let series = ["model_1000.pt", "model_2000.pt", "model_3000.pt"];
    for stray in [
        "vae-ft-840000-ema-pruned.safetensors",
        "pretrained/checkpoint_999999.pt",
        "pretrained_models/step_143000/model.pt",
        "fid_stats_50000.pt",
        "samples/step_5000.pt",
    ] {
        let files: Vec<(&str, usize)> =
            [stray].iter().chain(&series).map(|name| (*name, 9000)).collect();
        assert_eq!(sized(&files)[0], "model_3000.pt", "{stray}");
        // One that was written later is of the program, unless it is an average of another step.
        let files: Vec<(&str, usize)> =
            series.iter().chain(&[stray]).map(|name| (*name, 9000)).collect();
        let is_of_program = !stray.contains("ema");
        assert_eq!(sized(&files)[0], if is_of_program { stray } else { series[2] });
    }
    for (files, newest) in [
        (&[("model_9000.pt", 9000), ("model_1000.pt", 9000), ("model_2000.pt", 9000)][..], 0),
        (
            &[
                ("state_40.pt", 9000),
                ("w_10.safetensors", 9000),
                ("w_20.safetensors", 9000),
                ("w_30.safetensors", 9000),
            ],
            0,
        ),
        // icefall.
        (&[("epoch-1.pt", 9000), ("epoch-2.pt", 9000), ("bad-model-0.pt", 9000)], 1),
        (&[("epoch-1.pt", 9000), ("epoch-2.pt", 9000), ("model_1200.pt", 9000)], 2),
        // torchft: the data loader of one replica.
        (
            &[
                ("checkpoint/step-500.pt", 90_000),
                ("checkpoint/ft-0/step-501.pt", 300),
                ("checkpoint/ft-0/step-640.pt", 300),
            ],
            0,
        ),
        (&[("run/step-500.pt", 9000), ("run/b/step-640.pt", 9000)], 1),
        (&[("a/step-500.pt", 9000), ("b/step-640.pt", 300)], 1),
    ] {
        let (expected, _) = files[newest];
        assert_eq!(sized(files)[0], expected);
    }
}

#[test]
fn later_stage_comes_before_an_earlier_one() {
    for (files, newest) in [
        (["stage1_step_9000.pt", "stage2_step_100.pt", "stage2_step_200.pt"], 2),
        (["stage1/step_9000.pt", "stage2/step_100.pt", "stage2/step_200.pt"], 2),
        (["phase1_checkpoint_9000.pt", "phase2_checkpoint_100.pt", "phase2_checkpoint_200.pt"], 2),
        (["stage1/step_9000.pt", "stage2/step_100.pt", "stage3/step_50.pt"], 2),
        // The last of the first one is newer.
        (["stage2_step_100.pt", "stage2_step_200.pt", "stage1_step_9000.pt"], 2),
        (["stage1_step_100.pt", "stage1_step_200.pt", "stage2_step_300.pt"], 2),
    ] {
        assert_eq!(sized(&files.map(|name| (name, 9000)))[0], files[newest], "{files:?}");
    }
}

/// A restart on fewer ranks, where the names tell how many there are.
#[test]
fn fewer_ranks_are_whole_if_their_names_say_so() {
    for layout in [
        &["step_#/actor/model_world_size_@_rank_$.pt", "step_#/actor/optim_world_size_@_rank_$.pt"]
            [..],
        &["ckpt_#_rank$_of_@.pt"],
        &["step_#_0$-of-0@.pt"],
    ] {
        let of = |step: u32, world: u32, ranks: u32| {
            let name = move |layout: &&str, rank: u32| {
                let layout = layout.replace('#', &step.to_string());
                layout.replace('@', &world.to_string()).replace('$', &rank.to_string())
            };
            let all = layout
                .iter()
                .flat_map(move |layout| (0..ranks).map(move |rank| name(layout, rank)));
            all.collect::<Vec<String>>()
        };
        let torn = |files: &[Vec<String>]| -> Vec<bool> {
            let files = files.concat();
            let all = names(&files.iter().map(String::as_str).collect::<Vec<_>>());
            all.iter().map(|name| name.contains(": ")).collect()
        };
        let [first, second] = [of(10, 4, 4), of(20, 4, 4)];
        let all = [first, second, of(30, 2, 2)];
        assert_eq!(torn(&all), [false; 3], "{layout:?}");
        let all = [all.as_slice(), &[of(40, 2, 1)]].concat();
        assert_eq!(torn(&all), [true, false, false, false], "{layout:?}");
    }
    // Made anew on fewer ranks, over the rest of a save of more.
    let of = |step: u32, world: u32, ranks: u32| {
        let name = move |rank: u32| format!("step_{step}_world_size_{world}_rank_{rank}.pt");
        (0..ranks).map(name).collect::<Vec<String>>()
    };
    let files = [of(1, 4, 4), of(2, 4, 2), of(2, 2, 2)].concat();
    let found = names(&files.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(found, [files[6].as_str(), files[0].as_str()]);
    // The optimizer of no rank was written.
    let of = |step: u32, kinds: &[&str]| {
        let name = |kind: &&str| {
            [0, 1].map(|rank| format!("step_{step}/{kind}_world_size_2_rank_{rank}.pt"))
        };
        kinds.iter().flat_map(name).collect::<Vec<String>>()
    };
    let both = ["model", "optim"];
    let files = [of(1, &both), of(2, &both), of(3, &both[..1])].concat();
    assert!(names(&files.iter().map(String::as_str).collect::<Vec<_>>())[0].contains("is missing"));
}

/// Loops that follow the names of transformers and accelerate.
#[test]
fn optimizer_of_another_program_is_not_that_of_accelerate() {
    let of = |step: u32| {
        ["model.safetensors", "optimizer.bin", "state.json"]
            .map(|file| format!("step-{step}/{file}"))
    };
    let files: Vec<String> = [of(1), of(2), of(3), of(4)].concat();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    assert_eq!(names(&files), ["step-4", "step-3", "step-2", "step-1"]);
    assert!(names(&files[..10])[0].contains("optimizer.bin is missing"));
    // Of these it may be accelerate that was killed.
    assert!(names(&files[..6]).iter().all(|name| name.contains(": ")));
    let of = |step: u32| {
        ["model/pytorch_model.bin", "ema.pt", "optimizer/optimizer.bin"]
            .map(|file| format!("epoch0-global_step{step}/{file}"))
    };
    let files: Vec<String> = [of(1), of(2), of(3)].concat();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    assert_eq!(names(&files)[0], "epoch0-global_step3");
    assert!(names(&files[..8])[0].contains("optimizer/optimizer.bin is missing"));
}

/// diffusion-pipe resumes from what `latest` names, and exports weights more often.
#[test]
fn tracker_comes_before_weights_of_later_steps() {
    let files = [
        ("global_step400/model.pt", 9000),
        ("global_step500/model.pt", 9000),
        ("step600/adapter_model.safetensors", 900),
    ];
    assert_eq!(sized(&files)[0], files[2].0);
    let folder = made(&files.map(|(name, _)| name));
    std::fs::write(folder.path().join("latest"), "global_step500").expect("it is written");
    let weights = std::fs::File::options().write(true).open(folder.path().join(files[2].0));
    let at = SystemTime::now() + Duration::from_secs(60);
    weights.and_then(|file| file.set_modified(at)).expect("its time is set");
    assert_eq!(named(&folder)[0], files[1].0);
}

#[test]
fn each_lack_is_named_once() {
    let of = |step: u32, ranks: u32| {
        let kinds = ["model", "optim", "extra_state"];
        let name = move |kind: &str, rank: u32| {
            format!("global_step_{step}/actor/{kind}_world_size_2_rank_{rank}.pt")
        };
        (0..ranks).flat_map(|rank| kinds.map(|kind| name(kind, rank))).collect::<Vec<String>>()
    };
    let files = [of(20, 2), of(40, 1)].concat();
    let folder = made(&files.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(found(&folder)[0].lacks, [Lack::Parts(vec![1])]);
}

/// It was a folder when its name was read.
#[test]
fn folder_in_a_checkpoint_that_cannot_be_read_is_named() {
    let files = ["model.safetensors", "optimizer_0/.metadata", "random_states_0.pkl"];
    let made = made(&files);
    let budget = Budget::new(10);
    let folder = Folder::read(made.path(), &budget).expect("it is read");
    std::fs::remove_dir_all(made.path().join("optimizer_0")).expect("it is removed");
    std::fs::write(made.path().join("optimizer_0"), "").expect("it is written");
    let one = as_format(&folder, Format::Accelerate, Told::default()).expect("a row");
    let is_named = |lack: &Lack| matches!(lack, Lack::Unread { file, .. } if file == "optimizer_0");
    assert!(one.lacks.iter().any(is_named), "{:?}", one.lacks);
}

#[test]
fn what_is_no_file_cannot_be_read() {
    let folder = made(&["step_1.pt"]);
    let path = folder.path().join("step_2.pt");
    let _socket = std::os::unix::net::UnixListener::bind(path).expect("it is made");
    let found = found(&folder);
    assert!(matches!(found[0].lacks.as_slice(), [Lack::Unread { .. }]), "{:?}", found[0].lacks);
}

/// Whatever its name is like, what somebody put aside is chosen only if there is nothing else.
#[test]
fn name_of_what_was_put_aside_stands_behind_all_others() {
    for mark in ["bak", "old", "incomplete", "partial"] {
        for layout in [
            "step_300.@/model.pt",
            "step_300_@/model.pt",
            "step_300.pt.@/model.pt",
            "step_300.@.pt",
            "step_300-@.pt",
            "run_@/step_300.pt",
        ] {
            let aside = layout.replace('@', mark);
            let found = sized(&[("step_200/model.pt", 9000), (&aside, 9000)]);
            let newest = found.iter().find(|one| !one.contains(": ")).expect("one is whole");
            let is_run = layout.starts_with("run") && !["bak", "old"].contains(&mark);
            assert_eq!(newest == "step_200/model.pt", !is_run, "{aside}: {found:?}");
            let alone = sized(&[(&aside, 9000)]);
            assert!(alone[0].starts_with(&aside[..5]), "{alone:?}");
        }
    }
    // Words that a name has for other reasons.
    for name in ["old_town_step_300.pt", "bakery_300.pt", "partial_fc_step_300.pt", "gold_300.pt"] {
        assert_eq!(sized(&[("step_200.pt", 9000), (name, 9000)])[0], name);
    }
}

/// Folders that are numbered from 0 or 1 on, in the order of their numbers; in the folder of a step they are parts.
#[test]
fn bare_numbers_from_0_on_are_epochs() {
    for (first, count) in [(0, 1), (0, 4), (1, 3), (0, 12)] {
        for files in [&["model.pt"][..], &["model.pt", "optimizer.pt"], &["a.safetensors", "b.pt"]]
        {
            let of = |epoch: u32| files.iter().map(move |file| format!("{epoch}/{file}"));
            let all: Vec<String> = (first..first + count).flat_map(of).collect();
            let mut all: Vec<(&str, usize)> =
                all.iter().map(|name| (name.as_str(), 9000)).collect();
            let newest = format!("{}", first + count - 1);
            assert_eq!(sized(&all)[0].split('/').next(), Some(newest.as_str()), "{all:?}");
            // Copied in another order.
            all.reverse();
            assert_eq!(sized(&all)[0].split('/').next(), Some(newest.as_str()), "{all:?}");
            if files.len() > 1 && count > 2 {
                all.remove(0);
                assert!(sized(&all)[0].contains("is missing"), "{all:?}");
                assert!(!sized(&all)[1].contains(": "), "{all:?}");
            }
        }
    }
    assert_eq!(names(&["step_7/0/model.pt", "step_7/1/model.pt"]), ["step_7"]);
    let trials = ["0/last.pt", "1/last.pt", "0/step_9.pt", "1/step_8.pt"];
    assert_eq!(names(&trials)[0], "0/step_9.pt");
}

/// Two runs in one folder are one list, and no part of one is counted to the other.
#[test]
fn parts_of_two_runs_are_not_mixed() {
    let of = |run: &str, steps: &[u32], kinds: &[&str]| -> Vec<String> {
        let name = |step: u32, kind: &&str| format!("{run}-{kind}{step}.pt");
        steps.iter().flat_map(|step| kinds.iter().map(move |kind| name(*step, kind))).collect()
    };
    let seen = |files: &[Vec<String>]| {
        let files = files.concat();
        sized(&files.iter().map(|name| (name.as_str(), 9000)).collect::<Vec<_>>())
    };
    for (one, other) in [("runA", "runB"), ("run1", "run2"), ("small", "large-lr")] {
        // The second one goes on, and has not come so far.
        let all = [of(one, &[50, 60, 70], &["step-"]), of(other, &[50, 60], &["step-"])];
        assert_eq!(seen(&all)[0], format!("{one}-step-70.pt"));
        // The optimizer of the other run is none of this one.
        let both = ["model-step-", "optimizer-step-"];
        let [a, b] = [of(one, &[50], &both), of(other, &[50], &both)];
        let [model, optimizer] = [of(one, &[60], &both[..1]), of(other, &[60], &both[1..])];
        let found = seen(&[a.clone(), b.clone(), model.clone(), optimizer.clone()]);
        let is_mixed = found.iter().all(|name| !name.starts_with(&optimizer[0]));
        assert!(!is_mixed, "{found:?}");
        // Ranks, and folders of steps.
        let ranks = |run: &str, ranks: &[u32]| of(&format!("{run}-step-60"), ranks, &["rank"]);
        let found = seen(&[ranks(one, &[0, 1]), ranks(other, &[1])]);
        assert!(found.iter().any(|name| name.contains("parts 0 are missing")), "{found:?}");
        let folder = |run: &str, file: &str| vec![format!("{run}-step-60/{file}.pt")];
        let found = seen(&[folder(one, "model"), folder(one, "optimizer"), folder(other, "model")]);
        assert_eq!(found.len(), 2, "{found:?}");
    }
}

/// Without a tracker nothing tells steps that went back from files that were copied later.
#[test]
fn larger_step_is_first_although_a_smaller_one_is_newer() {
    for layout in ["step_#.pt", "step_#/model.pt", "run/model_#.pt", "#/model.pt", "epoch_#.pt"] {
        for again in 1..5 {
            let steps = [50, 60, 100].into_iter().chain((60..100).step_by(10).take(again));
            let mut files: Vec<String> = Vec::new();
            for step in steps {
                let name = layout.replace('#', &step.to_string());
                files.retain(|one| *one != name);
                files.push(name);
            }
            let files: Vec<(&str, usize)> =
                files.iter().map(|name| (name.as_str(), 9000)).collect();
            assert_eq!(sized(&files)[0], layout.replace('#', "100"), "{files:?}");
        }
    }
}

/// verl: an actor and a critic of each step, in any form.
#[test]
fn actor_and_critic_of_a_step_are_one() {
    for files in [
        &["model.pt"][..],
        &["model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt"],
        &["huggingface/model.safetensors"],
        &["pytorch_model.bin", "optimizer.pt"],
        &[".metadata"],
    ] {
        let of = |step: u32, roles: &[&str]| -> Vec<String> {
            let name = |role: &&str| {
                let role = (*role).to_owned();
                files.iter().map(move |file| format!("global_step_{step}/{role}/{file}"))
            };
            roles.iter().flat_map(name).collect()
        };
        let both = ["actor", "critic"];
        let all = names_with_dcp(&[of(10, &both), of(20, &both)].concat());
        assert_eq!(all, ["global_step_20", "global_step_10"], "{files:?}");
        for role in both {
            let torn = names_with_dcp(&[of(10, &both), of(20, &[role])].concat());
            assert!(torn[0].contains("is missing"), "{files:?} {role}: {torn:?}");
            assert_eq!((torn.len(), torn[1].as_str()), (2, "global_step_10"), "{torn:?}");
        }
        // Only one of them in each.
        let one = names_with_dcp(&[of(10, &both[..1]), of(20, &both[..1])].concat());
        assert!(one[0].starts_with("global_step_20") && !one[0].contains(": "), "{one:?}");
    }
}
