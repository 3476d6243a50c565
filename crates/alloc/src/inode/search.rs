//! The search for a group: Orlov's spreading over flex groups, and the simple rule "with the
//! parent".
//!
//! The older rules are in [`block_groups`] and [`flex_2008`]. A search reads the counts and changes
//! nothing. A *unit* is a flex group. If there are no flex groups, it is a block group, and unit
//! and group numbers are equal.

mod block_groups;
mod flex_2008;

use blockyard_disk::num::u32_from_u64;
use blockyard_disk::{FlexNr, Geometry, GroupNr, InodeNr};
use blockyard_sync::Backend;

use super::counts::{FreeClusters, InodeCounts};
use crate::policy::Switches;

/// What a search reads.
pub(super) struct Search<'a, B: Backend> {
    pub(super) geometry: &'a Geometry,
    pub(super) switches: &'a Switches,
    pub(super) counts: &'a InodeCounts<B>,
    pub(super) clusters: &'a dyn FreeClusters,
}

/// The directory an inode is created in.
pub(super) struct Family {
    pub(super) parent: InodeNr,
    /// Group of the parent's own inode.
    pub(super) group: GroupNr,
    /// Group that was chosen for the directory's last child.
    pub(super) last_group: Option<GroupNr>,
}

/// What a unit must have to get a directory under an ordinary directory: fewer directories than the
/// upper bound, and at least as many free inodes and clusters as the lower bounds.
struct Limits {
    directories_below: u64,
    inodes_min: u64,
    clusters_min: u64,
}

impl<B: Backend> Search<'_, B> {
    /// A directory under a top directory: among the units with at least average free inodes and
    /// clusters, the one with the fewest directories. If several have equally few, the first in
    /// ring order from unit `hash % units`. `hash` is the hash of the new directory's name, or a
    /// random number.
    pub(super) fn top_directory(&self, family: &Family, hash: u32) -> Option<GroupNr> {
        let units = self.units();
        let inodes_min = self.counts.free_approximate() / u64::from(units);
        let clusters_min = self.average_clusters();
        // A unit must have fewer directories than one group has inodes, even if the unit has many
        // groups.
        let mut fewest = self.geometry.inodes_per_group();
        let mut choice = None;
        for unit in ring(hash % units, units) {
            let free = self.counts.free_in_flex(unit);
            let directories = self.counts.directories_in_flex(unit);
            let fits = free > 0
                && directories < fewest
                && u64::from(free) >= inodes_min
                && self.clusters_in(unit) >= clusters_min;
            if fits {
                fewest = directories;
                choice = Some(unit);
            }
        }
        match choice {
            Some(unit) => self.first_group_with_inodes(unit),
            None => self.fallback(family),
        }
    }

    /// A directory under an ordinary directory: the first unit within [`Limits`]. The search starts
    /// at the unit that was chosen for the parent's last child, or at the parent's own unit if
    /// there is no such child.
    pub(super) fn ordinary_directory(&self, family: &Family) -> Option<GroupNr> {
        let limits = self.limits();
        let start = self.geometry.flex_of(family.last_group.unwrap_or(family.group));
        let fits = |unit: &FlexNr| {
            u64::from(self.counts.directories_in_flex(*unit)) < limits.directories_below
                && u64::from(self.counts.free_in_flex(*unit)) >= limits.inodes_min
                && self.clusters_in(*unit) >= limits.clusters_min
        };
        match ring(start.raw(), self.units()).find(fits) {
            Some(unit) => self.first_group_with_inodes(unit),
            None => self.fallback(family),
        }
    }

    /// Any inode but a directory.
    pub(super) fn other(&self, family: &Family) -> Option<GroupNr> {
        if self.geometry.flex_size() > 1 { self.other_in_flex(family) } else { self.other_in_groups(family) }
    }

    /// The first group with a free inode, from the parent's group on, with wrap-around.
    pub(super) fn parent_onward(&self, family: &Family) -> Option<GroupNr> {
        self.ring_of_groups(family.group).find(|&group| self.counts.free_in_group(group) > 0)
    }

    fn other_in_flex(&self, family: &Family) -> Option<GroupNr> {
        self.first_group_with_inodes(self.geometry.flex_of(family.group))
            .or_else(|| self.first_group_with_inodes(self.geometry.flex_of(family.last_group?)))
            .or_else(|| self.ordinary_directory(family))
    }

    /// The rule that ignores flex groups. The parent's group is chosen if it has a free inode and a
    /// free cluster. Otherwise groups are probed in steps that double, and the first group that has
    /// both is chosen. Where the probing starts depends only on the parent, so the files of one
    /// directory overflow into the same groups. If no probe succeeds, the first group with a free
    /// inode is chosen, in ring order from the group after the parent's.
    pub(super) fn other_in_groups(&self, family: &Family) -> Option<GroupNr> {
        let groups = self.geometry.groups();
        let roomy =
            |&group: &GroupNr| self.counts.free_in_group(group) > 0 && self.clusters.in_group(group) > 0;
        let hashed = wrapping_group(family.group, family.parent.raw(), groups);
        let steps = (0..u32::BITS).map(|shift| 1u32 << shift).take_while(|&step| step < groups);
        let probes = steps.scan(hashed, |at, step| {
            *at = wrapping_group(GroupNr::new(*at), step, groups);
            Some(GroupNr::new(*at))
        });
        let after_parent = wrapping_group(family.group, 1, groups);
        core::iter::once(family.group).chain(probes).find(roomy).or_else(|| {
            self.ring_of_groups(GroupNr::new(after_parent))
                .find(|&group| self.counts.free_in_group(group) > 0)
        })
    }

    /// The choice when no unit fits: from the parent's group on, the first group with at least
    /// average free inodes, or else the first with any free inode.
    fn fallback(&self, family: &Family) -> Option<GroupNr> {
        self.fallback_from(family.group)
    }

    fn fallback_from(&self, start: GroupNr) -> Option<GroupNr> {
        let average = self.counts.free_approximate() / u64::from(self.geometry.groups());
        let find = |least: u64| {
            self.ring_of_groups(start).find(|&group| {
                let free = self.counts.free_in_group(group);
                free > 0 && u64::from(free) >= least
            })
        };
        find(average).or_else(|| if average != 0 { find(0) } else { None })
    }

    fn limits(&self) -> Limits {
        let units = u64::from(self.units());
        let unit_groups = u64::from(self.geometry.flex_size());
        let unit_inodes = u64::from(self.geometry.inodes_per_group()) * unit_groups;
        let unit_clusters = u64::from(self.geometry.clusters_per_group()) * unit_groups;
        let spread = if self.switches.max_dirs_by_group {
            u64::from(self.geometry.inodes_per_group())
        } else {
            unit_inodes
        };
        let inodes = (self.counts.free_approximate() / units).saturating_sub(unit_inodes / 4);
        let (average, quarter) = (self.average_clusters(), unit_clusters / 4);
        let clusters_min = if self.switches.min_clusters_wrap {
            average.wrapping_sub(quarter)
        } else {
            average.saturating_sub(quarter)
        };
        Limits {
            directories_below: self.counts.directories_approximate() / units + spread / 16,
            inodes_min: inodes.max(1),
            clusters_min,
        }
    }

    fn average_clusters(&self) -> u64 {
        let free = self.clusters.total_approximate();
        let free =
            if self.switches.average_in_blocks { free << self.geometry.cluster_ratio_bits() } else { free };
        free / u64::from(self.units())
    }

    fn units(&self) -> u32 {
        self.geometry.flex_groups()
    }

    fn clusters_in(&self, unit: FlexNr) -> u64 {
        self.clusters.in_flex(unit)
    }

    /// The lowest group of a unit with a free inode.
    fn first_group_with_inodes(&self, unit: FlexNr) -> Option<GroupNr> {
        let size = u64::from(self.geometry.flex_size());
        let first = u64::from(unit.raw()) * size;
        debug_assert!(unit.raw() < self.units(), "unit {unit} of {}", self.units());
        let end = (first + size).min(u64::from(self.geometry.groups()));
        (u32_from_u64(first)..u32_from_u64(end))
            .map(GroupNr::new)
            .find(|&group| self.counts.free_in_group(group) > 0)
    }

    fn ring_of_groups(&self, start: GroupNr) -> impl Iterator<Item = GroupNr> {
        let groups = self.geometry.groups();
        (0..groups).map(move |step| GroupNr::new(wrapping_group(start, step, groups)))
    }
}

/// All units, from `start` on, with wrap-around.
fn ring(start: u32, units: u32) -> impl Iterator<Item = FlexNr> {
    debug_assert!(start < units, "unit {start} of {units}");
    (start..units).chain(0..start).map(FlexNr::new)
}

/// `first + step` in a ring of `groups`.
pub(super) fn wrapping_group(first: GroupNr, step: u32, groups: u32) -> u32 {
    let at = u64::from(first.raw()) + u64::from(step);
    blockyard_disk::num::u32_from_u64(at % u64::from(groups))
}
