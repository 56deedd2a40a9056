//! Names, and folders with any bytes in their files.

use std::time::{Duration, SystemTime};

use proptest::prelude::*;

use super::*;
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
        ("mp4.pt", Some(4)),
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
