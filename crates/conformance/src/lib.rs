//! What every policy must keep to: no cluster to two owners, no "no space" that is not true, the
//! same answers for the same requests, reserves that are kept, and books that balance.
//!
//! An author of a policy calls [`keeps_to_all`] in a test. Each property alone is a function too. A
//! property that does not hold panics, with the policy and the smallest sequence of operations that
//! was found.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::as_conversions, clippy::panic, reason = "support for tests")]

mod bench;
mod shapes;
mod suite;
mod threads;

use blockyard_alloc::Policy;

pub use suite::{
    clusters_have_one_owner_and_no_space_is_true, reserves_are_kept, the_last_cluster_is_found,
    the_same_requests_get_the_same_answers,
};
pub use threads::threads_never_share_a_cluster;

/// Every property.
///
/// # Panics
/// When one does not hold.
pub fn keeps_to_all(policy: Policy) {
    clusters_have_one_owner_and_no_space_is_true(policy);
    the_same_requests_get_the_same_answers(policy);
    reserves_are_kept(policy);
    the_last_cluster_is_found(policy);
    threads_never_share_a_cluster(policy);
}
