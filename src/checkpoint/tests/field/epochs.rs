//! Folders of steps in folders of epochs.

use super::*;

/// `E` is the epoch, `#` the step. The first save of an epoch may be the one that ended early, alone or with another one,
/// whether steps are counted anew or go on.
#[test]
fn saves_of_an_epoch_need_the_files_of_those_before() {
    for layout in [
        &["epoch_E/step_#/model.pt", "epoch_E/step_#/optim.pt"][..],
        &["epoch_E/step_#/model.pt", "epoch_E/step_#/optim.pt", "epoch_E/step_#/rng.pt"],
        &["epoch_E/step_#/rank_0.pt", "epoch_E/step_#/rank_1.pt"],
        &["epoch_E/step_#/actor/model.pt", "epoch_E/step_#/critic/model.pt"],
        &["run/epoch=E/checkpoint_step_#/a.pt", "run/epoch=E/checkpoint_step_#/b.pt"],
        &["epoch_E/step_#.pt", "epoch_E/optimizer_step_#.pt"],
        &["epoch-E/model_#.pt", "epoch-E/optim_#.pt"],
    ] {
        for (saves, torn) in [(5, 2), (6, 1), (6, 2), (7, 1), (7, 2), (8, 1), (8, 2)] {
            for goes_on in [0, 1500] {
                let places: Vec<(u32, u32)> = (0..saves)
                    .map(|at| (at / 3, 500 * (at % 3 + 1) + goes_on * (at / 3)))
                    .collect();
                let of = |(epoch, step): (u32, u32), count: usize| -> Vec<String> {
                    let name = |file: &&str| {
                        file.replace('E', &epoch.to_string()).replace('#', &step.to_string())
                    };
                    layout.iter().take(count).map(name).collect()
                };
                for count in 1..=layout.len() {
                    let is_torn = |at: usize| count < layout.len() && at + torn >= places.len();
                    let has = |at: usize| if is_torn(at) { count } else { layout.len() };
                    let all = (0..places.len()).flat_map(|at| of(places[at], has(at)));
                    // Copies may have one time.
                    let pause = u64::from(saves % 2) * 60;
                    let files: Vec<(String, u64)> =
                        all.zip((0..).map(|turn| turn * pause)).collect();
                    let newest = (0..places.len()).rfind(|at| !is_torn(*at)).expect("one");
                    let expected = of(places[newest], 1).remove(0);
                    let found = first_whole(named(&written(&files)));
                    assert!(
                        !found.is_empty() && expected.starts_with(&found),
                        "{layout:?} {saves} {torn} {goes_on} {count}: {found}, {expected}"
                    );
                }
            }
        }
    }
}

/// One file in each is all that there is, and three saves in a row with fewer show what the program saves by now.
#[test]
fn single_files_in_folders_of_epochs_are_whole() {
    for (layout, other) in [
        ("epoch_E/step_#/model.pt", "epoch_E/step_#/optim.pt"),
        ("epoch_E/step_#/model.safetensors", "epoch_E/step_#/optim.pt"),
        ("epochE/iter_#/m.pt", "epochE/iter_#/optimizer/o.pt"),
    ] {
        let of = |layout: &str, epoch: u32, step: u32| {
            layout.replace('E', &epoch.to_string()).replace('#', &step.to_string())
        };
        let mut all = vec![of(layout, 1, 100), of(layout, 1, 200), of(layout, 2, 100)];
        assert_eq!(chosen(&all), all[2]);
        all.extend([of(other, 1, 100), of(other, 1, 200)]);
        let is_newest = |all: &[String], file: usize| {
            let found = chosen(all);
            assert!(!found.is_empty() && all[file].starts_with(&found), "{found}");
        };
        is_newest(&all, 1);
        all.extend([of(layout, 3, 100), of(layout, 4, 100)]);
        is_newest(&all, 6);
    }
}
