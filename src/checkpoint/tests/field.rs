//! Layouts of public projects as properties over steps, ranks and names: the newest whole state is chosen, and a missing
//! file is noticed.

mod beside;
mod epochs;
mod newest;
mod nodes;
mod numbers;
mod pairs;
mod ranks;
mod shapes;

use super::*;
use crate::tests::layouts::{named, names};
use crate::tests::programs::sized;

/// The first whole one of these files.
fn chosen(files: &[String]) -> String {
    first_whole(names(&files.iter().map(String::as_str).collect::<Vec<_>>()))
}

fn first_whole(all: Vec<String>) -> String {
    let is_whole = |name: &String| !name.contains(": ");
    all.into_iter().find(is_whole).unwrap_or_default()
}

/// The files of all ranks of one step: `R` is the rank in the job, `L` that on its node `N`, `#` the step.
fn of_ranks(layout: &str, step: u32, (nodes, each): (u32, u32)) -> Vec<String> {
    let name = |rank: u32| {
        let name = layout.replace('#', &step.to_string()).replace('R', &rank.to_string());
        name.replace('N', &(rank / each).to_string()).replace('L', &(rank % each).to_string())
    };
    (0..nodes * each).map(name).collect()
}

/// `R` is the rank in the job, `L` that on its node `N`.
#[test]
fn global_rank_beside_coordinates_is_that_of_one_checkpoint() {
    for layout in [
        "ckpt_#_rank_R_tp_L_pp_N.pt",
        "ckpt_#_tp_L_pp_N_rank_R.pt",
        "step_#/dp_rank_N_tp_rank_L_global_rank_R.pt",
        "step_#/local_rank_L_rank_R.pt",
        "step_#/shardR_rankR.pt",
        "step_#_shardN_rankR.pt",
        "step_#_rankR_mpL.pt",
        "step_#/rankR_mpL.pt",
        "epoch_#_rank_R_tp_L.pt",
        "step_#/replica_N_rank_R.pt",
        "step_#_stageN_rankR.pt",
        "step_#_hostN_rankR.pt",
        "step_#_nodeN_rankR.pt",
        "step_#_nodeN_rankL.pt",
        "step_#_nodeN_local_rankL.pt",
        "dp_0.1_step_#_rank_R.pt",
        "llama_tp2_pp2_step_#_rank_R.pt",
    ] {
        for (nodes, each) in [(2, 2), (2, 4), (3, 1), (1, 4)] {
            let of = |step: u32| of_ranks(layout, step, (nodes, each));
            let all = [of(100), of(200), of(300)].concat();
            let newest = chosen(&all);
            assert!(newest.contains("300"), "{layout} {nodes}: {newest}");
            assert!(chosen(&of(300)).contains("300"), "{layout} {nodes}");
            let count = of(300).len();
            for missing in 0..count {
                let mut torn = all.clone();
                torn.remove(2 * count + missing);
                assert!(chosen(&torn).contains("200"), "{layout} {nodes}: {}", chosen(&torn));
                torn.drain(..count);
                assert!(chosen(&torn).contains("200"), "{layout} {nodes}: {}", chosen(&torn));
            }
        }
    }
}

/// Files that were written at these seconds.
fn written(files: &[(String, u64)]) -> tempfile::TempDir {
    let folder = made(&files.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>());
    for (name, seconds) in files {
        let file = std::fs::File::options().write(true).open(folder.path().join(name));
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000 + seconds);
        file.and_then(|file| file.set_modified(at)).expect("its time is set");
    }
    folder
}

/// Results and merged weights in the folders of older checkpoints, written after the next save began.
#[test]
fn later_files_in_older_folders_are_no_measure() {
    let accelerate: &[&str] = &["model.safetensors", "optimizer.bin", "random_states_0.pkl"];
    for saved in [
        &["model.pt", "optimizer.pt"][..],
        &["rank_0.pt", "rank_1.pt"],
        &["model.pt"],
        &["actor/model_world_size_2_rank_0.pt", "actor/model_world_size_2_rank_1.pt", "data.pt"],
        accelerate,
    ] {
        for more in [
            "eval_results.json",
            "samples.png",
            "eval/results.json",
            "hf/model.safetensors",
            "actor_hf/model-00001-of-00001.safetensors",
            "merged.safetensors",
        ] {
            for steps in 2..5_u64 {
                for after in [steps * 600, 700] {
                    let of = |step: u64| {
                        let saved = (0..).zip(saved);
                        saved.map(move |(second, file)| {
                            (format!("step_{step}00/{file}"), step * 600 + second)
                        })
                    };
                    let later = |step: u64| {
                        (format!("step_{step}00/{more}"), (step * 600 + after).max(step * 600))
                    };
                    let mut files: Vec<(String, u64)> = (1..=steps).flat_map(of).collect();
                    files.extend((1..steps).map(later));
                    let newest = first_whole(named(&written(&files)));
                    assert!(
                        newest.starts_with(&format!("step_{steps}00")),
                        "{saved:?} {more} {steps} {after}: {:?}",
                        named(&written(&files))
                    );
                    // What a save lacks is missed as before.
                    let last = files
                        .iter()
                        .position(|(name, _)| name == &of(steps).last().expect("one").0);
                    files.remove(last.expect("it is there"));
                    let older = first_whole(named(&written(&files)));
                    assert!(!older.starts_with(&format!("step_{steps}00")), "{more}: {older}");
                }
            }
        }
    }
}

/// Saves that overlap: what the next one lacks is missed, although it came to the one before when the next had begun.
#[test]
fn states_of_overlapping_saves_stay_a_measure() {
    for (first, second) in
        [("actor.pt", "critic.pt"), ("model.pt", "ema.pt"), ("weights.pt", "COMPLETE")]
    {
        let of = |step: u64, at: [u64; 2]| {
            [(format!("step_{step}00/{first}"), at[0]), (format!("step_{step}00/{second}"), at[1])]
        };
        let mut files = [of(1, [0, 1]), of(2, [10, 11]), of(3, [20, 31])].concat();
        files.push((format!("step_400/{first}"), 30));
        let newest = first_whole(named(&written(&files)));
        assert!(newest.starts_with("step_300"), "{second}: {newest}");
    }
}

/// Copies of folders have times of their own, and a torn one stays torn.
#[test]
fn files_of_copied_folders_stay_a_measure() {
    let saved = ["model.pt", "optimizer.pt", "state.json"];
    for missing in 0..saved.len() {
        for order in [[1, 2, 3], [3, 2, 1], [3, 1, 2], [1, 3, 2]] {
            let of = |step: u64| {
                let at = order.iter().position(|one| *one == step).unwrap_or_default() as u64;
                let saved = (0..).zip(saved);
                saved.map(move |(second, file)| (format!("step_{step}00/{file}"), at * 9 + second))
            };
            let mut files: Vec<(String, u64)> = (1..=3).flat_map(of).collect();
            files.remove(6 + missing);
            assert_eq!(first_whole(named(&written(&files))), "step_200", "{order:?} {missing}");
        }
    }
}

/// `0`, `1` and `2` of a sweep are runs, and the last one that was written is the newest.
#[test]
fn numbered_folders_of_a_sweep_are_runs() {
    for (files, newest) in [
        (&["checkpoints/best.ckpt", "checkpoints/last.ckpt"][..], "checkpoints/last.ckpt"),
        (&["weights/best.pt", "weights/last.pt"], "weights/last.pt"),
        (&["weights/last.pt"], "weights/last.pt"),
        (&["a/version_0/checkpoints/last.ckpt"], "a/version_0/checkpoints/last.ckpt"),
        (&["checkpoints/epoch_1.ckpt", "checkpoints/epoch_2.ckpt"], "checkpoints/epoch_2.ckpt"),
        (&["step_100/model.pt", "step_200/model.pt"], "step_200/model.pt"),
    ] {
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
            let mut all = Vec::new();
            for (turn, run) in (0..).zip(order) {
                let of =
                    |(second, file): (u64, &&str)| (format!("{run}/{file}"), turn * 600 + second);
                all.extend((0..).zip(files).map(of));
            }
            let expected = format!("{}/{newest}", order[2]);
            assert_eq!(first_whole(named(&written(&all))), expected, "{order:?}");
        }
    }
    for files in [
        &["model.pt", "optimizer.pt"][..],
        &["model/model.pt", "optim/optimizer.pt"],
        &["model/final_norm.weight.pt", "model/head.weight.pt"],
    ] {
        for order in [[0, 1, 2, 3], [3, 2, 1, 0]] {
            let of = |(turn, epoch): (u64, u32)| {
                files.iter().map(move |file| (format!("{epoch}/{file}"), turn * 600))
            };
            let all: Vec<(String, u64)> = (0..).zip(order).flat_map(of).collect();
            assert_eq!(first_whole(named(&written(&all))), "3", "{files:?} {order:?}");
        }
    }
}

/// The first of `files` is what is chosen of three steps, whichever is written first. `#` is the step.
fn is_first(files: [(&str, usize); 2], steps: [&[u32]; 2]) {
    for turn in [[0, 1], [1, 0]] {
        let mut all: Vec<(String, usize)> = Vec::new();
        for step in [100, 200, 300] {
            for at in turn.into_iter().filter(|at| steps[*at].contains(&step)) {
                let (name, bytes) = files[at];
                all.push((name.replace('#', &step.to_string()), bytes));
            }
        }
        let all: Vec<(&str, usize)> =
            all.iter().map(|(name, bytes)| (name.as_str(), *bytes)).collect();
        let expected = files[0].0.replace('#', "300");
        assert_eq!(first_whole(sized(&all)), expected, "{files:?} {turn:?}");
    }
}

/// Averages in fp32, critics, buffers and optimizers are larger than the model, and are not what training starts from.
#[test]
fn size_of_what_stands_beside_the_model_is_no_measure() {
    for (model, other) in [
        ("step_#.pt", "ema_step_#.pt"),
        ("step_#.pt", "step_#_ema.pt"),
        ("model_#.pt", "ema_#.pt"),
        ("model_#.pt", "ema_0.9999_#.pt"),
        ("ckpt_#.pt", "swa_#.pt"),
        ("step_#.pt", "averaged_step_#.pt"),
        ("student_step_#.pt", "teacher_step_#.pt"),
        ("step_#.pt", "ema/step_#.pt"),
        ("actor_step_#.pt", "critic_step_#.pt"),
        ("actor/step_#.pt", "critic/step_#.pt"),
        ("_actor/step_#.pt", "_critic/step_#.pt"),
        ("policy_#.pt", "value_#.pt"),
        ("policy_#.pt", "reward_model_#.pt"),
        ("actor_#.pt", "qf_#.pt"),
        ("agent_#.pt", "replay_buffer_#.pt"),
        ("agent_#.pt", "buffer_#.pt"),
        ("step_#.pt", "step_#_buffer.pt"),
        ("model/step_#.pt", "buffer/step_#.pt"),
        ("step_#.pt", "replay_buffer/step_#.pt"),
        ("model_#.pt", "optimizer_#.pt"),
        ("model/step_#.pt", "optimizer/step_#.pt"),
        ("generator_#.pt", "discriminator_#.pt"),
        ("G_#.pth", "D_#.pth"),
        ("netG_epoch_#.pth", "netD_epoch_#.pth"),
        ("netG/step_#.pth", "netD/step_#.pth"),
        ("model_#.pt", "polyak_#.pt"),
        ("vae_step_#.pt", "disc_step_#.pt"),
    ] {
        for bytes in [9000, 18_000, 36_000] {
            for count in 1..=3 {
                let steps = [100, 200, 300];
                let steps = steps.get(3 - count..).expect("some");
                is_first([(model, 9000), (other, bytes)], [steps, steps]);
            }
        }
    }
}

/// The average in fp32 is larger than the model, which is nothing without its optimizer.
#[test]
fn model_beside_a_larger_average_needs_its_optimizer() {
    let of = |step: u32| {
        [("model", 9000), ("ema", 18_000), ("optimizer", 36_000)]
            .map(|(kind, bytes)| (format!("step_{step}_{kind}.pt"), bytes))
    };
    let all = [of(100), of(200), of(300)].concat();
    let all: Vec<(&str, usize)> = all.iter().map(|(name, bytes)| (name.as_str(), *bytes)).collect();
    assert_eq!(first_whole(sized(&all)), "step_300_model.pt");
    for missing in 0..3 {
        let mut torn = all.clone();
        torn.remove(6 + missing);
        assert_eq!(first_whole(sized(&torn)), "step_200_model.pt", "{:?}", all[6 + missing]);
    }
}

/// The files of a set say how many there are of each axis.
#[test]
fn axes_that_say_how_many_they_are_are_whole() {
    for (first, axes) in [(0, [1, 1]), (0, [2, 1]), (0, [1, 4]), (0, [2, 2]), (1, [1, 2])] {
        let of = |step: u32| {
            let [tp, pp] = axes;
            let name = move |rank: u32| {
                let (t, p) = (first + rank % tp, first + rank / tp);
                format!("{step}/optimizer/o_pp-{p}-of-{pp}_tp-{t}-of-{tp}.pt")
            };
            (0..tp * pp).map(name).chain([format!("{step}/model/w.safetensors")])
        };
        let files: Vec<String> = [1000, 2000].into_iter().flat_map(of).collect();
        assert_eq!(chosen(&files), "2000", "{axes:?}");
    }
}

/// Programs keep the last states, and weights of all steps.
#[test]
fn states_come_before_weights_in_folders_beside() {
    for weights in ["weights", "hf", "exports", "merged", "models", "a_weights"] {
        for states in ["states", "state", "training_state", "train_states", "trainer_state"] {
            for bytes in [9000, 12_000, 27_000] {
                let [states, weights] = [states, weights].map(|name| format!("{name}/step_#.pt"));
                for kept in 1..=3 {
                    let all = [100, 200, 300];
                    let kept = all.get(3 - kept..).expect("some");
                    is_first([(&states, bytes), (&weights, 9000)], [kept, &all]);
                }
            }
        }
    }
    let all: &[u32] = &[100, 200, 300];
    is_first([("ckpt/step_#.pt", 9000), ("weights/step_#.pt", 9000)], [all, all]);
    is_first([("ckpt/step_#.pt", 9000), ("state_dicts/step_#.pt", 9000)], [all, all]);
}

#[test]
fn words_of_a_longer_name_put_nothing_aside() {
    for (name, is_aside) in [
        ("4-year-old", false),
        ("10_days_old", false),
        ("good_vs_bad", false),
        ("young_and_old", false),
        ("old_town", false),
        ("bad_apple_run", false),
        ("run_old", true),
        ("run.bak", true),
        ("old", true),
        ("old_run", true),
        ("old_checkpoints", true),
        ("bad-model-3", true),
    ] {
        let aside = format!("{name}/step_300.pt");
        let found = sized(&[("run/step_200.pt", 9000), (&aside, 9000)]);
        assert_eq!(found[0] != aside, is_aside, "{found:?}");
    }
}

/// Places in a file that cannot be, of torch.distributed.checkpoint.
#[test]
fn negative_places_of_items_are_damage() {
    let text = |text: &str| {
        let length = u32::try_from(text.len()).expect("short").to_le_bytes();
        [b"X".as_slice(), &length, text.as_bytes()].concat()
    };
    let number = |number: i32| [b"J".as_slice(), &number.to_le_bytes()].concat();
    for (offset, length, is_whole) in [(0, 5, true), (0, -5, false), (-1, 5, false)] {
        let fields = [
            [text("relative_path"), text("__0_0.distcp")].concat(),
            [text("offset"), number(offset)].concat(),
            [text("length"), number(length)].concat(),
        ];
        let item = [b"}(".to_vec(), fields.concat(), b"u".to_vec()].concat();
        let all = [b"\x80\x02}".to_vec(), text("storage_data"), b"}K\0".to_vec(), item];
        let folder = made(&["step-1/__0_0.distcp"]);
        let metadata = [all.concat(), b"ss.".to_vec()].concat();
        for (name, content) in [(".metadata", metadata.as_slice()), ("__0_0.distcp", b"items")] {
            std::fs::write(folder.path().join("step-1").join(name), content).expect("written");
        }
        assert_eq!(found(&folder)[0].is_whole(), is_whole, "{offset} {length}");
    }
}

/// A program writes its average behind what accelerate saves.
#[test]
fn weights_behind_a_save_of_accelerate_are_missed_from_the_second_on() {
    let of = |step: u32| {
        ["model.safetensors", "optimizer.bin", "random_states_0.pkl", "ema.safetensors"]
            .map(|file| format!("checkpoint_{step}/{file}"))
    };
    let mut files = [of(1), of(2)].concat();
    assert_eq!(chosen(&files), "checkpoint_2");
    files.pop();
    assert_eq!(chosen(&files), "checkpoint_1");
}

/// A number without a word is a step where there are several, so the weights beside the states are told by their size.
#[test]
fn weights_beside_numbered_states_are_exports() {
    for (state, weights) in [
        ("model_#.pt", "model_#_weights.pt"),
        ("unet_#.pt", "unet_#_export.pt"),
        ("resnet_#.pt", "resnet_#_infer.pt"),
    ] {
        let of = |step: u32| {
            let name = |name: &str| name.replace('#', &step.to_string());
            [(name(state), 44_000), (name(weights), 15_000)]
        };
        let files = [of(100), of(200), of(300)].concat();
        let files: Vec<(&str, usize)> =
            files.iter().map(|(name, size)| (name.as_str(), *size)).collect();
        let newest = first_whole(sized(&files));
        assert_eq!(newest, state.replace('#', "300"));
    }
}

#[test]
fn later_stage_of_all_ranks_is_the_newest() {
    let of = |stage: u32, at: u64| {
        (0..2).map(move |rank| (format!("stage{stage}_rank{rank}.pt"), at + rank))
    };
    let files: Vec<(String, u64)> = of(1, 0).chain(of(2, 100)).collect();
    assert!(first_whole(named(&written(&files))).starts_with("stage2"));
}

#[test]
fn rank_of_an_adapter_is_no_rank_of_the_job() {
    for run in ["lora_rank16", "llama-lora-rank-8", "LoRA_rank_64_alpha_128"] {
        for name in ["checkpoint-#/model.pt", "step_#.pt", "epoch_#.pt"] {
            let of = |step: u32| format!("{run}/{}", name.replace('#', &step.to_string()));
            let newest = chosen(&[of(100), of(200), of(300)]);
            assert!(newest.contains("300"), "{run}/{name}: {newest}");
        }
    }
}

/// After a power cut a file may have its length and none of its content. A pickle never begins with zeros.
#[test]
fn pickle_of_zeros_is_torn() {
    let files: Vec<(String, u64)> = (1..=3)
        .flat_map(|step| {
            [(format!("step_{step}00/model.pt"), step), (format!("step_{step}00/t.pkl"), step)]
        })
        .collect();
    let folder = written(&files);
    assert!(first_whole(named(&folder)).starts_with("step_300"));
    std::fs::write(folder.path().join("step_300/t.pkl"), [0; 64]).expect("written");
    assert!(first_whole(named(&folder)).starts_with("step_200"));
}

/// Metadata that list nothing, or are larger than what is read.
#[test]
fn metadata_without_items_or_end_are_not_whole() {
    use crate::tests::programs::write_dcp;
    let empty = b"\x80\x02}X\x0c\0\0\0storage_data}s.";
    for layout in ["step_#", "step_#/model", "checkpoint-#/model"] {
        let folder = tempfile::tempdir().expect("a folder");
        let of = |step: u32| folder.path().join(layout.replace('#', &step.to_string()));
        for step in [100, 200] {
            std::fs::create_dir_all(of(step)).expect("it is made");
            write_dcp(&of(step));
        }
        assert!(first_whole(named(&folder)).contains("200"), "{layout}");
        let metadata = of(200).join(".metadata");
        std::fs::write(&metadata, empty).expect("it is written");
        let found = named(&folder);
        assert!(found[0].ends_with("lists no file: nothing was saved"), "{found:?}");
        assert!(first_whole(found).contains("100"));
        let file = std::fs::File::create(&metadata).expect("it is made");
        file.set_len(folder::INDEX + 1).expect("it has its size");
        let found = named(&folder);
        assert!(found[0].contains("has 268435457 bytes, at most 268435456 are read"), "{found:?}");
        assert!(first_whole(found).contains("100"));
    }
}
