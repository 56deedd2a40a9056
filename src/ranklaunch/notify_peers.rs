//! Notifies the other nodes when this node refuses, so that no node waits for it.
//!
//! MPICH's mpiexec ends a job whose nodes cannot notify each other. A node that refuses because nothing names
//! node 0 cannot notify the others, which take the host of mpiexec for node 0 and would wait there until
//! `--wait-timeout`. All of them have a connection to mpiexec: `abort` on it makes hydra kill every process of
//! the job (PMI 1, MPICH's src/pmi; tried with 4.0 and 4.2). The message is sent only if the connection leads
//! to a proxy above us.

use std::ffi::OsString;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{FileType, fstat};
use rustix::io::ioctl_fionread;
use rustix::net::{SendFlags, send};

use super::context::Context;
use super::muster_config::{config, is_wanted};
use linux::deadline::with_deadline;
use linux::host::Host;
use linux::sys;
use muster::{Config, Declined, Purpose};
use node::observe::{Facts, GpuFacts, NetworkFacts};
use plan::Notes;
use settings::Settings;
use settings::cli::{Options, own_words};
use settings::contract::{Contract, Field};
use text::lang::Text;
use text::text;
use verdict::{Id, Refusal};

/// Time limit for reading the files that locate the other nodes.
const FILES: Duration = Duration::from_secs(2);

/// Whether an invalid command line was meant to launch this node's part of the job that the
/// platform's variables describe. True unless a flag that was parsed says otherwise.
pub(super) fn launches_where_the_platform_says(arguments: &[OsString]) -> bool {
    const OWN: &[&str] = &[
        "--nnodes",
        "--nodes",
        "--node-rank",
        "--master-",
        "--world-size-counts",
        "--nested",
        // The same options under the names of other launchers.
        "--standalone",
        "--rdzv-endpoint",
        "--num-machines",
        "--num-nodes",
        "--machine-rank",
        "--main-process-",
        "--muster",
        "--host-root",
    ];
    let ours = own_words(arguments.get(1..).unwrap_or_default()).iter();
    let mut ours = ours.map(|word| word.to_string_lossy().replace('_', "-")).peekable();
    let launches = ours.peek().is_some_and(|word| word == "run" || word.starts_with('-'));
    launches && ours.all(|word| OWN.iter().all(|own| !word.starts_with(*own)))
}

/// Notifies after a refusal by the plan.
pub(super) async fn planned(context: &Context, facts: &Facts, refusal: &Refusal) {
    let Facts { contract, gpus, hostname, .. } = facts;
    let (host, settings) = (&context.host, &context.settings);
    if mpiexec_connection(host, refusal.id).is_some() {
        context.say(&text!(
            "mpiexec is asked to end the job on all nodes, since nothing tells the others where node 0 is",
            "已请求 mpiexec 在所有节点上结束任务，因为其他节点无从得知节点 0 在哪里"
        ));
        return;
    }
    let told = tell(Purpose::Run, host, settings, contract, Some(gpus), hostname, refusal).await;
    if let Some(line) = told {
        context.say(&line);
    }
}

/// Notifies after a refusal by the plan in `check`.
pub(super) async fn examined(
    host: &Arc<Host>,
    settings: &Settings,
    facts: &Facts,
    refusal: &Refusal,
) {
    let Facts { contract, gpus, hostname, .. } = facts;
    // The report already has the refusal; the result of the notification is not part of it.
    let _ = tell(Purpose::Check, host, settings, contract, Some(gpus), hostname, refusal).await;
}

/// Notifies after a refusal of the settings. Returns the line to print about the notification.
pub(super) async fn unread(options: &Options, refusal: &Refusal) -> Option<Text> {
    let host = Arc::new(Host::live());
    let (reader, asked) = (Arc::clone(&host), options.clone());
    let read = with_deadline(FILES, move || {
        let settings = Settings::read_meeting(&asked, &reader);
        let contract = place(&reader, settings.as_ref());
        (settings, contract)
    });
    let (settings, contract) = read?;
    let Some(settings) = settings else { return cannot_notify(&contract) };
    if settings.host_root.is_some() {
        return None;
    }
    let hostname = sys::hostname();
    tell(Purpose::Run, &host, &settings, &contract, None, &hostname, refusal).await
}

/// Notifies after a notice that came while the nodes met or paused: no node waits for one that is to end.
pub(super) async fn noticed(context: &Context) {
    let Some(Text { en, zh }) = context.notices.reason() else { return };
    let (reader, settings) = (Arc::clone(&context.host), Arc::clone(&context.settings));
    let read = with_deadline(FILES, move || place(&reader, Some(&settings)));
    let Some(contract) = read else { return };
    let refusal = Refusal::of_ending(
        Id::StoppedNotice,
        text!("a notice came there: {en}", "该节点收到通知：{zh}"),
        text!("start the job again when its nodes are back", "待各节点恢复后重新启动任务"),
    );
    let (host, settings, hostname) = (&context.host, &context.settings, sys::hostname());
    let told = tell(Purpose::Run, host, settings, &contract, None, &hostname, &refusal).await;
    if let Some(line) = told {
        context.say(&line);
    }
}

/// What the platform says about the place of this node.
fn place(host: &Host, settings: Option<&Settings>) -> Contract {
    let above = Contract::torchrun_above(host);
    let own = settings.and_then(Settings::own_platform);
    let mut contract = Contract::read(host, above, own);
    contract.add_host_files(&Contract::host_files(host));
    // A list of hosts is useful only to a host that knows its own name.
    contract.own_names = NetworkFacts::read(host, None).own_names(&sys::hostname());
    contract
}

/// None if no variable mentions other nodes.
fn cannot_notify(contract: &Contract) -> Option<Text> {
    let about_others = [Field::Nnodes, Field::WorldSize, Field::MasterAddr];
    about_others.into_iter().find_map(|field| contract.first(field))?;
    Some(text!(
        "the other nodes are not notified, since this node does not know its place in the job; they wait for it until --wait-timeout",
        "无法通知其他节点，因为本节点不知道自己在任务中的位置；它们会一直等到 --wait-timeout"
    ))
}

/// `gpus` is None before they are counted. The result is None if there is no other node.
async fn tell(
    purpose: Purpose,
    host: &Arc<Host>,
    settings: &Settings,
    contract: &Contract,
    gpus: Option<&GpuFacts>,
    hostname: &str,
    refusal: &Refusal,
) -> Option<Text> {
    let mut notes = Notes::default();
    let member = match gpus {
        Some(gpus) => plan::membership(settings, contract, gpus, &mut notes),
        None => plan::identity(settings, contract, &mut notes),
    };
    let Ok(member) = member else { return cannot_notify(contract) };
    if !host.is_live() || !is_wanted(settings, &member).unwrap_or(false) {
        return None;
    }
    let config = match config(host, settings, contract, &member, true) {
        Ok(config) => Config { purpose, ..config },
        Err(Refusal { text: Text { en, zh }, .. }) => {
            return Some(text!("the other nodes are not notified: {en}", "无法通知其他节点：{zh}"));
        }
    };
    if member.is_master() {
        return Some(heard(&config, muster::turn_away(&config, hostname, refusal).await));
    }
    let (address, port) = (&config.master_addr, config.port);
    Some(match muster::decline(host, &config, hostname, refusal).await {
        Declined::Told => text!(
            "node 0 at {address}:{port} was notified, so that no node waits for this one",
            "已通知节点 0（{address}:{port}），其他节点不会再等待本节点"
        ),
        Declined::EndsToo(Text { en, zh }) => text!(
            "node 0 at {address}:{port} ends as well: {en}",
            "节点 0（{address}:{port}）同样会结束：{zh}"
        ),
        Declined::Absent(Text { en, zh }) => text!(
            "node 0 at {address}:{port} was not notified, since it is not there ({en}): it has ended, or it starts later and then waits for this node until --wait-timeout",
            "未能通知节点 0（{address}:{port}），它不在线（{zh}）：可能已经结束；若稍后才启动，它会一直等待本节点，直到 --wait-timeout"
        ),
        Declined::Untold(Text { en, zh }) => text!(
            "node 0 at {address}:{port} could not be notified ({en}); it waits for this node until --wait-timeout",
            "无法通知节点 0（{address}:{port}，{zh}）；它会一直等待本节点，直到 --wait-timeout"
        ),
    })
}

fn heard(config: &Config, told: usize) -> Text {
    let others = usize::try_from(config.nnodes.saturating_sub(1)).unwrap_or(usize::MAX);
    let untold = others.saturating_sub(told);
    match (told, untold, others) {
        (0, _, 1) => text!(
            "the other node could not be notified of this refusal",
            "另一个节点未能收到本次拒绝的通知"
        ),
        (0, ..) => text!(
            "none of the {others} other nodes could be notified of this refusal",
            "其他 {others} 个节点均未能收到本次拒绝的通知"
        ),
        (_, 0, 1) => {
            text!("the other node was notified of this refusal", "已将本次拒绝通知另一个节点")
        }
        (_, 0, _) => text!(
            "all {others} other nodes were notified of this refusal",
            "已将本次拒绝通知其他 {others} 个节点"
        ),
        _ => text!(
            "{told} of the {others} other nodes were notified of this refusal, {untold} could not be reached",
            "其他 {others} 个节点中，{told} 个已收到本次拒绝的通知，{untold} 个未能联系上"
        ),
    }
}

/// On node 0, if another process holds the muster port: notifies the others on the second port.
pub(super) async fn without_a_port(
    context: &Context,
    config: &Config,
    hostname: &str,
    refusal: &Refusal,
) {
    let told = muster::turn_away(config, hostname, refusal).await;
    context.say(&heard(config, told));
}

/// The variable with the descriptor of the connection.
const DESCRIPTOR: &str = "PMI_FD";
/// Time for the proxy to read the output, and interval of the check.
const READ: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(1);

/// The connection, if no other node hears of this refusal.
pub(super) fn mpiexec_connection(host: &Host, refused: Id) -> Option<OwnedFd> {
    let number = host.variable(DESCRIPTOR).filter(|_| host.is_live());
    if refused != Id::MembershipMasterAddr {
        return None;
    }
    let socket = sys::Inherited(number?.trim().parse().ok()?).copy().ok()?;
    let proxy = sys::Peer::of(&socket).ok()?.pid;
    Contract::mpiexec_above(host)?;
    host.ancestors().iter().any(|process| process.pid == proxy).then_some(socket)
}

/// Asks mpiexec to end the job with this code. It kills this process as well, so call it last.
pub(super) fn abort_mpiexec(connection: &OwnedFd, code: i32) -> io::Result<()> {
    wait_until_read();
    let line = format!("cmd=abort exitcode={code}\n");
    send(connection, line.as_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}

/// The proxy drops what it has not read of our output when the job ends. No event tells that a pipe is empty.
fn wait_until_read() {
    let until = Instant::now() + READ;
    for output in [rustix::stdio::stdout(), rustix::stdio::stderr()] {
        while has_unread(output) && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
    }
}

/// False if the output is not a pipe.
fn has_unread(output: BorrowedFd<'_>) -> bool {
    let is_pipe =
        fstat(output).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo);
    is_pipe && ioctl_fionread(output).is_ok_and(|bytes| bytes > 0)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn written_pipe_is_unread_until_read() {
        let (mut read, mut write) = io::pipe().expect("a pipe");
        assert!(!has_unread(write.as_fd()));
        write.write_all(b"said").expect("written");
        assert!(has_unread(write.as_fd()));
        read.read_exact(&mut [0; 4]).expect("read");
        assert!(!has_unread(write.as_fd()));
        let file = tempfile::tempfile().expect("a file");
        assert!(!has_unread(file.as_fd()));
    }
}
