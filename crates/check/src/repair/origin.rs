//! The suffix for a file that lost its name. The file's first bytes tell what kind it is.

use blockyard_disk::inode::{FileType, InodeFlags};
use blockyard_disk::num::usize_from_u64;
use blockyard_disk::{BlockNr, InodeNr};

use super::editor::Editor;
use super::maps;

/// Number of bytes at the start of a file that are looked at.
const LOOKED_AT: usize = 512;

/// For each kind of file: the offset of its magic bytes, these bytes, and the usual suffix.
const KINDS: &[(usize, &[u8], &str)] = &[
    (0, b"\x7fELF", ".elf"),
    (0, b"\x89PNG\r\n", ".png"),
    (0, b"\xff\xd8\xff", ".jpg"),
    (0, b"GIF8", ".gif"),
    (0, b"%PDF-", ".pdf"),
    (0, b"\x1f\x8b\x08", ".gz"),
    (0, b"BZh", ".bz2"),
    (0, b"\xfd7zXZ\0", ".xz"),
    (0, b"\x28\xb5\x2f\xfd", ".zst"),
    (0, b"PK\x03\x04", ".zip"),
    (0, b"7z\xbc\xaf\x27\x1c", ".7z"),
    (0, b"SQLite format 3\0", ".sqlite"),
    (0, b"!<arch>\n", ".a"),
    (0, b"#!", ".sh"),
    (0, b"<?xml", ".xml"),
    (0, b"OggS", ".ogg"),
    (0, b"ID3", ".mp3"),
    (4, b"ftyp", ".mp4"),
    (257, b"ustar", ".tar"),
];

/// The suffix for a regular file by its first bytes. `None` if they say nothing or are encrypted,
/// and for other inodes.
pub(super) fn ending(ed: &Editor<'_, '_>, inode: InodeNr) -> Option<&'static str> {
    let slot = ed.slot(inode).ok()?;
    let raw = slot.raw();
    if raw.file_type() != Some(FileType::Regular) || raw.flags().contains(InodeFlags::ENCRYPT) {
        return None;
    }
    let length = usize_from_u64(raw.size()).min(LOOKED_AT);
    if raw.flags().contains(InodeFlags::INLINE_DATA) {
        return ending_of(&raw.i_block[..length.min(raw.i_block.len())]);
    }
    let map = maps::read(ed, inode, raw);
    let first = map.runs.first().filter(|run| run.logical == 0 && !run.unwritten)?;
    let block = ed.volume().block(BlockNr::new(first.physical)).ok()?;
    ending_of(&block[..length])
}

/// The suffix for some first bytes: that of a known kind, otherwise `.txt` if all are text.
fn ending_of(bytes: &[u8]) -> Option<&'static str> {
    let known =
        KINDS.iter().find(|(at, magic, _)| bytes.get(*at..).is_some_and(|rest| rest.starts_with(magic)));
    // The bytes may end inside a character.
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => Some(text),
        Err(error) if error.error_len().is_none() => std::str::from_utf8(&bytes[..error.valid_up_to()]).ok(),
        Err(_) => None,
    };
    let is_text = |text: &str| {
        !text.is_empty()
            && text.chars().all(|letter| !letter.is_control() || matches!(letter, '\n' | '\r' | '\t'))
    };
    known.map(|kind| kind.2).or_else(|| text.filter(|text| is_text(text)).map(|_| ".txt"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_tell() {
        assert_eq!(ending_of(b"\x7fELF\x02\x01"), Some(".elf"));
        assert_eq!(ending_of(b"#!/bin/sh\n"), Some(".sh"));
        assert_eq!(ending_of("gr\u{fc}n\n".as_bytes()), Some(".txt"));
        assert_eq!(ending_of("gr\u{fc}".as_bytes().split_last().unwrap().1), Some(".txt"));
        assert_eq!(ending_of(b"\0\x01\x02"), None);
        assert_eq!(ending_of(b""), None);
        let mut tar = [0; 512];
        tar[257..262].copy_from_slice(b"ustar");
        assert_eq!(ending_of(&tar), Some(".tar"));
    }
}
