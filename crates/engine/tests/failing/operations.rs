//! The operations during which the device fails: what each does to a file system, and to the model
//! of a directory.

use super::expected::{Body, State};
use crate::support::{new, regular};
use blockyard_disk::InodeNr;
use blockyard_disk::inode::FileType;
use blockyard_engine::{
    Error, Fallocate, FileSystem, OpContext, RenameMode, Result, SetAttributes, XattrMode,
};

/// A path in the directory of a worker thread: a name, or two names with a slash between them.
pub(crate) type Path = &'static str;

/// One operation. Offsets and lengths are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Write {
        file: Path,
        at: u64,
        len: u64,
        version: u8,
    },
    WriteSome {
        file: Path,
        at: u64,
        len: u64,
        version: u8,
    },
    Append {
        file: Path,
        len: u64,
        version: u8,
    },
    WriteDirect {
        file: Path,
        at: u64,
        len: u64,
        version: u8,
    },
    Truncate {
        file: Path,
        size: u64,
    },
    Fallocate {
        file: Path,
        what: Fallocate,
        at: u64,
        len: u64,
    },
    Create(Path),
    MakeDirectory(Path),
    MakeFifo(Path),
    Symlink {
        name: Path,
        len: usize,
    },
    Link {
        file: Path,
        name: Path,
    },
    Unlink(Path),
    /// Unlinks a file while it is open.
    UnlinkOpen(Path),
    /// A file that gets its name after its content.
    Unnamed {
        name: Path,
        len: u64,
        version: u8,
    },
    RemoveDirectory(Path),
    Rename {
        from: Path,
        to: Path,
        mode: RenameMode,
    },
    SetXattr {
        file: Path,
        name: Path,
        len: usize,
        version: u8,
    },
    RemoveXattr {
        file: Path,
        name: Path,
    },
    SetAttributes(Path),
    SetFlags(Path),
    Fsync(Path),
    Fdatasync(Path),
    WriteBack(Path),
    Sync,
}

/// Attribute values of more bytes than this are called large ([`Op::name`]). The cases set large
/// values only on images with `ea_inode`.
const LARGE: usize = 1024;

/// The content of a file's version in a range of bytes. No byte of it is 0, and two versions differ
/// in every byte.
pub(crate) fn stamp(version: u8, at: u64, len: u64) -> Vec<u8> {
    (at..at + len).map(|byte| 1 + (version % 15) + 16 * ((byte / 128 % 15) as u8)).collect()
}

/// The value of an attribute, by its version.
fn value(len: usize, version: u8) -> Vec<u8> {
    (0..len).map(|at| version.wrapping_mul(37) ^ (at / 7) as u8).collect()
}

/// The directory and the last name of a path.
fn place<'a>(fs: &FileSystem, dir: InodeNr, path: &'a str) -> Result<(InodeNr, &'a [u8])> {
    match path.split_once('/') {
        None => Ok((dir, path.as_bytes())),
        Some((parent, name)) => Ok((fs.lookup(dir, parent.as_bytes())?, name.as_bytes())),
    }
}

fn find(fs: &FileSystem, dir: InodeNr, path: &str) -> Result<InodeNr> {
    let (dir, name) = place(fs, dir, path)?;
    fs.lookup(dir, name)
}

impl Op {
    /// Does the operation in the directory of a worker.
    pub(crate) fn run(&self, fs: &FileSystem, ctx: &OpContext, dir: InodeNr) -> Result<()> {
        let find = |path: &str| find(fs, dir, path);
        let place = |path: Path| place(fs, dir, path);
        let create = |path: Path, kind| {
            let (dir, name) = place(path)?;
            fs.create(ctx, dir, name, &new(kind)).map(drop)
        };
        match *self {
            Self::Write { file, at, len, version } => {
                fs.write(ctx, find(file)?, at, &stamp(version, at, len))
            }
            Self::WriteSome { file, at, len, version } => {
                let done = fs.write_some(ctx, find(file)?, at, &stamp(version, at, len))?;
                whole(done, len)
            }
            Self::Append { file, len, version } => {
                let inode = find(file)?;
                let at = fs.attributes(inode)?.size;
                fs.append(ctx, inode, &stamp(version, at, len)).map(drop)
            }
            Self::WriteDirect { file, at, len, version } => {
                let done = fs.write_direct(ctx, find(file)?, at, &stamp(version, at, len))?;
                whole(done, len)
            }
            Self::Truncate { file, size } => fs.truncate(ctx, find(file)?, size),
            Self::Fallocate { file, what, at, len } => fs.fallocate(ctx, find(file)?, what, at, len),
            Self::Create(path) => create(path, FileType::Regular),
            Self::MakeDirectory(path) => create(path, FileType::Directory),
            Self::MakeFifo(path) => create(path, FileType::Fifo),
            Self::Symlink { name, len } => fs.symlink(ctx, dir, name.as_bytes(), &vec![b't'; len]).map(drop),
            Self::Link { file, name } => fs.link(ctx, find(file)?, dir, name.as_bytes()),
            Self::Unlink(path) => place(path).and_then(|(dir, name)| fs.unlink(ctx, dir, name)),
            Self::UnlinkOpen(path) => unlink_open(fs, ctx, place(path)?),
            Self::Unnamed { name, len, version } => make_unnamed(fs, ctx, (dir, name), len, version),
            Self::RemoveDirectory(path) => place(path).and_then(|(dir, name)| fs.rmdir(ctx, dir, name)),
            Self::Rename { from, to, mode } => fs.rename(ctx, place(from)?, place(to)?, mode),
            Self::SetXattr { file, name, len, version } => {
                let name = format!("user.{name}");
                fs.set_xattr(ctx, find(file)?, name.as_bytes(), &value(len, version), XattrMode::Set)
            }
            Self::RemoveXattr { file, name } => {
                fs.remove_xattr(ctx, find(file)?, format!("user.{name}").as_bytes())
            }
            Self::SetAttributes(path) => {
                let changes = SetAttributes { permissions: Some(0o600), ..SetAttributes::default() };
                fs.set_attributes(ctx, find(path)?, &changes)
            }
            Self::SetFlags(path) => fs.set_flags(ctx, find(path)?, 0x80),
            Self::Fsync(path) => fs.fsync(ctx, find(path)?),
            Self::Fdatasync(path) => fs.fdatasync(ctx, find(path)?),
            Self::WriteBack(path) => fs.write_back_file(ctx, find(path)?),
            Self::Sync => fs.sync(ctx),
        }
    }

    /// What a directory holds after the operation; `None` if it cannot be done.
    pub(crate) fn after(&self, state: &State) -> Option<State> {
        let mut after = state.clone();
        match *self {
            Self::Write { file, at, len, version }
            | Self::WriteSome { file, at, len, version }
            | Self::WriteDirect { file, at, len, version } => overwrite(&mut after, file, at, len, version)?,
            Self::Append { file, len, version } => {
                let at = state.bytes(file)?.len() as u64;
                overwrite(&mut after, file, at, len, version)?;
            }
            Self::Truncate { file, size } => after.file(file)?.0.resize(size as usize, 0),
            Self::Fallocate { file, what, at, len } => {
                allocate(&mut after, file, what, at as usize, (at + len) as usize)?;
            }
            Self::Create(path) => after.add(path, Body::File { bytes: Vec::new(), moved: 0 })?,
            Self::MakeDirectory(path) => after.add(path, Body::Directory)?,
            Self::MakeFifo(path) => after.add(path, Body::Fifo)?,
            Self::Symlink { name, len } => after.add(name, Body::Symlink(len))?,
            Self::Link { file, name } => {
                let id = *state.names.get(file)?;
                after.check_parent(name)?;
                if after.names.insert(name.to_owned(), id).is_some() {
                    return None;
                }
            }
            Self::Unlink(path) | Self::UnlinkOpen(path) | Self::RemoveDirectory(path) => {
                let is_directory = matches!(self, Self::RemoveDirectory(_));
                (after.is_directory(path)? == is_directory && !after.has_names_in(path)).then_some(())?;
                after.drop_name(path)?;
            }
            Self::Unnamed { name, len, version } => {
                after.add(name, Body::File { bytes: stamp(version, 0, len), moved: 0 })?;
            }
            Self::Rename { from, to, mode } => rename(&mut after, from, to, mode)?,
            Self::SetXattr { file, name, len, version } => {
                let name = format!("user.{name}").into_bytes();
                after.change(file)?.xattrs.insert(name, value(len, version));
            }
            Self::RemoveXattr { file, name } => {
                after.change(file)?.xattrs.remove(format!("user.{name}").as_bytes())?;
            }
            Self::SetAttributes(path)
            | Self::SetFlags(path)
            | Self::Fsync(path)
            | Self::Fdatasync(path)
            | Self::WriteBack(path) => drop(state.node(path)?),
            Self::Sync => {}
        }
        Some(after)
    }

    /// The path of the file that the operation changes. If the operation names two files, it is the
    /// path of the first. For [`Self::Sync`] it is empty.
    pub(crate) fn path(&self) -> Path {
        match *self {
            Self::Write { file, .. }
            | Self::WriteSome { file, .. }
            | Self::Append { file, .. }
            | Self::WriteDirect { file, .. }
            | Self::Truncate { file, .. }
            | Self::Fallocate { file, .. }
            | Self::Link { file, .. }
            | Self::SetXattr { file, .. }
            | Self::RemoveXattr { file, .. } => file,
            Self::Create(path)
            | Self::MakeDirectory(path)
            | Self::MakeFifo(path)
            | Self::Unlink(path)
            | Self::UnlinkOpen(path)
            | Self::RemoveDirectory(path)
            | Self::SetAttributes(path)
            | Self::SetFlags(path)
            | Self::Fsync(path)
            | Self::Fdatasync(path)
            | Self::WriteBack(path) => path,
            Self::Symlink { name, .. } | Self::Unnamed { name, .. } => name,
            Self::Rename { from, .. } => from,
            Self::Sync => "",
        }
    }

    /// The name of the operation in docs/testing.md.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Write { .. } => "write",
            Self::WriteSome { .. } => "write some",
            Self::Append { .. } => "append",
            Self::WriteDirect { .. } => "direct write",
            Self::Truncate { .. } => "truncate",
            Self::Fallocate { what, .. } => match what {
                Fallocate::Allocate => "allocate",
                Fallocate::AllocateKeepSize => "allocate keep",
                Fallocate::PunchHole => "punch",
                Fallocate::ZeroRange => "zero",
                Fallocate::ZeroRangeKeepSize => "zero keep",
                Fallocate::CollapseRange => "collapse",
                Fallocate::InsertRange => "insert",
            },
            Self::Create(_) => "create",
            Self::MakeDirectory(_) => "mkdir",
            Self::MakeFifo(_) => "mknod",
            Self::Symlink { .. } => "symlink",
            Self::Link { .. } => "link",
            Self::Unlink(_) => "unlink",
            Self::UnlinkOpen(_) => "unlink open",
            Self::Unnamed { .. } => "tmpfile",
            Self::RemoveDirectory(_) => "rmdir",
            Self::Rename { mode: RenameMode::Replace, .. } => "rename",
            Self::Rename { mode: RenameMode::NoReplace, .. } => "rename no-replace",
            Self::Rename { mode: RenameMode::Exchange, .. } => "rename exchange",
            Self::SetXattr { len, .. } if *len > LARGE => "set large xattr",
            Self::SetXattr { .. } => "set xattr",
            Self::RemoveXattr { .. } => "remove xattr",
            Self::SetAttributes(_) => "set attributes",
            Self::SetFlags(_) => "set flags",
            Self::Fsync(_) => "fsync",
            Self::Fdatasync(_) => "fdatasync",
            Self::WriteBack(_) => "write back",
            Self::Sync => "sync",
        }
    }

    /// Whether everything is durable after the operation.
    pub(crate) fn is_sync(&self) -> bool {
        *self == Self::Sync
    }

    /// Whether the operation goes piece by piece, and each piece raises the size, as in Linux.
    pub(crate) fn goes_in_pieces(&self, by_folio: bool) -> bool {
        match self {
            Self::Write { .. } | Self::Append { .. } => by_folio,
            Self::WriteDirect { .. } | Self::WriteSome { .. } | Self::Unnamed { .. } => true,
            Self::Fallocate { what, .. } => matches!(what, Fallocate::Allocate | Fallocate::ZeroRange),
            _ => false,
        }
    }

    /// Whether the operation writes back dirty data of earlier operations.
    pub(crate) fn stores_data(&self) -> bool {
        match self {
            Self::WriteDirect { .. }
            | Self::Rename { .. }
            | Self::Fsync(_)
            | Self::Fdatasync(_)
            | Self::WriteBack(_)
            | Self::Sync => true,
            Self::Fallocate { what, .. } => {
                matches!(what, Fallocate::CollapseRange | Fallocate::InsertRange)
            }
            _ => false,
        }
    }
}

/// Turns a short write into an error. Only lack of space makes a write short, and no operation here
/// needs more space than is free.
fn whole(done: usize, len: u64) -> Result<()> {
    if done as u64 == len { Ok(()) } else { Err(Error::NoSpace) }
}

fn unlink_open(fs: &FileSystem, ctx: &OpContext, (dir, name): (InodeNr, &[u8])) -> Result<()> {
    let inode = fs.lookup(dir, name)?;
    fs.open_inode(inode, true)?;
    let unlinked = fs.unlink(ctx, dir, name);
    let released = fs.release_inode(ctx, inode, true);
    unlinked.and(released)
}

fn make_unnamed(
    fs: &FileSystem,
    ctx: &OpContext,
    (dir, name): (InodeNr, &str),
    len: u64,
    version: u8,
) -> Result<()> {
    let inode = fs.create_unnamed(ctx, dir, regular().permissions)?;
    let named = fs
        .write(ctx, inode, 0, &stamp(version, 0, len))
        .and_then(|()| fs.link(ctx, inode, dir, name.as_bytes()));
    let released = fs.release_inode(ctx, inode, true);
    named.and(released)
}

fn overwrite(state: &mut State, file: &str, at: u64, len: u64, version: u8) -> Option<()> {
    let (bytes, _) = state.file(file)?;
    let (start, end) = (at as usize, (at + len) as usize);
    bytes.resize(bytes.len().max(end), 0);
    bytes[start..end].copy_from_slice(&stamp(version, at, len));
    Some(())
}

fn allocate(state: &mut State, file: &str, what: Fallocate, start: usize, end: usize) -> Option<()> {
    let (bytes, moved) = state.file(file)?;
    let size = bytes.len();
    if matches!(what, Fallocate::Allocate | Fallocate::ZeroRange) {
        bytes.resize(size.max(end), 0);
    }
    let inside = start.min(bytes.len())..end.min(bytes.len());
    match what {
        Fallocate::Allocate | Fallocate::AllocateKeepSize => {}
        Fallocate::PunchHole | Fallocate::ZeroRange | Fallocate::ZeroRangeKeepSize => bytes[inside].fill(0),
        Fallocate::CollapseRange => {
            (end < size).then_some(())?;
            bytes.drain(start..end);
            *moved += 1;
        }
        Fallocate::InsertRange => {
            (start < size).then_some(())?;
            bytes.splice(start..start, vec![0; end - start]);
            *moved += 1;
        }
    }
    Some(())
}

fn rename(state: &mut State, from: &str, to: &str, mode: RenameMode) -> Option<()> {
    let id = *state.names.get(from)?;
    match (mode, state.names.get(to).copied()) {
        (RenameMode::Exchange, other) => {
            state.names.insert(from.to_owned(), other?);
            state.names.insert(to.to_owned(), id);
            return exchange_inside(state, from, to);
        }
        (RenameMode::NoReplace, Some(_)) => return None,
        (_, Some(other)) if other == id => return Some(()),
        (_, Some(_)) => {
            (state.is_directory(from)? == state.is_directory(to)? && !state.has_names_in(to)).then_some(())?;
            state.drop_name(to);
        }
        (_, None) => state.check_parent(to)?,
    }
    state.names.remove(from);
    state.names.insert(to.to_owned(), id);
    exchange_inside(state, from, to)
}

/// Renames what lies in a renamed directory, too.
fn exchange_inside(state: &mut State, one: &str, other: &str) -> Option<()> {
    let (one, other) = (format!("{one}/"), format!("{other}/"));
    let moved = |path: &str| match (path.strip_prefix(&one), path.strip_prefix(&other)) {
        (Some(name), _) => format!("{other}{name}"),
        (_, Some(name)) => format!("{one}{name}"),
        _ => path.to_owned(),
    };
    state.names = state.names.iter().map(|(path, id)| (moved(path), *id)).collect();
    Some(())
}
