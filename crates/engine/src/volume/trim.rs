//! Discards free blocks on the device (`fstrim`).

use super::Volume;
use crate::{Error, OpContext, Result};
use blockyard_disk::GroupNr;
use blockyard_disk::num::{u32_from_u64, u64_from_u32};
use std::ops::Range;

impl Volume {
    /// See [`crate::FileSystem::trim`].
    pub(crate) fn trim(&self, ctx: &OpContext, bytes: Range<u64>, at_least: u64) -> Result<u64> {
        self.check_writable()?;
        let geometry = self.geometry();
        let (bits, first) = (geometry.block_bits(), geometry.first_data_block().raw());
        let ratio = u64_from_u32(geometry.cluster_ratio());
        let per_group = u64_from_u32(geometry.clusters_per_group());
        let blocks = geometry.blocks_count().raw();
        let range = bytes.start >> bits..(bytes.end >> bits).min(blocks);
        let at_least = at_least.div_ceil(ratio << bits);
        if range.start >= blocks || bytes.end.saturating_sub(bytes.start) >> bits == 0 {
            return Err(Error::Invalid("the range to trim holds no block of the file system"));
        }
        if at_least > per_group {
            return Err(Error::Invalid("the minimum length of a run to trim exceeds a group"));
        }
        let clusters =
            range.start.saturating_sub(first) / ratio..range.end.saturating_sub(first).div_ceil(ratio);
        let mut trimmed = 0;
        for group in clusters.start / per_group..clusters.end.div_ceil(per_group) {
            let in_group =
                |cluster: u64| u32_from_u64(cluster.saturating_sub(group * per_group).min(per_group));
            let within = in_group(clusters.start)..in_group(clusters.end);
            let discarded = self.space.allocator().trim_group(
                GroupNr::new(u32_from_u64(group)),
                within,
                u32_from_u64(at_least),
                ctx.cpu,
                |first, blocks| {
                    Ok::<_, Error>(self.device.discard(first.raw() << bits, blocks.raw() << bits)?)
                },
            )?;
            trimmed += discarded.raw() << bits;
        }
        Ok(trimmed)
    }
}
