//! Damage to the structures that describe the whole file system: the superblock and its copies, and
//! blocks of the primary descriptor table.

use rand::Rng;
use rand::seq::IndexedRandom;

use super::damage::Damage;
use super::inventory::{Inventory, Kind};

impl Inventory {
    /// Draws damage to superblocks, descriptors or both.
    pub fn damage_heads(&self, random: &mut impl Rng) -> Damage {
        let (superblocks, descriptors) = (self.superblocks(), self.descriptors());
        let (what, mut places) = match random.random_range(0..6) {
            0 => ("primary superblock", superblocks[..1].to_vec()),
            1 => ("superblock and descriptors", [&superblocks[..1], &descriptors].concat()),
            2 => ("all descriptors", descriptors),
            3 => {
                let some = descriptors.choose(random).copied().into_iter().collect();
                ("a block of descriptors", some)
            }
            4 => ("all superblocks but the last", superblocks[..superblocks.len().max(2) - 1].to_vec()),
            _ => {
                let kept = random.random_range(0..superblocks.len());
                let mut places = superblocks;
                places.remove(kept);
                ("all superblocks but one", places)
            }
        };
        if places.is_empty() {
            places.push(1024);
        }
        let zeroes = random.random_bool(0.5);
        let edits = places
            .into_iter()
            .map(|at| {
                let mut bytes = vec![0; if at == 1024 { 1024 } else { self.block_size() }];
                if !zeroes {
                    random.fill(&mut bytes[..]);
                }
                (at, bytes)
            })
            .collect();
        let how = if zeroes { "zeroed" } else { "garbage" };
        Damage { description: format!("{what} {how}"), edits, length: None }
    }

    fn superblocks(&self) -> Vec<usize> {
        let is_one = |kind| matches!(kind, Kind::Superblock | Kind::BackupSuperblock);
        self.structures.iter().filter(|one| is_one(one.kind)).map(|one| one.at).collect()
    }

    /// Byte offsets of the blocks that hold the primary group descriptors.
    fn descriptors(&self) -> Vec<usize> {
        let size = self.block_size();
        let all = self.structures.iter().filter(|one| one.kind == Kind::GroupDesc);
        let mut blocks: Vec<usize> = all.map(|one| one.at / size * size).collect();
        blocks.sort_unstable();
        blocks.dedup();
        blocks
    }
}
