//! Makes aged images in the engine, as `lab age` does. Comparisons with the kernel can start from
//! these images.

use std::sync::Arc;

use anyhow::Result;
use blockyard_alloc::Policy;
use blockyard_device::{BlockDevice, MemoryDevice};
use blockyard_lab::age::{Ageing, Circumstances, age};

/// Bytes that ageing leaves free, or half of the image if that is less.
const ROOM: u64 = 512 << 20;

/// Ages an image and leaves room for the load or trace that will run on it.
///
/// # Errors
/// As [`age`].
pub(super) fn aged(image: MemoryDevice, ageing: &Ageing, seed: u64) -> Result<MemoryDevice> {
    let image = Arc::new(image);
    let room = (image.size() / 2).min(ROOM);
    let who = Circumstances { room, ..Circumstances::new(Policy::default(), seed) };
    let shared: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&image);
    age(shared, ageing, &who)?;
    Ok(Arc::try_unwrap(image).unwrap_or_else(|shared| shared.duplicate()))
}
