//! Which checkpoints of public programs are whole, and which are torn.

use super::*;
use crate::tests::layouts::{named, names};
use crate::tests::programs::{found_of, write_dcp};

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
pub(super) fn sharded(folder: &tempfile::TempDir, files: &[String]) {
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
    write_dcp(&own("pytorch_model_fsdp_0"));
    assert!(found(&folder)[0].is_whole());
    std::fs::create_dir(own("pytorch_model_fsdp_1")).expect("it is made");
    std::fs::write(own("pytorch_model_fsdp_1/__0_0.distcp"), "x").expect("it is written");
    let missing = Lack::Missing("pytorch_model_fsdp_1/.metadata".to_owned());
    assert_eq!(found(&folder)[0].lacks, [missing]);
    // Beside the files of torch.distributed.checkpoint.
    let folder = made(&["step_1_ckp/metadata.pth"]);
    write_dcp(&folder.path().join("step_1_ckp"));
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
        // A program that saves fewer from then on has one more that is called torn than had more before, and two at most.
        (&["model_1", "optimizer_1", "model_2", "optimizer_2", "model_3", "model_4"], "model_2"),
        (
            &["model_1", "optimizer_1", "model_2", "optimizer_2", "model_3", "model_4", "model_5"],
            "model_5",
        ),
        (&["model_1", "optimizer_1", "model_2", "model_3"], "model_3"),
    ] {
        let files: Vec<String> = files.iter().map(|name| format!("{name}.pth")).collect();
        let all = names(&files.iter().map(String::as_str).collect::<Vec<_>>());
        let whole = all.iter().find(|name| !name.contains(": ")).map(String::as_str);
        assert_eq!(whole.map(|name| name.trim_end_matches(".pth")), Some(newest), "{all:?}");
    }
}

#[test]
fn fewer_ranks_make_two_checkpoints_torn() {
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
        assert_eq!(torn(&steps), [false, true, true, false, false], "{layout}");
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
    write_dcp(&folder.path().join("step-100"));
    let link = folder.path().join("current");
    std::os::unix::fs::symlink("step-100", &link).expect("it is linked");
    for path in [folder.path().join("step-100"), link, folder.path().join("step-100/x/..")] {
        let one = survey(&path, &Limits::default()).expect("it is read").found.remove(0);
        assert_eq!((one.step, one.is_whole(), &one.path), (Some(100), true, &path));
    }
    let trainer = folder.path().join("checkpoint-500");
    let one = survey(&trainer, &Limits::default()).expect("it is read").found.remove(0);
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
