//! `blockyard mkfs IMAGE [SIZE]`: letters and meanings of mke2fs.
//!
//! Key decision: everything is read and planned before the image is opened for writing, so that a refusal leaves the
//! target as it was. A target that holds something known is overwritten only with `--force`; nothing is asked.

mod extended;
mod values;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use blockyard_device::{BlockDevice, FileDevice, ImagePath, PartitionTable};
use blockyard_disk::num::count_as_f64;
use blockyard_disk::superblock::ErrorPolicy;
use blockyard_engine::mkfs::{self, Options, Profile, Summary, Usage, UuidChoice};
use blockyard_inspect::units;

use super::progress::{Progress, Watched};
use super::{Output, UsageError, clock, image};
use values::{bytes_of, parse_uuid, size_of};

/// The features that `-O` knows, for the help text.
fn features_help() -> String {
    format!(
        "Features (-O, comma-separated, ^name switches off): {}.\n\n\
         Extended options (-E): {}.\n\nJournal options (-J): {}.\n\n\
         Refused by name: quota, project, casefold, encrypt, verity, journal_dev.\n\n\
         JSON: one object: image, type, dry_run, block_size, cluster_size, blocks, free_blocks, reserved_blocks, groups, \
         inodes, journal_blocks, uuid, seed, time, features, backup_superblocks.\n\n\
         Exit codes: 0 made; 2 wrong usage, and the target was not looked at; 8 refused or failed.",
        mkfs::supported_features(),
        extended::EXTENDED_HELP,
        extended::JOURNAL_HELP
    )
}

/// Arguments; the letters are those of mke2fs.
#[derive(clap::Args)]
#[command(after_help = features_help())]
pub(crate) struct Args {
    /// File or block device; a missing file is created. IMAGE?offset=BYTES is a part of one, such as a partition
    #[arg(value_parser = image::operand())]
    image: ImagePath,
    /// Size with a suffix k, m, g, t (or s: 512 bytes); without one KiB, or blocks when -b is given
    size: Option<String>,
    /// ext2, ext3 or ext4
    #[arg(short = 't', long = "type", default_value = "ext4")]
    kind: String,
    /// Usage types: floppy, small, default, big, huge, news, largefile, largefile4, hurd
    #[arg(short = 'T', long, value_delimiter = ',')]
    usage: Vec<String>,
    /// Block size: 1024 to 65536
    #[arg(short = 'b', long)]
    block_size: Option<String>,
    /// Cluster size (needs -O bigalloc)
    #[arg(short = 'C', long)]
    cluster_size: Option<String>,
    /// Feature edits: name switches on, ^name off, none clears
    #[arg(short = 'O', long, allow_hyphen_values = true)]
    features: Vec<String>,
    /// Extended options
    #[arg(short = 'E', long)]
    extended: Vec<String>,
    /// Journal options
    #[arg(short = 'J', long)]
    journal: Vec<String>,
    /// Groups per flex group, a power of two
    #[arg(short = 'G', long)]
    flex_groups: Option<u32>,
    /// Blocks (with bigalloc: clusters) per group
    #[arg(short = 'g', long)]
    blocks_per_group: Option<u32>,
    /// Number of inodes
    #[arg(short = 'N', long)]
    inodes: Option<u32>,
    /// Bytes per inode
    #[arg(short = 'i', long)]
    bytes_per_inode: Option<String>,
    /// Inode size: 128 to the block size
    #[arg(short = 'I', long)]
    inode_size: Option<u32>,
    /// Percent of blocks reserved for root
    #[arg(short = 'm', long)]
    reserved_percent: Option<f64>,
    /// Revision: 0 or 1
    #[arg(short = 'r', long)]
    revision: Option<u32>,
    /// What a mount does on errors: continue, remount-ro, panic
    #[arg(short = 'e', long)]
    errors: Option<String>,
    /// UUID, or clear, random, time
    #[arg(short = 'U', long)]
    uuid: Option<String>,
    /// Volume label, at most 16 bytes
    #[arg(short = 'L', long)]
    label: Option<String>,
    /// Directory of the last mount
    #[arg(short = 'M', long)]
    last_mounted: Option<String>,
    /// Seed of the UUID and the hash seed where they are not given; drawn and printed when absent
    #[arg(long)]
    seed: Option<u64>,
    /// Time of creation, Unix seconds [default: E2FSPROGS_FAKE_TIME, SOURCE_DATE_EPOCH, or now]
    #[arg(long)]
    time: Option<u64>,
    /// Overwrite what the target holds
    #[arg(short = 'F', long)]
    force: bool,
    /// Show what would be made and write nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// As --quiet
    #[arg(short = 'q')]
    silent: bool,
}

impl Args {
    /// Makes the file system.
    pub(crate) fn run(&self, output: &Output) -> Result<ExitCode> {
        let options = self.options().map_err(UsageError::from)?;
        refuse_whatever_the_target(&options)?;
        image::refuse_in_use(&self.image)?;
        let target = Target::inspect(&self.image, options.size.and_then(|size| bytes_of(size, &options)))?;
        if !self.force {
            target.refuse_occupied()?;
        }
        let summary = mkfs::plan(target.device_bytes, &options).map_err(of_usage)?;
        let summary = if self.dry_run {
            summary
        } else {
            let device = target.open()?;
            let progress = Progress::copying(output, "mkfs");
            mkfs::format(&Watched::new(&device, &progress), &options)
                .with_context(|| self.image.display().to_string())?
        };
        if output.json {
            println!("{}", to_json(&self.image, &summary, &options, self.dry_run));
        } else if !output.quiet && !self.silent {
            print!("{}", to_text(&self.image, &summary, &options, self.dry_run));
        }
        Ok(ExitCode::SUCCESS)
    }

    fn options(&self) -> Result<Options> {
        let Some(profile) = Profile::named(&self.kind) else {
            bail!("-t {}: no such type; ext2, ext3 and ext4 are supported", self.kind);
        };
        let block_size = self.block_size.as_deref().map(|text| values::bytes32("-b", text)).transpose()?;
        let mut options = Options {
            usage: self.usage.iter().map(|name| usage_named(name)).collect::<Result<_>>()?,
            block_size,
            size: self.size.as_deref().map(|text| size_of(text, block_size.is_some())).transpose()?,
            cluster_size: self.cluster_size.as_deref().map(|text| values::bytes32("-C", text)).transpose()?,
            features: self.features.clone(),
            flex_groups: self.flex_groups,
            blocks_per_group: self.blocks_per_group,
            // 0 asks for the default, as it does of mke2fs.
            inodes: self.inodes.filter(|inodes| *inodes > 0),
            bytes_per_inode: self
                .bytes_per_inode
                .as_deref()
                .map(|text| values::bytes32("-i", text))
                .transpose()?,
            inode_size: self.inode_size,
            reserved_percent: self.reserved_percent,
            revision: self.revision,
            errors: self.errors.as_deref().map(errors_named).transpose()?,
            uuid: self.uuid.as_deref().map(uuid_named).transpose()?.unwrap_or_default(),
            label: self.label.clone().unwrap_or_default(),
            last_mounted: self.last_mounted.clone().unwrap_or_default(),
            seed: self.seed.map_or_else(values::drawn_seed, Ok)?,
            time: clock::creation_time(self.time)?,
            ..Options::new(profile)
        };
        self.extended.iter().try_for_each(|list| extended::extended(&mut options, list))?;
        self.journal.iter().try_for_each(|list| extended::journal(&mut options, list))?;
        Ok(options)
    }
}

/// The same options from one string, for an image in memory: everything but the target, its size, and what concerns
/// an existing target. The seed is the caller's unless the string gives one, the time is fixed: the bytes follow from
/// the string.
pub(super) fn options_of_text(text: &str, seed: u64) -> Result<Options> {
    #[derive(clap::Parser)]
    #[command(no_binary_name = true)]
    struct Words {
        #[command(flatten)]
        args: Args,
    }
    let words = std::iter::once("memory").chain(text.split_whitespace());
    let parsed = <Words as clap::Parser>::try_parse_from(words).map_err(|error| {
        anyhow::anyhow!("{} (see `blockyard mkfs --help`)", crate::usage::message(&error))
    })?;
    let mut args = parsed.args;
    if args.size.is_some() || args.dry_run || args.force {
        bail!(
            "the size is that of --memory, and there is nothing to force or to try; leave size, -F and -n out"
        );
    }
    args.seed.get_or_insert(seed);
    args.time.get_or_insert(1_700_000_000);
    args.options()
}

/// Sizes of devices that options are tried on when the size is not known yet: what is wrong for each is wrong.
const SIZES_TRIED: [u64; 3] = [64 << 20, 4 << 30, 4 << 40];

/// Refuses options that no target makes right, before the target is looked at.
fn refuse_whatever_the_target(options: &Options) -> Result<()> {
    let sizes = match options.size.and_then(|size| bytes_of(size, options)) {
        Some(bytes) => vec![bytes],
        None => SIZES_TRIED.to_vec(),
    };
    let mut last = Ok(());
    for size in sizes {
        match mkfs::plan(size, options).map_err(of_usage) {
            Err(error) if error.is::<UsageError>() => last = Err(error),
            _ => return Ok(()),
        }
    }
    last
}

/// What is wrong with the options, as wrong usage; what does not fit the device is none.
fn of_usage(error: mkfs::Error) -> anyhow::Error {
    match error {
        mkfs::Error::Refused { .. }
        | mkfs::Error::UnknownFeature { .. }
        | mkfs::Error::Value { .. }
        | mkfs::Error::Conflict(_) => UsageError::from(anyhow::Error::new(error)).into(),
        _ => error.into(),
    }
}

fn usage_named(name: &str) -> Result<Usage> {
    Usage::named(name).with_context(|| format!("-T {name}: no such usage type; known are {}", Usage::names()))
}

fn errors_named(name: &str) -> Result<ErrorPolicy> {
    Ok(match name {
        "continue" => ErrorPolicy::Continue,
        "remount-ro" => ErrorPolicy::RemountReadOnly,
        "panic" => ErrorPolicy::Panic,
        _ => bail!("-e {name}: must be continue, remount-ro or panic"),
    })
}

fn uuid_named(text: &str) -> Result<UuidChoice> {
    Ok(match text {
        "clear" | "null" => UuidChoice::Clear,
        "random" => UuidChoice::Random,
        "time" => UuidChoice::Time,
        _ => UuidChoice::Given(parse_uuid("-U", text)?),
    })
}

/// The file or device to be written.
struct Target<'a> {
    image: &'a ImagePath,
    /// Size that the device has, or will have.
    device_bytes: u64,
    /// A file that is missing or shorter than wanted is given this size.
    must_grow: bool,
    /// What is there now, from the first byte of the image on.
    now: Option<FileDevice>,
    /// The image begins inside a disk with partitions, but none of them begins there.
    is_astray: bool,
}

impl<'a> Target<'a> {
    fn inspect(image: &'a ImagePath, wanted: Option<u64>) -> Result<Self> {
        let (mut table, mut now) = (None, None);
        if image.file().exists() {
            let whole = FileDevice::open_read_only(image.file())?;
            if image.offset() > 0 {
                table = PartitionTable::read(&whole, whole.sector_bytes())?;
            }
            now = if image.offset() < whole.size() { Some(image.open_read_only()?) } else { None };
        }
        let partition = table.as_ref().map(|table| table.beginning_at(image.offset()));
        let is_astray = partition == Some(None);
        let bytes = now.as_ref().map_or(0, BlockDevice::size);
        let Some(wanted) = wanted else {
            if bytes == 0 {
                bail!("{}: no such file, or an empty one; give a size", image.display());
            }
            return Ok(Self { image, device_bytes: bytes, must_grow: false, now, is_astray });
        };
        let data = std::fs::metadata(image.file());
        if wanted > bytes && (partition.flatten().is_some() || data.is_ok_and(|data| !data.is_file())) {
            let what = if partition.flatten().is_some() { "partition" } else { "device" };
            bail!("{}: the {what} has {bytes} bytes, fewer than the {wanted} asked for", image.display());
        }
        Ok(Self { image, device_bytes: bytes.max(wanted), must_grow: wanted > bytes, now, is_astray })
    }

    fn refuse_occupied(&self) -> Result<()> {
        if self.is_astray {
            bail!(
                "{}: no partition begins there; write there nevertheless with --force (-F)",
                self.image.display()
            );
        }
        let Some(device) = &self.now else { return Ok(()) };
        if let Some(found) = mkfs::find_signature(device)? {
            return Err(mkfs::Error::Occupied(found)).with_context(|| self.image.display().to_string());
        }
        Ok(())
    }

    fn open(self) -> Result<FileDevice> {
        drop(self.now);
        Ok(if self.must_grow { self.image.create(self.device_bytes)? } else { self.image.open()? })
    }
}

fn to_json(image: &ImagePath, summary: &Summary, options: &Options, dry_run: bool) -> serde_json::Value {
    serde_json::json!({
        "image": image.display().to_string(),
        "type": options.profile.name(),
        "dry_run": dry_run,
        "block_size": summary.block_size,
        "cluster_size": summary.cluster_size,
        "blocks": summary.blocks,
        "free_blocks": summary.free_blocks,
        "reserved_blocks": summary.reserved_blocks,
        "groups": summary.groups,
        "inodes": summary.inodes,
        "journal_blocks": summary.journal_blocks,
        "uuid": image::uuid(&summary.uuid),
        "seed": options.seed,
        "time": options.time,
        "features": summary.features.to_string(),
        "backup_superblocks": summary.backup_superblocks,
    })
}

fn to_text(image: &ImagePath, summary: &Summary, options: &Options, dry_run: bool) -> String {
    let verb = if dry_run { "would make" } else { "made" };
    let backups: Vec<String> = summary.backup_superblocks.iter().map(u64::to_string).collect();
    let bytes = |blocks: u64| units::bytes(count_as_f64(blocks) * f64::from(summary.block_size));
    let mut text = format!(
        "{}: {verb} {} of {}: {} blocks of {} bytes, {}, {}\n",
        image.display(),
        options.profile.name(),
        bytes(summary.blocks),
        summary.blocks,
        summary.block_size,
        units::counted(summary.inodes.into(), "inode"),
        units::counted(summary.groups.into(), "group")
    );
    text += &format!("features: {}\n", summary.features);
    text += &format!("UUID {}, seed {}, time {}\n", image::uuid(&summary.uuid), options.seed, options.time);
    match summary.journal_blocks {
        0 => text += "no journal\n",
        blocks => text += &format!("journal of {}\n", bytes(blocks)),
    }
    text += &format!("{} free, {} reserved\n", bytes(summary.free_blocks), bytes(summary.reserved_blocks));
    if !backups.is_empty() {
        text += &format!("superblock backups at blocks {}\n", backups.join(", "));
    }
    text
}
