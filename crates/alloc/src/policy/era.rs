//! Which images a policy serves: those with the features of its time.

use blockyard_disk::{Compat, FeatureSet, Incompat, RoCompat};

use super::composition::Policy;
use super::slots::Era;

/// The policy does not serve the image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "policy {preset} serves no image with {features}: {advice} (era=any serves all)",
    advice = advice(*era)
)]
pub struct NotServed {
    /// The preset of the policy.
    pub preset: &'static str,
    /// Which images it serves.
    pub era: Era,
    /// The features of the image that are newer than the era.
    pub features: FeatureSet,
}

/// How to make an image that is served.
fn advice(era: Era) -> &'static str {
    match era {
        Era::Any => "it serves all",
        Era::Ext3 => "make one with mkfs -t ext3",
        Era::Ext4Of2008 => {
            "make one with -O ^metadata_csum,^64bit,^orphan_file,uninit_bg, and without clusters"
        }
    }
}

/// The features ext3 could have.
const EXT3: FeatureSet = FeatureSet {
    compat: Compat::DIR_PREALLOC
        .union(Compat::HAS_JOURNAL)
        .union(Compat::EXT_ATTR)
        .union(Compat::RESIZE_INODE)
        .union(Compat::DIR_INDEX),
    incompat: Incompat::FILETYPE
        .union(Incompat::RECOVER)
        .union(Incompat::JOURNAL_DEV)
        .union(Incompat::META_BG),
    ro_compat: RoCompat::SPARSE_SUPER.union(RoCompat::LARGE_FILE),
};

/// The features ext4 could have in 2008.
const EXT4_OF_2008: FeatureSet = FeatureSet {
    compat: EXT3.compat,
    incompat: EXT3.incompat.union(Incompat::EXTENTS).union(Incompat::BIT64).union(Incompat::FLEX_BG),
    ro_compat: EXT3
        .ro_compat
        .union(RoCompat::HUGE_FILE)
        .union(RoCompat::GDT_CSUM)
        .union(RoCompat::DIR_NLINK)
        .union(RoCompat::EXTRA_ISIZE),
};

impl Policy {
    /// Whether images with these features are served.
    ///
    /// # Errors
    /// [`NotServed`] with the newer features.
    pub fn serves(&self, features: &FeatureSet) -> Result<(), NotServed> {
        let known = match self.era {
            Era::Any => return Ok(()),
            Era::Ext3 => EXT3,
            Era::Ext4Of2008 => EXT4_OF_2008,
        };
        let later = FeatureSet {
            compat: features.compat.difference(known.compat),
            incompat: features.incompat.difference(known.incompat),
            ro_compat: features.ro_compat.difference(known.ro_compat),
        };
        if later == FeatureSet::default() {
            return Ok(());
        }
        Err(NotServed { preset: self.preset, era: self.era, features: later })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_of_a_later_time_are_refused_by_the_names_of_what_they_have() {
        let policy = |text: &str| Policy::parse(text).unwrap();
        let ext4 = FeatureSet {
            incompat: Incompat::FILETYPE | Incompat::EXTENTS | Incompat::FLEX_BG,
            ro_compat: RoCompat::SPARSE_SUPER | RoCompat::GDT_CSUM,
            compat: Compat::HAS_JOURNAL,
        };
        let refused = policy("ext3").serves(&ext4).unwrap_err();
        assert_eq!(refused.features.to_string(), "extent flex_bg uninit_bg");
        assert!(
            refused.to_string().starts_with("policy ext3 serves no image with extent flex_bg uninit_bg: "),
            "{refused}"
        );
        assert_eq!(policy("ext4-2008").serves(&ext4), Ok(()));
        assert_eq!(policy("ext4-2009").serves(&ext4), Ok(()));
        let today = FeatureSet { ro_compat: RoCompat::METADATA_CSUM | RoCompat::BIGALLOC, ..ext4 };
        let refused = policy("ext4-2009").serves(&today).unwrap_err();
        assert_eq!(refused.features.to_string(), "bigalloc metadata_csum");
        assert_eq!(policy("linux-6.18").serves(&today), Ok(()));
        assert_eq!(policy("ext3:era=any").serves(&today), Ok(()));
    }
}
