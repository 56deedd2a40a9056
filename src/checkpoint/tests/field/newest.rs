//! Which one is the newest where times or steps tell little: copies, dates, the last and the best one.

use super::*;

/// The first whole one of these files, written in this order, or all at once as some copies are.
fn newest_of(files: &[&str], order: &[usize], is_at_once: bool) -> String {
    let at = |turn: u64| if is_at_once { 0 } else { turn * 60 };
    let all: Vec<(String, u64)> =
        (0..).zip(order).map(|(turn, file)| (files[*file].to_owned(), at(turn))).collect();
    first_whole(named(&written(&all)))
}

const ORDERS: &[[usize; 3]] = &[[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]];

#[test]
fn dates_in_names_are_the_order() {
    for layout in
        ["@.pt", "ckpt_@.pt", "@_model.pt", "@/model.pt", "run/@/model.pt", "CKPT+@/m.ckpt"]
    {
        for dates in [
            ["2026-11-28_12-00-00", "2026-11-29_09-00-00", "2026-11-29_10-00-00"],
            ["2026-11-28", "2026-11-30", "2026-12-01"],
            ["20261128_120000", "20261129_090000", "20261129_100000"],
            ["20261128", "20261130", "20261201"],
            ["2026-11-28T12:00:00", "2026-11-29T09:00:00", "2026-11-29T10:00:00"],
        ] {
            let files = dates.map(|date| layout.replace('@', date));
            let names = files.each_ref().map(String::as_str);
            for order in ORDERS {
                for is_at_once in [false, true] {
                    assert_eq!(newest_of(&names, order, is_at_once), files[2], "{order:?}");
                }
            }
            // Several files of each, of which one is missing.
            let Some((folder, file)) = layout.split_once('/').filter(|_| !layout.contains("run"))
            else {
                continue;
            };
            let of = |date: &&str| {
                let folder = folder.replace('@', date);
                [format!("{folder}/{file}"), format!("{folder}/optimizer.pt")]
            };
            let mut all: Vec<String> = dates.iter().flat_map(of).collect();
            let chosen_of = |all: &[String]| {
                let all: Vec<(String, u64)> = all.iter().map(|name| (name.clone(), 0)).collect();
                first_whole(named(&written(&all)))
            };
            assert_eq!(chosen_of(&all), folder.replace('@', dates[2]));
            all.pop();
            assert_eq!(chosen_of(&all), folder.replace('@', dates[1]));
        }
    }
    // Those of runs are no order of their steps, and no date without a month.
    let runs = ["2026-11-28/step_900.pt", "2026-11-29/step_100.pt", "2026-11-30/last.pt"];
    assert_eq!(newest_of(&runs[..2], &[0, 1], false), runs[0]);
    assert_eq!(
        newest_of(&["a_2026-13-28.pt", "a_2026-12-29.pt"], &[1, 0], false),
        "a_2026-13-28.pt"
    );
}

/// Copies keep no order, and the last one is the newest if it is not older than the others.
#[test]
fn last_one_beside_epochs_gives_no_epoch_away() {
    for layout in ["epoch_#.pth", "#epoch.pth", "epoch=#.ckpt", "epoch_#/model.pt", "2026-11-0#.pt"]
    {
        let of = |epoch: u32| layout.replace('#', &epoch.to_string());
        let epochs = [of(1), of(2), of(3)];
        for last in ["last.pth", "latest.pt", "checkpoint.pth"] {
            let files = [epochs[0].as_str(), &epochs[1], &epochs[2], last];
            for order in ORDERS {
                let [one, two, three] = *order;
                assert_eq!(newest_of(&files, &[one, two, three, 3], false), last, "{files:?}");
                assert_eq!(newest_of(&files, &[3, one, two, three], false), epochs[2], "{files:?}");
                assert_eq!(newest_of(&files, &[one, two, three, 3], true), epochs[2], "{files:?}");
            }
        }
    }
}

/// Programs write the last one and then copy it, if it is the best.
#[test]
fn best_one_stands_behind_the_last_one() {
    for (last, best) in [
        ("last.pt", "best.pt"),
        ("weights/last.pt", "weights/best.pt"),
        ("checkpoints/last.ckpt", "checkpoints/best.ckpt"),
        ("checkpoint_last.pt", "checkpoint_best.pt"),
        ("model_latest.pth", "model_best.pth"),
    ] {
        for epochs in [&[][..], &["epoch_1.pth", "epoch_2.pth"]] {
            let mut files: Vec<(&str, usize)> = epochs.iter().map(|name| (*name, 9000)).collect();
            files.extend([(last, 9000), (best, 9000)]);
            let found = sized(&files);
            assert!(
                found.iter().position(|one| one == last) < found.iter().position(|one| one == best)
            );
            assert!(last.contains('/') || found[0] == last, "{found:?}");
        }
        // The last one is no state.
        assert_eq!(sized(&[(last, 3000), (best, 9000)])[0], best);
    }
}

/// Each epoch counts its steps anew; and they go on, where none of a later one is smaller.
#[test]
fn steps_of_each_epoch_are_in_its_order() {
    for layout in [
        "epoch_E_step_#.pt",
        "epoch=E-step=#.pt",
        "ckpt_step#_epoch_E.pt",
        "epoch_E/step_#.pt",
        "epoch_E_step_#/model.pt",
        "run/epochE/iter_#.pth",
    ] {
        for (places, newest) in [
            ([(1, 100), (1, 200), (2, 100)], 2),
            ([(1, 500), (2, 100), (3, 50)], 2),
            ([(1, 100), (2, 100), (3, 100)], 2),
            ([(1, 100), (1, 200), (2, 300)], 2),
        ] {
            let of = |(epoch, step): (u32, u32)| {
                layout.replace('E', &epoch.to_string()).replace('#', &step.to_string())
            };
            let files = places.map(of);
            let all = files.each_ref().map(String::as_str);
            for order in ORDERS {
                for is_at_once in [false, true] {
                    let found = newest_of(&all, order, is_at_once);
                    assert_eq!(found, files[newest], "{files:?} {order:?}");
                }
            }
            // With an optimizer each, of which the last is missing: those of an earlier epoch are none of it.
            let with = |file: &String| {
                let optimizer = match file.rsplit_once('/') {
                    Some((folder, "model.pt")) => format!("{folder}/optimizer.pt"),
                    Some((folder, name)) => format!("{folder}/optimizer_{name}"),
                    None => format!("optimizer_{file}"),
                };
                [file.clone(), optimizer]
            };
            let mut both: Vec<String> = files.iter().flat_map(with).collect();
            let name = |all: &[String]| {
                let all: Vec<(String, u64)> = all.iter().map(|name| (name.clone(), 0)).collect();
                first_whole(named(&written(&all)))
            };
            assert!(files[2].starts_with(&name(&both)), "{both:?}: {}", name(&both));
            if !layout.contains("E/") {
                both.pop();
                assert!(files[1].starts_with(&name(&both)), "{both:?}: {}", name(&both));
            }
        }
    }
}
