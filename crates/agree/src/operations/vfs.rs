//! What Linux does above ext4, and the engine therefore does not: it follows symbolic links in
//! paths, and it allows attributes of users only on files and directories (xattr(7)).

use std::collections::VecDeque;

use anyhow::{Result, bail};
use blockyard_disk::InodeNr;
use blockyard_disk::inode::FileType;
use blockyard_engine::FileSystem;
use blockyard_lab::trace::play::Outcome;
use blockyard_trace::{Line, Op, OpenFlags};

const EPERM: i32 = 1;
const ELOOP: i32 = 40;

/// Links that one path may lead through.
const LINKS_MAX: u32 = 40;

/// What becomes of a line on its way to ext4.
pub(super) enum Passed {
    /// ext4 sees this.
    On(Line),
    /// ext4 is not asked.
    Answered(Outcome),
}

/// What ext4 sees of a line.
///
/// # Errors
/// When a path leads out of the image, or the line cannot be understood.
pub(super) fn pass(fs: &FileSystem, line: &Line) -> Result<Passed> {
    let mut line = line.clone();
    let is_open = matches!(line.op, Op::Open { .. });
    for (path, last) in paths(&mut line.op)? {
        match follow(fs, path, last)? {
            Some(followed) => *path = followed,
            // The player must know that the file is not open. It opens no link.
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

/// Whether a link that is the last name of a path is followed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    Followed,
    Kept,
}

/// The paths of an operation.
fn paths(op: &mut Op) -> Result<Vec<(&mut String, Last)>> {
    Ok(match op {
        Op::Open { path, flags, .. } => {
            let flags = OpenFlags::parse(flags)?;
            let last = if flags.create && flags.exclusive { Last::Kept } else { Last::Followed };
            vec![(path, last)]
        }
        Op::Mkdir { path, .. }
        | Op::Unlink { path }
        | Op::Rmdir { path }
        | Op::Symlink { path, .. }
        | Op::Mknod { path, .. }
        | Op::Setxattr { path, .. } => vec![(path, Last::Kept)],
        Op::Rename { from: one, to: other } | Op::Link { target: one, path: other } => {
            vec![(one, Last::Kept), (other, Last::Kept)]
        }
        _ => Vec::new(),
    })
}

/// The path behind all links, as far as it exists; `None` if there are too many links.
fn follow(fs: &FileSystem, path: &str, last: Last) -> Result<Option<String>> {
    let mut rest: VecDeque<String> = names(path).collect();
    let mut done: Vec<(InodeNr, String)> = Vec::new();
    let mut links = 0;
    while let Some(name) = rest.pop_front() {
        if name == ".." {
            done.pop();
            continue;
        }
        let directory = done.last().map_or(InodeNr::ROOT, |(inode, _)| *inode);
        let Ok(inode) = fs.lookup(directory, name.as_bytes()) else {
            rest.push_front(name);
            break;
        };
        let may_follow = last == Last::Followed || !rest.is_empty();
        if may_follow && fs.attributes(inode).is_ok_and(|found| found.kind == FileType::Symlink) {
            links += 1;
            if links > LINKS_MAX {
                return Ok(None);
            }
            let target = String::from_utf8(fs.read_link(inode)?)?;
            if target.starts_with('/') {
                bail!("{path} leads out of the image, to {target}");
            }
            for name in names(&target).collect::<Vec<_>>().into_iter().rev() {
                rest.push_front(name);
            }
        } else {
            done.push((inode, name));
        }
    }
    let all: Vec<String> = done.into_iter().map(|(_, name)| name).chain(rest).collect();
    Ok(Some(format!("/{}", all.join("/"))))
}

fn names(path: &str) -> impl Iterator<Item = String> {
    path.split('/').filter(|name| !name.is_empty() && *name != ".").map(str::to_owned)
}

fn kind_of(fs: &FileSystem, path: &str) -> Option<FileType> {
    let mut inode = InodeNr::ROOT;
    for name in names(path) {
        inode = fs.lookup(inode, name.as_bytes()).ok()?;
    }
    Some(fs.attributes(inode).ok()?.kind)
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

    /// The line that ext4 sees of this one, or the answer.
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
        assert!(open("/out/passwd", "r").unwrap_err().to_string().contains("out of the image"));
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
