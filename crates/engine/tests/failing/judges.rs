//! How an image is judged after a run: by the files in it, by e2fsck, and by our own recovery.

use super::expected::{Body, Seen, View};
use crate::support::context;
use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_disk::inode::FileType;
use blockyard_disk::superblock::{FsState, PRIMARY_OFFSET, RawSuperblock, Superblock};
use blockyard_disk::{Checksums, InodeNr};
use blockyard_engine::{FileSystem, OpenOptions, Result};
use blockyard_testkit::{have_tool, run};
use std::path::PathBuf;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// Everything below a directory.
pub(crate) fn view(fs: &FileSystem, dir: InodeNr) -> Result<View> {
    let mut view = View::new();
    let mut left = vec![(String::new(), dir)];
    while let Some((prefix, dir)) = left.pop() {
        let mut entries = Vec::new();
        fs.read_dir(dir, 0, |entry| {
            if entry.name != b"." && entry.name != b".." {
                entries.push((String::from_utf8(entry.name).unwrap(), entry.inode));
            }
            true
        })?;
        for (name, inode) in entries {
            let path = format!("{prefix}{name}");
            let seen = look(fs, inode)?;
            if seen.body == Body::Directory {
                left.push((format!("{path}/"), inode));
            }
            view.insert(path, seen);
        }
    }
    Ok(view)
}

fn look(fs: &FileSystem, inode: InodeNr) -> Result<Seen> {
    let found = fs.attributes(inode)?;
    let body = match found.kind {
        FileType::Regular => {
            let mut bytes = vec![0; found.size as usize];
            let read = fs.read(&context(), inode, 0, &mut bytes)?;
            assert_eq!(read, bytes.len(), "a short read of {inode}");
            Body::File { bytes, moved: 0 }
        }
        FileType::Directory => Body::Directory,
        FileType::Symlink => Body::Symlink(fs.read_link(inode)?.len()),
        _ => Body::Fifo,
    };
    let mut xattrs = std::collections::BTreeMap::new();
    for name in fs.xattr_names(inode)? {
        let value = fs.xattr(inode, &name)?;
        xattrs.insert(name, value);
    }
    // `system.data` holds the rest of inline data. No operation set it as an attribute.
    xattrs.remove(&b"system.data"[..]);
    Ok(Seen { inode: inode.raw(), body, xattrs })
}

/// A directory for images that other programs look at.
pub(crate) struct Bench(tempfile::TempDir);

impl Bench {
    pub(crate) fn new() -> Self {
        let builder = || tempfile::Builder::new().prefix("blockyard-failing-").to_owned();
        Self(builder().tempdir_in("/dev/shm").or_else(|_| builder().tempdir()).unwrap())
    }

    /// Checks an image with e2fsck, if that is installed. The error is the output of e2fsck.
    pub(crate) fn e2fsck(&self, device: &MemoryDevice) -> std::result::Result<(), String> {
        if !have_tool("e2fsck") {
            return Ok(());
        }
        let path: PathBuf = self.0.path().join(format!("{:?}", std::thread::current().id()));
        device.save(&path).unwrap();
        let output = run("e2fsck", &["-fn", path.to_str().unwrap()]);
        std::fs::remove_file(&path).unwrap();
        if output.status.code() == Some(0) {
            return Ok(());
        }
        Err(format!("e2fsck -fn: {}", String::from_utf8_lossy(&output.stdout)))
    }
}

/// Whether the primary superblock is valid. A torn write can make it invalid; then only a repair
/// with a backup superblock helps.
pub(crate) fn is_whole(device: &MemoryDevice) -> bool {
    let mut bytes = [0; RawSuperblock::SIZE];
    device.read_at(PRIMARY_OFFSET, &mut bytes).unwrap();
    Superblock::parse(&bytes).is_ok()
}

/// A copy of an image that was not closed cleanly, after our recovery. After the replay, the ERROR
/// state is cleared: with it, the engine would refuse to open the image for writing.
pub(crate) fn recovered(device: &MemoryDevice) -> std::result::Result<Arc<MemoryDevice>, String> {
    let device = Arc::new(device.duplicate());
    blockyard_recovery::replay_to_device(&*device, &blockyard_recovery::Options::default())
        .map_err(|error| format!("recovery: {error}"))?;
    clear_mark(&device);
    let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&device);
    let opened = FileSystem::open(shared, OpenOptions::default(), &context());
    opened
        .and_then(|fs| fs.close(&context()))
        .map_err(|error| format!("opening what was recovered: {error}"))?;
    Ok(device)
}

fn clear_mark(device: &MemoryDevice) {
    let mut bytes = [0; RawSuperblock::SIZE];
    device.read_at(PRIMARY_OFFSET, &mut bytes).unwrap();
    let raw = RawSuperblock::mut_from_bytes(&mut bytes).unwrap();
    raw.set_state(raw.state().difference(FsState::ERROR));
    Checksums::of(raw).seal_superblock(raw);
    device.write_at(PRIMARY_OFFSET, raw.as_bytes()).unwrap();
}

/// Checks that nothing but zeroes lies behind the end of each file below a directory: grows each
/// file and reads what it gained.
pub(crate) fn nothing_behind_the_end(fs: &FileSystem, dir: InodeNr) -> std::result::Result<(), String> {
    let view = view(fs, dir).map_err(|error| error.to_string())?;
    for (path, seen) in &view {
        let Body::File { bytes, .. } = &seen.body else { continue };
        let (inode, size) = (InodeNr::new(seen.inode), bytes.len() as u64);
        let more = 2 * fs.geometry().block_size() as u64 + 100;
        let mut grown = vec![1; more as usize];
        let read = fs
            .truncate(&context(), inode, size + more)
            .and_then(|()| fs.read(&context(), inode, size, &mut grown))
            .map_err(|error| format!("{path}: {error}"))?;
        if read != grown.len() || grown.iter().any(|byte| *byte != 0) {
            return Err(format!("{path}: something lies behind its end"));
        }
        fs.truncate(&context(), inode, size).map_err(|error| format!("{path}: {error}"))?;
    }
    Ok(())
}
