//! `blockyard ls IMAGE [PATH]`: lists the names in a directory, in byte order.

use blockyard_inspect::path::LastLink;
use std::collections::HashSet;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use anyhow::{Result, bail};
use blockyard_device::ImagePath;
use blockyard_disk::{FileType, Inode, InodeMap, InodeNr};
use blockyard_inspect::path::trimmed;
use blockyard_inspect::reader::{DirEntry, Error, Reader};
use blockyard_inspect::units::counted;
use serde_json::json;

use super::calendar::iso_minutes;
use super::{Output, image, names};

/// The keys of the JSON objects, for the help.
const KEYS: &str = "JSON: one object per name: path (from the root of the image), inode, type, mode, links, uid, gid, size, modified (as [seconds, nanoseconds]), and if it applies \
target (of a symbolic link) and device (as [major, minor]). If path or target is not UTF-8, path_bytes or target_bytes has \
its bytes in hexadecimal.";

/// Arguments of `blockyard ls`.
#[derive(clap::Args)]
#[command(after_help = image::EXIT_CODES, after_long_help = format!("{KEYS}\n\n{}", image::EXIT_CODES))]
pub(crate) struct Args {
    /// The image: a file or block device; IMAGE?offset=BYTES is a part of one, such as a partition
    #[arg(value_parser = image::operand())]
    image: ImagePath,
    /// Directory or other name to list
    #[arg(default_value = "/")]
    path: OsString,
    /// Show mode, links, owner, size and modification time (UTC)
    #[arg(short = 'l', long)]
    long: bool,
    /// Show inode numbers
    #[arg(short = 'i', long)]
    inode: bool,
    /// Also list all directories below
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Show names that begin with a dot
    #[arg(short = 'a', long)]
    all: bool,
}

impl Args {
    /// Lists the path.
    pub(crate) fn run(self, output: &Output) -> Result<ExitCode> {
        let reader = image::open(&self.image)?;
        image::print(&self.image, output.mutes_text(), |out| {
            let mut listing = Listing { reader: &reader, args: &self, json: output.json, unreadable: 0 };
            listing.print(image::path_bytes(&self.path), out)?;
            match listing.unreadable {
                0 => Ok(()),
                count => bail!("{} could not be read", counted(count, "name")),
            }
        })
    }
}

/// One run of the command.
struct Listing<'r> {
    reader: &'r Reader,
    args: &'r Args,
    json: bool,
    /// The number of damaged or unreadable entries and directories. Each is reported, and the
    /// listing continues.
    unreadable: u64,
}

impl Listing<'_> {
    fn print(&mut self, path: &[u8], out: &mut dyn Write) -> Result<()> {
        // As in ls, the long form shows a link itself.
        let last = if self.args.long { LastLink::Keep } else { LastLink::Follow };
        let inode = self.reader.resolve(path, last)?;
        if !inode.is_directory() {
            return self.line(path, path, &inode, out);
        }
        // Directories still to be listed, the next one last. None is listed twice, because a
        // damaged image can hold a directory inside itself.
        let mut left = vec![(trimmed(path).to_vec(), inode)];
        let mut seen: HashSet<InodeNr> = HashSet::new();
        while let Some((path, directory)) = left.pop() {
            if !seen.insert(directory.number()) {
                continue;
            }
            if self.args.recursive && !self.json {
                let gap = if seen.len() == 1 { "" } else { "\n" };
                out.write_all(&[gap.as_bytes(), &names::bytes(or_root(&path)), b":\n"].concat())?;
            }
            let below = self.directory(&path, &directory, out)?;
            if self.args.recursive {
                left.extend(below.into_iter().rev());
            }
        }
        Ok(())
    }

    /// Prints one directory. Returns the directories in it.
    fn directory(
        &mut self,
        path: &[u8],
        directory: &Inode,
        out: &mut dyn Write,
    ) -> Result<Vec<(Vec<u8>, Inode)>> {
        let mut below = Vec::new();
        for entry in self.entries(path, directory) {
            let is_dots = entry.name == b"." || entry.name == b"..";
            if entry.name.starts_with(b".") && !self.args.all {
                continue;
            }
            let full = [path, b"/", &entry.name].concat();
            let inode = match self.reader.inode(entry.inode) {
                Ok(inode) => inode,
                Err(error) => {
                    self.report(&full, &error);
                    continue;
                }
            };
            if let Err(error) = self.line(&full, &entry.name, &inode, out) {
                // An unreadable link target is reported. A write error ends the listing.
                self.report(&full, &error.downcast()?);
            }
            if inode.is_directory() && !is_dots {
                below.push((full, inode));
            }
        }
        Ok(below)
    }

    /// The entries of a directory, sorted by name. An error ends the reading, and is reported.
    fn entries(&mut self, path: &[u8], directory: &Inode) -> Vec<DirEntry> {
        let mut found = Vec::new();
        let mut read = || -> Result<(), Error> {
            for entry in self.reader.entries(directory)? {
                found.push(entry?);
            }
            Ok(())
        };
        if let Err(error) = read() {
            self.report(or_root(path), &error);
        }
        found.sort_by(|one, other| one.name.cmp(&other.name));
        found
    }

    fn report(&mut self, path: &[u8], error: &Error) {
        eprintln!("blockyard: {}: {error}", crate::terminal::escaped(path));
        self.unreadable += 1;
    }

    fn line(&self, path: &[u8], name: &[u8], inode: &Inode, out: &mut dyn Write) -> Result<()> {
        let target = match inode.file_type() {
            FileType::Symlink if self.args.long || self.json => Some(self.reader.symlink_target(inode)?),
            _ => None,
        };
        if self.json {
            return print_json(path, inode, target.as_deref(), out);
        }
        if self.args.inode {
            write!(out, "{:>8} ", inode.number().raw())?;
        }
        if self.args.long {
            let raw = inode.slot().raw();
            let size = match inode.map() {
                InodeMap::Device(number) => format!("{}, {}", number.major, number.minor),
                _ => inode.size().to_string(),
            };
            let time = iso_minutes(inode.slot().modified().seconds);
            let mode = mode_text(inode.mode());
            write!(out, "{mode} {:>5} {:>6} {:>6} {size:>12} {time} ", inode.links(), raw.uid(), raw.gid())?;
        }
        out.write_all(&names::bytes(name))?;
        if let Some(target) = target {
            out.write_all(b" -> ")?;
            out.write_all(&names::bytes(&target))?;
        }
        Ok(writeln!(out)?)
    }
}

fn print_json(path: &[u8], inode: &Inode, target: Option<&[u8]>, out: &mut dyn Write) -> Result<()> {
    let raw = inode.slot().raw();
    let modified = inode.slot().modified();
    let mut object = json!({
        "inode": inode.number().raw(),
        "type": type_word(inode.file_type()),
        "mode": inode.mode(),
        "links": inode.links(),
        "uid": raw.uid(),
        "gid": raw.gid(),
        "size": inode.size(),
        "modified": [modified.seconds, i64::from(modified.nanoseconds)],
    });
    names::add(&mut object, "path", path);
    if let Some(target) = target {
        names::add(&mut object, "target", target);
    }
    if let InodeMap::Device(number) = inode.map() {
        object["device"] = json!([number.major, number.minor]);
    }
    Ok(writeln!(out, "{object}")?)
}

fn or_root(path: &[u8]) -> &[u8] {
    if path.is_empty() { b"/" } else { path }
}

pub(super) fn type_word(kind: FileType) -> &'static str {
    match kind {
        FileType::Fifo => "fifo",
        FileType::CharDevice => "char",
        FileType::Directory => "directory",
        FileType::BlockDevice => "block",
        FileType::Regular => "file",
        FileType::Symlink => "symlink",
        FileType::Socket => "socket",
    }
}

/// A mode in the format of `ls -l`.
pub(super) fn mode_text(mode: u16) -> String {
    let kind = match FileType::from_mode(mode) {
        Some(FileType::Fifo) => 'p',
        Some(FileType::CharDevice) => 'c',
        Some(FileType::Directory) => 'd',
        Some(FileType::BlockDevice) => 'b',
        Some(FileType::Regular) => '-',
        Some(FileType::Symlink) => 'l',
        Some(FileType::Socket) => 's',
        None => '?',
    };
    let mut text = String::from(kind);
    for (shift, special, set, unset) in [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')]
    {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => set,
            (true, false) => unset,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_look_like_those_of_ls() {
        assert_eq!(mode_text(0o040_755), "drwxr-xr-x");
        assert_eq!(mode_text(0o104_644), "-rwSr--r--");
        assert_eq!(mode_text(0o041_777), "drwxrwxrwt");
        assert_eq!(mode_text(0o107_777), "-rwsrwsrwt");
    }

    #[test]
    fn the_root_is_shown_as_a_slash() {
        assert_eq!(or_root(trimmed(b"///")), b"/");
        assert_eq!(or_root(trimmed(b"/a/b//")), b"/a/b");
    }
}
