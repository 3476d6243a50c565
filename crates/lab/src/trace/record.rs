//! Turns a directory tree into the trace of copying it.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use anyhow::{Context, Result};
use blockyard_trace::{Line, Op};
use walkdir::WalkDir;

/// The most bytes of one write of the copy.
const PIECE: u64 = 128 << 10;

/// The trace that copies what is below `root`: directories before their content, names in sorted
/// order, files in writes of at most 128 KiB, and one `sync` at the end. The first name of an inode
/// creates it, and its later names become hard links.
///
/// # Errors
/// When something below `root` cannot be read.
pub fn record(root: &Path) -> Result<Vec<Line>> {
    let mut lines: Vec<Line> = Vec::new();
    let mut first_names = std::collections::HashMap::new();
    let mut fd = 0;
    for entry in WalkDir::new(root).min_depth(1).sort_by_file_name() {
        let entry = entry.with_context(|| format!("{}", root.display()))?;
        let metadata = entry.metadata()?;
        let below = entry.path().strip_prefix(root).context("a walk stays below its root")?;
        let path = format!("/{}", below.display());
        let kind = metadata.file_type();
        if kind.is_dir() {
            lines.push(Op::Mkdir { path, mode: metadata.permissions().mode() & 0o7777 }.into());
            continue;
        }
        if metadata.nlink() > 1 {
            let inode = (metadata.dev(), metadata.ino());
            if let Some(target) = first_names.get(&inode) {
                lines.push(Op::Link { target: String::clone(target), path }.into());
                continue;
            }
            first_names.insert(inode, path.clone());
        }
        if kind.is_symlink() {
            let target = std::fs::read_link(entry.path())?.to_string_lossy().into_owned();
            lines.push(Op::Symlink { target, path }.into());
        } else if kind.is_file() {
            fd += 1;
            copy_file(&mut lines, fd, path, metadata.len());
        } else if kind.is_char_device() || kind.is_block_device() || kind.is_fifo() || kind.is_socket() {
            let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
            lines.push(Op::Mknod { path, mode: metadata.mode(), major, minor }.into());
        }
    }
    lines.push(Op::Sync.into());
    Ok(lines)
}

fn copy_file(lines: &mut Vec<Line>, fd: u32, path: String, size: u64) {
    lines.push(Op::Open { fd, path, flags: "rw,create,trunc".to_owned() }.into());
    let mut off = 0;
    while off < size {
        let len = PIECE.min(size - off);
        lines.push(Op::Pwrite { fd, off, len }.into());
        off += len;
    }
    lines.push(Op::Close { fd }.into());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_tree_becomes_its_copy() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("b")).unwrap();
        fs::write(root.path().join("b/file"), vec![1; 200_000]).unwrap();
        fs::hard_link(root.path().join("b/file"), root.path().join("c")).unwrap();
        std::os::unix::fs::symlink("b/file", root.path().join("a")).unwrap();
        let ops: Vec<Op> = record(root.path()).unwrap().into_iter().map(|line| line.op).collect();
        assert_eq!(ops[0], Op::Symlink { target: "b/file".into(), path: "/a".into() });
        assert!(matches!(&ops[1], Op::Mkdir { path, .. } if path == "/b"));
        assert_eq!(ops[3], Op::Pwrite { fd: 1, off: 0, len: 131_072 });
        assert_eq!(ops[4], Op::Pwrite { fd: 1, off: 131_072, len: 68_928 });
        assert_eq!(ops[6..], [Op::Link { target: "/b/file".into(), path: "/c".into() }, Op::Sync]);
    }
}
