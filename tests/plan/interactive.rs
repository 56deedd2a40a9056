//! `interactive` with several ranks: the refusal names the place that set it.

use harness::Launcher;

#[test]
fn refusal_names_the_place_that_set_interactive() {
    let refused = |words: &[&str], variable: Option<&str>, profile: &str| {
        let line = ["plan", "--engine", "direct", "--device", "cpu", "--nproc-per-node", "2"];
        let launcher = Launcher::new(line).args(words).args(["--profile", "./job.toml"]);
        std::fs::write(launcher.folder().join("job.toml"), profile).expect("written");
        let launcher = launcher.args(["--", "true"]);
        match variable {
            Some(value) => launcher.env("RANKLAUNCH_INTERACTIVE", value),
            None => launcher,
        }
        .run()
    };
    let profile = "[job]\ninteractive = true\n";
    for (words, variable, profile, place) in [
        (&["--interactive"][..], None, "", "--interactive"),
        (&[], Some("true"), "", "RANKLAUNCH_INTERACTIVE"),
        (&[], None, profile, "job.toml:2"),
        (&["--interactive"], Some("false"), profile, "--interactive"),
    ] {
        let ended = refused(words, variable, profile).expect_code(64);
        let said =
            format!("interactive [{place}] leaves the terminal to one rank, but nproc_per_node");
        assert!(
            ended.out.contains(&said) && ended.out.contains("(interactive.nproc)"),
            "{}",
            ended.err
        );
        let is_named = ended.out.contains("--interactive");
        assert_eq!(is_named, place == "--interactive", "{}", ended.out);
    }
    refused(&[], Some("false"), profile).expect_code(0);
}
