//! Names, and folders with any bytes in their files.

mod field;
mod layouts;
mod listing;
mod programs;
mod progress;
mod series;
mod whole;

use std::time::{Duration, SystemTime};

use proptest::prelude::*;

use super::*;
use crate::folder::{Budget, Folder};
use crate::formats::as_format;
use crate::progress::Told;

#[test]
fn newest_is_first_by_step_and_else_by_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut at = SystemTime::UNIX_EPOCH;
    // Each is newer than those before it.
    let mut names = |more: &[&str]| -> Vec<String> {
        for name in more {
            let path = folder.path().join(name);
            std::fs::write(&path, "PK").expect("it is written");
            at += Duration::from_secs(60);
            let file = std::fs::File::options().write(true).open(path);
            file.and_then(|file| file.set_modified(at)).expect("its time is set");
        }
        found(&folder).iter().map(|one| one.name.display().to_string()).collect()
    };
    assert_eq!(names(&["last.pt", "best.pt"]), ["last.pt", "best.pt"]);
    assert_eq!(
        names(&["epoch_2.pt", "epoch_1.pt"]),
        ["epoch_2.pt", "epoch_1.pt", "last.pt", "best.pt"]
    );
    let with_steps = ["step-10.pt", "step-9.pt", "step-1.5.pt", "epoch_2.pt", "epoch_1.pt"];
    let found = names(&["step-10.pt", "step-1.5.pt", "step-9.pt"]);
    assert_eq!(found[..5], with_steps);
    // A file without a step does not change that.
    let found = names(&["tokenizer.pt", "best.pt"]);
    assert_eq!(found[..3], with_steps[..3]);
    // The best one is a copy of the last one.
    assert_eq!(found[3..], ["tokenizer.pt", "epoch_1.pt", "epoch_2.pt", "last.pt", "best.pt"]);
}

/// The last one of PyTorch's example of ImageNet, whenever it was also the best.
#[test]
fn last_one_comes_before_the_best_whatever_it_is_called() {
    for (last, best) in
        [("checkpoint.pth.tar", "model_best.pth.tar"), ("checkpoint.pt", "best_model.pt")]
    {
        for minutes in [(1, 2), (2, 1), (1, 1)] {
            let folder = tempfile::tempdir().expect("a folder");
            for (name, minutes) in [(last, minutes.0), (best, minutes.1)] {
                let path = folder.path().join(name);
                std::fs::write(&path, archive(&[("data.pkl", b"\x80\x02N.")])).expect("written");
                let at = SystemTime::UNIX_EPOCH + Duration::from_secs(60 * minutes);
                let file = std::fs::File::options().write(true).open(&path);
                file.and_then(|file| file.set_modified(at)).expect("its time is set");
            }
            let found = found(&folder);
            assert_eq!(found[0].name, Path::new(last), "{minutes:?} {best}");
        }
    }
}

/// `last.pt` is the last if it was written after the newest whole one with a step, and is no export of its weights.
#[test]
fn last_is_the_last_if_it_is_newer() {
    let folder = tempfile::tempdir().expect("a folder");
    let written = |name: &str, bytes: usize, minutes: u64| {
        let data = vec![0; bytes];
        let content =
            archive(&[("data.pkl", b"\x80\x02N."), ("version", b"3\n"), ("data/0", &data)]);
        let path = folder.path().join(name);
        std::fs::write(&path, content).expect("it is written");
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(60 * minutes);
        let file = std::fs::File::options().write(true).open(path);
        file.and_then(|file| file.set_modified(at)).expect("its time is set");
    };
    let names = || -> Vec<String> {
        found(&folder).into_iter().map(|one| one.name.display().to_string()).collect()
    };
    written("step-9.pt", 3000, 1);
    written("step-10.pt", 3000, 2);
    written("model_last.pt", 1000, 3);
    assert_eq!(names(), ["step-10.pt", "step-9.pt", "model_last.pt"]);
    written("model_last.pt", 3000, 1);
    assert_eq!(names(), ["step-10.pt", "step-9.pt", "model_last.pt"]);
    written("model_last.pt", 3000, 3);
    assert_eq!(names(), ["model_last.pt", "step-10.pt", "step-9.pt"]);
    written("latest_optimizer.pt", 3000, 4);
    written("blast.pt", 3000, 4);
    assert_eq!(names()[0], "model_last.pt");
    // The torn one is newer, and the one before it is what a start takes.
    std::fs::write(folder.path().join("step-11.pt"), "").expect("it is written");
    assert_eq!(names()[..2], ["step-11.pt", "model_last.pt"]);
}

#[test]
fn epochs_are_the_order_where_all_have_them() {
    let folder = made(&["epoch_10.pth", "epoch_9.pth", "best_epoch_9.pth", "optimizer.pt"]);
    let late = std::fs::File::options().write(true).open(folder.path().join("epoch_9.pth"));
    let at = SystemTime::now() + Duration::from_secs(60);
    late.and_then(|file| file.set_modified(at)).expect("its time is set");
    let names: Vec<PathBuf> = found(&folder).into_iter().map(|one| one.name).collect();
    assert_eq!(names[0], PathBuf::from("epoch_10.pth"));
    assert_eq!(names.len(), 3, "nothing starts from an optimizer");
}

/// A folder with these files; a name that ends with "/" is a folder, and zip archives are whole.
fn made(files: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for name in files {
        let path = folder.path().join(name);
        if name.ends_with('/') {
            std::fs::create_dir_all(path).expect("it is made");
            continue;
        }
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("it is made");
        let content = match path.extension().and_then(|end| end.to_str()) {
            Some("safetensors") => safetensors(&[1; 64]),
            Some("json") => br#"{"global_step": 7, "weight_map": {}}"#.to_vec(),
            _ => archive(&[("data.pkl", b"\x80\x02N."), ("version", b"3\n")]),
        };
        std::fs::write(path, content).expect("it is written");
    }
    folder
}

fn safetensors(data: &[u8]) -> Vec<u8> {
    let header =
        format!(r#"{{"a":{{"dtype":"U8","shape":[{0}],"data_offsets":[0,{0}]}}}}"#, data.len());
    let length = u64::try_from(header.len()).expect("it fits").to_le_bytes();
    [&length, header.as_bytes(), data].concat()
}

fn found(folder: &tempfile::TempDir) -> Vec<Checkpoint> {
    survey(folder.path(), &Limits::default()).expect("it is read").found
}

/// Name, format and whether it is whole.
fn seen(files: &[&str]) -> Vec<(String, Format, bool)> {
    let folder = made(files);
    let of = |one: Checkpoint| (one.name.display().to_string(), one.format, one.is_whole());
    found(&folder).into_iter().map(of).collect()
}

#[test]
fn an_empty_folder_is_whole_in_no_format() {
    let folder = tempfile::tempdir().expect("a folder");
    let budget = Budget::new(10);
    for format in Format::ALL {
        let folder = Folder::read(folder.path(), &budget).expect("it is read");
        let one = as_format(&folder, *format, Told::default());
        assert!(!one.as_ref().is_some_and(Checkpoint::is_whole), "{one:?}");
    }
}

#[test]
fn shards_without_their_index_are_no_checkpoint() {
    let shard = "step-2/model-00001-of-00002.safetensors";
    let want = [("step-2".to_owned(), Format::Safetensors, false)];
    assert_eq!(seen(&[shard]), want);
}

#[test]
fn hole_at_the_end_is_content_that_was_never_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = safetensors(&vec![0; 1 << 20]);
    std::fs::write(folder.path().join("step-1.safetensors"), &whole).expect("it is written");
    let torn = std::fs::File::create(folder.path().join("step-2.safetensors")).expect("it is made");
    torn.set_len(u64::try_from(whole.len()).expect("it fits")).expect("it has its size");
    let begun = whole.get(..4096).expect("it is longer");
    std::io::Write::write_all(&mut &torn, begun).expect("it is written");
    let found = found(&folder);
    let lacks: Vec<&[Lack]> = found.iter().map(|one| one.lacks.as_slice()).collect();
    let zeros = [Lack::Zeros("step-2.safetensors".to_owned())];
    assert_eq!(lacks, [zeros.as_slice(), &[]]);
}

#[test]
fn files_say_more_than_a_name() {
    // Example programs of diffusers save so, with the weights in a folder of a hook.
    let of_hook = "checkpoint-5/unet/diffusion_pytorch_model.safetensors";
    let accelerate = [of_hook, "checkpoint-5/optimizer.bin", "checkpoint-5/random_states_0.pkl"];
    assert_eq!(seen(&accelerate), [("checkpoint-5".to_owned(), Format::Accelerate, true)]);
    // The first one of a writer has a name only, and the next ones are named like their neighbours.
    let named = |name: &str, format| (name.to_owned(), format, false);
    assert_eq!(seen(&["checkpoint-5/"]), [named("checkpoint-5", Format::Trainer)]);
    let [whole, rest @ ..] = accelerate;
    let begun = [whole, rest[0], rest[1], "checkpoint-6/model.safetensors"];
    assert_eq!(seen(&begun)[0], named("checkpoint-6", Format::Accelerate));
    // Neither begins at its step: the Trainer starts from 0 without its state.
    let adapter =
        ["checkpoint-500/adapter_model.safetensors", "checkpoint-500/adapter_config.json"];
    assert_eq!(seen(&adapter), [named("checkpoint-500", Format::Trainer)]);
}

#[test]
fn what_the_trainer_exports_at_its_end_hides_no_checkpoint() {
    for export in ["model.safetensors", "model.safetensors.index.json"] {
        let files = [
            "trainer_state.json",
            export,
            "checkpoint-7/model.safetensors",
            "checkpoint-7/trainer_state.json",
        ];
        assert_eq!(seen(&files), [("checkpoint-7".to_owned(), Format::Trainer, true)]);
    }
}

#[test]
fn only_the_model_is_a_whole_checkpoint_of_the_trainer() {
    let files = ["checkpoint-7/model.safetensors", "checkpoint-7/trainer_state.json"];
    assert_eq!(seen(&files), [("checkpoint-7".to_owned(), Format::Trainer, true)]);
}

#[test]
fn link_beside_its_file_is_no_second_checkpoint() {
    let folder = made(&["step-1.pt"]);
    std::os::unix::fs::symlink("step-1.pt", folder.path().join("last.pt")).expect("it is linked");
    std::os::unix::fs::symlink(".", folder.path().join("round")).expect("it is linked");
    std::os::unix::fs::symlink("gone.pt", folder.path().join("step-2.pt")).expect("it is linked");
    let names: Vec<PathBuf> = found(&folder).into_iter().map(|one| one.name).collect();
    assert_eq!(names, [PathBuf::from("step-1.pt")]);
    // The file itself has a name that is not listed.
    let folder = made(&["blob"]);
    std::os::unix::fs::symlink("blob", folder.path().join("step-1.pt")).expect("it is linked");
    assert_eq!(found(&folder).len(), 1);
}

#[test]
fn names_that_are_no_utf_8_are_read() {
    use std::os::unix::ffi::OsStrExt;
    let name = std::ffi::OsStr::from_bytes(b"run-\xff");
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join(name)).expect("it is made");
    std::fs::write(folder.path().join(name).join("step-1.safetensors"), safetensors(&[1]))
        .expect("it is written");
    let [one] = <[Checkpoint; 1]>::try_from(found(&folder)).expect("one");
    assert_eq!((one.is_whole(), one.step), (true, Some(1)));
    assert!(one.path.exists(), "{one:?}");
}

#[test]
fn more_files_than_the_limit_are_refused() {
    let folder = made(&["step-1.pt", "data/1", "data/2", "data/3"]);
    let limited = |entries| survey(folder.path(), &Limits { entries, ..Limits::default() });
    assert_eq!(limited(5).map(|seen| seen.found.len()).ok(), Some(1));
    let error = limited(4).expect_err("they are too many");
    assert!(text::lang::cause(&error).en.contains("more than 4"), "{error}");
}

#[test]
fn digest_is_the_same_wherever_the_folder_is_mounted() {
    let digest = || {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("step-1.pt"), "PK").expect("it is written");
        found(&folder).remove(0).digest()
    };
    assert_eq!(digest(), digest());
}

/// A zip file with these records, as torch.save writes it.
fn archive(records: &[(&str, &[u8])]) -> Vec<u8> {
    let number = |number: usize| u32::try_from(number).expect("it fits").to_le_bytes();
    let short = |number: usize| u16::try_from(number).expect("it fits").to_le_bytes();
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, bytes) in records {
        let name = format!("archive/{name}");
        let sizes = [number(bytes.len()), number(bytes.len())].concat();
        let lengths = [short(name.len()), short(0)].concat();
        let at = number(file.len());
        file.extend([b"PK\x03\x04", [0; 14].as_slice(), &sizes, &lengths].concat());
        file.extend([name.as_bytes(), bytes].concat());
        directory.extend([b"PK\x01\x02", [0; 16].as_slice(), &sizes, &lengths].concat());
        directory.extend([[0; 10].as_slice(), &at, name.as_bytes()].concat());
    }
    let place = [number(directory.len()), number(file.len())].concat();
    let end = [b"PK\x05\x06", [0; 8].as_slice(), &place, &[0; 2]].concat();
    [file, directory, end].concat()
}

/// A storage of 16 floats with this key, as its pickle names it.
fn storage(key: u8) -> Vec<u8> {
    let named = [
        b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\0".as_slice(),
        &[key],
        b"X\x03\0\0\0cpuK\x10",
    ];
    named.concat()
}

/// What the file of torch.save with these bytes lacks.
fn lack_of(bytes: &[u8]) -> Option<Lack> {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("step-1.pt"), bytes).expect("it is written");
    found(&folder).remove(0).lacks.pop()
}

#[test]
fn archive_without_a_named_storage_is_torn() {
    let pickle = [b"\x80\x02(".as_slice(), &storage(b'0'), b"tQ", &storage(b'1'), b"tQt."].concat();
    let all: [(&str, &[u8]); 4] =
        [("data.pkl", &pickle), ("data/0", &[0; 64]), ("data/1", &[0; 64]), ("version", b"3\n")];
    assert_eq!(lack_of(&archive(&all)), None);
    let record = |record: &str| {
        Some(Lack::Record { file: "step-1.pt".to_owned(), record: record.to_owned() })
    };
    let [objects, first, _, version] = all;
    assert_eq!(lack_of(&archive(&[objects, first, version])), record("data/1"));
    // Bytes behind its end, as many as its reader goes back.
    let behind = |count| lack_of(&[archive(&all), vec![0; count]].concat());
    assert_eq!(behind(65_535), None);
    assert_eq!(behind(65_536), Some(Lack::Cut("step-1.pt".to_owned())));
    // An object that cannot be pickled.
    assert_eq!(lack_of(&archive(&[version])), record("data.pkl"));
    // An archive of another program.
    assert_eq!(lack_of(&archive(&[("model.pkl", b""), version])), None);
    let cut = archive(&[objects, first, ("data/1", &[0; 63]), version]);
    let short = Lack::Short { file: "step-1.pt/data/1".to_owned(), has: 63, needs: 64 };
    assert_eq!(lack_of(&cut), Some(short));
}

#[test]
fn older_form_of_torch_ends_behind_its_storages() {
    let keys = b"\x80\x02](X\x01\0\0\x000X\x01\0\0\x001e.";
    let storages = [16_u64.to_le_bytes().as_slice(), &[0; 64]].concat().repeat(2);
    let whole = [
        b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.\x80\x02}."
            .as_slice(),
        b"\x80\x02(",
        &storage(b'0'),
        b"NtQ",
        &storage(b'1'),
        b"NtQt.",
        keys,
        &storages,
    ];
    let whole = whole.concat();
    assert_eq!(lack_of(&whole), None);
    for end in 20..whole.len() {
        let lack = lack_of(&whole[..end]);
        let cut = end < whole.len() - storages.len();
        match lack {
            Some(Lack::Cut(_)) if cut => {}
            Some(Lack::Short { needs, .. }) if !cut => assert_eq!(needs, whole.len() as u64),
            lack => panic!("{end}: {lack:?}"),
        }
    }
}

#[test]
fn plain_pickle_ends_with_its_last_instruction() {
    let whole = b"\x80\x04\x95\x0a\0\0\0\0\0\0\0}\x94\x8c\x01a\x94K\x01s.";
    assert_eq!(lack_of(whole), None);
    let end = whole.len() - 1;
    assert_eq!(lack_of(&whole[..end]), Some(Lack::Cut("step-1.pt".to_owned())));
    // Python 2 wrote instructions that are not read.
    let unknown = b"\x80\x02I1\n.";
    assert_eq!(lack_of(unknown), Some(Lack::NoEnd("step-1.pt".to_owned())));
}

/// Files of accelerate in the folder of a step.
fn accelerate(step: u32, more: &[&str]) -> Vec<String> {
    let files = ["model.safetensors", "optimizer.bin", "random_states_0.pkl"];
    files.iter().chain(more).map(|file| format!("checkpoint_{step}/{file}")).collect()
}

/// Whether each of these checkpoints of accelerate is whole, newest first.
fn whole(checkpoints: &[Vec<String>]) -> Vec<bool> {
    let files: Vec<String> = checkpoints.concat();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    seen(&files).into_iter().map(|(.., is_whole)| is_whole).collect()
}

#[test]
fn registered_objects_of_accelerate_come_last() {
    let objects = ["custom_checkpoint_0.pkl", "custom_checkpoint_1.pkl"];
    let [both, first] = [objects.as_slice(), &objects[..1]];
    let steps = |all: &[&[&str]]| {
        let of = |(step, more): (u32, &&[&str])| accelerate(step, more);
        whole(&(0..).zip(all).map(of).collect::<Vec<_>>())
    };
    assert_eq!(steps(&[both, both, first]), [false, true, true]);
    assert_eq!(steps(&[both, both, &[]]), [false, true, true]);
    assert_eq!(steps(&[first, both]), [true, false]);
    assert_eq!(steps(&[both, both]), [true, true]);
    // A program that registers fewer has one that looks torn, and then whole ones.
    assert_eq!(steps(&[both, first, first]), [true, false, true]);
    // None says more.
    assert_eq!(steps(&[&[]]), [true]);
}

#[test]
fn files_that_each_rank_of_fsdp_writes_are_complete() {
    let states = ["optimizer.bin", "random_states_0.pkl"];
    let of = |step: u32, more: &[&str]| -> Vec<String> {
        states.iter().chain(more).map(|file| format!("checkpoint_{step}/{file}")).collect()
    };
    let local = ["pytorch_model_fsdp_rank0.bin", "pytorch_model_fsdp_rank1.bin"];
    assert_eq!(whole(&[of(1, &local)]), [true]);
    assert_eq!(whole(&[of(1, &local[1..])]), [false]);
    let [model, optimizer] = ["pytorch_model_fsdp_0_rank0.bin", "optimizer_0_rank1.bin"];
    assert_eq!(whole(&[of(1, &[model, optimizer])]), [false]);
    // Rank 1 was lost before its first file.
    assert_eq!(whole(&[of(1, &local), of(2, &local[..1])]), [false, true]);
    assert_eq!(whole(&[of(1, &["pytorch_model_fsdp.bin"])]), [true]);
}

/// States of a model of DeepSpeed with so many model-parallel ranks, ZeRO 1 and this device of the optimizer.
fn states(models: u8, device: &[u8]) -> Vec<u8> {
    let length = |text: &[u8]| u32::try_from(text.len()).expect("short").to_le_bytes();
    let text = |text: &[u8]| [b"X".as_slice(), &length(text), text].concat();
    let pickle = [
        b"\x80\x02}(".to_vec(),
        [&text(b"dp_world_size"), b"K\x01".as_slice()].concat(),
        [&text(b"mp_world_size"), b"K".as_slice(), &[models]].concat(),
        [&text(b"ds_config"), b"}".as_slice(), &text(b"zero_optimization"), b"}("].concat(),
        [&text(b"stage"), b"K\x01".as_slice(), &text(b"offload_optimizer"), b"}"].concat(),
        [&text(b"device"), &text(device), b"susu.".as_slice()].concat(),
    ];
    archive(&[("data.pkl", &pickle.concat())])
}

/// What a checkpoint of DeepSpeed lacks, with these files and `latest`.
fn deepspeed(states: &[u8], more: &[&str], latest: Option<&str>) -> Vec<Lack> {
    let folder = tempfile::tempdir().expect("a folder");
    let tag = folder.path().join("global_step5");
    std::fs::create_dir(&tag).expect("it is made");
    let files = ["mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"];
    for file in files.iter().chain(more) {
        std::fs::write(tag.join(file), states).expect("it is written");
    }
    if let Some(latest) = latest {
        std::fs::write(folder.path().join("latest"), latest).expect("it is written");
    }
    found(&folder).remove(0).lacks
}

#[test]
fn states_of_a_model_name_its_parallel_ranks() {
    let one = states(1, b"cpu");
    assert_eq!(deepspeed(&one, &[], None), []);
    let second = "mp_rank_01_model_states.pt".to_owned();
    let lacks = [Lack::Missing(second), Lack::Parts(vec![0])];
    assert_eq!(deepspeed(&states(2, b"cpu"), &[], None), lacks);
    let rest = ["mp_rank_01_model_states.pt", "zero_pp_rank_0_mp_rank_01_optim_states.pt"];
    assert_eq!(deepspeed(&states(2, b"cpu"), &rest, None), []);
}

#[test]
fn latest_proves_what_no_states_of_deepspeed_count() {
    let [one, offloaded] = [states(1, b"cpu"), states(1, b"nvme")];
    let layer = ["layer_00-model_00-model_states.pt"];
    let expert = ["layer_0_expert_0_mp_rank_00_model_states.pt"];
    for (states, more) in [(&offloaded, &[][..]), (&one, &layer), (&one, &expert)] {
        let missing = Lack::Missing("../latest".to_owned());
        assert_eq!(deepspeed(states, more, None), [missing]);
        assert_eq!(deepspeed(states, more, Some("global_step5")), []);
        assert_eq!(deepspeed(states, more, Some("global_step4")).len(), 1);
        assert_eq!(deepspeed(states, more, Some("other")).len(), 1);
        // The next one was begun when this one was finished.
        assert_eq!(deepspeed(states, more, Some("global_step6")), []);
        let empty = Lack::Empty("../latest".to_owned());
        assert_eq!(deepspeed(states, more, Some("")), [empty]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_bytes_are_whole_by_chance(data in prop::collection::vec(any::<u8>(), 0..400)) {
        let folder = tempfile::tempdir().expect("a folder");
        prop_assert!(fuzz::checkpoints(folder.path(), &data));
    }
}
