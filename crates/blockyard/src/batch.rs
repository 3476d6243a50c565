//! Reading directories in batches.

use blockyard_engine::{DirEntry, Error, FileSystem, InodeRef};

/// Entries, and where those behind them begin.
type Batch = (Vec<DirEntry>, Option<u64>);

/// Entries of a directory from a position on, without `.` and `..`, and where those behind them
/// begin. Entries of equal positions stay together.
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
    let (mut batch, mut position, mut is_whole) = (Vec::new(), None, true);
    engine.read_dir(directory, from, |entry| {
        if batch.len() >= most && position != Some(entry.next) {
            is_whole = false;
            return false;
        }
        position = Some(entry.next);
        if is_wanted(&entry) {
            batch.push(entry);
        }
        true
    })?;
    Ok((batch, position.filter(|_| !is_whole)))
}
