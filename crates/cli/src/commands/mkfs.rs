//! `blockyard mkfs IMAGE [SIZE]`, with the options and meanings of mke2fs.
//!
//! Key decision: everything is parsed and planned before the image is opened for writing, so that a
//! refusal leaves the target unchanged. A target with known content is overwritten only with
//! `--force`; there are no questions.

mod extended;
mod format;
mod target;
pub(super) mod values;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use blockyard_device::ImagePath;
use blockyard_disk::num::count_as_f64;
use blockyard_engine::mkfs::{self, Options, Summary};
use blockyard_inspect::units;

pub(super) use format::Format;
pub(super) use target::Target;

use super::progress::{Progress, Watched};
use super::{Output, UsageError, clock, image};
use values::{bytes_of, size_of};

/// Features, extended and journal options, JSON keys and exit codes, for the help.
fn features_help() -> String {
    format!(
        "Features (-O, comma-separated, ^name switches off): {}.\n\n\
         Extended options (-E): {}.\n\nJournal options (-J): {}.\n\n\
         Without a suffix k, m, g, t, sizes of -b, -C and -i are in bytes; those of resize=, orphan_file_size= and location= are in blocks.\n\n\
         Refused by name: quota, project, casefold, encrypt, verity, journal_dev.\n\n\
         JSON: one object: image, type, dry_run, block_size, cluster_size, blocks, free_blocks, reserved_blocks, groups, \
         inodes, journal_blocks, uuid, seed, time, features, backup_superblocks.\n\n\
         Exit codes: 0 made; 2 wrong usage, nothing was written; 8 refused or failed.",
        mkfs::supported_features(),
        extended::EXTENDED_HELP,
        extended::JOURNAL_HELP
    )
}

/// Arguments. The one-letter options are those of mke2fs.
#[derive(clap::Args)]
#[command(after_help = features_help())]
pub(crate) struct Args {
    /// File or block device; a missing file is created. IMAGE?offset=BYTES is a part of one, such
    /// as a partition
    #[arg(value_parser = image::operand())]
    image: ImagePath,
    /// Size with a suffix k, m, g, t (or s: 512 bytes); without a suffix in KiB, or in blocks if -b
    /// is given
    size: Option<String>,
    #[command(flatten)]
    format: Format,
    /// Directory, tar archive or container image to copy into the file system, which is then laid
    /// out as `blockyard build` does. Without a size, the image is as large as the existing target;
    /// if there is none, it is as small as possible
    #[arg(short = 'd', value_name = "SOURCE")]
    sources: Vec<PathBuf>,
    /// Seed for the UUID and the hash seed, if they are not given. Without this option, the seed is
    /// random, and it is printed
    #[arg(long)]
    seed: Option<u64>,
    /// Creation time in Unix seconds [default: E2FSPROGS_FAKE_TIME, SOURCE_DATE_EPOCH, or now]
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

/// What `mkfs -d` asks for: an image made as by `blockyard build`.
pub(super) struct Copy {
    pub(super) sources: Vec<PathBuf>,
    pub(super) image: ImagePath,
    /// The requested size in bytes.
    pub(super) bytes: Option<u64>,
    pub(super) format: Format,
    pub(super) time: Option<i64>,
    pub(super) force: bool,
    pub(super) dry_run: bool,
    pub(super) is_silent: bool,
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

    /// Whether `-d` is given. Then the image is made as by `blockyard build`.
    pub(super) fn copies(&self) -> bool {
        !self.sources.is_empty()
    }

    /// What to copy, and how. `--seed` is refused, because the UUID and the hash seed follow from
    /// the content.
    pub(super) fn into_copy(self) -> Result<Copy> {
        let options = self.options().map_err(UsageError::from)?;
        if self.seed.is_some() {
            let text =
                "--seed: with -d the UUID and the hash seed follow from the content; give -U to choose one";
            return Err(UsageError::new(text.to_owned()).into());
        }
        let time = self
            .time
            .map(i64::try_from)
            .transpose()
            .map_err(|_| UsageError::new(format!("--time: with -d, at most {} is possible", i64::MAX)))?;
        Ok(Copy {
            bytes: options.size.and_then(|size| bytes_of(size, &options)),
            time,
            sources: self.sources,
            image: self.image,
            format: self.format,
            force: self.force,
            dry_run: self.dry_run,
            is_silent: self.silent,
        })
    }

    fn options(&self) -> Result<Options> {
        let mut options = self.format.options()?;
        options.size =
            self.size.as_deref().map(|text| size_of(text, options.block_size.is_some())).transpose()?;
        options.seed = self.seed.map_or_else(values::drawn_seed, Ok)?;
        options.time = clock::creation_time(self.time)?;
        Ok(options)
    }
}

/// Parses the options of `mkfs` from one string, for an image in memory. A size, `-F`, `-n` and
/// `-d` are refused. Without `--seed` in the string, `seed` is used, and without `--time` a fixed
/// time, so that the bytes depend only on the string and `seed`. Exception: `-E root_owner` without
/// a value takes the user and group that run this process.
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
    if args.size.is_some() || args.dry_run || args.force || !args.sources.is_empty() {
        bail!(
            "the size is that of --memory, and there is nothing to force, to try or to copy; leave size, -F, -n and -d out"
        );
    }
    args.seed.get_or_insert(seed);
    args.time.get_or_insert(1_700_000_000);
    args.options()
}

/// Device sizes with which options are tried before the size is known. Options that are wrong usage
/// for all these sizes are refused.
const SIZES_TRIED: [u64; 3] = [64 << 20, 4 << 30, 4 << 40];

/// Refuses options that are wrong for every target, before looking at the target.
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

/// Converts errors about the options themselves to [`UsageError`]. Other errors, such as options
/// that do not fit the device, are not wrong usage.
pub(super) fn of_usage(error: mkfs::Error) -> anyhow::Error {
    match error {
        mkfs::Error::Refused { .. }
        | mkfs::Error::UnknownFeature { .. }
        | mkfs::Error::Value { .. }
        | mkfs::Error::Conflict(_) => UsageError::from(anyhow::Error::new(error)).into(),
        _ => error.into(),
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
