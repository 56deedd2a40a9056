//! Versions of torch, NCCL, CUDA and drivers.

use std::str::FromStr;

/// The leading numbers of a version; suffixes (`+cu130`, `rc1`) are ignored in comparisons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
    pub patch: u32,
}

impl Version {
    pub const fn new(major: u32, minor: u32, patch: u32) -> Version {
        Version { major, minor, patch }
    }
}

impl FromStr for Version {
    type Err = std::num::ParseIntError;

    /// `2.15.0+cu130`, `13.0`, `535.86.10`; missing parts are 0.
    fn from_str(text: &str) -> Result<Version, Self::Err> {
        let mut parts = text.split('.').map(|part| {
            let end = part.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(part.len());
            part.get(..end).unwrap_or_default().parse::<u32>()
        });
        let major = parts.next().unwrap_or_else(|| "".parse())?;
        let mut more = parts.map_while(Result::ok);
        let (minor, patch) = (more.next().unwrap_or(0), more.next().unwrap_or(0));
        Ok(Version { major, minor, patch })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_numbers_count() {
        for (text, expected) in [
            ("2.15.0+cu130", Some(Version::new(2, 15, 0))),
            ("2.0.0a0+git", Some(Version::new(2, 0, 0))),
            ("2.10rc1", Some(Version::new(2, 10, 0))),
            ("13.0", Some(Version::new(13, 0, 0))),
            ("535.86.10", Some(Version::new(535, 86, 10))),
            ("580", Some(Version::new(580, 0, 0))),
            ("", None),
            ("unknown", None),
        ] {
            assert_eq!(text.parse().ok(), expected, "{text}");
        }
        assert!(Version::new(2, 9, 9) < Version::new(2, 15, 0));
    }
}
