//! Names, and folders with any bytes in their files.

use std::time::{Duration, SystemTime};

use proptest::prelude::*;

use super::*;
use crate::folder::{Budget, Folder};
use crate::formats::as_format;
use crate::names::step_of;

#[test]
fn step_is_the_number_behind_its_word() {
    for (name, step) in [
        ("checkpoint-500", Some(500)),
        ("step-7", Some(7)),
        ("iter_0001000", Some(1000)),
        ("global_step1000", Some(1000)),
        ("epoch=3-step=1200.ckpt", Some(1200)),
        ("epoch=3-val_loss=0.25.ckpt", None),
        ("model_12.pt", Some(12)),
        ("step_00000100", Some(100)),
        ("last.ckpt", None),
        ("mp4.pt", None),
        ("resnet50.pt", None),
        ("llama-7b.safetensors", None),
        ("model-00001-of-00003.safetensors", None),
        ("12.pt", Some(12)),
        ("checkpoint_99999999999999999999999.pt", None),
        ("3step-8", Some(8)),
    ] {
        assert_eq!(step_of(name), step, "{name}");
    }
}

#[test]
fn newest_is_first_by_step_and_else_by_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str| {
        std::fs::write(folder.path().join(name), "PK").expect("it is written");
    };
    let names = || -> Vec<String> {
        let found = survey(folder.path(), &Limits::default()).expect("a folder");
        found.iter().map(|one| one.name.display().to_string()).collect()
    };
    for name in ["step-9.pt", "step-10.pt", "step-2.pt"] {
        write(name);
    }
    assert_eq!(names(), ["step-10.pt", "step-9.pt", "step-2.pt"]);
    // A series without steps.
    let at = SystemTime::now() + Duration::from_secs(60);
    write("last.pt");
    let last = std::fs::File::options().write(true).open(folder.path().join("last.pt"));
    last.and_then(|file| file.set_modified(at)).expect("its time is set");
    assert_eq!(names().first().map(String::as_str), Some("last.pt"));
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
            _ => [b"PK\x05\x06".as_slice(), &[0; 18]].concat(),
        };
        std::fs::write(path, content).expect("it is written");
    }
    folder
}

fn safetensors(data: &[u8]) -> Vec<u8> {
    let header =
        format!(r#"{{"a":{{"dtype":"U8","shape":[1],"data_offsets":[0,{}]}}}}"#, data.len());
    let length = u64::try_from(header.len()).expect("it fits").to_le_bytes();
    [&length, header.as_bytes(), data].concat()
}

fn found(folder: &tempfile::TempDir) -> Vec<Checkpoint> {
    survey(folder.path(), &Limits::default()).expect("it is read")
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
        let one = as_format(&folder, *format);
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
    assert_eq!(limited(5).map(|found| found.len()).ok(), Some(1));
    let error = limited(4).expect_err("they are too many");
    assert!(text::lang::cause(&error).en.contains("more than 4"), "{error}");
}

#[test]
fn digest_is_the_same_wherever_the_folder_is_mounted() {
    let digest = || {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("step-1.pt"), "PK").expect("it is written");
        survey(folder.path(), &Limits::default()).expect("a folder").remove(0).digest()
    };
    assert_eq!(digest(), digest());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_bytes_are_whole_by_chance(data in prop::collection::vec(any::<u8>(), 0..400)) {
        let folder = tempfile::tempdir().expect("a folder");
        prop_assert!(fuzz::checkpoints(folder.path(), &data));
    }
}
