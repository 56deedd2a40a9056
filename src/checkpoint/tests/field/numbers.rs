//! Names with several numbers: the step is the one that differs within a series.

use super::*;

/// Files with so many seconds between them, the last of these first.
fn reversed(files: Vec<String>) -> tempfile::TempDir {
    let files: Vec<(String, u64)> = files.into_iter().rev().zip((0..).step_by(60)).collect();
    written(&files)
}

/// `#` is the step. Copies are written in another order than the originals, so the number alone tells the newest one.
#[test]
fn number_that_differs_is_the_step() {
    for (layout, torn) in [
        // The number of a model or a run within a word.
        (&["gpt2_#.pt"][..], None),
        (&["gpt2_#.pt", "gpt2_#_optim.pt"], Some(1)),
        (&["sd15_#.pt", "sd15_optimizer_#.pt"], Some(1)),
        (&["llama3_8b_#.pt"], None),
        (&["llama3_8b_#.pt", "llama3_8b_#_optimizer.pt"], Some(1)),
        (&["yolov8_#.pt"], None),
        (&["config7_step#.pt"], None),
        (&["config7_#.pt"], None),
        (&["args2_step#/model.pt", "args2_step#/optimizer.pt"], Some(1)),
        (&["model_step#_rank0.pt", "opt_adamw_step#_rank0.pt"], Some(1)),
        (&["step#_rank0.pt", "step#_rank1.pt", "opt_adamw_step#_rank0.pt"], Some(1)),
        // One that is a word of its own.
        (&["vit_16_224_#.pt"], None),
        (&["vit_16_224_#.pt", "vit_16_224_#_optim.pt"], Some(1)),
        (&["run_3_#.pt", "run_3_#_optimizer.pt"], Some(1)),
        (&["exp_1_seed_42_#.pt"], None),
        (&["#_vit_16.pt"], None),
        (&["2024_#.pt", "2024_#_optim.pt"], Some(1)),
        // A word decides.
        (&["steps#_epoch4.pt"], None),
        (&["it#.pt", "it#_optimizer.pt"], Some(1)),
        (&["vit_b16_224_it#.pt", "vit_b16_224_it#_optimizer.pt"], Some(1)),
        (&["gemma-2b-it-4bit_step_#.pt", "gemma-2b-it-4bit_step_#_optim.pt"], Some(1)),
        (&["steps#_epoch4/model.pt", "steps#_epoch4/optimizer.pt"], Some(1)),
        (&["exp_1_step_#.pt", "exp_1_step_#_optim.pt"], Some(1)),
    ] {
        for steps in [[900, 1000, 1100], [4000, 8000, 12_000], [95, 200, 1024]] {
            let of =
                |step: u32| layout.iter().map(move |file| file.replace('#', &step.to_string()));
            let all: Vec<String> = steps.into_iter().flat_map(of).collect();
            let newest = first_whole(named(&reversed(all.clone())));
            let last = of(steps[2]).next().expect("one");
            assert!(last.starts_with(newest.as_str()) && !newest.is_empty(), "{all:?}: {newest}");
            let Some(missing) = torn else { continue };
            let missing = of(steps[2]).nth(missing).expect("it is there");
            let torn = all.into_iter().filter(|file| *file != missing).collect();
            let found = first_whole(named(&reversed(torn)));
            let before = of(steps[1]).next().expect("one");
            assert!(before.starts_with(found.as_str()), "{layout:?} without {missing}: {found}");
        }
    }
}

/// Without a word, two numbers that differ are no step, and neither are scores and hashes. The last that was written is the
/// newest.
#[test]
fn numbers_that_nobody_can_tell_apart_are_no_steps() {
    for files in [
        ["run_1_300.pt", "run_2_200.pt", "run_3_100.pt"],
        ["ner_f1_91.pt", "ner_f1_90.pt", "ner_f1_88.pt"],
        ["vit_top5_93.pt", "vit_top5_92.pt", "vit_top5_90.pt"],
        ["model_93749283.pt", "model_83749283.pt", "model_12749284.pt"],
        ["resnet50-91821763.pth", "resnet50-31821763.pth", "resnet50-11821763.pth"],
        ["vit_16-91821763.pth", "vit_16-31821763.pth", "vit_16-11821763.pth"],
        ["93749283/model.pt", "83749283/model.pt", "12749284/model.pt"],
        ["hpc_ckpt_3.ckpt", "hpc_ckpt_2.ckpt", "hpc_ckpt_1.ckpt"],
    ] {
        for turn in 0..3 {
            let mut files = files;
            files.rotate_left(turn);
            let files: Vec<String> = files.iter().map(|name| (*name).to_owned()).collect();
            let newest = files[0].clone();
            assert_eq!(first_whole(named(&reversed(files))), newest);
        }
    }
    // Round numbers and padded ones are steps.
    for files in [
        ["model_10000000.pt", "model_20000000.pt", "model_30000000.pt"],
        ["model_00000001.pt", "model_00000002.pt", "model_00000010.pt"],
        ["10000000/model.pt", "20000000/model.pt", "30000000/model.pt"],
        ["step_83749283.pt", "step_83749284.pt", "step_83749285.pt"],
    ] {
        let files: Vec<String> = files.iter().map(|name| (*name).to_owned()).collect();
        let newest = files[2].clone();
        assert_eq!(first_whole(named(&reversed(files))), newest);
    }
    // A hash beside a series is none of its steps, whenever it was written.
    for turn in 0..3 {
        let mut files = ["step_100.pt", "step_200.pt", "model_83749283.pt"];
        files.rotate_left(turn);
        let files: Vec<String> = files.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(first_whole(named(&reversed(files))), "step_200.pt");
    }
}

/// The job saved for its end after the last regular save, or before it.
#[test]
fn save_for_the_end_of_a_job_is_the_last_one() {
    let files = ["epoch=1-step=100.ckpt", "epoch=2-step=200.ckpt", "hpc_ckpt_2.ckpt"];
    let of = |at: [u64; 3]| {
        let files: Vec<(String, u64)> =
            files.iter().map(|name| (*name).to_owned()).zip(at).collect();
        first_whole(named(&written(&files)))
    };
    assert_eq!(of([100, 200, 270]), files[2]);
    assert_eq!(of([100, 200, 150]), files[1]);
}
