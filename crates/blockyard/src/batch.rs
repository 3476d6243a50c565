//! Reading directories in batches.

use blockyard_engine::{DirEntry, Error, FileSystem, InodeRef};

/// Entries of a directory from a position on, without `.` and `..`, and where those behind them begin. Entries of equal positions
/// stay together.
pub(crate) fn read_batch(
    engine: &FileSystem,
    directory: InodeRef,
    from: u64,
    most: usize,
) -> std::result::Result<(Vec<DirEntry>, Option<u64>), Error> {
    let (mut batch, mut position, mut is_whole) = (Vec::new(), None, true);
    engine.read_dir(directory, from, |entry| {
        if batch.len() >= most && position != Some(entry.next) {
            is_whole = false;
            return false;
        }
        position = Some(entry.next);
        if entry.name != b"." && entry.name != b".." {
            batch.push(entry);
        }
        true
    })?;
    Ok((batch, position.filter(|_| !is_whole)))
}
