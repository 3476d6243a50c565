//! What every policy must guarantee: no cluster has two owners, "no space" is true when it is
//! reported, the same requests get the same answers, reserves are kept, and the counters balance.
//!
//! The author of a policy calls [`keeps_to_all`] in a test. Each of its checks is also a function
//! of its own, which panics when the property does not hold. Two of them,
//! [`clusters_have_one_owner_and_no_space_is_true`] and [`the_same_requests_get_the_same_answers`],
//! try random sequences of operations. When they panic, the message gives the policy and a
//! shortened sequence that fails.

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

/// Checks every property.
///
/// # Panics
/// When a property does not hold.
pub fn keeps_to_all(policy: Policy) {
    clusters_have_one_owner_and_no_space_is_true(policy);
    the_same_requests_get_the_same_answers(policy);
    reserves_are_kept(policy);
    the_last_cluster_is_found(policy);
    threads_never_share_a_cluster(policy);
}
