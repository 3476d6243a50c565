//! Sends the server's answers as fuser's replies.

use std::time::Duration;

use blockyard::Metadata;
use blockyard::disk::num::{u32_from_usize, usize_from_u32};
use fuser::{Generation, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyXattr};

use super::convert::{entry, errno, generation, nothing, told};
use crate::server::Errno;

/// How long the kernel may cache names and attributes: for ever, because we are the only writer.
pub(super) const FOR_EVER: Duration = Duration::from_secs(0xFFFF_FFFF);

pub(super) fn send_entry(reply: ReplyEntry, block_size: u32, found: Result<Metadata, Errno>) {
    match found {
        Ok(found) => reply.entry(&FOR_EVER, &entry(&found, block_size), generation(&found)),
        Err(error) => reply.error(errno(error)),
    }
}

pub(super) fn send_empty(reply: ReplyEmpty, done: Result<(), Errno>) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(error)),
    }
}

pub(super) fn send_data(reply: ReplyData, data: Result<impl AsRef<[u8]>, Errno>) {
    match data {
        Ok(data) => reply.data(data.as_ref()),
        Err(error) => reply.error(errno(error)),
    }
}

/// Answers a request for an attribute's value or for the list of names: with its length if `size`
/// is 0, else with the bytes if they fit into `size`, else with `ERANGE`.
pub(super) fn send_xattr(reply: ReplyXattr, size: u32, value: Result<Vec<u8>, Errno>) {
    const TOO_SMALL: i32 = 34;
    match value {
        Ok(value) if size == 0 => reply.size(u32_from_usize(value.len())),
        Ok(value) if value.len() <= usize_from_u32(size) => reply.data(&value),
        Ok(_) => reply.error(fuser::Errno::from_i32(TOO_SMALL)),
        Err(error) => reply.error(errno(error)),
    }
}

/// Answers that a name does not exist, in a form that the kernel caches.
pub(super) fn send_missing(reply: ReplyEntry) {
    reply.entry(&FOR_EVER, &nothing(), Generation(0));
}

pub(super) fn send_attributes(reply: ReplyAttr, block_size: u32, found: Result<Metadata, Errno>) {
    match found {
        Ok(found) => reply.attr(&FOR_EVER, &told(&found, block_size)),
        Err(error) => reply.error(errno(error)),
    }
}
