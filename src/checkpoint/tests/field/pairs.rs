//! Pairs of files of which one is far larger: the weights, and all else that the training needs.

use super::*;

/// The larger one of the last saves was not written. Numbers without a word are steps, although only two are left of it.
#[test]
fn weights_whose_state_was_not_written_are_behind() {
    for [small, large] in [
        ["g_#.pt", "do_#.pt"],
        ["gen_#.pth", "all_#.pth"],
        ["a_000#.pt", "b_000#.pt"],
        ["m/g_#.pt", "m/do_#.pt"],
    ] {
        for whole in 2..=4 {
            for torn in 0..=2 {
                let mut files: Vec<(String, usize)> = Vec::new();
                for save in 1..=whole + torn {
                    let of = |name: &str| name.replace('#', &format!("{}000", 5 * save));
                    files.push((of(small), 9000));
                    if save <= whole {
                        files.push((of(large), 50_000));
                    }
                }
                let all: Vec<(&str, usize)> =
                    files.iter().map(|(name, bytes)| (name.as_str(), *bytes)).collect();
                let found = first_whole(sized(&all));
                let expected = format!("{}000.", 5 * whole);
                assert!(found.contains(&expected), "{small} {whole} {torn}: {found}");
            }
        }
    }
    // A number of another kind is no step, and weights alone are all that there is.
    let alone =
        [("g_100.pt", 9000), ("g_200.pt", 9000), ("g_300.pt", 9000), ("resnet_50.pt", 50_000)];
    assert_eq!(first_whole(sized(&alone)), "g_300.pt");
    let other = [&alone[..], &[("resnet_101.pt", 50_000)]].concat();
    assert_eq!(first_whole(sized(&other)), "g_300.pt");
}

/// Averages and buffers are written each 100 steps, and the state each 400.
#[test]
fn what_is_written_more_often_is_no_measure_and_not_chosen() {
    for (often, state) in [
        ("ema_#.pt", &["model_#.pt", "optim_#.pt"][..]),
        ("polyak_#.pt", &["model_#.pt"]),
        ("ema_0.999_#.pt", &["ckpt_#.pt", "optimizer_#.pt"]),
        ("buffer/replay_buffer_#.pt", &["ckpt_#.pt"]),
        ("replay/step_#.pt", &["ckpt_#.pt", "ckpt_#_optim.pt"]),
        ("run/buffer/rb_#.pt", &["run/agent_#.pt"]),
    ] {
        for every in [200, 400] {
            for last in [700, 800, 1100, 1200] {
                for kept in 1..=state.len() {
                    let mut files: Vec<(String, usize)> = Vec::new();
                    let newest = last / every * every;
                    for step in (100..=last).step_by(100) {
                        let of = |name: &str| name.replace('#', &step.to_string());
                        files.push((of(often), 9000));
                        let count = if step == newest { kept } else { state.len() };
                        let state = state.iter().take(count).filter(|_| step % every == 0);
                        files.extend(state.map(|name| (of(name), 9000)));
                    }
                    // Two whole ones show what belongs to each.
                    if kept < state.len() && newest / every < 3 {
                        continue;
                    }
                    let all: Vec<(&str, usize)> =
                        files.iter().map(|(name, bytes)| (name.as_str(), *bytes)).collect();
                    let whole = if kept < state.len() { newest - every } else { newest };
                    let expected = state[0].replace('#', &whole.to_string());
                    let found = sized(&all);
                    assert_eq!(
                        first_whole(found.clone()),
                        expected,
                        "{often} {state:?} {every} {last} {kept}: {found:?}"
                    );
                }
            }
        }
    }
}
