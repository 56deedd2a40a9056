//! What public programs write: which of their files they go on from, which are one checkpoint, which are no checkpoints.

use super::*;
use crate::tests::layouts::{named, names};

/// The first names and their first lack, of files with so many bytes of storages, each newer than those before it.
fn sized(files: &[(&str, usize)]) -> Vec<String> {
    let made = made(&files.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    let mut at = SystemTime::UNIX_EPOCH;
    for (name, bytes) in files.iter().filter(|(name, bytes)| *bytes > 0 && !name.ends_with('/')) {
        let path = made.path().join(name);
        let content = match name.ends_with(".safetensors") {
            true => safetensors(&vec![1; *bytes]),
            false => archive(&[("data.pkl", b"\x80\x02N."), ("data/0", &vec![0; *bytes])]),
        };
        std::fs::write(&path, content).expect("it is written");
        at += Duration::from_secs(60);
        let file = std::fs::File::options().write(true).open(path);
        file.and_then(|file| file.set_modified(at)).expect("its time is set");
    }
    named(&made)
}

/// What public programs write: the one from which they go on is first.
#[test]
fn the_one_from_which_programs_go_on_is_first() {
    for (program, files) in [
        // The last of the files is what each goes on from.
        ("detr", &[("checkpoint0003.pth", 9000), ("checkpoint.pth", 9000)][..]),
        ("detectron2", &[("model_0004999.pth", 9000), ("model_final.pth", 9000)]),
        (
            "timm",
            &[
                ("checkpoint-1.pth.tar", 9000),
                ("last.pth.tar", 9000),
                ("recovery-2-500.pth.tar", 9000),
            ],
        ),
        ("mmengine", &[("best_mAP_epoch_12.pth", 4000), ("epoch_10.pth", 9000)]),
        ("mmengine", &[("best_mIoU_iter_4500.pth", 4000), ("iter_4000.pth", 9000)]),
        ("espnet", &[("2epoch.pth", 4000), ("checkpoint.pth", 9000)]),
        (
            "kohya",
            &[
                ("a-step00000500.safetensors", 4000),
                ("a-step00000600.safetensors", 4000),
                ("a-step00000500.pt", 9000),
            ],
        ),
        ("seeds", &[("seed42_step_100.pt", 9000), ("seed_42_last.pt", 9000)]),
        ("best", &[("epoch_2.pth", 9000), ("best.pth", 3000), ("epoch_3.pth", 9000)]),
        ("weights", &[("weights.pth", 3000), ("epoch_3.pth", 9000)]),
        ("resnet", &[("resnet_50_best.pth", 9000), ("epoch_1.pth", 9000)]),
        // Bigger ones that are no series of the same steps.
        ("base", &[("vit_b_32.pt", 9000), ("lora_step_200.pt", 300)]),
        ("fine-tuning", &[("warmup_step_1000.pt", 9000), ("finetune_step_2000.pt", 3000)]),
        ("stale", &[("last.pt", 9000), ("step_100.pt", 3000), ("step_200.pt", 3000)]),
        ("optimizer", &[("optimizer_1000.pt", 9000), ("latest.pt", 9000)]),
        ("other folder", &[("pretrained/model_final.pth", 9000), ("step_200.pt", 9000)]),
        ("litgpt", &[("step-2000/lit_model.pth", 9000), ("final/lit_model.pth", 9000)]),
        ("final weights", &[("final/a.pth", 3000), ("step-2000/a.pth", 9000)]),
        ("weights above", &[("model_final.pth", 3000), ("step-2000/a.pth", 9000)]),
        ("best folder", &[("best/a.pth", 9000), ("step-2000/a.pth", 9000)]),
        ("scores", &[("checkpoint_0.95.pth", 9000), ("checkpoint_0.87.pth", 9000)]),
        (
            "torchtnt",
            &[("epoch_0_train_step_10.pt", 9000), ("epoch_0_train_step_20_eval_step_5.pt", 9000)],
        ),
        (
            "fairseq",
            &[
                ("checkpoint1.pt", 9000),
                ("checkpoint_2_1000.pt", 9000),
                ("checkpoint_last.pt", 9000),
            ],
        ),
    ] {
        let newest = files.last().map(|(name, _)| *name);
        assert_eq!(sized(files).first().map(String::as_str), newest, "{program}");
    }
}

/// The first of these is what each program goes on from, although the others are written later.
#[test]
fn states_come_before_weights_copies_and_exports_of_their_step() {
    for (program, files) in [
        // In folders of their own.
        (
            "torchtune",
            &[
                ("step_200/a.pt", 9000),
                ("step_200/b.pt", 9000),
                ("step_200_hf/model.safetensors", 6000),
            ][..],
        ),
        (
            "hf",
            &[
                ("ckpt/step_200.pt", 9000),
                ("hf/step_200/model.safetensors", 3000),
                ("hf/step_300/model.safetensors", 3000),
            ],
        ),
        ("weights", &[("ckpt/step_200.pt", 9000), ("weights/step_200.safetensors", 3000)]),
        // With an optimizer that is small.
        ("adafactor", &[("step_200.pt", 9000), ("step_200_weights.pt", 6500)]),
        ("state", &[("training_state_200.pt", 13_000), ("model_200.pt", 9000)]),
        ("checkpoint", &[("checkpoint_200.pt", 13_000), ("model_200.pt", 9000)]),
        ("generator", &[("G_200.pt", 9000), ("D_200.pt", 13_000)]),
        // Copies of the same size.
        ("ema", &[("unet_300.pt", 9000), ("unet_ema_300.pt", 9000)]),
        ("ema of", &[("step_300.pt", 9000), ("step_300_ema.pt", 9000)]),
        ("dino", &[("student_200.pth", 9000), ("teacher_200.pth", 9000)]),
        ("swa", &[("model_300.pt", 9000), ("swa_model_300.pt", 9000)]),
        ("openrlhf", &[("_actor/step_40.pt", 9000), ("_critic/step_40.pt", 9000)]),
        ("wenet", &[("4.pt", 9000), ("avg_30.pt", 9000)]),
        ("f5-tts", &[("model_10000.pt", 9000), ("pretrained_model_1200000.pt", 9000)]),
        ("optimizer", &[("model_300.pt", 9000), ("model_300_optimizer.pt", 18_000)]),
        ("best", &[("epoch_11.pth", 9000), ("epoch_2.pth", 9000), ("best.pth", 9000)]),
        ("physicsnemo", &[("checkpoint.0.100.pt", 9000), ("checkpoint.0.30.pt", 9000)]),
        ("epoch.step", &[("ckpt.1.100.pt", 9000), ("ckpt.1.20.pt", 9000)]),
    ] {
        assert_eq!(sized(files)[0].split('/').next(), files[0].0.split('/').next(), "{program}");
    }
    // Other runs, whose weights are no export of it.
    let other = [("a/step_200.pt", 9000), ("b/step_300.safetensors", 3000)];
    assert_eq!(sized(&other)[0], "b/step_300.safetensors");
    let all_states = [("a/step_200.pt", 9000), ("b/step_200.pt", 3000)];
    assert_eq!(sized(&all_states)[0], "b/step_200.pt");
    for name in ["model_and_optimizer_3.pt", "model_3_and_optimizer.pt"] {
        assert!(!names::is_aside(name), "{name}");
    }
}

/// Steps went back to 500, and 600 is what the program goes on from.
#[test]
fn tracker_names_the_newest_one() {
    for (program, layout, tracker, text) in [
        ("deepspeed", "global_step#/model.pt", "latest", "global_step600"),
        ("verl", "global_step_#/a.pt", "latest_checkpointed_iteration.txt", "600"),
        ("detectron2", "model_0000#.pth", "last_checkpoint", "model_0000600.pth"),
        ("mmengine", "iter_#.pth", "last_checkpoint", "/x/iter_600.pth"),
        ("olmo", "step#/model.pt", "latest", "-> step600"),
        ("link", "step#.pt", "last.pt", "-> step600.pt"),
    ] {
        let of = |step: &str| layout.replace('#', step);
        let files = ["500", "1000", "600"].map(of);
        let folder = made(&files.each_ref().map(String::as_str));
        let now = SystemTime::now();
        for (file, minutes) in files.iter().zip([1, 2, 3]) {
            let path = folder.path().join(file);
            let file = std::fs::File::options().write(true).open(path).expect("it is there");
            file.set_modified(now - Duration::from_secs(60 * (10 - minutes))).expect("it is set");
        }
        let path = folder.path().join(tracker);
        match text.strip_prefix("-> ") {
            Some(target) => std::os::unix::fs::symlink(target, &path).expect("it is linked"),
            None => std::fs::write(&path, text).expect("it is written"),
        }
        let first = || found(&folder).remove(0);
        assert_eq!(first().step, Some(600), "{program}");
        // One that is older than what it names was left by another run.
        if !text.starts_with("->") {
            let file = std::fs::File::options().write(true).open(&path).expect("it is there");
            file.set_modified(now - Duration::from_secs(60 * 9)).expect("it is set");
            assert_eq!(first().step, Some(1000), "{program}");
        }
    }
}

/// What the Trainer and accelerate save in the folder itself, at their end or before.
#[test]
fn states_in_the_folder_itself_hide_nothing_below() {
    for (files, expected) in [
        (
            &[
                "model.safetensors",
                "trainer_state.json",
                "checkpoints/checkpoint-7/model.safetensors",
                "checkpoints/checkpoint-7/trainer_state.json",
            ][..],
            "checkpoints/checkpoint-7",
        ),
        (
            &[
                "model.safetensors",
                "optimizer.bin",
                "random_states_0.pkl",
                "step_7/model.safetensors",
                "step_7/optimizer.bin",
                "step_7/random_states_0.pkl",
            ],
            "step_7",
        ),
        (&["model.safetensors", "trainer_state.json", "x/model.safetensors"], ""),
    ] {
        assert_eq!(names(files), [expected]);
    }
}

/// Parts with numbers of their own, in the folder of a step and beside others.
#[test]
fn missing_part_of_several_is_seen() {
    for parts in [
        &["consolidated.00.pth", "consolidated.01.pth"][..],
        &["0.pt", "1.pt", "2.pt"],
        &["0/model.pt", "1/model.pt"],
        &["model_0.pt", "model_1.pt"],
        &["layer_00.pt", "layer_01.pt", "optim_0.pt", "optim_1.pt"],
        &["dp_rank_00_tp_rank_00_pp_rank_00.pt", "dp_rank_00_tp_rank_01_pp_rank_00.pt"],
    ] {
        let of = |step: u32| parts.iter().map(move |part| format!("step_{step}/{part}"));
        let all: Vec<String> = of(100).chain(of(200)).chain(of(300)).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        assert!(
            names(&all)[0].starts_with("step_300") && !names(&all)[0].contains(": "),
            "{parts:?}"
        );
        let torn = names(&all[..all.len() - 1]);
        assert!(torn[0].starts_with("step_300") && torn[0].contains(": "), "{parts:?}: {torn:?}");
    }
    for part in ["stage_", "tp0_pp", "part-"] {
        let all: Vec<String> = [100, 200, 300]
            .iter()
            .flat_map(|step| [0, 1].map(|number| format!("step_{step}_{part}{number}.pt")))
            .collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        assert!(!names(&all)[0].contains(": "), "{part}: {:?}", names(&all));
        assert!(names(&all[..5])[0].contains("is missing"), "{part}: {:?}", names(&all[..5]));
    }
    // Parts of any size.
    let of =
        |step: u32| [(format!("step_{step}_pp0.pt"), 9000), (format!("step_{step}_pp1.pt"), 900)];
    let all: Vec<(String, usize)> = [of(100), of(200), of(300)].concat();
    let all: Vec<(&str, usize)> = all.iter().map(|(name, bytes)| (name.as_str(), *bytes)).collect();
    assert!(sized(&all[..5])[0].contains("step_300_pp1.pt is missing"), "{:?}", sized(&all[..5]));
    // A second main file does not hide that the optimizer is missing.
    let of = |step: u32| ["model", "ema", "optimizer"].map(|name| format!("{name}_{step}.pt"));
    let all: Vec<String> = [of(100), of(200), of(300)].concat();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    assert_eq!(names(&all)[0], "model_300.pt");
    let torn = names(&all[..8]);
    assert!(torn[0].contains("optimizer_300.pt is missing"), "{torn:?}");
    assert!(torn[1].contains("optimizer_300.pt is missing"), "{torn:?}");
}

/// Whole ones that none of the rules may hide.
#[test]
fn names_that_are_like_others_are_whole() {
    for files in [
        &["llama_tp2_step_100.pt", "llama_tp2_step_200.pt"][..],
        &["tp2/step_100.pt", "tp2/step_200.pt"],
        &["partial_fc_step_100.pt", "partial_fc_step_200.pt"],
        &["tmp_exp_step_100.pt", "tmp_exp_step_200.pt"],
        &[
            "epoch_1.pth",
            "bestmodel_epoch_1.pth",
            "epoch_2.pth",
            "bestmodel_epoch_2.pth",
            "epoch_3.pth",
        ],
        &["pytorch_model.bin.index.json", "step_100.pt", "step_200.pt"],
        &["model.safetensors.index.json", "step_100/model.pt", "step_200/model.pt"],
        &["512/last.pt", "256/last.pt"],
    ] {
        let found = names(files);
        let newest = found.first().expect("one");
        assert!(
            !newest.contains(": ") && newest.contains(files[files.len() - 1]),
            "{files:?}: {found:?}"
        );
    }
    for torn in [
        "step_300_temp/model.pt",
        "step_300.tmp123/model.pt",
        "step_300.staging/model.pt",
        // NeMo-RL.
        "tmp_step_300/policy/weights/model.pt",
        "_tmp_step_300/model.pt",
        "step_300.trash/model.pt",
        "step_300.inprogress.pt",
        ".tmp_step_300.pt",
        ".step_300.pt",
        "step_200/._model.pt",
    ] {
        let found = names(&["step_200/model.pt", torn]);
        assert!(found[0].contains(": ") || found[0] == "step_200/model.pt", "{found:?}");
    }
}

/// `save(step_200); save(last)`: the one with the step is as new.
#[test]
fn last_of_the_same_save_gives_no_step_away() {
    let folder = made(&["step_100.pt", "step_200.pt", "last.pt"]);
    let first = |seconds: [u64; 3]| {
        for (name, at) in ["step_100.pt", "step_200.pt", "last.pt"].iter().zip(seconds) {
            let file = std::fs::File::options().write(true).open(folder.path().join(name));
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(at);
            file.and_then(|file| file.set_modified(at)).expect("its time is set");
        }
        found(&folder).remove(0).name.display().to_string()
    };
    assert_eq!(first([1000, 2000, 2010]), "step_200.pt");
    assert_eq!(first([1000, 2000, 2100]), "last.pt");
}

/// guided-diffusion and VITS write several files of a step.
#[test]
fn files_with_names_of_their_own_are_companions() {
    let of = |steps: &[(u32, &[&str])]| {
        let files: Vec<String> = steps
            .iter()
            .flat_map(|(step, names)| names.iter().map(move |name| format!("{name}_{step}.pth")))
            .collect();
        sized(&files.iter().map(|name| (name.as_str(), 3000)).collect::<Vec<_>>())
    };
    let both: &[&str] = &["D", "G"];
    assert_eq!(of(&[(1000, both), (2000, both), (3000, both)])[..2], ["G_3000.pth", "D_3000.pth"]);
    let torn = of(&[(1000, both), (2000, both), (3000, &["G"])]);
    assert_eq!(torn[..2], ["G_3000.pth: D_3000.pth is missing", "G_2000.pth"]);
    // One that comes now and then is none, and neither is the best one.
    let now_and_then = of(&[(1000, &["G"]), (2000, both), (3000, &["G"])]);
    assert_eq!(now_and_then[0], "G_3000.pth");
    let best: &[&str] = &["best", "G"];
    assert_eq!(of(&[(1000, best), (2000, best), (3000, &["G"])])[0], "G_3000.pth");
    let padded = ["model010000.pt", "opt010000.pt", "model020000.pt", "opt020000.pt"];
    assert_eq!(names(&padded), ["model020000.pt", "model010000.pt"]);
    assert_eq!(names(&padded[..3])[0], "model020000.pt: opt020000.pt is missing");
}

#[test]
fn temporary_names_are_not_whole() {
    for name in ["step2000-tmp", "step2000-unsharded-tmp"] {
        let files = ["step1000/model.pt", "step1000/optim.pt"].map(str::to_owned);
        let more = ["model.pt", "optim.pt"].map(|file| format!("{name}/{file}"));
        let files: Vec<&str> = files.iter().chain(&more).map(String::as_str).collect();
        let found = names(&files);
        assert!(found.contains(&"step1000".to_owned()), "{found:?}");
        let torn = |one: &&String| one.starts_with(name) && !one.contains(": ");
        assert_eq!(found.iter().find(torn), None, "{found:?}");
    }
    assert_eq!(names(&["a/checkpoint_tmp.pt", "tmp/step_1.pt"])[0], "tmp/step_1.pt");
}

#[test]
fn folders_with_nothing_but_numbers_are_steps() {
    let internlm = |step: u32| {
        ["model_tp0_pp0.pt", "optimizer_tp0_pp0_zo0.pt", "context.pt"]
            .map(|file| format!("{step}/{file}"))
    };
    let files: Vec<String> = internlm(1000).into_iter().chain(internlm(2000)).collect();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    assert_eq!(names(&files), ["2000", "1000"]);
    assert_eq!(names(&files[..5])[0], "2000: context.pt is missing");
    // Ranks, or versions.
    let versions = ["0/step_7.pt", "1/step_8.pt"];
    assert_eq!(names(&versions), [versions[1], versions[0]]);
}

#[test]
fn folders_of_parts_promise_no_framework() {
    // cosmos, FastVideo.
    for name in ["iter_000000", "checkpoint-"] {
        let of = |step: u32, part: &str| format!("{name}{step}/{part}/.metadata");
        let files = [of(100, "model"), of(100, "optim"), of(200, "model"), of(200, "optim")];
        let made = made(&files.iter().map(String::as_str).collect::<Vec<_>>());
        let formats: Vec<Format> = found(&made).iter().map(|one| one.format).collect();
        assert_eq!(formats, [Format::Dcp; 2], "{name}");
    }
}

#[test]
fn shards_and_indices_of_files_of_torch_are_one_checkpoint() {
    // fairseq.
    let of = |update: u32, shard: u32| format!("checkpoint_1_{update}-shard{shard}.pt");
    let files = [of(500, 0), of(500, 1), of(1000, 0)];
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let found = names(&files);
    assert_eq!(found[1], files[0]);
    assert!(found[0].starts_with(&format!("{}: ", files[2])), "{found:?}");
    // Open-Sora, as ColossalAI writes it.
    let folder = made(&[
        "epoch0-global_step5/model/pytorch_model.bin.index.json",
        "epoch0-global_step5/optimizer/pytorch_optim.bin.index.json",
        "epoch0-global_step5/ema.pt",
        "epoch0-global_step9/model/pytorch_model.bin.index.json",
        "epoch0-global_step9/ema.pt",
    ]);
    let torn = found_of(&folder, "epoch0-global_step9");
    assert!(torn.lacks.iter().any(|lack| lack.words().en.contains("optimizer")), "{torn:?}");
}

fn found_of(folder: &tempfile::TempDir, name: &str) -> Checkpoint {
    let of_name = |one: &Checkpoint| one.name == std::path::Path::new(name);
    found(folder).into_iter().find(of_name).expect("it is found")
}

/// A pickle whose `storage_data` is empty.
const DCP: &[u8] = b"\x80\x02}X\x0c\x00\x00\x00storage_data}s.";

/// fms-fsdp writes metadata.pth behind the files of torch.distributed.checkpoint.
#[test]
fn files_beside_dcp_belong_to_each_of_a_series() {
    let folder = tempfile::tempdir().expect("a folder");
    let is_whole = || found(&folder).first().map(|one| (one.step, one.lacks.len()));
    for step in [1, 2, 3] {
        let own = folder.path().join(format!("step_{step}_ckp"));
        std::fs::create_dir(&own).expect("it is made");
        std::fs::write(own.join(".metadata"), DCP).expect("it is written");
        if step < 3 {
            std::fs::write(own.join("metadata.pth"), archive(&[("data.pkl", b"\x80\x02N.")]))
                .expect("it is written");
        }
    }
    assert_eq!(is_whole(), Some((Some(3), 1)));
    std::fs::write(
        folder.path().join("step_3_ckp/metadata.pth"),
        archive(&[("data.pkl", b"\x80\x02N.")]),
    )
    .expect("it is written");
    assert_eq!(is_whole(), Some((Some(3), 0)));
}

/// An optimizer beside weights with an index.
#[test]
fn files_beside_an_index_belong_to_each_of_a_series() {
    let index = "pytorch_model.bin.index.json";
    let of = |step: u32| {
        ["weights-1.bin", index, "optimizer.pt"].map(|name| format!("step_{step}/{name}"))
    };
    let all: Vec<String> = [of(100), of(200), of(300)].concat();
    let folder = made(&all.iter().map(String::as_str).collect::<Vec<_>>());
    for name in all.iter().filter(|name| name.ends_with(index)) {
        let text = r#"{"weight_map": {"w": "weights-1.bin"}}"#;
        std::fs::write(folder.path().join(name), text).expect("it is written");
    }
    assert!(found_of(&folder, "step_300").is_whole());
    std::fs::remove_file(folder.path().join("step_300/optimizer.pt")).expect("it is removed");
    let lacks = found_of(&folder, "step_300").lacks;
    assert_eq!(lacks, [Lack::Missing("optimizer.pt".to_owned())]);
}

/// `checkpoint-1000` beside a whole `checkpoint-500` of the same writer: killed behind its weights.
#[test]
fn sharded_weights_are_the_beginning_of_a_framework() {
    let index = ["model.safetensors.index.json", "config.json"];
    let trainer: &[&str] = &["optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"];
    let accelerate: &[&str] = &["optimizer.bin", "scheduler.bin", "random_states_0.pkl"];
    for (prefix, rest, format) in [
        ("checkpoint-", trainer, Format::Trainer),
        ("checkpoint_", accelerate, Format::Accelerate),
        ("step_", accelerate, Format::Accelerate),
    ] {
        for kept in [0, rest.len() - 1] {
            let of = |step: u32, rest: &[&str]| -> Vec<String> {
                let all = index.iter().chain(rest);
                all.map(|file| format!("{prefix}{step}/{file}")).collect()
            };
            let files = [of(500, rest), of(1000, &rest[..kept])].concat();
            let folder = made(&files.iter().map(String::as_str).collect::<Vec<_>>());
            sharded(&folder, &files);
            let [torn, whole] = ["1000", "500"].map(|step| {
                let one = found_of(&folder, &format!("{prefix}{step}"));
                (one.format, one.is_whole())
            });
            assert_eq!((torn, whole), ((format, false), (format, true)), "{prefix} {kept}");
        }
    }
    // The first one.
    for (more, expected) in [
        (&[][..], (Format::Trainer, false)),
        // A program of its own.
        (&["checkpoint-7/model_state.pt"], (Format::Safetensors, true)),
    ] {
        let files: Vec<String> = index.iter().map(|file| format!("checkpoint-7/{file}")).collect();
        let all: Vec<&str> = files.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let folder = made(&all);
        sharded(&folder, &files);
        let one = found_of(&folder, "checkpoint-7");
        assert_eq!((one.format, one.is_whole()), expected, "{more:?}");
    }
}

/// Each index of these files names one shard, which is there.
fn sharded(folder: &tempfile::TempDir, files: &[String]) {
    for name in files.iter().filter(|name| name.ends_with(".index.json")) {
        let index = folder.path().join(name);
        let text = r#"{"weight_map": {"w": "model-00001-of-00001.safetensors"}}"#;
        std::fs::write(&index, text).expect("it is written");
        let shard = index.with_file_name("model-00001-of-00001.safetensors");
        std::fs::write(shard, safetensors(&[1; 64])).expect("it is written");
    }
}

/// diffusers, peft with adapters of its own names, sentence-transformers, SimpleTuner, fms-fsdp, Lightning.
#[test]
fn files_in_folders_of_a_checkpoint_are_looked_at() {
    let accelerate = ["optimizer.bin", "random_states_0.pkl"];
    let trainer = ["trainer_state.json", "optimizer.pt"];
    for (program, states, files) in [
        ("diffusers", accelerate, &["unet/diffusion_pytorch_model.safetensors"][..]),
        ("simpletuner", accelerate, &["pytorch_lora_weights.safetensors", "ema/ema_model.pt"]),
        (
            "peft",
            trainer,
            &["train/adapter_model.safetensors", "reference/adapter_model.safetensors"],
        ),
        ("sentence-transformers", trainer, &["0_StaticEmbedding/model.safetensors"]),
        ("sentence-transformers", trainer, &["model.safetensors", "2_Dense/model.safetensors"]),
        ("config", trainer, &["model.safetensors", "2_Dense/config.json"]),
    ] {
        let of = |step: u32| {
            let all = states.iter().chain(files);
            all.map(move |file| format!("checkpoint-{step}/{file}")).collect::<Vec<_>>()
        };
        let all = [of(500), of(1000)].concat();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        assert_eq!(names(&all), ["checkpoint-1000", "checkpoint-500"], "{program}");
        for file in files {
            for torn in [&b""[..], b"PK\x03\x04"] {
                let folder = made(&all);
                let path = folder.path().join("checkpoint-1000").join(file);
                let is_json = file.ends_with(".json");
                std::fs::write(path, torn).expect("it is written");
                let is_whole = is_json && !torn.is_empty();
                assert_eq!(found(&folder)[0].is_whole(), is_whole, "{program} {file}");
            }
        }
    }
    // The weights are written first.
    assert!(names(&["checkpoint-7/trainer_state.json", "checkpoint-7/x/a.txt"])[0].contains(": "));
    // A second model of FSDP.
    let folder = made(&["checkpoint-7/random_states_0.pkl", "checkpoint-7/pytorch_model_fsdp_0/"]);
    let own = |name: &str| folder.path().join("checkpoint-7").join(name);
    std::fs::write(own("pytorch_model_fsdp_0/.metadata"), DCP).expect("it is written");
    assert!(found(&folder)[0].is_whole());
    std::fs::create_dir(own("pytorch_model_fsdp_1")).expect("it is made");
    std::fs::write(own("pytorch_model_fsdp_1/__0_0.distcp"), "x").expect("it is written");
    let missing = Lack::Missing("pytorch_model_fsdp_1/.metadata".to_owned());
    assert_eq!(found(&folder)[0].lacks, [missing]);
    // Beside the files of torch.distributed.checkpoint.
    let folder = made(&["step_1_ckp/metadata.pth"]);
    std::fs::write(folder.path().join("step_1_ckp/.metadata"), DCP).expect("it is written");
    assert!(found(&folder)[0].is_whole());
    std::fs::write(folder.path().join("step_1_ckp/metadata.pth"), "").expect("it is written");
    assert_eq!(found(&folder)[0].lacks, [Lack::Empty("metadata.pth".to_owned())]);
}

/// Dates, scores, job ids, learning rates, stages and resolutions are another number in each step, and no parts.
#[test]
fn numbers_that_are_no_steps_make_nothing_torn() {
    for files in [
        &["step_100_2024-01-30.pt", "step_200_2024-01-31.pt"][..],
        &["step_900_2024-01-30_11-58-02.pt", "step_1000_2024-01-30_12-03-55.pt"],
        &["2024-01-30_11-58-02_step_900.pt", "2024-01-30_12-03-55_step_1000.pt"],
        &["ppo_step_1000_reward_-3.pt", "ppo_step_2000_reward_12.5.pt"],
        &["iter_4000_mIoU_45.pth", "iter_8000_mIoU_51.pth"],
        &["epoch_1_auc_81.pth", "epoch_2_auc_83.pth", "epoch_3_auc_84.pth"],
        &["step_100_job99999.pt", "step_200_job100000.pt"],
        &["e1_step100.pt", "e2_step200.pt"],
        &["step_100_3600s.pt", "step_200_7200s.pt"],
        &["step_100_lr3e-4.pt", "step_200_lr0.0001.pt"],
        &["stage1_step_1000.pt", "stage1_step_2000.pt", "stage2_step_3000.pt"],
        &["res256_step_100.pt", "res256_step_200.pt", "res512_step_300.pt"],
        &["step_100_ctx2048/a.pt", "step_200_ctx4096/a.pt"],
    ] {
        let newest = files.last().copied().unwrap_or_default();
        let all = names(files);
        assert_eq!(all[0], newest);
        assert!(!all.iter().any(|name| name.contains(": ")), "{all:?}");
    }
    let of = |step: u32, hour: u32| {
        ["model", "optimizer"].map(|name| format!("{name}_step_{step}_2024-01-30_{hour}-00-00.pt"))
    };
    let files: Vec<String> = [of(100, 10), of(200, 11), of(300, 12)].concat();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    assert_eq!(names(&files), [files[4], files[2], files[0]]);
    let torn = names(&files[..5]);
    assert!(torn[0].starts_with(files[4]) && torn[0].contains("optimizer"), "{torn:?}");
    assert_eq!(torn[1], files[2]);
    // A model and its exponential average, from another resolution on.
    let of = |step: u32, size: u32| [format!("unet_{size}_{step}.pt"), format!("ema_{step}.pt")];
    let files: Vec<String> = [of(1, 256), of(2, 256), of(3, 256), of(4, 512)].concat();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    assert!(!names(&files).iter().any(|name| name.contains(": ")), "{:?}", names(&files));
}

/// An oldest one that is being deleted, or the one from which the program began.
#[test]
fn first_one_that_lacks_a_file_is_no_measure() {
    for (files, newest) in [
        (&["G_1", "G_2", "D_2", "G_3", "D_3", "G_4"][..], "G_3"),
        (&["G_0", "G_2", "D_2", "G_3", "D_3", "G_4", "D_4", "G_5"], "G_4"),
        (&["model_1", "model_2", "optimizer_2", "model_3"], "model_2"),
        (&["step_1/model", "step_2/model", "step_2/optimizer", "step_3/model"], "step_2"),
        // A program that saves fewer from then on has one that is called torn.
        (&["model_1", "optimizer_1", "model_2", "optimizer_2", "model_3", "model_4"], "model_4"),
    ] {
        let files: Vec<String> = files.iter().map(|name| format!("{name}.pth")).collect();
        let all = names(&files.iter().map(String::as_str).collect::<Vec<_>>());
        let whole = all.iter().find(|name| !name.contains(": ")).map(String::as_str);
        assert_eq!(whole.map(|name| name.trim_end_matches(".pth")), Some(newest), "{all:?}");
    }
}

#[test]
fn fewer_ranks_make_one_checkpoint_torn() {
    for layout in [
        "rank_#/step_$.pt",
        "mp_rank_0#/m-step=$.ckpt",
        "step_$_rank#.pt",
        "tp_rank_0#_pp_rank_000/step=$.pt",
    ] {
        let of = |step: u32, ranks: u32| -> Vec<String> {
            let name = |rank: u32| layout.replace('#', &rank.to_string());
            (0..ranks).map(|rank| name(rank).replace('$', &step.to_string())).collect()
        };
        let steps = [of(100, 4), of(200, 4), of(300, 2), of(400, 2), of(500, 2)];
        let torn = |steps: &[Vec<String>]| -> Vec<bool> {
            let files = steps.concat();
            let all = names(&files.iter().map(String::as_str).collect::<Vec<_>>());
            all.iter().map(|name| name.contains(": ")).collect()
        };
        assert_eq!(torn(&steps), [false, false, true, false, false], "{layout}");
        assert_eq!(torn(&steps[..1]), [false], "{layout}");
    }
}

/// OLMo, and models beside optimizers with a file for each rank.
#[test]
fn rank_file_of_one_kind_that_is_missing_is_seen() {
    for kinds in [["model_rank_#.pt", "optimizer_rank_#.pt"], ["optim/rank#.pt", "train/rank#.pt"]]
    {
        let of = |step: u32| {
            let name = move |kind: &str, rank: u32| {
                format!("step_{step}/{}", kind.replace('#', &rank.to_string()))
            };
            kinds.iter().flat_map(move |kind| [0, 1].map(|rank| name(kind, rank)))
        };
        let all: Vec<String> = [100, 200, 300].into_iter().flat_map(of).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        assert_eq!(names(&all)[0], "step_300");
        assert!(names(&all[..11])[0].starts_with("step_300: "), "{:?}", names(&all[..11]));
        assert_eq!(names(&all[..11])[1], "step_200");
    }
}

/// A scheduler is no checkpoint, even if the model beside it is torn or not there.
#[test]
fn what_stands_aside_is_never_chosen() {
    for file in [
        "scheduler.pt",
        "rng.pt",
        "config.pt",
        "optimizer_100.pt",
        "tokenizer.pt",
        "opt000100.pt",
        "model_300_optimizer.pt",
        "latest_optimizer.pt",
    ] {
        assert_eq!(names(&[file]), [""; 0], "{file}");
        let folder = made(&["model_100.pt", file]);
        std::fs::write(folder.path().join("model_100.pt"), "").expect("it is written");
        assert!(!found(&folder).iter().any(Checkpoint::is_whole), "{file}");
    }
    // Names of models.
    for file in ["opt-125m-step-100.pt", "random_walk_100.pt", "lr_0.1_optimizer_adam_epoch_10.pth"]
    {
        assert_eq!(names(&[file, "rng.pt"]), [file]);
    }
}

/// A link, `.` and `x/..` are other names of the same folder.
#[test]
fn folder_has_the_same_name_wherever_it_is_named() {
    let folder = made(&["step-100/.metadata", "step-100/x/", "checkpoint-500/optimizer.pt"]);
    std::fs::write(folder.path().join("step-100/.metadata"), DCP).expect("it is written");
    let link = folder.path().join("current");
    std::os::unix::fs::symlink("step-100", &link).expect("it is linked");
    for path in [folder.path().join("step-100"), link, folder.path().join("step-100/x/..")] {
        let one = survey(&path, &Limits::default()).expect("it is read").remove(0);
        assert_eq!((one.step, one.is_whole(), &one.path), (Some(100), true, &path));
    }
    let trainer = folder.path().join("checkpoint-500");
    let one = survey(&trainer, &Limits::default()).expect("it is read").remove(0);
    assert_eq!((one.format, one.is_whole()), (Format::Trainer, false));
}

/// torch_xla, metaseq, torch's HuggingFaceStorageWriter, LeRobot, Lightning with XLA.
#[test]
fn files_that_say_how_many_there_are_are_counted() {
    let xla =
        |epoch: u32, rank: u32| format!("ckpt_epoch_{epoch}_rank-0000000{rank}-of-00000002.pth");
    let metaseq = |step: u32, part: u32, rank: u32| {
        format!("checkpoint_1_{step}-model_part-{part}-shard{rank}.pt")
    };
    let writer = |step: u32, rank: u32| {
        format!("step_{step}/shard-0000{rank}-model-0000{rank}-of-00002.safetensors")
    };
    let of_writer = |step: u32, rank: u32| {
        format!("epoch_0_step_{step}/model/shard-0000{rank}-model-00001-of-00001.safetensors")
    };
    let folder = |step: u32, rank: u32| {
        format!("step_{step}.ckpt/checkpoint_rank-0000000{rank}-of-00000002.pth")
    };
    let layouts: [Vec<String>; 4] = [
        vec![xla(1, 0), xla(1, 1), xla(2, 0), xla(2, 1)],
        [1, 2, 3]
            .iter()
            .flat_map(|step| {
                [(0, 0), (0, 1), (1, 0), (1, 1)]
                    .map(|(part, rank)| metaseq(*step * 1000, part, rank))
            })
            .collect(),
        vec![writer(100, 1), writer(100, 2), writer(200, 1), writer(200, 2)],
        vec![folder(10, 0), folder(10, 1), folder(20, 0), folder(20, 1)],
    ];
    for files in layouts {
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let all = names(&files);
        assert!(!all.iter().any(|name| name.contains(": ")), "{all:?}");
        let torn = names(&files[..files.len() - 1]);
        assert!(torn[0].contains(": "), "{torn:?}");
        let older = all.last().expect("one");
        assert_eq!(torn.last(), Some(older));
    }
    let of = |step: u32| {
        [1, 2]
            .map(|rank| of_writer(step, rank))
            .into_iter()
            .chain([format!("epoch_0_step_{step}/rng.pt")])
    };
    let files: Vec<String> = [19, 39].into_iter().flat_map(of).collect();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    assert_eq!(names(&files), ["epoch_0_step_39", "epoch_0_step_19"]);
    let lerobot = [
        "checkpoints/005000/pretrained_model/model.safetensors",
        "checkpoints/005000/training_state/optimizer_state.safetensors",
    ];
    assert_eq!(names(&lerobot), ["checkpoints/005000"]);
}

/// A model and its optimizer whose names have no steps.
#[test]
fn torn_optimizer_without_a_step_makes_its_model_torn() {
    for (model, optimizer, more) in [
        ("latest/model.pt", "latest/optimizer.pt", "latest/scheduler.pt"),
        ("model.pt", "optimizer.pt", "scheduler.pt"),
    ] {
        let folder = made(&[model, optimizer, more]);
        assert_eq!(named(&folder), [model]);
        std::fs::write(folder.path().join(optimizer), "").expect("it is written");
        assert_eq!(named(&folder), [format!("{model}: optimizer.pt is empty")]);
        // It is no one's if there are several.
        std::fs::copy(
            folder.path().join(model),
            folder.path().join(model).with_file_name("best.pt"),
        )
        .expect("it is copied");
        assert!(found(&folder).iter().any(Checkpoint::is_whole));
    }
}

/// Loops with `save_pretrained` and `torch.save` that name their folders as the Trainer does.
#[test]
fn folders_without_the_state_of_the_trainer_are_of_another_program() {
    let of = |step: u32| {
        ["model.safetensors", "optimizer.pt", "scheduler.pt"]
            .map(|file| format!("checkpoint-{step}/{file}"))
    };
    let files: Vec<String> = [of(100), of(200), of(300)].concat();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    assert_eq!(names(&files), ["checkpoint-300", "checkpoint-200", "checkpoint-100"]);
    assert!(names(&files[..8])[0].contains("scheduler.pt is missing"));
    // Of these it may be the Trainer that was killed.
    assert!(names(&files[..6]).iter().all(|name| name.contains("trainer_state.json is missing")));
    let with_state: Vec<&str> = files
        .into_iter()
        .chain(["checkpoint-400/trainer_state.json", "checkpoint-400/model.safetensors"])
        .collect();
    assert_eq!(names(&with_state).iter().filter(|name| !name.contains(": ")).count(), 1);
}
