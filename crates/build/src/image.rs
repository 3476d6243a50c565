//! Writes the image: first the data of files in device order, then directories and inode tables,
//! then the other metadata. Several threads write data, directories and tables.

mod data;
mod inline;
mod metadata;
mod values;

use crate::Result;
use crate::layout::Content;
use crate::plan::{Plan, Summary, Took, as_uuid};
use blockyard_device::BlockDevice;
use blockyard_disk::num::{u64_from_usize, usize_from_u64};
use blockyard_disk::xattr::Value;
use inline::InlineFiles;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::ops::Range;
use std::time::Instant;

/// A UUID derived from the content (names, modes, owners, modification times, attributes, flags,
/// data) and from the size of the image.
fn uuid_of(plan: &Plan, sums: &[u32]) -> [u8; 16] {
    let mut digest = Sha256::new();
    let tree = &plan.tree;
    let mut add = |node: &crate::tree::Node, text: [&[u8]; 2]| {
        for number in
            [u64::from(node.permissions), node.uid.into(), node.gid.into(), node.inode.into(), node.size]
        {
            digest.update(number.to_le_bytes());
        }
        digest.update([node.kind.dirent_byte()]);
        digest.update(node.modified.seconds.to_le_bytes());
        digest.update(node.modified.nanoseconds.to_le_bytes());
        for text in text {
            digest.update(u64_from_usize(text.len()).to_le_bytes());
            digest.update(text);
        }
    };
    add(&tree.root, [b"", b""]);
    for &number in &plan.order.directories {
        let directory = tree.directory(number);
        for node in &directory.nodes {
            add(node, [directory.text(node.name), directory.text(node.target)]);
        }
    }
    let lists = tree.directories.iter().flat_map(|directory| &directory.attributes);
    for attribute in lists.map(|(_, list)| list).chain([&tree.root_attributes]).flat_map(|list| list.iter()) {
        digest.update([attribute.index]);
        digest.update(&attribute.name);
        if let Value::Bytes(bytes) = &attribute.value {
            digest.update(bytes);
        }
    }
    for directory in &tree.directories {
        for (child, flags) in &directory.flags {
            digest.update(child.to_le_bytes());
            digest.update(flags.bits().to_le_bytes());
        }
    }
    digest.update(tree.root_flags.bits().to_le_bytes());
    for sum in sums {
        digest.update(sum.to_le_bytes());
    }
    digest.update(u64_from_usize(usize_from_u64(plan.bytes())).to_le_bytes());
    as_uuid(&digest.finalize())
}

impl Plan {
    /// Writes the image to a device of at least [`Plan::bytes`] bytes, overwriting its content.
    ///
    /// # Errors
    /// [`Error::Source`](crate::Error::Source), [`Error::Changed`](crate::Error::Changed),
    /// [`Error::Device`](crate::Error::Device). See [`Error`](crate::Error) for what the device
    /// holds after an error.
    pub fn write(mut self, device: &dyn BlockDevice) -> Result<Summary> {
        let threads = self.threads;
        let began = Instant::now();
        self.filled.clear(device)?;
        let mut sums = data::write(&self, device, threads)?;
        let inline = InlineFiles::read(&self, threads)?;
        sums.extend(inline.sums());
        if self.draws_uuid {
            let uuid = uuid_of(&self, &sums);
            self.filled = self.filled.with_uuid(uuid);
        }
        let data = began.elapsed();
        metadata::write(&self, &inline, device, threads)?;
        let metadata = began.elapsed().saturating_sub(data);
        let file_system = self.filled.finish(device)?;
        let took = Took { data, metadata, finish: began.elapsed().saturating_sub(data + metadata) };
        Ok(Summary { file_system, took, ..self.summary() })
    }

    fn content(&self) -> Content<'_> {
        Content {
            tree: &self.tree,
            shape: self.shape,
            directories: Cow::Borrowed(&self.directories),
            homes: Cow::Borrowed(&self.homes),
        }
    }

    /// Writes bytes to a part of the row of free blocks ([`Space`](crate::layout::Space)).
    fn write_row(&self, device: &dyn BlockDevice, row: Range<u64>, bytes: &[u8]) -> Result<()> {
        let block = self.shape.block_size;
        debug_assert_eq!((row.end - row.start) * block, u64_from_usize(bytes.len()), "bytes of {row:?}");
        let mut done = 0;
        for (place, len) in self.space.pieces(row) {
            let len = usize_from_u64(len * block);
            device.write_at(place * block, &bytes[done..done + len])?;
            done += len;
        }
        assert_eq!(done, bytes.len(), "every byte was written");
        Ok(())
    }
}
