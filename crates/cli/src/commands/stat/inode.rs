//! One inode: most of what stat of coreutils shows, and what ext4 stores besides (flags,
//! generation, project, kind of map, and extended attributes).

use blockyard_inspect::path::LastLink;
use std::io::Write;

use anyhow::Result;
use blockyard_disk::{FileType, Inode, InodeMap, Timestamp};
use blockyard_inspect::reader::Reader;
use serde_json::json;

use super::super::calendar::iso;
use super::super::ls::mode_text;
use super::super::names;
use super::field::Fields;

/// Prints the inode of a path.
pub(super) fn print(reader: &Reader, path: &[u8], json: bool, out: &mut dyn Write) -> Result<()> {
    let inode = reader.resolve(path, LastLink::Keep)?;
    let mut fields = Fields::default();
    let (raw, slot) = (inode.slot().raw(), inode.slot());
    fields.number("Inode", inode.number().raw().into());
    fields.text("Type", type_text(inode.file_type()));
    let mode = inode.mode();
    fields.add("Mode", &format!("{} ({:04o})", mode_text(mode), mode & 0o7777), mode);
    fields.number("Uid", raw.uid().into());
    fields.number("Gid", raw.gid().into());
    fields.number("Links", inode.links().into());
    fields.number("Size", inode.size());
    fields.number("Sectors", inode.sectors());
    fields.add("Flags", &format!("0x{:08x}", inode.flags().bits()), inode.flags().bits());
    fields.number("Generation", raw.i_generation.get().into());
    fields.number("Project", slot.project().into());
    time("Accessed", slot.accessed(), &mut fields);
    time("Modified", slot.modified(), &mut fields);
    time("Changed", slot.changed(), &mut fields);
    if let Some(created) = slot.created() {
        time("Created", created, &mut fields);
    }
    fields.text("Map", map_text(&inode));
    if inode.file_type() == FileType::Symlink {
        fields.bytes("Target", &reader.symlink_target(&inode)?);
    }
    if let InodeMap::Device(number) = inode.map() {
        let text = format!("{}, {}", number.major, number.minor);
        fields.add("Device", &text, json!([number.major, number.minor]));
    }
    xattrs(reader, &inode, &mut fields)?;
    fields.print(json, out)
}

fn type_text(kind: FileType) -> &'static str {
    match kind {
        FileType::Fifo => "fifo",
        FileType::CharDevice => "character device",
        FileType::Directory => "directory",
        FileType::BlockDevice => "block device",
        FileType::Regular => "regular file",
        FileType::Symlink => "symbolic link",
        FileType::Socket => "socket",
    }
}

fn map_text(inode: &Inode) -> &'static str {
    match inode.map() {
        InodeMap::None | InodeMap::Device(_) => "none",
        InodeMap::FastSymlink => "target in the inode",
        InodeMap::Inline => "inline data",
        InodeMap::Extents => "extents",
        InodeMap::Indirect => "indirect blocks",
    }
}

fn time(label: &str, at: Timestamp, fields: &mut Fields) {
    fields.add(label, &iso(at.seconds, at.nanoseconds), json!([at.seconds, at.nanoseconds]));
}

fn xattrs(reader: &Reader, inode: &Inode, fields: &mut Fields) -> Result<()> {
    let attributes = reader.xattrs(inode)?;
    if attributes.is_empty() {
        return Ok(());
    }
    // Every name begins with its namespace, so none begins with `hex:`.
    let key = |name: &[u8]| match std::str::from_utf8(name) {
        Ok(text) => text.to_owned(),
        Err(_) => format!("hex:{}", names::hexadecimal(name)),
    };
    let lines: Vec<String> = attributes
        .iter()
        .map(|attribute| format!("  {} = {}", names::text(&attribute.name), attribute.value.escape_ascii()))
        .collect();
    let values: serde_json::Map<String, serde_json::Value> = attributes
        .iter()
        .map(|attribute| (key(&attribute.name), names::hexadecimal(&attribute.value).into()))
        .collect();
    fields.line("xattrs", format!("Extended attributes:\n{}", lines.join("\n")), values);
    Ok(())
}
