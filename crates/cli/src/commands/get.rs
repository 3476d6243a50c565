//! `blockyard get IMAGE PATH... DEST`: copies files and trees from an image to the host.
//!
//! The image is only read, and is not trusted. Only DEST and names below it are changed. Links
//! below DEST are not followed. A file appears under its name only once it is complete.

mod attributes;
mod shortage;

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use blockyard_device::ImagePath;
use blockyard_disk::inode::InodeFlags;
use blockyard_disk::num::{u64_from_u32, u64_from_usize, usize_from_u64};
use blockyard_disk::{FileType, Inode, InodeMap, InodeNr};
use blockyard_inspect::path::{LastLink, join, last_name, names_directory};
use blockyard_inspect::reader::Reader;
use rustix::fs::{CWD, FileType as HostType, Mode, OFlags};
use serde_json::json;

use self::attributes::LeftOut;
use self::shortage::is_full;
use super::host::{Links, OnHost, refused};
use super::progress::Progress;
use super::volume::of_side;
use super::{Interrupted, Output, image, interrupt, names, partial};

/// Exit codes, for the help.
const EXIT_CODES: &str = "Exit codes: 0 done, 1 some of it failed (each reported; the rest is done, unless the host is full), 2 wrong usage, 8 the image \
                          cannot be read, or DEST cannot take the paths.";
/// Bytes copied at a time.
const CHUNK: u64 = 1 << 20;

/// Arguments of `blockyard get`.
#[derive(clap::Args)]
#[command(after_help = EXIT_CODES, after_long_help = format!("If a directory is given as DIR/., its content \
    is put into DEST, without the directory itself. If run by root, the command keeps owners, devices, and the attributes that only root may set, \
    as far as the host allows. A file that cannot get its owner loses its set-id bits. \
    A link given as PATH is followed unless -r or -P is given. If PATH is a regular file and DEST is a link, the content goes to the file that DEST leads to. An empty /lost+found is left out.\n\nJSON: one object per name: path (in the image), to, type, \
    size. {}\n\n{EXIT_CODES}", names::BYTES_KEYS))]
pub(crate) struct Args {
    /// The image: a file or block device; IMAGE?offset=BYTES is a part of one, such as a partition
    #[arg(value_parser = image::operand())]
    image: ImagePath,
    /// Paths in the image, then the directory of the host to put them into, or the new name (- is
    /// standard output)
    #[arg(required = true, num_args = 2.., value_names = ["PATH", "DEST"])]
    paths: Vec<OsString>,
    /// Copy directories and everything in them
    #[arg(short = 'r', short_alias = 'R', long)]
    recursive: bool,
    /// Copy symbolic links given as PATH themselves (-r always does)
    #[arg(short = 'P', long)]
    no_dereference: bool,
    /// Leave extended attributes out
    #[arg(long)]
    no_xattrs: bool,
    /// Make files immutable or append-only if they are so in the image. The flags A, D, d, S, s, T
    /// and u (as lsattr shows them) are always kept if the host has them, and all others are left
    /// out
    #[arg(long)]
    preserve_flags: bool,
    /// When the host is full, go on with what fits
    #[arg(long)]
    keep_going: bool,
}

impl Args {
    /// The arguments that copy all of an image into a directory of the host.
    pub(super) fn whole(image: ImagePath, dest: OsString) -> Self {
        Self {
            image,
            paths: vec!["/.".into(), dest],
            recursive: true,
            no_dereference: true,
            no_xattrs: false,
            preserve_flags: false,
            keep_going: false,
        }
    }

    /// The arguments that copy the content of the directory at `path` into `dest`, with
    /// `--preserve-flags`. If `path` does not lead to a directory, the copy fails.
    pub(super) fn exported(image: ImagePath, path: OsString, dest: OsString) -> Self {
        let mut content = path;
        content.push("/.");
        Self { paths: vec![content, dest], preserve_flags: true, ..Self::whole(image, OsString::new()) }
    }

    /// Copies from the image.
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        let reader = image::open(&self.image)?;
        self.run_on(&reader, output)
    }

    /// Copies from an image that is already open.
    pub(super) fn run_on(self, reader: &Reader, output: &Output) -> Result<ExitCode> {
        let Some((dest, sources)) = self.paths.split_last() else { return Ok(ExitCode::SUCCESS) };
        if dest == "-" {
            return image::print(&self.image, false, |out| {
                sources.iter().try_for_each(|path| to_stream(reader, image::path_bytes(path), out))
            });
        }
        interrupt::watch()?;
        let mut copy = Copy {
            reader,
            args: &self,
            output,
            is_root: rustix::process::geteuid().is_root(),
            progress: Progress::copying(output, "get"),
            names: 0,
            bytes: 0,
            linked: HashMap::new(),
            flags: Vec::new(),
            left_out: LeftOut::default(),
            failures: 0,
        };
        let dest = Path::new(dest);
        if sources.len() > 1 && !dest.is_dir() {
            return Err(refused(dest, "not a directory; several paths need a directory"));
        }
        let began = Instant::now();
        copy.expect(sources);
        let ended = sources.iter().try_for_each(|source| {
            let done = copy.source(image::path_bytes(source), dest);
            copy.settle(done).map(|_| ())
        });
        copy.set_flags()?;
        copy.tell_end(sources, dest, began, ended)?;
        Ok(if copy.failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn to_stream(reader: &Reader, path: &[u8], out: &mut dyn Write) -> Result<()> {
    let inode = reader.resolve(path, LastLink::Follow)?;
    image::expect_file(&inode, path)?;
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
    /// Bytes of content copied.
    bytes: u64,
    /// The first copy of each inode with several names.
    linked: HashMap<InodeNr, FirstCopy>,
    /// Flags to set at the end, because an immutable file accepts no more changes.
    flags: Vec<(PathBuf, Option<Rc<Base>>, InodeFlags)>,
    left_out: LeftOut,
    failures: u64,
}

/// Something in the image, and its destination.
struct Item {
    path: Vec<u8>,
    inode: Inode,
    to: PathBuf,
    /// The open directory through which `to` leads, if the whole path is long ([`PATH_LONG`]).
    base: Option<Rc<Base>>,
}

impl Item {
    /// The whole path on the host.
    fn whole_to(&self) -> PathBuf {
        let Some(base) = &self.base else { return self.to.clone() };
        base.whole.join(self.to.strip_prefix(&base.path).unwrap_or(&self.to))
    }
}

/// The first copy of a file that has several names.
struct FirstCopy {
    path: PathBuf,
    /// The open directory through which `path` leads.
    _base: Option<Rc<Base>>,
    /// Device and inode number on the host.
    host: (u64, u64),
}

/// A host directory that is kept open because its path is long.
struct Base {
    /// Its short path for system calls, under /proc/self/fd.
    path: PathBuf,
    /// Its full path.
    whole: PathBuf,
    _open: OwnedFd,
}

/// If the path of a directory has more bytes than this, its entries are reached through the open
/// directory. `PATH_MAX` is 4096 bytes, and a name has up to 255.
const PATH_LONG: usize = 3500;

impl Copy<'_> {
    /// Reports a failure and returns `None`, so that the copy goes on. Only those errors are
    /// returned that end the copy: a signal, and a full host unless `--keep-going` is given.
    fn settle<T>(&mut self, done: Result<T>) -> Result<Option<T>> {
        match done {
            Ok(value) => Ok(Some(value)),
            Err(failed) if failed.is::<Interrupted>() => Err(failed),
            Err(failed) if !self.args.keep_going && is_full(&failed) => Err(failed),
            Err(failed) => {
                self.report(&super::describe(&of_side(failed, &self.args.image)));
                Ok(None)
            }
        }
    }

    fn report(&mut self, failed: &str) {
        self.progress.beside(|| eprintln!("blockyard: {failed}"));
        self.failures += 1;
    }

    fn source(&mut self, path: &[u8], dest: &Path) -> Result<()> {
        let last =
            if self.args.recursive || self.args.no_dereference { LastLink::Keep } else { LastLink::Follow };
        let inode = self.reader.resolve(path, last)?;
        let is_into = dest.is_dir();
        if !is_into && !inode.is_directory() && names_directory(dest.as_os_str().as_bytes()) {
            return Err(refused(dest, "is not a directory"));
        }
        let to = match last_name(path) {
            Some(name) if is_into && name != b".." && !path.ends_with(b"/.") => {
                dest.join(OsStr::from_bytes(name))
            }
            // If DEST is a link, follow it, because the user named it. Links below DEST may lead
            // anywhere, and are not followed.
            _ if inode.file_type() == FileType::Regular => partial::followed(dest).on_host(dest)?,
            _ => dest.to_owned(),
        };
        let item = Item { path: path.to_vec(), inode, to, base: None };
        if !item.inode.is_directory() {
            let is_special = !matches!(item.inode.file_type(), FileType::Regular | FileType::Symlink);
            if is_special && !self.args.recursive {
                bail!("{}: is a device, pipe or socket; add -r to copy it as one", shown(&item));
            }
            return self.leaf(&item);
        }
        if !self.args.recursive {
            bail!("{}: is a directory; add -r to copy it with its content", String::from_utf8_lossy(path));
        }
        self.tree(item)
    }

    /// Copies a directory with everything in it, without recursion, because directories may be
    /// nested deeper than the stack allows.
    fn tree(&mut self, root: Item) -> Result<()> {
        let mut made = Vec::new();
        let ended = self.walk(root, &mut made);
        // New entries change the times of a directory, and its mode may forbid them. So the
        // attributes of directories are set last, each directory after the directories below it.
        while let Some(item) = made.pop() {
            let done = self.attributes(&item, &item.to).map(|()| self.done(&item));
            self.settle(done)?;
        }
        ended
    }

    fn walk(&mut self, root: Item, made: &mut Vec<Item>) -> Result<()> {
        let mut left = vec![root];
        // A damaged image can hold a directory inside itself.
        let mut seen: HashSet<InodeNr> = HashSet::new();
        while let Some(item) = left.pop() {
            if !item.inode.is_directory() {
                let done = self.leaf(&item);
                self.settle(done)?;
                continue;
            }
            if !seen.insert(item.inode.number()) {
                let text = shown(&item);
                self.settle::<()>(Err(anyhow!(
                    "{text}: the directory was met before: the image is damaged"
                )))?;
                continue;
            }
            let entered = self.enter(&item);
            if let Some(below) = self.settle(entered)? {
                left.extend(below);
                made.push(item);
            }
        }
        Ok(())
    }

    /// Makes a directory, or accepts an existing one. Returns its entries in reverse order, because
    /// the caller takes them from the end.
    fn enter(&mut self, item: &Item) -> Result<Vec<Item>> {
        interrupt::check()?;
        match std::fs::create_dir(&item.to) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                if !Links::Kept.metadata(&item.to)?.is_dir() {
                    return Err(refused(&item.to, "exists and is not a directory"));
                }
            }
            done => done.on_host(&item.to)?,
        }
        let (mut below, mut names) = (Vec::new(), HashSet::new());
        let base =
            if item.to.as_os_str().len() > PATH_LONG { Some(opened(item)?) } else { item.base.clone() };
        let place = base.as_ref().filter(|_| item.to.as_os_str().len() > PATH_LONG);
        let place = place.map_or_else(|| item.to.clone(), |base| base.path.clone());
        for entry in self.reader.entries(&item.inode)? {
            let entry = entry.with_context(|| shown(item))?;
            let path = join(&item.path, &entry.name);
            if !names.insert(entry.name.clone()) {
                let text = String::from_utf8_lossy(&path);
                self.settle::<()>(Err(anyhow!(
                    "{text}: the directory holds the name twice: the image is damaged; the first one counts"
                )))?;
                continue;
            }
            if is_dots(&entry.name) {
                continue;
            }
            let inode =
                self.reader.inode(entry.inode).with_context(|| String::from_utf8_lossy(&path).into_owned());
            let Some(inode) = self.settle(inode)? else { continue };
            if entry.name == b"lost+found" && item.inode.number() == InodeNr::ROOT && self.is_empty(&inode) {
                self.left_out.lost_and_found = true;
                continue;
            }
            let to = place.join(OsStr::from_bytes(&entry.name));
            below.push(Item { path, inode, to, base: base.clone() });
        }
        below.sort_by(|one, other| other.path.cmp(&one.path));
        Ok(below)
    }

    /// Whether a directory is readable and has no entries but `.` and `..`, each at most once.
    fn is_empty(&self, directory: &Inode) -> bool {
        let mut names = HashSet::new();
        let mut is_expected = |name: Vec<u8>| is_dots(&name) && names.insert(name);
        directory.is_directory()
            && self.reader.entries(directory).is_ok_and(|mut entries| {
                entries.all(|entry| entry.is_ok_and(|entry| is_expected(entry.name)))
            })
    }

    /// Copies anything but a directory.
    fn leaf(&mut self, item: &Item) -> Result<()> {
        interrupt::check()?;
        self.refuse_to_replace(item)?;
        if let Some(first) = self.first_copy(item) {
            if host_id(&item.to) != Some(first.host) {
                make(&item.to, |to| std::fs::hard_link(&first.path, to))?;
            }
            self.done(item);
            return Ok(());
        }
        match item.inode.map() {
            _ if item.inode.file_type() == FileType::Regular => self.regular(item)?,
            _ if item.inode.file_type() == FileType::Symlink => {
                let target = self.reader.symlink_target(&item.inode)?;
                make(&item.to, |to| std::os::unix::fs::symlink(OsStr::from_bytes(&target), to))?;
                self.attributes(item, &item.to)?;
            }
            map => {
                node(item, map)?;
                self.attributes(item, &item.to)?;
            }
        }
        if item.inode.links() > 1
            && let Some(host) = host_id(&item.to)
        {
            let first = FirstCopy { path: item.to.clone(), _base: item.base.clone(), host };
            self.linked.insert(item.inode.number(), first);
        }
        self.done(item);
        Ok(())
    }

    /// The first copy of a file that has several names, if it is still there. A later file of the
    /// same name may have replaced it.
    fn first_copy(&self, item: &Item) -> Option<&FirstCopy> {
        let first = self.linked.get(&item.inode.number())?;
        (host_id(&first.path) == Some(first.host)).then_some(first)
    }

    /// Refuses to replace a directory or the image itself. Also refuses to replace a device, pipe
    /// or socket by a regular file or symbolic link.
    fn refuse_to_replace(&self, item: &Item) -> Result<()> {
        let Ok(there) = std::fs::symlink_metadata(&item.to) else { return Ok(()) };
        if there.is_dir() {
            return Err(refused(&item.to, "is a directory"));
        }
        let is_plain = matches!(item.inode.file_type(), FileType::Regular | FileType::Symlink);
        if is_plain && !there.is_file() && !there.is_symlink() {
            return Err(refused(&item.to, "is a device, pipe or socket; it is not replaced"));
        }
        image::refuse_same(&self.args.image, &item.to)
    }

    /// Copies a regular file. It is written under a temporary name, and renamed once its content
    /// and attributes are complete. If the copy fails or a signal stops it, the temporary file is
    /// removed.
    fn regular(&mut self, item: &Item) -> Result<()> {
        let directory = folder(&item.to);
        let file = temporary().tempfile_in(directory).on_host(directory)?;
        self.content(item, file.as_file())?;
        self.attributes(item, file.path())?;
        file.persist(&item.to).map_err(|error| error.error).on_host(&item.to)?;
        Ok(())
    }

    /// Copies content. Holes and unwritten extents become holes.
    fn content(&mut self, item: &Item, file: &File) -> Result<()> {
        let (inode, path) = (&item.inode, &item.to);
        file.set_len(inode.size()).on_host(path)?;
        let mut buf = vec![0; usize_from_u64(CHUNK)];
        let mut copy = |from: u64, to: u64| -> Result<()> {
            let mut at = from;
            while at < to {
                interrupt::check()?;
                let wanted = usize_from_u64((to - at).min(CHUNK));
                let length = self.reader.read(inode, at, &mut buf[..wanted]).with_context(|| shown(item))?;
                if length == 0 {
                    bail!("{}: the content ends at byte {at}, before the size", shown(item));
                }
                file.write_all_at(&buf[..length], at).on_host(path)?;
                self.progress.add_bytes(length);
                self.bytes += u64_from_usize(length);
                at += u64_from_usize(length);
            }
            Ok(())
        };
        if !matches!(inode.map(), InodeMap::Extents | InodeMap::Indirect) {
            return copy(0, inode.size());
        }
        let bits = self.reader.superblock().geometry().block_bits();
        for extent in self.reader.extents(inode) {
            let extent = extent.with_context(|| shown(item))?;
            if !extent.unwritten {
                let from = u64_from_u32(extent.logical.raw()) << bits;
                copy(from, (from + (u64::from(extent.length) << bits)).min(inode.size()))?;
            }
        }
        Ok(())
    }

    fn done(&mut self, item: &Item) {
        self.names += 1;
        self.progress.add_name();
        if self.output.json {
            let kind = super::ls::type_word(item.inode.file_type());
            let object = names::with(json!({"type": kind, "size": item.inode.size()}), "path", &item.path);
            println!("{}", names::with(object, "to", image::path_bytes(item.whole_to().as_os_str())));
        }
    }
}

/// Opens the host directory of an item, so that its entries can be reached by a short path.
fn opened(item: &Item) -> Result<Rc<Base>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = rustix::fs::open(&item.to, flags, Mode::empty()).on_host(&item.to)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
    Ok(Rc::new(Base { path, whole: item.whole_to(), _open: open }))
}

fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

fn shown(item: &Item) -> String {
    String::from_utf8_lossy(&item.path).into_owned()
}

fn folder(of: &Path) -> &Path {
    of.parent().filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn temporary() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".blockyard-");
    builder
}

/// Device and inode number of a file of the host; `None` if there is no such file.
fn host_id(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Makes a link, pipe, socket or device under a name. If the name exists already, the old file
/// stays until the new one replaces it.
fn make(to: &Path, how: impl Fn(&Path) -> std::io::Result<()>) -> Result<()> {
    match how(to) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let made = temporary().make_in(folder(to), how).on_host(to)?;
            Ok(made.into_temp_path().persist(to).map_err(|error| error.error).on_host(to)?)
        }
        done => Ok(done.on_host(to)?),
    }
}

/// Makes a pipe, socket or device.
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
    make(&item.to, |to| Ok(rustix::fs::mknodat(CWD, to, kind, Mode::RUSR | Mode::WUSR, device)?))
}
