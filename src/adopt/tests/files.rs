//! Files that are not read to their end, and containers of one file.

use super::*;
use adopted::Line;
use proptest::prelude::*;

fn manifest(text: &str) -> Adopted {
    let read = Adopted::of("job.yaml", text, NONE);
    read.unwrap_or_else(|why| panic!("{}: {text}", why.en))
}

fn at(adopted: &Adopted, line: usize) -> impl Iterator<Item = &Line> {
    adopted.lines.iter().filter(move |one| (one.first..=one.last).contains(&line))
}

#[test]
fn unclosed_quotes_hide_only_what_follows() {
    for (open, shown) in [
        ("echo 'a", "'"),
        ("echo \"a", "\""),
        ("A=$(b", "$("),
        ("echo `a", "`"),
        ("echo \"$(b\"", "$("),
    ] {
        let script = format!("torchrun --nproc_per_node 2 a.py\n{open}\ntorchrun b.py\n");
        let adopted = adopted_with(&script, NONE);
        let text = &adopted.answers[0].script;
        let rest = format!("ranklaunch --nproc-per-node 2 -- a.py\n{open}\ntorchrun b.py\n");
        assert_eq!(*text, rest);
        let said = format!("the {shown} that begins here is never closed");
        for line in [2, 3] {
            assert!(
                at(&adopted, line).any(|one| {
                    one.class == Class::NotUnderstood && one.why.en.starts_with(&said)
                }),
                "{adopted:?}"
            );
        }
        let profile = &adopted.answers[0].profile;
        assert!(profile.is_none(), "the rest has no place in a profile");
        let refused = Adopted::of("a.sh", &format!("\n{open}\ntorchrun b.py\n"), NONE);
        let why = refused.expect_err("nothing before the quote").en;
        assert!(why.starts_with(&format!("the {shown} on line 2 is never closed")), "{why}");
    }
    let job = "kind: Pod\nspec:\n  containers:\n  - args:\n    - bash\n    - -c\n    - |\n      cd /w\n      echo 'a\n      torchrun b.py\n";
    let why = Adopted::of("job.yaml", job, NONE).expect_err("nothing before the quote").en;
    assert!(why.starts_with("line 9: the ' that begins here"), "{why}");
}

#[test]
fn containers_have_answers_of_their_own() {
    let job = "\
kind: PyTorchJob
metadata: {name: tune}
spec:
  pytorchReplicaSpecs:
    Master:
      template: {spec: {containers: [{name: pytorch, command: [accelerate, launch, --use_fsdp, a.py]}]}}
    Worker:
      template: {spec: {containers: [{name: pytorch, command: [accelerate, launch, --use_deepspeed, b.py]}]}}
    Eval:
      template: {spec: {containers: [{name: eval, command: [accelerate, launch, --use_fsdp, a.py]}]}}
";
    let adopted = manifest(job);
    let [first, second] = adopted.answers.as_slice() else { panic!("{adopted:?}") };
    assert_eq!(first.containers, ["Master/pytorch", "eval"]);
    assert_eq!(second.containers, ["Worker/pytorch"]);
    for (answer, file, mode) in [
        (first, "job-Master-pytorch.toml", "--use_fsdp"),
        (second, "job-Worker-pytorch.toml", "--use_deepspeed"),
    ] {
        let profile = answer.profile.as_ref().expect("a profile");
        assert_eq!(profile.file, file);
        assert!(profile.text.contains(mode), "{}", profile.text);
        assert!(answer.script.contains(&format!("\"--profile\", \"{file}\"")), "{}", answer.script);
    }
    let of = |at: usize| adopted.launches[at].container.as_deref();
    assert_eq!(of(0), Some("Master/pytorch, eval"));
    for lang in [Lang::En, Lang::Zh] {
        assert!(adopted.plain(lang).contains("Worker/pytorch"), "the container is named");
    }
}

#[test]
fn compose_commands_are_read_in_every_form() {
    let launch = "torchrun --nproc_per_node 2 a.py";
    for form in [
        format!("command: bash -c \"cd /w && {launch}\""),
        format!("command: sh -ec 'cd /w && {launch}'"),
        format!("command: [bash, -euo, pipefail, -c, \"cd /w && {launch}\"]"),
        format!("entrypoint: [sh, -c]\n    command: [\"cd /w && {launch}\"]"),
        format!("entrypoint: /bin/sh -c\n    command: '\"cd /w && {launch}\"'"),
        format!("entrypoint: /bin/sh -c\n    command:\n    - |\n      cd /w && {launch}"),
        format!("entrypoint: bash -c \"cd /w && {launch}\""),
        format!("command: >\n      bash -c \"cd /w\n      && {launch}\""),
    ] {
        let adopted = manifest(&format!("services:\n  train:\n    {form}\n"));
        let answer = &adopted.answers[0];
        assert_eq!(answer.script, "cd /w && ranklaunch --nproc-per-node 2 -- a.py\n", "{form}");
        assert_eq!(answer.containers, ["train"]);
    }
    // Compose itself splits a text, and knows no `&&`.
    let adopted = manifest("services:\n  train:\n    command: torchrun a.py --x && echo b\n");
    let words = "command: [\"ranklaunch\", \"--nproc-per-node\", \"1\", \"--\", \"a.py\", \"--x\", \"&&\", \"echo\", \"b\"]\n";
    assert_eq!(adopted.answers[0].script, words);
    // The shell runs its first item; the words behind it are lost, and with them the program.
    let lost = "services:\n  a: {command: torchrun a.py}\n  b:\n    entrypoint: [sh, -c]\n    command: torchrun b.py\n";
    let adopted = manifest(lost);
    assert!(at(&adopted, 5).any(|line| line.class == Class::NotUnderstood), "{adopted:?}");
    // Others give a text to a shell.
    let adopted = manifest("kind: RayJob\nspec:\n  entrypoint: cd /w && torchrun a.py\n");
    assert_eq!(adopted.answers[0].script, "cd /w && ranklaunch --nproc-per-node 1 -- a.py\n");
}

#[test]
fn deep_scripts_take_linear_time() {
    let of = |depth: usize| {
        let text = format!(
            "{}torchrun a.py\n{}",
            "if [ $A = 1 ]; then\necho a\n".repeat(depth),
            "fi\n".repeat(depth)
        );
        let fastest = |_| {
            let from = std::time::Instant::now();
            assert!(Adopted::of("a.sh", &text, NONE).is_ok());
            from.elapsed()
        };
        (0..3).map(fastest).min().unwrap_or_default()
    };
    let (small, large) = (of(500), of(8000));
    // Sixteen times the text; the square of that is 256.
    assert!(large < small * 64, "{small:?} {large:?}");
}

proptest! {
    /// Any launch line, cut anywhere by a quote: no line is lost, and what is before it is adopted.
    #[test]
    fn quotes_anywhere_lose_no_line(at in 0..200_usize, quote in "['\"`]|\\$\\(") {
        let text = "cd /w\ntorchrun --nproc_per_node 2 a.py --x 1\necho b\ntorchrun c.py\n";
        let at = at.min(text.len());
        let broken = format!("{}{quote}{}", &text[..at], &text[at..]);
        fuzz::script(broken.as_bytes());
        match Adopted::of("a.sh", &broken, NONE) {
            Ok(adopted) => prop_assert!(at > 10, "{adopted:?}"),
            Err(why) => prop_assert!(why.en.contains("never closed"), "{}", why.en),
        }
    }
}
