//! Series of checkpoints: what is no member of one, and what each member has.

use super::*;
use crate::tests::layouts::{named, names};

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
