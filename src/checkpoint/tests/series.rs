//! Series of checkpoints: what is no member of one, and what each member has.

use super::*;
use crate::tests::layouts::{named, names};

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
