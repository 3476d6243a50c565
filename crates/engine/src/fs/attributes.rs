//! `stat`, and changes of attributes.

use super::FileSystem;
use crate::{Error, InodeRef, OpContext, Result};
use blockyard_disk::device_number::DeviceNumber;
use blockyard_disk::inode::{FileType, InodeFlags, InodeMap};
use blockyard_disk::{InodeNr, Timestamp};

/// The result of `stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The inode's number.
    pub inode: InodeNr,
    /// Type.
    pub kind: FileType,
    /// Permissions and the set-id and sticky bits: the low 12 bits of the mode.
    pub permissions: u16,
    /// Links.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Allocated space in 512-byte units. As in the kernel, delayed blocks count, and so does the
    /// inline data of a file.
    pub sectors: u64,
    /// Time of the last access.
    pub accessed: Timestamp,
    /// Time of the last change of content.
    pub modified: Timestamp,
    /// Time of the last change of the inode.
    pub changed: Timestamp,
    /// Time of creation, where the inode has room for it.
    pub created: Option<Timestamp>,
    /// Generation.
    pub generation: u32,
    /// Flags, as `lsattr` shows them.
    pub flags: u32,
    /// Device number of device inodes.
    pub device: Option<DeviceNumber>,
}

/// Which attributes to change. `None` keeps an attribute as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// The low 12 bits of the mode.
    pub permissions: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Time of the last access.
    pub accessed: Option<Timestamp>,
    /// Time of the last change of content.
    pub modified: Option<Timestamp>,
    /// Time of the last change of the inode, for callers that keep times themselves, as a
    /// write-back cache does. `None` sets it to the time of the operation.
    pub changed: Option<Timestamp>,
    /// Whether the times are the current time, as when `utimes` is called without times.
    /// Append-only files accept such a change.
    pub times_are_now: bool,
}

impl SetAttributes {
    /// Whether files with these flags refuse the change.
    const fn is_refused_by(&self, flags: InodeFlags, ctx: &OpContext) -> bool {
        let of_owner = self.permissions.is_some() || self.uid.is_some() || self.gid.is_some();
        let of_a_write = !of_owner && self.accessed.is_none();
        if ctx.caches_writes && of_a_write {
            return false;
        }
        let only_touches = !of_owner && self.times_are_now;
        flags.contains(InodeFlags::IMMUTABLE) || flags.contains(InodeFlags::APPEND) && !only_touches
    }
}

/// When reading a file changes its access time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AccessTimes {
    /// Never.
    Never,
    /// If the access time is not later than the last change, or is a day old, as with `relatime`.
    #[default]
    Relative,
    /// At each read.
    Always,
}

impl AccessTimes {
    /// Whether a read at `now` changes the time.
    fn asks_for_change(
        self,
        accessed: Timestamp,
        modified: Timestamp,
        changed: Timestamp,
        now: Timestamp,
    ) -> bool {
        let order = |time: Timestamp| (time.seconds, time.nanoseconds);
        match self {
            Self::Never => false,
            Self::Always => order(accessed) != order(now),
            Self::Relative => {
                order(modified) >= order(accessed)
                    || order(changed) >= order(accessed)
                    || now.seconds.saturating_sub(accessed.seconds) >= DAY
            }
        }
    }
}

/// Bytes of an inode whose times have no nanoseconds and end in 2038.
const SHORT_INODE: u16 = 128;

/// Seconds of a day.
const DAY: i64 = 86_400;

/// Nanoseconds of a second.
const SECOND: u32 = 1_000_000_000;

/// Flags that users may set, as on Linux.
const SETTABLE: InodeFlags = InodeFlags::SECRM
    .union(InodeFlags::UNRM)
    .union(InodeFlags::COMPR)
    .union(InodeFlags::SYNC)
    .union(InodeFlags::IMMUTABLE)
    .union(InodeFlags::APPEND)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::NOTAIL)
    .union(InodeFlags::DAX)
    .union(OF_DIRECTORIES);

/// Flags that only directories have.
const OF_DIRECTORIES: InodeFlags =
    InodeFlags::DIRSYNC.union(InodeFlags::TOPDIR).union(InodeFlags::PROJINHERIT);

/// Flags that Linux refuses to set (observed on 6.18), and flags that this version cannot set
/// (`JOURNAL_DATA`, `CASEFOLD`). Flags that are neither in this set nor in [`SETTABLE`] belong to
/// the file system. Requests to change them are ignored.
const NEVER_SET: InodeFlags = InodeFlags::IMAGIC
    .union(InodeFlags::JOURNAL_DATA)
    .union(InodeFlags::HUGE_FILE)
    .union(InodeFlags::EA_INODE)
    .union(InodeFlags::SNAPFILE)
    .union(InodeFlags::SNAPFILE_DELETED)
    .union(InodeFlags::SNAPFILE_SHRUNK)
    .union(InodeFlags::CASEFOLD)
    .union(InodeFlags::from_bits_retain(0x8080_0000));

/// If an inode has one of these flags, Linux refuses to set the DAX flag (observed on 6.18). The
/// flags stand for journaled data and, in files, for inline data. An inline directory may get the
/// DAX flag, because new files inherit it.
const fn excludes_dax(kind: FileType) -> InodeFlags {
    match kind {
        FileType::Directory => InodeFlags::JOURNAL_DATA,
        _ => InodeFlags::JOURNAL_DATA.union(InodeFlags::INLINE_DATA),
    }
}

/// Metadata blocks that a change of one inode touches.
const CREDITS: usize = 2;

impl FileSystem {
    /// The attributes of an inode.
    ///
    /// # Errors
    /// [`Error::StaleInode`], [`Error::Corrupt`], [`Error::Device`].
    pub fn attributes(&self, inode: impl Into<InodeRef>) -> Result<Attributes> {
        let _operation = self.volume.watch();
        let inode = self.volume.inodes.inode(inode)?;
        // Not under the content lock: write-back holds it during device I/O.
        let delayed = inode.delayed_clusters()
            << (self.volume.geometry().cluster_ratio_bits() + self.volume.geometry().block_bits() - 9);
        let core = inode.core();
        if core.deleted {
            return Err(Error::StaleInode(inode.number()));
        }
        let raw = core.slot.raw();
        // The kernel counts as many sectors as a file's inline data would fill.
        let inline = match (core.map, inode.kind()) {
            (InodeMap::Inline, FileType::Regular) => core.size.div_ceil(512),
            _ => 0,
        };
        Ok(Attributes {
            inode: inode.number(),
            kind: inode.kind(),
            permissions: raw.i_mode.get() & 0o7777,
            links: u32::from(raw.i_links_count.get()),
            uid: raw.uid(),
            gid: raw.gid(),
            size: core.size,
            sectors: core.sectors + delayed + inline,
            accessed: core.slot.accessed(),
            modified: core.slot.modified(),
            changed: core.slot.changed(),
            created: core.slot.created(),
            generation: raw.i_generation.get(),
            flags: raw.flags().bits(),
            device: match core.map {
                InodeMap::Device(number) => Some(number),
                _ => None,
            },
        })
    }

    /// Changes attributes and sets the change time. Changing the permissions also changes the
    /// access control list, if there is one: its entries for the owner, the mask (or owning group)
    /// and others.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; as [`FileSystem::attributes`]; and:
    /// * [`Error::Invalid`] for nanoseconds of a second or more.
    /// * [`Error::NotPermitted`] for immutable and append-only files. But append-only files accept
    ///   [`SetAttributes::times_are_now`]. With [`OpContext::caches_writes`], both kinds accept the
    ///   times that a write changes.
    /// * [`Error::NoSpace`] for new permissions, if the access control list lies in a block that
    ///   other inodes share, or in a value inode. For a value inode also [`Error::NoInodes`].
    pub fn set_attributes(
        &self,
        ctx: &OpContext,
        inode: impl Into<InodeRef>,
        changes: &SetAttributes,
    ) -> Result<()> {
        let _operation = self.volume.watch();
        let times = [changes.accessed, changes.modified, changes.changed];
        if times.into_iter().flatten().any(|time| time.nanoseconds >= SECOND) {
            return Err(Error::Invalid("the nanoseconds of a time must be below a second"));
        }
        let inode = self.volume.inodes.inode(inode)?;
        let _alone = inode.write();
        if let Some(permissions) = changes.permissions {
            // A handle of its own changes the list, and also sets the mode bits that the list
            // repeats. So list and mode agree whether or not a commit comes between this handle and
            // the next one.
            self.xattrs.fit_access_list(ctx, &inode, permissions)?;
        }
        let handle = self.volume.begin(ctx, CREDITS)?;
        let mut core = inode.core_mut();
        core.check_alive(inode.number())?;
        if changes.is_refused_by(core.flags(), ctx) {
            return Err(Error::NotPermitted);
        }
        self.volume.inodes.join_inode(&handle, &inode, &mut core)?;
        let raw = core.slot.raw_mut();
        if let Some(permissions) = changes.permissions {
            let kind = raw.i_mode.get() & FileType::MODE_MASK;
            raw.i_mode.set(kind | (permissions & 0o7777));
        }
        if let Some(uid) = changes.uid {
            raw.set_uid(uid);
        }
        if let Some(gid) = changes.gid {
            raw.set_gid(gid);
        }
        if let Some(time) = changes.accessed {
            core.slot.set_accessed(self.storable(time));
        }
        if let Some(time) = changes.modified {
            core.slot.set_modified(self.storable(time));
        }
        core.slot.set_changed(changes.changed.map_or(ctx.now, |time| self.storable(time)));
        Ok(())
    }

    /// A time in the range that inodes can store. A time outside this range becomes its first or
    /// last second, as on Linux.
    fn storable(&self, time: Timestamp) -> Timestamp {
        let is_short = self.volume.geometry().inode_size() <= SHORT_INODE;
        let last = if is_short { Timestamp::SECONDS_MAX_SHORT } else { Timestamp::SECONDS_MAX };
        match time.seconds {
            seconds if seconds <= Timestamp::SECONDS_MIN => Timestamp::from_seconds(Timestamp::SECONDS_MIN),
            seconds if seconds >= last => Timestamp::from_seconds(last),
            _ => time,
        }
    }

    /// Notes that a file or directory was read. Sets its access time to the present if `rule` says
    /// so. An inode with the flag `A` (`chattr +A`) keeps its access time, and so does every inode
    /// of a read-only instance.
    ///
    /// # Errors
    /// As [`FileSystem::attributes`].
    pub fn note_access(&self, ctx: &OpContext, inode: impl Into<InodeRef>, rule: AccessTimes) -> Result<()> {
        let _operation = self.volume.watch();
        if rule == AccessTimes::Never || self.volume.is_read_only() {
            return Ok(());
        }
        let inode = self.volume.inodes.inode(inode)?;
        {
            let core = inode.core();
            let (accessed, modified, changed) =
                (core.slot.accessed(), core.slot.modified(), core.slot.changed());
            let stays = core.flags().contains(InodeFlags::NOATIME);
            if core.deleted || stays || !rule.asks_for_change(accessed, modified, changed, ctx.now) {
                return Ok(());
            }
        }
        let handle = self.volume.begin(ctx, CREDITS)?;
        let mut core = inode.core_mut();
        core.check_alive(inode.number())?;
        self.volume.inodes.join_inode(&handle, &inode, &mut core)?;
        core.slot.set_accessed(ctx.now);
        Ok(())
    }

    /// Changes the flags that users may change (`chattr`). The others keep their value.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; as [`FileSystem::attributes`]. [`Error::NotSupported`] for:
    /// * an inode that is neither a file nor a directory: the kernel treats an immutable symbolic
    ///   link as damaged;
    /// * flags of directories on files;
    /// * flags that nobody may set, if the inode does not have them;
    /// * direct access (`x`) to data in the inode or the journal.
    pub fn set_flags(&self, ctx: &OpContext, inode: impl Into<InodeRef>, flags: u32) -> Result<()> {
        let _operation = self.volume.watch();
        let inode = self.volume.inodes.inode(inode)?;
        let asked = InodeFlags::from_bits_retain(flags);
        let wanted = asked & SETTABLE;
        match inode.kind() {
            FileType::Directory => {}
            FileType::Regular if !wanted.intersects(OF_DIRECTORIES) => {}
            _ => return Err(Error::NotSupported("these flags on this type of inode")),
        }
        let _alone = inode.write();
        let handle = self.volume.begin(ctx, CREDITS)?;
        let mut core = inode.core_mut();
        core.check_alive(inode.number())?;
        if asked.difference(core.flags()).intersects(NEVER_SET) {
            return Err(Error::NotSupported("flags that nobody may set"));
        }
        if asked.contains(InodeFlags::DAX) && core.flags().intersects(excludes_dax(inode.kind())) {
            return Err(Error::NotSupported("direct access to data in the inode or the journal"));
        }
        self.volume.inodes.join_inode(&handle, &inode, &mut core)?;
        let new = core.flags().difference(SETTABLE) | wanted;
        core.slot.raw_mut().set_flags(new);
        if inode.kind() == FileType::Regular && new.contains(InodeFlags::DAX) {
            core.may_be_inline = false;
        }
        core.slot.set_changed(ctx.now);
        Ok(())
    }
}
