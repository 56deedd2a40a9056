//! How programs lay files out, and which of them are one checkpoint.

use super::*;

/// The names, newest first; those that are torn with their first lack.
pub(super) fn names(files: &[&str]) -> Vec<String> {
    named(&made(files))
}

/// The same of a folder.
pub(super) fn named(folder: &tempfile::TempDir) -> Vec<String> {
    let of = |one: Checkpoint| match one.lacks.first() {
        None => one.name.display().to_string(),
        Some(lack) => format!("{}: {}", one.name.display(), lack.words().en),
    };
    found(folder).into_iter().map(of).collect()
}

#[test]
fn files_in_the_folder_of_a_step_are_one_checkpoint() {
    let both = [
        "step_100/model.pt",
        "step_100/optimizer.pt",
        "step_200/model.pt",
        "step_200/optimizer.pt",
    ];
    assert_eq!(names(&both), ["step_200", "step_100"]);
    // The save of the second file had not begun.
    let missing = "step_200: optimizer.pt is missing";
    assert_eq!(names(&both[..3]), [missing, "step_100"]);
    assert_eq!(
        names(&[both[0], both[1], "step_200/"]),
        ["step_200: model.pt is missing", "step_100"]
    );
    // A single file stays what a program loads.
    let single = ["step-00001000/lit_model.pth", "step-00002000/lit_model.pth"];
    assert_eq!(names(&single), ["step-00002000/lit_model.pth", "step-00001000/lit_model.pth"]);
    // verl.
    let of_rank = |step: u32, rank: u32| {
        format!("global_step_{step}/actor/model_world_size_2_rank_{rank}.pt")
    };
    let verl: Vec<String> =
        [(10, 0), (10, 1), (20, 0), (20, 1)].map(|(step, rank)| of_rank(step, rank)).into();
    let mut verl: Vec<&str> = verl.iter().map(String::as_str).collect();
    verl.extend(["global_step_10/data.pt", "global_step_20/data.pt"]);
    assert_eq!(names(&verl), ["global_step_20", "global_step_10"]);
    verl.remove(2);
    assert_eq!(names(&verl)[0], "global_step_20: the files of parts 0 are missing");
    // One folder for each part.
    let parts = ["step_7/model/.metadata", "step_7/optim/.metadata"];
    assert_eq!(names(&parts), ["step_7: model/.metadata is damaged"]);
    // SpeechBrain.
    let dated =
        ["CKPT+2024-01-01+12-00-00+00/model.ckpt", "CKPT+2024-01-01+12-00-00+00/brain.ckpt"];
    assert_eq!(names(&dated), ["CKPT+2024-01-01+12-00-00+00"]);
    // Numbers are parts where they count them, else steps.
    assert_eq!(names(&["step_7/0.pt", "step_7/1.pt"]), ["step_7"]);
    assert_eq!(names(&["step_7/model_7.pt", "step_7/optimizer_7.pt"]), ["step_7"]);
    let stage = ["step1_sft/0050000.pt", "step1_sft/0100000.pt"];
    assert_eq!(names(&stage), [stage[1], stage[0]]);
    // Folders of other names hold what they hold.
    assert_eq!(names(&["checkpoints/step_1.pt", "checkpoints/step_2.pt"]).len(), 2);
    assert_eq!(names(&["checkpoints/last.pt", "checkpoints/best.pt"]).len(), 2);
    assert_eq!(names(&["step_1/iter_3.pt", "step_1/iter_4.pt"]).len(), 2);
}

#[test]
fn texts_of_speechbrain_are_part_of_its_checkpoint() {
    let folder =
        made(&["CKPT+2024-01-01+12-00-00+00/model.ckpt", "CKPT+2024-01-01+12-00-00+00/CKPT.yaml"]);
    let counter = folder.path().join("CKPT+2024-01-01+12-00-00+00/counter.ckpt");
    std::fs::write(&counter, "10").expect("it is written");
    assert!(found(&folder)[0].is_whole());
    std::fs::write(&counter, [0; 2]).expect("it is written");
    assert!(!found(&folder)[0].is_whole());
}

#[test]
fn files_of_ranks_are_one_checkpoint() {
    let of = |step: u32, ranks: &[u32]| -> Vec<String> {
        ranks.iter().map(|rank| format!("step_{step}/rank_{rank}.pt")).collect()
    };
    let seen = |files: Vec<String>| names(&files.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(seen([of(100, &[0, 1]), of(200, &[0, 1])].concat()), ["step_200", "step_100"]);
    let missing = |rank: u32| format!("step_200: the files of parts {rank} are missing");
    for rank in [0, 1] {
        let found = seen([of(100, &[0, 1]), of(200, &[1 - rank])].concat());
        assert_eq!(found, [missing(rank), "step_100".to_owned()]);
    }
    // Beside each other, and in folders of ranks.
    let flat = ["ckpt-1-rank0.pt", "ckpt-1-rank1.pt", "ckpt-2-rank0.pt", "ckpt-2-rank1.pt"];
    assert_eq!(names(&flat), ["ckpt-2-rank0.pt", "ckpt-1-rank0.pt"]);
    assert_eq!(names(&flat[..3])[0], "ckpt-2-rank0.pt: the files of parts 1 are missing");
    let folders = [
        "mp_rank_00/m-step=1.ckpt",
        "mp_rank_00/m-step=2.ckpt",
        "mp_rank_01/m-step=1.ckpt",
        "mp_rank_01/m-step=2.ckpt",
    ];
    assert_eq!(names(&folders), ["mp_rank_00/m-step=2.ckpt", "mp_rank_00/m-step=1.ckpt"]);
    assert_eq!(
        names(&folders[..3])[0],
        "mp_rank_00/m-step=2.ckpt: the files of parts 1 are missing"
    );
    let within = ["step_1/rank_0/model.pt", "step_1/rank_1/model.pt"];
    assert_eq!(names(&within), ["step_1"]);
}

#[test]
fn torn_file_of_one_rank_is_a_torn_checkpoint() {
    for files in [
        ["step_2/rank_0.pt", "step_2/rank_1.pt"],
        ["ckpt-2-rank0.pt", "ckpt-2-rank1.pt"],
        ["mp_rank_00/step=2.ckpt", "mp_rank_01/step=2.ckpt"],
        ["step_2/rank_0/model.pt", "step_2/rank_1/model.pt"],
        ["step_2/model.pt", "step_2/optimizer.pt"],
        ["model_2.pt", "optimizer_2.pt"],
    ] {
        for torn in files {
            let folder = made(&files);
            std::fs::write(folder.path().join(torn), "").expect("it is written");
            let found = found(&folder);
            assert_eq!((found.len(), found[0].is_whole()), (1, false), "{files:?} {torn}");
        }
    }
}

#[test]
fn optimizer_beside_its_model_is_no_checkpoint() {
    let files = ["model_100.pt", "optimizer_100.pt", "model_200.pt", "optimizer_200.pt"];
    assert_eq!(names(&files), ["model_200.pt", "model_100.pt"]);
    assert_eq!(names(&files[..3]), ["model_200.pt: optimizer_200.pt is missing", "model_100.pt"]);
    let orphan = [files[0], files[1], files[3]];
    assert_eq!(names(&orphan), ["optimizer_200.pt: model_200.pt is missing", "model_100.pt"]);
    // torchtune.
    let files = ["epoch_0/model.pt", "epoch_1/model.pt", "recipe_state/recipe_state.pt"];
    assert_eq!(names(&files)[0], "epoch_1/model.pt");
}

#[test]
fn names_of_frameworks_hold_what_other_programs_save() {
    // Ray Train.
    for (files, expected) in [
        (
            &["checkpoint_000000/model.pt", "checkpoint_000001/model.pt"][..],
            "checkpoint_000001/model.pt",
        ),
        (&["checkpoint_000001/model.pt", "checkpoint_000001/extra_state.pt"], "checkpoint_000001"),
        (&["checkpoint_000001/checkpoint.ckpt"], "checkpoint_000001/checkpoint.ckpt"),
        (
            &[
                "checkpoint_000001/checkpoint/trainer_state.json",
                "checkpoint_000001/checkpoint/model.safetensors",
            ],
            "checkpoint_000001/checkpoint",
        ),
        (&["checkpoint_5/model.safetensors", "checkpoint_5/optimizer.pt"], "checkpoint_5"),
        (&["iter_10/model.pt"], "iter_10/model.pt"),
        (&["checkpoint-500/model.pt"], "checkpoint-500/model.pt"),
    ] {
        assert_eq!(names(files)[0], expected, "{files:?}");
    }
    // What the Trainer and accelerate write before their last file is no checkpoint of its own.
    for files in [
        &[
            "checkpoint-5/model.safetensors",
            "checkpoint-5/optimizer.pt",
            "checkpoint-5/rng_state_0.pth",
        ][..],
        &["checkpoint_5/unet/diffusion_pytorch_model.safetensors"],
        &["checkpoint-5/global_step5/mp_rank_00_model_states.pt"],
        &["checkpoint_5/pytorch_model_fsdp_0/__0_0.distcp"],
    ] {
        let found = seen(files);
        assert_eq!((found.len(), found[0].2), (1, false), "{files:?}");
        assert!([Format::Trainer, Format::Accelerate].contains(&found[0].1), "{files:?}");
    }
}

#[test]
fn weights_of_a_hook_stand_beside_the_states() {
    let lora = [
        "checkpoint-5/pytorch_lora_weights.safetensors",
        "checkpoint-5/optimizer.bin",
        "checkpoint-5/random_states_0.pkl",
    ];
    assert_eq!(names(&lora), ["checkpoint-5"]);
    assert_eq!(names(&lora[1..]), ["checkpoint-5: model.safetensors is missing"]);
}

#[test]
fn files_of_accelerate_are_those_of_its_neighbour() {
    let all = [
        "model.safetensors",
        "model_1.safetensors",
        "optimizer.bin",
        "scheduler.bin",
        "scaler.pt",
        "random_states_0.pkl",
    ];
    for missing in &all[1..5] {
        let of = |step: u32| all.iter().map(move |file| format!("checkpoint_{step}/{file}"));
        let kept = of(2).filter(|file| !file.ends_with(&format!("/{missing}")));
        let files: Vec<String> = of(1).chain(kept).collect();
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        assert_eq!(names(&files)[0], format!("checkpoint_2: {missing} is missing"));
    }
    // Without a neighbour.
    let alone = [
        "checkpoint_1/model.safetensors",
        "checkpoint_1/scheduler.bin",
        "checkpoint_1/random_states_0.pkl",
    ];
    assert_eq!(names(&alone), ["checkpoint_1: optimizer.bin is missing"]);
    let second = [alone[0], "checkpoint_1/optimizer_1.bin", alone[2]];
    assert_eq!(names(&second), ["checkpoint_1: optimizer.bin is missing"]);
    let registered = [alone[0], "checkpoint_1/custom_checkpoint_1.pkl", alone[2]];
    assert_eq!(names(&registered), ["checkpoint_1: custom_checkpoint_0.pkl is missing"]);
}

#[test]
fn configs_that_the_trainer_reads_are_json() {
    let folder = made(&["checkpoint-7/trainer_state.json", "checkpoint-7/model.safetensors"]);
    for (name, content, is_whole) in [
        ("config.json", "{}", true),
        ("config.json", "", false),
        ("config.json", "{\"a\"", false),
        ("config.json", "\0\0", false),
        ("adapter_config.json", "{} x", false),
        ("training_args.bin", "", true),
        ("trainer_state.json", "[]", false),
        ("trainer_state.json", r#"{"global_step":-5}"#, false),
    ] {
        let path = folder.path().join("checkpoint-7").join(name);
        let before = std::fs::read(&path).ok();
        std::fs::write(&path, content).expect("it is written");
        assert_eq!(found(&folder)[0].is_whole(), is_whole, "{name} {content:?}");
        match before {
            Some(before) => std::fs::write(&path, before).expect("it is written"),
            None => std::fs::remove_file(&path).expect("it is removed"),
        }
    }
}

#[test]
fn sharded_weights_of_fsdp_are_no_optimizer() {
    let of = |step: u32, kinds: &[&str]| -> Vec<String> {
        let state = format!("checkpoint-{step}/trainer_state.json");
        kinds
            .iter()
            .map(|kind| format!("checkpoint-{step}/{kind}/.metadata"))
            .chain([state])
            .collect()
    };
    let lacks = |kinds: &[&str]| {
        let files = of(7, kinds);
        let folder = made(&files.iter().map(String::as_str).collect::<Vec<_>>());
        let missing = Lack::Missing("pytorch_model_fsdp_0".to_owned());
        found(&folder)[0].lacks.contains(&missing)
    };
    assert!(lacks(&["optimizer_0"]));
    assert!(!lacks(&["optimizer_0", "pytorch_model_fsdp_0"]));
}

#[test]
fn megatron_has_a_folder_for_each_rank() {
    let of = |ranks: &[&str]| {
        let file = |rank: &&str| format!("iter_10/mp_rank_{rank}/model_optim_rng.pt");
        let mut files: Vec<String> = ranks.iter().map(file).collect();
        files.push("latest_checkpointed_iteration.txt".to_owned());
        let folder = made(&files.iter().map(String::as_str).collect::<Vec<_>>());
        let tracker = folder.path().join("latest_checkpointed_iteration.txt");
        std::fs::write(tracker, "10").expect("it is written");
        let found = found(&folder).remove(0);
        found.lacks.iter().map(|lack| lack.words().en).collect::<Vec<_>>()
    };
    let none: [&str; 0] = [];
    assert_eq!(of(&["00", "01"]), none);
    assert_eq!(of(&["01", "02"]), ["mp_rank_00 is missing"]);
    assert_eq!(of(&["00_000", "00_001", "01_000", "01_001"]), none);
    assert_eq!(of(&["00_000", "00_001", "01_000"]), ["mp_rank_01_001 is missing"]);
    let optimizer = ["iter_10/mp_rank_00/distrib_optim.pt"];
    assert_eq!(names(&optimizer)[0], "iter_10: mp_rank_00/model_optim_rng.pt is missing");
    let one = [
        "iter_10/mp_rank_00/distrib_optim.pt",
        "iter_10/mp_rank_00/model_rng.pt",
        "iter_10/mp_rank_01/model_rng.pt",
    ];
    assert_eq!(names(&one)[0], "iter_10: mp_rank_01/distrib_optim.pt is missing");
}

/// A first save that ended behind its first file.
#[test]
fn megatron_with_nothing_but_its_common_states_is_torn() {
    assert_eq!(
        seen(&["iter_0000001/common.pt"]),
        [("iter_0000001".into(), Format::Megatron, false)]
    );
}

#[test]
fn megatron_without_its_common_states_is_torn() {
    let folder = made(&["iter_0000002/metadata.json", "iter_0000002/.metadata"]);
    let config = r#"{"sharded_backend": "torch_dist", "sharded_backend_version": 1}"#;
    let path = folder.path().join("iter_0000002/metadata.json");
    std::fs::write(path, config).expect("it is written");
    let one = found(&folder).remove(0);
    assert_eq!(one.format, Format::Megatron);
    assert!(one.lacks.contains(&Lack::Missing("common.pt".to_owned())), "{one:?}");
}

#[test]
fn universal_checkpoint_stands_behind_what_it_was_made_of() {
    let files = [
        "global_step20/mp_rank_00_model_states.pt",
        "global_step20_universal/mp_rank_00_model_states.pt",
        "global_step20_universal/zero/w/fp32.pt",
        "latest",
    ];
    let folder = made(&files);
    std::fs::write(folder.path().join("latest"), "global_step20").expect("it is written");
    let names: Vec<(PathBuf, bool)> =
        found(&folder).into_iter().map(|one| (one.name.clone(), one.is_whole())).collect();
    let whole = |name: &str| (PathBuf::from(name), true);
    assert_eq!(names, [whole("global_step20"), whole("global_step20_universal")]);
    assert!(
        !seen(&[
            "global_step20_universal/mp_rank_00_model_states.pt",
            "global_step20_universal/zero/"
        ])[0]
            .2
    );
}

/// The metadata of a checkpoint of dcp with one file of two items.
fn metadata(first: u8, second: u8) -> Vec<u8> {
    let text = |text: &str| {
        let length = u32::try_from(text.len()).expect("short").to_le_bytes();
        [b"X".as_slice(), &length, text.as_bytes()].concat()
    };
    let item = |offset: u8, length: u8| {
        let fields = [
            text("relative_path"),
            text("__0_0.distcp"),
            [text("offset"), vec![b'K', offset]].concat(),
            [text("length"), vec![b'K', length]].concat(),
        ];
        [b"}(".to_vec(), fields.concat(), b"u".to_vec()].concat()
    };
    let items = [b"K\0".to_vec(), item(0, first), b"K\x01".to_vec(), item(first, second)];
    [b"\x80\x02}".to_vec(), text("storage_data"), b"}(".to_vec(), items.concat(), b"us.".to_vec()]
        .concat()
}

#[test]
fn items_of_dcp_are_more_than_zeros() {
    let archive = [b"PK\x03\x04".as_slice(), &[1; 20], b"PK\x05\x06", &[0; 18]].concat();
    let length = u8::try_from(archive.len()).expect("short");
    let both = archive.repeat(2);
    let lack = |metadata: &[u8], data: &[u8]| {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("step-1")).expect("it is made");
        std::fs::write(folder.path().join("step-1/.metadata"), metadata).expect("it is written");
        std::fs::write(folder.path().join("step-1/__0_0.distcp"), data).expect("it is written");
        found(&folder).remove(0).lacks.pop()
    };
    let metadata = metadata(length, length);
    let file = || "__0_0.distcp".to_owned();
    assert_eq!(lack(&metadata, &both), None);
    assert_eq!(lack(&[metadata.as_slice(), b"junk"].concat(), &both), None, "it loads");
    assert_eq!(lack(&metadata, &vec![0; both.len()]), Some(Lack::Zeros(file())));
    let end = both.len() - 30;
    let zeros_at_the_end = [&both[..end], &[0; 30]].concat();
    assert_eq!(lack(&metadata, &zeros_at_the_end), Some(Lack::Damaged(file())));
    let compressed = vec![7; both.len()];
    assert_eq!(lack(&metadata, &compressed), None);
}

#[test]
fn endings_of_image_programs_are_those_of_torch() {
    let files = ["checkpoint-2.pth.tar", "last.pth.tar", "checkpoint_epoch_00010.pyth"];
    let found = seen(&files);
    assert_eq!(found.len(), 3);
    assert!(found.iter().all(|(_, format, is_whole)| *format == Format::Torch && *is_whole));
    assert_eq!(names(&["pytorch_model.bin"]), ["pytorch_model.bin"]);
    // What the Trainer exports.
    let files =
        ["pytorch_model.bin", "checkpoint-7/model.safetensors", "checkpoint-7/trainer_state.json"];
    assert_eq!(names(&files), ["checkpoint-7"]);
}

#[test]
fn two_names_that_are_no_utf_8_stay_two() {
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().expect("a folder");
    for name in [b"\xff\xfe-step-3.pt", b"\xfe\xff-step-3.pt"] {
        let name = std::ffi::OsStr::from_bytes(name);
        std::fs::write(folder.path().join(name), "PK").expect("it is written");
    }
    let found = found(&folder);
    assert_eq!(found.len(), 2);
    assert!(found.iter().all(|one| one.path.exists() && one.step == Some(3)), "{found:?}");
}

#[test]
fn folder_that_cannot_be_read_is_named() {
    let folder = made(&["step_9/"]);
    let budget = Budget::new(10);
    let folder = Folder::read(folder.path(), &budget).expect("it is read");
    let error = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
    let of = |name: &str| formats::unread_by_name(&folder, name, &error);
    let [step, trainer] =
        ["step_9", "checkpoint-9"].map(|name| of(name).map(|one| (one.format, one.step)));
    assert_eq!(step, Some((Format::Torch, Some(9))));
    assert_eq!(trainer, Some((Format::Trainer, Some(9))));
    assert!(!of("step_9").is_some_and(|one| one.is_whole()));
    assert_eq!(of("logs"), None);
}

#[test]
fn folders_that_are_read_twice_count_once() {
    let folder = made(&[
        "checkpoint-1/global_step1/mp_rank_00_model_states.pt",
        "checkpoint-1/trainer_state.json",
    ]);
    let limited = |entries| survey(folder.path(), &Limits { entries, ..Limits::default() });
    assert_eq!(limited(4).map(|seen| seen.found.len()).ok(), Some(1));
    assert!(limited(3).is_err());
}

#[test]
fn later_number_is_the_newest_in_any_layout() {
    let layouts: &[&[&str]] = &[
        &["step-#.pt"],
        &["step-#.safetensors"],
        &["step_#/model.pt"],
        &["step_#/model.pt", "step_#/optimizer.pt"],
        &["step_#/rank_0.pt", "step_#/rank_1.pt"],
        &["model_#.pt", "optimizer_#.pt"],
        &["epoch_#.pth"],
        &["epoch_#/model.pt"],
        &["epoch=#-step=5#.ckpt"],
        &["ckpt-#k.pt"],
        &["checkpoint_1_#.pt"],
        &["mp_rank_00/m-step=#.ckpt", "mp_rank_01/m-step=#.ckpt"],
        &["checkpoint_#/model.pt"],
        &["ep0-ba#-rank0.pt"],
        &["run/checkpoints/#.pt"],
    ];
    for layout in layouts {
        let of =
            |number: u32| layout.iter().map(move |file| file.replace('#', &number.to_string()));
        // The last of them are written first.
        let files: Vec<String> = [100, 20, 9, 8].into_iter().flat_map(of).collect();
        let names = names(&files.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(names.len(), 4, "{names:?}");
        let of_number =
            |(name, number): (&String, &str)| name.contains(number) && !name.contains(':');
        assert!(names.iter().zip(["100", "20", "9", "8"]).all(of_number), "{names:?}");
    }
}
