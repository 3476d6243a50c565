//! Damages of images, drawn from a seed.

use blockyard_device::BlockDevice;
use blockyard_testkit::mutate::{Damage, Inventory, Mutation};
use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// One damage of an image, possibly in several places.
#[derive(Debug, Default)]
pub(crate) struct Drawn {
    /// The class under which it is counted.
    pub(crate) class: String,
    /// What is done, and where.
    pub(crate) what: String,
    /// Byte offset and new bytes, in the order of the writes.
    pub(crate) edits: Vec<(u64, Vec<u8>)>,
}

impl Drawn {
    /// Damages a device that holds the image.
    pub(crate) fn apply(&self, device: &dyn BlockDevice) {
        for (at, bytes) in &self.edits {
            device.write_at(*at, bytes).expect("the image is as long as it was");
        }
    }

    fn add_mutation(&mut self, mutation: Mutation) {
        self.edits.extend(mutation.edits.into_iter().map(|(at, _, new)| (at, new)));
        self.what.push_str(&mutation.description);
        self.what.push_str("; ");
    }

    fn add_damage(&mut self, damage: &Damage) {
        self.edits.extend(damage.edits().map(|(at, bytes)| (at, bytes.to_vec())));
        self.what.push_str(&damage.description);
        self.what.push_str("; ");
    }
}

/// Draws a damage.
pub(crate) fn damage(inventory: &Inventory, random: &mut ChaCha8Rng) -> Drawn {
    let mut drawn = Drawn::default();
    match random.random_range(0..20) {
        0..8 => {
            let mutation = inventory.mutate(random);
            drawn.class = format!("field of {:?}", mutation.kind);
            drawn.add_mutation(mutation);
        }
        8..11 => {
            drawn.class = "several fields".to_owned();
            for _ in 0..random.random_range(2..6) {
                drawn.add_mutation(inventory.mutate(random));
            }
        }
        11..17 => {
            let damage = uncut(inventory, random);
            drawn.class = format!("block: {}", damage.description.split(" at ").next().unwrap_or_default());
            drawn.add_damage(&damage);
        }
        17 => {
            drawn.class = "several blocks".to_owned();
            for _ in 0..random.random_range(2..4) {
                drawn.add_damage(&uncut(inventory, random));
            }
        }
        _ => {
            let damage = inventory.damage_heads(random);
            drawn.class = format!("heads: {}", damage.description);
            drawn.add_damage(&damage);
        }
    }
    drawn
}

/// A damage that does not truncate the image.
fn uncut(inventory: &Inventory, random: &mut ChaCha8Rng) -> Damage {
    loop {
        let damage = inventory.damage(random);
        if !damage.is_cut() {
            return damage;
        }
    }
}
