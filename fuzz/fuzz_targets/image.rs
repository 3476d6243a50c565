//! Whole images: opens, walks and reads a valid base with edits.

#![no_main]

use std::collections::HashSet;

use blockyard_disk::{FileType, InodeNr};
use blockyard_fuzz::edited_image;
use blockyard_inspect::path::LastLink;
use blockyard_inspect::reader::Reader;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(reader) = Reader::open(edited_image(data)) else { return };
    let geometry = *reader.superblock().geometry();
    for group in geometry.all_groups().take(64) {
        if let Ok(desc) = reader.group(group) {
            let _ = (reader.block_bitmap(&desc), reader.inode_bitmap(&desc));
        }
    }
    let mut seen = HashSet::new();
    let mut left = vec![InodeNr::ROOT];
    left.extend(reader.superblock().journal_inode());
    let mut buf = vec![0; 5000];
    while let Some(number) = left.pop() {
        if !seen.insert(number) {
            continue;
        }
        let Ok(inode) = reader.inode(number) else { continue };
        let _ = reader.xattrs(&inode);
        let _ = reader.extents(&inode).take(5000).take_while(Result::is_ok).count();
        for offset in [0, 4000, inode.size() / 2, inode.size().saturating_sub(10)] {
            let _ = reader.read(&inode, offset, &mut buf);
        }
        match inode.file_type() {
            FileType::Symlink => {
                let _ = reader.symlink_target(&inode);
            }
            FileType::Directory => {
                let Ok(entries) = reader.entries(&inode) else { continue };
                let entries: Vec<_> = entries.take(5000).map_while(Result::ok).collect();
                left.extend(entries.iter().map(|entry| entry.inode));
                for entry in entries.iter().take(40) {
                    let _ = reader.lookup(&inode, &entry.name);
                }
                let _ = reader.lookup(&inode, b"missing");
            }
            _ => {}
        }
    }
    let _ = reader.resolve(b"/directory/link/../file", LastLink::Follow);
});
