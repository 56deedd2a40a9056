//! Seats and spares, beside every number of nodes.

use settings::Assumed;
use verdict::Severity;

use super::*;

/// The text and the hint of the refusal, else of the warnings.
fn words(told: &Told) -> String {
    let warnings =
        || told.notes.warnings.iter().map(|one| format!("{}; {}", one.text.en, one.hint.en));
    match &told.result {
        Err(refusal) => format!("{}; {}", refusal.text.en, refusal.hint.en),
        Ok(_) => warnings().collect(),
    }
}

/// Nodes are numbered through seats and spares, whoever counts them.
#[test]
fn spares_are_beside_the_seats() {
    let by_flag = |spares, nnodes: Option<u32>, env: &str| {
        let mut settings = undecided();
        settings.spares = flag("--spares", spares).expect("a flag");
        settings.nnodes = nnodes.and_then(|nnodes| flag("--nnodes", nnodes));
        settings.node_rank = nnodes.and_then(|_| flag("--node-rank", 5));
        tell(&settings, &host(env), &gpus(8)).line()
    };
    let six = |rank: u32| format!("WORLD_SIZE=6 RANK={rank} MASTER_ADDR=m MASTER_PORT=23456");
    // The platform's number has the spares as well, and --nnodes the seats only.
    assert_eq!(by_flag(2, None, &six(5)), "generic 4 5 m:23456");
    assert_eq!(by_flag(2, Some(4), "MASTER_ADDR=m MASTER_PORT=23456"), "flags 4 5 m:23456");
    assert_eq!(by_flag(2, None, &six(6)), "refused membership.rank");
    assert_eq!(by_flag(1, Some(4), "MASTER_ADDR=m"), "refused membership.rank");
    // Node 0 and one more have a seat at least, and an elastic job has none.
    assert_eq!(by_flag(4, None, &six(5)), "generic 2 5 m:23456");
    assert_eq!(by_flag(5, None, &six(5)), "refused membership.spares");
    assert_eq!(by_flag(1, None, ""), "refused membership.spares");
    assert_eq!(
        by_flag(1, None, "PET_NNODES=1:4 PET_RDZV_ENDPOINT=a:1 PET_RDZV_BACKEND=c10d"),
        "refused membership.spares"
    );
    assert_eq!(by_flag(u32::MAX, Some(4), "MASTER_ADDR=m"), "refused membership.number");
    let listed = |spares| {
        let mut settings = undecided();
        settings.spares = flag("--spares", spares).expect("a flag");
        settings.node_rank = flag("--node-rank", 2);
        settings.nodes = flag("--nodes", ["a", "b", "c"].map(str::to_owned).to_vec());
        tell(&settings, &host(""), &gpus(8)).line()
    };
    assert_eq!(listed(1), "flags 2 2 a:29500");
    assert_eq!(listed(2), "refused membership.spares");
}

/// Seats and spares beside each number of nodes that a platform starts.
#[test]
fn nodes_of_the_platform_are_seats_and_spares() {
    let settings = |seats: u32, spares: u32| {
        let mut settings = undecided();
        settings.spares = flag("--spares", spares).expect("a flag");
        settings.nnodes = flag("--nnodes", seats);
        settings
    };
    for (seats, spares, started) in (2..5)
        .flat_map(|seats| (1..4).flat_map(move |spares| (2..9).map(move |n| (seats, spares, n))))
    {
        let env = format!(
            "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES={started} SLURM_NODEID=1 \
             SLURM_STEP_NUM_TASKS={started} SLURM_STEP_TASKS_PER_NODE=1(x{started}) \
             SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_STEP_NODELIST=n[1-{started}]"
        );
        let told = tell(&settings(seats, spares), &host(&env), &gpus(8));
        let line = told.line();
        assert!(line.starts_with(&format!("slurm {seats} 1 n1:")), "{line}");
        let fits = seats + spares == started;
        assert_eq!(
            line.ends_with(" membership.spares"),
            !fits,
            "{seats} + {spares}, {started}: {line}"
        );
        if !fits {
            let all = seats + spares;
            let text = words(&told);
            let said = format!(
                "--nnodes and --spares make {all} nodes, but the platform starts {started} (SLURM_STEP_NUM_NODES={started})"
            );
            assert!(text.contains(&said), "{text}");
            let hint =
                format!("start {all} nodes; or --nnodes {},", started.saturating_sub(spares));
            assert_eq!(text.contains(&hint), started >= spares + 2, "{text}");
        }
        // Without --nnodes the platform's number is both.
        let mut settings = settings(seats, spares);
        settings.nnodes = None;
        let line = tell(&settings, &host(&env), &gpus(8)).line();
        let seats = started.saturating_sub(spares);
        match seats >= 2 {
            true => assert!(line.starts_with(&format!("slurm {seats} 1 n1:")), "{line}"),
            false => assert_eq!(line, "refused membership.spares"),
        }
        assert!(!line.ends_with(" membership.spares") || seats < 2, "{line}");
    }
    let mut strict = settings(4, 2);
    let fail = Sourced::new(Severity::Fail, Source::Flag("--severity".to_owned()));
    strict.severities.insert(Id::MembershipSpares, fail);
    let five = host(
        "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=5 SLURM_NODEID=1 SLURM_STEP_NODELIST=n[1-5]",
    );
    let told = tell(&strict, &five, &gpus(8));
    assert_eq!(
        told.notes.failures.iter().map(|one| one.id).collect::<Vec<_>>(),
        [Id::MembershipSpares]
    );
    // The number of nodes is the job's, whatever GPUs its nodes have.
    let mut assumed = settings(4, 2);
    let words = [OsString::from("gpus=8")];
    Assumed::read(&words).expect("GPUs").expect("a node").apply(&mut assumed);
    let warned = tell(&assumed, &five, &gpus(8)).notes.warnings;
    assert_eq!(warned.iter().map(|one| one.id).collect::<Vec<_>>(), [Id::MembershipSpares]);
}

/// A list of hosts, and a profile's number of nodes, beside seats and spares.
#[test]
fn hosts_and_profiles_count_seats_and_spares() {
    for (seats, spares) in
        (2..5_u32).flat_map(|seats| (1..4_u32).map(move |spares| (seats, spares)))
    {
        for hosts in 2..9_u32 {
            let mut settings = undecided();
            settings.spares = flag("--spares", spares).expect("a flag");
            settings.nnodes = flag("--nnodes", seats);
            settings.node_rank = flag("--node-rank", 1);
            let names: Vec<String> = (0..hosts).map(|host| format!("h{host}")).collect();
            settings.nodes = flag("--nodes", names);
            let told = tell(&settings, &host(""), &gpus(8));
            if seats + spares == hosts {
                assert_eq!(told.line(), format!("flags {seats} 1 h0:29500"));
                continue;
            }
            assert_eq!(told.line(), "refused membership.contradiction");
            let said = format!(
                "--nnodes is {seats} and --spares is {spares}, but --nodes names {hosts} hosts"
            );
            assert!(words(&told).contains(&said), "{}", words(&told));

            let mut settings = undecided();
            settings.spares = flag("--spares", spares).expect("a flag");
            let profile = Source::Profile { file: "p.toml".to_owned(), line: 1 };
            settings.nnodes = Some(Sourced::new(seats, profile));
            let env =
                format!("PET_NNODES={hosts} PET_NODE_RANK=1 PET_MASTER_ADDR=m PET_MASTER_PORT=1");
            let told = tell(&settings, &host(&env), &gpus(8));
            assert_eq!(told.line(), "refused membership.contradiction");
            let (all, fits) = (seats + spares, hosts.saturating_sub(spares));
            let text = words(&told);
            let said = format!("p.toml:1 with --spares says that the job has {all} nodes");
            assert!(
                text.contains(&said) && text.contains(&format!("--nnodes {fits} to work")),
                "{text}"
            );
        }
    }
}
