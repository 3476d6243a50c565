//! Images, damages of them, and the judges of their repairs.

#![allow(dead_code, reason = "each test binary uses a part")]

pub(crate) mod base;
pub(crate) mod draw;
pub(crate) mod judge;
pub(crate) mod kept;
pub(crate) mod small;

/// A folder in memory if there is one: nothing here has to be durable.
pub(crate) fn folder() -> tempfile::TempDir {
    let memory = std::path::Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("a folder")
}
