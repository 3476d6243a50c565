//! Damage as disks, cables and people cause it: blocks zeroed, garbled, swapped or written to the
//! wrong place, single sectors torn, and image files cut short. Most of the damage is aimed at
//! metadata structures, because no check looks at the rest of an image: file content and free
//! blocks.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rand::Rng;
use rand::seq::IndexedRandom;

use super::inventory::{Inventory, Kind, Structure};

/// Bytes of a sector, the unit that a disk writes atomically.
const SECTOR: usize = 512;

/// One case of damage.
#[derive(Clone, Debug)]
pub struct Damage {
    /// What was done, and where.
    pub description: String,
    /// For each edit, the byte offset and the new bytes.
    pub(super) edits: Vec<(usize, Vec<u8>)>,
    /// New length of the file in bytes; `None` if it keeps its length.
    pub(super) length: Option<usize>,
}

impl Damage {
    /// Whether the image file gets shorter.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.length.is_some()
    }

    /// What is written: for each edit, the byte offset and the new bytes.
    pub fn edits(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.edits.iter().map(|(at, bytes)| (*at as u64, &bytes[..]))
    }

    /// Damages the image that the inventory was read from.
    ///
    /// # Panics
    /// When the image cannot be written.
    pub fn apply(&self, image: &Path) {
        let file = open(image);
        for (at, bytes) in &self.edits {
            file.write_all_at(bytes, *at as u64).expect("write image");
        }
        if let Some(length) = self.length {
            file.set_len(length as u64).expect("truncate image");
        }
    }

    /// Restores the image to what it was when the inventory was read.
    ///
    /// # Panics
    /// When the image cannot be written.
    pub fn undo(&self, image: &Path, inventory: &Inventory) {
        let (file, whole) = (open(image), &inventory.bytes);
        for (at, bytes) in &self.edits {
            file.write_all_at(&whole[*at..at + bytes.len()], *at as u64).expect("write image");
        }
        if let Some(length) = self.length {
            file.write_all_at(&whole[length..], length as u64).expect("write image");
        }
    }
}

fn open(image: &Path) -> File {
    File::options().write(true).open(image).expect("open image")
}

impl Inventory {
    /// Draws one case of damage.
    pub fn damage(&self, random: &mut impl Rng) -> Damage {
        loop {
            let damage = match random.random_range(0..8) {
                0 | 1 => self.zero(random),
                2 => self.garble(random),
                3 => self.garble_anywhere(random),
                4 | 5 => self.swap_or_misdirect(random),
                6 => self.tear(random),
                _ => self.cut(random),
            };
            if damage.length.is_some()
                || damage.edits.iter().any(|(at, new)| self.bytes[*at..at + new.len()] != *new)
            {
                return damage;
            }
        }
    }

    /// Draws a kind, then a structure of that kind. Returns the structure, and the byte offset of
    /// the block in which it begins.
    fn pick(&self, random: &mut impl Rng) -> (Structure, usize) {
        let kinds = self.kinds();
        let kind = *kinds.choose(random).expect("an image has structures");
        self.pick_of(kind, random)
    }

    fn pick_of(&self, kind: Kind, random: &mut impl Rng) -> (Structure, usize) {
        let of_kind: Vec<&Structure> = self.structures.iter().filter(|one| one.kind == kind).collect();
        let structure = **of_kind.choose(random).expect("the kind was listed");
        (structure, structure.at / self.block_size() * self.block_size())
    }

    fn zero(&self, random: &mut impl Rng) -> Damage {
        let (structure, at) = self.pick(random);
        self.edit("zeroed", structure.kind, vec![(at, vec![0; self.block_size()])])
    }

    fn garble(&self, random: &mut impl Rng) -> Damage {
        let (structure, at) = self.pick(random);
        let mut garbage = vec![0; self.block_size()];
        random.fill(&mut garbage[..]);
        self.edit("garbage", structure.kind, vec![(at, garbage)])
    }

    /// 4 KiB of garbage anywhere.
    fn garble_anywhere(&self, random: &mut impl Rng) -> Damage {
        let mut garbage = vec![0; 4096];
        random.fill(&mut garbage[..]);
        let at = random.random_range(0..self.bytes.len() / garbage.len()) * garbage.len();
        Damage { description: format!("garbage at {at:#x}"), edits: vec![(at, garbage)], length: None }
    }

    /// Two blocks of one kind swapped, or a block overwritten with a copy of another block, of any
    /// kind.
    fn swap_or_misdirect(&self, random: &mut impl Rng) -> Damage {
        let (structure, at) = self.pick(random);
        let block = |at: usize| self.bytes[at..at + self.block_size()].to_vec();
        if random.random_bool(0.5) {
            let (_, other) = self.pick_of(structure.kind, random);
            return self.edit("swapped", structure.kind, vec![(at, block(other)), (other, block(at))]);
        }
        let (_, other) = self.pick(random);
        self.edit("overwritten by another block", structure.kind, vec![(at, block(other))])
    }

    /// One sector of a block zeroed or garbled.
    fn tear(&self, random: &mut impl Rng) -> Damage {
        let (structure, at) = self.pick(random);
        let sector = random.random_range(0..self.block_size() / SECTOR);
        let mut bytes = vec![0; SECTOR];
        if random.random_bool(0.5) {
            random.fill(&mut bytes[..]);
        }
        self.edit("torn", structure.kind, vec![(at + sector * SECTOR, bytes)])
    }

    /// The file cut: by one block, at the start of a structure, or anywhere.
    fn cut(&self, random: &mut impl Rng) -> Damage {
        let size = self.bytes.len();
        let length = match random.random_range(0..3) {
            0 => size - self.block_size(),
            1 => self.pick(random).0.at,
            _ => random.random_range(0..size),
        };
        Damage { description: format!("cut to {length} bytes"), edits: Vec::new(), length: Some(length) }
    }

    fn edit(&self, what: &str, kind: Kind, edits: Vec<(usize, Vec<u8>)>) -> Damage {
        let places: Vec<String> = edits.iter().map(|(at, _)| format!("{at:#x}")).collect();
        let description =
            format!("{kind:?} {what} at {} (block size {})", places.join(", "), self.block_size());
        Damage { description, edits, length: None }
    }
}
