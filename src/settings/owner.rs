//! Decides whether a profile that was only found may be used.
//!
//! A profile names the interpreter, which `plan`, `check` and a launch execute. A user who names a
//! profile trusts it. A profile that lies in the working directory may be anybody's; git's
//! `safe.directory` and ssh's StrictModes guard against the same. So a profile that was only found counts
//! only if nobody but this user, root and the owner of this executable can write it.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::StatVfsMountFlags;

use linux::users;
use text::lang::Text;
use text::text;
use verdict::{Id, Warning};

/// Folders in which a profile is searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Beside the executable, and /etc/ranklaunch: the creator of the container or the node fills these.
    System,
    WorkingDirectory,
}

/// Owner, group and mode of a folder or a file, which say who may change it.
#[derive(Debug, Clone, Copy)]
struct Held {
    uid: u32,
    gid: u32,
    mode: u32,
}

impl From<&Metadata> for Held {
    fn from(of: &Metadata) -> Held {
        Held { uid: of.uid(), gid: of.gid(), mode: of.mode() }
    }
}

/// The ids of this process, which decide whom it trusts.
#[derive(Debug, Clone)]
struct Us {
    uid: u32,
    groups: Vec<u32>,
    /// The owner of this executable, who decides what we run anyway.
    executable: Option<u32>,
    /// The uid by which the kernel shows users that this user namespace does not have.
    unmapped: Option<u32>,
}

/// The reason why somebody else may change a file or folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doubt {
    Owner(u32),
    /// Its owner is outside of the container.
    Outside,
    Group(u32),
    Everybody,
}

impl Us {
    fn now() -> Us {
        let groups = rustix::process::getgroups().unwrap_or_default();
        let own = rustix::process::getegid();
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let overflow = read("/proc/sys/kernel/overflowuid").trim().parse().unwrap_or(65534);
        Us {
            uid: rustix::process::geteuid().as_raw(),
            groups: groups.into_iter().chain([own]).map(|group| group.as_raw()).collect(),
            executable: std::fs::metadata("/proc/self/exe").ok().map(|of| of.uid()),
            unmapped: (!maps(&read("/proc/self/uid_map"), overflow)).then_some(overflow),
        }
    }

    fn doubt_of_owner(&self, held: Held, place: Place) -> Option<Doubt> {
        if self.unmapped == Some(held.uid) {
            return (place == Place::WorkingDirectory).then_some(Doubt::Outside);
        }
        let is_trusted = [Some(self.uid), Some(0), self.executable].contains(&Some(held.uid));
        (!is_trusted).then_some(Doubt::Owner(held.uid))
    }

    /// A colleague of our own group may change our scripts as well.
    fn doubt_of_mode(&self, held: Held) -> Option<Doubt> {
        let is_foreign = held.gid != 0 && !self.groups.contains(&held.gid);
        match held.mode {
            mode if mode & 0o002 != 0 => Some(Doubt::Everybody),
            mode if mode & 0o020 != 0 && is_foreign => Some(Doubt::Group(held.gid)),
            _ => None,
        }
    }

    /// `is_fixed`: the file system is mounted read-only, as a ConfigMap is, whose folder has mode 0777.
    fn doubt(
        &self,
        folder: Held,
        file: Held,
        is_fixed: bool,
        place: Place,
    ) -> Option<(Doubt, bool)> {
        let of = |doubt: Option<Doubt>, is_folder| doubt.map(|doubt| (doubt, is_folder));
        let owner = || {
            of(self.doubt_of_owner(folder, place), true)
                .or_else(|| of(self.doubt_of_owner(file, place), false))
        };
        // In a folder with the sticky bit, such as /tmp, nobody can replace the file of another.
        let is_sticky = folder.mode & 0o1000 != 0;
        let mode = || {
            let of_folder = self.doubt_of_mode(folder).filter(|_| !is_sticky);
            of(of_folder, true).or_else(|| of(self.doubt_of_mode(file), false))
        };
        owner().or_else(|| if is_fixed { None } else { mode() })
    }
}

/// Whether a user namespace has a user: `/proc/self/uid_map` has rows of inside, outside and count.
fn maps(uid_map: &str, uid: u32) -> bool {
    let mut rows = uid_map.lines().peekable();
    // Without user namespaces in the kernel there is no such file.
    rows.peek().is_none()
        || rows.any(|row| {
            let numbers: Vec<u64> =
                row.split_ascii_whitespace().filter_map(|number| number.parse().ok()).collect();
            matches!(numbers[..], [inside, _, count]
                if (inside..inside.saturating_add(count)).contains(&u64::from(uid)))
        })
}

/// The reason why this open file must not decide what is executed; None if it may.
pub(super) fn distrust(path: &Path, file: &File, place: Place) -> Option<Warning> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let folder = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let of_folder = folder.metadata().ok()?;
    let of_file = file.metadata().ok()?;
    let mount = rustix::fs::fstatvfs(file).ok();
    let is_fixed = mount.is_some_and(|mount| mount.f_flag.contains(StatVfsMountFlags::RDONLY));
    let us = Us::now();
    let (doubt, is_folder) = us.doubt((&of_folder).into(), (&of_file).into(), is_fixed, place)?;
    let of = match is_folder {
        true => folder.as_path(),
        false => path,
    };
    Some(warning(path, of, doubt, us.uid))
}

fn warning(path: &Path, of: &Path, doubt: Doubt, us: u32) -> Warning {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let (path, of, us) = (absolute.display(), of.display(), users::named(us));
    let Text { en, zh } = match doubt {
        Doubt::Owner(uid) => {
            let user = users::named(uid);
            text!("belongs to user {user}", "属于用户 {user}")
        }
        Doubt::Outside => {
            text!("belongs to a user outside of this container", "属于此容器之外的用户")
        }
        Doubt::Group(gid) => {
            text!("can be written by group {gid}", "可由组 {gid} 写入")
        }
        Doubt::Everybody => text!("can be written by everybody", "任何用户都可写入"),
    };
    let mend = match doubt {
        Doubt::Owner(_) | Doubt::Outside => "chown",
        Doubt::Group(_) => "chmod g-w",
        Doubt::Everybody => "chmod o-w",
    };
    Warning::new(
        Id::SettingsProfileOwner,
        text!(
            "the profile {path} was found but is not used: {of} {en}, and this is user {us}",
            "找到了配置文件 {path}，但没有使用：{of} {zh}，而当前用户为 {us}"
        ),
        text!(
            "use it with --profile {path}, or let nobody else write it: {mend} {of}",
            "若要使用，请写 --profile {path}；或使其他人无法写入：{mend} {of}"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn found_profile_writable_by_others_is_ignored() {
        use Doubt::{Everybody, Group, Outside, Owner};
        use Place::{System, WorkingDirectory as Here};
        let root = Us { uid: 0, groups: vec![0], executable: Some(0), unmapped: None };
        let bob = Us { uid: 1000, groups: vec![1000, 50], executable: Some(0), unmapped: None };
        let tool = Us { executable: Some(500), ..bob.clone() };
        // A rootless container: only its own users are mapped.
        let inside = Us { unmapped: Some(65534), ..root.clone() };
        let held = |uid, gid, mode| Held { uid, gid, mode };
        let file = |uid| held(uid, uid, 0o644);
        for (us, folder, file, is_fixed, place, expected) in [
            (&root, held(0, 0, 0o755), file(0), false, Here, None),
            (&root, held(1000, 1000, 0o755), file(1000), false, Here, Some((Owner(1000), true))),
            (&root, held(0, 0, 0o755), file(1000), false, Here, Some((Owner(1000), false))),
            (&root, held(1000, 1000, 0o755), file(0), false, System, Some((Owner(1000), true))),
            (&root, held(0, 0, 0o777), file(0), false, Here, Some((Everybody, true))),
            // A ConfigMap.
            (&root, held(0, 0, 0o777), file(0), true, System, None),
            (&root, held(0, 0, 0o1777), file(0), false, Here, None),
            (&root, held(0, 0, 0o1777), file(1000), false, Here, Some((Owner(1000), false))),
            (&root, held(0, 33, 0o775), file(0), false, Here, Some((Group(33), true))),
            (&root, held(0, 0, 0o775), file(0), false, Here, None),
            (&root, held(0, 0, 0o755), held(0, 0, 0o666), false, Here, Some((Everybody, false))),
            (&bob, held(1000, 1000, 0o775), held(1000, 1000, 0o664), false, Here, None),
            (&bob, held(1000, 50, 0o2775), file(1000), false, Here, None),
            (&bob, held(1000, 33, 0o2775), file(1000), false, Here, Some((Group(33), true))),
            (&bob, held(0, 0, 0o755), file(0), false, System, None),
            (&bob, held(500, 500, 0o755), file(500), false, System, Some((Owner(500), true))),
            (&tool, held(500, 500, 0o755), file(500), false, System, None),
            (
                &root,
                held(65534, 65534, 0o755),
                file(65534),
                false,
                Here,
                Some((Owner(65534), true)),
            ),
            (&inside, held(65534, 65534, 0o755), file(65534), false, Here, Some((Outside, true))),
            (&inside, held(65534, 65534, 0o755), file(65534), false, System, None),
        ] {
            let doubt = us.doubt(folder, file, is_fixed, place);
            assert_eq!(doubt, expected, "{us:?} {folder:?} {file:?} {place:?}");
        }
    }

    #[test]
    fn user_namespace_has_only_mapped_users() {
        for (map, has) in [
            ("         0          0 4294967295\n", true),
            ("0 1000 1\n", false),
            ("0 1000 1\n1 100000 65535\n", true),
            ("0 100000 65534\n", false),
            ("", true),
        ] {
            assert_eq!(maps(map, 65534), has, "{map}");
        }
    }
}
