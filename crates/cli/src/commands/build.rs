//! `blockyard build SOURCE... IMAGE`: trees of files become an image, laid out as a whole and written once.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use blockyard_build::{Builder, Choice, Error, Plan, Platform, Room, Size, Summary, Tree};
use blockyard_device::{BlockDevice, DeviceError, FileDevice, ImagePath};
use blockyard_disk::num::{count_as_f64, u64_from_usize};
use blockyard_inspect::units;

use super::mkfs::{Format, Target, of_usage, values};
use super::progress::{Progress, Watched};
use super::{Output, UsageError, clock, image, interrupt};

/// Arguments; the letters are those of mke2fs.
#[derive(clap::Args)]
#[command(after_help = "\
The image holds the tree with owners, permissions, times, links, devices, holes, extended attributes and access control lists; \
access times are the times of the last change. The same tree and options give the same bytes, from a directory or an archive of it and \
whatever the number of threads: the \
hash seed follows from the names, the UUID from all there is.\n\n\
With --size auto the file system has no blocks reserved for root and cannot grow (no resize_inode), unless -m, -O or -E say so; its \
journal is the one that mke2fs makes for that size. What is not given is as for blockyard mkfs, but for the block size: 4096.\n\n\
JSON: one object: image, dry_run, image_bytes, files, directories, file_bytes, content_bytes, free_bytes, uuid, inodes, \
journal_blocks, seconds (read, write).\n\n\
Exit codes: 0 made; 2 wrong usage; 8 refused or failed: then there is no image.")]
pub(crate) struct Args {
    /// Directory to copy, tar archive (plain, or compressed by gzip, zstd or xz; - is one on standard input), or image of a
    /// container: an OCI layout or what docker save writes, as a directory or an archive. Of several, later ones lie over earlier ones
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<PathBuf>,
    /// File or block device; a file is made anew. IMAGE?offset=BYTES is a part of one, such as a partition
    #[arg(value_parser = image::operand())]
    image: ImagePath,
    /// Size of the image: auto, or a size with a suffix k, m, g, t
    #[arg(long, default_value = "auto")]
    size: String,
    /// Room that stays free with --size auto: a size with a suffix, or a percentage such as 10%
    #[arg(long, default_value = "0")]
    free: String,
    #[command(flatten)]
    format: Format,
    /// Latest time, seconds since 1970: later ones become it; also the time of creation [default: E2FSPROGS_FAKE_TIME,
    /// SOURCE_DATE_EPOCH, else the newest time of the tree]
    #[arg(long, allow_negative_numbers = true)]
    time: Option<i64>,
    /// Threads that read and write [default: one for each CPU]
    #[arg(long)]
    threads: Option<usize>,
    /// Overwrite what the target holds
    #[arg(short = 'F', long)]
    force: bool,
    /// Folder for the content of an archive until the image is laid out [default: TMPDIR, else /tmp]
    #[arg(long, value_name = "FOLDER")]
    tmpdir: Option<PathBuf>,
    /// Platform of the image of a container: OS/ARCHITECTURE or OS/ARCHITECTURE/VARIANT [default: linux and this machine's]
    #[arg(long)]
    platform: Option<Platform>,
    /// Name or tag of the image of a container, where its store has several
    #[arg(long, value_name = "NAME")]
    reference: Option<String>,
    /// Take an OCI layout or an archive of Docker as the files that it consists of
    #[arg(long)]
    no_unpack: bool,
    /// Show what would be made and write nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Keep what was written when the image could not be made
    #[arg(long)]
    keep_partial: bool,
}

impl Args {
    /// Makes the image.
    pub(crate) fn run(&self, output: &Output) -> Result<ExitCode> {
        let builder = self.builder().map_err(UsageError::from)?;
        image::refuse_in_use(&self.image)?;
        let began = Instant::now();
        let tree = self.tree(builder.threads)?;
        let plan = builder.plan(tree).map_err(|error| match error {
            Error::Mkfs(error) => of_usage(error),
            other => other.into(),
        })?;
        let bytes = plan.bytes();
        let target = Target::inspect(&self.image, Some(bytes))?;
        if !self.force {
            target.refuse_occupied()?;
        }
        let read = began.elapsed();
        let summary = if self.dry_run { plan.summary() } else { self.write(plan, target, output)? };
        let seconds = [read, began.elapsed().saturating_sub(read)].map(|time| time.as_secs_f64());
        if output.json {
            println!("{}", self.to_json(&summary, seconds));
        } else if !output.quiet {
            print!("{}", self.to_text(&summary, seconds));
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The tree of the sources.
    fn tree(&self, threads: usize) -> Result<Tree> {
        let spool = self.tmpdir.clone().unwrap_or_else(std::env::temp_dir);
        if self.sources.iter().filter(|source| source.as_os_str() == "-").count() > 1 {
            return Err(UsageError::new("-: standard input can be read once only".to_owned()).into());
        }
        let each = self.sources.iter().map(|source| self.source(source, &spool, threads));
        let mut trees = each.collect::<Result<Vec<Tree>>>()?;
        match trees.len() {
            1 => Ok(trees.remove(0)),
            _ => Ok(Tree::merge(trees, &spool)?),
        }
    }

    fn source(&self, source: &Path, spool: &Path, threads: usize) -> Result<Tree> {
        let tree = if source.as_os_str() == "-" {
            Tree::read_archive(std::io::stdin().lock(), Path::new("standard input"), spool)?
        } else if source.is_file() {
            let file = std::fs::File::open(source).with_context(|| source.display().to_string())?;
            Tree::read_archive(file, source, spool)?
        } else {
            Tree::read(source, threads)?
        };
        if self.no_unpack || !tree.is_container_image() {
            return Ok(tree);
        }
        let choice = Choice { reference: self.reference.clone(), platform: self.platform.clone() };
        Ok(tree.unpack_container(&choice, spool)?)
    }

    fn builder(&self) -> Result<Builder> {
        let plain = Builder::default();
        let mut options = self.format.options()?;
        options.block_size = options.block_size.or(plain.options.block_size);
        if options.resize.is_none() {
            options.features.splice(0..0, plain.options.features.clone());
        }
        options.reserved_percent = options.reserved_percent.or(plain.options.reserved_percent);
        let threads =
            self.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        if threads == 0 {
            bail!("--threads 0: at least one is needed");
        }
        let inodes = options.inodes.take();
        Ok(Builder { options, size: self.size()?, inodes, time: clock::fixed(self.time)?, threads })
    }

    fn size(&self) -> Result<Size> {
        if self.size != "auto" {
            if self.free != "0" {
                bail!("--free {}: it goes with --size auto only", self.free);
            }
            return Ok(Size::Bytes(bytes("--size", &self.size)?));
        }
        if let Some(percent) = self.free.strip_suffix('%') {
            let percent = percent.parse().ok().filter(|percent| *percent < 100);
            let percent =
                percent.with_context(|| format!("--free {}: no percentage below 100", self.free))?;
            return Ok(Size::Auto(Room::Percent(percent)));
        }
        Ok(Size::Auto(Room::Bytes(bytes("--free", &self.free)?)))
    }

    /// A file gets its name when it is complete; a device or a part of a file is written in place.
    fn write(&self, plan: Plan, target: Target<'_>, output: &Output) -> Result<Summary> {
        let progress = Progress::copying(output, "build");
        let summary = plan.summary();
        progress.expect(summary.files + summary.directories, summary.file_bytes);
        let path = self.image.file();
        let is_whole = self.image.offset() == 0 && (!path.exists() || path.is_file());
        if !is_whole {
            let device = target.open()?;
            return written(plan, &device, &progress);
        }
        drop(target);
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let partial = tempfile::Builder::new()
            .prefix(".blockyard-")
            .suffix(".partial")
            .tempfile_in(folder)
            .with_context(|| folder.display().to_string())?;
        let (_, partial) = partial.into_parts();
        let device = FileDevice::create(&partial, plan.bytes())?;
        match written(plan, &device, &progress) {
            Ok(summary) => {
                set_mode(&partial)?;
                partial.persist(path).with_context(|| path.display().to_string())?;
                Ok(summary)
            }
            Err(error) if self.keep_partial => {
                let kept = partial.keep()?;
                Err(error.context(format!("{} holds what was written", kept.display())))
            }
            Err(error) => Err(error),
        }
    }

    fn to_json(&self, summary: &Summary, [read, write]: [f64; 2]) -> serde_json::Value {
        let file_system = &summary.file_system;
        serde_json::json!({
            "image": self.image.display().to_string(),
            "dry_run": self.dry_run,
            "image_bytes": summary.image_bytes,
            "files": summary.files,
            "directories": summary.directories,
            "file_bytes": summary.file_bytes,
            "content_bytes": summary.content_bytes,
            "free_bytes": summary.free_bytes,
            "uuid": image::uuid(&file_system.uuid),
            "inodes": file_system.inodes,
            "journal_blocks": file_system.journal_blocks,
            "seconds": { "read": read, "write": write },
        })
    }

    fn to_text(&self, summary: &Summary, [read, write]: [f64; 2]) -> String {
        let bytes = |bytes: u64| units::bytes(count_as_f64(bytes));
        let file_system = &summary.file_system;
        let overhead = summary.image_bytes - summary.content_bytes - summary.free_bytes;
        let journal = file_system.journal_blocks * u64::from(file_system.block_size);
        format!(
            "{}: {} {} with {} and {} of {}\n{} of blocks with content, {} of metadata and journal ({}), {} free, {}\n\
             UUID {}\nread in {read:.2} s, written in {write:.2} s\n",
            self.image.display(),
            if self.dry_run { "would make" } else { "made" },
            bytes(summary.image_bytes),
            units::counted(summary.directories, "directory"),
            units::counted(summary.files, "file"),
            bytes(summary.file_bytes),
            bytes(summary.content_bytes),
            bytes(overhead),
            bytes(journal),
            bytes(summary.free_bytes),
            units::counted(u64::from(file_system.inodes), "inode"),
            image::uuid(&file_system.uuid),
        )
    }
}

/// Ends in order when a signal comes.
fn written(plan: Plan, device: &FileDevice, progress: &Progress) -> Result<Summary> {
    interrupt::watch()?;
    let written = plan.write(&Interruptible(&Watched::new(device, progress)));
    interrupt::check()?;
    Ok(written?)
}

/// A device whose writes fail after a signal.
struct Interruptible<'a, D>(&'a D);

impl<D: BlockDevice> BlockDevice for Interruptible<'_, D> {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn is_read_only(&self) -> bool {
        self.0.is_read_only()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> blockyard_device::Result<()> {
        self.0.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> blockyard_device::Result<()> {
        let stopped = |_| DeviceError::Io {
            operation: "write",
            offset,
            length: u64_from_usize(data.len()),
            source: std::io::ErrorKind::Interrupted.into(),
        };
        interrupt::check().map_err(stopped)?;
        self.0.write_at(offset, data)
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> blockyard_device::Result<()> {
        self.0.write_zeroes(offset, length)
    }

    fn discard(&self, offset: u64, length: u64) -> blockyard_device::Result<()> {
        self.0.discard(offset, length)
    }

    fn flush(&self) -> blockyard_device::Result<()> {
        self.0.flush()
    }
}

/// A new image has the mode that a new file has: that of the partial one is for its owner alone.
fn set_mode(path: &Path) -> Result<()> {
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(mask);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666 & !mask.bits());
    std::fs::set_permissions(path, mode).with_context(|| path.display().to_string())
}

/// A size with a suffix, in bytes.
fn bytes(option: &str, text: &str) -> Result<u64> {
    match values::suffixed(text) {
        Some((number, suffix)) => number
            .checked_mul(suffix.unwrap_or(1))
            .with_context(|| format!("{option} {text}: more than 64 bits hold")),
        None => bail!("{option} {text}: no size; give bytes, or a number with k, m, g or t"),
    }
}
