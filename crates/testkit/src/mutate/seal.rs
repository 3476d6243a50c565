//! Corrects checksums after an edit.

use blockyard_disk::checksum::object;
use blockyard_disk::inode::InodeSlot;
use blockyard_disk::superblock::RawSuperblock;
use blockyard_disk::{BlockNr, Checksums, GroupNr, InodeNr, checksum};
use zerocopy::{FromBytes, IntoBytes};

use super::Overlay;
use super::inventory::{Inventory, Kind, Structure};

impl Inventory {
    /// Recomputes the checksum of the edited structure, if it has one. A bitmap's checksum is in
    /// the group descriptor, so the descriptor's own checksum is recomputed, too.
    pub(super) fn reseal(&self, structure: &Structure, image: &mut Overlay<'_>) {
        let bytes = image.get(structure.at, structure.length);
        match structure.kind {
            Kind::Superblock | Kind::BackupSuperblock => {
                let mut sb = RawSuperblock::read_from_bytes(&bytes).expect("1024 bytes");
                Checksums::of(&sb).seal_superblock(&mut sb);
                image.put(structure.at, sb.as_bytes());
            }
            Kind::GroupDesc => {
                self.reseal_desc(structure.owner.group.expect("descriptors have groups"), image)
            }
            Kind::BlockBitmap | Kind::InodeBitmap => self.reseal_bitmap(structure, &bytes, image),
            Kind::Mmp => {
                if let Some(seed) = self.checksums.fs_seed() {
                    let mmp = bytes.as_slice().try_into().expect("1024 bytes");
                    image.put(structure.at + 0x3FC, &object::mmp(seed, mmp).to_le_bytes());
                }
            }
            Kind::Inode | Kind::FreeInode => {
                let mut slot = InodeSlot::new(bytes);
                let inode = InodeNr::new(structure.owner.inode.expect("inodes have numbers"));
                self.checksums.seal_inode(inode, &mut slot);
                image.put(structure.at, slot.bytes());
            }
            Kind::BackupDesc => {
                let mut raw = bytes;
                self.checksums.seal_group_desc(GroupNr::new(0), &mut raw);
                image.put(structure.at, &raw);
            }
            Kind::Indirect | Kind::ResizeMap | Kind::SymlinkTarget | Kind::Value | Kind::Quota => {}
            Kind::JournalSuperblock => {
                let mut zeroed = bytes;
                // 0x2B is the low byte of the big-endian incompatible features, and 0x18 are the
                // bits of checksums v2 and v3. Without these features, the journal's superblock has
                // no checksum.
                if zeroed[0x2B] & 0x18 != 0 {
                    zeroed[0xFC..0x100].fill(0);
                    let sum = checksum::crc32c_raw(!0, &zeroed);
                    image.put(structure.at + 0xFC, &sum.to_be_bytes());
                }
            }
            _ => self.reseal_block(structure, bytes, image),
        }
    }

    fn reseal_block(&self, structure: &Structure, mut bytes: Vec<u8>, image: &mut Overlay<'_>) {
        let inode = InodeNr::new(structure.owner.inode.expect("blocks have inodes"));
        let Some(seed) = self.checksums.inode_seed(inode, structure.generation) else { return };
        let number = BlockNr::new(structure.owner.block.expect("blocks have numbers"));
        match structure.kind {
            Kind::ExtentNode => {
                let Some(sum) = object::extent_block(seed, &bytes) else { return };
                let field = object::extent_block_field(&bytes).expect("it has a checksum");
                bytes[field..field + 4].copy_from_slice(&sum.to_le_bytes());
            }
            Kind::DirBlock => {
                let sum = object::dir_leaf(seed, &bytes);
                let field = bytes.len() - 4;
                bytes[field..].copy_from_slice(&sum.to_le_bytes());
            }
            Kind::HtreeBlock => {
                let start = if bytes[8] == b'.' && bytes[6] == 1 { 32 } else { 8 };
                let (Some(sum), Some(tail)) =
                    (object::htree(seed, &bytes, start), object::htree_tail(&bytes, start))
                else {
                    return;
                };
                bytes[tail + 4..tail + 8].copy_from_slice(&sum.to_le_bytes());
            }
            Kind::XattrBlock => self.checksums.seal_xattr_block(number, &mut bytes),
            Kind::OrphanBlock => checksum::seal_orphan_block(Some(seed), number, &mut bytes),
            _ => {}
        }
        image.put(structure.at, &bytes);
    }

    fn reseal_bitmap(&self, structure: &Structure, bytes: &[u8], image: &mut Overlay<'_>) {
        if !self.has_csum() {
            return;
        }
        let group = structure.owner.group.expect("bitmaps have groups");
        let at = self.desc_at(group);
        let mut raw = image.get(at, self.desc_size());
        let mut desc = blockyard_disk::group_desc::RawGroupDesc::from_disk(&raw);
        if structure.kind == Kind::BlockBitmap {
            let bits = self.sb.s_clusters_per_group.get();
            self.checksums.seal_block_bitmap(&mut desc, self.desc_size(), bytes, bits);
        } else {
            let bits = self.sb.s_inodes_per_group.get();
            self.checksums.seal_inode_bitmap(&mut desc, self.desc_size(), bytes, bits);
        }
        desc.to_disk(&mut raw);
        image.put(at, &raw);
        self.reseal_desc(group, image);
    }

    fn reseal_desc(&self, group: u32, image: &mut Overlay<'_>) {
        let at = self.desc_at(group);
        let mut raw = image.get(at, self.desc_size());
        self.checksums.seal_group_desc(GroupNr::new(group), &mut raw);
        image.put(at, &raw);
    }
}
