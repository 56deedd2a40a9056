//! Folders of ranks of the older form of Megatron, of which nothing but the iterations before tells how many there are.

use super::*;

/// These folders of ranks in each iteration of 20 more, and the tracker that names the last one.
fn iterations(all: &[&[&str]]) -> Vec<String> {
    let of = |(at, ranks): (usize, &&[&str])| {
        let file = move |rank: &&str| {
            format!("iter_{:07}/mp_rank_{rank}/model_optim_rng.pt", 20 * (at + 1))
        };
        ranks.iter().map(file).collect::<Vec<_>>()
    };
    let mut files: Vec<String> = all.iter().enumerate().flat_map(of).collect();
    files.push("latest_checkpointed_iteration.txt".to_owned());
    files
}

#[test]
fn tracker_proves_no_folders_of_ranks() {
    for ranks in
        [&["00", "01"][..], &["00", "01", "02"], &["00_000", "00_001"], &["00_000", "01_000"]]
    {
        for kept in 1..=ranks.len() {
            for whole in 1..=4 {
                for fewer in 1..=3 {
                    let mut all = vec![ranks; whole];
                    all.extend(vec![&ranks[..kept]; fewer]);
                    let files = iterations(&all);
                    let made = made(&files.iter().map(String::as_str).collect::<Vec<_>>());
                    let tracker = made.path().join("latest_checkpointed_iteration.txt");
                    std::fs::write(tracker, (20 * all.len()).to_string()).expect("it is written");
                    // More than there were before, or three, show what the program saves by now.
                    let is_change = kept == ranks.len() || fewer > whole.min(2);
                    let newest = if is_change { whole + fewer } else { whole };
                    let expected = format!("iter_{:07}", 20 * newest);
                    let found = named(&made);
                    assert_eq!(first_whole(found.clone()), expected, "{kept} {whole}: {found:?}");
                }
            }
        }
    }
}

/// Another split has folders of its own. Those without folders of ranks are of the newer form, and need none.
#[test]
fn other_forms_of_megatron_need_no_folders_of_ranks() {
    // Another split of the model.
    for ranks in [&["00_000", "00_001"][..], &["00_000"], &["00", "01", "02", "03"]] {
        let files = iterations(&[&["00", "01"], &["00", "01"], ranks]);
        let made = made(&files.iter().map(String::as_str).collect::<Vec<_>>());
        let tracker = made.path().join("latest_checkpointed_iteration.txt");
        std::fs::write(tracker, "60").expect("it is written");
        assert_eq!(first_whole(named(&made)), "iter_0000060");
    }
    let older = iterations(&[&["00", "01"], &["00", "01"], &["00", "01"]]);
    let newer =
        ["common.pt", "metadata.json", ".metadata"].map(|file| format!("iter_0000080/{file}"));
    let files: Vec<&str> = older.iter().chain(&newer).map(String::as_str).collect();
    let folder = made(&files);
    std::fs::write(folder.path().join("latest_checkpointed_iteration.txt"), "80")
        .expect("it is written");
    let all = found(&folder);
    let newest = all.iter().find(|one| one.own_name() == "iter_0000080").expect("it is there");
    let has_rank = |lack: &Lack| lack.words().en.contains("mp_rank");
    assert!(!newest.lacks.iter().any(has_rank), "{newest:?}");
}
