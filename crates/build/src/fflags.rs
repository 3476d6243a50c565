//! Flags of `chattr` in archives. The value of the keyword `SCHILY.fflags` is a list of words with
//! commas between them. The words are those of star and libarchive.

use blockyard_disk::inode::InodeFlags;

/// The value of `SCHILY.filetype` for a socket, whose tar entry is a pipe.
pub(crate) const SOCKET: &[u8] = b"socket";

const WORDS: [(&str, InodeFlags); 11] = [
    ("sappnd", InodeFlags::APPEND),
    ("schg", InodeFlags::IMMUTABLE),
    ("nodump", InodeFlags::NODUMP),
    ("noatime", InodeFlags::NOATIME),
    ("journal-data", InodeFlags::JOURNAL_DATA),
    ("notail", InodeFlags::NOTAIL),
    ("securedeletion", InodeFlags::SECRM),
    ("sync", InodeFlags::SYNC),
    ("undel", InodeFlags::UNRM),
    ("topdir", InodeFlags::TOPDIR),
    ("dirsync", InodeFlags::DIRSYNC),
];

/// The flags for a list of words; unknown words are ignored.
pub(crate) fn read(text: &[u8]) -> InodeFlags {
    let flags = text.split(|&byte| byte == b',').filter_map(|word| {
        let known: &[u8] = match word {
            b"sappend" => b"sappnd",
            b"simmutable" | b"schange" => b"schg",
            b"journal" => b"journal-data",
            other => other,
        };
        WORDS.iter().find(|(name, _)| name.as_bytes() == known).map(|(_, flag)| *flag)
    });
    flags.fold(InodeFlags::empty(), InodeFlags::union)
}

/// The words for flags.
pub(crate) fn text(flags: InodeFlags) -> String {
    let words = WORDS.iter().filter(|(_, flag)| flags.contains(*flag)).map(|(name, _)| *name);
    words.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::KEPT_FLAGS;

    #[test]
    fn flags_are_read_as_written() {
        assert_eq!(read(text(KEPT_FLAGS).as_bytes()), KEPT_FLAGS);
        assert_eq!(read(b"simmutable,arch,nodump"), InodeFlags::IMMUTABLE | InodeFlags::NODUMP);
        assert_eq!(read(b"journal"), InodeFlags::JOURNAL_DATA);
        assert_eq!((read(b""), text(InodeFlags::empty())), (InodeFlags::empty(), String::new()));
    }
}
