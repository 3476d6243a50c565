//! The rules of every policy: no cluster goes to two owners, "no space" is never false, the same
//! requests get the same answers, reserves are kept, and the counters balance. The last test runs
//! the presets that are not in the list.

#![allow(clippy::unwrap_used, reason = "a test binary")]

use blockyard_alloc::Policy;
use blockyard_alloc::policy::PRESETS;

/// The suite for each named policy, one module each.
macro_rules! conformance {
    ($($module:ident: $policy:literal,)+) => {
        /// Policies with a line of their own.
        const LISTED: &[&str] = &[$($policy),+];

        $(mod $module {
            use super::Policy;

            fn policy() -> Policy {
                Policy::parse($policy).unwrap()
            }

            #[test]
            fn clusters_have_one_owner_and_no_space_is_true() {
                blockyard_conformance::clusters_have_one_owner_and_no_space_is_true(policy());
            }

            #[test]
            fn the_same_requests_get_the_same_answers() {
                blockyard_conformance::the_same_requests_get_the_same_answers(policy());
            }

            #[test]
            fn reserves_are_kept() {
                blockyard_conformance::reserves_are_kept(policy());
            }

            #[test]
            fn the_last_cluster_is_found() {
                blockyard_conformance::the_last_cluster_is_found(policy());
            }

            #[test]
            fn threads_never_share_a_cluster() {
                blockyard_conformance::threads_never_share_a_cluster(policy());
            }
        })+
    };
}

conformance! {
    ext3: "ext3",
    ext3_at_write_back: "ext3:inode=oldalloc:when=write-back",
    ext4_2008: "ext4-2008",
    ext4_2009: "ext4-2009",
    linux_6_16: "linux-6.16",
    linux_6_18: "linux-6.18",
    rotalloc_v1: "rotalloc-v1",
    rralloc_v2: "rralloc-v2",
    rralloc_v3_regular: "rralloc-v3-regular",
    inode_cursor: "inode-cursor",
    rralloc: "rralloc",
    first_fit: "first-fit",
    best_fit: "best-fit",
    yard: "yard",
    linux_6_18_optimized: "linux-6.18:scan=optimized",
    linux_6_16_optimized: "linux-6.16:scan=optimized",
    series_up_to_15: "linux-6.18:visit=choose:sweep=per-set",
    series_up_to_16: "linux-6.18:sweep=per-set:locks=hashed",
    stable_backport: "linux-6.18:stream_goal=offset:slot_lock=md:slots=one:free_pending=md:freed_merge=after",
    fixed_windows: "linux-6.18:normalise=window:window=64",
    four_steps_by_index: "linux-6.18:ladder=four:first_groups=use:short_runs=offer",
    four_steps_by_lists: "linux-6.16:scan=optimized:ladder=four:stream_files=small:stream_learns=all-data",
    frees_by_group: "linux-6.18:freed_merge=by-group",
}

#[test]
fn presets_without_a_line_keep_to_it_too() {
    for preset in PRESETS.iter().filter(|preset| !LISTED.contains(&preset.policy.preset)) {
        println!("{}", preset.policy.preset);
        blockyard_conformance::keeps_to_all(preset.policy);
    }
}
