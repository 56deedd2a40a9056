//! Several saves in a row that lack the same, and files that come with some steps only.

use super::*;

/// `#` is the step. A file behind `!` is not the one that is lacking: nothing would be left without it, or the ranks tell.
const LAYOUTS: &[&[&str]] = &[
    &["step_#/model.pt", "step_#/optimizer.pt", "step_#/scheduler.pt", "step_#/rng.pt"],
    &["step_#/model.pt", "step_#/ema.pt", "step_#/optimizer.pt"],
    &["step_#/actor/model.pt", "step_#/actor/optim.pt", "step_#/critic/model.pt"],
    &["!step_#/rank_0.pt", "!step_#/rank_1.pt", "step_#/rank_2.pt"],
    &["!step_#_rank0.pt", "!step_#_rank1.pt", "step_#_rank2.pt"],
    &["!mp_rank_00/m-step=#.ckpt", "mp_rank_01/m-step=#.ckpt"],
    &["!model_#.pt", "optimizer_#.pt"],
    &["!G_#.pth", "D_#.pth"],
    &["!step_#/model.pt", "step_#/state.json"],
    &["!step_#/model.pt", "step_#/tokens.npy", "step_#/COMPLETE"],
    &["!step_#/model/a.safetensors", "step_#/optimizer/o.pt", "step_#/meta.yaml"],
    &[
        "!checkpoint_#/model.safetensors",
        "!checkpoint_#/optimizer.bin",
        "!checkpoint_#/random_states_0.pkl",
        "checkpoint_#/custom_checkpoint_0.pkl",
    ],
];

/// All files of these steps but the one with this number.
fn saved(layout: &[&str], steps: impl Iterator<Item = u32>, missing: Option<usize>) -> Vec<String> {
    let of = |step: u32| {
        let kept = layout.iter().enumerate().filter(move |(at, _)| Some(*at) != missing);
        kept.map(move |(_, file)| file.trim_start_matches('!').replace('#', &step.to_string()))
    };
    steps.flat_map(of).collect()
}

/// Preemption ends saves at the same place again and again. One that came after fewer whole ones, or the third in a row,
/// shows what the program saves by now.
#[test]
fn torn_ones_in_a_row_are_no_measure() {
    for layout in LAYOUTS {
        for missing in (0..layout.len()).filter(|at| !layout[*at].starts_with('!')) {
            for whole in [2, 4] {
                for torn in 1..=3 {
                    let of = |from: u32, to: u32| (from..to).map(|number| (number + 1) * 100);
                    let mut files = saved(layout, of(0, whole), None);
                    files.extend(saved(layout, of(whole, whole + torn), Some(missing)));
                    let newest = if torn < 3 { whole } else { whole + torn };
                    let found = chosen(&files);
                    let expected = (newest * 100).to_string();
                    assert!(
                        found.contains(&expected),
                        "{layout:?} {missing} {whole} {torn}: {found}"
                    );
                }
            }
        }
    }
}

/// Every second save ends early.
#[test]
fn torn_ones_between_whole_ones_stay_torn() {
    for layout in LAYOUTS {
        for missing in (0..layout.len()).filter(|at| !layout[*at].starts_with('!')) {
            let mut files = saved(layout, [100, 200].into_iter(), None);
            for step in [300, 500, 700] {
                files.extend(saved(layout, [step].into_iter(), Some(missing)));
                let found = chosen(&files);
                let expected = (step - 100).to_string();
                assert!(found.contains(&expected), "{layout:?} {missing} {step}: {found}");
                files.extend(saved(layout, [step + 100].into_iter(), None));
            }
        }
    }
}

/// More files of each thousandth step than of the others, of which the last ones are kept.
#[test]
fn milestones_with_more_files_make_no_others_torn() {
    // Two files of a step are companions from the third one on only.
    for layout in
        LAYOUTS.iter().filter(|layout| !layout[0].contains("rank") && !layout[0].contains("G_"))
    {
        let missing = layout.len() - 1;
        for (long, short, milestones) in [(1000, 500, 2), (1000, 500, 3), (300, 100, 2)] {
            let steps = (1..=milestones).map(|number| number * long);
            let last = milestones * long;
            // All are kept, or the last ones.
            for from in [0, last - long, last] {
                let rolling: Vec<u32> = (from..last + long)
                    .step_by(usize::try_from(short).expect("it fits"))
                    .filter(|step| step % long > 0 && *step > 0)
                    .collect();
                let mut files = saved(layout, steps.clone(), None);
                files.extend(saved(layout, rolling.iter().copied(), Some(missing)));
                let newest = rolling.last().expect("one").to_string();
                let found = chosen(&files);
                // Every second save may have ended early.
                let needed = if long / short == 2 { 3 } else { 2 };
                if rolling.len().min(milestones as usize) >= needed {
                    assert!(found.contains(&newest), "{layout:?} {rolling:?}: {found}");
                } else if from == last {
                    assert!(!found.contains(&newest), "{layout:?} {rolling:?}: {found}");
                    continue;
                }
                if layout.len() < 3 {
                    continue;
                }
                // One that lacks another file, too.
                let other = saved(layout, [last + long - short].into_iter(), None);
                let other = other.get(missing - 1).expect("it is there");
                files.retain(|file| file != other);
                let found = chosen(&files);
                assert!(!found.contains(&newest), "{layout:?} {rolling:?}: {found}");
            }
            // Saves that a signal asked for, at any steps.
            for odd in [[137, 290], [110, 170]] {
                let mut files = saved(layout, steps.clone(), None);
                let torn = odd.map(|more| last + more * long / 1000 + more % 2);
                files.extend(saved(layout, torn.into_iter(), Some(missing)));
                let found = chosen(&files);
                assert!(found.contains(&last.to_string()), "{layout:?} {torn:?}: {found}");
            }
        }
    }
}
