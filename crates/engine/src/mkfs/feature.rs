//! The feature flags that mkfs can switch, by the names mke2fs gives them.
//!
//! Key decision: only the two tables below say which names can be requested, and why others cannot.
//! For a known name that is refused, the error gives the reason. For an unknown name, it lists the
//! supported names.

use blockyard_disk::features::{Compat, Feature, FeatureSet, Incompat, RoCompat};

use super::error::{Error, Result};

pub(super) const HAS_JOURNAL: Feature = Feature::Compat(Compat::HAS_JOURNAL);
pub(super) const EXT_ATTR: Feature = Feature::Compat(Compat::EXT_ATTR);
pub(super) const RESIZE_INODE: Feature = Feature::Compat(Compat::RESIZE_INODE);
pub(super) const DIR_INDEX: Feature = Feature::Compat(Compat::DIR_INDEX);
pub(super) const SPARSE_SUPER2: Feature = Feature::Compat(Compat::SPARSE_SUPER2);
pub(super) const FAST_COMMIT: Feature = Feature::Compat(Compat::FAST_COMMIT);
pub(super) const STABLE_INODES: Feature = Feature::Compat(Compat::STABLE_INODES);
pub(super) const ORPHAN_FILE: Feature = Feature::Compat(Compat::ORPHAN_FILE);
pub(super) const FILETYPE: Feature = Feature::Incompat(Incompat::FILETYPE);
pub(super) const META_BG: Feature = Feature::Incompat(Incompat::META_BG);
pub(super) const EXTENT: Feature = Feature::Incompat(Incompat::EXTENTS);
pub(super) const BIT64: Feature = Feature::Incompat(Incompat::BIT64);
pub(super) const MMP: Feature = Feature::Incompat(Incompat::MMP);
pub(super) const FLEX_BG: Feature = Feature::Incompat(Incompat::FLEX_BG);
pub(super) const EA_INODE: Feature = Feature::Incompat(Incompat::EA_INODE);
pub(super) const CSUM_SEED: Feature = Feature::Incompat(Incompat::CSUM_SEED);
pub(super) const LARGE_DIR: Feature = Feature::Incompat(Incompat::LARGE_DIR);
pub(super) const INLINE_DATA: Feature = Feature::Incompat(Incompat::INLINE_DATA);
pub(super) const SPARSE_SUPER: Feature = Feature::RoCompat(RoCompat::SPARSE_SUPER);
pub(super) const LARGE_FILE: Feature = Feature::RoCompat(RoCompat::LARGE_FILE);
pub(super) const HUGE_FILE: Feature = Feature::RoCompat(RoCompat::HUGE_FILE);
pub(super) const UNINIT_BG: Feature = Feature::RoCompat(RoCompat::GDT_CSUM);
pub(super) const DIR_NLINK: Feature = Feature::RoCompat(RoCompat::DIR_NLINK);
pub(super) const EXTRA_ISIZE: Feature = Feature::RoCompat(RoCompat::EXTRA_ISIZE);
pub(super) const BIGALLOC: Feature = Feature::RoCompat(RoCompat::BIGALLOC);
pub(super) const METADATA_CSUM: Feature = Feature::RoCompat(RoCompat::METADATA_CSUM);

/// The set of these features.
pub(super) fn set_of(features: &[Feature]) -> FeatureSet {
    let mut set = FeatureSet::default();
    for &feature in features {
        set.set(feature, true);
    }
    set
}

/// Names of the flags that can be requested, in the order of their bits in the superblock.
const SUPPORTED: &[(&str, Feature)] = &[
    ("has_journal", HAS_JOURNAL),
    ("ext_attr", EXT_ATTR),
    ("resize_inode", RESIZE_INODE),
    ("dir_index", DIR_INDEX),
    ("sparse_super2", SPARSE_SUPER2),
    ("fast_commit", FAST_COMMIT),
    ("stable_inodes", STABLE_INODES),
    ("orphan_file", ORPHAN_FILE),
    ("filetype", FILETYPE),
    ("meta_bg", META_BG),
    ("extent", EXTENT),
    ("extents", EXTENT),
    ("64bit", BIT64),
    ("mmp", MMP),
    ("flex_bg", FLEX_BG),
    ("ea_inode", EA_INODE),
    ("metadata_csum_seed", CSUM_SEED),
    ("large_dir", LARGE_DIR),
    ("inline_data", INLINE_DATA),
    ("sparse_super", SPARSE_SUPER),
    ("large_file", LARGE_FILE),
    ("huge_file", HUGE_FILE),
    ("uninit_bg", UNINIT_BG),
    ("gdt_csum", UNINIT_BG),
    ("dir_nlink", DIR_NLINK),
    ("extra_isize", EXTRA_ISIZE),
    ("bigalloc", BIGALLOC),
    ("metadata_csum", METADATA_CSUM),
];

/// Names that mke2fs knows and blockyard refuses, with the reason and what to do instead.
const REFUSED: &[(&str, &str)] = &[
    (
        "quota",
        "quota files are not maintained; make the image without it and enable it with tune2fs -O quota",
    ),
    ("project", "project quotas are not maintained; enable it afterwards with tune2fs -O project"),
    ("casefold", "case-insensitive names are not supported; enable it afterwards with tune2fs -O casefold"),
    ("encrypt", "encrypted directories are not supported; enable it afterwards with tune2fs -O encrypt"),
    ("verity", "verity files are not supported; enable it afterwards with tune2fs -O verity"),
    ("journal_dev", "external journals are not supported; use an internal one (has_journal)"),
];

/// Applies an edit list as mke2fs's `-O` does. Its words are separated by commas or spaces: `name`
/// or `+name` adds, `^name` or `-name` removes, `none` clears the set.
///
/// # Errors
/// [`Error::Refused`] when a known name that is not supported is added, [`Error::UnknownFeature`]
/// for an unknown name.
pub(super) fn edit(set: &mut FeatureSet, list: &str) -> Result<()> {
    for word in list.split([',', ' ']).filter(|word| !word.is_empty()) {
        if word.eq_ignore_ascii_case("none") {
            *set = FeatureSet::default();
            continue;
        }
        let (name, wanted) = match word.strip_prefix(['^', '-']) {
            Some(name) => (name, false),
            None => (word.strip_prefix('+').unwrap_or(word), true),
        };
        match (lookup(name)?, wanted) {
            (Some(feature), true) => set.set(feature, true),
            (Some(feature), false) => set.set(feature, false),
            (None, true) => return Err(refusal(name)),
            // A refused feature is never set, so removing it is allowed.
            (None, false) => {}
        }
    }
    Ok(())
}

/// The flag of a supported name, `None` for a refused one.
fn lookup(name: &str) -> Result<Option<Feature>> {
    if let Some((_, feature)) = SUPPORTED.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)) {
        return Ok(Some(*feature));
    }
    if REFUSED.iter().any(|(known, _)| known.eq_ignore_ascii_case(name)) {
        return Ok(None);
    }
    Err(Error::UnknownFeature { name: name.to_owned(), known: supported_names() })
}

fn refusal(name: &str) -> Error {
    let reason = REFUSED
        .iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(name))
        .map_or("not supported", |(_, reason)| reason);
    Error::Refused { option: format!("-O {name}"), reason: reason.to_owned() }
}

/// The supported names, for help texts and messages.
#[must_use]
pub fn supported_names() -> String {
    let names: Vec<&str> = SUPPORTED.iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::{BIGALLOC, DIR_INDEX, EXTENT, Error, FeatureSet, HAS_JOURNAL, edit, set_of};

    #[test]
    fn edits_apply_from_left_to_right() {
        let mut set = set_of(&[EXTENT, HAS_JOURNAL]);
        edit(&mut set, "^extent,bigalloc,EXTENTS,^has_journal").unwrap();
        assert_eq!(set, set_of(&[BIGALLOC, EXTENT]));
        edit(&mut set, "none,dir_index").unwrap();
        assert_eq!(set, set_of(&[DIR_INDEX]));
    }

    #[test]
    fn refused_names_say_why_and_may_be_taken_away() {
        let mut set = FeatureSet::default();
        edit(&mut set, "^quota,^casefold").unwrap();
        for name in ["quota", "project", "casefold", "encrypt", "verity", "journal_dev"] {
            let message = edit(&mut set, name).unwrap_err().to_string();
            assert!(message.starts_with(&format!("-O {name}: ")), "{message}");
        }
        assert_eq!(set, FeatureSet::default());
    }

    #[test]
    fn unknown_names_list_the_known_ones() {
        let error = edit(&mut FeatureSet::default(), "extenst").unwrap_err();
        assert!(matches!(&error, Error::UnknownFeature { name, .. } if name == "extenst"));
        assert!(error.to_string().contains("metadata_csum_seed"));
    }
}
