//! The lists of `-E` and `-J`: `name=value`, comma-separated.

use anyhow::{Context, Result, bail};
use blockyard_engine::mkfs::Options;

use super::values::{amount, parse_uuid};

/// The options of `-E`, for the help.
pub(super) const EXTENDED_HELP: &str = "stride=BLOCKS, stripe_width=BLOCKS, resize=BLOCKS, lazy_itable_init[=0|1], \
lazy_journal_init[=0|1], packed_meta_blocks[=0|1], root_owner[=UID:GID], hash_seed=UUID, num_backup_sb=0|1|2, \
mmp_update_interval=SECONDS, orphan_file_size=SIZE, discard, nodiscard, test_fs, no_copy_xattrs";

/// The options of `-J`, for the help.
pub(super) const JOURNAL_HELP: &str = "size=MIB, fast_commit_size=KIB, location=BLOCK";

/// The option of `-E` that leaves out the extended attributes of copied files.
pub(super) const NO_ATTRIBUTES: &str = "no_copy_xattrs";

/// Applies an `-E` list to the options.
pub(super) fn extended(options: &mut Options, list: &str) -> Result<()> {
    for item in list.split(',').filter(|item| !item.is_empty()) {
        let (name, value) = split(item);
        let context = format!("-E {name}=");
        match name {
            "stride" => options.stride = Some(number(&context, value)?),
            "stripe_width" | "stripe-width" => options.stripe_width = Some(number(&context, value)?),
            "resize" => options.resize = Some(amount(&context, needed(&context, value)?)?),
            "lazy_itable_init" => options.lazy_itable_init = Some(switch(&context, value)?),
            "lazy_journal_init" => options.lazy_journal_init = Some(switch(&context, value)?),
            "packed_meta_blocks" => options.packed_meta_blocks = switch(&context, value)?,
            "root_owner" => options.root_owner = Some(owner(&context, value)?),
            "hash_seed" => options.hash_seed = Some(parse_uuid(&context, needed(&context, value)?)?),
            "num_backup_sb" => options.backup_superblocks = Some(number(&context, value)?),
            "mmp_update_interval" => options.mmp_update_interval = Some(number(&context, value)?),
            "orphan_file_size" => {
                options.orphan_file_size = Some(amount(&context, needed(&context, value)?)?);
            }
            "discard" => options.no_discard = false,
            "nodiscard" => options.no_discard = true,
            "test_fs" => options.test_fs = true,
            // This concerns the sources of `-d`, not the file system: see
            // `Format::drops_attributes`.
            NO_ATTRIBUTES => {}
            "quotatype" => bail!("-E quotatype: quota is not supported; enable it afterwards with tune2fs"),
            "encoding" | "encoding_flags" => {
                bail!("-E {name}: casefold is not supported; enable it afterwards with tune2fs")
            }
            "offset" => bail!("-E offset: give the place with the image, as IMAGE?offset=BYTES"),
            _ => bail!("-E {name}: no such option; known are: {EXTENDED_HELP}"),
        }
    }
    Ok(())
}

/// Applies a `-J` list to the options.
pub(super) fn journal(options: &mut Options, list: &str) -> Result<()> {
    for item in list.split(',').filter(|item| !item.is_empty()) {
        let (name, value) = split(item);
        let context = format!("-J {name}=");
        match name {
            // 0 asks for the default.
            "size" => options.journal_mib = Some(number(&context, value)?).filter(|size| *size > 0),
            "fast_commit_size" => options.fast_commit_kib = Some(number(&context, value)?),
            "location" => options.journal_location = Some(amount(&context, needed(&context, value)?)?),
            "device" => bail!("-J device: external journals are not supported; use -J size="),
            _ => bail!("-J {name}: no such option; known are: {JOURNAL_HELP}"),
        }
    }
    Ok(())
}

fn split(item: &str) -> (&str, Option<&str>) {
    item.split_once('=').map_or((item, None), |(name, value)| (name, Some(value)))
}

fn needed<'a>(context: &str, value: Option<&'a str>) -> Result<&'a str> {
    value.with_context(|| format!("{context}: a value is missing"))
}

fn number(context: &str, value: Option<&str>) -> Result<u32> {
    let text = needed(context, value)?;
    text.parse().with_context(|| format!("{context}{text}: not a number"))
}

fn switch(context: &str, value: Option<&str>) -> Result<bool> {
    match value {
        None | Some("1") => Ok(true),
        Some("0") => Ok(false),
        Some(text) => bail!("{context}{text}: must be 0 or 1"),
    }
}

/// Parses `UID:GID`. Without a value, user and group are those that run this process.
fn owner(context: &str, value: Option<&str>) -> Result<(u32, u32)> {
    let Some(text) = value else {
        use std::os::unix::fs::MetadataExt;
        let own = std::fs::metadata("/proc/self").context("/proc/self: cannot tell which user runs this")?;
        return Ok((own.uid(), own.gid()));
    };
    let ids = text.split_once(':').and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    ids.with_context(|| format!("{context}{text}: must be UID:GID, both numbers"))
}
