//! `blockyard build SOURCE... IMAGE`: makes an image from trees of files. The image is laid out as
//! a whole and written once.

mod rules;

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use blockyard_build::{
    Added, Builder, Choice, Compression, Error, LeftOut, MovedTimes, Placement, Plan, Platform, Room, Rules,
    Size, Summary, Tree,
};
use blockyard_device::{BlockDevice, DeviceError, FileDevice, ImagePath};
use blockyard_disk::num::{count_as_f64, u64_from_usize};
use blockyard_inspect::reader::Reader;
use blockyard_inspect::units;

use super::calendar::iso_minutes;
use super::mkfs::{Copy, Format, Target, of_usage, values};
use super::progress::{Progress, Watched};
use super::{Output, UsageError, clock, image, interrupt, partial};

/// How many bytes at the start of an existing file must be zeroes, unless `--force` is given.
const CHECKED: u64 = 64 << 10;

/// Arguments. The one-letter options are those of mke2fs.
#[derive(clap::Args)]
#[command(override_usage = "blockyard build [OPTIONS] <SOURCE>... <IMAGE>")]
#[command(after_help = "\
The image holds the tree with owners, permissions, times, links, devices, holes, extended attributes and access control lists; \
access times are set to the modification times. The same tree and options give the same bytes, with any number of threads, and \
whether the tree is a directory or an archive. For that, the hash seed is derived from the names, and the UUID from all content.\n\n\
-N is the least number of inodes; if the content needs more, the image has more.\n\n\
Unless -m, -O or -E say otherwise, the file system has no blocks reserved for root and cannot \
grow (no resize_inode). Its journal is the one that mke2fs makes for the size of the image. Other \
defaults are those of blockyard mkfs, except for the block size: 4096.\n\n\
JSON: one object: image, dry_run, image_bytes, files, directories, file_bytes, content_bytes, free_bytes, uuid, inodes, \
journal_blocks, overhead in bytes (directories, maps, attributes, slack, inode_tables, journal, other), seconds (read, layout, write, and \
of write: data, metadata, finish).\n\n\
Exit codes: 0 made; 2 wrong usage; 8 refused or failed, and no image was made.")]
pub(crate) struct Args {
    /// What to copy, then the image. A source is a directory, a tar archive (plain, or compressed
    /// with gzip, zstd or xz; it may be a named pipe, or - for standard input), an ext2, ext3 or
    /// ext4 image (also on a block device), or a container image (an OCI layout or the output of
    /// docker save, as a directory or an archive). If several sources have the same path, the last
    /// one wins. The image is a file, which is created anew, a block device, or - for standard
    /// output; IMAGE?offset=BYTES is a part of a file or device, such as a partition
    #[arg(required = true, value_name = "SOURCE... IMAGE")]
    operands: Vec<PathBuf>,
    #[command(flatten)]
    how: How,
}

/// The options.
#[derive(clap::Args)]
struct How {
    /// Size of the image: auto, or a size with a suffix k, m, g, t; without a suffix in bytes
    #[arg(long, default_value = "auto")]
    size: String,
    /// Space to leave in free blocks with --size auto: a size with a suffix, a number of bytes, or
    /// a percentage of the image such as 10%. df shows less, because Linux keeps up to 2 % to
    /// itself
    #[arg(long, default_value = "0")]
    free: String,
    #[command(flatten)]
    format: Format,
    /// Latest time, in seconds since 1970: later times are set to this one. Also the creation time
    /// [default: E2FSPROGS_FAKE_TIME, SOURCE_DATE_EPOCH, else the newest time of the tree]
    #[arg(long, allow_negative_numbers = true)]
    time: Option<i64>,
    /// Threads that read and write, not counting the one that decompresses while an archive or a
    /// layer is read [default: one for each CPU]
    #[arg(long)]
    threads: Option<usize>,
    /// Overwrite what the target holds
    #[arg(short = 'F', long)]
    force: bool,
    /// As --quiet
    #[arg(short = 'q')]
    silent: bool,
    /// Compress the image with gz or zst
    #[arg(long, value_name = "HOW", default_value = "none", hide_default_value = true)]
    compress: Compression,
    /// Folder for temporary files: the content of an archive or a container image until the image
    /// is written, and an image that is compressed or goes to standard output [default: TMPDIR,
    /// else /tmp]
    #[arg(long, value_name = "FOLDER")]
    tmpdir: Option<PathBuf>,
    /// Platform of the container image: OS/ARCHITECTURE or OS/ARCHITECTURE/VARIANT [default: linux
    /// and this machine's]
    #[arg(long)]
    platform: Option<Platform>,
    /// Name or tag of the container image, if the source holds several
    #[arg(long, value_name = "NAME")]
    reference: Option<String>,
    /// Do not unpack an OCI layout or a Docker archive: copy the files that it consists of
    #[arg(long)]
    no_unpack: bool,
    #[command(flatten)]
    rules: rules::RuleArgs,
    /// Put a file or directory of the host at a path of the image, over anything the sources have
    /// there. If the path ends with a slash, the file or directory is put below that path, under
    /// its own name. A directory at / is an exception: its content goes into the root
    #[arg(long, value_name = "LOCAL:PATH")]
    add: Vec<OsString>,
    /// Put the content of the files listed in FILE first, in this order. FILE has one path of the
    /// image per line; a directory stands for everything in it
    #[arg(long, value_name = "FILE")]
    order: Option<PathBuf>,
    /// Order of the other content on the device: directories-first (directories, then files in the
    /// order of the tree), with-directories (each directory directly before its files), or
    /// small-first (directories, then files of up to 64 KiB, then larger ones)
    #[arg(long, value_name = "HOW", default_value = "directories-first", hide_default_value = true)]
    placement: Placement,
    /// Show what would be made and write nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Keep what was written if the image cannot be completed
    #[arg(long)]
    keep_partial: bool,
}

impl Args {
    /// Makes the image.
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        let (image, sources) = self.operands.split_last().context("no operands")?;
        if sources.is_empty() {
            return Err(UsageError::new(format!("{}: no image after the source", image.display())).into());
        }
        let image =
            ImagePath::parse(image.as_os_str()).map_err(|error| UsageError::new(error.to_string()))?;
        let sources = sources.to_vec();
        Build { image, sources, how: self.how, asked_by: AskedBy::Build }.run(output)
    }
}

/// An image to make.
pub(super) struct Build {
    sources: Vec<PathBuf>,
    image: ImagePath,
    how: How,
    asked_by: AskedBy,
}

/// The command that asks for an image.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AskedBy {
    /// `blockyard build`, which makes a new image.
    Build,
    /// `blockyard mkfs -d`, which may overwrite data of a kind that it does not recognise.
    Mkfs,
}

impl Build {
    /// The build that `mkfs -d` asks for. Without a size, the image takes the size of the target.
    /// If the target has no size either, the image is as small as possible.
    pub(super) fn of_mkfs(copy: Copy) -> Self {
        let how = How {
            size: copy.bytes.map_or_else(|| "auto".to_owned(), |bytes| bytes.to_string()),
            free: "0".to_owned(),
            format: copy.format,
            time: copy.time,
            threads: None,
            force: copy.force,
            compress: Compression::None,
            tmpdir: None,
            platform: None,
            reference: None,
            no_unpack: false,
            rules: rules::RuleArgs::default(),
            add: Vec::new(),
            order: None,
            placement: Placement::default(),
            dry_run: copy.dry_run,
            keep_partial: false,
            silent: false,
        };
        Self { sources: copy.sources, image: copy.image, how, asked_by: AskedBy::Mkfs }
    }

    /// Makes the image.
    pub(crate) fn run(&self, output: &Output) -> Result<ExitCode> {
        let output = &Output { quiet: output.quiet || self.how.silent, json: output.json };
        let mut builder = self.builder().map_err(UsageError::from)?;
        builder.ahead = self.ahead()?;
        let rules = self.how.rules.rules().map_err(UsageError::from)?;
        let rules = Rules { removes_attributes: self.how.format.drops_attributes(), ..rules };
        image::refuse_in_use(&self.image)?;
        if self.asked_by == AskedBy::Mkfs
            && self.how.size == "auto"
            && let Some(bytes) = self.bytes_there()?
        {
            builder.size = Size::Bytes(bytes);
        }
        let began = Instant::now();
        let mut tree = self.tree(builder.threads, &rules)?;
        self.tell_left_out(&tree);
        tree.apply(&rules);
        let read = began.elapsed();
        let plan = builder.plan(tree).map_err(|error| match error {
            Error::Mkfs(error) => of_usage(error),
            other => other.into(),
        })?;
        let layout = began.elapsed().saturating_sub(read);
        self.tell_missing(plan.missing());
        self.tell_moved_times(plan.moved_times());
        let summary = if self.is_stream() {
            self.write_stream(plan, output)?
        } else {
            let target = Target::inspect(&self.image, Some(plan.bytes()))?;
            if !self.how.force {
                target.refuse_occupied()?;
                self.refuse_file_of_others()?;
            }
            if self.how.dry_run { plan.summary() } else { self.write(plan, target, output)? }
        };
        let seconds = Seconds { read, layout, write: began.elapsed().saturating_sub(read + layout) };
        let told = match (output.json, output.quiet) {
            (true, _) => self.to_json(&summary, &seconds).to_string() + "\n",
            (false, true) => String::new(),
            (false, false) => self.to_text(&summary, &seconds),
        };
        // When the image goes to standard output, the summary goes to standard error.
        if self.is_printed() {
            eprint!("{told}")
        } else {
            print!("{told}")
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The size in bytes of the target: a file, a block device, or the partition that begins at the
    /// offset. `None` if the target is missing or anything else, or if nothing follows the offset.
    fn bytes_there(&self) -> Result<Option<u64>> {
        let file = self.image.file();
        let has_size = |found: std::fs::Metadata| found.is_file() || found.file_type().is_block_device();
        if !std::fs::metadata(file).is_ok_and(has_size) {
            return Ok(None);
        }
        let whole = FileDevice::open_read_only(file)?.size();
        if whole <= self.image.offset() {
            return Ok(None);
        }
        Ok(Some(self.image.open_read_only()?.size()))
    }

    /// Refuses to replace a file unless its first 64 KiB ([`CHECKED`]) are zeroes: the user may
    /// have named the wrong file. `mkfs -d` does without this check.
    fn refuse_file_of_others(&self) -> Result<()> {
        let path = self.image.file();
        if self.asked_by == AskedBy::Mkfs || !self.is_replaced() || !path.exists() {
            return Ok(());
        }
        let mut start = Vec::new();
        std::fs::File::open(path)
            .and_then(|file| file.take(CHECKED).read_to_end(&mut start))
            .with_context(|| path.display().to_string())?;
        match start.iter().position(|&byte| byte != 0) {
            Some(at) => {
                bail!("{}: holds data, from byte {at} on; overwrite it with --force (-F)", path.display())
            }
            None => Ok(()),
        }
    }

    /// Whether the image is a whole file, which is created anew.
    fn is_replaced(&self) -> bool {
        let path = self.image.file();
        self.image.offset() == 0 && (!path.exists() || path.is_file())
    }

    /// Reports paths of `--order` that are not in the tree. They are not an error, because the list
    /// may come from a running system, which has more files.
    fn tell_missing(&self, missing: &[Vec<u8>]) {
        let Some(first) = missing.first() else { return };
        let (count, first) = (units::counted(u64_from_usize(missing.len()), "path"), first.escape_ascii());
        eprintln!(
            "blockyard: {}: {count} of --order not in the tree, the first is {first}",
            self.image.display()
        );
    }

    /// Reports attributes that were left out because no ext4 file can have them.
    fn tell_left_out(&self, tree: &Tree) {
        let Some(LeftOut { count, path, name }) = tree.left_out() else { return };
        let (count, name) = (units::counted(count, "extended attribute"), name.escape_ascii());
        eprintln!(
            "blockyard: {}: left out {count} that no ext4 file can have, the first is {name} of {}",
            self.image.display(),
            path.display()
        );
    }

    /// Reports times that the image cannot hold.
    fn tell_moved_times(&self, moved: Option<&MovedTimes>) {
        let Some(MovedTimes { count, path, possible }) = moved else { return };
        let [earliest, latest] = [possible.start(), possible.end()].map(|&seconds| iso_minutes(seconds));
        eprintln!(
            "blockyard: {}: moved {} into the range of its inodes, {earliest} to {latest}; the first is that of {}",
            self.image.display(),
            units::counted(*count, "modification time"),
            path.display()
        );
    }

    fn is_printed(&self) -> bool {
        self.image.file().as_os_str() == "-"
    }

    /// Whether the image is written sequentially, as a stream.
    fn is_stream(&self) -> bool {
        self.is_printed() || self.how.compress != Compression::None
    }

    /// Makes the image in a temporary file, and copies it from there.
    fn write_stream(&self, plan: Plan, output: &Output) -> Result<Summary> {
        let path = self.image.file();
        if self.image.offset() > 0 {
            return Err(UsageError::new("IMAGE?offset=BYTES: a stream has no offset".to_owned()).into());
        }
        if !self.is_printed() && !self.how.force && path.exists() {
            bail!("{}: is there already; overwrite it with --force (-F)", path.display());
        }
        if self.how.dry_run {
            return Ok(plan.summary());
        }
        let spool = self.how.tmpdir.clone().unwrap_or_else(std::env::temp_dir);
        let made = tempfile::NamedTempFile::new_in(&spool).with_context(|| spool.display().to_string())?;
        let progress = Progress::copying(output, "build");
        let summary = plan.summary();
        progress.expect(summary.files + summary.directories, summary.file_bytes);
        let device = FileDevice::create(made.path(), plan.bytes())?;
        // The temporary file is read again right away, so its content should be in the page cache.
        // Blocks cloned from a source (reflinks) would have to be read from disk.
        let summary = written(plan, &device, Blocks::Own, (&spool, &progress))?;
        drop(device);
        let mut image = made.reopen()?;
        if self.is_printed() {
            let copied = self.how.compress.copy(&mut image, Stoppable(std::io::stdout().lock()));
            interrupt::check()?;
            copied.context("standard output")?;
            return Ok(summary);
        }
        let made = partial::Destination::open(path)?;
        let copied = self.how.compress.copy(&mut image, Stoppable(made.as_file()));
        interrupt::check()?;
        copied.with_context(|| path.display().to_string())?;
        made.complete()?;
        Ok(summary)
    }

    /// The merged tree of all sources and additions. The rules are applied only in part: while
    /// directories are read, names that the rules are sure to leave out are skipped. The caller
    /// must call [`Tree::apply`] for the rest.
    fn tree(&self, threads: usize, rules: &Rules) -> Result<Tree> {
        let spool = self.how.tmpdir.clone().unwrap_or_else(std::env::temp_dir);
        if self.sources.iter().filter(|source| source.as_os_str() == "-").count() > 1 {
            return Err(UsageError::new("-: standard input can be read once only".to_owned()).into());
        }
        let each = self.sources.iter().map(|source| self.source(source, &spool, threads, rules));
        let mut trees = each.collect::<Result<Vec<Tree>>>()?;
        for tree in &mut trees {
            self.forget_image(tree);
        }
        if trees.len() == 1 && self.how.add.is_empty() {
            return Ok(trees.remove(0));
        }
        let mut added: Vec<Added> = trees.into_iter().map(|tree| Added { tree, at: Vec::new() }).collect();
        for operand in &self.how.add {
            added.push(self.added(operand, threads, rules)?);
        }
        Ok(Tree::merge_at(added)?)
    }

    /// The tree for one `--add`.
    fn added(&self, operand: &OsStr, threads: usize, rules: &Rules) -> Result<Added> {
        let bytes = operand.as_bytes();
        let wrong = || UsageError::new(format!("--add {}: no LOCAL:PATH", operand.display()));
        let colon = bytes.iter().rposition(|&byte| byte == b':').ok_or_else(wrong)?;
        let (local, path) = (Path::new(OsStr::from_bytes(&bytes[..colon])), &bytes[colon + 1..]);
        if local.as_os_str().is_empty() || path.is_empty() {
            return Err(wrong().into());
        }
        let mut at = path.to_vec();
        if path.ends_with(b"/") && path.iter().any(|&byte| byte != b'/') || !local.is_dir() && path == b"/" {
            at.extend_from_slice(local.file_name().ok_or_else(wrong)?.as_bytes());
        }
        let at = at.iter().position(|&byte| byte != b'/').map_or(Vec::new(), |start| at[start..].to_vec());
        let is_directory = std::fs::symlink_metadata(local).is_ok_and(|found| found.is_dir());
        // The root of this tree is not the root of the image, so patterns with a leading slash are
        // left to `Tree::apply`.
        let read = || Tree::read_by(local, threads, &rules.anywhere());
        let mut tree = if is_directory { read()? } else { Tree::read_file(local)? };
        self.forget_image(&mut tree);
        Ok(Added { tree, at })
    }

    /// Removes the image from the tree of a source, if the image lies inside that source.
    fn forget_image(&self, tree: &mut Tree) {
        let (Ok(image), Ok(top)) = (self.image.file().canonicalize(), tree.top().canonicalize()) else {
            return;
        };
        let Ok(below) = image.strip_prefix(&top) else { return };
        if tree.forget(below.as_os_str().as_bytes()) {
            eprintln!("blockyard: {}: is the image itself; it is left out", self.image.file().display());
        }
    }

    /// The paths in the `--order` file.
    fn ahead(&self) -> Result<Vec<Vec<u8>>> {
        let Some(file) = &self.how.order else { return Ok(Vec::new()) };
        let text = std::fs::read(file).with_context(|| file.display().to_string())?;
        let lines = text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        Ok(lines.map(<[u8]>::to_vec).collect())
    }

    fn source(&self, source: &Path, spool: &Path, threads: usize, rules: &Rules) -> Result<Tree> {
        let archive = || -> Result<Tree> {
            let file = std::fs::File::open(source).with_context(|| source.display().to_string())?;
            Ok(Tree::read_archive(file, source, spool)?)
        };
        let kind = std::fs::metadata(source).ok().map(|found| found.file_type());
        let tree = match kind {
            _ if source.as_os_str() == "-" => {
                Tree::read_archive(std::io::stdin(), Path::new("standard input"), spool)?
            }
            // A pipe can be read only once.
            Some(kind) if kind.is_fifo() => archive()?,
            Some(kind) if kind.is_file() || kind.is_block_device() => match image_of(source)? {
                Some(reader) => Tree::read_image(Arc::clone(reader.device()), source, b"/")?,
                None => archive()?,
            },
            _ => self.directory(source, threads, rules)?,
        };
        if self.how.no_unpack || !tree.is_container_image() {
            return Ok(tree);
        }
        let choice = Choice { reference: self.how.reference.clone(), platform: self.how.platform.clone() };
        Ok(tree.unpack_container(&choice, spool)?)
    }

    /// The tree of a directory, without what the rules leave out. A container image is read whole,
    /// because the rules are about the files in its layers, not about the files that store it.
    fn directory(&self, source: &Path, threads: usize, rules: &Rules) -> Result<Tree> {
        if !self.how.no_unpack
            && Tree::may_be_container_image(source)
            && let Ok(tree) = Tree::read(source, threads)
            && tree.is_container_image()
        {
            return Ok(tree);
        }
        Ok(Tree::read_by(source, threads, rules)?)
    }

    fn builder(&self) -> Result<Builder> {
        let plain = Builder::default();
        let mut options = self.how.format.options()?;
        options.block_size = options.block_size.or(plain.options.block_size);
        if options.resize.is_none() {
            options.features.splice(0..0, plain.options.features.clone());
        }
        options.reserved_percent = options.reserved_percent.or(plain.options.reserved_percent);
        let threads =
            self.how.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        if threads == 0 {
            bail!("--threads 0: at least one is needed");
        }
        let inodes = options.inodes.take();
        let time = clock::fixed(self.how.time)?;
        let (size, placement) = (self.size()?, self.how.placement);
        Ok(Builder { options, size, inodes, time, threads, ahead: Vec::new(), placement })
    }

    fn size(&self) -> Result<Size> {
        if self.how.size != "auto" {
            if self.how.free != "0" {
                bail!("--free {}: it goes with --size auto only", self.how.free);
            }
            return Ok(Size::Bytes(bytes("--size", &self.how.size)?));
        }
        if let Some(percent) = self.how.free.strip_suffix('%') {
            let percent = percent.parse().ok().filter(|percent| *percent < 100);
            let percent =
                percent.with_context(|| format!("--free {}: not a percentage below 100", self.how.free))?;
            return Ok(Size::Auto(Room::Percent(percent)));
        }
        Ok(Size::Auto(Room::Bytes(bytes("--free", &self.how.free)?)))
    }

    /// Writes the image. A file gets its name once it is complete. A device or a part of a file is
    /// written in place.
    fn write(&self, plan: Plan, target: Target<'_>, output: &Output) -> Result<Summary> {
        let progress = Progress::copying(output, "build");
        let summary = plan.summary();
        progress.expect(summary.files + summary.directories, summary.file_bytes);
        let path = self.image.file();
        if !self.is_replaced() {
            let device = target.open()?;
            return written(plan, &device, Blocks::Shared, (path, &progress));
        }
        drop(target);
        let path = &partial::followed(path).with_context(|| path.display().to_string())?;
        let made = partial::file_beside(path)?.into_temp_path();
        let device = FileDevice::create(&made, plan.bytes())?;
        match written(plan, &device, Blocks::Shared, (path, &progress)) {
            Ok(summary) => {
                partial::complete(made, path)?;
                Ok(summary)
            }
            Err(error) if self.how.keep_partial => {
                let kept = made.keep()?;
                Err(error.context(format!("{} holds what was written", kept.display())))
            }
            Err(error) => Err(error),
        }
    }

    fn to_json(&self, summary: &Summary, seconds: &Seconds) -> serde_json::Value {
        let (file_system, overhead, took) = (&summary.file_system, &summary.overhead, &summary.took);
        serde_json::json!({
            "image": self.image.display().to_string(),
            "dry_run": self.how.dry_run,
            "image_bytes": summary.image_bytes,
            "files": summary.files,
            "directories": summary.directories,
            "file_bytes": summary.file_bytes,
            "content_bytes": summary.content_bytes,
            "free_bytes": summary.free_bytes,
            "uuid": image::uuid(&file_system.uuid),
            "inodes": file_system.inodes,
            "journal_blocks": file_system.journal_blocks,
            "overhead": {
                "directories": overhead.directories,
                "maps": overhead.maps,
                "attributes": overhead.attributes,
                "slack": overhead.slack,
                "inode_tables": overhead.inode_tables,
                "journal": overhead.journal,
                "other": overhead.other,
            },
            "seconds": {
                "read": seconds.read.as_secs_f64(),
                "layout": seconds.layout.as_secs_f64(),
                "write": seconds.write.as_secs_f64(),
                "data": took.data.as_secs_f64(),
                "metadata": took.metadata.as_secs_f64(),
                "finish": took.finish.as_secs_f64(),
            },
        })
    }

    fn to_text(&self, summary: &Summary, seconds: &Seconds) -> String {
        let bytes = |bytes: u64| units::bytes(count_as_f64(bytes));
        let file_system = &summary.file_system;
        let (overhead, took) = (&summary.overhead, &summary.took);
        let metadata = summary.image_bytes - summary.content_bytes - summary.free_bytes;
        format!(
            "{}: {} {} with {} and {} of {}\n{} of blocks with content, {} of metadata and journal ({}), {} free, {}\n\
             inode tables {}, directories {}, maps of files {}, attributes {}, behind the ends of files {}\n\
             UUID {}\nread in {:.2} s, laid out in {:.2} s, written in {:.2} s (data {:.2}, metadata {:.2}, end {:.2})\n",
            self.image.display(),
            if self.how.dry_run { "would make" } else { "made" },
            bytes(summary.image_bytes),
            units::counted(summary.directories, "directory"),
            units::counted(summary.files, "file"),
            bytes(summary.file_bytes),
            bytes(summary.content_bytes),
            bytes(metadata),
            bytes(overhead.journal),
            bytes(summary.free_bytes),
            units::counted(u64::from(file_system.inodes), "inode"),
            bytes(overhead.inode_tables),
            bytes(overhead.directories),
            bytes(overhead.maps),
            bytes(overhead.attributes),
            bytes(overhead.slack),
            image::uuid(&file_system.uuid),
            seconds.read.as_secs_f64(),
            seconds.layout.as_secs_f64(),
            seconds.write.as_secs_f64(),
            took.data.as_secs_f64(),
            took.metadata.as_secs_f64(),
            took.finish.as_secs_f64(),
        )
    }
}

/// The time that each stage took.
struct Seconds {
    read: Duration,
    layout: Duration,
    write: Duration,
}

/// Writes the plan; fails after a signal. A device error names `place`: the target, or the folder
/// of the temporary file.
fn written(
    plan: Plan,
    device: &FileDevice,
    blocks: Blocks,
    (place, progress): (&Path, &Progress),
) -> Result<Summary> {
    interrupt::watch()?;
    let written = plan.write(&Interruptible { device: &Watched::new(device, progress), blocks });
    interrupt::check()?;
    written.map_err(|error| match error {
        Error::Device(error) => anyhow::Error::new(error).context(place.display().to_string()),
        other => other.into(),
    })
}

/// A writer that fails after a signal.
struct Stoppable<W>(W);

impl<W: Write> Write for Stoppable<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        // The error must not be of kind `Interrupted`, because callers would try again.
        interrupt::check().map_err(std::io::Error::other)?;
        self.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

/// Who owns the blocks of an image.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Blocks {
    /// The image and files of the sources may share blocks.
    Shared,
    /// The image alone.
    Own,
}

/// A device whose `write_at` and `share_from` fail after a signal.
struct Interruptible<'a, D> {
    device: &'a D,
    blocks: Blocks,
}

impl<D: BlockDevice> BlockDevice for Interruptible<'_, D> {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn is_read_only(&self) -> bool {
        self.device.is_read_only()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> blockyard_device::Result<()> {
        self.device.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> blockyard_device::Result<()> {
        stopped("write", offset, u64_from_usize(data.len()))?;
        self.device.write_at(offset, data)
    }

    fn share_from(
        &self,
        offset: u64,
        length: u64,
        file: BorrowedFd<'_>,
        from: u64,
    ) -> blockyard_device::Result<bool> {
        stopped("share", offset, length)?;
        Ok(self.blocks == Blocks::Shared && self.device.share_from(offset, length, file, from)?)
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> blockyard_device::Result<()> {
        self.device.write_zeroes(offset, length)
    }

    fn discard(&self, offset: u64, length: u64) -> blockyard_device::Result<()> {
        self.device.discard(offset, length)
    }

    fn flush(&self) -> blockyard_device::Result<()> {
        self.device.flush()
    }
}

/// Fails after a signal.
fn stopped(operation: &'static str, offset: u64, length: u64) -> blockyard_device::Result<()> {
    let error =
        |_| DeviceError::Io { operation, offset, length, source: std::io::ErrorKind::Interrupted.into() };
    interrupt::check().map_err(error)
}

/// Opens a file as an ext2, ext3 or ext4 image; `None` if it is an archive or holds no superblock.
pub(super) fn image_of(path: &Path) -> Result<Option<Reader>> {
    let path = ImagePath::parse(path.as_os_str()).map_err(|error| UsageError::new(error.to_string()))?;
    let mut head = [0; 512];
    let device = path.open_read_only()?;
    let is_archive = device.read_at(0, &mut head).is_ok() && head[257..].starts_with(b"ustar");
    if is_archive || !image::has_magic(&device) {
        return Ok(None);
    }
    image::open(&path).map(Some)
}

/// A size with a suffix, in bytes.
fn bytes(option: &str, text: &str) -> Result<u64> {
    match values::suffixed(text) {
        Some((number, suffix)) => number
            .checked_mul(suffix.unwrap_or(1))
            .with_context(|| format!("{option} {text}: more than 64 bits hold")),
        None => bail!("{option} {text}: not a size; give bytes, or a number with k, m, g or t"),
    }
}
