//! Reading directories in batches.

use blockyard_engine::{DirEntry, Error, FileSystem, InodeRef};

/// The entries of a batch, and the position where the next batch begins; `None` after the last.
type Batch = (Vec<DirEntry>, Option<u64>);

/// The next `most` entries of a directory from position `from`, without `.` and `..`, and the
/// position of the next batch. Entries whose names have the same hash have the same position. They
/// stay in one batch, which may then exceed `most`. If an error occurs after some entries were
/// read, this call returns those entries, and a later call fails.
pub(crate) fn read_batch(
    engine: &FileSystem,
    directory: InodeRef,
    from: u64,
    most: usize,
) -> std::result::Result<Batch, Error> {
    read_wanted(engine, directory, (from, most), |entry| entry.name != b"." && entry.name != b"..")
}

/// As [`read_batch`], with `.` and `..`.
pub(crate) fn read_batch_with_dots(
    engine: &FileSystem,
    directory: InodeRef,
    from: u64,
    most: usize,
) -> std::result::Result<Batch, Error> {
    read_wanted(engine, directory, (from, most), |_| true)
}

fn read_wanted(
    engine: &FileSystem,
    directory: InodeRef,
    (from, most): (u64, usize),
    is_wanted: impl Fn(&DirEntry) -> bool,
) -> std::result::Result<Batch, Error> {
    // Callers take an empty batch for the end of the directory.
    let most = most.max(1);
    let (mut batch, mut position, mut is_whole) = (Vec::new(), None, true);
    let read = engine.read_dir(directory, from, |entry| {
        if batch.len() >= most && position != Some(entry.next) {
            is_whole = false;
            return false;
        }
        position = Some(entry.next);
        if is_wanted(&entry) {
            batch.push(entry);
        }
        true
    });
    match read {
        Err(_) if !batch.is_empty() => Ok((batch, position)),
        read => read.map(|()| (batch, position.filter(|_| !is_whole))),
    }
}
