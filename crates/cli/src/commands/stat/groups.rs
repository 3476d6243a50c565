//! The groups, as dumpe2fs lists them after the superblock.

use std::io::Write;
use std::ops::Range;

use anyhow::{Result, bail};
use blockyard_disk::group_desc::GroupFlags;
use blockyard_disk::group_head::GroupHead;
use blockyard_disk::{BlockNr, ClusterOffset, GroupDescriptor, GroupNr, RoCompat, Superblock, bitmap};
use blockyard_inspect::reader::{Error, Reader};
use blockyard_inspect::units::counted;
use serde_json::{Value, json};

/// Prints every group.
pub(super) fn print(reader: &Reader, json: bool, out: &mut dyn Write) -> Result<()> {
    if !json {
        writeln!(out)?;
    }
    let mut unreadable = 0u32;
    for group in reader.superblock().geometry().all_groups() {
        match Figures::read(reader, group) {
            Ok(figures) if json => writeln!(out, "{}", figures.json())?,
            Ok(figures) => writeln!(out, "{}", figures.text())?,
            Err(error) => {
                eprintln!("blockyard: {error}");
                unreadable += 1;
            }
        }
    }
    if unreadable > 0 { bail!("{} could not be read", counted(unreadable.into(), "group")) } else { Ok(()) }
}

/// Everything that is shown of one group.
struct Figures<'r> {
    sb: &'r Superblock,
    desc: GroupDescriptor,
    head: GroupHead,
    free_blocks: Vec<(u64, u64)>,
    free_inodes: Vec<(u64, u64)>,
}

impl<'r> Figures<'r> {
    fn read(reader: &'r Reader, group: GroupNr) -> Result<Self, Error> {
        let sb = reader.superblock();
        let geometry = sb.geometry();
        let desc = reader.group(group)?;
        let blocks = reader.block_bitmap(&desc)?;
        let inodes = reader.inode_bitmap(&desc)?;
        let block_at = |bit| geometry.block_at(group, ClusterOffset::new(bit)).raw();
        let inode_at = |bit| u64::from(geometry.inode_at(group, bit).raw());
        let free_blocks = bitmap::clear_runs(&blocks, 0..geometry.clusters_in_group(group))
            .map(|run| (block_at(run.start), block_at(run.end - 1)))
            .collect();
        let free_inodes = bitmap::clear_runs(&inodes, 0..geometry.inodes_per_group())
            .map(|run| (inode_at(run.start), inode_at(run.end - 1)))
            .collect();
        Ok(Self { sb, desc, head: sb.head(group), free_blocks, free_inodes })
    }

    fn flags(&self) -> Vec<&'static str> {
        let known = [
            (GroupFlags::INODE_UNINIT, "INODE_UNINIT"),
            (GroupFlags::BLOCK_UNINIT, "BLOCK_UNINIT"),
            (GroupFlags::ITABLE_ZEROED, "ITABLE_ZEROED"),
        ];
        known.iter().filter(|(bit, _)| self.desc.flags().contains(*bit)).map(|(_, name)| *name).collect()
    }

    /// First and last block.
    fn bounds(&self) -> (u64, u64) {
        let geometry = self.sb.geometry();
        let first = geometry.group_first_block(self.desc.group()).raw();
        (first, first + geometry.blocks_in_group(self.desc.group()) - 1)
    }

    fn table(&self) -> (u64, u64) {
        let first = self.desc.inode_table().raw();
        (first, first + self.sb.geometry().inode_table_blocks() - 1)
    }

    /// Stored checksums of the block bitmap and the inode bitmap; `None` without metadata_csum.
    fn bitmap_checksums(&self) -> Option<(u32, u32)> {
        let raw = self.desc.raw();
        self.sb.features().has_metadata_csum().then(|| (raw.block_bitmap_csum(), raw.inode_bitmap_csum()))
    }

    fn text(&self) -> String {
        let (first, last) = self.bounds();
        let mut text = format!("Group {}: (Blocks {first}-{last})", self.desc.group());
        if self.sb.features().has_group_checksum() {
            text += &format!(" csum 0x{:04x}", self.desc.raw().bg_checksum.get());
            let flags = self.flags();
            if !flags.is_empty() {
                text += &format!(" [{}]", flags.join(", "));
            }
        }
        text += "\n";
        text += &self.head_text();
        text += &self.places_text();
        text += &self.counts_text();
        text += &format!("  Free blocks: {}\n", ranges_text(&self.free_blocks));
        text += &format!("  Free inodes: {}", ranges_text(&self.free_inodes));
        text
    }

    fn head_text(&self) -> String {
        let mut parts = Vec::new();
        if let Some(block) = self.head.superblock {
            let kind = if self.desc.group() == GroupNr::new(0) { "Primary" } else { "Backup" };
            parts.push(format!("{kind} superblock at {block}"));
        }
        if let Some((first, last)) = inclusive(&self.head.descriptors) {
            // With meta_bg, a group holds one descriptor block at most, so one number is shown. A
            // classic table is shown as a range, even if it has only one block.
            let per_block = self.sb.heads().descriptors_per_block(self.sb.geometry());
            let meta_group = self.desc.group().raw() / per_block;
            let is_classic = self.sb.heads().first_meta_bg.is_none_or(|meta| meta_group < meta);
            parts.push(if is_classic {
                format!("Group descriptors at {first}-{last}")
            } else {
                format!("Group descriptor at {first}")
            });
        }
        let mut text = if parts.is_empty() { String::new() } else { format!("  {}\n", parts.join(", ")) };
        if let Some((first, last)) = inclusive(&self.head.reserved) {
            text += &format!("  Reserved GDT blocks at {first}-{last}\n");
        }
        text
    }

    fn places_text(&self) -> String {
        let (blocks, inodes) = match self.bitmap_checksums() {
            Some((blocks, inodes)) => (format!(", csum 0x{blocks:08x}"), format!(", csum 0x{inodes:08x}")),
            None => (String::new(), String::new()),
        };
        let (first, last) = self.table();
        format!(
            "  Block bitmap at {}{}{blocks}\n  Inode bitmap at {}{}{inodes}\n  Inode table at {first}-{last}{}\n",
            self.desc.block_bitmap(),
            self.relative(self.desc.block_bitmap()),
            self.desc.inode_bitmap(),
            self.relative(self.desc.inode_bitmap()),
            self.relative(self.desc.inode_table()),
        )
    }

    /// Where a block lies, as an offset in its group. If that is not this group, its number is
    /// shown, too.
    fn relative(&self, block: BlockNr) -> String {
        let geometry = self.sb.geometry();
        let group = geometry.group_of(block);
        let offset = block.raw() - geometry.group_first_block(group).raw();
        if group == self.desc.group() {
            format!(" (+{offset})")
        } else {
            format!(" (bg #{group} + {offset})")
        }
    }

    fn counts_text(&self) -> String {
        let bigalloc = self.sb.features().ro_compat.contains(RoCompat::BIGALLOC);
        let unit = if bigalloc { "clusters" } else { "blocks" };
        let desc = &self.desc;
        let mut text = format!(
            "  {} free {unit}, {} free inodes, {} directories",
            desc.free_clusters(),
            desc.free_inodes(),
            desc.used_dirs()
        );
        match desc.itable_unused(self.sb) {
            0 => {}
            unused => text += &format!(", {unused} unused inodes"),
        }
        text + "\n"
    }

    fn json(&self) -> Value {
        let desc = &self.desc;
        let (first, last) = self.bounds();
        json!({
            "group": desc.group().raw(),
            "first_block": first,
            "last_block": last,
            "flags": self.flags(),
            "checksum": self.sb.features().has_group_checksum().then(|| desc.raw().bg_checksum.get()),
            "superblock": self.head.superblock.map(BlockNr::raw),
            "descriptors": inclusive(&self.head.descriptors),
            "reserved": inclusive(&self.head.reserved),
            "block_bitmap": desc.block_bitmap().raw(),
            "inode_bitmap": desc.inode_bitmap().raw(),
            "inode_table": self.table(),
            "free_clusters": desc.free_clusters(),
            "free_inodes": desc.free_inodes(),
            "directories": desc.used_dirs(),
            "unused_inodes": desc.itable_unused(self.sb),
            "free_block_ranges": self.free_blocks,
            "free_inode_ranges": self.free_inodes,
        })
    }
}

/// First and last block of a range; `None` if it is empty.
fn inclusive(range: &Range<BlockNr>) -> Option<(u64, u64)> {
    (range.start < range.end).then(|| (range.start.raw(), range.end.raw() - 1))
}

fn ranges_text(ranges: &[(u64, u64)]) -> String {
    let parts: Vec<String> = ranges
        .iter()
        .map(|(first, last)| if first == last { format!("{first}") } else { format!("{first}-{last}") })
        .collect();
    parts.join(", ")
}
