//! Attribute values in inodes of their own, which are numbered after all other inodes.

use crate::Result;
use crate::attributes::Homes;
use crate::inode;
use crate::layout::Content;
use crate::mapping::Mapped;
use crate::plan::Plan;
use blockyard_device::BlockDevice;
use blockyard_disk::InodeNr;
use blockyard_disk::checksum::crc32c_raw;
use blockyard_disk::checksum::object::ea_inode_hash;
use blockyard_disk::num::{u32_from_usize, u64_from_usize, usize_from_u32, usize_from_u64};
use blockyard_disk::xattr::AttributeList;
use std::ops::Range;

/// The value inodes of a file system. The plan's UUID must be final, because the hashes of the
/// values depend on it.
pub(super) struct Values<'a> {
    plan: &'a Plan,
    /// The hash of each value.
    hashes: Vec<u32>,
}

impl<'a> Values<'a> {
    pub(super) fn new(plan: &'a Plan) -> Self {
        let uuid = plan.filled.superblock().s_uuid;
        let seed = plan.filled.checksums().fs_seed().unwrap_or_else(|| crc32c_raw(!0, &uuid));
        let hashes = plan.homes.values.iter().map(|value| ea_inode_hash(seed, &value.bytes)).collect();
        Self { plan, hashes }
    }

    /// The inode numbers of the values.
    pub(super) fn numbers(&self) -> Range<u32> {
        let first = self.plan.order.first + u32_from_usize(self.plan.order.inodes.len());
        first..first + u32_from_usize(self.hashes.len())
    }

    /// A list in its final form, with the inode numbers and hashes of values.
    pub(super) fn numbered(&self, list: &AttributeList) -> AttributeList {
        Homes::numbered(list, self.numbers().start, &self.hashes)
    }

    /// Writes one value and its mapping blocks to the device, and its inode to `bytes`.
    pub(super) fn write(
        &self,
        number: u32,
        content: &Content<'_>,
        device: &dyn BlockDevice,
        bytes: &mut [u8],
    ) -> Result<()> {
        let (plan, shape) = (self.plan, &self.plan.shape);
        let at = usize_from_u32(number - self.numbers().start);
        let value = &plan.homes.values[at];
        let place = plan.places[plan.order.inodes.len() + 1 + at];
        let blocks = content.place_value(&plan.space, at, place);
        let map = Mapped::of(&blocks.runs, &blocks.nodes, shape.mapping, shape.block_size);
        let checksums = plan.filled.checksums();
        for (place, node) in map.blocks(shape.block_size, checksums.inode_seed(InodeNr::new(number), 0)) {
            device.write_at(place * shape.block_size, &node)?;
        }
        let mut data = value.bytes.clone();
        let len = shape.blocks(u64_from_usize(data.len())).next_multiple_of(shape.cluster);
        data.resize(usize_from_u64(len * shape.block_size), 0);
        plan.write_row(device, blocks.data_at..blocks.data_at + len, &data)?;
        let stored = inode::StoredValue {
            number,
            size: u64_from_usize(value.bytes.len()),
            hash: self.hashes[at],
            references: value.references,
            blocks: blocks.len,
            map: &map,
        };
        stored.write(bytes, shape, checksums);
        Ok(())
    }
}
