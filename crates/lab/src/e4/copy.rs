//! Copies the tree as `rsync -axH` does: depth first, in the order of names. A file has a temporary
//! name until it is complete, and hard links come at the end.

use anyhow::Result;
use blockyard_alloc::Policy;
use blockyard_disk::InodeNr;
use blockyard_disk::device_number::DeviceNumber;
use blockyard_disk::inode::FileType;
use blockyard_disk::num::usize_from_u64;
use blockyard_engine::{FileSystem, NewInode, OpContext, RenameMode};
use blockyard_trace::{Line, Op};

use super::PassPlan;
use super::tree::{HomeTree, Step};
use crate::target::engine::context;

/// Process numbers of rsync's two processes: one creates directories, links and special files, the
/// other regular files.
const GENERATOR: u32 = 1;
const RECEIVER: u32 = 2;
/// Bytes of one write.
const WRITE_BYTES: u64 = 128 << 10;
/// The device number of every device.
const DEVICE: DeviceNumber = DeviceNumber { major: 1, minor: 3 };
/// Permission bits of everything that is not a symbolic link.
const PERMISSIONS: u16 = 0o755;

/// The name of a file until it is complete.
fn early(name: &str) -> String {
    format!(".{name}.Xy12Zw")
}

/// The offsets and lengths of a file's writes.
fn writes(bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..bytes).step_by(usize_from_u64(WRITE_BYTES)).map(move |at| (at, WRITE_BYTES.min(bytes - at)))
}

/// Copies the tree to a file system.
pub(super) fn run(fs: &FileSystem, tree: &HomeTree) -> Result<()> {
    let copy = Copy { fs, zeroes: vec![0; usize_from_u64(WRITE_BYTES)] };
    // The inodes of directories by number, and of files in the order of their creation.
    let mut directories = vec![InodeNr::ROOT; tree.directories.len()];
    let mut files = Vec::new();
    for step in tree.steps() {
        match step {
            Step::Directory { number, parent, name } => {
                directories[number] = copy.make(GENERATOR, directories[parent], name, FileType::Directory)?;
            }
            Step::File { directory, name, bytes } => {
                files.push(copy.file(directories[directory], name, bytes)?);
            }
            Step::Symlink { directory, name, target } => {
                fs.symlink(&process(GENERATOR), directories[directory], name.as_bytes(), target.as_bytes())?;
            }
            Step::Special { directory, name, kind } => {
                copy.make(GENERATOR, directories[directory], &name, kind)?;
            }
            Step::HardLink { directory, file, name } => {
                fs.link(&process(GENERATOR), files[file], directories[directory], name.as_bytes())?;
            }
        }
    }
    Ok(())
}

/// The context of a process.
fn process(number: u32) -> OpContext {
    OpContext { colour: number, ..context(0) }
}

struct Copy<'f> {
    fs: &'f FileSystem,
    zeroes: Vec<u8>,
}

impl Copy<'_> {
    fn make(&self, by: u32, parent: InodeNr, name: &str, kind: FileType) -> Result<InodeNr> {
        let is_device = matches!(kind, FileType::CharDevice | FileType::BlockDevice);
        let new = NewInode { kind, permissions: PERMISSIONS, device: is_device.then_some(DEVICE) };
        Ok(self.fs.create(&process(by), parent, name.as_bytes(), &new)?)
    }

    fn file(&self, directory: InodeNr, name: &str, bytes: u64) -> Result<InodeNr> {
        let early = early(name);
        let inode = self.make(RECEIVER, directory, &early, FileType::Regular)?;
        let ctx = process(RECEIVER);
        self.fs.open_inode(inode, true)?;
        for (at, length) in writes(bytes) {
            self.fs.write(&ctx, inode, at, &self.zeroes[..usize_from_u64(length)])?;
        }
        self.fs.release_inode(&ctx, inode, true)?;
        let (from, to) = ((directory, early.as_bytes()), (directory, name.as_bytes()));
        self.fs.rename(&ctx, from, to, RenameMode::Replace)?;
        Ok(inode)
    }
}

/// The copy as a trace that Linux can replay, with a tree of `scale` times the published size. A
/// trace has no write-back of its own. So there is a sync at the end, and one after each file that
/// brings the bytes written since the last sync to `sync_bytes` or more.
///
/// # Errors
/// Those of [`PassPlan::check`].
pub fn trace(scale: f64, seed: u64, sync_bytes: u64) -> Result<Vec<Line>> {
    let policy = Policy::default().to_string();
    let plan = PassPlan { policy, scale, seed, rotational: None, aged: Vec::new() };
    plan.check()?;
    let tree = HomeTree::new(&plan);
    let mut paths = vec![String::new(); tree.directories.len()];
    let mut files = Vec::new();
    let (mut lines, mut unsynced) = (Vec::<Line>::new(), 0);
    for step in tree.steps() {
        let op = match step {
            Step::Directory { number, parent, name } => {
                paths[number] = format!("{}/{name}", paths[parent]);
                Op::Mkdir { path: paths[number].clone(), mode: u32::from(PERMISSIONS) }
            }
            Step::File { directory, name, bytes } => {
                let from = format!("{}/{}", paths[directory], early(name));
                let to = format!("{}/{name}", paths[directory]);
                lines.push(Op::Open { fd: 1, path: from.clone(), flags: "rw,create,trunc".into() }.into());
                lines.extend(writes(bytes).map(|(off, len)| Op::Pwrite { fd: 1, off, len }.into()));
                lines.push(Op::Close { fd: 1 }.into());
                files.push(to.clone());
                unsynced += bytes;
                Op::Rename { from, to }
            }
            Step::Symlink { directory, name, target } => {
                Op::Symlink { target, path: format!("{}/{name}", paths[directory]) }
            }
            Step::Special { directory, name, kind } => {
                let path = format!("{}/{name}", paths[directory]);
                let mode = u32::from(kind.mode_bits() | PERMISSIONS);
                Op::Mknod { path, mode, major: DEVICE.major, minor: DEVICE.minor }
            }
            Step::HardLink { directory, file, name } => {
                Op::Link { target: files[file].clone(), path: format!("{}/{name}", paths[directory]) }
            }
        };
        lines.push(op.into());
        if unsynced >= sync_bytes {
            lines.push(Op::Sync.into());
            unsynced = 0;
        }
    }
    lines.push(Op::Sync.into());
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trace_copies_the_whole_tree() {
        let lines = trace(0.01, 1, 32 << 20).unwrap();
        let count = |of: fn(&Op) -> bool| lines.iter().filter(|line| of(&line.op)).count();
        assert_eq!(count(|op| matches!(op, Op::Mkdir { .. })), 280);
        assert_eq!(count(|op| matches!(op, Op::Open { .. })), 2635);
        assert_eq!(count(|op| matches!(op, Op::Rename { .. })), 2635);
        assert_eq!(count(|op| matches!(op, Op::Symlink { .. })), 206);
        assert_eq!(count(|op| matches!(op, Op::Link { .. })), 6);
        assert_eq!(count(|op| matches!(op, Op::Mknod { .. })), 16);
        let written = |line: &Line| if let Op::Pwrite { len, .. } = line.op { len } else { 0 };
        let bytes: u64 = lines.iter().map(written).sum();
        // The tree has 158 MiB: one sync after each of four parts of a little over 32 MiB, and one
        // at the end.
        assert_eq!(count(|op| *op == Op::Sync), 5, "{bytes} bytes are written");
    }
}
