//! `blockyard put IMAGE SOURCE... DEST`: copies files and trees of the host into an image.
//!
//! A copy keeps type, permissions, owner, modification time, flags, extended attributes, holes and
//! hard links. A replaced name keeps its old content until the new content is complete. A file
//! whose content cannot be copied leaves nothing behind; files that were copied earlier stay.
//!
//! With a fixed time (`--time` or an environment variable, see `clock.rs`), a tree and a copy of
//! the tree give the same bytes. For this, later times are set to the fixed time, access times
//! equal the modification times, and blocks of zeroes become holes.

mod attributes;
mod leaf;
mod shortage;
mod stream;
mod tree;

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use blockyard_device::ImagePath;
use blockyard_disk::InodeNr;
use blockyard_disk::num::count_as_f64;
use blockyard_inspect::units;
use serde_json::json;
use walkdir::WalkDir;

use self::shortage::Need;
pub(super) use self::shortage::shown_bytes;
use self::stream::Stream;
use super::host::{Links, refused};
use super::owner::{Ids, Owner};
use super::progress::Progress;
use super::volume::{self, AtPath, Entry, NameError, Volume};
use super::{Output, UsageError, image, interrupt, names};

/// Bytes copied at a time.
const CHUNK: usize = 1 << 20;

/// Arguments of `blockyard put`.
#[derive(clap::Args)]
#[command(after_help = volume::EXIT_CODES, after_long_help = format!("If a directory is given as DIR/., its content \
    is put into DEST, without the directory itself. Without -r, links given as SOURCE are followed, and devices and pipes \
    are read. With -r, all three are copied as what they are.\n\nWith --time (or SOURCE_DATE_EPOCH) the same tree gives the same bytes: every later time is set to the given one, access times \
    are set to the modification times, and blocks of zeroes become holes.\n\nJSON: one object per name: path (in the image), inode, type, size. {}\n\n{}", names::BYTES_KEYS, volume::EXIT_CODES))]
pub(crate) struct Args {
    /// The image: a file or block device; IMAGE?offset=BYTES is a part of one, such as a partition
    #[arg(value_parser = image::operand())]
    image: ImagePath,
    /// Files of the host (- is standard input), then the directory in the image to put them into,
    /// or the new name
    #[arg(required = true, num_args = 2.., value_names = ["SOURCE", "DEST"])]
    paths: Vec<OsString>,
    /// Copy directories and everything in them
    #[arg(short = 'r', short_alias = 'R', long)]
    recursive: bool,
    /// Copy symbolic links given as SOURCE themselves (-r always does)
    #[arg(short = 'P', long)]
    no_dereference: bool,
    /// Owner and group of everything copied: USER, USER:GROUP or :GROUP, as names in the image or
    /// numbers [default: those of the source; 0:0 for standard input, and for what is read from a
    /// pipe or device]
    #[arg(long, value_name = "OWNER")]
    owner: Option<Owner>,
    /// Leave extended attributes out
    #[arg(long)]
    no_xattrs: bool,
    /// Copy access times. Otherwise, the access time is the time of the copy
    #[arg(long, conflicts_with = "time")]
    preserve_atime: bool,
    /// When the image is full, go on with what fits
    #[arg(long)]
    keep_going: bool,
    #[command(flatten)]
    options: volume::Options,
}

impl Args {
    /// Copies into the image.
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        interrupt::watch()?;
        Volume::change(&self.image, &self.options, output, |volume| {
            if self.preserve_atime && volume.fixed_time.is_some() {
                return Err(UsageError::new(
                    "--preserve-atime: a fixed time also fixes the access times".into(),
                )
                .into());
            }
            let owner = self.owner.as_ref().map_or(Ok(Ids::default()), |owner| owner.ids(volume))?;
            let (sources, dest) = volume.sources_and_dest(&self.paths)?;
            volume.progress = Progress::copying(output, "put");
            expect(&volume.progress, sources);
            let began = Instant::now();
            let itself = std::fs::metadata(self.image.file()).ok().map(|data| (data.dev(), data.ino()));
            let mut copy = Copy {
                volume,
                args: &self,
                owner,
                itself,
                linked: HashMap::new(),
                flags: Vec::new(),
                names: 0,
                bytes: 0,
                copied: Need::default(),
                left_out: LeftOut::default(),
            };
            let ended = sources.iter().try_for_each(|source| copy.operand(source, dest));
            copy.set_late_flags()?;
            copy.tell_end(sources, began, ended)
        })
    }
}

/// Counts what there is to copy, for the progress line. The count is approximate: files may change
/// meanwhile, and the size of holes is estimated. Nothing is counted if standard input is among the
/// sources, because its length is unknown.
fn expect(progress: &Progress, sources: &[OsString]) {
    if !progress.is_wanted() || sources.iter().any(|source| source == "-") {
        return;
    }
    let all = sources.iter().flat_map(|source| WalkDir::new(source).into_iter().flatten());
    let (names, bytes) =
        all.filter_map(|entry| entry.metadata().ok()).fold((0, 0), |(names, bytes), data| {
            // Holes are not copied.
            let content = if data.is_file() { data.size().min(data.blocks() * 512) } else { 0 };
            (names + 1, bytes + content)
        });
    progress.expect(names, bytes);
}

/// A summary of the copy, for people.
pub(super) fn copied(names: u64, bytes: u64, began: Instant) -> String {
    let (names, bytes) = (units::counted(names, "name"), units::bytes(count_as_f64(bytes)));
    format!("{names} and {bytes} of content in {}", units::patience(began.elapsed()))
}

/// One run of the command.
struct Copy<'v, 'i> {
    volume: &'v mut Volume<'i>,
    args: &'v Args,
    /// The value of `--owner`.
    owner: Ids,
    /// Device and inode of the image, so that it is not copied into itself.
    itself: Option<(u64, u64)>,
    /// Inodes of the image by device and inode of the host, for hard links.
    linked: HashMap<(u64, u64), InodeNr>,
    /// Flags of inodes that may get more names. They are set at the end, because an immutable inode
    /// cannot get another name.
    flags: Vec<(InodeNr, u32, Vec<u8>)>,
    names: u64,
    bytes: u64,
    /// The space that the copied names need. Streams are not counted.
    copied: Need,
    left_out: LeftOut,
}

/// What was left out, which is no error.
#[derive(Default)]
struct LeftOut {
    itself: bool,
    attributes: u64,
}

impl Copy<'_, '_> {
    /// Copies one SOURCE. Returns only errors that end the work.
    fn operand(&mut self, source: &OsString, dest: &[u8]) -> Result<()> {
        let done = if source == "-" {
            self.stream(Stream::StandardInput, dest)
        } else {
            self.source(Path::new(source), dest)
        };
        self.settle(done).map(|_| ())
    }

    /// As [`Volume::settle`], but a full image ends the work too, unless `--keep-going` is given.
    fn settle<T>(&mut self, done: Result<T>) -> Result<Option<T>> {
        match done {
            Err(failed) if !self.args.keep_going && is_full(&failed) => Err(failed),
            done => self.volume.settle(done),
        }
    }

    /// Copies a file or a tree.
    fn source(&mut self, source: &Path, dest: &[u8]) -> Result<()> {
        let links =
            if self.args.recursive || self.args.no_dereference { Links::Kept } else { Links::Followed };
        let metadata = links.metadata(source)?;
        let bytes = source.as_os_str().as_bytes();
        let is_content = bytes == b"." || bytes.ends_with(b"/.") || bytes.ends_with(b"/./");
        if metadata.is_dir() && !self.args.recursive {
            return Err(refused(source, "is a directory; add -r to copy it with its content"));
        }
        if is_content || (metadata.is_dir() && source.file_name().is_none()) {
            return self.tree(source, None, dest);
        }
        let Some(name) = source.file_name() else {
            return Err(refused(source, "has no name to copy it by"));
        };
        let entry = if metadata.is_dir() { Entry::Directory } else { Entry::Other };
        let place = self.volume.destination(dest, name.as_bytes(), entry)?;
        if metadata.is_dir() {
            return self.tree(source, Some(place), dest);
        }
        if !self.args.recursive && !metadata.is_file() && !metadata.is_symlink() {
            return self.stream_to(Stream::Of(source.to_owned()), &place);
        }
        if self.itself == Some((metadata.dev(), metadata.ino())) {
            return Err(refused(source, "is the image itself"));
        }
        self.leaf(source, links, &metadata, &place)
    }

    fn done(&mut self, path: &[u8], inode: InodeNr, metadata: &Metadata) -> Result<()> {
        self.copied.add(metadata, self.cluster());
        self.made(path, inode)
    }

    fn made(&mut self, path: &[u8], inode: InodeNr) -> Result<()> {
        self.names += 1;
        self.volume.progress.add_name();
        let attributes = self.volume.fs.attributes(inode).at(path)?;
        self.volume.json(|| {
            let kind = super::ls::type_word(attributes.kind);
            let object = json!({"inode": inode.raw(), "type": kind, "size": attributes.size});
            names::with(object, "path", path)
        });
        Ok(())
    }

    /// Reports the end of the work: what was copied (if `-r` is given or the image is full), how
    /// much space a full image lacks, and what was left out.
    fn tell_end(&mut self, sources: &[OsString], began: Instant, ended: Result<()>) -> Result<()> {
        match ended {
            Err(failed) if is_full(&failed) => {
                let told = self.shortage(sources);
                self.volume.report(anyhow::anyhow!("{}; {told}", super::describe(&failed)))?;
            }
            Ok(()) if self.args.recursive => {
                let (names, bytes) = (self.names, self.bytes);
                self.volume.say(|| copied(names, bytes, began));
            }
            ended => ended?,
        }
        let LeftOut { itself, attributes } = self.left_out;
        if itself {
            self.volume.say(|| "left out: the image itself".to_owned());
        }
        if attributes > 0 {
            self.volume.say(|| format!("left out: {attributes} extended attributes that ext4 does not know"));
        }
        Ok(())
    }
}

/// Whether the image is full.
fn is_full(error: &anyhow::Error) -> bool {
    error.chain().filter_map(|cause| cause.downcast_ref()).any(NameError::is_full)
}
