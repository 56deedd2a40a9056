//! The layers of settings that are files: the platform's file, and above it the profile.

use super::Source;
use text::lang::Text;
use text::text;
use verdict::Id;

/// The usual place of the platform's file.
pub(super) const SITE_FILE: &str = "/etc/ranklaunch/site.toml";

/// The variable that names another one.
pub(super) const SITE_VARIABLE: &str = "RANKLAUNCH_SITE";

/// The layers of settings that are files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileLayer {
    /// The platform's file, below every profile.
    Site,
    Profile,
}

impl FileLayer {
    /// The id of a refusal of the file.
    pub(super) fn id(self) -> Id {
        match self {
            FileLayer::Site => Id::SettingsSite,
            FileLayer::Profile => Id::SettingsProfile,
        }
    }

    /// The file in a sentence.
    pub(super) fn noun(self) -> Text {
        match self {
            FileLayer::Site => text!("the platform's file", "平台配置"),
            FileLayer::Profile => text!("the profile", "配置文件"),
        }
    }

    /// The hint for a file that cannot be read.
    pub(super) fn instead(self) -> Text {
        match self {
            FileLayer::Site => text!(
                "mend the file, or start without it: {SITE_VARIABLE}=none",
                "请修复该文件；暂不使用时设 {SITE_VARIABLE}=none"
            ),
            FileLayer::Profile => {
                text!("name another profile with --profile", "请用 --profile 指定其他配置文件")
            }
        }
    }

    /// The hint for a key that only this layer has.
    pub(super) fn has_it(self) -> Text {
        match self {
            FileLayer::Site => text!(
                "only the platform's file has it: {SITE_FILE}, or the file that {SITE_VARIABLE} names",
                "该键只能写在平台配置中：{SITE_FILE}，或 {SITE_VARIABLE} 指定的文件"
            ),
            FileLayer::Profile => text!(
                "only a profile has it; the platform's file is one file below every profile",
                "该键只能写在配置文件中；平台配置是单个文件，位于所有配置文件之下"
            ),
        }
    }

    pub(super) fn source(self, file: &str, line: usize) -> Source {
        let file = file.to_owned();
        match self {
            FileLayer::Site => Source::Site { file, line },
            FileLayer::Profile => Source::Profile { file, line },
        }
    }
}
