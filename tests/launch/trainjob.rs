//! The progress of a job in the status of its TrainJob, as Kubeflow's Trainer asks for it: over HTTPS with a
//! certificate of the cluster and a token.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use harness::{Ended, Launcher, program, python, run_args, wait_until};
use serde_json::{Value, json};

const PATH: &str = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/wan/status";

/// A server in the place of the Trainer, ended on drop.
struct Trainer {
    child: Child,
    folder: tempfile::TempDir,
    port: String,
}

impl Drop for Trainer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Trainer {
    fn start() -> Trainer {
        let folder = tempfile::tempdir().expect("a folder");
        certificate(folder.path(), "cert.pem");
        certificate(folder.path(), "other.pem");
        std::fs::write(folder.path().join("token"), "secret-token\n").expect("a file");
        let child = Command::new(python())
            .arg(program("trainer.py"))
            .args([folder.path().as_os_str(), PATH.as_ref()])
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let port =
            wait_until("the server", || std::fs::read_to_string(folder.path().join("port")).ok());
        Trainer { child, folder, port }
    }

    /// The progress reports that the server took, without their times.
    fn taken(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.folder.path().join("taken")).unwrap_or_default();
        let status = |line| -> Value {
            let mut status: Value = serde_json::from_str(line).expect("JSON");
            status.as_object_mut().expect("an object").remove("lastUpdatedTime");
            status
        };
        text.lines().map(status).collect()
    }

    /// A job whose rank prints these lines, with a certificate of this name.
    fn job(&self, ca: &str, options: &[&str], lines: &str) -> Ended {
        let at = |name: &str| self.folder.path().join(name);
        let script = "printf \"$1\"; until [ -e \"$2\" ]; do sleep 0.05; done; printf \"$3\"";
        let (first, last) = lines.split_once('|').unwrap_or((lines, ""));
        let go_on = if last.is_empty() { at("token") } else { at("taken") };
        let program = ["--", "sh", "-c", script, "sh", first, go_on.to_str().expect("text"), last];
        Launcher::new(run_args("direct", 1))
            .args(options)
            .args(program)
            .env("KUBEFLOW_TRAINER_SERVER_URL", format!("https://localhost:{}{PATH}", self.port))
            .env("KUBEFLOW_TRAINER_SERVER_CA_CERT", at(ca))
            .env("KUBEFLOW_TRAINER_SERVER_TOKEN", at("token"))
            .run()
            .expect_code(0)
    }
}

/// Makes a self-signed certificate, and its key beside it.
fn certificate(folder: &Path, name: &str) {
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
        ])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"])
        .arg("-keyout")
        .arg(folder.join(if name == "cert.pem" { "key.pem" } else { "other-key.pem" }))
        .arg("-out")
        .arg(folder.join(name))
        .output()
        .expect("openssl");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

#[test]
fn progress_is_posted_at_once_and_at_end() {
    let trainer = Trainer::start();
    // The second part is printed after the first was taken.
    let lines = "step 10/100 loss=0.5\\n|step 100/100 loss=0.25\\n";
    trainer.job("cert.pem", &[], lines);
    let taken = trainer.taken();
    let (Some(first), Some(last)) = (taken.first(), taken.last()) else { panic!("{taken:?}") };
    assert_eq!(
        first,
        &json!({ "progressPercentage": 10, "metrics": [{ "name": "loss", "value": "0.5" }] })
    );
    assert_eq!(last["progressPercentage"], 100, "{taken:?}");
    assert_eq!(last["metrics"][0]["value"], "0.25");
}

#[test]
fn user_pattern_applies_and_off_posts_nothing() {
    let trainer = Trainer::start();
    let lines = "step 10/100\\n42.9 percent, psnr 31.5\\n";
    let pattern = r"(?P<percent>[\d.]+) percent, psnr (?P<psnr>\S+)";
    trainer.job("cert.pem", &["--progress", "off"], lines);
    assert_eq!(trainer.taken(), Vec::<Value>::new());
    trainer.job("cert.pem", &["--progress", pattern], lines);
    let metrics = json!([{ "name": "psnr", "value": "31.5" }]);
    assert_eq!(trainer.taken(), [json!({ "progressPercentage": 42, "metrics": metrics })]);
}

#[test]
fn untrusted_server_gets_no_progress() {
    let trainer = Trainer::start();
    let ended = trainer.job("other.pem", &[], "step 10/100\\n");
    assert_eq!(trainer.taken(), Vec::<Value>::new());
    let said = ended.err.lines().find(|line| line.contains("was not posted to its TrainJob"));
    assert!(said.is_some_and(|line| line.contains("SSLCertVerificationError")), "{}", ended.err);
    assert!(!ended.err.contains("secret-token"), "{}", ended.err);
}

#[test]
fn pattern_without_progress_is_refused() {
    for pattern in [r"step (?P<step>\d+)", "step (", "on"] {
        let args =
            [run_args("direct", 1), ["--progress", pattern, "--", "true"].map(Into::into).into()];
        let ended = Launcher::new(args.concat()).run().expect_code(64);
        assert!(ended.err.contains("the groups step and total, or percent"), "{}", ended.err);
    }
}
