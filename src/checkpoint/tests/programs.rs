//! What public programs write: which of their files they go on from, which are one checkpoint, which are no checkpoints.

use super::*;
use crate::tests::layouts::{named, names};

/// The first names and their first lack, of files with so many bytes of storages, each newer than those before it.
pub(super) fn sized(files: &[(&str, usize)]) -> Vec<String> {
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
        ("cyclegan", &[("10_net_G.pth", 9000), ("10_net_D.pth", 13_000)]),
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
        ("nanotron", "#/model.pt", "latest.txt", "600"),
        ("skyrl", "global_step_#/a.pt", "latest_ckpt_global_step.txt", "600"),
        ("dinov2", "model_0000#.rank_0.pth", "last_checkpoint.rank_0", "model_0000600.rank_0.pth"),
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
        &["step_100_creative_writing.pt", "step_200_creative_writing.pt"],
        &["encoder_part.pt"],
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
        "step_300.part.pt",
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

pub(super) fn found_of(folder: &tempfile::TempDir, name: &str) -> Checkpoint {
    let of_name = |one: &Checkpoint| one.name == Path::new(name);
    found(folder).into_iter().find(of_name).expect("it is found")
}

/// A pickle whose `storage_data` has one item of one byte.
pub(super) const DCP: &[u8] =
    b"\x80\x02}X\x0c\0\0\0storage_data}K\0}(X\x0d\0\0\0relative_pathX\x0c\0\0\0__0_0.distcp\
    X\x06\0\0\0offsetK\0X\x06\0\0\0lengthK\x01uss.";

/// Writes metadata of torch.distributed.checkpoint, and the file that it lists.
pub(super) fn write_dcp(folder: &Path) {
    std::fs::write(folder.join(".metadata"), DCP).expect("it is written");
    std::fs::write(folder.join("__0_0.distcp"), "x").expect("it is written");
}

/// fms-fsdp writes metadata.pth behind the files of torch.distributed.checkpoint.
#[test]
fn files_beside_dcp_belong_to_each_of_a_series() {
    let folder = tempfile::tempdir().expect("a folder");
    let is_whole = || found(&folder).first().map(|one| (one.step, one.lacks.len()));
    for step in [1, 2, 3] {
        let own = folder.path().join(format!("step_{step}_ckp"));
        std::fs::create_dir(&own).expect("it is made");
        write_dcp(&own);
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
