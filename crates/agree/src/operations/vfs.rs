//! What Linux does in the layers above ext4 (the VFS). They follow symbolic links in paths, and
//! allow `user.` attributes only on regular files and directories (xattr(7)). The engine takes the
//! place of ext4, so this module does both for the engine.

use anyhow::{Result, anyhow};
use blockyard_disk::InodeNr;
use blockyard_disk::inode::FileType;
use blockyard_engine::FileSystem;
use blockyard_inspect::path::{LastLink, Tree, locate, resolve};
use blockyard_lab::trace::play::Outcome;
use blockyard_trace::{Line, Op, OpenFlags};

const EPERM: i32 = 1;
const ELOOP: i32 = 40;

/// What the layers above ext4 do with a line.
pub(super) enum Passed {
    /// They pass the line on to ext4, in this form.
    On(Line),
    /// They refuse the line with this outcome, and ext4 does not see it.
    Answered(Outcome),
}

/// Does with a line what the layers above ext4 do: resolves symbolic links, or refuses the line.
///
/// # Errors
/// When a path leads out of the image, or the line cannot be understood.
pub(super) fn pass(fs: &FileSystem, line: &Line) -> Result<Passed> {
    let mut line = line.clone();
    let is_open = matches!(line.op, Op::Open { .. });
    for (path, last) in paths(&mut line.op)? {
        match follow(fs, path, last)? {
            Some(followed) => *path = followed,
            // The player must still see the line, to know that the file is not open. The player
            // does not follow links, so its open fails.
            None if is_open => {}
            None => return Ok(Passed::Answered(Err(ELOOP))),
        }
    }
    if let Op::Setxattr { path, name, .. } = &line.op
        && name.starts_with("user.")
        && let Some(kind) = kind_of(fs, path)
        && !matches!(kind, FileType::Regular | FileType::Directory)
    {
        return Ok(Passed::Answered(Err(EPERM)));
    }
    Ok(Passed::On(line))
}

/// The paths of an operation.
fn paths(op: &mut Op) -> Result<Vec<(&mut String, LastLink)>> {
    Ok(match op {
        Op::Open { path, flags, .. } => {
            let flags = OpenFlags::parse(flags)?;
            let last = if flags.create && flags.exclusive { LastLink::Keep } else { LastLink::Follow };
            vec![(path, last)]
        }
        Op::Mkdir { path, .. }
        | Op::Unlink { path }
        | Op::Rmdir { path }
        | Op::Symlink { path, .. }
        | Op::Mknod { path, .. }
        | Op::Setxattr { path, .. } => vec![(path, LastLink::Keep)],
        Op::Rename { from: one, to: other } | Op::Link { target: one, path: other } => {
            vec![(one, LastLink::Keep), (other, LastLink::Keep)]
        }
        _ => Vec::new(),
    })
}

/// The image, for the walk of one path. A node is the list of inodes and names on the path from the
/// root to the node.
struct Walk<'a>(&'a FileSystem);

/// Why a path leads nowhere.
enum Stop {
    /// Something on the way does not exist or is not a directory. The path is passed on, and the
    /// engine reports the error.
    Missing,
    TooManyLinks,
    Refused(anyhow::Error),
}

fn inode_of(node: &[(InodeNr, Vec<u8>)]) -> InodeNr {
    node.last().map_or(InodeNr::ROOT, |(inode, _)| *inode)
}

impl Tree for Walk<'_> {
    type Node = Vec<(InodeNr, Vec<u8>)>;
    type Error = Stop;

    fn root(&self) -> Result<Self::Node, Stop> {
        Ok(Vec::new())
    }
    fn look_up(&self, directory: &Self::Node, name: &[u8]) -> Result<Self::Node, Stop> {
        let mut node = directory.clone();
        if name == b".." {
            node.pop();
        } else {
            let inode = self.0.lookup(inode_of(directory), name).map_err(|_| Stop::Missing)?;
            node.push((inode, name.to_vec()));
        }
        Ok(node)
    }
    fn kind(&self, node: &Self::Node) -> Result<FileType, Stop> {
        self.0.attributes(inode_of(node)).map(|found| found.kind).map_err(|_| Stop::Missing)
    }
    fn read_link(&self, link: &Self::Node) -> Result<Vec<u8>, Stop> {
        let target = self.0.read_link(inode_of(link)).map_err(|error| Stop::Refused(error.into()))?;
        if target.first() == Some(&b'/') {
            let target = target.escape_ascii();
            return Err(Stop::Refused(anyhow!("a link leads out of the image, to {target}")));
        }
        Ok(target)
    }
    fn too_many_symlinks(&self) -> Stop {
        Stop::TooManyLinks
    }
    fn not_directory(&self) -> Stop {
        Stop::Missing
    }
    fn is_missing(&self, error: &Stop) -> bool {
        matches!(error, Stop::Missing)
    }
}

/// The path with its symbolic links resolved, the last one only if `last` says so; `None` if there
/// are too many. The path is returned unchanged if something on the way is missing or is not a
/// directory.
fn follow(fs: &FileSystem, path: &str, last: LastLink) -> Result<Option<String>> {
    let found = match locate(&Walk(fs), path.as_bytes(), last) {
        Ok(found) => found,
        Err(Stop::Missing) => return Ok(Some(path.to_owned())),
        Err(Stop::TooManyLinks) => return Ok(None),
        Err(Stop::Refused(why)) => return Err(why.context(path.to_owned())),
    };
    let mut names: Vec<Vec<u8>> = Vec::new();
    match found.node {
        Some(node) => names.extend(node.into_iter().map(|(_, name)| name)),
        None => names.extend(found.directory.into_iter().map(|(_, name)| name).chain([found.name])),
    }
    Ok(Some(format!("/{}", String::from_utf8(names.join(&b'/'))?)))
}

fn kind_of(fs: &FileSystem, path: &str) -> Option<FileType> {
    let walk = Walk(fs);
    walk.kind(&resolve(&walk, path.as_bytes(), LastLink::Keep).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockyard_device::MemoryDevice;
    use blockyard_disk::Timestamp;
    use blockyard_engine::{NewInode, OpContext, OpenOptions, mkfs};
    use std::sync::Arc;

    fn world() -> FileSystem {
        let ctx = OpContext::root_at(Timestamp::from_seconds(0));
        let device = MemoryDevice::new(16 << 20);
        mkfs::format(&device, &mkfs::Options::ext4().block_size(1024).identity(1, 1)).unwrap();
        let fs = FileSystem::open(Arc::new(device), OpenOptions::default(), &ctx).unwrap();
        let new = |kind| NewInode { kind, permissions: 0o755, device: None };
        let dir = fs.create(&ctx, InodeNr::ROOT, b"d", &new(FileType::Directory)).unwrap();
        fs.create(&ctx, dir, b"f", &new(FileType::Regular)).unwrap();
        fs.create(&ctx, dir, b"p", &new(FileType::Fifo)).unwrap();
        for (name, target) in
            [("l", "d/f"), ("up", "d/../d"), ("loop", "loop"), ("new", "d/none"), ("out", "/etc")]
        {
            fs.symlink(&ctx, InodeNr::ROOT, name.as_bytes(), target.as_bytes()).unwrap();
        }
        fs
    }

    /// The path (or the operation) that ext4 sees for a line, or the outcome if ext4 sees none.
    fn seen(fs: &FileSystem, line: &str) -> Result<String> {
        match pass(fs, &serde_json::from_str(line)?)? {
            Passed::On(line) => Ok(match line.op {
                Op::Open { path, .. } | Op::Unlink { path } | Op::Setxattr { path, .. } => path,
                other => format!("{other:?}"),
            }),
            Passed::Answered(outcome) => Ok(format!("{outcome:?}")),
        }
    }

    #[test]
    fn links_are_followed_as_linux_does_before_it_asks_ext4() {
        let fs = world();
        let open = |path: &str, flags: &str| {
            seen(&fs, &format!(r#"{{"op":"open","fd":1,"path":"{path}","flags":"{flags}"}}"#))
        };
        assert_eq!(open("/l", "r").unwrap(), "/d/f");
        assert_eq!(open("/up/./f", "r").unwrap(), "/d/f");
        assert_eq!(open("/new", "rw,create").unwrap(), "/d/none");
        assert_eq!(open("/l", "rw,create,excl").unwrap(), "/l");
        assert_eq!(open("/loop", "r").unwrap(), "/loop");
        assert_eq!(open("/none/x", "r").unwrap(), "/none/x");
        assert!(open("/out/passwd", "r").unwrap_err().root_cause().to_string().contains("out of the image"));
        let unlink = |path: &str| seen(&fs, &format!(r#"{{"op":"unlink","path":"{path}"}}"#)).unwrap();
        assert_eq!([unlink("/l"), unlink("/up/f"), unlink("/loop/f")], ["/l", "/d/f", "Err(40)"]);
    }

    #[test]
    fn users_attributes_are_for_files_and_directories() {
        let fs = world();
        let set = |path: &str, name: &str| {
            seen(&fs, &format!(r#"{{"op":"setxattr","path":"{path}","name":"{name}","len":9}}"#)).unwrap()
        };
        assert_eq!([set("/d", "user.a"), set("/up/f", "user.a")], ["/d", "/d/f"]);
        assert_eq!([set("/l", "user.a"), set("/d/p", "user.a")], ["Err(1)", "Err(1)"]);
        assert_eq!([set("/l", "trusted.a"), set("/none", "user.a")], ["/l", "/none"]);
    }
}
