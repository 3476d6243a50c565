//! Corruptions of a valid image. Each changes one field of one structure, or now and then 1, 2 or 4
//! adjacent bytes anywhere in the structure. In three of four cases the checksum is corrected, too,
//! so that only a check of the structure itself can notice the change.
//!
//! [`Inventory`] lists the structures of a valid image. [`Inventory::mutate`] draws one corruption
//! from a generator; the same seed gives the same corruption. A [`Mutation`] is a list of byte
//! edits that can be applied and undone.

#![allow(clippy::as_conversions, reason = "test support for images of at most a few GiB")]

mod damage;
mod heads;
mod inventory;
mod seal;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rand::Rng;
use rand::seq::IndexedRandom;

pub use damage::Damage;
pub use inventory::{Inventory, Kind, Structure};

/// What a structure belongs to; `None` if there is nothing of that kind. A checker that reports a
/// corruption of the structure should name at least one of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Inode.
    pub inode: Option<u32>,
    /// Physical block.
    pub block: Option<u64>,
    /// Group.
    pub group: Option<u32>,
}

/// One corruption.
#[derive(Clone, Debug)]
pub struct Mutation {
    /// What was changed: structure, field, old and new value.
    pub description: String,
    /// The kind of the structure.
    pub kind: Kind,
    /// What the structure belongs to.
    pub owner: Owner,
    /// Whether the structure's checksum was corrected, if the structure has one.
    pub resealed: bool,
    /// For each edit, the byte offset, and the old and the new bytes.
    pub edits: Vec<(u64, Vec<u8>, Vec<u8>)>,
}

impl Mutation {
    /// Applies the corruption to an image.
    ///
    /// # Panics
    /// When the image cannot be written.
    pub fn apply(&self, image: &Path) {
        self.write(image, |edit| &edit.2);
    }

    /// Undoes the corruption.
    ///
    /// # Panics
    /// When the image cannot be written.
    pub fn undo(&self, image: &Path) {
        self.write(image, |edit| &edit.1);
    }

    fn write(&self, image: &Path, bytes: impl Fn(&(u64, Vec<u8>, Vec<u8>)) -> &Vec<u8>) {
        let file = File::options().write(true).open(image).expect("open image");
        for edit in &self.edits {
            file.write_all_at(bytes(edit), edit.0).expect("write image");
        }
    }
}

/// A field of a structure: name, offset from the structure's start, and size in bytes.
type Field = (&'static str, usize, usize);

impl Inventory {
    /// Draws one corruption. It changes a field's value, except if the field is the structure's own
    /// checksum and the corruption also corrects checksums: then the image stays as it was.
    pub fn mutate(&self, random: &mut impl Rng) -> Mutation {
        loop {
            // The kind is drawn first, so that the few superblocks are hit as often as the many
            // inodes.
            let kinds = self.kinds();
            let kind = *kinds.choose(random).expect("an image has structures");
            let of_kind: Vec<&Structure> = self.structures.iter().filter(|one| one.kind == kind).collect();
            let structure = of_kind.choose(random).expect("the kind was listed");
            if let Some(mutation) = self.mutate_structure(structure, random) {
                return mutation;
            }
        }
    }

    fn mutate_structure(&self, structure: &Structure, random: &mut impl Rng) -> Option<Mutation> {
        let (name, offset, size) = self.pick_field(structure, random)?;
        let mut image = Overlay { base: &self.bytes, edits: Vec::new() };
        let at = structure.at + offset;
        let old = self.bytes[at..at + size].to_vec();
        let new = other_value(&old, random);
        if old == new {
            return None;
        }
        image.put(at, &new);
        let resealed = random.random_bool(0.75);
        if resealed {
            self.reseal(structure, &mut image);
        }
        let description = format!(
            "{:?} at {:#x} (inode {:?}, block {:?}, group {:?}): {name} {} -> {}{}",
            structure.kind,
            structure.at,
            structure.owner.inode,
            structure.owner.block,
            structure.owner.group,
            hex(&old),
            hex(&new),
            if resealed { ", resealed" } else { "" }
        );
        let edits = image
            .edits
            .into_iter()
            .map(|(at, new)| (at as u64, self.bytes[at..at + new.len()].to_vec(), new))
            .collect();
        Some(Mutation { description, kind: structure.kind, owner: structure.owner, resealed, edits })
    }

    fn pick_field(&self, structure: &Structure, random: &mut impl Rng) -> Option<Field> {
        // Sometimes pick any bytes, even bytes that are in no list of fields.
        if random.random_bool(0.15) {
            let size = 1 << random.random_range(0..3);
            let at = random.random_range(0..structure.length / size) * size;
            // Not s_errno: see `Inventory::fields`.
            let is_errno = structure.kind == Kind::JournalSuperblock && (0x20..0x24).contains(&at);
            return (!is_errno).then_some(("bytes", at, size));
        }
        let fields = self.fields(structure);
        fields.choose(random).copied()
    }
}

/// The bytes of an image, and edits over them. A read returns the bytes with all edits so far.
pub(crate) struct Overlay<'a> {
    base: &'a [u8],
    edits: Vec<(usize, Vec<u8>)>,
}

impl Overlay<'_> {
    pub(crate) fn put(&mut self, at: usize, bytes: &[u8]) {
        self.edits.push((at, bytes.to_vec()));
    }

    pub(crate) fn get(&self, at: usize, length: usize) -> Vec<u8> {
        let mut bytes = self.base[at..at + length].to_vec();
        for (start, edit) in &self.edits {
            for (offset, byte) in edit.iter().enumerate() {
                let place = start + offset;
                if place >= at && place < at + length {
                    bytes[place - at] = *byte;
                }
            }
        }
        bytes
    }
}

/// A new value for a field: one bit flipped, all bits zero, all bits one, the little-endian number
/// one more or less, or random. It may equal the old value.
pub fn other_value(old: &[u8], random: &mut impl Rng) -> Vec<u8> {
    let mut new = old.to_vec();
    match random.random_range(0..6) {
        0 | 1 => {
            let bit = random.random_range(0..new.len() * 8);
            new[bit / 8] ^= 1 << (bit % 8);
        }
        2 => new.fill(0),
        3 => new.fill(0xFF),
        4 => {
            let down = random.random_bool(0.5);
            for byte in &mut new {
                *byte = if down { byte.wrapping_sub(1) } else { byte.wrapping_add(1) };
                if *byte != if down { 0xFF } else { 0 } {
                    break;
                }
            }
        }
        _ => random.fill(&mut new[..]),
    }
    new
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}
