//! Leftovers on a job of two nodes, which meet on a port.

use harness::python;

use super::{Scene, in_a_namespace, node};

#[test]
fn nothing_ends_before_the_nodes_have_agreed() {
    in_a_namespace(inside_agreement);
}

#[test]
#[ignore = "runs inside a namespace"]
fn inside_agreement() {
    let mut scene = Scene::new();
    scene.plant_orphan("leftover", "TORCHELASTIC_RUN_ID=x", "train.py");
    scene.plant_orphan("alone", "nohup", "train.py");
    std::fs::write(scene.path("go-a-until"), "").expect("a file");
    let nobody: Vec<&str> = Vec::new();

    for stale in ["kill", "force"] {
        let more = ["2s", "--stale", stale];
        let ended = node(&scene, harness::free_port(), "0", &more, &["a-until"]).run();
        ended.expect_code(88);
        assert_eq!(scene.gone(), nobody, "node 1 never came, --stale {stale}");
    }
    let both = |scene: &Scene, stale: &str| {
        let port = harness::free_port();
        let more = ["20s", "--stale", stale];
        let first = node(scene, port, "0", &more, &["a-until"]).start();
        let second = node(scene, port, "1", &more, &["a-until"]).start();
        second.wait().expect_code(0);
        first.wait().expect_code(0)
    };
    let ended = both(&scene, "kill");
    assert_eq!(scene.gone(), ["leftover"], "{}", ended.err);
    let at = |what: &str| ended.err.find(what).unwrap_or_else(|| panic!("{what}: {}", ended.err));
    assert!(at("nodes agree") < ended.err.find("ended: pid").unwrap_or(usize::MAX));
    let ended = both(&scene, "force");
    assert_eq!(scene.gone(), ["alone", "leftover"], "{}", ended.err);
}

#[test]
fn a_port_is_refused_and_its_owner_lives() {
    in_a_namespace(inside_port);
}

#[test]
#[ignore = "runs inside a namespace"]
fn inside_port() {
    let mut scene = Scene::new();
    let nobody: Vec<&str> = Vec::new();
    // The launcher of another script is alive, like a healthy job of another user.
    let port = harness::free_port();
    let line = format!("LISTEN={port} \"$1\" other.py theirs & wait\n");
    std::fs::write(scene.path("torchrun"), line).expect("a file");
    let mut torchrun = scene.command("sh");
    std::os::unix::process::CommandExt::arg0(&mut torchrun, "torchrun");
    torchrun.arg(scene.path("torchrun")).arg(python());
    scene.plant(torchrun, &["theirs"]);
    for stale in ["kill", "force"] {
        let ended = node(&scene, port, "0", &["2s", "--stale", stale], &["a"]).run();
        let ended = ended.expect_code(87).expect_id("port.free");
        let line = scene.line(&ended.err, "theirs");
        assert!(
            line.contains("is in use on this node") && line.contains(" old, parent "),
            "{line}"
        );
        assert!(ended.err.contains(&format!("kill {}", scene.pid("theirs"))), "{}", ended.err);
        assert_eq!(scene.gone(), nobody, "--stale {stale}");
    }
    // plan and check announce the refusal of run.
    let asked = |command: &str| {
        let port = port.to_string();
        let job = [command, "--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1"];
        let ended = scene.launcher(&[&job[..], &["--master-port", &port]].concat(), &["a"]).run();
        let said = [ended.out.as_str(), ended.err.as_str()].concat();
        (ended.code, said)
    };
    for command in ["plan", "check"] {
        let (code, said) = asked(command);
        assert_eq!(code, 87, "{command}: {said}");
        scene.line(&said, "theirs");
    }

    // An orphan runs this job's script by itself. `force` would end it, but the nodes meet on its
    // port.
    let port = harness::free_port();
    scene.plant_orphan("own", &format!("LISTEN={port} nohup"), "train.py");
    let ended = node(&scene, port, "0", &["2s", "--stale", "force"], &["a"]).run().expect_code(87);
    assert!(ended.err.contains("ranklaunch clean --stale force"), "{}", ended.err);
    assert_eq!(scene.gone(), nobody);

    // The leftover on the port is ended first, since the nodes could not meet otherwise; other
    // leftovers wait.
    let port = harness::free_port();
    let environ = format!("LISTEN={port} TORCHELASTIC_RUN_ID=x");
    scene.plant_orphan("left-on-port", &environ, "train.py");
    scene.plant_orphan("left-elsewhere", "TORCHELASTIC_RUN_ID=x", "train.py");
    let port_text = port.to_string();
    let job = ["check", "--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1"];
    let more = ["--master-port", &port_text, "--muster", "off", "--format", "json"];
    let check = scene.launcher(&[&job[..], &more[..]].concat(), &["a"]).run();
    let check: serde_json::Value = serde_json::from_str(&check.out).expect("JSON");
    let mut rows = check["checks"].as_array().expect("a list").iter();
    let row = rows.find(|row| row["id"] == "port.free").expect("port.free");
    assert_eq!(row["severity"], "info", "{row}");
    assert_eq!(scene.gone(), nobody);
    let ended = node(&scene, port, "0", &["2s"], &["a"]).run().expect_code(88);
    assert_eq!(scene.gone(), ["left-on-port"], "{}", ended.err);
    assert!(ended.err.contains("left behind and this launch ends"), "{}", ended.err);
    assert!(ended.err.contains("ended: pid"), "{}", ended.err);
}
