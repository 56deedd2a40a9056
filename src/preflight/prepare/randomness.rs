//! Checks for random bytes, without which the standard library would abort the program.

use linux::random;
use text::lang::{Text, cause};
use text::text;
use verdict::{Id, Refusal};

/// Called first of all, since maps of the standard library need random bytes.
///
/// # Errors
/// On a kernel or in a container without getrandom(2), if the root has no /dev/urandom.
pub fn has_randomness() -> Result<(), Refusal> {
    random::fill(&mut [0]).map_err(|error| {
        let Text { en, zh } = cause(&error);
        Refusal::new(
            Id::RandomNone,
            text!(
                "the kernel gives no random bytes ({en}), and /dev/urandom cannot be read",
                "无法从内核取得随机数（{zh}），也无法读取 /dev/urandom"
            ),
            text!(
                "let the container have /dev/urandom and the system call getrandom (Linux 3.17)",
                "请让容器可以使用 /dev/urandom 和系统调用 getrandom（Linux 3.17 起）"
            ),
        )
    })
}
