//! Asks the metadata service of the cloud whose machine this is.
//!
//! Takes the machine's DMI strings and a clock; gives the ends that the cloud has announced. Never asks on a machine of
//! anybody else, where the address may be somebody's, never acknowledges an event, and never writes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant, SystemTime};

use super::answers::{self, End, NotUnderstood};
use super::http::{self, Answer, Request};
use linux::host::Host;
use settings::NoticeSource;
use text::lang::Text;
use text::text;

/// A DMI string, `/sys/class/dmi/id/…`.
#[derive(Debug)]
enum Dmi {
    Is(&'static str, &'static str),
    Ends(&'static str, &'static str),
}

/// A cloud: its DMI strings, all of one of these lists, its metadata service, and the time until a service that does not
/// answer is a fault.
#[derive(Debug)]
pub(super) struct Cloud {
    pub(super) source: NoticeSource,
    pub(super) name: &'static str,
    dmi: &'static [&'static [Dmi]],
    address: Ipv4Addr,
    /// The Host header.
    host: &'static str,
    /// Answers in a row that fail.
    pub(super) patience: u32,
    /// A usual reason for silence, with its remedy.
    pub(super) hint: fn() -> Text,
}

const LINK_LOCAL: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);
const PATIENCE: u32 = 5;

/// The strings are those by which cloud-init's ds-identify knows the clouds, and more of them where one alone is not
/// enough: a Chromebook is of Google, and Hyper-V of Microsoft.
pub(super) static CLOUDS: [Cloud; 4] = [
    Cloud {
        source: NoticeSource::Aws,
        name: "AWS",
        dmi: &[
            // Nitro and bare metal.
            &[Dmi::Is("sys_vendor", "Amazon EC2")],
            // 4.11.amazon
            &[Dmi::Is("sys_vendor", "Xen"), Dmi::Ends("bios_version", ".amazon")],
        ],
        address: LINK_LOCAL,
        host: "169.254.169.254",
        patience: PATIENCE,
        hint: || {
            text!(
                "in a pod without hostNetwork the instance needs a hop limit of 2 (aws ec2 modify-instance-metadata-options --http-put-response-hop-limit 2)",
                "在没有 hostNetwork 的 Pod 中，实例的跳数限制需为 2（aws ec2 modify-instance-metadata-options --http-put-response-hop-limit 2）"
            )
        },
    },
    Cloud {
        source: NoticeSource::Gcp,
        name: "GCP",
        dmi: &[&[
            Dmi::Is("sys_vendor", "Google"),
            Dmi::Is("product_name", "Google Compute Engine"),
        ]],
        address: LINK_LOCAL,
        host: "metadata.google.internal",
        patience: PATIENCE,
        hint: || {
            text!(
                "a network policy or the metadata server of GKE may keep it from pods",
                "网络策略或 GKE 元数据服务器可能不允许 Pod 访问"
            )
        },
    },
    Cloud {
        source: NoticeSource::Azure,
        name: "Azure",
        dmi: &[&[
            Dmi::Is("sys_vendor", "Microsoft Corporation"),
            Dmi::Is("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77"),
        ]],
        address: LINK_LOCAL,
        host: "169.254.169.254",
        // The first question for events enables them, which takes up to two minutes.
        patience: 40,
        hint: || {
            text!(
                "a network policy may keep pods from it, as AKS does with IMDS restriction",
                "网络策略可能不允许 Pod 访问，例如 AKS 的 IMDS 限制"
            )
        },
    },
    Cloud {
        source: NoticeSource::Alibaba,
        name: "Alibaba Cloud",
        dmi: &[&[
            Dmi::Is("sys_vendor", "Alibaba Cloud"),
            Dmi::Is("product_name", "Alibaba Cloud ECS"),
        ]],
        address: Ipv4Addr::new(100, 100, 100, 200),
        host: "100.100.100.200",
        patience: PATIENCE,
        hint: || text!("a network policy may keep pods from it", "网络策略可能不允许 Pod 访问"),
    },
];

/// The cloud that this machine says it is of.
pub(super) fn of_machine(host: &Host) -> Option<&'static Cloud> {
    by_strings(|name| host.read(format!("/sys/class/dmi/id/{name}")).unwrap_or_default())
}

/// The cloud of these DMI strings.
fn by_strings(read: impl Fn(&str) -> String) -> Option<&'static Cloud> {
    let holds = |dmi: &Dmi| match dmi {
        Dmi::Is(name, value) => read(name).trim() == *value,
        Dmi::Ends(name, end) => read(name).trim().ends_with(end),
    };
    CLOUDS.iter().find(|cloud| cloud.dmi.iter().any(|all| all.iter().all(holds)))
}

/// What a look has found, and why a part of the question has no answer.
#[derive(Debug, Default)]
pub(super) struct Heard {
    pub(super) ends: Vec<End>,
    pub(super) failure: Option<Text>,
    /// A part of it has an answer.
    pub(super) has_answered: bool,
    /// The ends are others than those of the looks before.
    pub(super) is_new: bool,
}

impl Heard {
    /// What a source says that always answers.
    pub(super) fn of(end: Option<End>) -> Heard {
        Heard { ends: end.into_iter().collect(), has_answered: true, ..Heard::default() }
    }

    /// Keeps ends; of several failures the first.
    fn take(&mut self, answer: Result<Vec<End>, Text>) {
        match answer {
            Ok(ends) => {
                self.has_answered = true;
                self.ends.extend(ends);
            }
            Err(failure) => drop(self.failure.get_or_insert(failure)),
        }
    }
}

/// The conversation with one cloud.
#[derive(Debug)]
pub(super) struct Conversation {
    cloud: &'static Cloud,
    address: SocketAddr,
    session: Session,
    /// GCP: the last look that found the machine not preempted, and the time by which it ends.
    undisturbed: Option<SystemTime>,
    preempted: Option<SystemTime>,
    /// Azure: the name of this machine in lists of events.
    name: Option<String>,
}

/// The token of a service that asks for one.
#[derive(Debug)]
enum Session {
    New,
    /// The service knows no tokens.
    Without,
    With(String, Instant),
}

/// The time of a token, and of its use.
const TOKEN_SECONDS: &str = "21600";
const TOKEN_USED: Duration = Duration::from_secs(3600);
/// The time of a preempted GCP machine from the announcement on.
const GCP_PREEMPTION: Duration = Duration::from_secs(30);

const GOOGLE: (&str, &str) = ("Metadata-Flavor", "Google");
const AZURE: (&str, &str) = ("Metadata", "true");

impl Conversation {
    pub(super) fn new(cloud: &'static Cloud) -> Conversation {
        Conversation {
            cloud,
            address: SocketAddr::new(IpAddr::V4(cloud.address), 80),
            session: Session::New,
            undisturbed: None,
            preempted: None,
            name: None,
        }
    }

    pub(super) fn look(&mut self, now: SystemTime) -> Heard {
        let mut heard = Heard::default();
        match self.cloud.source {
            NoticeSource::Aws => {
                let spot = self.with_token("/latest/meta-data/spot/instance-action", AWS);
                heard.take(spot.and_then(|answer| or_none(answer, |a| answers::aws_spot(&a.body))));
                let path = "/latest/meta-data/events/maintenance/scheduled";
                let events = self.with_token(path, AWS);
                heard.take(events.and_then(|answer| {
                    or_none(answer, |answer| match answer.text() {
                        "" => Ok(Vec::new()),
                        _ => answers::aws_events(&answer.body, now),
                    })
                }));
            }
            NoticeSource::Alibaba => {
                let path = "/latest/meta-data/instance/spot/termination-time";
                let spot = self.with_token(path, ALIBABA);
                heard.take(spot.and_then(|answer| {
                    or_none(answer, |answer| answers::alibaba_spot(answer.text()))
                }));
            }
            NoticeSource::Gcp => {
                let preempted = self.gcp_preempted(now).map(|end| end.into_iter().collect());
                heard.take(preempted);
                heard.take(self.gcp_maintenance().map(|end| end.into_iter().collect()));
            }
            NoticeSource::Azure => heard.take(self.azure()),
            // No others are clouds.
            NoticeSource::Slurm | NoticeSource::File(_) | NoticeSource::Signal(_) => {}
        }
        heard
    }

    fn get(&self, path: &str, headers: &[(&str, &str)]) -> Result<Answer, Text> {
        http::ask(self.address, Request { method: "GET", path, host: self.cloud.host, headers })
    }

    /// Asks with a token; a token that the service no longer knows is renewed once.
    fn with_token(&mut self, path: &str, names: Tokens) -> Result<Answer, Text> {
        let answer = self.with_this_token(path, names)?;
        if answer.status != 401 {
            return Ok(answer);
        }
        self.session = Session::New;
        self.with_this_token(path, names)
    }

    fn with_this_token(&mut self, path: &str, names: Tokens) -> Result<Answer, Text> {
        if matches!(&self.session, Session::With(_, since) if since.elapsed() >= TOKEN_USED) {
            self.session = Session::New;
        }
        if matches!(self.session, Session::New) {
            self.session = self.begin(names)?;
        }
        match &self.session {
            Session::With(token, _) => self.get(path, &[(names.token, token)]),
            Session::New | Session::Without => self.get(path, &[]),
        }
    }

    /// A session. A service without tokens has no such path or no such method; one that is switched off says 403.
    fn begin(&self, names: Tokens) -> Result<Session, Text> {
        let headers = &[(names.seconds, TOKEN_SECONDS)];
        let path = "/latest/api/token";
        let request = Request { method: "PUT", path, host: self.cloud.host, headers };
        let answer = http::ask(self.address, request)?;
        let token = answer.text();
        match answer.status {
            // Anything else could end the header in which it is sent back.
            200 if !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()) => {
                Ok(Session::With(token.to_owned(), Instant::now()))
            }
            200 => Err(not_understood(path)),
            404 | 405 | 501 => Ok(Session::Without),
            status => Err(refused(path, status)),
        }
    }

    /// The body of a GCP answer. The service is known by the header that it repeats.
    fn google(&self, path: &str) -> Result<Answer, Text> {
        let answer = self.get(path, &[GOOGLE])?;
        match answer.status {
            200 if answer.header(GOOGLE.0) == Some(GOOGLE.1.as_bytes()) => Ok(answer),
            200 => Err(not_understood(path)),
            status => Err(refused(path, status)),
        }
    }

    fn gcp_preempted(&mut self, now: SystemTime) -> Result<Option<End>, Text> {
        let path = "/computeMetadata/v1/instance/preempted";
        let answer = self.google(path)?;
        if !answers::gcp_preempted(answer.text()).map_err(|_| not_understood(path))? {
            (self.undisturbed, self.preempted) = (Some(now), None);
            return Ok(None);
        }
        // It was announced after the last look at the earliest, and not so long ago that it would be over.
        let since = self.undisturbed.unwrap_or(now);
        let soon = now + GCP_PREEMPTION / 2;
        let end = *self.preempted.get_or_insert((since + GCP_PREEMPTION).max(soon));
        Ok(Some(answers::gcp_preemption(end)))
    }

    fn gcp_maintenance(&self) -> Result<Option<End>, Text> {
        let path = "/computeMetadata/v1/instance/maintenance-event";
        let answer = self.google(path)?;
        if !answers::gcp_maintenance(answer.text()).map_err(|_| not_understood(path))? {
            return Ok(None);
        }
        let upcoming = self.google("/computeMetadata/v1/instance/upcoming-maintenance?alt=json");
        Ok(Some(answers::gcp_stop(&upcoming.map(|answer| answer.body).unwrap_or_default())))
    }

    fn azure(&mut self) -> Result<Vec<End>, Text> {
        // A list may be for all machines of a set, and those of others are no end.
        let name = match &self.name {
            Some(name) => name,
            None => {
                let path = "/metadata/instance/compute/name?api-version=2021-02-01&format=text";
                let answer = self.get(path, &[AZURE])?;
                match (answer.status, answer.text()) {
                    (200, "") => return Err(not_understood(path)),
                    (200, name) => self.name.insert(name.to_owned()),
                    (status, _) => return Err(refused(path, status)),
                }
            }
        };
        let name = name.clone();
        let path = "/metadata/scheduledevents?api-version=2020-07-01";
        let answer = self.get(path, &[AZURE])?;
        match answer.status {
            200 => {
                answers::azure(&answer.body, &name).map_err(|NotUnderstood| not_understood(path))
            }
            status => Err(refused(path, status)),
        }
    }
}

/// The headers of tokens, which two clouds call differently.
#[derive(Debug, Clone, Copy)]
struct Tokens {
    seconds: &'static str,
    token: &'static str,
}

const AWS: Tokens =
    Tokens { seconds: "X-aws-ec2-metadata-token-ttl-seconds", token: "X-aws-ec2-metadata-token" };
const ALIBABA: Tokens = Tokens {
    seconds: "X-aliyun-ecs-metadata-token-ttl-seconds",
    token: "X-aliyun-ecs-metadata-token",
};

/// The ends of an answer; a path that is not there has none.
fn or_none(
    answer: Answer,
    read: impl Fn(&Answer) -> Result<Vec<End>, NotUnderstood>,
) -> Result<Vec<End>, Text> {
    match answer.status {
        200 => read(&answer).map_err(|NotUnderstood| not_understood("its list of events")),
        404 => Ok(Vec::new()),
        status => Err(refused("its list of events", status)),
    }
}

fn refused(path: &str, status: u16) -> Text {
    text!("{path}: status {status}", "{path}：状态码 {status}")
}

fn not_understood(path: &str) -> Text {
    text!("{path}: an answer that is not understood", "{path}：无法理解的回答")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// A machine with these DMI strings.
    fn machine(strings: &[(&str, &str)]) -> Option<&'static str> {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("sys/class/dmi/id");
        std::fs::create_dir_all(&folder).expect("a folder");
        for (name, value) in strings {
            std::fs::write(folder.join(name), format!("{value}\n")).expect("a file");
        }
        of_machine(&Host::replayed(root.path(), BTreeMap::new())).map(|cloud| cloud.name)
    }

    /// sys_vendor, product_name, bios_version, board_vendor, chassis_asset_tag
    type Strings = [&'static str; 5];
    const FILES: Strings =
        ["sys_vendor", "product_name", "bios_version", "board_vendor", "chassis_asset_tag"];

    /// As published by the clouds, by cloud-init's tests (tests/unittests/test_ds_identify.py) and by inxi's reports.
    const MACHINES: &[(Option<&str>, Strings)] = &[
        (Some("AWS"), ["Amazon EC2", "p5.48xlarge", "1.0", "Amazon EC2", "Amazon EC2"]),
        (Some("AWS"), ["Amazon EC2", "c5.metal", "1.0", "Amazon EC2", "Amazon EC2"]),
        (Some("AWS"), ["Xen", "HVM domU", "4.11.amazon", "", ""]),
        (Some("GCP"), ["Google", "Google Compute Engine", "Google", "Google", ""]),
        (
            Some("Azure"),
            [
                "Microsoft Corporation",
                "Virtual Machine",
                "Hyper-V UEFI Release v4.1",
                "Microsoft Corporation",
                "7783-7084-3265-9085-8269-3286-77",
            ],
        ),
        (
            Some("Alibaba Cloud"),
            ["Alibaba Cloud", "Alibaba Cloud ECS", "449e4f3", "Alibaba Cloud", ""],
        ),
        (None, ["Xen", "HVM domU", "4.13.1", "", ""]),
        (None, ["Google", "Eve", "Google_Eve.9584.230.0", "Google", ""]),
        (
            None,
            [
                "Microsoft Corporation",
                "Virtual Machine",
                "Hyper-V UEFI Release v4.0",
                "Microsoft Corporation",
                "7783-7084-3265-9085-8269-3286-78",
            ],
        ),
        (None, ["Microsoft Corporation", "Surface Pro", "1.0", "Microsoft Corporation", "0"]),
        (None, ["OpenStack Foundation", "OpenStack Nova", "1.13.0-1ubuntu1.1", "", ""]),
        (None, ["QEMU", "Standard PC (i440FX + PIIX, 1996)", "1.5.1", "", "OracleCloud.com"]),
        (
            None,
            ["Oracle Corporation", "X9-2c", "66060300", "Oracle Corporation", "OracleCloud.com"],
        ),
        (None, ["Tencent Cloud", "CVM", "seabios-1.9.1-qemu-project.org", "Smdbmds", ""]),
        (None, ["Huawei Cloud", "OpenStack Nova", "rel-1.10.2", "", ""]),
        (None, ["DigitalOcean", "Droplet", "20171212", "DigitalOcean", ""]),
        (
            None,
            [
                "VMware, Inc.",
                "VMware7,1",
                "VMW71.00V.16707776",
                "Intel Corporation",
                "No Asset Tag",
            ],
        ),
        (None, ["QEMU", "Standard PC (Q35 + ICH9, 2009)", "rel-1.16.3", "", ""]),
        (None, ["NVIDIA", "DGXH100", "1.01.01", "NVIDIA", "0000000000"]),
        (None, ["Supermicro", "SYS-821GE-TNHR", "2.1", "Supermicro", "Default string"]),
        (None, ["Dell Inc.", "PowerEdge XE9680", "1.6.6", "Dell Inc.", ""]),
        (None, ["HPE", "ProLiant XL675d Gen10 Plus", "A47", "HPE", ""]),
        (None, ["Lenovo", "ThinkSystem SR675 V3", "QGE126G", "Lenovo", ""]),
        (None, ["Inspur", "NF5488A5", "4.10.0", "Inspur", ""]),
        (None, ["", "", "", "", ""]),
    ];

    fn named(strings: Strings) -> Vec<(&'static str, &'static str)> {
        FILES.into_iter().zip(strings).collect()
    }

    #[test]
    fn four_clouds_and_nobody_else() {
        for (cloud, strings) in MACHINES {
            assert_eq!(machine(&named(*strings)), *cloud, "{strings:?}");
        }
        assert_eq!(machine(&[]), None, "no DMI, as on most ARM boards and under gVisor");
    }

    fn of(strings: Strings) -> Option<&'static str> {
        let strings = named(strings);
        let value = |name: &str| strings.iter().find(|(known, _)| *known == name);
        let read = |name: &str| value(name).map_or("", |(_, value)| value).to_owned();
        by_strings(read).map(|cloud| cloud.name)
    }

    proptest! {
        /// Strings of two machines mixed, or cut: none but whole sets name a cloud.
        #[test]
        fn mixed_strings_name_only_a_cloud_they_prove(
            first in 0..MACHINES.len(), second in 0..MACHINES.len(), mix in prop::array::uniform5(any::<bool>()),
        ) {
            let (one, other) = (MACHINES[first], MACHINES[second]);
            let mut strings = one.1;
            for (at, swap) in mix.into_iter().enumerate() {
                if swap { strings[at] = other.1[at]; }
            }
            let found = of(strings);
            prop_assert!(found.is_none() || found == one.0 || found == other.0, "{:?}: {:?}", strings, found);
            let cut = strings.map(|text| text.get(1..).unwrap_or_default());
            prop_assert_eq!(of(cut), None);
        }
    }

    #[test]
    fn every_cloud_is_asked_at_a_literal_of_its_own_link() {
        for cloud in &CLOUDS {
            let Conversation { address, .. } = Conversation::new(cloud);
            assert_eq!(address.port(), 80);
            let is_alibaba = cloud.source == NoticeSource::Alibaba;
            assert_eq!(cloud.address.is_link_local(), !is_alibaba, "{}", cloud.name);
        }
    }
}
