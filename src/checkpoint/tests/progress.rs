//! The progress that names tell.

use proptest::prelude::*;

use crate::progress::{Number, Place, Told, step_of, told};

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
        ("mp4.pt", None),
        ("resnet50.pt", None),
        ("llama-7b.safetensors", None),
        ("llama-3.1.safetensors", None),
        ("gpt_125m.pt", None),
        ("model-00001-of-00003.safetensors", None),
        ("step_3_of_10.pt", Some(3)),
        ("12.pt", Some(12)),
        ("model020000.pt", Some(20_000)),
        ("model_acc_93.pt", None),
        ("ppo_reward_350.pt", None),
        ("ppo_mean_return_350.pt", None),
        ("asr_wer_12.pt", None),
        ("unet_dice_91.pt", None),
        ("ner_f1_88.pt", None),
        ("val_93.pt", None),
        ("interval_500.pt", Some(500)),
        ("seed_42_last.pt", None),
        ("resnet_50_best.pth", None),
        ("llama_tp2_step_100.pt", Some(100)),
        ("epoch_3_mAP_41.pt", None),
        ("ema_0.9999_020000.pt", Some(20_000)),
        ("checkpoint_99999999999999999999999.pt", None),
        ("3step-8", Some(8)),
        // A unit, and a fraction.
        ("ckpt-9k.pt", Some(9_000)),
        ("ckpt-10k.pt", Some(10_000)),
        ("step_1.5M.pt", Some(1_500_000)),
        ("ckpt-7b.pt", Some(7)),
        ("step-1.25.pt", None),
        ("step_1e6.pt", Some(1_000_000)),
        ("step_1.5e3.pt", Some(1500)),
        ("step_1e6f.pt", Some(1)),
        ("step_1,000,000.pt", Some(1_000_000)),
        ("step_999,000.pt", Some(999_000)),
        ("step_1,00.pt", Some(1)),
        ("step_1_000_000.pt", Some(1_000_000)),
        ("step_1_000_0000.pt", Some(1)),
        ("step_100_512.pt", Some(100)),
        ("checkpoint_1_500.pt", Some(500)),
        ("megatron_gpt--val_loss=3.50-step=100-consumed_samples=25600.0", Some(100)),
        ("model-consumed_samples=25600.0.ckpt", Some(25_600)),
        ("samples=256-step=3.pt", Some(3)),
        // Ranks.
        ("rank_1.pt", None),
        ("mp_rank_01", None),
        ("model_world_size_2_rank_1.pt", None),
        ("ep0-ba200-rank0.pt", Some(200)),
        ("0050000-rank3.pt", Some(50_000)),
        ("rank3-step7.pt", Some(7)),
        // fairseq.
        ("checkpoint_1_10000.pt", Some(10_000)),
        ("checkpoint2.pt", Some(2)),
        ("checkpoint_20240131_120000.pt", None),
        ("checkpoint-500-2.pt", Some(500)),
        // Words behind their number.
        ("model_1000_steps.pt", Some(1000)),
        ("3000steps.pt", Some(3000)),
        ("checkpoint_10_epoch_3.pth", Some(10)),
        // No steps.
        ("checkpoint-epoch3.pth", None),
        ("epoch_4", None),
        ("epoch3_batch500.pt", None),
        ("CKPT+2024-01-31+12-00-00+00", None),
        ("ckpt-2024-01-31.pt", None),
        ("2024-01-01_step_100.pt", Some(100)),
        ("last-v1.ckpt", None),
    ] {
        assert_eq!(step_of(name), step, "{name}");
    }
}

#[test]
fn names_of_a_series_stand_in_its_order() {
    for ascending in [
        &["step-1.pt", "step-1.25.pt", "step-1.5.pt", "step-2.pt"][..],
        &["ckpt-500.pt", "ckpt-9k.pt", "ckpt-10k.pt", "ckpt-1.5M.pt"],
        &["checkpoint_1_9000.pt", "checkpoint_1_10000.pt", "checkpoint_2_10001.pt"],
        &["epoch3_batch500.pt", "epoch3_batch1000.pt", "epoch4_batch1.pt"],
        &["epoch-9.pt", "epoch10.pt"],
        &["2024-01-31_09-00-00", "2024-01-31_12-00-00", "2024-02-01", "2024-02-01T00:00:01"],
        &["ckpt_20240131_120000.pt", "ckpt_20240131_120001.pt", "ckpt_20240201.pt"],
        &["ep0-ba90-rank0.pt", "ep0-ba200-rank0.pt", "ep1-ba201-rank0.pt"],
    ] {
        let places: Vec<Place> = ascending.iter().filter_map(|name| told(name).place()).collect();
        assert_eq!(places.len(), ascending.len(), "{ascending:?}");
        assert!(places.is_sorted_by(|one, next| one < next), "{ascending:?}");
    }
}

#[test]
fn nearest_folder_tells_what_a_name_does_not() {
    let of = |folders: &[&str], name: &str| {
        let above =
            folders.iter().fold(Told::default(), |above, folder| Told::of_folder(folder, above));
        told(name).within(above).0.place()
    };
    let step = |step| Some(Place::Step(Number::of(step)));
    for (folders, name, place) in [
        (&["step-00002000"][..], "lit_model.pth", step(2000)),
        (&["step_200"], "rank_1.pt", step(200)),
        (&["step_200"], "1.pt", step(200)),
        (&["global_step_20", "actor"], "model_world_size_2_rank_1.pt", step(20)),
        (&["step_1", "step_2"], "a.pt", step(2)),
        (&["step_1"], "step_3.pt", step(3)),
        (&["version_0", "000-DiT"], "last.pt", None),
        (&["version_0", "checkpoints"], "0050000.pt", step(50_000)),
        (&["epoch_3"], "batch_7.pt", Some(Place::Epoch(Number::of(3), Some(Number::of(7))))),
        (&["epoch_3"], "last.pt", Some(Place::Epoch(Number::of(3), None))),
    ] {
        assert_eq!(of(folders, name), place, "{folders:?} {name}");
    }
}

proptest! {
    #[test]
    fn later_steps_stand_later_whatever_surrounds_them(
        before in "[a-z]{0,4}[-_]?", word in "step[-_=]?|iter_|global_step|steps_|ckpt-",
        after in "(-rank[0-9]{1,3})?(-loss=[0-9]\\.[0-9]{1,3})?\\.(pt|ckpt)",
        one in 0_u64..100_000, two in 0_u64..100_000,
    ) {
        let name = |step| format!("{before}{word}{step}{after}");
        prop_assert_eq!(step_of(&name(one)), Some(one));
        let [one_place, two_place] = [one, two].map(|step| told(&name(step)).place());
        prop_assert_eq!(one_place.cmp(&two_place), one.cmp(&two));
    }
}
