//! `blockyard get IMAGE PATH... DEST`: copies files and trees of an image to the host.
//!
//! The image is only read, and not trusted: nothing is written outside DEST, links that are there are not followed, and
//! a file appears under its name only when it is complete.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use blockyard_device::ImagePath;
use blockyard_disk::num::{u64_from_u32, u64_from_usize, usize_from_u64};
use blockyard_disk::{FileType, Inode, InodeMap, InodeNr};
use blockyard_engine::reader::Reader;
use rustix::fs::{CWD, FileType as HostType, Mode};
use serde_json::json;

use super::progress::Progress;
use super::volume::{join, last_name};
use super::{Output, host, image, names};

/// Exit codes, for the help.
const EXIT_CODES: &str = "Exit codes: 0 done, 1 some of it failed (each reported; the rest is done), 2 wrong usage, 8 the image \
                          cannot be read.";
/// Bytes copied at a time.
const CHUNK: u64 = 1 << 20;

/// Arguments of `blockyard get`.
#[derive(clap::Args)]
#[command(after_help = EXIT_CODES, after_long_help = format!("A directory given as DIR/. puts its content \
    into DEST, without the directory itself. Owners are kept when run as root, as far as the host \
    allows; so are devices and the attributes of the system.\n\nJSON: one object a name: path (in the image), to, type, \
    size. {}\n\n{EXIT_CODES}", names::BYTES_KEYS))]
pub(crate) struct Args {
    /// The image: a file or block device; IMAGE?offset=BYTES is a part of one, such as a partition
    #[arg(value_parser = image::operand())]
    image: ImagePath,
    /// Paths in the image, and last the directory of the host to put them into or the new name (- is standard output)
    #[arg(required = true, num_args = 2.., value_names = ["PATH", "DEST"])]
    paths: Vec<OsString>,
    /// Copy directories with all that is in them
    #[arg(short = 'r', short_alias = 'R', long)]
    recursive: bool,
    /// Leave extended attributes out
    #[arg(long)]
    no_xattrs: bool,
}

impl Args {
    /// Copies.
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        let reader = image::open(&self.image)?;
        let Some((dest, sources)) = self.paths.split_last() else { return Ok(ExitCode::SUCCESS) };
        if dest == "-" {
            return image::print(&self.image, false, |out| {
                sources.iter().try_for_each(|path| to_stream(&reader, image::path_bytes(path), out))
            });
        }
        let is_root = rustix::process::geteuid().is_root();
        let mut copy = Copy {
            reader: &reader,
            args: &self,
            output,
            is_root,
            progress: Progress::copying(output, "get"),
            names: 0,
            bytes: Cell::new(0),
            linked: HashMap::new(),
            failures: 0,
        };
        let dest = Path::new(dest);
        if sources.len() > 1 && !dest.is_dir() {
            bail!("{}: not a directory, and several paths go into one", dest.display());
        }
        let began = Instant::now();
        copy.expect(sources);
        for source in sources {
            let done = copy.source(image::path_bytes(source), dest);
            copy.settle(done);
        }
        let (names, bytes) = (copy.names, copy.bytes.get());
        if self.recursive && !output.json && !output.quiet {
            copy.progress.beside(|| println!("{}", super::put::copied(names, bytes, began)));
        }
        Ok(if copy.failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn to_stream(reader: &Reader, path: &[u8], out: &mut dyn Write) -> Result<()> {
    let inode = reader.resolve(path, true)?;
    if inode.file_type() != FileType::Regular {
        bail!("{}: not a regular file", String::from_utf8_lossy(path));
    }
    let mut buf = vec![0; usize_from_u64(CHUNK)];
    let mut offset = 0;
    while offset < inode.size() {
        let length = reader.read(&inode, offset, &mut buf)?;
        out.write_all(&buf[..length])?;
        offset += u64_from_usize(length);
    }
    Ok(())
}

/// One run of the command.
struct Copy<'r> {
    reader: &'r Reader,
    args: &'r Args,
    output: &'r Output,
    is_root: bool,
    progress: Progress,
    names: u64,
    bytes: Cell<u64>,
    /// Where inodes with several names went first.
    linked: HashMap<InodeNr, PathBuf>,
    failures: u64,
}

/// Something of the image and where it goes.
struct Item {
    path: Vec<u8>,
    inode: Inode,
    to: PathBuf,
}

impl Copy<'_> {
    fn settle<T>(&mut self, done: Result<T>) -> Option<T> {
        done.map_err(|failed| {
            self.progress.beside(|| {
                eprintln!("blockyard: {}: {}", self.args.image.display(), super::describe(&failed));
            });
            self.failures += 1;
        })
        .ok()
    }

    /// Tells what there is to copy. What cannot be read is reported when it is its turn.
    fn expect(&self, sources: &[OsString]) {
        if !self.progress.is_wanted() {
            return;
        }
        let reader = self.reader;
        let found = |source: &OsString| reader.resolve(image::path_bytes(source), false).ok();
        let mut left: Vec<Inode> = sources.iter().filter_map(found).collect();
        let (mut names, mut bytes, mut seen) = (0, 0, HashSet::new());
        while let Some(inode) = left.pop() {
            names += 1;
            if inode.file_type() == FileType::Regular && seen.insert(inode.number()) {
                // Holes are not copied.
                bytes += inode.size().min(inode.sectors() * 512);
            } else if inode.is_directory() && seen.insert(inode.number()) {
                let Ok(entries) = reader.entries(&inode) else { continue };
                let below = entries.flatten().filter(|entry| entry.name != b"." && entry.name != b"..");
                left.extend(below.filter_map(|entry| reader.inode(entry.inode).ok()));
            }
        }
        self.progress.expect(names, bytes);
    }

    fn source(&mut self, path: &[u8], dest: &Path) -> Result<()> {
        // The last link of a path that was asked for by name is followed only when it is all there is to copy.
        let inode = self.reader.resolve(path, false)?;
        let to = match last_name(path) {
            Some(name) if dest.is_dir() && name != b".." && !path.ends_with(b"/.") => {
                dest.join(OsStr::from_bytes(name))
            }
            _ => dest.to_owned(),
        };
        let item = Item { path: path.to_vec(), inode, to };
        if !item.inode.is_directory() {
            return self.leaf(&item);
        }
        if !self.args.recursive {
            bail!("{}: is a directory; add -r to copy it with its content", String::from_utf8_lossy(path));
        }
        self.tree(item)
    }

    /// A directory with all that is in it, without recursion: directories may lie in each other deeper than a stack is.
    fn tree(&mut self, root: Item) -> Result<()> {
        let mut left = vec![root];
        let mut made = Vec::new();
        // A damaged image can hold a directory inside itself.
        let mut seen: HashSet<InodeNr> = HashSet::new();
        while let Some(item) = left.pop() {
            let done = if item.inode.is_directory() {
                if !seen.insert(item.inode.number()) {
                    bail!("{}: the directory was met before: the image is damaged", shown(&item));
                }
                self.enter(&item).map(|below| {
                    left.extend(below);
                    made.push(item);
                })
            } else {
                self.leaf(&item)
            };
            self.settle(done);
        }
        // Filling a directory changes its time, and its mode may forbid to fill it: what lies deepest comes first.
        while let Some(item) = made.pop() {
            let done = self.attributes(&item).map(|()| self.done(&item));
            self.settle(done);
        }
        Ok(())
    }

    /// Makes a directory, or finds the one that is there; gives what is in it, the first name last.
    fn enter(&mut self, item: &Item) -> Result<Vec<Item>> {
        match std::fs::create_dir(&item.to) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                let there =
                    std::fs::symlink_metadata(&item.to).with_context(|| item.to.display().to_string())?;
                if !there.is_dir() {
                    bail!("{}: exists and is not a directory", item.to.display());
                }
            }
            done => done.with_context(|| item.to.display().to_string())?,
        }
        let mut below = Vec::new();
        for entry in self.reader.entries(&item.inode)? {
            let entry = entry.with_context(|| shown(item))?;
            if entry.name == b"." || entry.name == b".." {
                continue;
            }
            let path = join(&item.path, &entry.name);
            let inode =
                self.reader.inode(entry.inode).with_context(|| String::from_utf8_lossy(&path).into_owned());
            if let Some(inode) = self.settle(inode) {
                let to = item.to.join(OsStr::from_bytes(&entry.name));
                below.push(Item { path, inode, to });
            }
        }
        below.sort_by(|one, other| other.path.cmp(&one.path));
        Ok(below)
    }

    /// Anything but a directory.
    fn leaf(&mut self, item: &Item) -> Result<()> {
        self.refuse_to_replace(item)?;
        if item.inode.links() > 1
            && let Some(first) = self.linked.get(&item.inode.number())
        {
            remove_if_there(&item.to)?;
            std::fs::hard_link(first, &item.to).with_context(|| item.to.display().to_string())?;
            self.done(item);
            return Ok(());
        }
        match item.inode.map() {
            _ if item.inode.file_type() == FileType::Regular => self.regular(item)?,
            _ if item.inode.file_type() == FileType::Symlink => {
                let target = self.reader.symlink_target(&item.inode)?;
                remove_if_there(&item.to)?;
                std::os::unix::fs::symlink(OsStr::from_bytes(&target), &item.to)
                    .with_context(|| item.to.display().to_string())?;
            }
            map => node(item, map)?,
        }
        self.attributes(item)?;
        if item.inode.links() > 1 {
            self.linked.insert(item.inode.number(), item.to.clone());
        }
        self.done(item);
        Ok(())
    }

    /// What stands there is replaced, but no directory, not the image, and by a file no device or pipe.
    fn refuse_to_replace(&self, item: &Item) -> Result<()> {
        let Ok(there) = std::fs::symlink_metadata(&item.to) else { return Ok(()) };
        if there.is_dir() {
            bail!("{}: is a directory", item.to.display());
        }
        let is_plain = matches!(item.inode.file_type(), FileType::Regular | FileType::Symlink);
        if is_plain && !there.is_file() && !there.is_symlink() {
            bail!("{}: is a device, pipe or socket; it is not replaced", item.to.display());
        }
        image::refuse_same(&self.args.image, &item.to)
    }

    /// A file: written under a name of its own beside, then renamed.
    fn regular(&self, item: &Item) -> Result<()> {
        let directory =
            item.to.parent().filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let file =
            tempfile::NamedTempFile::new_in(directory).with_context(|| directory.display().to_string())?;
        self.content(&item.inode, file.as_file()).with_context(|| shown(item))?;
        file.persist(&item.to).with_context(|| item.to.display().to_string())?;
        Ok(())
    }

    /// The content; holes and unwritten extents stay holes.
    fn content(&self, inode: &Inode, file: &File) -> Result<()> {
        file.set_len(inode.size())?;
        let mut buf = vec![0; usize_from_u64(CHUNK)];
        let mut copy = |from: u64, to: u64| -> Result<()> {
            let mut at = from;
            while at < to {
                let wanted = usize_from_u64((to - at).min(CHUNK));
                let length = self.reader.read(inode, at, &mut buf[..wanted])?;
                if length == 0 {
                    bail!("the content ends at byte {at}, before the size");
                }
                file.write_all_at(&buf[..length], at)?;
                self.progress.add_bytes(length);
                self.bytes.set(self.bytes.get() + u64_from_usize(length));
                at += u64_from_usize(length);
            }
            Ok(())
        };
        if !matches!(inode.map(), InodeMap::Extents | InodeMap::Indirect) {
            return copy(0, inode.size());
        }
        let bits = self.reader.superblock().geometry().block_bits();
        for extent in self.reader.extents(inode) {
            let extent = extent?;
            if !extent.unwritten {
                let from = u64_from_u32(extent.logical.raw()) << bits;
                copy(from, (from + (u64::from(extent.length) << bits)).min(inode.size()))?;
            }
        }
        Ok(())
    }

    /// Owner, permissions, extended attributes and times.
    fn attributes(&self, item: &Item) -> Result<()> {
        let at = || item.to.display().to_string();
        let raw = item.inode.slot().raw();
        if self.is_root {
            std::os::unix::fs::lchown(&item.to, Some(raw.uid()), Some(raw.gid())).with_context(at)?;
        }
        if !self.args.no_xattrs {
            for attribute in self.reader.xattrs(&item.inode)? {
                host::set_xattr(&item.to, &attribute.name, &attribute.value, self.is_root)
                    .with_context(at)?;
            }
        }
        if item.inode.file_type() != FileType::Symlink {
            host::set_permissions(&item.to, item.inode.mode()).with_context(at)?;
        }
        let slot = item.inode.slot();
        host::set_times(&item.to, slot.accessed(), slot.modified()).with_context(at)
    }

    fn done(&mut self, item: &Item) {
        self.names += 1;
        self.progress.add_name();
        if self.output.json {
            let kind = super::ls::type_word(item.inode.file_type());
            let object = names::with(json!({"type": kind, "size": item.inode.size()}), "path", &item.path);
            println!("{}", names::with(object, "to", image::path_bytes(item.to.as_os_str())));
        }
    }
}

fn shown(item: &Item) -> String {
    String::from_utf8_lossy(&item.path).into_owned()
}

fn remove_if_there(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| path.display().to_string())
        }
        _ => Ok(()),
    }
}

/// A pipe, socket or device.
fn node(item: &Item, map: InodeMap) -> Result<()> {
    let (kind, device) = match (item.inode.file_type(), map) {
        (FileType::Fifo, _) => (HostType::Fifo, 0),
        (FileType::Socket, _) => (HostType::Socket, 0),
        (FileType::CharDevice, InodeMap::Device(number)) => {
            (HostType::CharacterDevice, rustix::fs::makedev(number.major, number.minor))
        }
        (FileType::BlockDevice, InodeMap::Device(number)) => {
            (HostType::BlockDevice, rustix::fs::makedev(number.major, number.minor))
        }
        _ => bail!("{}: of a type that cannot be copied", shown(item)),
    };
    remove_if_there(&item.to)?;
    rustix::fs::mknodat(CWD, &item.to, kind, Mode::RUSR | Mode::WUSR, device)
        .map_err(std::io::Error::from)
        .with_context(|| item.to.display().to_string())
}
