//! Makes start images with mke2fs.
//!
//! The hash seed is fixed, because the hash of a directory's name can decide where the directory
//! goes. With a random seed, the same ageing would give another layout each time. The UUID is fixed
//! so that the images are equal to the byte.

use std::path::Path;

use super::command::{run, text};

const UUID: &str = "6a6a6a6a-1111-2222-3333-444444444444";
const EXTENDED: &str =
    "nodiscard,lazy_itable_init=1,lazy_journal_init=1,hash_seed=6a6a6a6a-5555-6666-7777-888888888888";

/// Makes a file system on an image file with these blank-separated arguments, which may name a
/// type other than ext4.
///
/// # Errors
/// When mke2fs refuses.
pub(super) fn make(asked: &str, image: &Path) -> anyhow::Result<()> {
    let mut arguments = vec!["-q", "-F", "-U", UUID, "-E", EXTENDED];
    let asked: Vec<&str> = asked.split_whitespace().collect();
    // mke2fs accepts one type only. (`-t` and its value may be one word.)
    if !asked.iter().any(|word| word.starts_with("-t")) {
        arguments.extend(["-t", "ext4"]);
    }
    arguments.extend(asked);
    arguments.push(text(image)?);
    run("mke2fs", &arguments).map(drop)
}
