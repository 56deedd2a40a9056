//! Random bytes: without any the program would be ended by its own library.

use crate::random;
use crate::text;
use crate::verdict::{Id, Refusal};

/// Asked before anything else: maps of the standard library want some.
///
/// # Errors
/// A kernel or a container without getrandom(2), in a root without /dev/urandom.
pub fn has_randomness() -> Result<(), Refusal> {
    random::check().map_err(|error| {
        Refusal::new(
            Id::RandomNone,
            text!(
                "the kernel gives no random bytes ({error}), and /dev/urandom cannot be read",
                "无法从内核取得随机数（{error}），也无法读取 /dev/urandom"
            ),
            text!(
                "let the container have /dev/urandom and the system call getrandom (Linux 3.17)",
                "请让容器可以使用 /dev/urandom 和系统调用 getrandom（Linux 3.17 起）"
            ),
        )
    })
}
