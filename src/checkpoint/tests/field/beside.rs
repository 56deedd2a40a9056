//! What is written beside the states: exports, averages and rollouts at steps of their own, and what was put aside.

use super::*;

/// The first whole one of these, each with so many bytes, in both orders of writing.
fn is_chosen(files: &[(String, usize)], expected: &str) {
    let mut all: Vec<(&str, usize)> =
        files.iter().map(|(name, bytes)| (name.as_str(), *bytes)).collect();
    for _ in 0..2 {
        assert_eq!(first_whole(sized(&all)), expected, "{all:?}");
        all.reverse();
    }
}

fn of(layout: &str, steps: &[u32], bytes: usize) -> Vec<(String, usize)> {
    steps.iter().map(|step| (layout.replace('#', &step.to_string()), bytes)).collect()
}

/// Every 500 steps, and the state every 1000.
#[test]
fn what_is_written_more_often_is_not_the_newest() {
    for (state, other) in [
        ("step_#.pt", "ema_#.pt"),
        ("model_#.pt", "ema_#.pt"),
        ("model_#.pt", "model_ema_#.pt"),
        ("step_#.pt", "ema/step_#.pt"),
        ("step_#/model.pt", "ema_#.pt"),
        ("policy_#.pt", "rollout_#.pt"),
        ("policy_step_#.pt", "rollouts_step_#.pt"),
        ("policy_#.pt", "rollouts/step_#.pt"),
        ("agent_#.pt", "replay_buffer_#.pt"),
        ("model_#.pt", "swa_#.pt"),
        ("epoch_#.pth", "ema_epoch_#.pth"),
    ] {
        for bytes in [900, 18_000] {
            let often: &[&[u32]] =
                &[&[500, 1000, 1500, 2000, 2500], &[1500, 2000, 2500], &[2500, 4500]];
            for others in often {
                let files = [of(state, &[1000, 2000], 9000), of(other, others, bytes)].concat();
                is_chosen(&files, &state.replace('#', "2000"));
            }
            // There is nothing else.
            let alone = of(other, &[500, 1000], bytes);
            assert!(first_whole(sized(&[(&alone[1].0, bytes)])).contains("1000"));
        }
        // The save of the model ended early.
        let torn = [of(state, &[1000, 2000], 9000), of(other, &[1000, 2000, 3000], 9000)].concat();
        let folder = written(&torn.iter().map(|(name, _)| (name.clone(), 0)).collect::<Vec<_>>());
        let path = folder.path().join(state.replace('#', "3000"));
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("it is made");
        std::fs::write(path, "PK").expect("it is written");
        assert_eq!(first_whole(named(&folder)), state.replace('#', "2000"), "{other}");
    }
}

/// Of later steps and of any size, in a folder that is named for them.
#[test]
fn weights_of_later_steps_are_no_state() {
    for share in ["hf", "exported", "hf_weights"] {
        for layout in
            ["@/step_#/model.safetensors", "@/step_#.safetensors", "@/step_#/pytorch_model.bin"]
        {
            for state in ["step_#.pt", "ckpt/step_#.pt", "#/model.pt", "epoch_#.pth"] {
                for bytes in [300, 20_000] {
                    let weights = layout.replace('@', share);
                    for steps in [&[300][..], &[200, 300]] {
                        let files = [of(state, &[100, 200], 9000), of(&weights, steps, bytes)];
                        is_chosen(&files.concat(), &state.replace('#', "200"));
                    }
                }
            }
        }
        // All that there is, and a run of its own.
        is_chosen(
            &of(&format!("{share}/step_#.pt"), &[100, 200], 9000),
            &format!("{share}/step_200.pt"),
        );
        let other = format!("b/{share}/step_#.pt");
        let files = [of("a/step_#.pt", &[100], 9000), of(&other, &[200], 9000)].concat();
        is_chosen(&files, &other.replace('#', "200"));
    }
}

/// The state of the last step is torn, and its weights are whole: the other steps have both.
#[test]
fn weights_of_a_torn_state_are_not_the_newest() {
    for (state, weights) in [
        ("ckpt/step_#.pt", "hf/step_#/model.safetensors"),
        ("ckpt/step_#.pt", "model/step_#.safetensors"),
        ("ckpt/step_#.pt", "a/step_#/model.safetensors"),
        ("state_#.pt", "model_#.safetensors"),
        ("step_#.pt", "step_#.safetensors"),
        ("step_#/state.pt", "step_#/model.safetensors"),
        ("optimizer_#.pt", "model_#.safetensors"),
    ] {
        for bytes in [3000, 9000] {
            let files =
                [of(state, &[100, 200], 9000), of(weights, &[100, 200, 300], bytes)].concat();
            let files: Vec<(&str, usize)> =
                files.iter().map(|(name, bytes)| (name.as_str(), *bytes)).collect();
            for cut in [&b""[..], b"PK", b"PK\x03\x04archive"] {
                let made = written(&[]);
                for (name, bytes) in &files {
                    let path = made.path().join(name);
                    std::fs::create_dir_all(path.parent().expect("one")).expect("it is made");
                    let content = match name.ends_with(".safetensors") {
                        true => safetensors(&vec![1; *bytes]),
                        false => {
                            archive(&[("data.pkl", b"\x80\x02N."), ("data/0", &vec![0; *bytes])])
                        }
                    };
                    std::fs::write(path, content).expect("it is written");
                }
                let torn = made.path().join(state.replace('#', "300"));
                std::fs::write(torn, cut).expect("it is written");
                let found = first_whole(named(&made));
                assert!(found.contains("200"), "{state} {weights} {bytes}: {found}");
            }
        }
    }
}

#[test]
fn names_of_what_failed_stand_behind_all_others() {
    for mark in ["backup", "backups", "trash", "failed", "_failed", "discarded"] {
        for layout in [
            "@/step_300.pt",
            "run_@/step_300.pt",
            "@_run/step_300.pt",
            "step_300_@/model.pt",
            "step_300_@.pt",
            "step_300.pt.@/model.pt",
        ] {
            let aside = layout.replace('@', mark).replace("__", "_");
            let files = [("step_200.pt".to_owned(), 9000), (aside.clone(), 9000)];
            is_chosen(&files, "step_200.pt");
            assert!(!first_whole(sized(&[(&aside, 9000)])).is_empty() || mark == "trash");
        }
    }
    for name in ["backup_policy_step_300.pt", "failed_or_not/step_300.pt", "trashcan/step_300.pt"] {
        assert_eq!(sized(&[("step_200.pt", 9000), (name, 9000)])[0], name);
    }
}
