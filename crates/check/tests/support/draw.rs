//! Damages of images, drawn from a seed.

use std::path::Path;

use blockyard_testkit::mutate::Inventory;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// Damages a copy; gives the class and what was done.
pub(crate) fn damage(inventory: &Inventory, random: &mut ChaCha8Rng, image: &Path) -> (String, String) {
    match random.random_range(0..5) {
        0..2 => {
            let mutation = inventory.mutate(random);
            mutation.apply(image);
            (format!("field of {:?}", mutation.kind), mutation.description)
        }
        2 => {
            let mutations: Vec<_> =
                (0..random.random_range(2..6)).map(|_| inventory.mutate(random)).collect();
            mutations.iter().for_each(|mutation| mutation.apply(image));
            let all: Vec<_> = mutations.into_iter().map(|mutation| mutation.description).collect();
            ("several fields".to_owned(), all.join("; "))
        }
        _ => loop {
            let damage = inventory.damage(random);
            if damage.is_cut() {
                continue;
            }
            damage.apply(image);
            let class = damage.description.split(" at ").next().unwrap_or_default().to_owned();
            return (format!("block: {class}"), damage.description);
        },
    }
}
