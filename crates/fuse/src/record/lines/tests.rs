//! A replay of the lines must find the files they name.

use super::super::Event;
use super::{FOR_ONE_CALL, Lines};
use blockyard::{FileType, RenameMode};
use blockyard_trace::Op;

fn name(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

fn create(parent: u64, text: &str, inode: u64, handle: u64) -> Event {
    Event::Create { parent, name: name(text), made: Some((inode, handle)) }
}

fn write(inode: u64, handle: u64) -> Event {
    Event::Write { call: "write", inode, handle, offset: 0, len: 10 }
}

fn open(inode: u64, handle: u64) -> Event {
    Event::Open { inode, writes: true, direct: false, handle: Some(handle) }
}

/// The lines of events that all succeeded.
fn lines(events: impl IntoIterator<Item = Event>) -> Vec<Op> {
    let (mut lines, mut ops) = (Lines::default(), Vec::new());
    events.into_iter().for_each(|event| lines.add(event, None, &mut ops));
    ops
}

fn opened(fd: u32, path: &str, flags: &str) -> Op {
    Op::Open { fd, path: path.to_owned(), flags: flags.to_owned() }
}

fn note(call: &str, path: Option<&str>, range: Option<(u64, u64)>) -> Op {
    super::note(call, path.map(str::to_owned), range)
}

#[test]
fn paths_follow_what_is_moved() {
    let made = Event::Make {
        parent: 1,
        name: name("d"),
        kind: FileType::Directory,
        permissions: 0o755,
        device: None,
        inode: Some(12),
    };
    let rename = Event::Rename { from: (1, name("d")), to: (1, name("e")), mode: RenameMode::Replace };
    let read = Event::Note { call: "read", inode: Some(13), range: Some((0, 5)) };
    let expected = [
        Op::Mkdir { path: "/d".to_owned(), mode: 0o755 },
        opened(7, "/d/f", "rw,create,excl"),
        Op::Rename { from: "/d".to_owned(), to: "/e".to_owned() },
        note("read", Some("/e/f"), Some((0, 5))),
    ];
    assert_eq!(lines([made, create(12, "f", 13, 7), rename, read]), expected);
}

/// A program lists a directory and opens a file from the list: the kernel looks up no name.
#[test]
fn what_a_list_told_of_is_known_by_name() {
    let seen = Event::Seen { parent: 1, name: name("f"), inode: 13 };
    let expected = [opened(3, "/f", "rw"), Op::Pwrite { fd: 3, off: 0, len: 10 }];
    assert_eq!(lines([seen, open(13, 3), write(13, 3)]), expected);
}

#[test]
fn a_file_without_a_name_is_written_in_notes() {
    let unlink = Event::Unlink { parent: 1, name: name("f") };
    let events = [create(1, "f", 13, 1), unlink, open(13, 2), write(13, 2), Event::Close { handle: 2 }];
    let expected = [
        opened(1, "/f", "rw,create,excl"),
        Op::Unlink { path: "/f".to_owned() },
        note("open", None, None),
        note("write", None, Some((0, 10))),
        note("close", None, None),
    ];
    assert_eq!(lines(events), expected);
}

#[test]
fn cutting_a_file_by_its_name_is_played() {
    let cut = |handle| Event::Truncate { inode: 13, handle, len: 5 };
    let events = [create(1, "f", 13, 1), cut(Some(1)), Event::Close { handle: 1 }, cut(None)];
    let ftruncate = |fd| Op::Ftruncate { fd, len: 5 };
    let expected = [
        opened(1, "/f", "rw,create,excl"),
        ftruncate(1),
        Op::Close { fd: 1 },
        opened(FOR_ONE_CALL, "/f", "rw"),
        ftruncate(FOR_ONE_CALL),
        Op::Close { fd: FOR_ONE_CALL },
    ];
    assert_eq!(lines(events), expected);
}

#[test]
fn an_exchange_goes_through_a_third_name() {
    let exchange = Event::Rename { from: (1, name("a")), to: (1, name("b")), mode: RenameMode::Exchange };
    let ops = lines([create(1, "a", 12, 1), create(1, "b", 13, 2), exchange, open(12, 3)]);
    let rename = |from: &str, to: &str| Op::Rename { from: from.to_owned(), to: to.to_owned() };
    let third = "/.exchanged-aside";
    let expected = [rename("/a", third), rename("/b", "/a"), rename(third, "/b"), opened(3, "/b", "rw")];
    assert_eq!(ops[2..], expected);
}

/// Three renames fail. The first fails with EEXIST under `NoReplace`: a trace line has no rename
/// mode, so a replay might succeed. The second fails with EPERM, but a replay would not. The third
/// fails with ENOENT, and so would a replay. So only the third becomes a line that is replayed.
#[test]
fn what_would_end_otherwise_where_it_is_played_is_a_note() {
    let (mut lines, mut ops) = (Lines::default(), Vec::new());
    let rename = |mode| Event::Rename { from: (1, name("a")), to: (1, name("b")), mode };
    lines.add(rename(RenameMode::NoReplace), Some(17), &mut ops);
    lines.add(rename(RenameMode::Replace), Some(1), &mut ops);
    lines.add(rename(RenameMode::Replace), Some(2), &mut ops);
    let renamed = Op::Rename { from: "/a".to_owned(), to: "/b".to_owned() };
    assert_eq!(ops, [note("rename", None, None), note("rename", None, None), renamed]);
}
