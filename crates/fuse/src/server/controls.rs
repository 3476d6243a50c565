//! Control requests (`ioctl`): the flags of `chattr` and related requests.

use blockyard::Metadata;
use blockyard::disk::inode::InodeFlags;

use super::{Caller, NodeNr, Server};
use crate::errno::{Answer, Errno};

/// The supported control requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// `FS_IOC_GETFLAGS`.
    Flags,
    /// `FS_IOC_SETFLAGS`.
    SetFlags,
    /// `FS_IOC_GETVERSION`: the generation.
    Version,
    /// `FS_IOC_FSGETXATTR`: flags in the form that other file systems use.
    Extended,
    /// `FS_IOC_FSSETXATTR`.
    SetExtended,
    /// `FITRIM`: discards free blocks.
    Trim,
}

impl Control {
    /// The request that a number stands for; `None` if it is not supported. The kernel translates
    /// the numbers of 32-bit programs to those of 64-bit Linux, and checks the caller and the mount
    /// only for 64-bit numbers. So a request that changes something is accepted only by its 64-bit
    /// number. A request that only reads also has its 32-bit number here.
    #[must_use]
    pub const fn of(number: u32) -> Option<Self> {
        Some(match number {
            0x8008_6601 | 0x8004_6601 => Self::Flags,
            0x4008_6602 => Self::SetFlags,
            0x8008_7601 | 0x8004_7601 => Self::Version,
            0x801C_581F => Self::Extended,
            0x401C_5820 => Self::SetExtended,
            0xC018_5879 => Self::Trim,
            _ => return None,
        })
    }
}

/// Flags of `struct fsxattr`, and the inode flags that they stand for.
const EXTENDED_FLAGS: [(u32, InodeFlags); 7] = [
    (0x0008, InodeFlags::IMMUTABLE),
    (0x0010, InodeFlags::APPEND),
    (0x0020, InodeFlags::SYNC),
    (0x0040, InodeFlags::NOATIME),
    (0x0080, InodeFlags::NODUMP),
    (0x0200, InodeFlags::PROJINHERIT),
    (0x8000, InodeFlags::DAX),
];
/// Flags of `struct fsxattr` that Linux's ext4 accepts and does not keep (observed on 6.18): those
/// that only other file systems use.
const NOT_KEPT: u32 = 0x8001_7D03;
/// Size in bytes of `struct fsxattr`: flags, extent size, extents, project, extent size for copy on
/// write, and padding.
const EXTENDED_LEN: usize = 28;
/// Offset in bytes of the project id in `struct fsxattr`.
const PROJECT_AT: usize = 12;

impl Server {
    /// Refuses to convert a file from a block map to extents, or a file of more than twelve blocks
    /// from extents to a block map. Linux refuses the second too, after it has set the other flags.
    /// Linux converts smaller files to a block map; here the request succeeds, and they keep their
    /// extents.
    fn check_form(&self, found: &Metadata, asked: InodeFlags) -> Answer<()> {
        let is_small = found.len() <= u64::from(self.block_size) * 12;
        let changes = (asked ^ found.flags()).contains(InodeFlags::EXTENTS);
        let loses = changes && found.flags().contains(InodeFlags::EXTENTS);
        if changes && !(loses && is_small) { Err(Errno::OPNOTSUPP) } else { Ok(()) }
    }

    /// Sets flags. Kernels before 5.13 leave it to the file system to check who may set them: the
    /// owner and root, but only root if the file becomes immutable or append-only, or ceases to be.
    fn change_flags(&self, caller: Caller, found: &Metadata, flags: InodeFlags) -> Answer<()> {
        if self.fs.is_read_only()? {
            return Err(Errno::ROFS);
        }
        let fixes = (flags ^ found.flags()).intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND);
        if !caller.is_privileged() && (fixes || caller.uid != found.uid()) {
            return Err(Errno::PERM);
        }
        Ok(self.inodes().set_flags(found.id(), flags)?)
    }

    /// Answers a control request, and returns the bytes for the caller.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for flags that cannot be set, `EINVAL` for an argument that is too short or a
    /// range that cannot be trimmed, `EPERM` for requests that only root or the owner may make,
    /// `EROFS`.
    pub fn control(&self, caller: Caller, node: NodeNr, what: Control, argument: &[u8]) -> Answer<Vec<u8>> {
        let id = self.id(node)?;
        let found = self.inodes().metadata(id)?;
        match what {
            Control::Flags => Ok(found.flags().bits().to_le_bytes().to_vec()),
            Control::Version => Ok(found.id().generation.to_le_bytes().to_vec()),
            Control::SetFlags => {
                let flags = InodeFlags::from_bits_retain(word(argument, 0)?);
                self.change_flags(caller, &found, flags)?;
                self.check_form(&found, flags)?;
                Ok(Vec::new())
            }
            Control::Extended => {
                let mut answer = vec![0; EXTENDED_LEN];
                answer[..4].copy_from_slice(&extended(found.flags()).to_le_bytes());
                Ok(answer)
            }
            Control::SetExtended => {
                if argument.len() < EXTENDED_LEN {
                    return Err(Errno::INVAL);
                }
                let wanted = word(argument, 0)?;
                let known = EXTENDED_FLAGS.iter().fold(NOT_KEPT, |all, (bit, _)| all | bit);
                if wanted & !known != 0 || word(argument, PROJECT_AT)? != 0 {
                    return Err(Errno::OPNOTSUPP);
                }
                let mut flags = found.flags();
                for (bit, flag) in EXTENDED_FLAGS {
                    flags.set(flag, wanted & bit != 0);
                }
                self.change_flags(caller, &found, flags)?;
                Ok(Vec::new())
            }
            Control::Trim if !caller.is_privileged() => Err(Errno::PERM),
            Control::Trim => {
                let [start, len, at_least] = [long(argument, 0)?, long(argument, 8)?, long(argument, 16)?];
                let trimmed = self.fs.trim(start..start.saturating_add(len), at_least)?;
                Ok([start, trimmed, at_least].into_iter().flat_map(u64::to_le_bytes).collect())
            }
        }
    }
}

fn extended(flags: InodeFlags) -> u32 {
    let told = EXTENDED_FLAGS.iter().filter(|(_, flag)| flags.contains(*flag));
    told.fold(0, |all, (bit, _)| all | bit)
}

fn long(argument: &[u8], at: usize) -> Answer<u64> {
    let bytes = argument.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).ok_or(Errno::INVAL)?;
    Ok(u64::from_le_bytes(bytes))
}

fn word(argument: &[u8], at: usize) -> Answer<u32> {
    let bytes = argument.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).ok_or(Errno::INVAL)?;
    Ok(u32::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use blockyard::device::MemoryDevice;
    use blockyard::{AccessTimes, ImageOptions};

    use super::*;

    const OWNER: Caller = Caller { uid: 1001, gid: 1001, process: 0 };
    const OTHER: Caller = Caller { uid: 1002, gid: 1001, process: 0 };

    /// The kernel passes on ioctls whose numbers it does not know, without checking the caller.
    #[test]
    fn flags_are_set_only_by_the_number_that_the_kernel_checks() {
        assert_eq!(Control::of(0x4008_6602), Some(Control::SetFlags));
        assert_eq!(Control::of(0x4004_6602), None);
    }

    fn set(server: &Server, caller: Caller, flags: InodeFlags) -> [Answer<Vec<u8>>; 2] {
        let file = NodeNr::of(server.lookup(NodeNr::ROOT, b"file").unwrap().ino());
        let mut argument = vec![0; EXTENDED_LEN];
        argument[..4].copy_from_slice(&extended(flags).to_le_bytes());
        let word = (flags | InodeFlags::EXTENTS).bits().to_le_bytes();
        [
            server.control(caller, file, Control::SetFlags, &word),
            server.control(caller, file, Control::SetExtended, &argument),
        ]
    }

    #[test]
    fn flags_are_set_by_the_owner_and_the_fixing_ones_by_root() {
        let (done, refused) = (|| [Ok(Vec::new()), Ok(Vec::new())], |why| [Err(why), Err(why)]);
        let memory = Arc::new(MemoryDevice::new(16 << 20));
        let fs = ImageOptions::new().make_on(Arc::clone(&memory)).unwrap();
        fs.write("file", "text").unwrap();
        fs.set_owner("file", Some(OWNER.uid), Some(OWNER.gid)).unwrap();
        let server = Server::new(fs.clone(), AccessTimes::Never).unwrap();
        assert_eq!(set(&server, OWNER, InodeFlags::NODUMP), done());
        assert_eq!(set(&server, OTHER, InodeFlags::empty()), refused(Errno::PERM));
        for fixing in [InodeFlags::IMMUTABLE, InodeFlags::APPEND] {
            assert_eq!(set(&server, OWNER, fixing), refused(Errno::PERM));
            assert_eq!(set(&server, Caller::ROOT, fixing), done());
            assert_eq!(set(&server, OWNER, fixing | InodeFlags::NODUMP), done());
            assert_eq!(set(&server, OWNER, InodeFlags::empty()), refused(Errno::PERM));
            assert_eq!(set(&server, Caller::ROOT, InodeFlags::empty()), done());
        }
        server.end();
        fs.close().unwrap();
        let fs = ImageOptions::new().read_only(true).open_device(memory).unwrap();
        let server = Server::new(fs, AccessTimes::Never).unwrap();
        assert_eq!(set(&server, Caller::ROOT, InodeFlags::NODUMP), refused(Errno::ROFS));
    }

    /// The answers are those of Linux's ext4 (observed on 6.18). Bit 12 is for directories: for a
    /// file, the kernel refuses it without a request to the server.
    #[test]
    fn extended_flags_are_kept_or_passed_over_or_refused_as_by_linux() {
        let fs = ImageOptions::new().make_on(Arc::new(MemoryDevice::new(16 << 20))).unwrap();
        fs.write("file", "text").unwrap();
        let server = Server::new(fs.clone(), AccessTimes::Never).unwrap();
        let file = NodeNr::of(server.lookup(NodeNr::ROOT, b"file").unwrap().ino());
        let ask = |flags: u32| {
            let mut argument = vec![0; EXTENDED_LEN];
            argument[..4].copy_from_slice(&flags.to_le_bytes());
            server.control(Caller::ROOT, file, Control::SetExtended, &argument)?;
            word(&server.control(Caller::ROOT, file, Control::Extended, &[])?, 0)
        };
        let (mut kept, mut passed_over) = (Vec::new(), Vec::new());
        for bit in 0..32 {
            match ask(1 << bit) {
                Ok(0) => passed_over.push(bit),
                Ok(flags) => {
                    assert_eq!(flags, 1 << bit);
                    kept.push(bit);
                }
                Err(why) => assert_eq!(why, Errno::OPNOTSUPP, "{bit}"),
            }
            assert_eq!(ask(0), Ok(0));
        }
        assert_eq!(kept, [3, 4, 5, 6, 7, 15]);
        assert_eq!(passed_over, [0, 1, 8, 10, 11, 12, 13, 14, 16, 31]);
        server.end();
        fs.close().unwrap();
    }
}
