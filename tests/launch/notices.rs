//! Notices of clouds from real sockets: a metadata service of the test at its real address, on a machine that says by its
//! DMI whose it is.
//!
//! Skipped without the permission to make namespaces.

use std::collections::VecDeque;
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, SystemTime};

use harness::cloud::{
    ALIBABA, AWS, AZURE, GCP, LINK_LOCAL, OF_ALIBABA, Reply, STRANGER, SUPERMICRO, Service, XEN,
    google, none, ok, on_machine,
};
use linux::host::Host;
use monitor::notice::{NoticeWatch, StopNotice};
use settings::{NoticeMode, NoticeSource, Sourced};
use text::lang::Text;
use time::OffsetDateTime;
use time::format_description::well_known::{Rfc2822, Rfc3339};

/// Longer than some looks, on a machine with other work.
const LONG: Duration = Duration::from_secs(40);
const LEAD: Duration = Duration::from_secs(120);

struct Ears {
    _watch: NoticeWatch,
    told: Receiver<StopNotice>,
    remarks: Receiver<Text>,
}

fn watch(mode: &NoticeMode, lead: Duration) -> Ears {
    let ((tell, told), (remark, remarks)) = (channel(), channel());
    let watch = NoticeWatch::start(
        &Host::live(),
        mode,
        &Sourced::default_value(lead),
        move |notice| drop(tell.send(notice)),
        move |text| drop(remark.send(text)),
    );
    Ears { _watch: watch, told, remarks }
}

impl Ears {
    fn notice(&self) -> StopNotice {
        self.told.recv_timeout(LONG).expect("a notice")
    }

    fn silent_for(&self, seconds: u64) {
        let told = self.told.recv_timeout(Duration::from_secs(seconds));
        assert!(told.is_err(), "{told:?}");
    }
}

/// A time so many seconds from now, whole as the services write it.
fn in_seconds(seconds: u64) -> SystemTime {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    SystemTime::UNIX_EPOCH + Duration::from_secs(now.as_secs() + seconds)
}

fn rfc3339(at: SystemTime) -> String {
    OffsetDateTime::from(at).format(&Rfc3339).expect("a time")
}

fn http_date(at: SystemTime) -> String {
    OffsetDateTime::from(at).format(&Rfc2822).expect("a time").replace("+0000", "GMT")
}

/// The replies of one path, one after the other, then the last one.
fn in_order(replies: impl IntoIterator<Item = (u16, String)>) -> impl FnMut() -> Reply {
    let mut left: VecDeque<(u16, String)> = replies.into_iter().collect();
    move || {
        let (status, body) =
            if left.len() > 1 { left.pop_front() } else { left.front().cloned() }.expect("a reply");
        Reply::Of(status, "", body)
    }
}

const TOKEN: &str = "AQAEAF-token==";

/// EC2 with tokens only, whose spot action comes at the second look.
fn ec2(mut spot: impl FnMut() -> Reply + Send + 'static) -> impl FnMut(&str) -> Reply + Send {
    move |head| match head {
        head if head.starts_with("PUT /latest/api/token HTTP/1.1\r\n") => {
            assert!(head.contains("X-aws-ec2-metadata-token-ttl-seconds: "), "{head}");
            ok(TOKEN)
        }
        head if !head.contains(&format!("X-aws-ec2-metadata-token: {TOKEN}\r\n")) => {
            Reply::Of(401, "", String::new())
        }
        head if head.starts_with("GET /latest/meta-data/spot/instance-action ") => spot(),
        head if head.starts_with("GET /latest/meta-data/events/maintenance/scheduled ") => ok("[]"),
        _ => none(),
    }
}

#[test]
fn aws_spot_action_is_told_with_its_time() {
    on_machine(AWS, || {
        let end = in_seconds(118);
        let action = format!(r#"{{"action": "terminate", "time": "{}"}}"#, rfc3339(end));
        let says = in_order([(404, String::new()), (200, action)]);
        let service = Service::at(LINK_LOCAL, ec2(says));
        let ears = watch(&NoticeMode::Auto, LEAD);
        ears.silent_for(2);
        let notice = ears.notice();
        assert_eq!((notice.source, notice.deadline), (NoticeSource::Aws, Some(end)));
        assert!(notice.reason.en.contains("terminates"), "{}", notice.reason.en);
        ears.silent_for(6);
        assert!(ears.remarks.try_recv().is_err());
        let heads = service.heads();
        let puts = heads.iter().filter(|head| head.starts_with("PUT ")).count();
        assert!(puts == 1 && heads.len() >= 7, "one token for all looks: {heads:#?}");
        assert!(heads.iter().all(|head| head.contains("\r\nHost: 169.254.169.254\r\n")));
    });
}

#[test]
fn aws_without_tokens_and_a_planned_reboot() {
    on_machine(XEN, || {
        let end = in_seconds(600);
        let day = OffsetDateTime::from(end).format(&Rfc2822).expect("a time");
        let (_, day) = day.split_once(", ").expect("a day");
        let day = day.replace("+0000", "GMT");
        let service = Service::at(LINK_LOCAL, move |head| match head {
            head if head.starts_with("PUT ") => Reply::Of(405, "", String::new()),
            head if head.contains("maintenance/scheduled") => ok(format!(
                r#"[{{"NotBefore": "{day}", "Code": "system-reboot", "Description": "scheduled reboot",
                "EventId": "instance-event-0d59937288b749b32", "State": "active"}}]"#
            )),
            _ => none(),
        });
        // Within this lead, and not within the other one.
        let near = watch(&NoticeMode::Auto, Duration::from_secs(700));
        let notice = near.notice();
        assert_eq!((notice.source, notice.deadline), (NoticeSource::Aws, Some(end)));
        assert!(notice.reason.en.contains("system-reboot"), "{}", notice.reason.en);
        let far = watch(&NoticeMode::Only(vec![NoticeSource::Aws]), LEAD);
        far.silent_for(6);
        assert!(far.remarks.try_recv().is_err());
        assert!(service.heads().iter().all(|head| !head.contains("metadata-token:")));
    });
}

#[test]
fn aws_renews_a_token_that_is_no_longer_known() {
    on_machine(AWS, || {
        let end = in_seconds(118);
        let action = format!(r#"{{"action": "stop", "time": "{}"}}"#, rfc3339(end));
        let mut tokens = 0;
        let service = Service::at(LINK_LOCAL, move |head| match head {
            head if head.starts_with("PUT ") => {
                tokens += 1;
                ok(format!("token-{tokens}"))
            }
            // As after a change of the instance's metadata options.
            head if head.contains("token: token-1\r\n") => Reply::Of(401, "", String::new()),
            head if head.contains("spot/instance-action") => ok(action.clone()),
            _ => none(),
        });
        assert_eq!(watch(&NoticeMode::Auto, LEAD).notice().deadline, Some(end));
        assert!(service.heads().iter().filter(|head| head.starts_with("PUT ")).count() == 2);
    });
}

#[test]
fn gcp_preemption_ends_thirty_seconds_after_the_last_calm_look() {
    on_machine(GCP, || {
        let mut looks = 0;
        let service = Service::at(LINK_LOCAL, move |head| {
            assert!(head.contains("\r\nMetadata-Flavor: Google\r\n"), "{head}");
            assert!(head.contains("\r\nHost: metadata.google.internal\r\n"), "{head}");
            match head {
                head if head.starts_with("GET /computeMetadata/v1/instance/preempted ") => {
                    looks += 1;
                    google(if looks < 3 { "FALSE" } else { "TRUE" })
                }
                head if head.starts_with("GET /computeMetadata/v1/instance/maintenance-event ") => {
                    google("MIGRATE_ON_HOST_MAINTENANCE")
                }
                _ => none(),
            }
        });
        let ears = watch(&NoticeMode::Auto, LEAD);
        let notice = ears.notice();
        assert_eq!(notice.source, NoticeSource::Gcp);
        let left = notice.deadline.expect("a deadline").duration_since(SystemTime::now());
        let left = left.expect("to come").as_secs();
        assert!((15..=26).contains(&left), "{left} s: 30, less the pause of the looks");
        ears.silent_for(6);
        assert!(ears.remarks.try_recv().is_err());
        assert!(!service.heads().iter().any(|head| head.contains("upcoming-maintenance")));
    });
}

#[test]
fn gcp_stop_for_maintenance_with_and_without_a_window() {
    let says = |upcoming: Option<String>| {
        move |head: &str| match head {
            head if head.contains("instance/preempted") => google("FALSE"),
            head if head.contains("instance/maintenance-event") => {
                google("TERMINATE_ON_HOST_MAINTENANCE")
            }
            _ => upcoming.as_deref().map_or_else(none, google),
        }
    };
    on_machine(GCP, || {
        let _service = Service::at(LINK_LOCAL, says(None));
        let notice = watch(&NoticeMode::Auto, LEAD).notice();
        assert_eq!((notice.source, notice.deadline), (NoticeSource::Gcp, None));
    });
    on_machine(GCP, || {
        let end = in_seconds(3000);
        let window = format!(r#"{{"window_start_time": "{}", "type": "SCHEDULED"}}"#, rfc3339(end));
        let _service = Service::at(LINK_LOCAL, says(Some(window)));
        watch(&NoticeMode::Auto, LEAD).silent_for(2);
        let notice = watch(&NoticeMode::Auto, Duration::from_secs(3600)).notice();
        assert_eq!(notice.deadline, Some(end));
    });
}

#[test]
fn azure_tells_events_of_this_machine_and_approves_none() {
    on_machine(AZURE, || {
        let end = in_seconds(30);
        let events = |kind: &str, machine: &str| {
            format!(
                r#"{{"DocumentIncarnation": 2, "Events": [{{"EventId": "f020ba2e", "EventStatus": "Scheduled",
                "EventType": "{kind}", "ResourceType": "VirtualMachine", "Resources": ["{machine}"],
                "NotBefore": "{}", "EventSource": "Platform", "DurationInSeconds": -1}}]}}"#,
                http_date(end)
            )
        };
        let nothing = r#"{"DocumentIncarnation": 1, "Events": []}"#.to_owned();
        let documents = [
            nothing,
            events("Preempt", "gpu_7"),
            events("Freeze", "gpu_3"),
            events("Preempt", "GPU_3"),
        ];
        let mut says = in_order(documents.map(|document| (200, document)));
        let service = Service::at(LINK_LOCAL, move |head| {
            assert!(head.contains("\r\nMetadata: true\r\n"), "{head}");
            match head {
                head if head.starts_with("GET /metadata/instance/compute/name?") => ok("gpu_3"),
                head if head
                    .starts_with("GET /metadata/scheduledevents?api-version=2020-07-01 ") =>
                {
                    says()
                }
                _ => none(),
            }
        });
        let ears = watch(&NoticeMode::Auto, LEAD);
        ears.silent_for(12);
        let notice = ears.notice();
        assert_eq!((notice.source, notice.deadline), (NoticeSource::Azure, Some(end)));
        assert!(service.heads().iter().all(|head| head.starts_with("GET ")), "no approval");
        assert!(ears.remarks.try_recv().is_err());
    });
}

#[test]
fn alibaba_is_asked_at_its_own_address() {
    on_machine(ALIBABA, || {
        let end = in_seconds(300);
        let _nobody = TcpListener::bind((LINK_LOCAL, 80)).expect("a listener");
        let mut says = in_order([(404, String::new()), (200, rfc3339(end))]);
        let service = Service::at(OF_ALIBABA, move |head| match head {
            head if head.starts_with("PUT /latest/api/token ") => ok(TOKEN),
            head if !head.contains("X-aliyun-ecs-metadata-token: ") => {
                Reply::Of(403, "", String::new())
            }
            head if head.starts_with("GET /latest/meta-data/instance/spot/termination-time ") => {
                says()
            }
            _ => none(),
        });
        let ears = watch(&NoticeMode::Auto, LEAD);
        ears.silent_for(2);
        let notice = ears.notice();
        assert_eq!((notice.source, notice.deadline), (NoticeSource::Alibaba, Some(end)));
        assert!(service.heads().iter().all(|head| head.contains("\r\nHost: 100.100.100.200\r\n")));
    });
}

/// Whatever a service says instead of an answer is no notice, takes no longer than a look, and the next look counts.
#[test]
fn odd_answers_are_no_notice_and_the_next_look_counts() {
    type Says = fn() -> Reply;
    let odd: [(&str, Says); 8] = [
        ("silence", || Reply::Silence),
        ("an endless body", || Reply::Endless),
        ("drips", || Reply::Drips),
        ("an error", || Reply::Of(500, "", "TRUE".into())),
        ("a redirect", || Reply::Of(302, "Location: http://127.0.0.1:3128/\r\n", "TRUE".into())),
        ("garbage", || Reply::Raw(vec![0xff; 2000])),
        ("nothing", || Reply::Raw(Vec::new())),
        ("another service", || ok("TRUE")),
    ];
    std::thread::scope(|scope| {
        for (name, reply) in odd {
            scope.spawn(move || {
                on_machine(GCP, || {
                    let mut looks = 0;
                    let _service = Service::at(LINK_LOCAL, move |head| {
                        let is_first = head.contains("instance/preempted");
                        looks += u32::from(is_first);
                        match (looks, is_first) {
                            (1, _) => reply(),
                            (_, true) => google("TRUE"),
                            (_, false) => google("NONE"),
                        }
                    });
                    let begun = SystemTime::now();
                    let notice = watch(&NoticeMode::Auto, LEAD).notice();
                    let took = begun.elapsed().expect("a clock that goes on").as_secs();
                    assert!((4..20).contains(&took), "{name}: {took} s");
                    assert_eq!(notice.source, NoticeSource::Gcp, "{name}");
                });
            });
        }
    });
}

#[test]
fn service_that_never_answers_is_remarked_once() {
    on_machine(AWS, || {
        let ears = watch(&NoticeMode::Auto, LEAD);
        let remark = ears.remarks.recv_timeout(LONG).expect("a remark");
        assert!(remark.en.contains("AWS") && remark.en.contains("hop limit"), "{}", remark.en);
        assert!(remark.zh.contains("AWS") && remark.zh.contains("跳数"), "{}", remark.zh);
        assert!(ears.told.try_recv().is_err());
    });
}

/// The packets of the loopback device, which has all addresses of the machine.
fn packets() -> u64 {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev").expect("a table");
    let line = table.lines().find_map(|line| line.trim().strip_prefix("lo:")).expect("lo");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("packets")
}

#[test]
fn machines_of_nobody_send_no_packet() {
    for dmi in [SUPERMICRO, &[]] {
        on_machine(dmi, || {
            let services =
                [LINK_LOCAL, OF_ALIBABA].map(|address| Service::at(address, |_| ok("TRUE")));
            let before = packets();
            let of_clouds =
                [NoticeSource::Aws, NoticeSource::Gcp, NoticeSource::Azure, NoticeSource::Alibaba];
            let auto = watch(&NoticeMode::Auto, LEAD);
            let named = watch(&NoticeMode::Only(of_clouds.to_vec()), LEAD);
            auto.silent_for(7);
            assert_eq!(packets(), before);
            assert!(services.iter().all(|service| service.heads().is_empty()));
            let remarks: Vec<Text> = named.remarks.try_iter().collect();
            assert_eq!(remarks.len(), of_clouds.len(), "{remarks:?}");
            assert!(remarks.iter().all(|text| text.en.contains("is not asked")), "{remarks:?}");
            assert!(named.told.try_recv().is_err() && auto.remarks.try_recv().is_err());
            // The control: a packet would be seen.
            drop(TcpStream::connect((LINK_LOCAL, 80)));
            assert!(packets() > before);
        });
    }
}

#[test]
fn clouds_of_another_name_are_not_asked() {
    on_machine(AWS, || {
        let service = Service::at(LINK_LOCAL, |_| ok("TRUE"));
        let ears = watch(&NoticeMode::Only(vec![NoticeSource::Gcp]), LEAD);
        let remark = ears.remarks.try_recv().expect("a remark");
        assert!(remark.en.contains("machine of AWS"), "{}", remark.en);
        ears.silent_for(6);
        assert!(service.heads().is_empty());
    });
}

/// The same as above in a process whose variables name a proxy, which is the stranger.
#[test]
fn proxies_are_never_asked() {
    let program = std::env::current_exe().expect("this program");
    for name in [
        "notices::aws_spot_action_is_told_with_its_time",
        "notices::alibaba_is_asked_at_its_own_address",
    ] {
        let mut command = Command::new(&program);
        command.args(["--exact", name]);
        for variable in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
            command.env(variable, format!("http://{STRANGER}"));
        }
        command.env_remove("no_proxy").env_remove("NO_PROXY");
        let output = command.output().expect("this program");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }
}
