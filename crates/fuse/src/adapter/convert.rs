//! Conversions of requests and answers between fuser's types and ours.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{SystemTime, UNIX_EPOCH};

use blockyard::disk::device_number::DeviceNumber;
use blockyard::disk::num::low16;
use blockyard::{FileType, Metadata, Timestamp};
use fuser::{FileAttr, FileHandle, Generation, INodeNo, OpenFlags, Request, TimeOrNow};
use rustix::fs::OFlags;

use crate::server::{Caller, Creation, Errno, HandleNr, Listed, NodeNr, TimeChange};

pub(super) fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), process: request.pid() }
}

pub(super) fn node(inode: INodeNo) -> NodeNr {
    NodeNr(inode.0)
}

pub(super) fn handle(file: FileHandle) -> HandleNr {
    HandleNr(file.0)
}

pub(super) fn errno(error: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(error.raw())
}

pub(super) const fn kind_of(kind: FileType) -> fuser::FileType {
    match kind {
        FileType::Fifo => fuser::FileType::NamedPipe,
        FileType::CharDevice => fuser::FileType::CharDevice,
        FileType::Directory => fuser::FileType::Directory,
        FileType::BlockDevice => fuser::FileType::BlockDevice,
        FileType::Regular => fuser::FileType::RegularFile,
        FileType::Symlink => fuser::FileType::Symlink,
        FileType::Socket => fuser::FileType::Socket,
    }
}

/// A device number in the protocol's encoding.
const fn packed(device: DeviceNumber) -> u32 {
    (device.minor & 0xFF) | ((device.major & 0xFFF) << 8) | ((device.minor & 0xF_FF00) << 12)
}

pub(super) const fn unpacked(number: u32) -> DeviceNumber {
    DeviceNumber { major: (number >> 8) & 0xFFF, minor: (number & 0xFF) | ((number >> 12) & 0xF_FF00) }
}

/// Attributes in the protocol's form. `inode` is the number that programs see. In the answer to a
/// look-up, the kernel also takes it as its own number for the inode.
fn attributes(found: &Metadata, inode: INodeNo, block_size: u32) -> FileAttr {
    FileAttr {
        ino: inode,
        size: found.len(),
        blocks: found.blocks(),
        atime: found.accessed(),
        mtime: found.modified(),
        ctime: found.changed(),
        crtime: found.created().unwrap_or(UNIX_EPOCH),
        kind: kind_of(found.file_type()),
        perm: found.mode(),
        nlink: found.nlink(),
        uid: found.uid(),
        gid: found.gid(),
        rdev: found.attributes().device.map_or(0, packed),
        blksize: block_size,
        flags: 0,
    }
}

/// Attributes for the answer to a look-up, with the kernel's number for the inode.
pub(super) fn entry(found: &Metadata, block_size: u32) -> FileAttr {
    attributes(found, INodeNo(NodeNr::of(found.ino()).0), block_size)
}

pub(super) fn generation(found: &Metadata) -> Generation {
    Generation(found.id().generation.into())
}

/// A time of a request. For times before 1970, fuser subtracts the nanoseconds although the
/// protocol adds them. This function undoes that.
pub(super) fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Timestamp {
            seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: since.subsec_nanos(),
        },
        Err(before) => Timestamp {
            seconds: i64::try_from(before.duration().as_secs()).map_or(i64::MIN, |seconds| -seconds),
            nanoseconds: before.duration().subsec_nanos(),
        },
    }
}

pub(super) fn time_change(time: TimeOrNow) -> TimeChange {
    match time {
        TimeOrNow::Now => TimeChange::Now,
        TimeOrNow::SpecificTime(time) => TimeChange::At(timestamp(time)),
    }
}

pub(super) fn creation(parent: INodeNo, name: &OsStr, mode: u32, umask: u32) -> Creation {
    let bits = |word: u32| low16(word & 0o7777);
    Creation {
        parent: node(parent),
        name: name.as_bytes().to_vec(),
        permissions: bits(mode),
        umask: bits(umask),
    }
}

pub(super) fn flags_of(flags: OpenFlags) -> OFlags {
    OFlags::from_bits_retain(flags.0.cast_unsigned())
}

/// Attributes of an inode that the kernel knows already. They show the inode's own number, even for
/// the root.
pub(super) fn told(found: &Metadata, block_size: u32) -> FileAttr {
    attributes(found, INodeNo(found.ino().raw().into()), block_size)
}

/// The number by which the kernel will know the inode.
pub(super) fn number(found: &Metadata) -> u64 {
    NodeNr::of(found.ino()).0
}

/// Attributes in which only the inode number, the type and the link count matter.
const fn blank(inode: INodeNo, kind: fuser::FileType, names: u32) -> FileAttr {
    FileAttr {
        ino: inode,
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: 0,
        nlink: names,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

/// The answer for a name that does not exist.
pub(super) const fn nothing() -> FileAttr {
    blank(INodeNo(0), fuser::FileType::RegularFile, 0)
}

/// Attributes for an inode that cannot be read. fuser cannot list a name without attributes, so
/// these are invalid on purpose: no file has this size. The kernel lists the name, makes no inode
/// of its own, and forgets the number at once.
pub(super) const fn unreadable(listed: &Listed<'_>) -> FileAttr {
    FileAttr { size: u64::MAX, ..blank(INodeNo(listed.inode), kind_of(listed.kind), 1) }
}

/// Attributes for `.` and `..`, which the kernel knows already.
pub(super) const fn dot(listed: &Listed<'_>) -> FileAttr {
    blank(INodeNo(listed.inode), fuser::FileType::Directory, 1)
}

#[cfg(test)]
mod tests {
    use super::{packed, timestamp, unpacked};
    use blockyard::Timestamp;
    use blockyard::disk::device_number::DeviceNumber;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn device_numbers_go_there_and_back() {
        for (major, minor) in [(8, 1), (0, 0), (0xFFF, 0xF_FFFF), (259, 70_000)] {
            let device = DeviceNumber { major, minor };
            assert_eq!(unpacked(packed(device)), device);
        }
    }

    /// The protocol's -2 s plus 0.75 s arrives as 2.75 s before 1970.
    #[test]
    fn times_before_1970_get_their_nanoseconds_back() {
        let time = UNIX_EPOCH - Duration::new(2, 750_000_000);
        assert_eq!(timestamp(time), Timestamp { seconds: -2, nanoseconds: 750_000_000 });
    }
}
