//! FUSE through the crate fuser: its requests become calls of the [`Server`], and the server's
//! answers become fuser's replies.
//!
//! Only this module and its parts know fuser. Features that fuser 0.18 lacks are missing here:
//! `tmpfile`, `statx` (the creation time), `syncfs`, io_uring.

mod convert;
mod replies;
mod session;

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Instant, SystemTime};

use blockyard::disk::device_number::DeviceNumber;
use blockyard::disk::num::usize_from_u32;
use blockyard::{FileType, Metadata, RenameMode};
use fuser::{
    CopyFileRangeFlags, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, IoctlFlags, KernelConfig,
    LockOwner, Notifier, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::OFlags;

use self::convert::{
    caller, creation, dot, entry, errno, flags_of, generation, handle, kind_of, node, number, time_change,
    timestamp, unpacked, unreadable,
};
use self::replies::{FOR_EVER, send_attributes, send_data, send_empty, send_entry, send_missing, send_xattr};
pub(crate) use self::session::{Connection, Helped};
use crate::crew::{self, Crew, Job};
use crate::figures::{Figures, Kind};
use crate::record::{Event, Recorder};
use crate::server::{Changes, Control, Creation, Errno, Listed, Server, Transfer};

/// The maximum number of bytes that one request reads.
const READ_MAX: u32 = 1 << 20;
/// The attribute that holds an inode's access ACL (as opposed to a directory's default ACL).
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";

thread_local! {
    /// Buffer for the bytes of a read.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Passes requests to the server.
pub(crate) struct Adapter {
    shared: Arc<Shared>,
}

/// State that the threads of a session share.
pub(crate) struct Shared {
    server: Arc<Server>,
    crew: Crew,
    figures: Arc<Figures>,
    recorder: Option<Recorder>,
    /// Tells the kernel to drop what it has cached.
    notifier: OnceLock<Notifier>,
}

impl Adapter {
    /// An adapter for a session with `receivers` receiving threads.
    pub(crate) fn new(
        server: Arc<Server>,
        figures: Arc<Figures>,
        recorder: Option<Recorder>,
        receivers: usize,
    ) -> Self {
        let crew = Crew::new(receivers);
        Self { shared: Arc::new(Shared { server, crew, figures, recorder, notifier: OnceLock::new() }) }
    }

    /// The state that the threads share. It lives as long as the session.
    pub(crate) fn shared(&self) -> Weak<Shared> {
        Arc::downgrade(&self.shared)
    }

    /// Answers a request, on an extra thread if all other receiving threads are busy.
    fn answer(&self, kind: Kind, work: impl FnOnce(&Shared, Instant) + Send + 'static) {
        self.answer_through(Crew::hand_over, kind, work);
    }

    /// As [`Adapter::answer`]. If an extra thread has to answer, `hand_over` passes the request to
    /// it.
    fn answer_through(
        &self,
        hand_over: fn(&Crew, Job),
        kind: Kind,
        work: impl FnOnce(&Shared, Instant) + Send + 'static,
    ) {
        let began = Instant::now();
        if let Some(_busy) = self.shared.crew.busy() {
            crew::run(|| work(&self.shared, began));
            self.shared.figures.note(kind, began.elapsed());
            return;
        }
        let shared = Arc::clone(&self.shared);
        let job = move || {
            work(&shared, began);
            shared.figures.note(kind, began.elapsed());
        };
        hand_over(&self.shared.crew, Box::new(job));
    }
}

impl Shared {
    /// Records a request, if recording is on.
    fn record<T>(&self, came: Instant, done: &Result<T, Errno>, event: impl FnOnce(Option<&T>) -> Event) {
        if let Some(recorder) = &self.recorder {
            recorder.note(came, event(done.as_ref().ok()), done.as_ref().err().map(|error| error.raw()));
        }
    }

    /// As [`Shared::record`], for a request that the trace format has no line for.
    fn record_note<T>(&self, came: Instant, done: &Result<T, Errno>, call: &'static str, inode: INodeNo) {
        self.record(came, done, |_| Event::Note { call, inode: Some(inode.0), range: None });
    }

    /// Makes the kernel write back a file's dirty pages and drop all its cached pages. The kernel
    /// sends the dirty pages as write requests, which other threads answer.
    fn hand_over_cached(&self, node: INodeNo) {
        if let Some(notifier) = self.notifier.get() {
            let _ = notifier.inval_inode(node, 0, 0);
        }
    }

    /// As [`Shared::hand_over_cached`], for all files of which the kernel may cache written bytes.
    pub(crate) fn hand_over_all_cached(&self) {
        for written in self.server.written() {
            self.hand_over_cached(INodeNo(written.0));
        }
    }

    /// Makes the kernel ask for the attributes of an inode again.
    fn attributes_changed(&self, node: INodeNo) {
        if let Some(notifier) = self.notifier.get() {
            // An error is fine: the kernel may have forgotten the inode.
            let _ = notifier.inval_inode(node, -1, 0);
        }
    }

    /// Runs a change after which the kernel would keep the attributes that it has cached. If the
    /// block count changed, makes the kernel ask for them again.
    fn change_blocks<T>(
        &self,
        inode: INodeNo,
        change: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let blocks = || self.server.attributes(node(inode)).map(|found| found.blocks());
        let before = blocks();
        let done = change();
        if blocks() != before {
            self.attributes_changed(inode);
        }
        done
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        session::negotiate(config, self.shared.server.time_granularity());
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        const MISSING: i32 = 2;
        let name = name.as_bytes().to_vec();
        self.answer(Kind::Lookup, move |shared, came| {
            let found = shared.server.lookup(node(parent), &name);
            shared.record(came, &found, |found| Event::Lookup {
                parent: parent.0,
                name,
                inode: found.map(number),
            });
            match found {
                Err(error) if error.raw() == MISSING => send_missing(reply),
                found => send_entry(reply, shared.server.block_size(), found),
            }
        });
    }

    fn forget(&self, _: &Request, inode: INodeNo, lookups: u64) {
        self.answer(Kind::Forget, move |shared, came| {
            if shared.server.forget(node(inode), lookups) {
                shared.record(came, &Ok(()), |_| Event::Forgotten { inode: inode.0 });
            }
        });
    }

    fn getattr(&self, _: &Request, inode: INodeNo, file: Option<FileHandle>, reply: ReplyAttr) {
        self.answer(Kind::Attributes, move |shared, came| {
            let room = file.map_or(Ok(()), |file| shared.server.check_room(handle(file)));
            let found = room.and_then(|()| shared.server.attributes(node(inode)));
            shared.record_note(came, &found, "getattr", inode);
            send_attributes(reply, shared.server.block_size(), found);
        });
    }

    fn setattr(
        &self,
        request: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        changed: Option<SystemTime>,
        file: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let caller = caller(request);
        // When a program sets times, the request names no open file. When the kernel sends the
        // times of cached writes, it does name one.
        let other = mode.is_some() || uid.is_some() || gid.is_some() || size.is_some() || accessed.is_some();
        let changes = Changes {
            of_cached_writes: file.is_some() && !other,
            permissions: mode.map(|mode| blockyard::disk::num::low16(mode & 0o7777)),
            uid,
            gid,
            size,
            accessed: accessed.map(time_change),
            modified: modified.map(time_change),
            changed: changed.map(timestamp),
        };
        self.answer(Kind::SetAttributes, move |shared, came| {
            let done = shared.server.set_attributes(caller, node(inode), &changes);
            shared.record(came, &done, |_| match changes.size {
                Some(len) => Event::Truncate { inode: inode.0, handle: file.map(|file| file.0), len },
                None => Event::Note { call: "setattr", inode: Some(inode.0), range: None },
            });
            send_attributes(reply, shared.server.block_size(), done);
        });
    }

    fn readlink(&self, _: &Request, inode: INodeNo, reply: ReplyData) {
        self.answer(Kind::ReadLink, move |shared, came| {
            let target = shared.server.read_link(node(inode));
            shared.record_note(came, &target, "readlink", inode);
            send_data(reply, target);
        });
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let (caller, new) = (caller(request), creation(parent, name, mode, umask));
        self.answer(Kind::Make, move |shared, came| {
            let Some(kind) = FileType::from_mode(blockyard::disk::num::low16(mode)) else {
                return reply.error(errno(Errno::INVAL));
            };
            let is_device = matches!(kind, FileType::CharDevice | FileType::BlockDevice);
            let device = is_device.then(|| unpacked(device));
            let made = shared.server.make(caller, &new, kind, device);
            shared.record(came, &made, |made| made_event(new, kind, device, made));
            send_entry(reply, shared.server.block_size(), made);
        });
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let (caller, new) = (caller(request), creation(parent, name, mode, umask));
        self.answer(Kind::MakeDirectory, move |shared, came| {
            let made = shared.server.make(caller, &new, FileType::Directory, None);
            shared.record(came, &made, |made| made_event(new, FileType::Directory, None, made));
            send_entry(reply, shared.server.block_size(), made);
        });
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_vec();
        self.answer(Kind::Unlink, move |shared, came| {
            let done = shared.server.unlink(node(parent), &name);
            shared.record(came, &done, |_| Event::Unlink { parent: parent.0, name });
            send_empty(reply, done);
        });
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_vec();
        self.answer(Kind::RemoveDirectory, move |shared, came| {
            let done = shared.server.rmdir(node(parent), &name);
            shared.record(came, &done, |_| Event::RemoveDirectory { parent: parent.0, name });
            send_empty(reply, done);
        });
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let (caller, name) = (caller(request), name.as_bytes().to_vec());
        let target = target.as_os_str().as_bytes().to_vec();
        self.answer(Kind::Symlink, move |shared, came| {
            let made = shared.server.symlink(caller, node(parent), &name, &target);
            let parent = parent.0;
            shared.record(came, &made, |made| Event::Symlink {
                parent,
                name,
                target,
                inode: made.map(number),
            });
            send_entry(reply, shared.server.block_size(), made);
        });
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (name, new_name) = (name.as_bytes().to_vec(), new_name.as_bytes().to_vec());
        self.answer(Kind::Rename, move |shared, came| {
            let mode = match flags {
                flags if flags.is_empty() => RenameMode::Replace,
                RenameFlags::RENAME_NOREPLACE => RenameMode::NoReplace,
                RenameFlags::RENAME_EXCHANGE => RenameMode::Exchange,
                _ => return reply.error(errno(Errno::INVAL)),
            };
            let (from, to) = ((node(parent), &*name), (node(new_parent), &*new_name));
            let done = shared.server.rename(from, to, mode);
            shared.record(came, &done, |_| Event::Rename {
                from: (parent.0, name),
                to: (new_parent.0, new_name),
                mode,
            });
            send_empty(reply, done);
        });
    }

    fn link(&self, request: &Request, inode: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (caller, name) = (caller(request), name.as_bytes().to_vec());
        self.answer(Kind::Link, move |shared, came| {
            let done = shared.server.link(caller, node(inode), node(parent), &name);
            shared.record(came, &done, |_| Event::Link { inode: inode.0, parent: parent.0, name });
            send_entry(reply, shared.server.block_size(), done);
        });
    }

    fn open(&self, request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let caller = caller(request);
        let flags = flags_of(flags);
        self.answer(Kind::Open, move |shared, came| {
            let opened = shared.server.open(caller, node(inode), flags);
            shared.record(came, &opened, |opened| Event::Open {
                inode: inode.0,
                writes: flags.intersects(OFlags::WRONLY | OFlags::RDWR),
                direct: flags.contains(OFlags::DIRECT),
                handle: opened.map(|opened| opened.handle.0),
            });
            match opened {
                Ok(opened) => {
                    let flags = if opened.is_uncached {
                        FopenFlags::FOPEN_DIRECT_IO
                    } else {
                        FopenFlags::FOPEN_KEEP_CACHE
                    };
                    reply.opened(FileHandle(opened.handle.0), flags);
                }
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let (caller, new) = (caller(request), creation(parent, name, mode, umask));
        self.answer(Kind::Create, move |shared, came| {
            let made = shared.server.create(caller, &new);
            shared.record(came, &made, |made| Event::Create {
                parent: parent.0,
                name: new.name,
                made: made.map(|(found, opened)| (number(found), opened.0)),
            });
            match made {
                Ok((found, opened)) => reply.created(
                    &FOR_EVER,
                    &entry(&found, shared.server.block_size()),
                    generation(&found),
                    FileHandle(opened.0),
                    FopenFlags::FOPEN_KEEP_CACHE,
                ),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        file: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let how = Transfer { is_direct: flags_of(flags).contains(OFlags::DIRECT), ..Transfer::default() };
        self.answer(Kind::Read, move |shared, came| {
            BUFFER.with_borrow_mut(|buffer| {
                let read = shared.server.read(handle(file), offset, size.min(READ_MAX), how, buffer);
                let range = Some((offset, size.into()));
                shared.record(came, &read, |_| Event::Note { call: "read", inode: Some(inode.0), range });
                send_data(reply, read.map(|()| buffer));
            });
        });
    }

    fn write(
        &self,
        request: &Request,
        inode: INodeNo,
        file: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let is_cached = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let drops_privileges = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let how = Transfer {
            is_direct: !is_cached && flags_of(flags).contains(OFlags::DIRECT),
            unprivileged: drops_privileges.then(|| caller(request)),
            is_cached,
        };
        let came = Instant::now();
        let work = move |shared: &Shared, data: &[u8], reply: ReplyWrite| {
            let written = shared.server.write(handle(file), offset, data, how);
            shared.record(came, &written, |_| Event::Write {
                call: "write",
                inode: inode.0,
                handle: file.0,
                offset,
                len: blockyard::disk::num::u64_from_usize(data.len()),
            });
            match written {
                Ok(written) => reply.written(written.len),
                Err(error) => reply.error(errno(error)),
            }
            // The notification must come after the answer. The kernel may be about to forget the
            // inode and wait for this write. Then a notification before the answer would wait for
            // the kernel, while the kernel waits for the answer.
            //
            // After a cached write that found no room, the notification makes the kernel ask for
            // the attributes at the program's next write. `getattr` then answers with the error.
            // Without that error, a program that only writes would never stop.
            let has_no_room = how.is_cached && matches!(written, Err(Errno::NOSPC | Errno::FBIG));
            if drops_privileges || has_no_room || written.is_ok_and(|written| written.allocates) {
                shared.attributes_changed(inode);
            }
        };
        // The bytes are copied only if another thread has to write them.
        if let Some(_busy) = self.shared.crew.busy() {
            crew::run(|| work(&self.shared, data, reply));
            self.shared.figures.note(Kind::Write, came.elapsed());
            return;
        }
        let (shared, data) = (Arc::clone(&self.shared), data.to_vec());
        self.shared.crew.hand_over(Box::new(move || {
            work(&shared, &data, reply);
            shared.figures.note(Kind::Write, came.elapsed());
        }));
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // There is nothing left to do. The kernel has already written the file's pages and reported
        // errors, and closing a file promises no more than that.
        reply.error(errno(Errno::NOSYS));
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        file: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.answer(Kind::Release, move |shared, came| {
            shared.server.release(handle(file));
            shared.record(came, &Ok(()), |_| Event::Close { handle: file.0 });
            reply.ok();
        });
    }

    fn fsync(&self, _: &Request, inode: INodeNo, file: FileHandle, only_data: bool, reply: ReplyEmpty) {
        self.answer(Kind::Fsync, move |shared, came| {
            let done = shared.server.fsync(node(inode), only_data);
            shared.record(came, &done, |_| Event::Fsync { handle: file.0, only_data });
            send_empty(reply, done);
        });
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // Listing needs no state for each open directory: positions mean the same to all readers.
        // After ENOSYS, the kernel sends no more `opendir`.
        reply.error(errno(Errno::NOSYS));
    }

    fn readdir(&self, _: &Request, inode: INodeNo, _: FileHandle, from: u64, mut reply: ReplyDirectory) {
        self.answer(Kind::List, move |shared, came| {
            let add = |entry: &Listed<'_>| {
                let name = OsStr::from_bytes(entry.name);
                reply.add(INodeNo(entry.inode), entry.next, kind_of(entry.kind), name)
            };
            let done = shared.server.list(node(inode), from, add);
            shared.record_note(came, &done, "readdir", inode);
            match done {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn readdirplus(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        from: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        self.answer(Kind::List, move |shared, came| {
            let add = |listed: &Listed<'_>| {
                let name = OsStr::from_bytes(listed.name);
                let (told, generation) = match &listed.attributes {
                    Some(found) => (entry(found, shared.server.block_size()), generation(found)),
                    None if listed.is_unreadable => (unreadable(listed), Generation(0)),
                    None => (dot(listed), Generation(0)),
                };
                let is_full = reply.add(INodeNo(told.ino.0), listed.next, name, &FOR_EVER, &told, generation);
                if !is_full && listed.attributes.is_some() {
                    let name = listed.name.to_vec();
                    let seen = |_: Option<&()>| Event::Seen { parent: inode.0, name, inode: told.ino.0 };
                    shared.record(came, &Ok(()), seen);
                }
                is_full
            };
            let done = shared.server.list_with_attributes(node(inode), from, add);
            shared.record_note(came, &done, "readdirplus", inode);
            match done {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn fsyncdir(&self, _: &Request, inode: INodeNo, _: FileHandle, only_data: bool, reply: ReplyEmpty) {
        self.answer(Kind::Fsync, move |shared, came| {
            let done = shared.server.fsync(node(inode), only_data);
            shared.record_note(came, &done, "fsyncdir", inode);
            send_empty(reply, done);
        });
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        self.answer(Kind::Statfs, move |shared, _| match shared.server.statfs() {
            Ok(room) => reply.statfs(
                room.blocks,
                room.blocks_free,
                room.blocks_available,
                room.inodes,
                room.inodes_free,
                room.block_size,
                room.name_max,
                room.block_size,
            ),
            Err(error) => reply.error(errno(error)),
        });
    }

    fn setxattr(
        &self,
        request: &Request,
        inode: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let (caller, name, value) = (caller(request), name.as_bytes().to_vec(), value.to_vec());
        self.answer(Kind::SetXattr, move |shared, came| {
            // Clearing the set-group-ID bit is left to us. The kernel says when to clear it, but
            // only with FUSE_SETXATTR_EXT, which fuser lacks.
            let is_list = name == ACCESS_LIST;
            let cleared =
                if is_list { shared.server.clear_set_group_id(caller, node(inode)) } else { Ok(()) };
            let flags = flags.cast_unsigned();
            let set = || shared.server.set_xattr(caller, node(inode), &name, &value, flags);
            let done = cleared.and_then(|()| shared.change_blocks(inode, set));
            if is_list && done.is_err() {
                shared.attributes_changed(inode);
            }
            let len = blockyard::disk::num::u64_from_usize(value.len());
            shared.record(came, &done, |_| Event::SetXattr { inode: inode.0, name, len });
            send_empty(reply, done);
        });
    }

    fn getxattr(&self, _: &Request, inode: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let name = name.as_bytes().to_vec();
        self.answer(Kind::Xattr, move |shared, came| {
            let value = shared.server.xattr(node(inode), &name);
            shared.record_note(came, &value, "getxattr", inode);
            send_xattr(reply, size, value);
        });
    }

    fn listxattr(&self, request: &Request, inode: INodeNo, size: u32, reply: ReplyXattr) {
        let caller = caller(request);
        self.answer(Kind::Xattr, move |shared, came| {
            let names = shared.server.xattr_names(caller, node(inode));
            shared.record_note(came, &names, "listxattr", inode);
            send_xattr(reply, size, names);
        });
    }

    fn removexattr(&self, _: &Request, inode: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_vec();
        self.answer(Kind::SetXattr, move |shared, came| {
            let remove = || shared.server.remove_xattr(node(inode), &name);
            let done = shared.change_blocks(inode, remove);
            shared.record_note(came, &done, "removexattr", inode);
            send_empty(reply, done);
        });
    }

    fn ioctl(
        &self,
        request: &Request,
        inode: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        command: u32,
        argument: &[u8],
        size: u32,
        reply: ReplyIoctl,
    ) {
        let Some(what) = Control::of(command) else { return reply.error(errno(Errno::NOTTY)) };
        let (caller, argument) = (caller(request), argument.to_vec());
        self.answer(Kind::Control, move |shared, came| {
            let done = shared.server.control(caller, node(inode), what, &argument);
            shared.record_note(came, &done, "ioctl", inode);
            shared.attributes_changed(inode);
            match done {
                Ok(mut answer) => {
                    answer.truncate(usize_from_u32(size));
                    reply.ioctl(0, &answer);
                }
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn fallocate(
        &self,
        request: &Request,
        inode: INodeNo,
        file: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let (caller, mode) = (caller(request), mode.cast_unsigned());
        self.answer(Kind::Fallocate, move |shared, came| {
            let done = shared.server.fallocate(caller, handle(file), offset, length, mode);
            shared.record(came, &done, |_| Event::Fallocate { handle: file.0, mode, offset, len: length });
            shared.attributes_changed(inode);
            send_empty(reply, done);
        });
    }

    fn lseek(
        &self,
        _: &Request,
        inode: INodeNo,
        file: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        // The kernel does not write back dirty pages before it sends a seek. So a notification
        // makes the kernel write them back. The notification waits only for the writes that it
        // causes: the kernel cannot be about to forget the inode, because the caller has the file
        // open.
        let asks = self.shared.server.may_be_cached(handle(file)).unwrap_or(false);
        let hand_over = if asks { Crew::hand_over_asking } else { Crew::hand_over };
        self.answer_through(hand_over, Kind::Seek, move |shared, came| {
            if asks {
                shared.hand_over_cached(inode);
            }
            let found = u64::try_from(offset)
                .map_err(|_| Errno::NXIO)
                .and_then(|offset| shared.server.seek(handle(file), offset, whence.cast_unsigned()));
            shared.record_note(came, &found, "lseek", inode);
            match found {
                Ok(found) => reply.offset(found.cast_signed()),
                Err(error) => reply.error(errno(error)),
            }
        });
    }

    fn copy_file_range(
        &self,
        request: &Request,
        _: INodeNo,
        from: FileHandle,
        offset: u64,
        inode: INodeNo,
        to: FileHandle,
        target: u64,
        length: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let caller = caller(request);
        self.answer(Kind::Copy, move |shared, came| {
            // The reply has 32 bits for the length.
            let length = length.min(1 << 30);
            let copied =
                shared.server.copy_range(caller, (handle(from), offset), (handle(to), target), length);
            shared.record(came, &copied, |copied| Event::Write {
                call: "copy_file_range",
                inode: inode.0,
                handle: to.0,
                offset: target,
                len: copied.copied().unwrap_or(length),
            });
            shared.attributes_changed(inode);
            match copied {
                Ok(copied) => reply.written(blockyard::disk::num::u32_from_u64(copied)),
                Err(error) => reply.error(errno(error)),
            }
        });
    }
}

fn made_event(new: Creation, kind: FileType, device: Option<DeviceNumber>, made: Option<&Metadata>) -> Event {
    Event::Make {
        parent: new.parent.0,
        permissions: new.permissions & !new.umask,
        name: new.name,
        kind,
        device,
        inode: made.map(number),
    }
}
