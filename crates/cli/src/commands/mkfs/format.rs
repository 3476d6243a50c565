//! The options of mke2fs that describe the file system.

use anyhow::{Context, Result, bail};
use blockyard_disk::superblock::ErrorPolicy;
use blockyard_engine::mkfs::{Options, Profile, Usage, UuidChoice};

use super::extended;
use super::values::{self, parse_uuid};

/// Which file system to make. The one-letter options are those of mke2fs.
#[derive(clap::Args)]
pub(in crate::commands) struct Format {
    /// ext2, ext3 or ext4
    #[arg(short = 't', long = "type", default_value = "ext4")]
    pub(in crate::commands) kind: String,
    /// Usage types: floppy, small, default, big, huge, news, largefile, largefile4, hurd
    #[arg(short = 'T', long, value_delimiter = ',')]
    usage: Vec<String>,
    /// Block size in bytes: 1024 to 65536
    #[arg(short = 'b', long)]
    block_size: Option<String>,
    /// Cluster size in bytes (needs -O bigalloc)
    #[arg(short = 'C', long)]
    cluster_size: Option<String>,
    /// Changes to the set of features, comma-separated: NAME switches one on, ^NAME off, none
    /// clears the set
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
    /// Inode size in bytes: 128 to the block size
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
    /// Directory to record as that of the last mount
    #[arg(short = 'M', long)]
    last_mounted: Option<String>,
}

impl Format {
    /// The options of the new file system, without its size, seed and time.
    pub(in crate::commands) fn options(&self) -> Result<Options> {
        let Some(profile) = Profile::named(&self.kind) else {
            bail!("-t {}: no such type; ext2, ext3 and ext4 are supported", self.kind);
        };
        let block_size = self.block_size.as_deref().map(|text| values::bytes32("-b", text)).transpose()?;
        let mut options = Options {
            usage: self.usage.iter().map(|name| usage_named(name)).collect::<Result<_>>()?,
            block_size,
            cluster_size: self.cluster_size.as_deref().map(|text| values::bytes32("-C", text)).transpose()?,
            features: self.features.clone(),
            flex_groups: self.flex_groups,
            blocks_per_group: self.blocks_per_group,
            // 0 means the default, as in mke2fs.
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
            ..Options::new(profile)
        };
        self.extended.iter().try_for_each(|list| extended::extended(&mut options, list))?;
        self.journal.iter().try_for_each(|list| extended::journal(&mut options, list))?;
        Ok(options)
    }

    /// Whether `-E no_copy_xattrs` is given. Then extended attributes of the sources are left out.
    pub(in crate::commands) fn drops_attributes(&self) -> bool {
        self.extended.iter().flat_map(|list| list.split(',')).any(|item| item == extended::NO_ATTRIBUTES)
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
