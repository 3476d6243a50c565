//! The lines of `dumpe2fs -h`.

use std::io::Write;

use anyhow::Result;
use blockyard_disk::error::CorruptionKind;
use blockyard_disk::features::{Compat, Incompat};
use blockyard_disk::jbd2::{self, RawJournalSuperblock};
use blockyard_disk::mmp::RawMmp;
use blockyard_disk::superblock::{ErrorPolicy, FsFlags, FsState, RawSuperblock};
use blockyard_disk::{BlockNr, RoCompat, Superblock};
use blockyard_inspect::reader::{Error, Reader};
use serde_json::json;
use zerocopy::FromBytes;

use super::super::calendar::ctime;
use super::super::image::{padded, uuid};
use super::super::names;
use super::field::Fields;

/// Prints the lines, or a JSON object with their values.
pub(super) fn print(reader: &Reader, json: bool, out: &mut dyn Write) -> Result<()> {
    let sb = reader.superblock();
    let mut fields = Fields::default();
    identity(sb.raw(), &mut fields);
    counts(sb, &mut fields);
    layout(sb, &mut fields);
    history(sb.raw(), &mut fields);
    inodes(sb, &mut fields);
    recorded_errors(sb.raw(), &mut fields);
    protection(sb, &mut fields);
    // A damaged journal or MMP block does not hide the other lines.
    let found = journal(reader, &mut fields);
    let found = found.and(mmp(reader, &mut fields));
    fields.print(json, out)?;
    if !json {
        writeln!(out)?;
    }
    found
}

fn or<'t>(text: &'t str, empty: &'t str) -> &'t str {
    if text.is_empty() { empty } else { text }
}

fn or_bytes<'t>(bytes: &'t [u8], empty: &'t [u8]) -> &'t [u8] {
    if bytes.is_empty() { empty } else { bytes }
}

fn identity(raw: &RawSuperblock, fields: &mut Fields) {
    fields.bytes("Filesystem volume name", or_bytes(padded(&raw.s_volume_name), b"<none>"));
    fields.bytes("Last mounted on", or_bytes(padded(&raw.s_last_mounted), b"<not available>"));
    let id = if raw.s_uuid == [0; 16] { "<none>".to_owned() } else { uuid(&raw.s_uuid) };
    fields.text("Filesystem UUID", &id);
    fields.text("Filesystem magic number", "0xEF53");
    let revision = match raw.s_rev_level.get() {
        0 => "0 (original)",
        _ => "1 (dynamic)",
    };
    fields.add("Filesystem revision #", revision, raw.s_rev_level.get());
    let names: Vec<String> = (raw.compat().names().map(|name| name.to_string()))
        .chain(raw.incompat().names().map(|name| name.to_string()))
        .chain(raw.ro_compat().names().map(|name| name.to_string()))
        .collect();
    fields.add("Filesystem features", or(&names.join(" "), "(none)"), names);
    fs_flags(raw, fields);
    let options = default_mount_options(raw.s_default_mount_opts.get());
    fields.add("Default mount options", or(&options.join(" "), "(none)"), options);
    let more = padded(&raw.s_mount_opts);
    if !more.is_empty() {
        fields.bytes("Mount options", more);
    }
    fields.text("Filesystem state", state(raw));
    let policy = match ErrorPolicy::from_raw(raw.s_errors.get()) {
        Some(ErrorPolicy::Continue) => "Continue",
        Some(ErrorPolicy::RemountReadOnly) => "Remount read-only",
        Some(ErrorPolicy::Panic) => "Panic",
        None => "Unknown (continue)",
    };
    fields.text("Errors behavior", policy);
    let systems = ["Linux", "Hurd", "Masix", "FreeBSD", "Lites"];
    let system = usize::try_from(raw.s_creator_os.get()).ok().and_then(|number| systems.get(number));
    fields.text("Filesystem OS type", system.copied().unwrap_or("(unknown os)"));
}

fn fs_flags(raw: &RawSuperblock, fields: &mut Fields) {
    let known = [
        (FsFlags::SIGNED_HASH, "signed_directory_hash"),
        (FsFlags::UNSIGNED_HASH, "unsigned_directory_hash"),
        (FsFlags::TEST_FILESYS, "test_filesystem"),
    ];
    let names: Vec<&str> =
        known.iter().filter(|(bit, _)| raw.flags().contains(*bit)).map(|(_, name)| *name).collect();
    if !raw.flags().is_empty() {
        let text: String = names.iter().map(|name| format!("{name} ")).collect();
        fields.add("Filesystem flags", or(&text, "(none)"), names);
    }
}

fn default_mount_options(bits: u32) -> Vec<String> {
    const DATA_MODE: u32 = 0x60;
    const NAMES: [&str; 12] = [
        "debug",
        "bsdgroups",
        "user_xattr",
        "acl",
        "uid16",
        "",
        "",
        "",
        "nobarrier",
        "block_validity",
        "discard",
        "nodelalloc",
    ];
    let mode = match bits & DATA_MODE {
        0 => None,
        0x20 => Some("journal_data"),
        0x40 => Some("journal_data_ordered"),
        _ => Some("journal_data_writeback"),
    };
    let single = bits & !DATA_MODE;
    let named = NAMES.iter().chain(std::iter::repeat(&"")).zip(0..u32::BITS);
    let set = named.filter(|(_, bit)| single >> bit & 1 == 1).map(|(name, bit)| match *name {
        "" => format!("MNTOPT_{bit}"),
        name => name.to_owned(),
    });
    mode.map(str::to_owned).into_iter().chain(set).collect()
}

fn state(raw: &RawSuperblock) -> &'static str {
    let state = raw.state();
    match (state.contains(FsState::VALID), state.contains(FsState::ERROR)) {
        (true, false) => "clean",
        (true, true) => "clean with errors",
        (false, false) => "not clean",
        (false, true) => "not clean with errors",
    }
}

fn counts(sb: &Superblock, fields: &mut Fields) {
    let raw = sb.raw();
    fields.number("Inode count", raw.s_inodes_count.get().into());
    fields.number("Block count", raw.blocks_count().raw());
    fields.number("Reserved block count", raw.reserved_blocks_count().raw());
    if raw.s_overhead_clusters.get() != 0 {
        fields.number("Overhead clusters", raw.s_overhead_clusters.get().into());
    }
    fields.number("Free blocks", raw.free_blocks_count().raw());
    fields.number("Free inodes", raw.s_free_inodes_count.get().into());
}

fn layout(sb: &Superblock, fields: &mut Fields) {
    let raw = sb.raw();
    let geometry = sb.geometry();
    let bigalloc = sb.features().ro_compat.contains(RoCompat::BIGALLOC);
    let (size, per_group) = if bigalloc {
        ("Cluster size", "Clusters per group")
    } else {
        ("Fragment size", "Fragments per group")
    };
    fields.number("First block", raw.s_first_data_block.get().into());
    fields.number("Block size", 1 << geometry.block_bits());
    fields.number(size, 1 << (geometry.block_bits() + geometry.cluster_ratio_bits()));
    if sb.features().incompat.contains(Incompat::BIT64) {
        fields.number("Group descriptor size", raw.s_desc_size.get().into());
    }
    if raw.s_reserved_gdt_blocks.get() != 0 {
        fields.number("Reserved GDT blocks", raw.s_reserved_gdt_blocks.get().into());
    }
    fields.number("Blocks per group", geometry.blocks_per_group());
    fields.number(per_group, geometry.clusters_per_group().into());
    fields.number("Inodes per group", geometry.inodes_per_group().into());
    fields.number("Inode blocks per group", geometry.inode_table_blocks());
    for (label, number) in [
        ("First meta block group", raw.s_first_meta_bg.get()),
        ("RAID stride", raw.s_raid_stride.get().into()),
        ("RAID stripe width", raw.s_raid_stripe_width.get()),
    ] {
        if number != 0 {
            fields.number(label, number.into());
        }
    }
    if raw.s_log_groups_per_flex != 0 {
        fields.number("Flex block group size", geometry.flex_size().into());
    }
}

fn history(raw: &RawSuperblock, fields: &mut Fields) {
    if raw.mkfs_time() != 0 {
        fields.time("Filesystem created", raw.mkfs_time());
    }
    match raw.mount_time() {
        0 => fields.add("Last mount time", "n/a", 0),
        seconds => fields.time("Last mount time", seconds),
    }
    fields.time("Last write time", raw.write_time());
    fields.number("Mount count", raw.s_mnt_count.get().into());
    // The maximum is printed as a signed number: 0xFFFF is -1, which means "never".
    let most = i64::from(raw.s_max_mnt_count.get().cast_signed());
    fields.add("Maximum mount count", &most.to_string(), most);
    fields.time("Last checked", raw.check_time());
    let interval = u64::from(raw.s_checkinterval.get());
    fields.add("Check interval", &format!("{interval} ({})", interval_text(interval)), interval);
    if interval != 0 {
        fields.time("Next check after", raw.check_time() + interval);
    }
    let written = raw.s_kbytes_written.get();
    if written != 0 {
        fields.add("Lifetime writes", &written_text(written), written);
    }
    for (label, id, kind, file) in [
        ("Reserved blocks uid", raw.s_def_resuid.get(), "user", "/etc/passwd"),
        ("Reserved blocks gid", raw.s_def_resgid.get(), "group", "/etc/group"),
    ] {
        let name = name_of(file, id);
        let name = name.map_or_else(|| format!("{kind} unknown"), |name| format!("{kind} {name}"));
        fields.add(label, &format!("{id} ({name})"), id);
    }
}

/// A duration in months, weeks and days, and the rest as a clock time, in dumpe2fs's wording.
fn interval_text(seconds: u64) -> String {
    if seconds == 0 {
        return "<none>".to_owned();
    }
    let mut left = seconds;
    let mut parts = Vec::new();
    for (length, name) in [(2_592_000, "month"), (604_800, "week"), (86_400, "day")] {
        let count = left / length;
        left %= length;
        if count > 0 {
            let plural = if count > 1 { "s" } else { "" };
            parts.push(format!("{count} {name}{plural}"));
        }
    }
    if left > 0 {
        parts.push(format!("{}:{:02}:{:02}", left / 3600, left / 60 % 60, left % 60));
    }
    parts.join(", ")
}

/// A number of KiB, rounded to the smallest unit of which there are fewer than 8192, or to PB.
fn written_text(kib: u64) -> String {
    let units = [("kB", 0), ("MB", 10), ("GB", 20), ("TB", 30)];
    let (unit, shift) = units.into_iter().find(|(_, shift)| kib >> shift < 8192).unwrap_or(("PB", 40));
    let half = (1u64 << shift) / 2;
    format!("{} {unit}", kib.saturating_add(half) >> shift)
}

/// The name that `file` of the host, such as /etc/passwd, has for a user or group id.
fn name_of(file: &str, id: u16) -> Option<String> {
    let table = std::fs::read_to_string(file).ok()?;
    let number = id.to_string();
    let line = table.lines().find(|line| line.split(':').nth(2) == Some(&number))?;
    line.split(':').next().map(str::to_owned)
}

fn inodes(sb: &Superblock, fields: &mut Fields) {
    let raw = sb.raw();
    if raw.s_rev_level.get() > 0 {
        fields.number("First inode", raw.s_first_ino.get().into());
        let size = raw.s_inode_size.get();
        // dumpe2fs aligns this line with a tab.
        fields.line("inode_size", format!("Inode size:\t          {size}"), size);
        if raw.s_min_extra_isize.get() != 0 {
            fields.number("Required extra isize", raw.s_min_extra_isize.get().into());
        }
        if raw.s_want_extra_isize.get() != 0 {
            fields.number("Desired extra isize", raw.s_want_extra_isize.get().into());
        }
    }
    if raw.s_journal_uuid != [0; 16] {
        fields.text("Journal UUID", &uuid(&raw.s_journal_uuid));
    }
    if raw.s_journal_inum.get() != 0 {
        fields.number("Journal inode", raw.s_journal_inum.get().into());
    }
    if raw.s_journal_dev.get() != 0 {
        // dumpe2fs aligns this line with a tab, like the inode size.
        let device = raw.s_journal_dev.get();
        fields.line("journal_device", format!("Journal device:\t          0x{device:04x}"), device);
    }
    if raw.s_last_orphan.get() != 0 {
        fields.number("First orphan inode", raw.s_last_orphan.get().into());
    }
    if sb.features().compat.contains(Compat::DIR_INDEX) || raw.s_def_hash_version != 0 {
        let versions =
            ["legacy", "half_md4", "tea", "legacy_unsigned", "half_md4_unsigned", "tea_unsigned", "siphash"];
        let name = versions.get(usize::from(raw.s_def_hash_version)).map(|name| (*name).to_owned());
        let name = name.unwrap_or_else(|| format!("HASHALG_{}", raw.s_def_hash_version));
        fields.text("Default directory hash", &name);
    }
    let seed: Vec<u8> = raw.hash_seed().iter().flat_map(|word| word.to_le_bytes()).collect();
    if let Some(seed) = seed.first_chunk().filter(|seed| **seed != [0; 16]) {
        fields.text("Directory Hash Seed", &uuid(seed));
    }
    if raw.s_jnl_backup_type != 0 {
        let kind = if raw.s_jnl_backup_type == 1 {
            "inode blocks".to_owned()
        } else {
            format!("type {}", raw.s_jnl_backup_type)
        };
        fields.text("Journal backup", &kind);
    }
    if sb.features().compat.contains(Compat::SPARSE_SUPER2) {
        let groups: Vec<u32> =
            raw.s_backup_bgs.iter().map(|group| group.get()).filter(|group| *group != 0).collect();
        let text: String = groups.iter().map(|group| format!("{group} ")).collect();
        fields.add("Backup block groups", or(&text, "none "), groups);
    }
}

fn recorded_errors(raw: &RawSuperblock, fields: &mut Fields) {
    if raw.s_error_count.get() != 0 {
        fields.number("FS Error count", raw.s_error_count.get().into());
    }
    let records = [
        (
            "First",
            raw.first_error_time(),
            &raw.s_first_error_func,
            raw.s_first_error_line.get(),
            raw.s_first_error_ino.get(),
            raw.s_first_error_block.get(),
            raw.s_first_error_errcode,
        ),
        (
            "Last",
            raw.last_error_time(),
            &raw.s_last_error_func,
            raw.s_last_error_line.get(),
            raw.s_last_error_ino.get(),
            raw.s_last_error_block.get(),
            raw.s_last_error_errcode,
        ),
    ];
    for (which, time, function, line, inode, block, code) in records {
        if time == 0 {
            continue;
        }
        fields.time(&format!("{which} error time"), time);
        fields.bytes(&format!("{which} error function"), padded(function));
        fields.number(&format!("{which} error line #"), line.into());
        if inode != 0 {
            fields.number(&format!("{which} error inode #"), inode.into());
        }
        if block != 0 {
            fields.number(&format!("{which} error block #"), block);
        }
        if code != 0 {
            fields.text(&format!("{which} error err"), &error_code(code));
        }
    }
}

/// The name of a recorded error code.
fn error_code(code: u8) -> String {
    const NAMES: [&str; 17] = [
        "UNKNOWN",
        "EIO",
        "ENOMEM",
        "EFSBADCRC",
        "EFSCORRUPTED",
        "ENOSPC",
        "ENOKEY",
        "EROFS",
        "EFBIG",
        "EEXIST",
        "ERANGE",
        "EOVERFLOW",
        "EBUSY",
        "ENOTDIR",
        "ENOTEMPTY",
        "ESHUTDOWN",
        "EFAULT",
    ];
    let name = usize::from(code).checked_sub(1).and_then(|index| NAMES.get(index));
    name.map_or_else(|| format!("UNKNOWN_ERRCODE_{code}"), |name| (*name).to_owned())
}

fn protection(sb: &Superblock, fields: &mut Fields) {
    let raw = sb.raw();
    if sb.features().incompat.contains(Incompat::MMP) {
        fields.number("MMP block number", raw.s_mmp_block.get());
        fields.number("MMP update interval", raw.s_mmp_update_interval.get().into());
    }
    for (label, inode) in [
        ("User quota inode", raw.s_usr_quota_inum),
        ("Group quota inode", raw.s_grp_quota_inum),
        ("Project quota inode", raw.s_prj_quota_inum),
    ] {
        if inode.get() != 0 {
            fields.number(label, inode.get().into());
        }
    }
    if sb.features().has_metadata_csum() {
        fields.text("Checksum type", "crc32c");
        let sum = raw.s_checksum.get();
        fields.add("Checksum", &format!("0x{sum:08x}"), sum);
    }
    if sb.features().incompat.contains(Incompat::CSUM_SEED) {
        let seed = raw.s_checksum_seed.get();
        fields.add("Checksum seed", &format!("0x{seed:08x}"), seed);
    }
    if sb.features().incompat.contains(Incompat::CASEFOLD) {
        let name = match raw.s_encoding.get() {
            1 => "utf8-12.1",
            _ => "unknown",
        };
        fields.text("Character encoding", name);
    }
    if sb.features().compat.contains(Compat::ORPHAN_FILE) {
        fields.number("Orphan file inode", raw.s_orphan_file_inum.get().into());
    }
}

fn journal(reader: &Reader, fields: &mut Fields) -> Result<()> {
    let Some(number) = reader.superblock().journal_inode() else { return Ok(()) };
    let inode = reader.inode(number)?;
    let mut bytes = [0; RawJournalSuperblock::SIZE];
    reader.read(&inode, 0, &mut bytes)?;
    let raw = RawJournalSuperblock::read_from_bytes(&bytes).expect("the buffer has its size");
    if raw.s_header.h_magic.get() != jbd2::MAGIC {
        return Err(Error::from(
            blockyard_disk::Corruption::new(CorruptionKind::JournalMagic).in_inode(number),
        )
        .into());
    }
    let features = raw.features();
    let names = features.to_string();
    let list: Vec<&str> = names.split(' ').filter(|name| *name != "(none)").collect();
    fields.add("Journal features", &names, list);
    let blocks = u64::from(raw.s_maxlen.get());
    let kib = blocks << reader.superblock().geometry().block_bits() >> 10;
    let size = if kib < 8192 { format!("{kib}k") } else { format!("{}M", kib >> 10) };
    fields.add("Total journal size", &size, kib << 10);
    fields.number("Total journal blocks", blocks);
    let fast = fast_commit_blocks(reader.superblock(), &raw);
    fields.number("Max transaction length", blocks.saturating_sub(fast));
    fields.number("Fast commit length", fast);
    let sequence = raw.s_sequence.get();
    fields.add("Journal sequence", &format!("0x{sequence:08x}"), sequence);
    fields.number("Journal start", raw.s_start.get().into());
    if features.incompat.intersects(jbd2::JournalIncompat::CSUM_V2 | jbd2::JournalIncompat::CSUM_V3) {
        fields.text("Journal checksum type", "crc32c");
        let sum = raw.s_checksum.get();
        fields.add("Journal checksum", &format!("0x{sum:08x}"), sum);
    }
    if raw.s_errno.get() != 0 {
        let code = i64::from(raw.s_errno.get().cast_signed());
        fields.add("Journal errno", &code.to_string(), code);
    }
    Ok(())
}

fn fast_commit_blocks(sb: &Superblock, raw: &RawJournalSuperblock) -> u64 {
    let stored = u64::from(raw.s_num_fc_blks.get());
    if sb.features().compat.contains(Compat::FAST_COMMIT) { stored } else { 0 }
}

fn mmp(reader: &Reader, fields: &mut Fields) -> Result<()> {
    let sb = reader.superblock();
    if !sb.features().incompat.contains(Incompat::MMP) {
        return Ok(());
    }
    let number = BlockNr::new(sb.raw().s_mmp_block.get());
    if !sb.geometry().contains(number) {
        return Err(
            Error::from(blockyard_disk::Corruption::new(CorruptionKind::MmpMagic).in_block(number)).into()
        );
    }
    let block = reader.block(number)?;
    let mmp = RawMmp::parse(&block).map_err(|found| Error::from(found.in_block(number)))?;
    sb.checksums().verify_mmp(mmp).map_err(|found| Error::from(found.in_block(number)))?;
    let seconds = mmp.mmp_time.get();
    let date = ctime(i64::try_from(seconds).unwrap_or(i64::MAX));
    let (node, device) = (names::text(padded(&mmp.mmp_nodename)), names::text(padded(&mmp.mmp_bdevname)));
    let text = [
        "MMP_block:".to_owned(),
        format!("    mmp_magic: 0x{:x}", mmp.mmp_magic.get()),
        format!("    mmp_check_interval: {}", mmp.mmp_check_interval.get()),
        format!("    mmp_sequence: 0x{:08x}", mmp.mmp_seq.get()),
        format!("    mmp_update_date: {date}"),
        format!("    mmp_update_time: {seconds}"),
        format!("    mmp_node_name: {node}"),
        format!("    mmp_device_name: {device}"),
    ];
    let value = json!({
        "magic": mmp.mmp_magic.get(),
        "check_interval": mmp.mmp_check_interval.get(),
        "sequence": mmp.mmp_seq.get(),
        "update_time": seconds,
        "node_name": node,
        "device_name": device,
    });
    fields.line("mmp_block", text.join("\n"), value);
    Ok(())
}
