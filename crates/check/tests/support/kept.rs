//! What is left of the files of an image: by path, by inode, and by content.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use blockyard_device::{BlockDevice, FileDevice};
use blockyard_disk::{FileType, Inode};
use blockyard_inspect::reader::Reader;

/// One file: what must be equal for it to count as kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) inode: u32,
    pub(crate) mode: u16,
    pub(crate) size: u64,
    pub(crate) content: u64,
}

/// The files of an image, by path.
pub(crate) type Files = BTreeMap<Vec<u8>, File>;

/// Reads every file that can be read, and leaves out the others. Returns no files if the image
/// cannot be opened.
pub(crate) fn files(image: &Path) -> Files {
    FileDevice::open_read_only(image).map_or_else(|_| Files::new(), |device| files_on(Arc::new(device)))
}

/// As [`files`], of a device.
pub(crate) fn files_on(device: Arc<dyn BlockDevice>) -> Files {
    let mut files = Files::new();
    let Ok(reader) = Reader::open(device) else { return files };
    let Ok(root) = reader.root() else { return files };
    let mut pending = vec![(Vec::new(), root)];
    let mut entered = std::collections::BTreeSet::new();
    while let Some((path, directory)) = pending.pop() {
        if !entered.insert(directory.number()) {
            continue;
        }
        let Ok(entries) = reader.listed(&directory) else { continue };
        for entry in entries.into_iter().filter(|entry| entry.name != b"." && entry.name != b"..") {
            let Ok(inode) = reader.inode(entry.inode) else { continue };
            let path = [&path[..], b"/", &entry.name].concat();
            if let Some(content) = content(&reader, &inode) {
                let (nr, mode) = (inode.number().raw(), inode.mode());
                let size = if inode.is_directory() { 0 } else { inode.size() };
                files.insert(path.clone(), File { inode: nr, mode, size, content });
            }
            if inode.is_directory() {
                pending.push((path, inode));
            }
        }
    }
    files
}

/// A hash of the content; `None` when it cannot be read.
fn content(reader: &Reader, inode: &Inode) -> Option<u64> {
    let mut hash = 0xCBF2_9CE4_8422_2325u64;
    let mut add = |bytes: &[u8]| {
        for word in bytes.chunks(8) {
            let mut padded = [0; 8];
            padded[..word.len()].copy_from_slice(word);
            hash = (hash ^ u64::from_le_bytes(padded)).wrapping_mul(0x100_0000_01B3).rotate_left(29);
        }
    };
    match inode.file_type() {
        FileType::Regular => {
            add(&inode.size().to_le_bytes());
            let mut buffer = vec![0; 1 << 18];
            let mut at = 0u64;
            // A damaged size can add a sparse end of gigabytes, which is not the file's content. So
            // at most 64 MiB are read.
            while at < inode.size().min(64 << 20) {
                let read = reader.read(inode, at, &mut buffer).ok().filter(|read| *read > 0)?;
                // Holes are many and long, so only pieces with content count, each with its place.
                for (piece, nth) in buffer[..read].chunks(4096).zip(0u64..) {
                    if piece.iter().any(|byte| *byte != 0) {
                        add(&(at + 4096 * nth).to_le_bytes());
                        add(piece);
                    }
                }
                at += blockyard_disk::num::u64_from_usize(read);
            }
        }
        FileType::Symlink => add(&reader.symlink_target(inode).ok()?),
        FileType::CharDevice | FileType::BlockDevice => add(inode.block_field()),
        _ => {}
    }
    Some(hash)
}

/// How much of a file is left: 2 if it is unchanged at its path, 1 if it is unchanged at another
/// path of its inode, and 0 otherwise.
fn score(path: &[u8], file: &File, left: &Left<'_>) -> u8 {
    if left.files.get(path) == Some(file) {
        return 2;
    }
    u8::from(left.by_inode.get(&file.inode).is_some_and(|others| others.contains(&file)))
}

/// What a repair left, by path and by inode.
struct Left<'f> {
    files: &'f Files,
    by_inode: BTreeMap<u32, Vec<&'f File>>,
}

impl<'f> Left<'f> {
    fn of(files: &'f Files) -> Self {
        let mut by_inode: BTreeMap<u32, Vec<&File>> = BTreeMap::new();
        for file in files.values() {
            by_inode.entry(file.inode).or_default().push(file);
        }
        Self { files, by_inode }
    }
}

/// A file that one repair keeps better than another.
#[derive(Debug)]
pub(crate) struct Worse {
    pub(crate) path: Vec<u8>,
    pub(crate) inode: u32,
    /// How much of it is left by our repair and by the other: see [`score`].
    pub(crate) left: (u8, u8),
}

/// The files that another repair keeps better than ours, and how many files ours keeps better.
pub(crate) fn compare(before: &Files, ours: &Files, theirs: &Files) -> (Vec<Worse>, usize) {
    let (ours, theirs) = (Left::of(ours), Left::of(theirs));
    let (mut worse, mut better) = (Vec::new(), 0);
    for (path, file) in before {
        let left = (score(path, file, &ours), score(path, file, &theirs));
        if left.0 < left.1 {
            worse.push(Worse { path: path.clone(), inode: file.inode, left });
        }
        better += usize::from(left.0 > left.1);
    }
    (worse, better)
}

/// The files that are no longer at their paths with equal inode, mode, size and content.
pub(crate) fn missing(before: &Files, left: &Files) -> Vec<Vec<u8>> {
    before.iter().filter(|(path, file)| left.get(*path) != Some(file)).map(|(path, _)| path.clone()).collect()
}
