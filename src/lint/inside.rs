//! Commands that another program starts elsewhere: in a container, or on another host.
//!
//! Takes the words of `docker run …`, `apptainer exec …`, `ssh …`; gives the command in them. Only where it is certain
//! which word starts the program: an option that is in no list of its row, or a verb of another name, gives None.

use super::launches::base;
use adopt::shell::{Word, is_name};

/// A program that starts a command elsewhere.
struct Wrapper {
    names: &'static [&'static str],
    /// The word that follows the name.
    verb: &'static str,
    /// Letters and names of the options without a value.
    switches: (&'static str, &'static str),
    /// Letters and names of the options with one; `*`: all others.
    valued: (&'static str, &'static str),
    /// The command is a text that a shell reads again.
    is_text: bool,
    /// The command has the variables of its caller.
    keeps_variables: bool,
}

/// docs.docker.com, "docker container run" and "exec"; podman-run(1), podman-exec(1); docs of apptainer 1.3,
/// SingularityCE 4.1 and enroot; ssh(1).
const WRAPPERS: &[Wrapper] = &[
    Wrapper {
        names: &["docker", "podman", "nerdctl"],
        verb: "run",
        switches: (
            "diPqt",
            "detach disable-content-trust env-host http-proxy init interactive no-healthcheck no-hostname no-hosts \
             oom-kill-disable passwd privileged publish-all quiet read-only read-only-tmpfs replace rm rmi rootfs \
             sig-proxy tls-verify tty use-api-socket",
        ),
        valued: ("acehlmpuvw", "*"),
        is_text: false,
        keeps_variables: false,
    },
    Wrapper {
        names: &["docker", "podman", "nerdctl"],
        verb: "exec",
        switches: ("dit", "detach interactive tty privileged"),
        valued: ("euw", "env env-file user workdir detach-keys"),
        is_text: false,
        keeps_variables: false,
    },
    Wrapper {
        names: &["apptainer", "singularity"],
        verb: "exec",
        switches: (
            "Ccefinpuw",
            "allow-setuid cleanenv compat contain containall disable-cache fakeroot ipc keep-privs net no-eval no-home \
             no-https no-init no-privs no-umask nv nvccli pid rocm underlay unsquash userns uts writable writable-tmpfs",
        ),
        valued: (
            "BHSWo",
            "add-caps app apply-cgroups bind cpus cpuset-cpus dns drop-caps env env-file fusemount home hostname \
             memory mount network network-args no-mount overlay pids-limit pwd cwd scratch security workdir",
        ),
        is_text: false,
        keeps_variables: true,
    },
    Wrapper {
        names: &["enroot"],
        verb: "start",
        switches: ("rw", "root rw"),
        valued: ("cem", "conf rc env mount"),
        is_text: false,
        keeps_variables: true,
    },
    Wrapper {
        names: &["ssh"],
        verb: "",
        switches: ("46AaCfgKkMnqTtvXxYy", ""),
        valued: ("BbcDEeFIiJLlmoPpRSw", ""),
        is_text: true,
        keeps_variables: false,
    },
];

/// A command that runs elsewhere.
pub(super) struct InnerCommand {
    pub(super) words: Vec<Word>,
    /// The words are one text for a shell.
    pub(super) is_text: bool,
    pub(super) keeps_variables: bool,
    /// Assignments for the command alone.
    pub(super) variables: Vec<Word>,
}

impl Wrapper {
    /// Whether an option takes a value; None: it is not known.
    fn takes_value(&self, is_in: impl Fn((&str, &str)) -> bool) -> Option<bool> {
        match (is_in(self.switches), is_in(self.valued)) {
            (true, _) => Some(false),
            (false, true) => Some(true),
            (false, false) => None,
        }
    }

    /// The last option of a word, with the value that is attached or none: `--env=A`, `-itw/x`. Err: its value is the next
    /// word.
    fn option<'a>(&self, text: &'a str) -> Option<(&'a str, Result<Option<&'a str>, ()>)> {
        if let Some(long) = text.strip_prefix("--") {
            let (name, value) =
                long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
            let takes = self.takes_value(|(_, names)| {
                names.split(' ').any(|known| known == name || known == "*")
            });
            let value = if takes? && value.is_none() { Err(()) } else { Ok(value) };
            return Some((name, value));
        }
        let mut letter = "";
        for (at, _) in text.char_indices().skip(1) {
            let rest = text.get(at + 1..)?;
            letter = text.get(at..at + 1)?;
            if self.takes_value(|(letters, _)| letters.contains(letter))? {
                let value = if rest.is_empty() { Err(()) } else { Ok(Some(rest)) };
                return Some((letter, value));
            }
        }
        Some((letter, Ok(None)))
    }

    fn inner(&self, mut rest: &[Word]) -> Option<InnerCommand> {
        if !self.verb.is_empty() {
            let (verb, words) = rest.split_first()?;
            rest = words;
            if verb.text() != self.verb {
                return None;
            }
        }
        let (mut entry, mut variables, mut place) = (None, Vec::new(), None);
        let mut keeps = self.keeps_variables;
        while let Some((word, words)) = rest.split_first() {
            let text = word.text();
            if !text.starts_with('-') || text.len() < 2 {
                // The image, the container or the host; behind it only ssh reads options.
                if place.is_some() {
                    break;
                }
                (place, rest) = (Some(word), words);
                if self.is_text {
                    continue;
                }
                break;
            }
            rest = words;
            if text == "--" {
                continue;
            }
            let (name, value) = self.option(text)?;
            let value = match value {
                Ok(None) => {
                    keeps &= !["e", "C", "cleanenv", "containall"].contains(&name);
                    continue;
                }
                Ok(Some(value)) => word.part(value),
                Err(()) => {
                    let (value, words) = rest.split_first()?;
                    rest = words;
                    value.clone()
                }
            };
            match name {
                "entrypoint" => entry = Some(value).filter(|value| !value.text().is_empty()),
                // apptainer takes several in one value.
                "e" | "env" if !self.keeps_variables && !self.is_text => variables.push(value),
                _ => {}
            }
        }
        place?;
        let words: Vec<Word> = entry.into_iter().chain(rest.iter().cloned()).collect();
        let is_assignment =
            |word: &Word| word.text().split_once('=').is_some_and(|(name, _)| is_name(name));
        variables.retain(is_assignment);
        let program = words.first()?;
        // An expansion may be several words, or none: the program may be the next one.
        let is_known = program.is_plain() || (self.is_text && program.shown().contains(' '));
        is_known.then_some(InnerCommand {
            words,
            is_text: self.is_text,
            keeps_variables: keeps,
            variables,
        })
    }
}

/// The command in these words, if they start one elsewhere and it is certain which word begins it.
pub(super) fn command_in(words: &[Word]) -> Option<InnerCommand> {
    let (first, rest) = words.split_first()?;
    let name = base(first.text());
    // Only ranklaunch is looked for: of others it often cannot be said what the image adds.
    let names_us = rest.iter().any(|word| word.text().contains("ranklaunch"));
    WRAPPERS
        .iter()
        .filter(|row| names_us && row.names.contains(&name))
        .find_map(|row| row.inner(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each way in which these programs name what they start, and what is left where it is not certain.
    #[test]
    fn program_begins_behind_image_container_or_host() {
        for (line, expected) in [
            ("docker run img ranklaunch run", Some("ranklaunch run")),
            ("docker run --rm -it --gpus all -v /a:/b -eA=1 img ranklaunch", Some("ranklaunch")),
            ("docker run --rm --new-option x img ranklaunch", Some("ranklaunch")),
            ("docker run -itw /x --name=a $IMAGE ranklaunch", Some("ranklaunch")),
            ("docker run $OPTIONS $IMAGE ranklaunch", None),
            ("docker run --entrypoint ranklaunch img run", Some("ranklaunch run")),
            ("docker run --entrypoint= img ranklaunch", Some("ranklaunch")),
            ("docker run ranklaunch", None),
            ("docker run -Zx img ranklaunch", None),
            ("docker build -t ranklaunch .", None),
            ("docker --context a run img ranklaunch", None),
            ("/usr/bin/podman run --replace img bash -c ranklaunch", Some("bash -c ranklaunch")),
            ("docker exec -itu root -w /x c1 ranklaunch", Some("ranklaunch")),
            ("docker exec --new x c1 ranklaunch", None),
            ("docker exec c1 python a.py", None),
            ("apptainer exec --nv -B /a:/b -e a.sif ranklaunch", Some("ranklaunch")),
            ("singularity exec --nv --bind /a docker://img ranklaunch", Some("ranklaunch")),
            ("singularity exec --unknown a.sif ranklaunch", None),
            ("apptainer run a.sif ranklaunch", None),
            ("enroot start -rw -m /a:/b --env A=1 name ranklaunch", Some("ranklaunch")),
            ("ssh h ranklaunch run", Some("ranklaunch run")),
            ("ssh -tt -p 22 -o A=b me@h -x -- ranklaunch", Some("ranklaunch")),
            ("ssh -p22 $H ranklaunch", Some("ranklaunch")),
            ("ssh $OPTIONS $H ranklaunch", None),
            ("ssh -N h ranklaunch", None),
            ("ssh h", None),
            ("ssh", None),
            ("scp ranklaunch h:", None),
        ] {
            let words: Vec<Word> = line
                .split(' ')
                .map(|word| {
                    let name = word.strip_prefix('$').map(|name| format!("$({name})"));
                    Word::of_container(name.as_deref().unwrap_or(word), 0)
                })
                .collect();
            let inner = command_in(&words)
                .map(|inner| inner.words.iter().map(Word::shown).collect::<Vec<_>>().join(" "));
            assert_eq!(inner.as_deref(), expected, "{line}");
        }
    }
}
